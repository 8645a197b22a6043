"""The frame around all pages: where one can go, how things are in one word, light or dark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nicegui import ui

from chappe.dashboard.looks import Looks
from chappe.dashboard.pages import health, keepings, map_page, mesh, pipelines, topics
from chappe.dashboard.pages.parts import Here, every, title
from chappe.dashboard.pages.style import CSS

PAGES: Final[tuple[tuple[str, str, Callable[[Looks, Here], None]], ...]] = (
    ("/", "Map", map_page.page),
    ("/topics", "Topics", topics.page),
    ("/mesh", "Mesh", mesh.page),
    ("/stores", "Data stores and maps", keepings.page),
    ("/pipelines", "Pipelines", pipelines.page),
    ("/health", "Health", health.page),
)
NEXT: Final[dict[bool | None, tuple[bool | None, str]]] = {
    None: (True, "dark"), True: (False, "light"), False: (None, "as the system"),
}  # fmt: skip


def root(looks: Looks) -> None:
    ui.add_css(CSS)
    ui.colors(primary="#0072b2")
    dark = ui.dark_mode(None)
    links: dict[str, ui.link] = {}
    router = ui.context.client.sub_pages_router
    here = Here(router.current_path)
    router.on_path_changed(here.take)

    def shade() -> None:
        dark.value, text = NEXT[dark.value]
        button.text = f"Colours: {text}"

    with ui.element("nav").classes("bar row").props('aria-label="Pages"'):
        ui.label("chappe").classes("brand")
        for path, name, _ in PAGES:
            links[path] = ui.link(name, path)
        ui.space()
        if looks.changes is not None:
            ui.label("changes are allowed").classes("warning-text")
        state = ui.link("connecting ...", "/health").props('aria-live="polite"')
        button = ui.button("Colours: as the system", on_click=shade, color=None).props("flat dense no-caps")

    def mark(path: str) -> None:
        for each, link in links.items():
            link.classes(add="here" if each == path else "", remove="" if each == path else "here")
            link.props("aria-current=page" if each == path else "", remove="" if each == path else "aria-current")

    def builder(path: str, name: str, page: Callable[[Looks, Here], None]) -> Callable[[], None]:
        def build() -> None:
            mark(path)
            title(name)
            with ui.column().classes("page"):
                page(looks, here)

        return build

    ui.sub_pages({path: builder(path, name, page) for path, name, page in PAGES}).style("width: 100%")

    def refresh() -> None:
        snapshot = looks.watching.snapshot()
        problems = snapshot.problems
        failed = sum(each.level == "failed" for each in problems)
        if problems:
            text = f"{failed} failed, {len(problems) - failed} warnings"
        else:
            text = "connecting ..." if snapshot.awaited else "all is well"
        if state.text != text:
            state.text = text
            kind = "failed-text" if failed else "warning-text" if problems or snapshot.awaited else "good-text"
            state.classes(replace=kind)

    every(refresh)
