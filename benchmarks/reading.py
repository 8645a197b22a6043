"""Whole topics to Arrow tables, beside the same columns from Parquet."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from benchmarks.children import Child, Children
from benchmarks.outcome import Line, Rate, times
from benchmarks.reading_members import MEMBERS
from benchmarks.rounds import tower
from benchmarks.settings import Settings
from benchmarks.stored import start_store
from chappe.api.log.discovery import discover
from chappe.arrow import COLUMNS

RECORDS = 5_000_000
TARGET = 0.7  # of Parquet's rate
COMPRESSION = "snappy"  # pyarrow's default
SELECTIONS = {"all columns": COLUMNS, "offset, timestamp and value": ("offset", "timestamp", "value")}


@dataclass(slots=True)
class _Reader:
    """A process that reads, what it is told to besides, and the store that it asks, if it does."""

    child: Child
    order: dict[str, object]
    store: Child | None = None
    rates: list[float] = field(default_factory=list)
    cpu_us: list[dict[str, float]] = field(default_factory=list)

    def round(self, count: int) -> None:
        """Read everything once more."""
        before = 0.0 if self.store is None else self.store.cpu_s()
        facts = self.child.ask(**self.order)
        assert facts["records"] == count
        self.rates.append(count / ((facts["end"] - facts["start"]) / 1e9))
        cpu_s = {"reader": facts["cpu_s"]}
        if self.store is not None:
            cpu_s["store"] = self.store.cpu_s() - before
        self.cpu_us.append({name: 1e6 * seconds / count for name, seconds in cpu_s.items()})

    def rate(self) -> Rate:
        """What the rounds gave, but for the first, which imports and opens what the others find."""
        counted = self.cpu_us[1:]
        return Rate(tuple(self.rates[1:]), {name: median(each[name] for each in counted) for name in counted[0]})


def read_topics(settings: Settings) -> list[Line]:
    """``read_topic`` in a process of its own, and pyarrow in another, in turn."""
    count = settings.count(RECORDS)
    lines = []
    with Children(settings.work / "read-topic") as children:
        address = tower(children)
        store = start_store(children, settings, address, "read-topic")
        writer = children.start(MEMBERS, "writer", tower=address)
        writer.hear()
        writer.ask(count=count)
        writer.finish()
        (found,) = discover(address)
        file = str(settings.work / "records.parquet")
        topic = children.start(MEMBERS, "topic_reader", store=found.endpoint)
        parquet = children.start(MEMBERS, "parquet_reader", parquet=file)
        topic.hear()
        parquet.hear()
        topic.ask(columns=COLUMNS, parquet=file, compression=COMPRESSION)
        for name, columns in SELECTIONS.items():
            ours = _Reader(topic, {"columns": columns}, store)
            threads, alone = (_Reader(parquet, {"columns": columns, "threads": many}) for many in (True, False))
            for _ in range(1 + settings.repeats):
                for each in (ours, threads, alone):
                    each.round(count)
            lines.append(_line(name, ours.rate(), threads.rate(), alone.rate()))
    return lines


def _line(name: str, ours: Rate, threads: Rate, alone: Rate) -> Line:
    ratio = ours.median / threads.median
    return Line(
        f"read_topic to an Arrow table, {name}",
        str(ours),
        f">= {TARGET}x of pyarrow from Parquet",
        f"pyarrow from Parquet: {threads}; with one thread: {alone}",
        f"{times(ratio)}; {times(ours.median / alone.median)}",
        ratio >= TARGET,
        f"{ours.note()}; pyarrow: {threads.note()}; with one thread: {alone.note()}",
        {**ours.numbers("chappe"), **threads.numbers("parquet"), **alone.numbers("parquet_one_thread")},
    )
