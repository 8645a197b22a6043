"""The query that archives: it follows topics, and each of its micro-batches becomes a version of the archive."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from chappe.data.topic import Filter
from chappe.defaults import MIB
from chappe.errors import ChappeError, OffsetOutOfRange, StorageError, UnknownTopic
from chappe.spark.archive import manifest as kept
from chappe.spark.archive.manifest import SMALL_BYTES, ArchivedFile, ArchiveManifest, Move, OffsetSpan
from chappe.spark.archive.reading import UnarchivedRest, look, pattern_of, starting_offsets
from chappe.spark.archive.tasks import REPORT, Merge, StagedFile, TaskReport, merge_files, stage_records
from chappe.spark.sentences import sentence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCH_BYTES: Final = 256 * MIB  # of the log, in one micro-batch: what a killed job has to do again
FOLLOW_S: Final = 10  # between two micro-batches of a job that keeps running: each rewrites the small files
LOOK_S: Final = 0.05
MERGE_TASKS: Final = 4


@dataclass(frozen=True, slots=True)
class ArchiveProgress:
    records: int  # archived and visible
    total: int  # records that there were to archive when it began
    bytes: int  # size of all files of the archive
    files: int  # number of all files of the archive
    version: int  # of the archive
    seconds: float  # since the query was started


class ArchiveJob:
    """Archives a topic, or all that start with a prefix.

    Args:
        spark: The session that does it. Its workers must see the archive's directory under the same path.
        archive: Open for writing.
        wanted: What to archive.
        stores: Query endpoints; empty to ask ``towers``.
        follow: Go on with what comes, until ``stop``; else end with what is there now.
        skip_lost: Go on without records that retention took before they were archived; else they are an error.
        open_sealed: Keep records of sealed topics as plain ones; else they stay sealed.
        on_progress: Called after every commit, from a thread of its own.
    """

    def __init__(
        self,
        spark: SparkSession,
        archive: kept.ArchiveWriter,
        wanted: Filter,
        *,
        stores: tuple[str, ...] = (),
        towers: str | None = None,
        follow: bool = False,
        skip_lost: bool = False,
        open_sealed: bool = False,
        on_progress: Callable[[ArchiveProgress], None] = lambda progress: None,
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._wanted = wanted
        self._where = {"stores": ",".join(stores)} if stores else {"towers": towers or ""}
        self._look = partial(look, wanted=wanted, stores=stores, towers=towers)
        self._follow = follow
        self._skip_lost = skip_lost
        self._open_sealed = open_sealed
        self._on_progress = on_progress
        self._error: ChappeError | None = None
        self._records = 0
        self._rest = UnarchivedRest((), {}, {}, 0)
        self._began = 0.0
        self._stopped = False

    def run(self) -> ArchiveProgress:
        """Archive; return what was done.

        Raises:
            UnknownTopic: There is no such topic, and there is nothing to wait for.
            OffsetOutOfRange: Retention took records before they were archived.
            TimedOut: No store answers.
            UsageError, StorageError, ChappeError: As the text says. What was committed stays; run it again.
        """
        self._rest = self._look(self._archive.manifest)
        for topic in self._rest.topics:
            kept.directory_of(topic, 0)  # raises UsageError if it has no place in the archive
        if not self._rest.topics and not self._follow:
            raise UnknownTopic(f"no store has a topic {self._wanted}; see what there is with: chappe topics")
        self._began = time.monotonic()
        self._on_progress(self._progress())
        with tempfile.TemporaryDirectory(prefix="chappe-archive-", ignore_cleanup_errors=True) as checkpoint:
            query = self._start(checkpoint)
            try:
                while query.isActive and not self._stopped:
                    time.sleep(LOOK_S)
            finally:
                query.stop()
            error = query.exception()
        if error is not None and not self._stopped:
            raise self._error or self._explained(str(error))
        return self._progress()

    def stop(self) -> None:
        self._stopped = True

    def _start(self, checkpoint: str) -> StreamingQuery:
        options = {
            **self._where,
            "subscribePattern": pattern_of(self._wanted),
            "includeHeaders": "true",
            "startingOffsets": starting_offsets(self._rest.starting),
            "maxBytesPerTrigger": str(BATCH_BYTES),
            "failOnDataLoss": str(not self._skip_lost).lower(),
            "openSealed": "true" if self._open_sealed else "keep",
        }
        rows = self._spark.readStream.format("chappe").options(**options).load()
        writer = rows.writeStream.foreachBatch(self._batch).option("checkpointLocation", checkpoint)
        if self._follow:
            return writer.trigger(processingTime=f"{FOLLOW_S} seconds").start()
        return writer.trigger(availableNow=True).start()

    def _explained(self, text: str) -> ChappeError:
        found = sentence(text)
        if "data loss" in found:
            found = found.split(";")[0]
            return OffsetOutOfRange(f"{found}; to go on without these records use --skip-lost")
        return ChappeError(f"the archive job failed: {found}; run it again to go on")

    # -- one micro-batch ------------------------------------------------------------------------------------

    def _batch(self, rows: DataFrame, number: int) -> None:
        try:
            self._commit(rows)
        except ChappeError as error:
            self._error = error
            raise

    def _commit(self, rows: DataFrame) -> None:
        archive = self._archive
        stage = partial(
            stage_records, directory=str(archive.directory), run=archive.run, archived=dict(self._rest.archived)
        )
        answers = rows.mapInArrow(stage, REPORT).collect()
        reports = sorted(
            (msgspec.json.decode(each.report, type=TaskReport) for each in answers), key=lambda each: each.task
        )
        spans = merged_spans(each.spans for each in reports)
        if not spans:
            return
        check_spans(archive.manifest, spans, self._skip_lost)
        files, moves, merges = plan_files(archive.manifest, archive.run, [f for each in reports for f in each.files])
        sizes = self._merge(merges)
        files = [
            each if each.bytes else msgspec.structs.replace(each, bytes=sizes[move.staged])
            for each, move in zip(files, moves, strict=True)
        ]
        archive.commit(kept.followed_by(archive.manifest, files, spans, moves))
        self._records += sum(each.rows for report in reports for each in report.files)
        self._on_progress(self._progress())

    def _merge(self, merges: list[Merge]) -> dict[str, int]:
        if not merges:
            return {}
        numbers = self._spark.range(0, len(merges), 1, min(len(merges), MERGE_TASKS))
        merge = partial(merge_files, directory=str(self._archive.directory), merges=tuple(merges))
        sizes: dict[str, int] = {}
        for each in numbers.mapInArrow(merge, REPORT).collect():
            sizes |= msgspec.json.decode(each.report, type=dict[str, int])
        return sizes

    def _progress(self) -> ArchiveProgress:
        manifest = self._archive.manifest
        size = sum(each.bytes for each in manifest.files)
        seconds = time.monotonic() - self._began
        return ArchiveProgress(self._records, self._rest.waiting, size, len(manifest.files), manifest.version, seconds)


def merged_spans(found: Iterable[Mapping[str, Mapping[str, OffsetSpan]]]) -> dict[str, dict[str, OffsetSpan]]:
    spans: dict[str, dict[str, OffsetSpan]] = {}
    for each in found:
        for topic, partitions in each.items():
            into = spans.setdefault(topic, {})
            for partition, span in partitions.items():
                into[partition] = span.joined(into.get(partition))
    return spans


def check_spans(manifest: ArchiveManifest, spans: Mapping[str, Mapping[str, OffsetSpan]], skip_lost: bool) -> None:
    """Check that every partition goes on exactly where the archive ended, whatever the query did. Raises
    OffsetOutOfRange: records are missing; StorageError: records came that are archived already.
    """
    for topic, partitions in spans.items():
        for partition, span in partitions.items():
            done = manifest.next_of(topic, partition)
            where = f"partition {partition} of topic {topic}"
            if (done is not None and span.first < done) or span.rows > span.next - span.first:
                raise StorageError(f"records of {where} came twice; nothing of this batch was kept, run it again")
            gap = (done is not None and span.first > done) or span.rows < span.next - span.first
            if gap and not skip_lost:
                since = span.first if done is None else done
                raise OffsetOutOfRange(
                    f"records of {where} between offsets {since} and {span.next} are lost; "
                    "to go on without them use --skip-lost"
                )


def plan_files(
    manifest: ArchiveManifest, run: str, staged: Iterable[StagedFile]
) -> tuple[list[ArchivedFile], list[Move], list[Merge]]:
    """Return the paths of staged files, in the order of tasks. Pure.

    Large ones stay as they are; the small ones of a directory become one file, together with the small file that is
    there. Files that are still to be merged have no size yet.
    """
    small_now = {each.directory: each for each in manifest.files if each.bytes < SMALL_BYTES}
    version = manifest.version + 1
    numbers: dict[str, int] = {}
    small: dict[str, list[StagedFile]] = {}
    files: list[ArchivedFile] = []
    moves: list[Move] = []
    merges: list[Merge] = []

    def new_path(directory: str) -> str:
        number = numbers[directory] = numbers.get(directory, -1) + 1
        return f"{directory}/{kept.file_name(version, number)}"

    for each in staged:
        directory = kept.directory_of(each.topic, each.day)
        if each.bytes < SMALL_BYTES:
            small.setdefault(directory, []).append(each)
            continue
        path = new_path(directory)
        files.append(_archived(path, [each], each.bytes))
        moves.append(Move(each.path, path))
    for directory, parts in small.items():
        there = small_now.get(directory)
        path = there.path if there is not None else new_path(directory)
        if there is None and len(parts) == 1:
            files.append(_archived(path, parts, parts[0].bytes))
            moves.append(Move(parts[0].path, path))
            continue
        whole: list[ArchivedFile | StagedFile] = [*([] if there is None else [there]), *parts]
        merge = Merge(tuple(each.path for each in whole), f"{run}/{version}-{len(merges)}")
        merges.append(merge)
        files.append(_archived(path, whole, 0))
        moves.append(Move(merge.staged, path))
    return files, moves, merges


def _archived(path: str, parts: Sequence[ArchivedFile | StagedFile], size: int) -> ArchivedFile:
    return ArchivedFile(
        path,
        parts[0].topic,
        sum(each.rows for each in parts),
        size,
        min(each.timestamp_min for each in parts),
        max(each.timestamp_max for each in parts),
    )
