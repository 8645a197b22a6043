"""Reading an archive with Spark, alone or together with what the live log has beyond it.

Where the archive ends is in its manifest, for each partition. The archive gives what is before, the log
what comes from there on: no record twice and none left out, however much of the log retention has removed that is
archived, and however much of what is archived the log still has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chappe.arrow import COLUMNS
from chappe.data.topic import Filter
from chappe.errors import UsageError
from chappe.reading.offsets import EARLIEST, Key, KnownPartition, unflatten
from chappe.reading.selection import Selection, escaped
from chappe.reading.view import StoresView
from chappe.spark.archive.manifest import SMALL_BYTES, ArchivedFile, ArchiveManifest, load, path_of
from chappe.spark.options import place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Options of ``format("chappe")`` that would contradict what is archived, or the columns.
_OURS: Final = frozenset({
    "subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets", "startingtimestamp",
    "endingtimestamp", "includeheaders", "columns",
})  # fmt: skip


def read_archive(
    spark: SparkSession, directory: str | Path, topic: str | None = None, *, live: bool = True, **options: Any
) -> DataFrame:
    """Return the records of an archive, and of the live log what came since, as one DataFrame.

    Its columns are those of ``format("chappe")`` with headers. The log is read from where the archive ends in each
    partition up to where the log ends now; of topics that are wanted and not archived all is read.

    Args:
        directory: The archive; all hosts of the session see it.
        topic: ``name``, or ``prefix*``; None: all archived topics, and no other.
        live: Whether to read the log too; else no store is asked.
        options: For reading the log: ``towers`` or ``stores``, ``failOnDataLoss``, ``minPartitions``, ``fetchTimeout``.

    Raises:
        UsageError: There is no archive in the directory, or an option is not for this.
        UnknownTopic: Neither archive nor log has the topic.
        TimedOut: No store answers.
    """
    archive = Path(directory).absolute()
    manifest = load(archive)
    refused = sorted(name for name in options if name.lower() in _OURS)
    if refused:
        raise UsageError(f"`{refused[0]}` is not for read_archive, which decides it itself; filter the DataFrame")
    if not live and options:
        raise UsageError(f"`{min(options)}` is for reading the log, and live is False")
    recent, topics = _live(spark, manifest, topic, options) if live else (None, set[str]())
    if not topics:
        topics = set(manifest.select(topic))
    archived = _archived(spark, archive, manifest, topics)
    return archived if recent is None else archived.unionByName(recent)


def _archived(spark: SparkSession, directory: Path, manifest: ArchiveManifest, topics: set[str]) -> DataFrame:
    files = [each for each in manifest.files if each.topic in topics]
    # A small file may come to hold more while it is read. What the manifest does not know of is the log's to give.
    small = [each for each in files if each.bytes < SMALL_BYTES]
    whole = _parquet(spark, directory, manifest, [each for each in files if each.bytes >= SMALL_BYTES])
    if not small:
        return whole
    ends = {
        (topic, partition): span.next
        for topic in {each.topic for each in small}
        for partition, span in manifest.positions[topic].items()
    }
    bounded = _within(spark, _parquet(spark, directory, manifest, small), ends, "offset < __end", "inner")
    return bounded if len(small) == len(files) else whole.unionByName(bounded)


def _parquet(
    spark: SparkSession, directory: Path, manifest: ArchiveManifest, files: Iterable[ArchivedFile]
) -> DataFrame:
    """Return the files of each topic; the topic is not taken from their path, where Spark would guess at a type."""
    from pyspark.sql.functions import lit

    from chappe.spark.columns import schema_of

    by_topic: dict[str, list[str]] = {}
    for each in files:
        by_topic.setdefault(each.topic, []).append(f"file:{path_of(directory, manifest, each)}")
    found = spark.createDataFrame([], schema_of(COLUMNS))
    for n, (topic, paths) in enumerate(sorted(by_topic.items())):
        rows = spark.read.schema(schema_of(COLUMNS[1:])).parquet(*paths)
        rows = rows.select(lit(topic).alias("topic"), *COLUMNS[1:])
        found = rows if n == 0 else found.unionByName(rows)
    return found


def _live(
    spark: SparkSession, manifest: ArchiveManifest, topic: str | None, options: Mapping[str, Any]
) -> tuple[DataFrame | None, set[str]]:
    """Read the log beyond the archive (None: nothing); and name the wanted topics that archive or log have."""
    given = {name: str(value) for name, value in options.items()}
    lower = {name.lower(): value for name, value in given.items()}
    wanted = parse_wanted("*" if topic is None else topic)
    rest = look(manifest, wanted, *place_of(lower))
    in_log = [each for each in rest.topics if topic is not None or each in manifest.positions]
    topics = {*in_log, *(each for each in manifest.topics if wanted.matches(each))}
    if not in_log:
        return None, topics
    starting = {key: n for key, n in rest.starting.items() if key[0] in in_log}
    reader = spark.read.format("chappe").options(**given).option("includeHeaders", "true")
    reader = reader.option("subscribePattern", pattern_of(*(Filter(each) for each in in_log)))
    rows = reader.option("startingOffsets", starting_offsets(starting)).load()
    if rest.archived:  # stores that are behind may have caught up when they are read
        joined = _within(spark, rows, rest.archived, "__end IS NULL OR offset >= __end", "left")
        return joined, topics
    return rows.select(*COLUMNS), topics


def _within(spark: SparkSession, rows: DataFrame, ends: Mapping[Key, int], condition: str, how: str) -> DataFrame:
    """Return rows whose offsets stand in a relation to the end of their partition."""
    from pyspark.sql.functions import broadcast, expr

    table = [(topic, partition, end) for (topic, partition), end in ends.items()]
    bounds = broadcast(spark.createDataFrame(table, "topic string, partition string, __end long"))
    return rows.join(bounds, ["topic", "partition"], how).where(expr(condition)).select(*COLUMNS)


@dataclass(frozen=True, slots=True)
class UnarchivedRest:
    topics: tuple[str, ...]  # all that the stores have
    # the offset to read on from, of each partition that stores and archive have; others start at the earliest record
    starting: Mapping[Key, int]
    # where the archive ends in the partitions of which the stores have less at the moment: if these come to have more,
    # what is before is to be dropped
    archived: Mapping[Key, int]
    waiting: int  # records not archived, all together


def rest_of(manifest: ArchiveManifest, known: Mapping[Key, KnownPartition], wanted: Filter) -> UnarchivedRest:
    starting: dict[Key, int] = {}
    archived: dict[Key, int] = {}
    waiting = 0
    for key, have in known.items():
        done = manifest.next_of(*key)
        if done is not None:
            starting[key] = min(done, have.next)
            if done > have.next:
                archived[key] = done
        waiting += max(have.next - max(done or 0, have.first), 0)
    for topic in manifest.topics:
        if wanted.matches(topic):
            archived |= {
                (topic, partition): span.next
                for partition, span in manifest.positions[topic].items()
                if (topic, partition) not in known
            }
    topics = tuple(sorted({topic for topic, _ in known}))
    return UnarchivedRest(topics, starting, archived, waiting)


def starting_offsets(starting: Mapping[Key, int]) -> str:
    """Return the option ``startingOffsets``; partitions that it lacks start at their earliest record."""
    return json.dumps(unflatten(starting)) if starting else EARLIEST


def look(manifest: ArchiveManifest, wanted: Filter, stores: tuple[str, ...], towers: str | None) -> UnarchivedRest:
    with closing(StoresView(Selection((wanted,)), stores, towers)) as view:
        view.refresh()
        return rest_of(manifest, view.known, wanted)


def pattern_of(*wanted: Filter) -> str:
    """Return an option ``subscribePattern`` that reads topics, or prefixes of them, whatever their names."""
    return "|".join(escaped(each.name) + (".*" if each.prefix else "") for each in wanted)


def parse_wanted(text: str) -> Filter:
    """``topic`` or ``prefix*``. Raises UsageError."""
    if "," in text:
        raise UsageError(f"{text!r}: name one topic, or a prefix* for several")
    return Filter.parse(text)
