"""The columnar batch: many records in one block of bytes, the same on the wire, on disk and in Arrow.

Layout, little endian, every column padded to eight bytes::

    magic "CB", version 1, flags          4 bytes
    crc32c of everything after it         u32
    base offset                           u64
    count of records, 1..65,536           u32
    size of the whole batch in bytes      u32
    smallest, largest timestamp           2 x i64, microseconds since 1970 UTC
    timestamps   (flag TIMESTAMPS)        count x i64; without it every record has the smallest
    keys         (flag KEYS)              binary column
    headers      (flag HEADERS)           binary column; each value: u16 count, then per header
                                          u16 length, name, u32 length, value
    values                                binary column

With the flag COMPRESSED everything behind the header is one block (``chappe.log.compression``), with the columns that
the other flags name. It is opened when somebody asks for a column, and stays as it is on wires and disks.

With the flag SEALED, and no other, what follows the header is opaque: records that only a group can read, as
``chappe.sealing`` has them. Such a batch is never taken apart: a part of it is all of it, with a header that names
fewer records, which whoever opens it then takes.

A binary column is an optional bitmap of the values that are not None (flags KEY_NULLS, VALUE_NULLS; bit n of
byte n // 8), then count + 1 i32 positions, then the bytes: Arrow's own layout, so a column becomes an Arrow
array without copying.

Bounds: ``defaults.BATCH_BYTES_MAX`` and ``BATCH_RECORDS_MAX``; ``Batch.parse`` checks them before anything is
allocated, and the checksum before anything is believed. Positions never decrease: values that overlap would let a
small batch become a large one wherever it is taken apart.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from typing import Any, Final

from crc32c import crc32c

from chappe.data.given import as_bytes, as_text, pairs, two, utf8
from chappe.defaults import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, HEADERS_MAX
from chappe.errors import ProtocolError, Sealed, UsageError
from chappe.log.compression import check_block, pack, unpack
from chappe.log.record import Column
from chappe.log.record import Headers as Headers
from chappe.log.record import Record as Record

MAGIC: Final = b"CB\x01"
HEADER: Final = struct.Struct("<3sBIQIIqq")
_TAIL: Final = struct.Struct("<QIIqq")  # of the header, what the checksum covers
_CRC: Final = struct.Struct("<I")
_POSITION: Final = struct.Struct("<i")
_TWO_POSITIONS: Final = struct.Struct("<ii")
_SIGNS: Final = b"\0\0\0\x80" * BATCH_RECORDS_MAX  # the sign bit of each position
_PADS: Final = tuple(bytes(size) for size in range(8))
CRC_AT: Final = 8  # the checksum covers everything from here
KEYS: Final = 1
KEY_NULLS: Final = 2
TIMESTAMPS: Final = 4
HEADERS: Final = 8
VALUE_NULLS: Final = 16
PLACED_LATER: Final = 2  # the first byte of what is sealed, where offsets are given later ...
PLACE_AT: Final = 72  # ... and put there
SEALED: Final = 32
COMPRESSED: Final = 64
_ALL_FLAGS: Final = KEYS | KEY_NULLS | TIMESTAMPS | HEADERS | VALUE_NULLS | COMPRESSED


def encode_headers(headers: Headers) -> bytes:
    """Return the bytes of one record's headers; raises UsageError if they are too many or a name too long."""
    if not headers:
        return b""
    if len(headers) > HEADERS_MAX:
        raise UsageError(f"the record has {len(headers)} headers, at most {HEADERS_MAX} are possible")
    parts = [struct.pack("<H", len(headers))]
    for name, value in headers:
        raw = name.encode()
        if len(raw) > 0xFFFF:
            raise UsageError(f"the name of a header has {len(raw)} bytes, at most {0xFFFF} are possible")
        parts.append(struct.pack("<H", len(raw)) + raw + struct.pack("<I", len(value)) + value)
    return b"".join(parts)


def decode_headers(raw: bytes) -> Headers:
    """Return one record's headers; raises ProtocolError if the bytes are not headers."""
    if not raw:
        return ()
    try:
        (count,) = struct.unpack_from("<H", raw)
        if count > HEADERS_MAX:
            raise ProtocolError(f"{count} headers")
        at, found = 2, []
        for _ in range(count):
            (size,) = struct.unpack_from("<H", raw, at)
            name = raw[at + 2 : at + 2 + size].decode()
            at += 2 + size
            (size,) = struct.unpack_from("<I", raw, at)
            value = raw[at + 4 : at + 4 + size]
            if len(value) != size:
                raise ProtocolError("headers cut off")
            at += 4 + size
            found.append((name, value))
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError("headers cut off") from error
    return tuple(found)


def _find_column(view: memoryview, at: int, count: int, nulls: bool) -> tuple[Column, int]:
    """Return the column that begins at ``at``, and where the next one begins. Raises ProtocolError."""
    validity = None
    if nulls:
        bits = (count + 7) // 8
        validity = view[at : at + bits]
        at += bits + 7 & -8
    end = at + 4 * (count + 1)
    data = end + 7 & -8
    if data > len(view):
        raise ProtocolError("batch whose columns are cut off")
    (first,), (size,) = _POSITION.unpack_from(view, at), _POSITION.unpack_from(view, end - 4)
    if first != 0 or size < 0 or data + size > len(view):
        raise ProtocolError("batch whose columns are cut off")
    return Column(validity, view[at:end], view[data : data + size]), data + size + 7 & -8


def _check_order(column: Column) -> None:
    """Raise ProtocolError if a position is less than the one before it.

    All neighbours are subtracted at once, as one large number: the sign bits, set before, show which had to borrow.
    That takes a tenth of the time of making the values.
    """
    raw = column.positions
    whole = int.from_bytes(raw, "little")
    signs, lows = _masks(len(raw) - 4)
    low, high = whole & lows, whole >> 32
    if (low | high) & signs or ((high | signs) - low) & signs != signs:
        raise ProtocolError("batch whose values overlap")


@lru_cache(maxsize=4)  # half a megabyte each at most
def _masks(size: int) -> tuple[int, int]:
    """Return the sign bits, and all bits, of so many bytes of positions."""
    return int.from_bytes(_SIGNS[:size], "little"), (1 << 8 * size) - 1


def _binary_column(values: Sequence[bytes | None], positions: Sequence[int] | None = None) -> tuple[list[bytes], bool]:
    """Return the pieces of a column, and whether it has a bitmap."""
    pieces: list[bytes] = []
    nulls = False
    if positions is None:
        try:
            positions = list(accumulate(map(len, values), initial=0))  # type: ignore[arg-type]
        except TypeError:  # some are None: looking for them first would cost everybody
            nulls = True
            bits = bytearray((len(values) + 7) // 8)
            for index, value in enumerate(values):
                if value is not None:
                    bits[index >> 3] |= 1 << (index & 7)
            pieces += (bytes(bits), _PADS[-len(bits) % 8])
            values = [b"" if value is None else value for value in values]
            positions = list(accumulate(map(len, values), initial=0))  # type: ignore[arg-type]
    raw = struct.pack(f"<{len(positions)}i", *positions)
    pieces += (raw, _PADS[-len(raw) % 8])
    pieces.extend(values)  # type: ignore[arg-type]
    pieces.append(_PADS[-positions[-1] % 8])
    return pieces, nulls


def encode_batch(
    base: int,
    values: Sequence[bytes | None],
    timestamp: int,
    *,
    timestamps: Sequence[int] | None = None,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | bytes] | None = None,
    positions: Sequence[int] | None = None,
) -> bytes:
    """Return the bytes of a batch.

    Args:
        base: Offset of the first record; the others follow without gaps.
        values: At least one, at most ``BATCH_RECORDS_MAX``.
        timestamp: Microseconds since 1970 UTC, of every record that ``timestamps`` does not name.
        timestamps: One for each record.
        keys: One for each record, None where a record has none.
        headers: One tuple for each record, or its bytes from ``encode_headers``.
        positions: Where each value begins and the last one ends, if the caller knows; then none is None.

    Raises:
        UsageError: Headers that ``encode_headers`` refuses.
    """
    count = len(values)
    assert 0 < count <= BATCH_RECORDS_MAX
    flags = 0
    pieces: list[bytes] = []
    low = high = timestamp
    if timestamps is not None:
        flags |= TIMESTAMPS
        low, high = min(timestamps), max(timestamps)
        pieces.append(array("q", timestamps).tobytes())
    if keys is not None:
        column, nulls = _binary_column(keys)
        flags |= KEYS | (KEY_NULLS if nulls else 0)
        pieces += column
    if headers is not None:
        column, _ = _binary_column([each if isinstance(each, bytes) else encode_headers(each) for each in headers])
        flags |= HEADERS
        pieces += column
    column, nulls = _binary_column(values, positions)
    flags |= VALUE_NULLS if nulls else 0
    pieces += column
    body = b"".join(pieces)
    tail = _TAIL.pack(base, count, HEADER.size + len(body), low, high)
    return b"".join((MAGIC, bytes((flags,)), _CRC.pack(crc32c(body, crc32c(tail))), tail, body))


def encode_record(offset: int, value: bytes, timestamp: int) -> bytes:
    """Return the bytes of a batch of one record without key and headers, in a third of the time of ``encode_batch``."""
    size = len(value)
    body = b"".join((_TWO_POSITIONS.pack(0, size), value, _PADS[-size % 8]))
    tail = _TAIL.pack(offset, 1, HEADER.size + len(body), timestamp, timestamp)
    return b"".join((MAGIC, b"\0", _CRC.pack(crc32c(body, crc32c(tail))), tail, body))


def encode_sealed(base: int, count: int, timestamp_min: int, timestamp_max: int, *body: bytes | memoryview) -> bytes:
    """Return the bytes of a batch whose records are sealed in the parts of ``body``, a multiple of eight bytes."""
    tail = _TAIL.pack(base, count, HEADER.size + sum(map(len, body)), timestamp_min, timestamp_max)
    crc = crc32c(tail)
    for part in body:
        crc = crc32c(part, crc)
    return b"".join((MAGIC, bytes((SEALED,)), _CRC.pack(crc), tail, *body))


def compress(raw: bytes, codec: int) -> bytes:
    """Return a sound batch compressed with ``codec``; unchanged if not plain or less than a tenth is saved."""
    magic, flags, _, base, count, _, low, high = HEADER.unpack_from(raw)
    block = None if flags & (SEALED | COMPRESSED) else pack(codec, memoryview(raw)[HEADER.size :])
    if block is None:
        return raw
    tail = _TAIL.pack(base, count, HEADER.size + len(block), low, high)
    return b"".join((magic, bytes((flags | COMPRESSED,)), _CRC.pack(crc32c(block, crc32c(tail))), tail, block))


class Batch:
    """A parsed batch: the header as attributes, the columns as views into the bytes."""

    __slots__ = ("_at", "_columns_raw", "_ordered", "base", "count", "flags", "raw", "timestamp_max", "timestamp_min")

    def __init__(
        self, raw: bytes | memoryview, flags: int, base: int, count: int, timestamp_min: int, timestamp_max: int
    ) -> None:
        self.raw = raw
        self.flags = flags
        self.base = base
        self.count = count
        self.timestamp_min = timestamp_min
        self.timestamp_max = timestamp_max
        self._at: dict[str, Column] | None = None
        self._columns_raw: memoryview | None = None  # behind the header, opened if it was compressed
        self._ordered = count == 1 and not flags & COMPRESSED  # whether it is known that values do not overlap

    @classmethod
    def parse(cls, raw: bytes | memoryview, *, check: bool = True) -> Batch:
        """Read and check a batch; ``check=False`` skips the checksum of bytes that were checked before.

        It then also leaves the order of positions to callers that make values of them, which may raise ProtocolError.
        So may then every look at the columns of a compressed batch.

        Raises ProtocolError: anything about it is wrong; its text says what.
        """
        size = len(raw)
        if not HEADER.size <= size <= BATCH_BYTES_MAX:
            raise ProtocolError(f"batch of {size} bytes")
        magic, flags, crc, base, count, claimed, low, high = HEADER.unpack_from(raw)
        if magic != MAGIC or (flags & ~_ALL_FLAGS and flags != SEALED):
            raise ProtocolError("not a batch, or one of a newer version")
        if claimed != size or not 0 < count <= BATCH_RECORDS_MAX or base + count >= 1 << 63:
            raise ProtocolError("batch whose header is wrong")
        if check and crc32c(memoryview(raw)[CRC_AT:]) != crc:
            raise ProtocolError("batch whose checksum is wrong")
        batch = cls(raw, flags, base, count, low, high)
        if flags == SEALED:
            return batch
        if flags & COMPRESSED:
            check_block(memoryview(raw)[HEADER.size :])
            if check:  # by another one: whoever keeps this one keeps it compressed
                cls(raw, flags, base, count, low, high).check_order()
            return batch
        columns = batch._columns()
        if check and count > 1:
            batch._check_order(columns)
        return batch

    def __reduce__(self) -> tuple[Any, ...]:
        # The columns are views of the bytes, which may be a view themselves: neither can be pickled.
        return Batch, (bytes(self.raw), self.flags, self.base, self.count, self.timestamp_min, self.timestamp_max)

    @property
    def next(self) -> int:
        return self.base + self.count

    def __len__(self) -> int:
        return self.count

    @property
    def sealed(self) -> memoryview | None:
        """The sealed records; None if they are plain. Columns of a sealed batch raise ``errors.Sealed``."""
        return memoryview(self.raw)[HEADER.size :] if self.flags == SEALED else None

    @property
    def compressed(self) -> bool:
        return bool(self.flags & COMPRESSED)

    def _behind_header(self) -> memoryview:
        if self._columns_raw is None:
            raw = memoryview(self.raw)[HEADER.size :]
            self._columns_raw = unpack(raw) if self.flags & COMPRESSED else raw
        return self._columns_raw

    def _columns(self) -> dict[str, Column]:
        if self._at is not None:
            return self._at
        if self.flags == SEALED:
            raise Sealed("the records are sealed for a group: read them with an identity that belongs to it")
        view = self._behind_header()
        flags = self.flags
        at = 8 * self.count if flags & TIMESTAMPS else 0
        found: dict[str, Column] = {}
        if flags & KEYS:
            found["keys"], at = _find_column(view, at, self.count, bool(flags & KEY_NULLS))
        if flags & HEADERS:
            found["headers"], at = _find_column(view, at, self.count, False)
        found["values"], at = _find_column(view, at, self.count, bool(flags & VALUE_NULLS))
        if at != len(view):
            raise ProtocolError("batch whose columns do not fill it")
        self._at = found
        return found

    @property
    def ordered(self) -> bool:
        """True if it is known that values lie within their column and do not overlap: then Arrow may have them."""
        return self._ordered

    def check_order(self) -> None:
        """Check the order of positions, which ``parse`` skips without a check. Raises ProtocolError."""
        if not self._ordered and self.flags != SEALED:
            self._check_order(self._columns())

    def _check_order(self, columns: Mapping[str, Column]) -> None:
        for column in columns.values():
            _check_order(column)
        self._ordered = True

    def column(self, name: str) -> Column | None:
        """The raw buffers of ``keys``, ``headers`` or ``values``; None if no record has any."""
        return self._columns().get(name)

    def timestamp_bytes(self) -> memoryview | None:
        """The timestamps as i64, little endian; None if all are ``timestamp_min``."""
        if not self.flags & TIMESTAMPS:
            return None
        self._columns()
        return self._behind_header()[: 8 * self.count]

    def timestamps(self) -> Sequence[int]:
        raw = self.timestamp_bytes()
        return [self.timestamp_min] * self.count if raw is None else array("q", raw.tobytes())

    def _list(self, name: str, low: int = 0, high: int | None = None) -> list[bytes | None] | None:
        """The values of a column, or only those of the records from ``low`` to ``high``."""
        column = self.column(name)
        if column is None:
            return None
        if not self._ordered:
            self._check_order(self._columns())
        high = self.count if high is None else high
        positions = array("i", column.positions[4 * low : 4 * high + 4].tobytes()).tolist()
        data = column.data[positions[0] : positions[-1]].tobytes()
        if origin := positions[0]:
            positions = [each - origin for each in positions]
        values: list[bytes | None] = [data[a:b] for a, b in pairwise(positions)]
        if column.validity is not None:
            bits = column.validity
            values = [v if bits[i >> 3] >> (i & 7) & 1 else None for i, v in enumerate(values, low)]
        return values

    def values(self) -> list[bytes | None]:
        """The values as a list of ``bytes`` (None for a tombstone)."""
        return self._list("values") or []

    def keys(self) -> list[bytes | None] | None:
        return self._list("keys")

    def headers(self) -> list[Headers] | None:
        """The headers, or None if no record has any. Raises ProtocolError with the offset if they are malformed."""
        raw = self.raw_headers()
        return None if raw is None else [self._decoded(each, index) for index, each in enumerate(raw)]

    def headers_at(self, offset: int) -> Headers:
        """The headers of one record. Raises ProtocolError with the offset if they are malformed."""
        column, index = self.column("headers"), offset - self.base
        if column is None:
            return ()
        low, high = array("i", column.positions[4 * index : 4 * index + 8].tobytes())
        return self._decoded(column.data[low:high].tobytes(), index)

    def _decoded(self, raw: bytes, index: int) -> Headers:
        try:
            return decode_headers(raw)
        except ProtocolError as error:
            raise ProtocolError(f"malformed headers of the record at offset {self.base + index}: {error}") from None

    def raw_headers(self) -> list[bytes] | None:
        return self._list("headers")  # type: ignore[return-value]  # this column has no bitmap

    def records(
        self,
        topic: str,
        partition: str,
        start: int = 0,
        offsets: Iterator[int] | None = None,
        *,
        with_headers: bool = True,
    ) -> Iterator[Record]:
        """Iterate over the records from offset ``start`` on, each made as it is asked for.

        Raises ProtocolError, which names the record, where headers do not decode.

        Args:
            start: Offset of the first one wanted.
            offsets: An iterator over all offsets of the batch, of which one is taken for each record: a caller that
                keeps it can see how far the records were taken.
            with_headers: False leaves the headers out, which then need not decode.
        """
        keys: Iterable[bytes | None] = repeat(None)
        headers: Iterable[Headers] = repeat(())
        stamps: Iterable[int] = repeat(self.timestamp_min)
        values: Sequence[bytes | None] = self.values()
        if self.flags & (KEYS | HEADERS | TIMESTAMPS):
            keys = self.keys() or keys
            try:
                headers = (with_headers and self.headers()) or headers
            except ProtocolError as error:
                raise ProtocolError(f"{error}, in topic {topic!r}, partition {partition}") from None
            stamps = self.timestamps()
        numbers = iter(range(self.base, self.next)) if offsets is None else offsets
        rows = map(Record, repeat(topic), repeat(partition), numbers, stamps, keys, values, headers)
        for _ in range(start - self.base):
            next(rows)
        return rows

    def slice(self, start: int, end: int | None = None) -> bytes:
        """Return a batch of the records at offsets ``start`` <= n < ``end``; neither empty nor outside.

        That takes as long as it has records, however many there are around them.
        """
        low = start - self.base
        high = self.count if end is None else end - self.base
        assert 0 <= low < high <= self.count
        if low == 0 and high == self.count:
            return bytes(self.raw)
        if self.sealed is not None:
            return encode_sealed(start, high - low, self.timestamp_min, self.timestamp_max, self.sealed)
        stamps = self.timestamp_bytes()
        return encode_batch(
            start,
            self._list("values", low, high) or (),
            self.timestamp_min,
            timestamps=None if stamps is None else array("q", stamps[8 * low : 8 * high].tobytes()),
            keys=self._list("keys", low, high),
            headers=self._list("headers", low, high),  # type: ignore[arg-type]  # this column has no bitmap
        )


def merge(batches: Sequence[Batch]) -> bytes:
    """Return one batch of several neighbours, none of them sealed; each record keeps its timestamp."""
    assert all(a.next == b.base for a, b in pairwise(batches))
    if len(batches) == 1:
        return bytes(batches[0].raw)
    stamps: list[int] = []
    values: list[bytes | None] = []
    keys: list[bytes | None] = []
    headers: list[bytes] = []  # as they are: a store need not understand what it keeps
    for batch in batches:
        stamps += batch.timestamps()
        values += batch.values()
        keys += batch.keys() or repeat(None, batch.count)
        headers += batch.raw_headers() or repeat(b"", batch.count)
    same = stamps.count(stamps[0]) == len(stamps)
    return encode_batch(
        batches[0].base,
        values,
        stamps[0],
        timestamps=None if same else stamps,
        keys=keys if any(b.flags & KEYS for b in batches) else None,
        headers=headers if any(b.flags & HEADERS for b in batches) else None,
    )


def bare(raw: bytes) -> bytes:
    """Return a batch without values, keys and headers; a sealed one as it is. Raises ProtocolError: it is malformed."""
    batch = Batch.parse(raw, check=False)
    if batch.sealed is not None:
        return raw
    _, _, _, base, count, _, low, high = HEADER.unpack_from(raw)
    body = b"".join((batch.timestamp_bytes() or b"", bytes(4 * (count + 1) + 7 & -8)))
    tail = _TAIL.pack(base, count, HEADER.size + len(body), low, high)
    return b"".join((MAGIC, bytes((batch.flags & TIMESTAMPS,)), _CRC.pack(crc32c(body, crc32c(tail))), tail, body))


def rebase(raw: bytes, base: int) -> bytes:
    """Return the same batch, beginning at offset ``base``.

    Raises ProtocolError: it is malformed, or its checksum is wrong: a new one must not make damage look sound.
    """
    batch = Batch.parse(raw)
    if base + batch.count >= 1 << 63:
        raise ProtocolError("batch whose header is wrong")
    if batch.base == base:
        return raw
    rest = memoryview(raw)[HEADER.size :]
    if batch.sealed is not None:
        if len(rest) < PLACE_AT + 8 or rest[0] != PLACED_LATER:
            raise ProtocolError("a sealed batch, which can be nowhere else than where it was sealed")
        rest = memoryview(b"".join((rest[:PLACE_AT], base.to_bytes(8, "little"), rest[PLACE_AT + 8 :])))
    magic, flags, _, _, count, size, low, high = HEADER.unpack_from(raw)
    tail = _TAIL.pack(base, count, size, low, high)
    return b"".join((magic, bytes((flags,)), _CRC.pack(crc32c(rest, crc32c(tail))), tail, rest))


def as_headers(headers: Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]] | None) -> Headers:
    """Headers as users give them (a mapping or pairs; text values become UTF-8) in the form batches carry."""
    if headers is None:
        return ()
    found: list[tuple[str, bytes]] = []
    for each in pairs(headers, "headers"):
        name, value = two(each, "a header is a name and a value")
        text = as_text(name, "the name of a header")
        utf8(text, "the name of a header")
        raw = as_bytes(value, f"the value of header {text!r}")
        if raw is None:
            raise UsageError(f"the value of header {text!r} is bytes or text, not None: leave the header out")
        found.append((text, raw))
    return tuple(found)


def as_batch(given: object) -> bytes:
    """Return the bytes of a user's batch. Raises UsageError if it is neither bytes nor a ``Batch``."""
    raw = as_bytes(given.raw if isinstance(given, Batch) else given, "a batch")
    if raw is None or isinstance(given, str):
        raise UsageError("a batch is bytes, as chappe.log.batch describes them")
    return raw


class StampedHere(Batch):
    """A batch of single records of originals, stamped with the first one's arrival time."""

    __slots__ = ()
