"""Pipelines: Spark's queries with their rates, lag and state."""

from __future__ import annotations

from nicegui import ui

from chappe.dashboard.looks import Looks
from chappe.dashboard.pages.parts import Here, PageTable, every
from chappe.dashboard.pages.words import connecting, rate, size
from chappe.observing.snapshot import ObservedPipeline, ObservedQuery

COLUMNS = (
    ("name", "query", False), ("batch", "batch", True), ("in", "rows/s in", True), ("done", "rows/s done", True),
    ("lag", "records behind", True), ("lag_b", "bytes behind", True), ("lag_s", "seconds behind", True),
    ("last", "last batch", True), ("late", "late rows", True), ("state", "state", True),
)  # fmt: skip


class _Card:
    def __init__(self, pipeline: ObservedPipeline) -> None:
        with ui.column().classes("panel") as self.element:
            with ui.row().classes("controls"):
                ui.label(pipeline.name).classes("title")
                self._stage = ui.label("")
            self._facts = ui.label("").classes("soft")
            self._error = ui.label("").classes("failed-text value")
            self._page = ui.link("Spark's own page", pipeline.page, new_tab=True)
            self._table = PageTable(COLUMNS, empty="no query has run a batch yet", label=f"Queries of {pipeline.pid}")

    def show(self, pipeline: ObservedPipeline) -> None:
        running = pipeline.stage == "running"
        self._stage.text = pipeline.stage
        colour = "good-text" if running else "failed-text" if pipeline.error else "warning-text"
        self._stage.classes(replace=colour)
        there = f"process {pipeline.pid}, since {pipeline.since}, told at {pipeline.updated or 'no time yet'}; "
        gone = f"ended at {pipeline.error_at}; "
        self._facts.text = f"{gone if pipeline.error else there}{pipeline.file}; what Spark says: {pipeline.log}"
        if self._page.props.get("href") != pipeline.page:  # which is there once Spark has started
            self._page.props["href"] = pipeline.page
            self._page.update()
        self._page.set_visibility(bool(pipeline.page))
        self._error.text = f"Its last error: {pipeline.error}" if pipeline.error else ""
        self._error.set_visibility(bool(pipeline.error))
        self._table.show([_row(each) for each in pipeline.queries])


def page(looks: Looks, _: Here) -> None:
    with ui.column().classes("panel") as none:
        title = ui.label(connecting()).classes("title")
        ui.label("Start one: chappe pipeline run FILE").classes("soft")
    box = ui.column().style("gap: 14px; width: 100%")
    cards: dict[str, _Card] = {}

    def refresh() -> None:
        snapshot = looks.watching.snapshot()
        found = {each.name: each for each in snapshot.pipelines}
        awaited = "pipelines" in snapshot.awaited
        title.text = connecting(["pipelines"]) if awaited else "No pipeline of this user runs on this machine"
        none.set_visibility(not found)
        for name in [each for each in cards if each not in found]:
            cards.pop(name).element.delete()
        for name, each in found.items():
            if name not in cards:
                with box:
                    cards[name] = _Card(each)
            cards[name].show(each)

    every(refresh)


def _row(query: ObservedQuery) -> dict[str, object]:
    if query.batch < 0:
        numbers = ("in", "done", "lag", "lag_b", "lag_s", "last", "late", "state")
        return {"id": query.name, "name": query.name, "batch": ("none yet", -1), **dict.fromkeys(numbers, ("", -1))}
    behind = sum(each.bytes for each in query.lag)
    return {
        "id": query.name,
        "name": query.name,
        "batch": (f"{query.batch:,}", query.batch),
        "in": (rate(query.rows_in_s), query.rows_in_s),
        "done": (rate(query.rows_processed_s), query.rows_processed_s),
        "lag": (f"{query.lag_records:,}", query.lag_records),
        "lag_b": (size(behind), behind),
        "lag_s": ("unknown", -1) if query.lag_s is None else (f"{query.lag_s:.1f}", query.lag_s),
        "last": (f"{query.batch_rows:,} rows in {query.batch_s:.1f} s", query.batch_rows),
        "late": (f"{query.late_rows:,}", query.late_rows),
        "state": (f"{query.state_rows:,} rows, {size(query.state_bytes)}", query.state_bytes),
    }
