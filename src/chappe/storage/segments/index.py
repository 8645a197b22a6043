"""The index file of a sealed segment: which blocks it has of which partition, to be searched where it lies.

A segment with a valid index is sealed: its good part ends where the index says, whatever else the file holds.
So the index is also what keeps a refused write, whose bytes could not be taken back, from coming to life at the
next start. An index that is damaged or missing is made again from its segment.

Layout, 64-bit integers in the machine's own byte order::

    magic "CHPIDX1\\n", crc32c of everything after it
    number, length, records, smallest and largest timestamp of the segment
    counts: names, bytes of names, extents, lost, entries
    columns, see ``_COLUMNS``; the names' bytes, padded to eight

Names are sorted; extents are sorted by name and first offset and do not overlap; entries are sorted as their
extents are and fill them without a gap. An entry may begin or end inside its block, where blocks overlap.
An entry's "top" is the largest timestamp up to and including its own block within the extent, so that the
first entry at or after a time is found by bisection even if timestamps jump.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise, repeat
from typing import Final, NamedTuple

from crc32c import crc32c

from chappe.data.topic import decode_topic
from chappe.errors import Damaged
from chappe.storage.segments.blocks import HEADER_BYTES
from chappe.storage.segments.files import encode_name
from chappe.storage.segments.table import BlockRow, BlockTable, LostOffsets

_MAGIC: Final = 0x0A31_5844_4950_4843  # "CHPIDX1\n" where the machine is little endian
_HEADER: Final = struct.Struct("=12q")
_CRC_TO: Final = 16
_EXTENT: Final = tuple(
    f"extent_{each}" for each in ("first", "next", "bytes", "timestamp_min", "timestamp_max", "entry", "heal")
)
_LOST: Final = ("lost_name", "lost_first", "lost_next")
_ENTRY: Final = ("entry_base", "entry_position", "entry_size", "entry_timestamp", "entry_top")
_COLUMNS: Final = ("name_at", "name_extents", *_EXTENT, *_LOST, *_ENTRY)


class BlockPiece(NamedTuple):
    """Offsets ``first`` <= n < ``next``, to be found in the block at ``position``."""

    first: int
    next: int
    position: int
    size: int


class Summary(NamedTuple):
    """The facts of a sealed segment that retention needs; ``length`` in bytes."""

    number: int
    length: int
    records: int
    timestamp_min: int
    timestamp_max: int


Span = tuple[int, int, int]  # first, next, row


def _resolve(table: BlockTable, spans: list[Span]) -> list[Span]:
    """Divide the offsets of a few overlapping blocks among them: heals first, then the oldest."""
    taken: list[Span] = []
    for low, high, row in sorted(spans, key=lambda span: (not table.heal[span[2]], span[2])):
        at = low
        for start, end, _ in [*taken, (high, high, -1)]:
            if at < min(start, high):
                taken.append((at, min(start, high), row))
            at = max(at, end)
        taken.sort()
    return taken


def _disjoint(table: BlockTable, rows: list[int]) -> list[Span]:
    """Divide a partition's offsets among its rows, which are sorted by offset."""
    spans = [(table.base[row], table.base[row] + table.count[row], row) for row in rows]
    if all(a[1] <= b[0] for a, b in pairwise(spans)):
        return spans
    found: list[Span] = []
    cluster: list[Span] = []
    end = -1
    for span in spans:
        if span[0] >= end:
            found += _resolve(table, cluster)
            cluster = []
        cluster.append(span)
        end = max(end, span[1])
    return found + _resolve(table, cluster)


def encode_index(table: BlockTable) -> bytes:
    """Return the index file of a segment; rows known to be damaged are left out and listed as lost."""
    rows: list[list[int]] = [[] for _ in table.names]
    lost = list(table.lost)
    damaged = set(table.damaged)
    for row, partition in enumerate(table.partition):
        if row in damaged:
            base = table.base[row]
            lost.append(LostOffsets(table.names[partition], base, base + table.count[row]))
        else:
            rows[partition].append(row)
    raw_names = {name: encode_name(name) for name in (*table.names, *(each.partition for each in lost))}
    columns: dict[str, array[int]] = {name: array("q") for name in _COLUMNS}
    names = bytearray()
    ranks: dict[str, int] = {}
    for rank, (name, raw) in enumerate(sorted(raw_names.items(), key=lambda item: item[1])):
        ranks[name] = rank
        columns["name_at"].append(len(names))
        columns["name_extents"].append(len(columns["extent_first"]))
        names += raw
        known = table.ids.get(name)
        if known is not None:
            _add_rows(columns, table, sorted(rows[known], key=table.base.__getitem__), HEADER_BYTES + len(raw))
    extents, entries = len(columns["extent_first"]), len(columns["entry_base"])
    counts = len(ranks), len(names), extents, len(lost), entries
    columns["name_at"].append(len(names))
    columns["name_extents"].append(extents)
    columns["extent_entry"].append(entries)
    for found in sorted((ranks[each.partition], each.first, each.next) for each in lost):
        _add(columns, _LOST, found)
    header = _HEADER.pack(_MAGIC, 0, table.number, table.length, table.records, *table.times, *counts)
    parts = [columns[name].tobytes() for name in _COLUMNS]
    body = b"".join((header[_CRC_TO:], *parts, names, bytes(-len(names) % 8)))
    return struct.pack("=qq", _MAGIC, crc32c(body)) + body


def _add_rows(columns: dict[str, array[int]], table: BlockTable, rows: list[int], overhead: int) -> None:
    """The extents and entries of one partition; ``overhead`` is what a block has besides its batch."""
    extent: list[int] = []  # as the columns of extents are
    top = 0
    for low, high, row in _disjoint(table, rows):
        share = table.size[row] - overhead
        if high - low != table.count[row]:
            share = share * (high - low) // table.count[row]
        earliest, latest, heal = table.timestamp_min[row], table.timestamp_max[row], table.heal[row]
        if extent and low == extent[1] and heal == extent[6]:
            top = max(top, latest)
            extent[1:5] = high, extent[2] + share, min(extent[3], earliest), top
        else:
            _add(columns, _EXTENT, extent)
            top = latest
            extent = [low, high, share, earliest, latest, len(columns["entry_base"]), heal]
        _add(columns, _ENTRY, (low, table.position[row], table.size[row], latest, top))
    _add(columns, _EXTENT, extent)


def _add(columns: dict[str, array[int]], names: tuple[str, ...], values: Iterable[int]) -> None:
    for name, value in zip(names, values, strict=False):
        columns[name].append(value)


class Index:
    """An index file, read or mapped into memory. Raises Damaged: it is not the whole index of segment ``number``."""

    def __init__(self, raw: bytes | mmap.mmap, number: int, *, check: bool = True) -> None:
        view = memoryview(raw)
        if len(view) < _HEADER.size or len(view) % 8:
            raise Damaged("an index file is cut off")
        magic, crc, found, length, records, low, high, *counts = _HEADER.unpack_from(view)
        if magic != _MAGIC or found != number or (check and crc32c(view[_CRC_TO:]) != crc):
            raise Damaged("an index file is damaged")
        self.summary = Summary(number, length, records, low, high)
        names, name_bytes, extents, lost, entries = counts
        sizes = (names + 1, names + 1, *(extents,) * 5, extents + 1, extents, *(lost,) * 3, *(entries,) * 5)
        if len(view) != _HEADER.size + 8 * sum(sizes) + name_bytes + -name_bytes % 8:
            raise Damaged("an index file is cut off")
        self._columns: dict[str, memoryview[int]] = {}
        at = _HEADER.size
        for name, size in zip(_COLUMNS, sizes, strict=True):
            self._columns[name] = view[at : at + 8 * size].cast("q")
            at += 8 * size
        self._names = view[at : at + name_bytes]
        self.names = names
        self.entries = entries

    def _name(self, index: int) -> bytes:
        at = self._columns["name_at"]
        return bytes(self._names[at[index] : at[index + 1]])

    def name(self, index: int) -> str:
        return self._name(index).decode("utf-8", "surrogateescape")

    def all_names(self) -> list[str]:
        raw = bytes(self._names)
        return [decode_topic(raw[a:b]) for a, b in pairwise(self._columns["name_at"].tolist())]

    def extents(self) -> Iterator[tuple[str, int, int, int, int, int, int]]:
        """Partition, first, next, bytes, smallest and largest timestamp, and 1 if it is a heal, of all extents."""
        columns = self._columns
        counts = [high - low for low, high in pairwise(columns["name_extents"].tolist())]
        return zip(
            chain.from_iterable(map(repeat, self.all_names(), counts)),
            *(columns[each].tolist() for each in _EXTENT[:5]),
            columns["extent_heal"].tolist(),
            strict=True,
        )

    def lost(self) -> Iterator[tuple[str, int, int]]:
        """The offsets that damage took from this segment: partition, first, next."""
        names = map(self.name, self._columns["lost_name"])
        return zip(names, self._columns["lost_first"], self._columns["lost_next"], strict=True)

    def _extents_from(self, partition: str, offset: int) -> range:
        """The extent that has ``offset`` and those that follow it without a gap."""
        raw = partition.encode("utf-8", "surrogateescape")
        name = bisect_left(range(self.names), raw, key=self._name)
        if name == self.names or self._name(name) != raw:
            return range(0)
        firsts, ends = self._columns["extent_first"], self._columns["extent_next"]
        low, high = self._columns["name_extents"][name : name + 2]
        found = bisect_right(firsts, offset, low, high) - 1
        if found < low or offset >= ends[found]:
            return range(0)
        after = found + 1
        while after < high and firsts[after] == ends[after - 1]:
            after += 1
        return range(found, after)

    def pieces(self, partition: str, offset: int) -> Iterator[BlockPiece]:
        """Yield the pieces from the one that has ``offset`` on, up to a gap; none if it is not here."""
        columns = self._columns
        bases, positions, sizes = columns["entry_base"], columns["entry_position"], columns["entry_size"]
        for extent in self._extents_from(partition, offset):
            low, high = columns["extent_entry"][extent : extent + 2]
            last = columns["extent_next"][extent]
            for entry in range(max(bisect_right(bases, offset, low, high) - 1, low), high):
                next_ = bases[entry + 1] if entry + 1 < high else last
                yield BlockPiece(bases[entry], next_, positions[entry], sizes[entry])

    def within(self, first: int, end: int) -> Iterator[tuple[str, BlockPiece]]:
        """Partition and place of every block that has a byte in ``first`` <= n < ``end``."""
        columns = self._columns
        bounds, names = columns["extent_entry"], columns["name_extents"]
        bases, positions, sizes = (columns[each].tolist() for each in _ENTRY[:3])
        for entry, position in enumerate(positions):
            if position < end and position + sizes[entry] > first:
                extent = bisect_right(bounds, entry) - 1
                next_ = bases[entry + 1] if entry + 1 < bounds[extent + 1] else columns["extent_next"][extent]
                yield (
                    self.name(bisect_right(names, extent) - 1),
                    BlockPiece(bases[entry], next_, position, sizes[entry]),
                )

    def at_time(self, partition: str, first: int, next_: int, timestamp: int) -> int | None:
        """The first offset in ``first`` <= n < ``next_`` whose block ends at or after ``timestamp``.

        All of them follow ``first`` without a gap; None if all are older.
        """
        bases = self._columns["entry_base"]
        for extent in self._extents_from(partition, first):
            low, high = self._columns["extent_entry"][extent : extent + 2]
            entry = bisect_left(self._columns["entry_top"], timestamp, low, high)
            start = max(bisect_right(bases, first, low, high) - 1, low)
            if entry < start:  # an older block that is no longer readable decided it
                stamps = self._columns["entry_timestamp"]
                entry = next((each for each in range(start, high) if stamps[each] >= timestamp), high)
            if entry < high:
                return None if bases[entry] >= next_ else max(bases[entry], first)
        return None

    def time_of(self, partition: str, offset: int) -> int | None:
        """The largest timestamp of the block that has ``offset``; None if it is not here."""
        for extent in self._extents_from(partition, offset):
            low, high = self._columns["extent_entry"][extent : extent + 2]
            entry = max(bisect_right(self._columns["entry_base"], offset, low, high) - 1, low)
            return self._columns["entry_timestamp"][entry]
        return None

    def table(self) -> BlockTable:
        """The segment's table again, good enough to be appended to and sealed once more."""
        table = BlockTable(self.summary.number)
        table.length = self.summary.length
        bounds = self._columns["extent_entry"]
        bases, positions, sizes, stamps = (self._columns[each].tolist() for each in _ENTRY[:4])
        rows: list[BlockRow] = []
        for index, (name, _, next_, _, low, _, heal) in enumerate(self.extents()):
            start, end = bounds[index], bounds[index + 1]
            ends = [*bases[start + 1 : end], next_]
            for entry, after in zip(range(start, end), ends, strict=True):
                base = bases[entry]
                size = after - base
                rows.append(BlockRow(name, base, size, positions[entry], sizes[entry], low, stamps[entry], bool(heal)))
        for row in sorted(rows, key=lambda row: row.position):
            table.append(row)
        table.lost = [LostOffsets(*each) for each in self.lost()]
        return table
