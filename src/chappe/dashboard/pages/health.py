"""Health: what is wrong, in sentences, with what mends it; what was sampled; and what became of whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nicegui import ui

from chappe.dashboard.looks import Looks
from chappe.dashboard.pages.parts import Here, PageTable, address, every
from chappe.dashboard.pages.style import LEVELS
from chappe.dashboard.pages.words import clock, connecting
from chappe.data.markup import many
from chappe.observing.snapshot import HealthProblem, StatusChange

HISTORY_SHOWN: Final = 200


def page(looks: Looks, here: Here) -> None:
    with ui.column().classes("panel"):
        ui.label("What is wrong").classes("title")
        problems = ui.column().style("gap: 14px; width: 100%").props('aria-live="polite"')
    with ui.column().classes("panel") as sampled:
        ui.label("What is sampled or left out").classes("title")
        notes = ui.column().style("gap: 2px")
    with ui.column().classes("panel"):
        ui.label("What has changed, newest first").classes("title")
        with ui.row().classes("controls"):
            search = ui.input("Change contains").props("dense outlined clearable debounce=300")
            kinds = ui.select([], multiple=True, label="Of").props("dense outlined clearable use-chips")
            kinds.style("min-width: 200px")
            total = ui.label("").classes("soft")
        history = PageTable(
            (("at", "UTC", False), ("level", "", False), ("who", "who", False), ("text", "what", False)),
            empty="nothing like that has changed since this dashboard began",
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
        offered = sorted({each.kind for each in snapshot.history} | set(kinds.value))
        if offered != kinds.options:
            kinds.set_options(offered)
        found = _fitting(snapshot.history, search.value or "", kinds.value)
        history.show([_row(number, each) for number, each in enumerate(found[:HISTORY_SHOWN])])
        total.text = many(len(found), "change") + (f", the newest {HISTORY_SHOWN}" * (len(found) > HISTORY_SHOWN))

    def filtered() -> None:
        looked_for = {"change": search.value or "", "of": ",".join(sorted(kinds.value))}
        ui.navigate.history.replace(address("/health", **{name: text for name, text in looked_for.items() if text}))
        refresh()

    def follow() -> None:
        chosen = list(filter(None, here.chosen("of").split(",")))
        kinds.set_options(sorted({*kinds.options, *chosen}))
        search.value, kinds.value = here.chosen("change"), chosen

    here.follow(follow)
    search.on_value_change(filtered)
    kinds.on_value_change(filtered)
    every(refresh)


def _fitting(changes: Sequence[StatusChange], text: str, kinds: Sequence[str]) -> list[StatusChange]:
    wanted = text.casefold()
    return [
        each
        for each in changes
        if (not kinds or each.kind in kinds) and wanted in f"{each.who} {each.text} {LEVELS[each.level][1]}".casefold()
    ]


def _row(number: int, each: StatusChange) -> dict[str, Any]:
    text = each.text if each.times == 1 else f"{each.text} {each.times:,} times since {clock(each.since)}"
    return {"id": number, "at": clock(each.at), "level": LEVELS[each.level][1], "who": each.who, "text": text}


def _problems(problems: tuple[HealthProblem, ...], awaited: tuple[str, ...]) -> None:
    if awaited:
        ui.label(connecting(awaited))
    elif not problems:
        ui.label("Everything that can be seen from here is as it should be.").classes("good-text")
    for each in problems:
        with ui.column().classes(f"problem {each.level}"):
            ui.label(f"{LEVELS[each.level][1]}, since {clock(each.since)} UTC").classes(f"level {each.level}-text")
            ui.label(each.text)
            ui.label(each.mend).classes("soft")
