"""The records of one topic: searched, shown and saved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from nicegui import ui

from chappe.api.log.lines import iso_time
from chappe.api.times import as_micros
from chappe.bridges.form import SENDER
from chappe.dashboard.looks import Looks
from chappe.dashboard.pages.parts import PageTable, every, value_dialog
from chappe.dashboard.records import SAVED_MAX, SHOWN_MAX, Found, RecordQuery, as_lines, as_parquet
from chappe.dashboard.showing import FORMS, Form, brief, shown
from chappe.data.markup import many
from chappe.errors import ChappeError, UsageError
from chappe.log.batch import Record
from chappe.observing.snapshot import readable

T = TypeVar("T")


class SearchOutcome(NamedTuple, Generic[T]):
    found: T | None
    problem: str = ""


class Searches(Generic[T]):
    """Runs searches in threads; the one begun last counts, whichever ends first. All methods are called in one loop."""

    def __init__(self) -> None:
        self._begun = self._running = 0

    @property
    def running(self) -> bool:
        """True while some have not ended, those that do not count any more included."""
        return self._running > 0

    async def find(self, look: Callable[[], T]) -> SearchOutcome[T] | None:
        """Call ``look`` in a thread; None if another search was begun, or refused, before it ended."""
        number = self._next()
        self._running += 1
        try:
            outcome: SearchOutcome[T] = SearchOutcome(await asyncio.to_thread(look))
        except (ChappeError, OSError) as error:
            outcome = SearchOutcome(None, str(error))
        finally:
            self._running -= 1
        return outcome if number == self._begun else None

    def refuse(self, problem: str) -> SearchOutcome[T]:
        """Refuse a search that cannot be begun; those before it do not count any more."""
        self._next()
        return SearchOutcome(None, problem)

    def _next(self) -> int:
        self._begun += 1
        return self._begun


COUNTS: Final = [20, 50, SHOWN_MAX]
FOLLOW_S: Final = 2.0
RECORDS: Final = (
    ("at", "UTC", False), ("partition", "partition", False), ("offset", "offset", True), ("key", "key", False),
    ("headers", "headers", False), ("value", "value", False),
)  # fmt: skip


class TopicRecords:
    def __init__(self, looks: Looks, name: str) -> None:
        self._looks = looks
        self._name = name
        self._found: list[Record] = []
        self._searches: Searches[Found] = Searches()
        with ui.column().classes("panel"):
            ui.label("Records").classes("title")
            with ui.row().classes("controls"):
                self._text = ui.input("Contains").props("dense outlined clearable")
                self._since = ui.input("From (UTC)", placeholder="2026-01-31 12:00").props("dense outlined clearable")
                self._partition = ui.select({"": "all partitions"}, value="", label="Partition").props("dense outlined")
                self._partition.style("min-width: 160px")
                self._offset = ui.number("From offset", min=0, precision=0).props("dense outlined clearable")
                self._offset.style("width: 130px")
                self._count = (
                    ui.select(COUNTS, value=COUNTS[0], label="At most").props("dense outlined").style("min-width: 95px")
                )
                self._form = ui.select(list(FORMS), value="auto", label="Values as", on_change=self._show)
                self._form.props("dense outlined").style("min-width: 115px")
                ui.button("Search", on_click=self.search).props("no-caps unelevated color=primary")
                self._follow = ui.switch("Follow the newest", value=True)
            self._said = ui.label("").classes("soft").props('aria-live="polite"')
            self._table = PageTable(RECORDS, self._open, empty="no records", label="Records")
            self._table.element.classes("mono")
            with ui.row().classes("controls"):
                ui.label(f"Save what the search finds, {SAVED_MAX:,} records at most:").classes("soft")
                for kind, make in (("JSON", as_lines), ("Parquet", as_parquet)):
                    ui.button(kind, on_click=self._saver(kind, make), color=None).props("flat dense no-caps")
        for each in (self._text, self._since, self._offset):
            each.on("keydown.enter", self.search)
        every(self._look, FOLLOW_S)

    def partitions(self, names: dict[str, str]) -> None:
        options = {"": "all partitions", **names}
        if options != self._partition.options:
            self._partition.set_options(
                options, value=self._partition.value if self._partition.value in options else ""
            )

    async def search(self) -> None:
        """Search now; follow the newest records only if nothing else is asked for."""
        self._follow.value = not (self._text.value or self._since.value or self._offset.value is not None)
        await self._find()

    async def _look(self) -> None:
        if self._follow.value and not self._searches.running:
            await self._find()

    async def _find(self) -> None:
        try:
            wanted = self._wanted(self._count.value)
        except UsageError as error:
            outcome: SearchOutcome[Found] | None = self._searches.refuse(str(error))
        else:
            outcome = await self._searches.find(partial(self._looks.find, self._name, wanted))
        if outcome is None:
            return
        found, problem = outcome
        if found is None:
            self._said.text = problem
            return
        self._found = list(found.records)
        self._said.text = many(len(self._found), "record") + (f"; {found.note}" if found.note else "")
        self._show()

    def _wanted(self, limit: int) -> RecordQuery:
        since = moment(self._since.value)
        offset = None if self._offset.value is None else int(self._offset.value)
        return RecordQuery(limit, since, self._partition.value or "", offset, self._text.value or "")

    def _show(self) -> None:
        form: Form = self._form.value
        self._table.show([_record(number, each, form) for number, each in enumerate(self._found)])

    def _open(self, row: dict[str, Any]) -> None:
        record = self._found[row["id"]]
        form: Form = self._form.value
        where = f"offset {record.offset:,} of partition {readable(record.partition)}, {iso_time(record.timestamp)}"
        parts = [
            ("key", shown(record.key, "text" if form == "auto" else form)),
            ("value", shown(record.value, form, typed=_typed(record))),
        ]
        parts += [(f"header {readable(name)}", shown(value)) for name, value in record.headers]
        value_dialog(where, parts)

    def _saver(self, kind: str, make: Callable[[list[Record]], bytes]) -> Callable[[], Any]:
        async def save() -> None:
            try:
                found = await asyncio.to_thread(self._looks.find, self._name, self._wanted(SAVED_MAX))
                raw = await asyncio.to_thread(make, list(found.records))
            except (ChappeError, OSError) as error:
                self._said.text = str(error)
                return
            self._said.text = f"{len(found.records):,} records saved as {kind}" + (
                f"; {found.note}" if found.note else ""
            )
            ui.download.content(raw, _file(self._name) + (".jsonl" if kind == "JSON" else ".parquet"))

        return save


def _record(number: int, each: Record, form: Form) -> dict[str, Any]:
    return {
        "id": number,
        "at": iso_time(each.timestamp)[:23].replace("T", " "),
        "partition": readable(each.partition)[:12],
        "offset": (f"{each.offset:,}", each.offset),
        "key": brief(each.key, "text" if form == "auto" else form),
        "headers": ", ".join(f"{readable(name)}={brief(value)}" for name, value in each.headers)[:160],
        "value": brief(each.value, form, typed=_typed(each)),
    }


def moment(text: str | None) -> int | None:
    """Return microseconds since 1970; None for nothing. Raises UsageError for an invalid moment."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError("A moment looks like 2026-01-31 12:00.") from None
    return as_micros(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _typed(record: Record) -> bool:
    return any(name == SENDER for name, _ in record.headers)


def _file(topic: str) -> str:
    return "".join(each if each.isalnum() or each in "._-" else "_" for each in topic)[:100] or "topic"
