"""Topics: rates, lags, sizes, writers and readers; and of one more, with its records."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from nicegui import ui

from chappe.dashboard.changes import DashboardChanges, Planned
from chappe.dashboard.looks import Looks
from chappe.dashboard.pages.parts import Fact, Here, LineChart, PageTable, address, every, form, go, offer, title
from chappe.dashboard.pages.topic_records import TopicRecords, moment
from chappe.dashboard.pages.words import ago, connecting, rate, size
from chappe.data.markup import many
from chappe.errors import UsageError
from chappe.observing.lines import DAY, HOUR, MINUTES
from chappe.observing.snapshot import ObservedReader, ObservedTopic

LISTED_MAX: Final = 500
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


def page(looks: Looks, here: Here) -> None:
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
        inputs = ("Topic to write to", "Key to write", "Value to write")
        form("Write a record, or begin a topic", "Write", looks.changes.write, *inputs)
    box = ui.column().style("width: 100%; gap: 14px")
    details: list[_Details] = []

    async def refresh() -> None:
        snapshot = looks.watching.snapshot()
        found: list[ObservedTopic] | tuple[ObservedTopic, ...] = snapshot.topics
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


class _Details:
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
        self._records = TopicRecords(looks, name)

    def _changing(self, changes: DashboardChanges) -> None:
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
            before_us = moment(before.value)
            if before_us is None:
                raise UsageError("Say before which moment records are to go: it looks like 2026-01-31 12:00.")
            return changes.trim(self._name, before_us)

        def plan_reset() -> Planned:
            return changes.reset(group.value or "", to.value, moment(at.value))

        def plan_delete() -> Planned:
            return changes.trim(self._name, None)

        for button, plan in ((trim, plan_trim), (delete, plan_delete), (reset, plan_reset)):
            button.on_click(offer(plan, said.set_text))

    def _remember(self) -> None:
        ui.run_javascript(f"localStorage.setItem({KEPT!r}, {self._span.value!r})")
        self._charts()

    async def _recall(self) -> None:
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


def _writer(partition: str, name: str) -> str:
    return f"{name} ({partition[:8]})" if name else partition


def _reader(each: ObservedReader) -> str:
    at = "" if each.position is None else f"at {each.position:,}, "
    more = f", {many(each.left_out, 'partition')} not told of" if each.left_out else ""
    return f"{each.kind} {each.name} ({at}{each.lag:,} records behind{more})"


def _row(topic: ObservedTopic, now_us: int, chosen: str, spark: str) -> dict[str, Any]:
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


def _some(names: list[str] | tuple[str, ...], total: int) -> str:
    text = ", ".join(names[:NAMES_SHOWN])
    return f"{text} and {total - NAMES_SHOWN:,} more" if total > NAMES_SHOWN else text or "nobody"
