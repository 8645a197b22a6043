"""Messages of the mesh to record batches: one for each event and types of its arguments.

Each row is an event, or another value; a batch of Zeek is as many rows as it has messages. Most rows of a queue look
alike, so they are taken in passes: all those that begin as the first one does go to ``wire``; whoever turns out to be
different waits for the next pass. What is left after some passes, or cannot be decided there, is decoded value by
value (``shapes``), at most as slowly as anybody would do it. Both ways give the same columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from chappe.columns import shapes
from chappe.columns.shapes import FIELDS_MAX, Apart, Shape, join, shape_of
from chappe.columns.wire import EventBytes, Others, Places, ReadColumn, ValueRun, refuse, texts
from chappe.data import zeek
from chappe.data.binary import decode, encode, pack_varbyte
from chappe.data.order import STRING, VECTOR
from chappe.data.scalars import Timestamp
from chappe.data.values import Value
from chappe.defaults import COLUMNS_BYTES_MAX, VALUE_ELEMENTS_MAX
from chappe.errors import InvalidData
from chappe.sealing.events import NAME as SEALED
from chappe.sealing.events import is_sealed

if TYPE_CHECKING:
    from numpy.typing import NDArray

TIME: Final = pa.timestamp("ns", "UTC")
_TRIES_MAX: Final = 16  # times that a row is looked at in passes, on average; then values are decoded one by one
_GROUPS_MAX: Final = 16  # of values that are decoded one by one: each is compared with as many shapes
_EVENT: Final = zeek.head(zeek.EVENT)
_BATCH: Final = zeek.head(zeek.BATCH)
_BATCH_BODY: Final = _BATCH + bytes((VECTOR,))
_SMALL: Final = 128
_ROW: Final = 1 << 20  # more than the messages that one value can hold
# The only metadata that most events have: the network time. The 8 bytes of it follow.
_TIMED: Final = encode(((zeek.NETWORK_TIME, Timestamp(0)),))[:-8]
_TIMED_BYTES: Final = len(_TIMED) + 8


@dataclass(slots=True)
class EventColumns:
    """The columns of messages.

    Args:
        batches: One for each event and types of its arguments, by their first row; rows are in the order of messages.
        malformed: How many messages, or messages in batches of Zeek, are in none of them ...
        reason: ... and what is wrong with the first, a sentence without its end; ``topic`` is where it came.
    """

    batches: list[pa.RecordBatch] = field(default_factory=list)
    malformed: int = 0
    topic: bytes = b""
    reason: str = ""

    def refuse(self, topic: bytes, reason: str) -> None:
        if not self.malformed:
            self.topic, self.reason = topic, reason
        self.malformed += 1


class _ColumnPart(NamedTuple):
    """Columns of some rows: the event's name, network times, arguments and their shapes.

    ``places`` says where each row belongs: ``_ROW`` times its number, and within what is several the number of it.
    """

    event: str | None
    times: pa.Array
    args: list[pa.Array]
    shape: list[Shape | None]
    places: Places

    @property
    def types(self) -> list[pa.DataType]:
        return [each.type for each in self.args]


def read(topics: Sequence[bytes], payloads: Sequence[bytes]) -> EventColumns:
    """Return the columns of messages; nothing that is wrong with one concerns others."""
    found = EventColumns()
    start = size = 0
    for index, payload in enumerate(payloads):
        if size and size + len(payload) > COLUMNS_BYTES_MAX:
            _Reading(topics[start:index], payloads[start:index], found).run()
            start, size = index, 0
        size += len(payload)
    if payloads:
        _Reading(topics[start:], payloads[start:], found).run()
    return found


class _Reading:
    def __init__(self, topics: Sequence[bytes], payloads: Sequence[bytes], found: EventColumns) -> None:
        self._topics = topics
        self._payloads = list(payloads)
        self._found = found
        self._exact: dict[int, Places] = {}  # of batches of Zeek that have been taken apart with care

    def run(self) -> None:
        while True:
            self._lay_out()
            parts, left = self._passes()
            doubtful = {int(each) for each in self._batch[left] if each >= 0}
            if not doubtful:
                break
            for number in doubtful:  # what looked like the beginning of an event may be in a string: begin again
                self._exact[number] = self._surely(number)
        parts += self._one_by_one(left)
        self._found.batches += self._merged(parts)

    # -- rows -------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        self._wire = wire = EventBytes.of(b"".join(self._payloads))
        ends = np.cumsum(np.fromiter(map(len, self._payloads), np.int64, len(self._payloads)))
        starts = np.concatenate(([0], ends[:-1]))
        numbers = np.arange(len(starts))
        batches = np.flatnonzero(_begins(wire, starts, _BATCH_BODY))
        self._batch = np.full(len(starts), -1)
        if len(batches):
            starts, ends, numbers = self._split(batches.tolist(), starts, ends)
        self._starts, self._ends, self._numbers = starts, ends, numbers

    def _split(self, batches: list[int], starts: Places, ends: Places) -> tuple[Places, Places, Places]:
        """Return the rows, with those of batches of Zeek in their place."""
        begins, lengths, numbers, owners = [], [], [], []
        before = 0
        for number in [*batches, len(starts)]:
            begins.append(starts[before:number])
            lengths.append(ends[before:number] - starts[before:number])
            numbers.append(np.arange(before, number))
            owners.append(np.full(number - before, -1))
            before = number + 1
            if number == len(starts):
                break
            raw = self._payloads[number]
            sizes, owner = self._exact.get(number), -1
            if sizes is None:
                sizes, owner = _likely(raw), number
            if sizes is None:
                sizes = self._exact[number] = self._surely(number)
                owner = -1
            begins.append(ends[number] - np.cumsum(sizes[::-1])[::-1])
            lengths.append(sizes)
            numbers.append(np.full(len(sizes), number))
            owners.append(np.full(len(sizes), owner))
        self._batch = np.concatenate(owners)
        at = np.concatenate(begins)
        return at, at + np.concatenate(lengths), np.concatenate(numbers)

    def _surely(self, number: int) -> Places:
        """Return the lengths of all messages in a batch; none if it is malformed, which is told."""
        try:
            return np.array([len(each) for each in zeek.split(self._payloads[number])], np.int64)
        except InvalidData as problem:
            self._found.refuse(self._topics[number], str(problem))
            return np.empty(0, np.int64)

    # -- many at once -----------------------------------------------------------------------------

    def _passes(self) -> tuple[list[_ColumnPart], Places]:
        """Decode many rows at a time; return the columns, and the rows that are left."""
        parts: list[_ColumnPart] = []
        large = self._ends - self._starts > VALUE_ELEMENTS_MAX  # its elements are to be counted
        left, later = np.flatnonzero(~large), [np.flatnonzero(large)]
        tries = _TRIES_MAX * len(left)
        there = np.ones(len(large), np.bool_)
        while len(left) and tries > 0:
            alike = self._alike(left)
            tries -= len(left)
            taken = None
            while alike is not None and len(alike.rows) and tries > 0:
                tries -= len(alike.rows)
                try:
                    taken = self._part(alike)
                except Others as others:
                    there[others.rows] = False
                    rows, there[others.rows] = alike.rows[there[alike.rows]], True
                    alike = alike._replace(rows=rows)
                else:
                    break
            if taken is None:
                later.append(left[:1])
                left = left[1:]
            else:
                parts.append(taken)
                there[taken.places // _ROW] = False
                left = left[there[left]]
        return parts, np.sort(np.concatenate([*later, left]))

    def _alike(self, left: Places) -> _Alike | None:
        """Return the rows that begin like the first of them; None if that is for ``_one_by_one``."""
        first = int(left[0])
        begin = int(self._starts[first])
        raw = self._wire.raw[begin : min(int(self._ends[first]), begin + len(_EVENT) + 4 + _SMALL + 2)]
        starts = self._starts[left]
        if raw.startswith(_EVENT):
            body = len(_EVENT)
            if len(raw) < body + 6 or raw[body] != VECTOR or raw[body + 1] not in (2, 3) or raw[body + 2] != STRING:
                return None
            size = raw[body + 3]
            at = body + 4 + size
            if size >= _SMALL or len(raw) < at + 2 or raw[at] != VECTOR or raw[at + 1] > FIELDS_MAX:
                return None
            try:
                name = raw[body + 4 : at].decode()
            except UnicodeDecodeError:
                return None
            if name == SEALED:
                return None
            which = _begins(self._wire, starts, raw[: at + 2], any_at=body + 1)
            return _Alike(name, left[which], at + 2, raw[at + 1])
        if len(raw) < 2 or raw[0] != VECTOR or raw[1] > FIELDS_MAX:
            return None
        which = _begins(self._wire, starts, raw[:2]) & ~_begins(self._wire, starts, _EVENT[:-8])
        return _Alike(None, left[which], 2, raw[1]) if len(which) and which[0] else None

    def _part(self, alike: _Alike) -> _ColumnPart:
        """Return the columns of rows that all are of one shape. Raises Others."""
        wire, rows = self._wire, alike.rows
        starts, limit = self._starts[rows], self._ends[rows]
        run = ValueRun(starts + alike.args_at, limit, rows)
        refuse(rows, run.at > limit)
        args: list[ReadColumn] = []
        for _ in range(alike.args):
            args.append(wire.read(run, 1))
            run = run._replace(at=args[-1].ends)
        if alike.event is None:
            times = pa.nulls(len(rows), TIME)
        else:
            elements = wire.u8[starts + len(_EVENT) + 1]
            refuse(rows, (elements != 2) & (elements != 3))
            times, run = self._times(run, elements == 3)
        refuse(rows, run.at != limit)
        return _ColumnPart(
            alike.event, times, [each.array for each in args], [each.shape for each in args], _ROW * rows
        )

    def _times(self, run: ValueRun, timed: NDArray[np.bool_]) -> tuple[pa.Array, ValueRun]:
        if not timed.any():
            return pa.nulls(len(timed), TIME), run
        inside = run.only(timed)
        refuse(inside.rows, inside.at + _TIMED_BYTES > inside.limit)
        refuse(inside.rows, ~_begins(self._wire, inside.at, _TIMED))
        stamps = np.zeros(len(timed), np.int64)
        stamps[timed] = self._wire.u64[inside.at + len(_TIMED)].astype(np.uint64).view(np.int64)
        ends = run.at.copy()
        ends[timed] += _TIMED_BYTES
        return pa.array(stamps, mask=~timed).view(TIME), run._replace(at=ends)

    # -- one by one -------------------------------------------------------------------------------

    def _one_by_one(self, rows: Places, told: bool = False) -> Iterator[_ColumnPart]:
        """Yield the columns of these rows; ``told``: what is malformed was told before."""
        groups: dict[tuple[str | None, int], list[_ShapeGroup]] = {}
        for row in rows.tolist():
            raw = self._wire.raw[self._starts[row] : self._ends[row]]
            try:
                for place, (event, time, args) in enumerate(_values(raw), _ROW * row):
                    shape = tuple([shape_of(each) for each in args])
                    same = groups.setdefault((event, len(args)), [])
                    if not any(group.take(place, time, args, shape) for group in same[-_GROUPS_MAX:]):
                        same.append(_ShapeGroup(list(shape), [place], [time], [args]))
            except InvalidData as problem:
                if not told:
                    self._found.refuse(self._topics[int(self._numbers[row])], str(problem))
        for (event, _), some in groups.items():
            for group in some:
                values = zip(*group.args, strict=True)
                made = [shapes.column(shape, each) for shape, each in zip(group.shape, values, strict=True)]
                yield _ColumnPart(event, pa.array(group.times, TIME), made, group.shape, np.array(group.places))

    # -- together ---------------------------------------------------------------------------------

    def _merged(self, parts: list[_ColumnPart]) -> list[pa.RecordBatch]:
        wholes: dict[tuple[str | None, int], list[_ColumnPart]] = {}
        for part in sorted(parts, key=lambda part: int(part.places[0])):
            same = wholes.setdefault((part.event, len(part.args)), [])
            for place, whole in enumerate(same[:_GROUPS_MAX]):
                both = self._both(whole, part)
                if both is not None:
                    same[place] = both
                    break
            else:
                same.append(part)
        found = sorted(itertools.chain(*wholes.values()), key=lambda part: int(part.places[0]))
        return [self._record_batch(part) for part in found]

    def _both(self, one: _ColumnPart, other: _ColumnPart) -> _ColumnPart | None:
        """Return both as one, if they have one shape, or the same types of columns, as sets and vectors may have."""
        try:
            shape = [
                a if one_type == other_type else join(a, b)
                for a, b, one_type, other_type in zip(one.shape, other.shape, one.types, other.types, strict=True)
            ]
        except Apart:
            return None
        places = np.concatenate([one.places, other.places])
        kinds = list(map(shapes.arrow_type, shape))
        try:
            args = [
                pa.concat_arrays([_cast(a, kind), _cast(b, kind)])
                for a, b, kind in zip(one.args, other.args, kinds, strict=True)
            ]
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):  # such as a list that is a struct now
            anew = list(self._one_by_one(np.unique(places // _ROW), told=True))
            return anew[0] if len(anew) == 1 and len(anew[0].places) == len(places) else None
        turns = pa.array(np.argsort(places, kind="stable"))
        times = pa.concat_arrays([one.times, other.times])
        return _ColumnPart(one.event, times.take(turns), [each.take(turns) for each in args], shape, np.sort(places))

    def _record_batch(self, part: _ColumnPart) -> pa.RecordBatch:
        event = (
            pa.nulls(len(part.places), pa.string()) if part.event is None else pa.repeat(part.event, len(part.places))
        )
        names = ["topic", "event", "network_time", *[f"_{number}" for number in range(1, len(part.args) + 1)]]
        numbers = self._numbers[part.places // _ROW]
        first = self._topics[int(numbers[0])]
        if self._topics.count(first) == len(self._topics):
            topics = pa.repeat(first.decode("utf-8", "backslashreplace"), len(numbers))
        else:
            topics = texts(pa.array([self._topics[number] for number in numbers.tolist()], pa.binary()))
        return pa.RecordBatch.from_arrays([topics, event, part.times, *part.args], names)


class _Alike(NamedTuple):
    """Rows that begin alike: the event's name, where its arguments begin, and how many these are."""

    event: str | None
    rows: Places
    args_at: int
    args: int


@dataclass(slots=True)
class _ShapeGroup:
    shape: list[Shape | None]
    places: list[int]
    times: list[int | None]
    args: list[tuple[Value, ...]]

    def take(self, place: int, time: int | None, args: tuple[Value, ...], shape: tuple[Shape | None, ...]) -> bool:
        try:
            self.shape = [join(one, other) for one, other in zip(self.shape, shape, strict=True)]
        except Apart:
            return False
        self.places.append(place)
        self.times.append(time)
        self.args.append(args)
        return True


def _values(raw: bytes) -> Iterator[tuple[str | None, int | None, tuple[Value, ...]]]:
    """Yield name, network time and arguments of what a row is, or of each message in it. Raises InvalidData."""
    if is_sealed(raw):
        raise InvalidData("it is sealed, and this endpoint has no identity to open it")
    try:
        found: Any = zeek.parse(raw)
    except InvalidData:
        found = decode(raw)  # another value, or malformed
    each: Any
    for each in zeek.flat(found) if isinstance(found, zeek.Batch) else (found,):
        if isinstance(each, zeek.Event):
            if len(each.args) > FIELDS_MAX:
                raise InvalidData(f"event {each.name} has {len(each.args)} arguments, more than {FIELDS_MAX} columns")
            time = each.time
            yield each.name, None if time is None else int(time), each.args
        else:
            value: Value = each.to_value() if isinstance(each, zeek.OTHERS) else each
            yield None, None, value if type(value) is tuple and len(value) <= FIELDS_MAX else (value,)


def _likely(raw: bytes) -> Places | None:
    """Return the lengths of the events in a batch, if it holds nothing else and none of them begins another."""
    if len(raw) > VALUE_ELEMENTS_MAX:
        return None
    begin, *pieces = raw.split(_EVENT)
    if begin != _BATCH_BODY + pack_varbyte(len(pieces)):
        return None
    return np.fromiter(map(len, pieces), np.int64, len(pieces)) + len(_EVENT)


def _begins(wire: EventBytes, starts: Places, prefix: bytes, any_at: int = -1) -> NDArray[np.bool_]:
    """Test for these bytes at each of the places; the one at ``any_at`` may be any other."""
    found = np.ones(len(starts), np.bool_)
    for at in range(0, len(prefix), 8):
        word = prefix[at : at + 8]
        mask = bytearray(b"\xff" * len(word))
        if at <= any_at < at + 8:
            mask[any_at - at] = 0
        bits, wanted = int.from_bytes(mask.ljust(8, b"\0")), int.from_bytes(word.ljust(8, b"\0"))
        places = np.minimum(starts + at, len(wire.u64) - 1)
        found &= (wire.u64[places] & np.uint64(bits)) == np.uint64(wanted & bits)
    return found


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast to a type. Raises ArrowInvalid if that fails, as pyarrow 26 makes lists of nulls too short."""
    if array.type == kind:
        return array
    found = array.cast(kind)
    found.validate()
    return found
