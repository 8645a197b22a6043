"""Spark's tasks for an archive: they stage files of records, and merge small files into one.

Both run in ``mapInArrow`` and answer with one row of text, a report in JSON.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chappe.defaults import MIB
from chappe.spark.archive.manifest import DAY_US, FILE_COLUMNS, OffsetSpan, file_schema
from chappe.system.disk import sync_file

OPEN_MAX: Final = 64  # files that a task writes at once; with more, the one that was written to longest ago is closed
WAITING_BYTES_MAX: Final = 64 * MIB  # of all files of a task together, not yet written
REPORT: Final = "report string"
GROUP_BYTES: Final = 8 * MIB  # of a row group, before it is compressed: replay holds one of each partition in memory
GROUP_ROWS: Final = 131_072
_MERGE_ROWS: Final = 65_536


class StagedFile(msgspec.Struct, frozen=True):
    path: str
    topic: str
    day: int
    rows: int
    bytes: int
    timestamp_min: int
    timestamp_max: int


class TaskReport(msgspec.Struct, frozen=True):
    task: int
    files: tuple[StagedFile, ...] = ()
    spans: dict[str, dict[str, OffsetSpan]] = {}  # msgspec copies it


class Merge(msgspec.Struct, frozen=True):
    """Files, all below the archive, that are written one after the other into a staged one."""

    sources: tuple[str, ...]
    staged: str


def stage_records(
    batches: Iterable[pa.RecordBatch], directory: str, run: str, archived: Mapping[tuple[str, str], int]
) -> Iterator[pa.RecordBatch]:
    """Write a task's records, from where ``archived`` ends, to a file below ``run`` for each topic and day."""
    from pyspark import TaskContext

    context = TaskContext.get()
    files = _Files(Path(directory), run)
    spans: dict[tuple[str, str], OffsetSpan] = {}
    try:
        for batch in batches:
            _take(batch, files, spans, archived)
        staged = files.close()
    except BaseException:
        files.discard()
        raise
    found: dict[str, dict[str, OffsetSpan]] = {}
    for (topic, partition), span in spans.items():
        found.setdefault(topic, {})[partition] = span
    yield _answer(TaskReport(context.partitionId() if context else 0, staged, found))


def merge_files(
    batches: Iterable[pa.RecordBatch], directory: str, merges: tuple[Merge, ...]
) -> Iterator[pa.RecordBatch]:
    """Do the merges whose numbers come in, and answer with their sizes in bytes by staged path."""
    done: dict[str, int] = {}
    for batch in batches:
        for number in batch.column(0).to_pylist():
            merge = merges[number]
            done[merge.staged] = _merge(Path(directory), merge)
    yield _answer(done)


def _merge(directory: Path, merge: Merge) -> int:
    writer = FileWriter(directory / f"{merge.staged}.{uuid.uuid4().hex}")  # an attempt before may still be at it
    try:
        for source in merge.sources:
            with pq.ParquetFile(directory / source) as file:
                for batch in file.iter_batches(_MERGE_ROWS, columns=list(FILE_COLUMNS)):
                    writer.add(batch.cast(file_schema()) if batch.schema != file_schema() else batch)
        size = writer.close()
    except BaseException:
        writer.discard()
        raise
    writer.path.replace(directory / merge.staged)
    return size


def _answer(report: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"report": [msgspec.json.encode(report).decode()]})


class _Open(msgspec.Struct):
    writer: FileWriter
    path: str
    timestamp_min: int
    timestamp_max: int


class _Files:
    def __init__(self, directory: Path, run: str) -> None:
        self._directory = directory
        self._prefix = f"{run}/{uuid.uuid4().hex}"  # of this attempt alone
        self._open: dict[tuple[str, int], _Open] = {}
        self._done: list[StagedFile] = []

    def add(self, topic: str, day: int, rows: pa.RecordBatch, stamps: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        low, high = int(stamps.min()), int(stamps.max())
        into = self._open.pop((topic, day), None)
        if into is None:
            if len(self._open) >= OPEN_MAX:
                self._close(next(iter(self._open)))
            path = f"{self._prefix}-{len(self._done) + len(self._open)}.staged"
            into = _Open(FileWriter(self._directory / path), path, low, high)
        self._open[topic, day] = into  # the last one written to is the last in the dict
        into.timestamp_min, into.timestamp_max = min(into.timestamp_min, low), max(into.timestamp_max, high)
        into.writer.add(rows)
        if sum(each.writer.waiting_bytes for each in self._open.values()) > WAITING_BYTES_MAX:
            max(self._open.values(), key=lambda each: each.writer.waiting_bytes).writer.flush()

    def close(self) -> tuple[StagedFile, ...]:
        for key in list(self._open):
            self._close(key)
        return tuple(self._done)

    def discard(self) -> None:
        for each in self._open.values():
            each.writer.discard()
        for done in self._done:
            (self._directory / done.path).unlink(missing_ok=True)

    def _close(self, key: tuple[str, int]) -> None:
        each = self._open.pop(key)
        size = each.writer.close()
        self._done.append(StagedFile(each.path, *key, each.writer.rows, size, each.timestamp_min, each.timestamp_max))


def _take(
    batch: pa.RecordBatch,
    files: _Files,
    spans: dict[tuple[str, str], OffsetSpan],
    archived: Mapping[tuple[str, str], int],
) -> None:
    if not batch.num_rows:
        return
    topics = batch.column("topic").dictionary_encode()
    partitions = batch.column("partition").dictionary_encode()
    codes = topics.indices.to_numpy().astype(np.int64)
    mixed = codes * len(partitions.dictionary) + partitions.indices.to_numpy()
    offsets = batch.column("offset").to_numpy()
    topic_names, names = topics.dictionary.to_pylist(), partitions.dictionary.to_pylist()
    starts = np.flatnonzero(np.diff(mixed, prepend=-1)).tolist()
    keep: np.ndarray[Any, np.dtype[np.bool_]] | None = None
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        topic_code, code = divmod(int(mixed[start]), len(names))
        key = (topic_names[topic_code], names[code])
        skip = int(np.searchsorted(offsets[start:end], archived.get(key, 0)))
        if skip:
            keep = np.ones(batch.num_rows, np.bool_) if keep is None else keep
            keep[start : start + skip] = False
        if start + skip < end:
            found = OffsetSpan(int(offsets[start + skip]), int(offsets[end - 1]) + 1, end - start - skip)
            spans[key] = found.joined(spans.get(key))
    stamps = batch.column("timestamp").cast(pa.int64()).to_numpy()
    rows = pa.RecordBatch.from_arrays(
        [batch.column(each.name).cast(each.type) for each in file_schema()], schema=file_schema()
    )
    if keep is not None:
        rows, stamps, codes = rows.filter(pa.array(keep)), stamps[keep], codes[keep]
    if rows.num_rows:
        _share_out(rows, stamps, codes, topic_names, files)


def _share_out(
    rows: pa.RecordBatch,
    stamps: np.ndarray[Any, np.dtype[np.int64]],
    codes: np.ndarray[Any, np.dtype[np.int64]],
    topics: list[str],
    files: _Files,
) -> None:
    days = stamps // DAY_US
    if (codes[0] == codes).all() and (days[0] == days).all():
        files.add(topics[int(codes[0])], int(days[0]), rows, stamps)
        return
    first_day = int(days.min())
    width = int(days.max()) - first_day + 1
    pairs, place = np.unique(codes * width + (days - first_day), return_inverse=True)
    ends = np.cumsum(np.bincount(place))
    for pair, chosen in zip(pairs.tolist(), np.split(np.argsort(place, kind="stable"), ends[:-1]), strict=True):
        code, day = divmod(pair, width)
        files.add(topics[code], day + first_day, rows.take(pa.array(chosen)), stamps[chosen])


class FileWriter:
    """Writes records to a new file; rows gather until they fill a row group."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._file = open(path, "xb")  # noqa: SIM115  # closed by close() or discard()
        self._writer = pq.ParquetWriter(
            self._file,
            file_schema(),
            compression="zstd",
            use_dictionary=["partition"],
            column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
            write_statistics=["partition", "offset", "timestamp"],  # by which readers leave out what they can
        )

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self.waiting_bytes >= GROUP_BYTES or self._waiting_rows >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, file_schema())
            self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def close(self) -> int:
        """Finish the file; return its size once it is on disk."""
        self.flush()
        self._writer.close()
        self._file.flush()
        sync_file(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        return size

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)
