"""Batches as Arrow record batches, without unpacking their records.

The columns of a batch are Arrow's own layout (``log/batch.py``), so keys, values and timestamps become arrays that
point into the batch's bytes. What came over a network is validated before Arrow is let loose on it.

pyarrow is imported when it is first needed: ``pip install 'chappe[arrow]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from chappe.data.logical import LamportTimestamp, VectorTimestamp
from chappe.data.topic import encode_topic
from chappe.errors import ProtocolError, UsageError
from chappe.log.batch import HEADERS, KEYS, Batch, decode_headers
from chappe.log.record import Column

if TYPE_CHECKING:
    import pyarrow as pa

    from chappe.arrow_rows import BatchRows

COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_PAGE: Final = 4096  # rows of the constant columns that are kept ready, at least ...
_PAGE_BYTES: Final = 2 << 20  # ... and bytes of one of them, at most; 32 are kept
_OFFSETS: Final = 16_384  # offsets made at once
_Cut: TypeAlias = tuple[Batch, int, int]  # of a batch the records from one index up to another
_ALIGNMENT: Final = 8  # bytes; Arrow wants every buffer to start at a multiple of it


@cache
def schema(columns: tuple[str, ...] = COLUMNS) -> pa.Schema:
    """The columns of a topic, all or some of them in any order; timestamps are UTC."""
    pa = pyarrow()
    types = {
        "topic": pa.string(),
        "partition": pa.string(),
        "offset": pa.int64(),
        "timestamp": _time_type(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.field("element", _header_type())),
    }
    return pa.schema([(name, types[name]) for name in columns])


def to_arrow(batch: Batch, topic: str, partition: str, start: int, end: int) -> pa.RecordBatch:
    """The records of ``batch`` at offsets ``start`` <= n < ``end``.

    Raises:
        UsageError: pyarrow is not installed.
        ProtocolError: The batch's columns are not what they should be.
    """
    return run_to_arrow([batch], topic, partition, start, end)


def run_to_arrow(
    batches: Sequence[Batch], topic: str, partition: str, start: int, end: int, columns: tuple[str, ...] = COLUMNS
) -> pa.RecordBatch:
    """The records at ``start`` <= n < ``end`` of batches that follow each other without a gap; see ``to_arrow``.

    Only the named columns are built, in their order.
    """
    pa = pyarrow()
    assert batches[0].base <= start < end <= batches[-1].next
    cuts = [(each, max(start - each.base, 0), min(end, each.next) - each.base) for each in batches]
    try:
        arrays = [_column(name, cuts, topic, partition, start, end - start) for name in columns]
    except (pa.ArrowInvalid, ProtocolError) as error:
        raise ProtocolError(
            f"records {start} to {end - 1} of topic {topic!r}, partition {partition}, are wrong: {error}"
        ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema(columns))


def _column(name: str, cuts: Sequence[_Cut], topic: str, partition: str, start: int, count: int) -> pa.Array:
    match name:
        case "topic":
            return _repeated(topic, count)
        case "partition":
            return _repeated(partition, count)
        case "offset":
            return _offsets(start, count)
        case "timestamp":
            return _concat([_cut(_timestamps(batch), low, high) for batch, low, high in cuts])
        case "headers":
            return _headers(cuts, count)
        case "key" if not any(batch.flags & KEYS for batch, _, _ in cuts):
            return _no_keys(count)
        case _:
            return _concat([_cut(_binary(batch, name + "s"), low, high) for batch, low, high in cuts])


def _cut(array: pa.Array, low: int, high: int) -> pa.Array:
    return array if high - low == len(array) else array.slice(low, high - low)


def concat(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One record batch of several, in order; at least one."""
    if len(parts) == 1:
        return parts[0]
    (whole,) = pyarrow().Table.from_batches(parts).combine_chunks().to_batches()
    return whole


def logical_times(times: Iterable[LamportTimestamp | VectorTimestamp | None]) -> pa.Array:
    """Logical times as a column: uint64, or a map of string to uint64 if there are vectors among them.

    A row goes back by ``LamportTimestamp(row.as_py())`` or ``VectorTimestamp.from_json(row.as_py())``.
    """
    pa, rows = pyarrow(), list(times)
    if any(isinstance(each, VectorTimestamp) for each in rows):
        entries = [list(each.to_json().items()) if isinstance(each, VectorTimestamp) else each for each in rows]
        return pa.array(entries, type=pa.map_(pa.string(), pa.uint64()))
    return pa.array(rows, type=pa.uint64())


def pyarrow() -> Any:
    """The module; raises UsageError if it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise UsageError("Arrow is not installed; run: pip install 'chappe[arrow]'") from None
    return pyarrow


def from_arrow(data: object, now_us: Callable[[], int]) -> Iterator[BatchRows]:
    """Read Arrow data with ``arrow_rows.read``; raises UsageError also if pyarrow or numpy is not installed."""
    pyarrow()
    try:
        from chappe.arrow_rows import read
    except ImportError:
        raise UsageError("numpy is not installed; run: pip install 'chappe[arrow]'") from None
    return read(data, now_us)


def polars() -> Any:
    """The module; raises UsageError if it is not installed."""
    try:
        import polars
    except ImportError:
        raise UsageError("Polars is not installed; run: pip install polars") from None
    return polars


@cache
def _header_type() -> pa.DataType:
    pa = pyarrow()
    return pa.struct([("key", pa.string()), ("value", pa.binary())])


def shown(topic: str) -> str:
    """Arrow's strings are UTF-8; other bytes of an original producer are shown as replacement characters."""
    return encode_topic(topic).decode("utf-8", "replace")


@lru_cache(maxsize=32)
def _page(text: str, rows: int) -> pa.Array:
    return pyarrow().repeat(text, rows)


def _repeated(topic: str, count: int) -> pa.Array:
    """The same text ``count`` times; a slice of an array made before, unless that would be large."""
    return _slice(topic, count) if count <= _PAGE else _made(topic, count)


@lru_cache(maxsize=32)
def _slice(topic: str, count: int) -> pa.Array:
    return _made(topic, count)


def _made(topic: str, count: int) -> pa.Array:
    text = shown(topic)
    rows = max(_PAGE, 1 << (count - 1).bit_length())
    if rows * (len(text.encode()) + 4) > _PAGE_BYTES:  # with the position of each
        return pyarrow().repeat(text, count)
    return _page(text, rows).slice(0, count)


@lru_cache(maxsize=8)
def _no_keys(count: int) -> pa.Array:
    pa = pyarrow()
    return pa.nulls(count, pa.binary())


@lru_cache(maxsize=8)
def _no_headers(count: int) -> pa.Array:
    pa = pyarrow()
    empty = pa.nulls(0, schema().field("headers").type.value_type)
    ends = pa.repeat(pa.scalar(0, pa.int32()), count + 1)
    return pa.ListArray.from_arrays(ends, empty, type=schema().field("headers").type)


def _concat(arrays: Sequence[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pyarrow().concat_arrays(arrays)


@cache
def _count_up() -> pa.Array:
    return pyarrow().array(range(_OFFSETS), "int64")


@lru_cache(maxsize=64)
def _offset_page(page: int) -> pa.Array:
    import pyarrow.compute as pc

    return pc.add(_count_up(), page * _OFFSETS)


def _offsets(start: int, count: int) -> pa.Array:
    """Consecutive numbers, cut from pages that many batches share."""
    end = start + count
    parts = []
    while start < end:
        page, at = divmod(start, _OFFSETS)
        size = min(end - start, _OFFSETS - at)
        parts.append(_offset_page(page).slice(at, size))
        start += size
    return _concat(parts)


def _buffer(view: memoryview) -> pa.Buffer:
    pa = pyarrow()
    buffer = pa.py_buffer(view)
    return buffer if buffer.address % _ALIGNMENT == 0 else pa.py_buffer(bytes(view))


@cache
def _time_type() -> pa.DataType:
    return pyarrow().timestamp("us", tz="UTC")


def _timestamps(batch: Batch) -> pa.Array:
    pa = pyarrow()
    raw = batch.timestamp_bytes()
    if raw is None:
        buffer = pa.py_buffer(batch.timestamp_min.to_bytes(8, "little", signed=True) * batch.count)
    else:
        buffer = _buffer(raw)
    return pa.Array.from_buffers(_time_type(), batch.count, [None, buffer])


def _binary(batch: Batch, name: str) -> pa.Array:
    pa = pyarrow()
    column: Column | None = batch.column(name)
    if column is None:
        return _no_keys(batch.count)
    validity = None if column.validity is None else _buffer(column.validity)
    buffers = [validity, _buffer(column.positions), _buffer(column.data)]
    array = pa.Array.from_buffers(pa.binary(), batch.count, buffers)
    if not batch.ordered:
        array.validate(full=True)  # positions of foreign bytes may point anywhere
    return array


def _headers(cuts: Sequence[_Cut], count: int) -> pa.Array:
    """A list per record, empty without headers; these are decoded one by one, for few topics have any."""
    pa = pyarrow()
    if not any(batch.flags & HEADERS for batch, _, _ in cuts):
        return _no_headers(count)
    sizes: list[int] = []
    names: list[str] = []
    values: list[bytes] = []
    for batch, low, high in cuts:
        if batch.column("headers") is None:
            sizes += [0] * (high - low)
            continue
        for raw in _binary(batch, "headers").slice(low, high - low).to_pylist():
            pairs = decode_headers(raw)
            sizes.append(len(pairs))
            names += [name for name, _ in pairs]
            values += [value for _, value in pairs]
    if names:
        ends = pa.array([0, *accumulate(sizes)], pa.int32())
    else:
        ends = pa.repeat(pa.scalar(0, pa.int32()), count + 1)
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=list(_header_type())
    )
    return pa.ListArray.from_arrays(ends, pairs, type=schema().field("headers").type)
