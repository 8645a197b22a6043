"""Spark over topics beside Spark over the same rows in Parquet: ``python -m benchmarks.spark [--quick]``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import brokers, report
from benchmarks.children import ROOT, ChildFailed, Children
from benchmarks.link import RECORD_BYTES
from benchmarks.members import TOPIC
from benchmarks.outcome import Line, Rate, times
from benchmarks.planning import planning
from benchmarks.rounds import tower
from benchmarks.settings import Settings
from benchmarks.stored import start_store
from chappe import Producer
from chappe.api.log.discovery import discover
from chappe.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULTS = ROOT / "benchmarks" / "SPARK_RESULTS.md"
RECORDS = 10_000_000
KEYS = 10_000
WINDOW = "10 minutes"  # all have as many groups, though Kafka's records are written, and stamped, more slowly
PACKED = 10_000  # records given to a producer at once
STREAM_SHARE, READ_SHARE, PARQUET_SHARE = 0.80, 0.70, 0.85
SPLITS = "4"  # what Spark reads a topic in, of ours and of Kafka's
EVENTS = 60
EVENT_S = 0.25  # between two events, so that none waits for the one before it
LATENCY_MS = 150.0
SINK_RATE = 500_000
WHO = {"Parquet": "parquet", "Kafka's connector": "kafka"}  # in the names of numbers


class Bench:
    """A store with records, the same rows in Parquet, perhaps in a topic of Kafka, and a session.

    Args:
        connector: The jars of Spark's connector for Kafka; without them, or without Kafka, it is left out.
    """

    def __init__(self, settings: Settings, children: Children, connector: list[Path]) -> None:
        self.settings = settings
        self.count = settings.count(RECORDS)
        self._tower = tower(children)
        self._store = start_store(children, settings, self._tower, "spark")
        self._runs = 0
        _fill(self._tower, self.count)
        (found,) = discover(self._tower)
        self.endpoint = found.endpoint
        folders = {"spark.local.dir": "local", "spark.sql.warehouse.dir": "warehouse"}
        conf = {name: str(settings.work / folder) for name, folder in folders.items()}
        if connector:
            conf["spark.jars"] = ",".join(map(str, connector))
        self.spark: SparkSession = spark_session("chappe benchmark", master="local[2]", conf=conf)
        self.parquet = str(settings.work / "rows")
        self.topic(minPartitions=SPLITS).write.parquet(self.parquet)
        self.schema = self.spark.read.parquet(self.parquet).schema
        self.kafka: dict[str, str] = {}  # how to read its topic, which has the same values
        if settings.kafka is not None and connector:
            _, (port,) = brokers.kafka_cluster(children, settings.work / "kafka", settings.kafka, 1)
            given = {"kafka.bootstrap.servers": f"127.0.0.1:{port}"}
            self.rows().select("value").write.format("kafka").options(**given, topic=TOPIC).save()
            self.kafka = {**given, "subscribe": TOPIC, "startingOffsets": "earliest", "minPartitions": SPLITS}

    def topic(self, **options: str) -> DataFrame:
        """The topic as a batch."""
        return self.spark.read.format("chappe").options(stores=self.endpoint, subscribe=TOPIC, **options).load()

    def topic_stream(self) -> DataFrame:
        """The topic as a stream."""
        given = {"stores": self.endpoint, "subscribe": TOPIC, "startingOffsets": "earliest"}
        return self.spark.readStream.format("chappe").options(**given).load()

    def rows(self) -> DataFrame:
        """The same rows from Parquet."""
        return self.spark.read.parquet(self.parquet)

    def rows_stream(self) -> DataFrame:
        """The same as a stream."""
        return self.spark.readStream.schema(self.schema).parquet(self.parquet)

    def kafka_stream(self) -> DataFrame:
        """Kafka's topic as a stream."""
        return self.spark.readStream.format("kafka").options(**self.kafka).load()

    def folder(self) -> str:
        """A new folder's name."""
        self._runs += 1
        return str(self.settings.work / f"run-{self._runs}")

    def compare(
        self,
        name: str,
        share: float,
        ours: Callable[[], None],
        theirs: Callable[[], None],
        kafka: Callable[[], None] | None = None,
    ) -> Line:
        """All in turn; the first round of each only warms up."""
        runs = {"Parquet": theirs, "chappe": ours}
        if kafka is not None and self.kafka:
            runs["Kafka's connector"] = kafka
        found: dict[str, list[float]] = {who: [] for who in runs}
        for number in range(self.settings.repeats + 1):
            for who, run in runs.items():
                began = time.monotonic()
                run()
                if number or self.settings.quick:
                    found[who].append(self.count / (time.monotonic() - began))
        rates = {who: Rate(tuple(each)) for who, each in found.items()}
        rate = rates.pop("chappe")
        least = {"Parquet": share, "Kafka's connector": 1.0}
        return Line(
            name,
            str(rate),
            ", ".join(f">= {least[who]:.2f}x of {who}" for who in rates),
            "; ".join(f"{who}: {each}" for who, each in rates.items()),
            " / ".join(times(rate.median / each.median) for each in rates.values()),
            all(rate.median >= least[who] * each.median for who, each in rates.items()),
            rate.note(),
            {**rate.numbers("chappe"), **{k: v for who in rates for k, v in rates[who].numbers(WHO[who]).items()}},
        )


def _fill(address: str, count: int) -> None:
    """Records that do not repeat: Parquet would keep those once."""
    with Producer(TOPIC, tower=address, min_acks=1) as producer:
        for done in range(0, count, PACKED):
            size = min(PACKED, count - done)
            raw = os.urandom(RECORD_BYTES * size)
            producer.send_many([raw[at : at + RECORD_BYTES] for at in range(0, len(raw), RECORD_BYTES)])
        producer.flush(120)


def drain(bench: Bench, frame: DataFrame, mode: str = "append") -> None:
    """Run a stream over what is there into nothing, and see that it read everything."""
    writer = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", bench.folder())
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    read = sum(each["numInputRows"] for each in query.recentProgress)
    assert read == bench.count, f"{read} rows of {bench.count}"


def stream(bench: Bench) -> list[Line]:
    ours, theirs = bench.topic_stream, bench.rows_stream
    line = bench.compare(
        "streaming read into nothing, available-now",
        STREAM_SHARE,
        lambda: drain(bench, ours()),
        lambda: drain(bench, theirs()),
        lambda: drain(bench, bench.kafka_stream()),
    )
    return [line]


def count(bench: Bench) -> list[Line]:
    """A sum over lengths: without one, Spark counts Parquet from its footers alone."""

    def run(frame: DataFrame) -> None:
        row = frame.selectExpr("count(*)", "sum(length(value))").first()
        assert row is not None
        assert row[0] == bench.count

    narrow = {"columns": "value"}
    return [
        bench.compare(
            "batch read into a count and a sum of lengths",
            READ_SHARE,
            lambda: run(bench.topic(**narrow)),
            lambda: run(bench.rows()),
        )
    ]


def copy(bench: Bench) -> list[Line]:
    def run(frame: DataFrame) -> None:
        folder = bench.folder()
        frame.write.parquet(folder)
        shutil.rmtree(folder)

    return [bench.compare("batch to Parquet", PARQUET_SHARE, lambda: run(bench.topic()), lambda: run(bench.rows()))]


def windows(bench: Bench) -> list[Line]:
    from pyspark.sql import functions as sf

    def run(frame: DataFrame) -> None:
        keyed = frame.select("timestamp", (sf.col("offset") % KEYS).alias("id"))
        grouped = keyed.withWatermark("timestamp", "10 seconds").groupBy(sf.window("timestamp", WINDOW), "id")
        drain(bench, grouped.count(), "update")

    narrow = {"columns": "offset,timestamp"}
    given = {"stores": bench.endpoint, "subscribe": TOPIC, "startingOffsets": "earliest", **narrow}
    ours = bench.spark.readStream.format("chappe").options(**given).load
    name = f"window aggregation, {KEYS:,} keys"
    return [
        bench.compare(
            name,
            STREAM_SHARE,
            lambda: run(ours()),
            lambda: run(bench.rows_stream()),
            lambda: run(bench.kafka_stream()),
        )
    ]


def sink(bench: Bench) -> list[Line]:
    """From Parquet into a topic, exactly once: a batch counts as written when its commit is on the store's disk."""
    rates: list[float] = []
    for number in range(1 if bench.settings.quick else 3):
        rows = bench.rows_stream().select("value").writeStream.format("chappe")
        rows = rows.option("stores", bench.endpoint).option("topic", f"{TOPIC}.sink{number}")
        began = time.monotonic()
        query = rows.option("checkpointLocation", bench.folder()).trigger(availableNow=True).start()
        query.awaitTermination()
        rates.append(bench.count / (time.monotonic() - began))
        given = {"stores": bench.endpoint, "subscribe": f"{TOPIC}.sink{number}", "columns": "offset"}
        written = bench.spark.read.format("chappe").options(**given).load().count()
        assert written == bench.count, f"{written} rows of {bench.count}"
    rate = Rate(tuple(rates))
    met = rate.median >= SINK_RATE
    name = "streaming sink to a topic, exactly once, on disk"
    return [Line(name, str(rate), f">= {SINK_RATE:,} rows/s", "", "", met, rate.note(), rate.numbers("chappe"))]


def latency(bench: Bench) -> list[Line]:
    """From ``send`` of an event until a query that runs back to back has handed it to its sink."""
    topic = f"{TOPIC}.latency"
    seen: dict[int, float] = {}

    def take(frame: DataFrame, number: int) -> None:
        rows = frame.select(frame["offset"]).collect()
        now = time.monotonic()
        seen.update({row.offset: now for row in rows})

    sent: list[float] = []
    with Producer(topic, tower=bench._tower, min_acks=1) as producer:
        producer.send(b"first")
        producer.flush(30)
        given = {"stores": bench.endpoint, "subscribe": topic, "startingOffsets": "earliest"}
        frame = bench.spark.readStream.format("chappe").options(**given).load()
        query = frame.writeStream.foreachBatch(take).option("checkpointLocation", bench.folder()).start()
        try:
            while 0 not in seen:
                assert query.isActive, str(query.exception())
                time.sleep(0.05)
            for _ in range(10 if bench.settings.quick else EVENTS):
                time.sleep(EVENT_S)
                sent.append(time.monotonic())
                producer.send(b"event")
            while len(seen) <= len(sent):
                time.sleep(0.05)
        finally:
            query.stop()
    ages = sorted(1000 * (seen[n + 1] - at) for n, at in enumerate(sent))
    middle = median(ages)
    return [
        Line(
            "event to foreachBatch, back to back, p50",
            f"{middle:.0f} ms",
            f"< {LATENCY_MS:.0f} ms",
            "",
            "",
            middle < LATENCY_MS,
            f"fastest {ages[0]:.0f} ms, p95 {ages[int(len(ages) * 0.95)]:.0f} ms, {len(ages)} events",
            {"p50_ms": middle},
        )
    ]


PATHS: dict[str, Callable[[Bench], list[Line]]] = {
    "stream": stream,
    "count": count,
    "parquet": copy,
    "windows": windows,
    "sink": sink,
    "latency": latency,
    "planning": lambda bench: planning(bench.settings),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark",
        description="Measure Spark over topics beside Spark over the same rows in Parquet: local[2], the settings of "
        "spark_session. Takes about eight minutes; a full run writes benchmarks/SPARK_RESULTS.md.",
    )
    parser.add_argument("--quick", action="store_true", help="few records, one round: does everything work?")
    parser.add_argument("--only", action="append", choices=list(PATHS), metavar="NAME", help=", ".join(PATHS))
    parser.add_argument("--kafka", metavar="DIR", help="an installation of Kafka, which has its jars in DIR/libs")
    parser.add_argument(
        "--connector", metavar="DIR", help="the jars of Spark's connector for Kafka, spark-sql-kafka-0-10, and its own"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument(
        "--directory", default="/var/tmp", metavar="DIR", help="where data lies meanwhile (%(default)s)"
    )
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    console = Console()
    watch = report.Watch()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="chappe-spark-", dir=arguments.directory) as work:
        settings = Settings(Path(work), None, arguments.quick, arguments.kafka)
        connector = sorted(Path(arguments.connector).glob("*.jar")) if arguments.connector else []
        if arguments.connector and not connector:
            console.print(f"no jars in {arguments.connector}", style="red", highlight=False)
            return 1
        with Children(Path(work) / "logs") as children:
            try:
                bench = Bench(settings, children, connector)
            except (ChildFailed, brokers.Absent) as error:
                console.print(str(error), style="red", highlight=False)
                return 1
            try:
                for name in arguments.only or PATHS:
                    console.print(f"{name} ...", highlight=False)
                    lines += PATHS[name](bench)
            except ChildFailed as error:
                console.print(str(error), style="red", highlight=False)
                return 1
            finally:
                bench.spark.stop()
    conditions = watch.conditions()
    report.show(console, lines, conditions)
    if arguments.json is not None:
        report.write_json(arguments.json, lines, conditions)
    if not (arguments.quick or arguments.only):
        command = "python -m benchmarks.spark" + (" --kafka DIR --connector DIR" if bench.kafka else "")
        text = report.markdown(lines, conditions, command)
        RESULTS.write_text(text.replace("# Results", "# Results: Spark", 1))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
