"""Rows of Arrow become batches as stores keep them (``log/batch.py``): what ``arrow`` does, the other way round.

A column of a batch has Arrow's own layout, so its bytes are cut out of Arrow's as they are: no value becomes an object
of Python. Headers are the exception; few topics have any.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from chappe.defaults import BATCH_RECORDS_MAX, KIB, MIB, RECORD_BYTES_MAX
from chappe.errors import RecordTooLarge, UsageError
from chappe.log import batch as form
from chappe.log.batch import encode_headers

if TYPE_CHECKING:
    from numpy.typing import NDArray

PART_BYTES: Final = 768 * KIB  # a batch is cut here; with one record of the largest size it is still within bounds
PART_BYTES_MIN: Final = 384 * KIB  # fewer are put together with what follows in the same table
ROW_BYTES: Final = 24  # counted for each row beside its bytes, so that a batch has at most 32,768 of them
_TAKEN_BYTES: Final = 32 * MIB  # rows whose types are changed at once, as a rule
WRITTEN: Final = ("value", "key", "headers", "timestamp")
# A topic that was read has them: they say where records came from, and the new ones lie elsewhere.
PASSED_OVER: Final = ("topic", "partition", "offset")
_EXAMPLES: Final = {
    "value": "binary or string",
    "key": "binary or string",
    "headers": "list<struct<key: string, value: binary>> or map<string, binary>",
    "timestamp": "timestamp[us, tz=UTC]",
}
_PLAIN_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_PLAIN_MAP: Final = pa.map_(pa.string(), pa.binary())


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Neighbouring rows that make one batch; their timestamps go from ``first_us`` to ``last_us``."""

    columns: Mapping[str, _Column]
    stamps: NDArray[np.int64] | None
    low: int
    high: int
    first_us: int
    last_us: int

    @property
    def rows(self) -> int:
        """The number of rows in the range."""
        return self.high - self.low

    def encode(self, base: int = 0) -> bytes:
        """The batch, its first record at offset ``base``."""
        flags = 0
        parts: list[Any] = []
        low, high = self.low, self.high
        if self.stamps is not None and self.first_us != self.last_us:
            flags |= form.TIMESTAMPS
            parts.append(self.stamps[low:high])
        for name, present, with_nulls in (
            ("key", form.KEYS, form.KEY_NULLS),
            ("headers", form.HEADERS, 0),
            ("value", 0, form.VALUE_NULLS),
        ):
            column = self.columns.get(name)
            if column is None or (name == "key" and column.array.slice(low, high - low).null_count == high - low):
                continue  # no record has one
            found, nulls = column.cut(low, high)
            if name == "headers" and not found[-2].nbytes:
                continue
            flags |= present | (with_nulls if nulls else 0)
            parts += found
        size = form.HEADER.size + sum(len(memoryview(part).cast("B")) for part in parts)
        tail = struct.pack("<QIIqq", base, high - low, size, self.first_us, self.last_us)
        checksum = crc32c(tail)
        for part in parts:
            checksum = crc32c(part, checksum)
        return b"".join((form.MAGIC, bytes((flags,)), struct.pack("<I", checksum), tail, *parts))


def read(data: object, now_us: Callable[[], int]) -> Iterator[BatchRows]:
    """Read Arrow data to be sent. Its schema is checked at once, the rest as it is asked for.

    Args:
        data: As ``Producer.send_arrow`` says.
        now_us: The time of rows without a timestamp: microseconds since 1970 UTC.

    Raises:
        UsageError, RecordTooLarge: Rows that cannot be sent; the text names the column.
    """
    schema, batches, whole = _source(data)
    names = _names(schema)
    misfit = next((name for name in names if not _fits(name, schema.field(name).type)), None)
    if misfit is not None:
        if not isinstance(data, pa.RecordBatchReader) and not any(batch.num_rows for batch in batches):
            return iter(())  # a frame without rows: packages choose any types for its columns
        kind = schema.field(misfit).type
        raise UsageError(f"column `{misfit}` is {kind}, which cannot be sent; make it {_EXAMPLES[misfit]}")
    rows = (
        plain({name: some.column(name) for name in names}, now_us)
        for batch in batches
        for some in _slices(batch.select(names))
    )
    return (part for some in (_gathered(rows) if whole else rows) for part in parts(some, now_us))


def _source(data: object) -> tuple[pa.Schema, Iterable[pa.RecordBatch], bool]:
    """The schema and rows of Arrow data, or of what offers them by Arrow's C interface, and whether all are there."""
    if isinstance(data, pa.Table):
        return data.schema, data.to_batches(), True
    if isinstance(data, pa.RecordBatch):
        return data.schema, (data,), True
    reader: Any = data
    if not isinstance(data, pa.RecordBatchReader):
        if not hasattr(data, "__arrow_c_stream__"):
            raise UsageError(
                f"{type(data).__name__} is not Arrow data: give a table, record batch or reader of pyarrow, or a "
                "DataFrame of Polars or pandas"
            )
        try:
            reader = pa.RecordBatchReader.from_stream(data)
        except pa.ArrowInvalid as error:
            raise UsageError(f"a table is wanted, with a column `value`: {error}") from None
    return reader.schema, reader, False


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, those of small batches together."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= PART_BYTES_MIN:
            yield _together(held)
            held, size = [], 0
    if held:
        yield _together(held)


def _together(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)


def _names(schema: pa.Schema) -> list[str]:
    """Return the names of the columns to send. Raises UsageError if one is missing or unusable."""
    names: list[str] = schema.names
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"there are two columns named `{name}`; drop one")
        if name not in WRITTEN and name not in PASSED_OVER:
            raise UsageError(f"column `{name}` has no place in a record: drop it, or put it into `value`")
    if "value" not in names:
        raise UsageError(f"there is no column `value` to send: there are {', '.join(names) or 'none'}")
    return [name for name in WRITTEN if name in names]


def _fits(name: str, kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):  # as packages have columns in which nothing is
        return True
    if name == "timestamp":
        return pa.types.is_timestamp(kind) and kind.tz is not None
    return _are_headers(kind) if name == "headers" else _are_bytes(kind)


def _are_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_null(kind)
        or types.is_binary(kind)
        or types.is_string(kind)
        or types.is_large_binary(kind)
        or types.is_large_string(kind)
        or types.is_binary_view(kind)
        or types.is_string_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _are_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _are_bytes(kind.key_type) and _are_bytes(kind.item_type)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    if pa.types.is_null(kind.value_type):  # no row has any
        return True
    if not pa.types.is_struct(kind.value_type):
        return False
    fields = [kind.value_type.field(index) for index in range(kind.value_type.num_fields)]
    return [each.name for each in fields] == ["key", "value"] and all(_are_bytes(each.type) for each in fields)


def _slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same rows, few enough that changing their types takes no great part of the memory."""
    if rows.num_rows <= 1 or (rows.num_rows <= BATCH_RECORDS_MAX and _own_bytes(rows) <= _TAKEN_BYTES):
        yield rows
        return
    half = rows.num_rows // 2
    yield from _slices(rows.slice(0, half))
    yield from _slices(rows.slice(half))


def _own_bytes(rows: pa.RecordBatch) -> int:
    """Replace dictionaries, which do not become smaller with the rows."""
    return sum(each.nbytes for each in rows.columns if not pa.types.is_dictionary(each.type))


def plain(columns: Mapping[str, pa.Array], now_us: Callable[[], int]) -> pa.RecordBatch:
    """Some of ``WRITTEN`` with the types that ``parts`` takes. Raises UsageError."""
    found = {}
    for name, column in columns.items():
        try:
            if name == "timestamp":
                found[name] = _plain_times(column, now_us)
            else:
                found[name] = encoded_headers(column) if name == "headers" else _plain_bytes(column)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(f"column `{name}`, which is {column.type}, cannot be sent: {error}") from None
    return pa.RecordBatch.from_pydict(found)


def _plain_bytes(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):  # Arrow takes no views out of a dictionary, as Polars has them
        column = pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.binary()))
    return column.cast(pa.binary())


def _plain_times(stamps: pa.Array, now_us: Callable[[], int]) -> pa.Array:
    if pa.types.is_null(stamps.type):
        return pa.repeat(pa.scalar(now_us(), pa.int64()), len(stamps))
    wanted = pa.timestamp("us", stamps.type.tz)
    numbers = stamps.cast(options=pc.CastOptions(wanted, allow_time_truncate=True)).cast(pa.int64())
    return pc.fill_null(numbers, now_us()) if numbers.null_count else numbers


def encoded_headers(column: pa.Array) -> pa.Array:
    """Each row's headers in the bytes that batches carry, none for no headers."""
    if pa.types.is_null(column.type):
        return pa.repeat(pa.scalar(b"", pa.binary()), len(column))
    is_map = pa.types.is_map(column.type)
    wanted = _PLAIN_MAP if is_map else _PLAIN_HEADERS
    if column.type != wanted:
        column = column.cast(wanted)
    if column.null_count:  # behind a null there may lie something
        column = column.take(pa.array(range(len(column))))
    ends = column.offsets.to_pylist()
    if ends[0] == ends[-1]:
        return pa.repeat(pa.scalar(b"", pa.binary()), len(column))
    names, values = (column.keys, column.items) if is_map else (column.values.field(0), column.values.field(1))
    if names.null_count or values.null_count or (not is_map and column.values.null_count):
        raise UsageError("column `headers` has a header whose name or value is null; leave such headers out")
    pairs = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
    try:
        return pa.array([encode_headers(tuple(pairs[low:high])) for low, high in pairwise(ends)], pa.binary())
    except UsageError as error:
        raise UsageError(f"column `headers`: {error}") from None


def parts(rows: pa.RecordBatch, now_us: Callable[[], int]) -> Iterator[BatchRows]:
    """The rows in parts of about the same size.

    These have binary columns ``value``, and perhaps ``key`` and ``headers``; perhaps ``timestamp``, in microseconds.
    """
    if not rows.num_rows:
        return
    columns = {name: _Column.of(rows.column(name)) for name in rows.schema.names if name != "timestamp"}
    stamps = rows.column("timestamp").to_numpy() if "timestamp" in rows.schema.names else None
    for low, high in _cuts(columns, rows.num_rows):
        if stamps is None:
            first = last = now_us()
        else:
            first, last = int(stamps[low:high].min()), int(stamps[low:high].max())
        yield BatchRows(columns, stamps, low, high, first, last)


class _Column(NamedTuple):
    """A binary column as its buffers; ``positions`` has one more than there are rows."""

    array: Any  # pa.Array
    positions: NDArray[np.int32]
    data: memoryview

    @classmethod
    def of(cls, array: pa.Array) -> _Column:
        _, positions, data = array.buffers()
        found = np.frombuffer(positions, np.int32, len(array) + 1, array.offset * 4)
        return cls(array, found, memoryview(b"") if data is None else memoryview(data))

    def cut(self, low: int, high: int) -> tuple[list[Any], bool]:
        """The buffers of some rows, each padded, and whether they begin with a bitmap."""
        rows = self.array.slice(low, high - low)
        pieces: list[Any] = []
        nulls = rows.null_count > 0
        if nulls:
            _add(pieces, np.packbits(rows.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
        positions = self.positions[low : high + 1]
        _add(pieces, positions - positions[0])
        _add(pieces, self.data[int(positions[0]) : int(positions[-1])])
        return pieces, nulls


def _add(parts: list[Any], buffer: NDArray[Any] | memoryview) -> None:
    parts += (buffer, bytes(-buffer.nbytes % 8))


def _cuts(columns: Mapping[str, _Column], rows: int) -> Iterator[tuple[int, int]]:
    """The beginning and the end of each part. Raises RecordTooLarge."""
    sizes = np.zeros(rows + 1, np.int64)
    for column in columns.values():
        sizes += column.positions - column.positions[0]
    if sizes[-1] > RECORD_BYTES_MAX:
        _refuse_too_large(columns, int(np.diff(sizes).argmax()))
    sizes += np.arange(0, (rows + 1) * ROW_BYTES, ROW_BYTES)
    total = int(sizes[-1])
    count = -(-total // PART_BYTES)
    inner = np.searchsorted(sizes, [total * n // count for n in range(1, count)]).tolist()
    return pairwise(sorted({0, *inner, rows}))


def _refuse_too_large(columns: Mapping[str, _Column], row: int) -> None:
    """Raise RecordTooLarge if the largest row is over the bound."""
    sizes = {name: int(column.positions[row + 1] - column.positions[row]) for name, column in columns.items()}
    total = sum(sizes.values())
    if total > RECORD_BYTES_MAX:
        largest = max(sizes, key=lambda name: sizes[name])
        raise RecordTooLarge(
            f"a row has {total} bytes, {sizes[largest]} of them in column `{largest}`; {RECORD_BYTES_MAX} are possible"
        )
