"""The window that asks before something is changed, and tells how it went."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nicegui import ui

from chappe.dashboard.changes import Planned
from chappe.errors import ChappeError


def offer(plan: Callable[[], Planned], said: Callable[[str], object]) -> Callable[[], object]:
    """For a button: plan a change, ask with what will be lost, and carry it out if that is wanted.

    Args:
        plan: What somebody wants; may block. Raises ChappeError if that cannot be.
        said: Told how it went.
    """

    async def ask() -> None:
        try:
            planned = await asyncio.to_thread(plan)
        except (ChappeError, OSError) as error:
            said(str(error))
            return
        _confirm(planned, said)

    return ask


def form(title: str, button: str, plan: Callable[..., Planned], *inputs: str, about: str = "") -> None:
    """A panel whose button offers what is planned with the texts of its inputs."""
    with ui.column().classes("panel"):
        ui.label(title).classes("title")
        if about:
            ui.label(about).classes("soft")
        with ui.row().classes("controls"):
            fields = [ui.input(each).props("dense outlined").style("min-width: 200px") for each in inputs]
            action = offer(lambda: plan(*(each.value or "" for each in fields)), lambda text: said.set_text(text))
            ui.button(button, on_click=action).props("no-caps outline")
        said = ui.label("").classes("soft").props('aria-live="polite"')


def _confirm(planned: Planned, said: Callable[[str], object]) -> None:
    async def do() -> None:
        button.disable()
        try:
            text = await asyncio.to_thread(planned.carry_out)
        except (ChappeError, OSError) as error:
            text = str(error)
        dialog.close()
        said(text)

    with ui.dialog(value=True).props("persistent") as dialog, ui.card() as card:
        card.classes("panel confirm").style("max-width: 700px").props('role="alertdialog"')
        ui.label(planned.title).classes("title")
        ui.label(planned.loses).classes("value" if planned.harmless else "value failed-text")
        with ui.row().classes("controls"):
            ui.button("Cancel", on_click=dialog.close, color=None).props("flat no-caps autofocus")
            button = ui.button(planned.verb, on_click=do)
            button.props(f"no-caps unelevated color={'primary' if planned.harmless else 'negative'}")
    dialog.on("hide", dialog.delete)
