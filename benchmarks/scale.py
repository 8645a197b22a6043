"""How the log behaves as things become many or large: ``python -m benchmarks.scale``.

Each sweep changes one number and leaves all others. Every point is one round after a warm-up, on processes of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import brokers, report
from benchmarks.children import ROOT, Child, ChildFailed, Children
from benchmarks.link import RECORD_BYTES
from benchmarks.rounds import WARM_UP, Together, tower
from benchmarks.scaling import Curve, Panel, draw, short
from benchmarks.settings import Settings
from benchmarks.stored import start_store

RESULTS: Final = ROOT / "benchmarks" / "SCALE.md"
PLOT: Final = ROOT / "docs" / "explanation" / "scale.svg"
MEMBERS: Final = (1, 2, 4, 8, 16)
PARTITIONS: Final = (1, 10, 100, 1_000, 10_000, 100_000)
TOPICS: Final = (1, 10, 100, 1_000, 10_000)
RECORDS: Final = (1_000_000, 10_000_000, 50_000_000)
SIZES: Final = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
EACH: Final = 10  # records of a partition where partitions are many
ROUND: Final = 4_000_000  # records of a round in batches
SIZED_BYTES: Final = 200_000_000  # of a round where the size of records changes; not more than ROUND / 2 records
KAFKA_AHEAD: Final = 100_000  # records that Kafka's producer has under way

Row = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What was found: for each number a row, of which some columns are drawn."""

    title: str
    what: str
    rows: dict[int, Row]
    drawn: tuple[str, ...]

    def panel(self) -> Panel:
        """The picture."""
        curves = [Curve(name, {at: row[name] for at, row in self.rows.items() if name in row}) for name in self.drawn]
        return Panel(self.title, self.what, [each for each in curves if each.rates])

    def columns(self) -> list[str]:
        """The names of all that was measured."""
        return list(dict.fromkeys(name for row in self.rows.values() for name in row))

    def cells(self) -> list[list[str]]:
        """The table, for people."""
        names = self.columns()
        return [[short(at), *(_shown(row.get(name)) for name in names)] for at, row in self.rows.items()]


def consumers(settings: Settings) -> Sweep:
    """One producer, and more and more consumers, each of which gets everything."""
    return Sweep(
        "Consumers of one producer, batches to Arrow, no store",
        "consumers",
        {many: _live(settings, f"consumers-{many}", 1, many) for many in MEMBERS},
        ("records/s", "deliveries/s"),
    )


def producers(settings: Settings) -> Sweep:
    """More and more producers, and one consumer."""
    return Sweep(
        "Producers to one consumer, batches to Arrow, no store",
        "producers",
        {many: _live(settings, f"producers-{many}", many, 1) for many in MEMBERS},
        ("records/s",),
    )


def _live(settings: Settings, name: str, senders: int, receivers: int) -> Row:
    with Children(settings.work / name) as children:
        address = tower(children)
        options = {"tower": address, "single": False}
        sending = Together([children.member("producer", acks=0, **options) for _ in range(senders)])
        receiving = Together([children.member("consumer", **options) for _ in range(receivers)])
        for each in (*sending.members, *receiving.members):
            each.hear()
        for count in (WARM_UP, settings.count(ROUND) // receivers):
            receiving.order(count=count // senders * senders)
            sending.order(count=count // senders)
            sent, received = sending.hear(), receiving.hear()
        seconds = (received["end"] - sent["start"]) / 1e9
        cpu_us = 1e6 * (sent["cpu_s"] + received["cpu_s"]) / (count * receivers)
        return {"records/s": count / seconds, "deliveries/s": count * receivers / seconds, "CPU us/delivery": cpu_us}


def partitions(settings: Settings) -> Sweep:
    """A store with more and more partitions of one topic: its start, and a consumer's first and last batch."""
    found = {many: _filled(settings, "partitions", 1, many) for many in _some(settings, PARTITIONS)}
    return Sweep(
        f"Partitions of a topic, {EACH} records in each, seconds", "partitions", found,
        ("start s", "first batch s", "all read s"),
    )  # fmt: skip


def topics(settings: Settings) -> Sweep:
    """The same with topics of one partition each."""
    found = {many: _filled(settings, "topics", many, 1) for many in _some(settings, TOPICS)}
    return Sweep(
        f"Topics, {EACH} records in each, seconds", "topics", found, ("start s", "first batch s", "all read s")
    )


def _filled(settings: Settings, name: str, topics: int, partitions: int) -> Row:
    """What a store that has so much takes, and a consumer that reads all of it."""
    directory = settings.work / f"{name}-{topics * partitions}"
    count = topics * partitions * EACH
    with Children(settings.work / f"{directory.name}-logs") as children:
        address = tower(children)
        filler = children.member("filler", directory=str(directory))
        filler.hear()
        filler.ask(topics=topics, partitions=partitions, records=EACH)
        filler.kill()
        store = children.member("store", tower=address, directory=str(directory))
        opened_s = store.hear()["opened_s"]
        consumer = children.member("late_consumer", tower=address, single=False, topics="*")
        consumer.hear()
        facts = consumer.ask(count=count)
        return {
            "start s": opened_s,
            "first batch s": (facts["first"] - facts["start"]) / 1e9,
            "all read s": (facts["end"] - facts["start"]) / 1e9,
            "records/s": count / ((facts["end"] - facts["start"]) / 1e9),
            "CPU us/record, consumer": 1e6 * facts["cpu_s"] / count,
            "store MiB": store.rss_mib(),
            "disk bytes/record": _disk_bytes(directory) / count,
        }


def records(settings: Settings) -> Sweep:
    """A topic that becomes long: what is written to it, its store's start, and a consumer that reads all of it."""
    directory, found, had = str(settings.work / "records"), {}, 0
    for many in RECORDS:
        count = settings.count(many)
        with Children(settings.work / f"records-{many}-logs") as children:
            address = tower(children)
            store = children.member("store", tower=address, directory=directory)
            opened_s = store.hear()["opened_s"]
            producer = children.member("producer", tower=address, single=False, acks=1)
            producer.hear()
            sent = producer.ask(count=count - had)
            producer.finish()
            before = store.cpu_s()
            consumer = children.member("late_consumer", tower=address, single=False)
            consumer.hear()
            facts = consumer.ask(count=count)
            found[count] = {
                "written/s": (count - had) / ((sent["end"] - sent["start"]) / 1e9),
                "read/s": count / ((facts["end"] - facts["start"]) / 1e9),
                "CPU us/record read": 1e6 * (facts["cpu_s"] + store.cpu_s() - before) / count,
                "start before s": opened_s,
                "store MiB": store.rss_mib(),
                "consumer MiB": consumer.rss_mib("VmHWM"),
            }
            had = count
    title = f"Records of {RECORD_BYTES} bytes in a topic, written with fsync, and read"
    return Sweep(title, "records", found, ("written/s", "read/s"))


def sizes(settings: Settings) -> Sweep:
    """Records of all sizes through a store that syncs; beside one server of Kafka, which does not, if it is given.

    Ours go in lists and come out as columns; Kafka's client takes them one by one, which counts where they are small.
    """
    found = {size: _sized(settings, size) for size in SIZES}
    return Sweep(
        "Bytes of a record: MB/s through producer, store with fsync and consumer", "bytes", found,
        ("MB/s", "Kafka MB/s"),
    )  # fmt: skip


def _sized(settings: Settings, size: int) -> Row:
    count = settings.count(min(ROUND // 2, SIZED_BYTES // size)) or 1
    with Children(settings.work / f"size-{size}") as children:
        address = tower(children)
        store = start_store(children, settings, address, f"size-{size}")
        sender = children.member("producer", tower=address, single=False, acks=1)
        sender.hear()
        receiver = children.member("consumer", tower=address, single=False)
        found = _through(sender, receiver, store, size, count)
    if settings.kafka is not None and settings.peer_python is not None:
        work = settings.work / f"kafka-{size}"
        with Children(work / "logs", settings.peer_python) as children:
            (server,), ports = brokers.kafka_cluster(children, work, settings.kafka, 1)
            sender = children.peer("kafka", "producer", ports=ports, window=KAFKA_AHEAD, linger_ms=5)
            sender.hear()
            receiver = children.peer("kafka", "consumer", ports=ports)
            theirs = _through(sender, receiver, server, size, count)
        found |= {f"Kafka {name}": number for name, number in theirs.items()}
    return found


def _through(sender: Child, receiver: Child, server: Child, size: int, count: int) -> Row:
    receiver.hear()
    warm_up = max(1, min(WARM_UP, count // 10))
    before = 0.0
    sent: dict[str, Any] = {}
    for each in (warm_up, count):
        before = server.cpu_s()
        receiver.order(count=each)
        sent = sender.ask(count=each, size=size)
        received = receiver.hear()
    seconds = (max(sent["end"], received["end"]) - sent["start"]) / 1e9
    cpu_s = sent["cpu_s"] + received["cpu_s"] + server.cpu_s() - before
    return {"records/s": count / seconds, "MB/s": count * size / seconds / 1e6, "CPU us/record": 1e6 * cpu_s / count}


def _some(settings: Settings, numbers: Sequence[int]) -> Sequence[int]:
    return numbers[:3] if settings.quick else numbers


def _disk_bytes(directory: Path) -> int:
    """What the files of a directory take of the disk."""
    return sum(512 * each.stat().st_blocks for each in directory.rglob("*") if each.is_file())


def _shown(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


SWEEPS: Final[dict[str, Callable[[Settings], Sweep]]] = {
    each.__name__: each for each in (consumers, producers, partitions, topics, records, sizes)
}


def markdown(sweeps: Sequence[Sweep], conditions: report.Conditions, command: str) -> str:
    """The text of SCALE.md."""
    parts = ["# Results: scale", "", f"Each process on its own, one round for each number. Made by `{command}`.", ""]
    parts += [f"Machine: {report.machine()}; {conditions}.", ""]
    for sweep in sweeps:
        names = [sweep.what, *sweep.columns()]
        parts += [f"## {sweep.title}", "", f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
        parts += [f"| {' | '.join(row)} |" for row in sweep.cells()] + [""]
    return "\n".join(parts)


def _show(console: Console, sweep: Sweep) -> None:
    table = Table(title=sweep.title)
    for name in (sweep.what, *sweep.columns()):
        table.add_column(name, justify="right")
    for row in sweep.cells():
        table.add_row(*row)
    console.print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description="Measure the log as consumers, producers, partitions, topics, records and their sizes grow. Takes "
        "some eight minutes and 8 GB of disk; a full run writes benchmarks/SCALE.md and its picture.",
    )
    parser.add_argument("--quick", action="store_true", help="few records: does everything work?")
    parser.add_argument("--only", action="append", choices=list(SWEEPS), metavar="NAME", help=", ".join(SWEEPS))
    parser.add_argument("--peer-python", metavar="PYTHON", help="an interpreter with confluent-kafka")
    parser.add_argument("--kafka", metavar="DIR", help="an installation of Kafka, which has its jars in DIR/libs")
    parser.add_argument("--directory", default="/var/tmp", metavar="DIR", help="where stores lie (%(default)s)")
    return parser.parse_args()


def main() -> int:
    """Play all sweeps, or those that are named."""
    arguments = _arguments()
    console, watch, sweeps = Console(), report.Watch(), []
    for name in arguments.only or SWEEPS:
        with tempfile.TemporaryDirectory(prefix="chappe-scale-", dir=arguments.directory) as work:
            settings = Settings(Path(work), arguments.peer_python, arguments.quick, arguments.kafka)
            console.print(f"{name} ...", highlight=False)
            try:
                sweeps.append(SWEEPS[name](settings))
            except (ChildFailed, brokers.Absent) as error:
                console.print(f"{name}: {error}", style="red", highlight=False)
                return 1
            _show(console, sweeps[-1])
            os.sync()  # what one has written is not the next one's to wait for
    conditions = watch.conditions()
    if not (arguments.quick or arguments.only):
        command = "python -m benchmarks.scale" + (" --peer-python PYTHON --kafka DIR" if arguments.kafka else "")
        RESULTS.write_text(markdown(sweeps, conditions, command))
        PLOT.write_text(draw([each.panel() for each in sweeps]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
