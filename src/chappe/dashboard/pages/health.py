"""Health: what is wrong, in sentences, with what mends it; what was sampled; and what became of whom."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from chappe.dashboard.looks import Looks
from chappe.dashboard.pages.addresses import Here
from chappe.dashboard.pages.parts import Table, every
from chappe.dashboard.pages.style import LEVELS
from chappe.dashboard.pages.words import clock, connecting
from chappe.observing.snapshot import Problem

HISTORY_SHOWN: Final = 200


def page(looks: Looks, _: Here) -> None:
    """Build it."""
    with ui.column().classes("panel"):
        ui.label("What is wrong").classes("title")
        problems = ui.column().style("gap: 14px; width: 100%").props('aria-live="polite"')
    with ui.column().classes("panel") as sampled:
        ui.label("What is sampled or left out").classes("title")
        notes = ui.column().style("gap: 2px")
    with ui.column().classes("panel"):
        ui.label("What has changed, newest first").classes("title")
        history = Table(
            (("at", "UTC", False), ("level", "", False), ("who", "who", False), ("text", "what", False)),
            empty="nothing has changed since this dashboard began",
            label="History of statuses",
        )
    history.element.classes("history")
    with problems:
        ui.label(connecting())
    shown: list[tuple[object, ...] | None] = [None, None]

    def refresh() -> None:
        snapshot = looks.watching.snapshot()
        if shown[0] != (snapshot.problems, snapshot.awaited):
            shown[0] = (snapshot.problems, snapshot.awaited)
            problems.clear()
            with problems:
                _problems(snapshot.problems, snapshot.awaited)
        if shown[1] != snapshot.notes:
            shown[1] = snapshot.notes
            notes.clear()
            with notes:
                for each in snapshot.notes:
                    ui.label(each).classes("soft")
        sampled.set_visibility(bool(snapshot.notes))
        history.show(
            [
                {"id": number, "at": clock(each.at), "level": LEVELS[each.level][1], "who": each.who, "text": each.text}
                for number, each in enumerate(snapshot.history[:HISTORY_SHOWN])
            ]
        )

    every(refresh)


def _problems(problems: tuple[Problem, ...], awaited: tuple[str, ...]) -> None:
    if awaited:
        ui.label(connecting(awaited))
    elif not problems:
        ui.label("Everything that can be seen from here is as it should be.").classes("good-text")
    for each in problems:
        with ui.column().classes(f"problem {each.level}"):
            ui.label(f"{LEVELS[each.level][1]}, since {clock(each.since)} UTC").classes(f"level {each.level}-text")
            ui.label(each.text)
            ui.label(each.mend).classes("soft")
