"""Topics: rates, lags, sizes, writers and readers; and the records of one, newest first, searched and saved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from nicegui import ui

from chappe.api.log.lines import iso_time
from chappe.api.times import as_micros
from chappe.bridges.form import SENDER
from chappe.dashboard.changes import DashboardChanges, Planned
from chappe.dashboard.looks import Looks
from chappe.dashboard.pages.addresses import Here, address, title
from chappe.dashboard.pages.changing import offer
from chappe.dashboard.pages.parts import Fact, LineChart, PageTable, every, go, value_dialog
from chappe.dashboard.pages.words import ago, connecting, many, rate, size
from chappe.dashboard.records import SAVED_MAX, SHOWN_MAX, Found, RecordQuery, as_lines, as_parquet
from chappe.dashboard.searches import Searches, SearchOutcome
from chappe.dashboard.showing import FORMS, Form, brief, shown
from chappe.errors import ChappeError, UsageError
from chappe.log.batch import Record
from chappe.observing.lines import DAY, HOUR, MINUTES
from chappe.observing.snapshot import Reader, Topic, readable

LISTED_MAX: Final = 500
COUNTS: Final = [20, 50, SHOWN_MAX]
FOLLOW_S: Final = 2.0
NAMES_SHOWN: Final = 12
WRITER_SHOWN: Final = 40  # characters of a partition, or of its producer's name, to choose from
READERS_DRAWN: Final = 5
SPANS: Final = {"5 minutes": (MINUTES, "s"), "1 hour": (HOUR, "min"), "1 day": (DAY, "h")}  # and the unit of its axis
KEPT: Final = "chappe.charts"  # where a browser remembers the span
COLUMNS: Final = (
    ("name", "topic", False), ("rate", "records/s", True), ("spark", "last 5 minutes", True), ("lag", "lag", True),
    ("records", "records kept", True), ("size", "size", True), ("partitions", "partitions", True),
    ("newest", "last written", True), ("read", "read by", False),
)  # fmt: skip
RECORDS: Final = (
    ("at", "UTC", False), ("partition", "partition", False), ("offset", "offset", True), ("key", "key", False),
    ("headers", "headers", False), ("value", "value", False),
)  # fmt: skip


def page(looks: Looks, here: Here) -> None:
    """Build it."""
    chosen = [""]

    def follow() -> None:
        chosen[0] = here.chosen("topic")
        title(chosen[0], "Topics")
        box.clear()
        details.clear()
        if chosen[0]:
            with box:
                ui.link_target("chosen")
                details.append(_Details(looks, chosen[0]))
                ui.timer(0, refresh, once=True)

    with ui.column().classes("panel"):
        with ui.row().classes("controls"):
            search = ui.input("Topic contains").props("dense outlined clearable")
            total = ui.label("").classes("soft")
        table = PageTable(COLUMNS, go, sort=("name", False), empty="no topic is known yet", label="Topics")
    if looks.changes is not None:
        _writing(looks.changes)
    box = ui.column().style("width: 100%; gap: 14px")
    details: list[_Details] = []

    async def refresh() -> None:
        snapshot = looks.watching.snapshot()
        found: list[Topic] | tuple[Topic, ...] = snapshot.topics
        if text := search.value:
            found = await asyncio.to_thread(looks.watching.find_topics, text, LISTED_MAX)
            if search.value != text:  # somebody types on: the next one shows it
                return
        sparks = looks.watching.sparks(each.name for each in found)
        table.show([_row(each, snapshot.at, chosen[0], sparks[each.name]) for each in found], snapshot.awaited)
        less = f", {len(found):,} of them listed" if len(found) < snapshot.topics_total else ""
        total.text = f"{snapshot.topics_total:,} topics{less}"
        if details:
            details[-1].refresh(snapshot.at)

    search.on_value_change(refresh)
    here.follow(follow)
    every(refresh)


def _writing(changes: DashboardChanges) -> None:
    """Write a record, with which a topic begins that was not there."""
    with ui.column().classes("panel"):
        ui.label("Write a record, or begin a topic").classes("title")
        with ui.row().classes("controls"):
            topic = ui.input("Topic to write to").props("dense outlined")
            key = ui.input("Key to write").props("dense outlined")
            value = ui.input("Value to write").props("dense outlined")

            def plan() -> Planned:
                return changes.write(topic.value or "", key.value or "", value.value or "")

            ui.button("Write", on_click=offer(plan, lambda text: said.set_text(text))).props("no-caps outline")
        said = ui.label("").classes("soft").props('aria-live="polite"')


class _Details:
    """One topic."""

    def __init__(self, looks: Looks, name: str) -> None:
        self._looks = looks
        self._name = name
        self._facts: dict[str, Fact] = {}
        self._group: ui.select | None = None
        with ui.column().classes("panel"):
            ui.label(name).classes("title")
            with ui.row().classes("facts"):
                for each in ("records/s", "records kept", "size", "oldest kept", "last written", "partitions"):
                    self._facts[each] = Fact(each)
            self._who = ui.column().style("gap: 2px; width: 100%")
            self._span = ui.toggle(list(SPANS), value=next(iter(SPANS)), on_change=self._remember)
            self._span.props('no-caps unelevated toggle-color=primary padding="2px 12px"')
            self._span.props('aria-label="How far charts go back"')
            ui.timer(0, self._recall, once=True)
            with ui.element("div").classes("two"):
                self._rate = LineChart("records", "a second")
                self._lag = LineChart("lag", "records behind")
            if looks.changes is not None:
                self._changing(looks.changes)
        self._shown: list[str] = []
        self._records = _Records(looks, name)

    def _changing(self, changes: DashboardChanges) -> None:
        """Trim it, and have its groups go on elsewhere."""
        with ui.row().classes("controls"):
            before = ui.input("Older than (UTC)", placeholder="2026-01-31 12:00").props("dense outlined clearable")
            trim = ui.button("Trim").props("no-caps outline")
            delete = ui.button("Delete all records").props("no-caps outline color=negative")
            ui.space()
            group = ui.select({}, label="Group").props("dense outlined").style("min-width: 130px")
            self._group = group
            to = ui.select(["earliest", "latest", "moment"], value="earliest", label="goes on at")
            to.props("dense outlined").style("min-width: 110px")
            at = ui.input("Moment (UTC)", placeholder="2026-01-31 12:00").props("dense outlined clearable")
            at.bind_visibility_from(to, "value", value="moment")
            reset = ui.button("Reset").props("no-caps outline color=negative")
        said = ui.label("").classes("soft").props('aria-live="polite"')

        def plan_trim() -> Planned:
            moment = _moment(before.value)
            if moment is None:
                raise UsageError("Say before which moment records are to go: it looks like 2026-01-31 12:00.")
            return changes.trim(self._name, moment)

        def plan_reset() -> Planned:
            return changes.reset(group.value or "", to.value, _moment(at.value))

        def plan_delete() -> Planned:
            return changes.trim(self._name, None)

        for button, plan in ((trim, plan_trim), (delete, plan_delete), (reset, plan_reset)):
            button.on_click(offer(plan, said.set_text))

    def _remember(self) -> None:
        ui.run_javascript(f"localStorage.setItem({KEPT!r}, {self._span.value!r})")
        self._charts()

    async def _recall(self) -> None:
        """Show what was chosen last in this browser."""
        with suppress(TimeoutError):
            await ui.context.client.connected()
            found = await ui.run_javascript(f"localStorage.getItem({KEPT!r})")
            if found in SPANS:
                self._span.value = found

    def _charts(self) -> None:
        watching = self._looks.watching
        topic = watching.topic(self._name)
        span, unit = SPANS[self._span.value]
        readers = () if topic is None else topic.readers[:READERS_DRAWN]
        self._rate.show([("records/s", watching.rate_line(self._name, span))], unit)
        self._lag.show([(each.name, watching.lag_line(self._name, each.name, span)) for each in readers], unit)

    def refresh(self, now_us: int) -> None:
        topic = self._looks.watching.topic(self._name)
        awaited = self._looks.watching.snapshot().awaited
        if topic is None and awaited:
            self._tell([connecting(awaited)])
            return
        if topic is None:
            self._tell(["No store has this topic any more."])
            return
        for name, text in {
            "records/s": rate(topic.per_s),
            "records kept": f"{topic.records:,}",
            "size": size(topic.bytes),
            "oldest kept": ago(topic.oldest, now_us),
            "last written": ago(topic.newest, now_us),
            "partitions": f"{topic.partitions:,}",
        }.items():
            self._facts[name].show(text)
        self._charts()
        names = {each.id: each.name for each in self._looks.watching.snapshot().members}
        live = {True: "somebody listens live just now", False: "nobody listens live just now", None: ""}[topic.live]
        groups = ", ".join(map(_reader, topic.readers))
        writers = {each: _writer(each, name) for each, name in zip(topic.writers, topic.names, strict=False)}
        self._tell(
            [
                f"written by {_some([writers.get(each, each) for each in topic.writers], topic.partitions)}",
                f"kept by {_some([names.get(each, each) for each in topic.stores], len(topic.stores))}",
                f"kept of it: {topic.retention or 'nobody tells for how long'}",
                f"read by {groups or 'nobody who commits positions'}; {live}",
            ]
        )
        self._records.partitions({each: writers.get(each, each)[:WRITER_SHOWN] for each in topic.writers})
        offered = {each.name: each.name for each in topic.readers if each.kind == "group"}
        if self._group is not None and offered != self._group.options:
            self._group.set_options(offered, value=self._group.value if self._group.value in offered else None)

    def _tell(self, lines: list[str]) -> None:
        if lines != self._shown:
            self._shown = lines
            self._who.clear()
            with self._who:
                for each in lines:
                    ui.label(each).classes("soft")


class _Records:
    """Records of one topic: what to look for, and what was found."""

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
        """These are there to choose from, and what to call each."""
        options = {"": "all partitions", **names}
        if options != self._partition.options:
            self._partition.set_options(
                options, value=self._partition.value if self._partition.value in options else ""
            )

    async def search(self) -> None:
        """Look now."""
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
        """Raises UsageError for a moment that is none."""
        since = _moment(self._since.value)
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


def _writer(partition: str, name: str) -> str:
    """A partition, by what people call its producer if that told."""
    return f"{name} ({partition[:8]})" if name else partition


def _reader(each: Reader) -> str:
    at = "" if each.position is None else f"at {each.position:,}, "
    more = f", {many(each.left_out, 'partition')} not told of" if each.left_out else ""
    return f"{each.kind} {each.name} ({at}{each.lag:,} records behind{more})"


def _row(topic: Topic, now_us: int, chosen: str, spark: str) -> dict[str, Any]:
    readers = [each.name for each in topic.readers]
    return {
        "id": topic.name,
        "href": address("/topics", topic=topic.name) + "#chosen",
        "name": topic.name,
        "rate": (rate(topic.per_s), topic.per_s),
        "spark": (spark, topic.per_s),
        "lag": (f"{topic.lag:,}", topic.lag) if readers else ("", -1),
        "records": (f"{topic.records:,}", topic.records),
        "size": (size(topic.bytes), topic.bytes),
        "partitions": (f"{topic.partitions:,}", topic.partitions),
        "newest": (ago(topic.newest, now_us), topic.newest),
        "read": ", ".join(readers[:3]) or ("live" if topic.live else ""),
        "chosen": topic.name == chosen,
    }


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


def _moment(text: str | None) -> int | None:
    """Microseconds since 1970; None for nothing. Raises UsageError for a moment that is none."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError("A moment looks like 2026-01-31 12:00.") from None
    return as_micros(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _typed(record: Record) -> bool:
    return any(name == SENDER for name, _ in record.headers)


def _some(names: list[str] | tuple[str, ...], total: int) -> str:
    text = ", ".join(names[:NAMES_SHOWN])
    return f"{text} and {total - NAMES_SHOWN:,} more" if total > NAMES_SHOWN else text or "nobody"


def _file(topic: str) -> str:
    return "".join(each if each.isalnum() or each in "._-" else "_" for each in topic)[:100] or "topic"
