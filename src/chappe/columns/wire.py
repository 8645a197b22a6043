"""Columns from the bytes of many events at once.

All events are walked in step: a place in each, and for each argument one look at all places. So a column costs some
calls of numpy and Arrow, whatever its length, and no Python object is made of a value. What holds for a column is found
on the way: its type is that of most, and who has something else there, or is malformed, is told by ``Others``, so that
the walk can be repeated without it. Nothing is guessed: what is accepted here means exactly what
``chappe.data.binary`` reads, and what cannot be decided here is among the others.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chappe.columns.shapes import (
    FIELDS_MAX,
    LIST,
    Shape,
    list_type,
    listed,
    map_type,
    scalar_types,
    struct_type,
)
from chappe.data import order
from chappe.data.binary import decode
from chappe.data.order import NONE, SET, STRING, TABLE, VECTOR
from chappe.data.quirks import NAN, unpack_real
from chappe.data.scalars import PROTOCOLS, V4_PREFIX, Address
from chappe.defaults import VALUE_DEPTH_MAX
from chappe.errors import InvalidData

if TYPE_CHECKING:
    from numpy.typing import NDArray

Places = Any  # NDArray[np.int64]: places in the bytes, or numbers of rows
PADDING: Final = 64  # bytes behind the last event, which a look at one cut off may take in
_SMALL: Final = 128
_VARBYTE_MAX: Final = 5  # bytes of a length that are read here: 35 bits, of which sums do not overflow
STEPS_MAX: Final = 8_192  # looks at the next element of containers, for all bytes together: some 0.1 s
_LONE_STEPS: Final = 64  # after so many such looks ...
_LONE_SHARE: Final = 16  # ... those that go on are not walked if they are less than this part of all
_SIZES: Final = np.array([0, 1, 8, 8, 8, 0, 16, 17, 3, 8, 8, 0, 0, 0, 0, *[0] * 241], np.int64)
_FIXED: Final = frozenset({*range(order.BOOLEAN, order.ENUM_VALUE)} - {STRING})
_EXPONENT: Final = np.uint64(0x7FF0000000000000)
_FRACTION: Final = np.uint64(0x000FFFFFFFFFFFFF)


class Others(Exception):
    """Events of which one column is not to be made with those of most."""

    def __init__(self, rows: Places) -> None:
        super().__init__(rows)
        self.rows = rows


class ValueRun(NamedTuple):
    """Values of one column: where each begins, where its event ends, and which event that is; all ascending."""

    at: Places
    limit: Places
    rows: Places

    def only(self, which: Places) -> ValueRun:
        return ValueRun(self.at[which], self.limit[which], self.rows[which])


class ReadColumn(NamedTuple):
    """A column, and where each of its values ends."""

    shape: Shape | None
    array: pa.Array
    ends: Places


@dataclass(frozen=True, slots=True)
class EventBytes:
    """Bytes of events one after the other, and ``PADDING``; as numbers that may begin at any of them."""

    raw: bytes
    u8: NDArray[np.uint8]
    u16: NDArray[np.uint16]
    u32: NDArray[np.uint32]
    u64: NDArray[np.uint64]
    _steps: list[int]  # that were made; in a list, as the rest never changes

    @classmethod
    def of(cls, raw: bytes) -> EventBytes:
        padded = raw + bytes(PADDING)
        u8, u16, u32, u64 = [
            np.ndarray((len(padded) - size + 1,), f">u{size}", padded, strides=(1,)) for size in (1, 2, 4, 8)
        ]
        return cls(padded, u8, u16, u32, u64, [0])

    def _step(self, step: int, left: Places, of: int) -> None:
        """Count a look at the next elements of the containers of rows ``left``, once of so many.

        Raises Others if these are too few, or all together were too many: whoever sends one long value among many
        short ones, or vectors in vectors, would have each of its elements cost as much as one of all events.
        """
        self._steps[0] += 1
        if self._steps[0] > STEPS_MAX or (step >= _LONE_STEPS and _LONE_SHARE * len(left) < of):
            raise Others(left)

    def sizes(self, run: ValueRun) -> tuple[Places, Places]:
        """Return the lengths that stand at these places, and where what they are lengths of begins."""
        found = self.u8[run.at].astype(np.int64)
        if not len(found) or found.max() < _SMALL:
            return found, run.at + 1
        at = run.at + 1
        more = np.flatnonzero(found >= _SMALL)
        found[more] &= _SMALL - 1
        for shift in range(7, 7 * _VARBYTE_MAX, 7):
            digits = self.u8[np.minimum(at[more], len(self.u8) - 1)].astype(np.int64)
            found[more] |= (digits & (_SMALL - 1)) << shift
            at[more] += 1
            more = more[digits >= _SMALL]
            if not len(more):
                break
        else:
            raise Others(run.rows[more])
        refuse(run.rows, found > run.limit - at)  # each element of a container has a byte at least
        return found, at

    def read(self, run: ValueRun, depth: int) -> ReadColumn:
        """Return the values of a column, which lie in ``depth`` containers. Raises Others."""
        if not len(run.at):
            return ReadColumn(None, pa.nulls(0), run.at)
        refuse(run.rows, run.at >= run.limit)
        tags = self.u8[run.at]
        tag = int(tags[0])
        if not (tags == tag).all():
            counts = np.bincount(tags, minlength=256)
            counts[NONE] = 0
            tag = int(counts.argmax())
            present = tags == tag
            refuse(run.rows, ~present & (tags != NONE))
            index = np.flatnonzero(present)
            found = self._typed(tag, run.only(index), depth)
            ends = run.at + 1
            ends[index] = found.ends
            places = np.cumsum(present) - 1
            return ReadColumn(found.shape, found.array.take(pa.array(places, mask=~present)), ends)
        if tag == NONE:
            return ReadColumn(None, pa.nulls(len(tags)), run.at + 1)
        return self._typed(tag, run, depth)

    def _typed(self, tag: int, run: ValueRun, depth: int) -> ReadColumn:
        if tag > VECTOR:
            raise Others(run.rows)
        at = run.at + 1
        if tag in _FIXED:
            return ReadColumn(Shape(tag), self._fixed(tag, run._replace(at=at)), at + _SIZES[tag])
        sizes, at = self.sizes(run._replace(at=at))
        if tag < SET:
            ends = at + sizes
            refuse(run.rows, ends > run.limit)
            return ReadColumn(Shape(tag), texts(self._pieces(at, ends)), ends)
        if depth >= VALUE_DEPTH_MAX:
            raise Others(run.rows)
        run = run._replace(at=at)
        if tag == VECTOR:
            return self._vectors(run, sizes, depth)
        if tag == SET:
            return self._sets(run, sizes, depth)
        return self._tables(run, sizes, depth)

    # -- scalars ----------------------------------------------------------------------------------

    def _fixed(self, tag: int, run: ValueRun) -> pa.Array:
        at = run.at
        kind = scalar_types()[tag]
        if tag == order.BOOLEAN:
            return pa.array(self.u8[at] != 0)
        if tag == order.COUNT:
            return pa.array(self._u64(at))
        if tag == order.REAL:
            return pa.array(self._reals(at))
        if tag == order.ADDRESS:
            return self._addresses(at)
        if tag == order.SUBNET:
            return self._subnets(run)
        if tag == order.PORT:
            protocols = self.u8[at + 2]
            refuse(run.rows, protocols >= len(PROTOCOLS))
            parts = [pa.array(self.u16[at].astype(np.uint16)), pa.array(PROTOCOLS).take(pa.array(protocols))]
            return pa.StructArray.from_arrays(parts, fields=list(kind))
        return pa.array(self._u64(at).view(np.int64)).view(kind)

    def _u64(self, at: Places) -> NDArray[np.uint64]:
        return self.u64[at].astype(np.uint64)

    def _reals(self, at: Places) -> NDArray[np.float64]:
        bits = self._u64(at)
        found = bits.view(np.float64)
        exponent, fraction = bits & _EXPONENT, bits & _FRACTION
        for odd in np.flatnonzero((exponent == _EXPONENT) | ((exponent == 0) & (fraction != 0))):
            found[odd] = unpack_real(self.raw[at[odd] : at[odd] + len(NAN)])
        return found

    def _addresses(self, at: Places) -> pa.Array:
        v4 = (self.u64[at] == 0) & (self.u32[at + 8] == int.from_bytes(V4_PREFIX[8:]))
        if v4.all():
            return self._v4(at)
        if not v4.any():
            return self._v6(at)
        both = pa.concat_arrays([self._v4(at[v4]), self._v6(at[~v4])])
        return both.take(pa.array(np.where(v4, np.cumsum(v4) - 1, v4.sum() + np.cumsum(~v4) - 1)))

    def _v4(self, at: Places) -> pa.Array:
        coded = pa.array(self.u32[at + 12].astype(np.uint32)).dictionary_encode()
        numbers = coded.dictionary.to_numpy()
        octets = [_octets().take(pa.array((numbers >> shift & 0xFF).astype(np.uint8))) for shift in (24, 16, 8, 0)]
        return pc.binary_join_element_wise(*octets, ".").take(coded.indices)

    def _v6(self, at: Places) -> pa.Array:
        coded = self._blocks(at, 16)
        return pa.array([str(Address(each)) for each in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)

    def _subnets(self, run: ValueRun) -> pa.Array:
        coded = self._blocks(run.at, 17)
        found: list[str | None] = []
        for each in coded.dictionary.to_pylist():
            try:
                found.append(str(decode(bytes((order.SUBNET,)) + each)))
            except InvalidData:
                found.append(None)
        array = pa.array(found, pa.string()).take(coded.indices)
        if array.null_count:
            raise Others(run.rows[array.is_null().to_numpy(zero_copy_only=False)])
        return array

    def _blocks(self, at: Places, size: int) -> pa.DictionaryArray:
        """Return so many bytes at each place, each different block once."""
        blocks = self.u8[at[:, None] + np.arange(size)]
        fixed = pa.Array.from_buffers(pa.binary(size), len(at), [None, pa.py_buffer(blocks.tobytes())])
        return fixed.dictionary_encode()

    def _pieces(self, at: Places, ends: Places) -> pa.BinaryArray:
        bounds = np.empty(2 * len(at) + 1, np.int32)
        bounds[0:-1:2] = at
        bounds[1::2] = ends
        bounds[-1] = ends[-1]
        both = pa.Array.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self.raw)]
        )  # what lies between two of them counts as a piece too
        return both.take(pa.array(np.arange(0, 2 * len(at), 2, dtype=np.int32)))

    # -- containers -------------------------------------------------------------------------------

    def _vectors(self, run: ValueRun, counts: Places, depth: int) -> ReadColumn:
        count = int(counts[0])
        if count <= FIELDS_MAX and (counts == count).all():
            fields, at = [], run.at
            for _ in range(count):
                fields.append(self.read(run._replace(at=at), depth + 1))
                at = fields[-1].ends
            shape = Shape(VECTOR, tuple([each.shape for each in fields]))
            element = listed(shape)
            if isinstance(element, type):
                kind = struct_type([each.array.type for each in fields])
                return ReadColumn(shape, pa.StructArray.from_arrays([f.array for f in fields], fields=list(kind)), at)
            if count == 0:
                return ReadColumn(shape, _lists(counts, pa.nulls(0)), at)
            if all(each.array.type == fields[0].array.type for each in fields):
                turns = np.arange(count * len(counts)).reshape(count, -1).T.ravel()
                return ReadColumn(shape, _lists(counts, pa.concat_arrays([f.array for f in fields]).take(turns)), at)
        else:
            shape = Shape(LIST, (None,))
        elements, ends = self._elements(run, counts, 1)
        found = self.read(elements, depth + 1)
        if shape.tag == LIST:
            shape = Shape(LIST, (found.shape,))
        return ReadColumn(shape, _lists(counts, found.array), ends)

    def _sets(self, run: ValueRun, counts: Places, depth: int) -> ReadColumn:
        elements, ends = self._elements(run, counts, 1)
        found = self.read(elements, depth + 1)
        self._check_order(elements, counts)
        return ReadColumn(Shape(SET, (found.shape,)), _lists(counts, found.array), ends)

    def _tables(self, run: ValueRun, counts: Places, depth: int) -> ReadColumn:
        both, ends = self._elements(run, counts, 2)
        keys, items = both.only(np.s_[::2]), both.only(np.s_[1::2])
        found, values = self.read(keys, depth + 1), self.read(items, depth + 1)
        if len(keys.at) and found.array.null_count:
            raise Others(keys.rows[found.array.is_null().to_numpy(zero_copy_only=False)])
        self._check_order(keys, counts)
        kind = map_type(found.array.type, values.array.type)
        array = pa.MapArray.from_arrays(_offsets(counts), found.array.cast(kind.key_type), values.array, type=kind)
        return ReadColumn(Shape(TABLE, (found.shape, values.shape)), array, ends)

    def _elements(self, run: ValueRun, counts: Places, width: int) -> tuple[ValueRun, Places]:
        counts = width * counts
        refuse(run.rows, counts > run.limit - run.at)
        rows, limit = np.repeat(run.rows, counts), np.repeat(run.limit, counts)
        first = np.cumsum(counts) - counts
        if not len(rows):
            return ValueRun(rows, limit, rows), run.at
        tag = int(self.u8[run.at[counts.argmax()]])
        if width == 1 and tag in _FIXED:
            size = 1 + int(_SIZES[tag])
            at = np.repeat(run.at - size * first, counts) + size * np.arange(len(rows))
            if (at < limit).all() and (self.u8[at] == tag).all():
                return ValueRun(at, limit, rows), run.at + size * counts
        at, ends = np.empty(len(rows), np.int64), run.at.copy()
        which = np.arange(len(counts))
        for step in range(int(counts.max())):
            which = which[counts[which] > step]
            self._step(step, run.rows[which], len(counts))
            at[first[which] + step] = ends[which]
            ends[which] = self._skip(ValueRun(ends[which], run.limit[which], run.rows[which]))
        return ValueRun(at, limit, rows), ends

    def _skip(self, run: ValueRun) -> Places:
        at = run.at.copy()
        left = np.ones(len(at), np.int64)
        which = np.arange(len(at))
        for step in itertools.count():
            self._step(step, run.rows[which], len(at))
            here = ValueRun(at[which], run.limit[which], run.rows[which])
            refuse(here.rows, here.at >= here.limit)
            tags = self.u8[here.at]
            refuse(here.rows, tags > VECTOR)
            left[which] -= 1
            at[which] += 1 + _SIZES[tags]
            sized = (tags == STRING) | (tags >= order.ENUM_VALUE)
            if sized.any():
                inside = which[sized]
                sizes, begins = self.sizes(ValueRun(at[inside], run.limit[inside], run.rows[inside]))
                refuse(here.rows[sized], sizes > run.limit[inside] - begins)
                contains = tags[sized] >= SET
                at[inside] = begins + np.where(contains, 0, sizes)
                left[inside] += np.where(contains, np.where(tags[sized] == TABLE, 2 * sizes, sizes), 0)
            which = which[left[which] > 0]
            if not len(which):
                break
        return at

    def _check_order(self, run: ValueRun, counts: Places) -> None:
        """Check that members of sets, or keys, come in order and each once; raise Others for those that do not."""
        of = np.repeat(np.arange(len(counts)), counts)
        inside = of[1:] == of[:-1]
        if not inside.any():
            return
        tags = self.u8[run.at]
        tag = int(tags[0])
        rising = self._rising(tag, run.at + 1) if (tags == tag).all() else None
        if rising is None:
            raise Others(run.rows[1:][inside])
        refuse(run.rows[1:], inside & ~rising)

    def _rising(self, tag: int, at: Places) -> NDArray[np.bool_] | None:
        """Test that each of these contents is greater than the one before it; None where that is not found out here."""
        if tag in (order.COUNT, order.INTEGER, order.TIMESTAMP, order.TIMESPAN):
            numbers = self._u64(at)
            if tag != order.COUNT:
                return np.asarray(numbers.view(np.int64)[1:] > numbers.view(np.int64)[:-1])
            return np.asarray(numbers[1:] > numbers[:-1])
        if tag == order.ADDRESS:
            high, low = self._u64(at), self._u64(at + 8)
            return np.asarray((high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1])))
        if tag == order.PORT:
            ports = self.u32[at] >> 8
            return np.asarray(ports[1:] > ports[:-1])
        if tag in (STRING, order.ENUM_VALUE):
            sizes, begins = self.sizes(ValueRun(at, np.full(len(at), len(self.raw)), at))
            pieces = self._pieces(begins, begins + sizes)
            return np.asarray(pc.greater(pieces[1:], pieces[:-1]).to_numpy(zero_copy_only=False))
        return None


def texts(pieces: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as text; where they are not UTF-8 as ``\\xNN``."""
    try:
        return pieces.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each.decode("utf-8", "backslashreplace") for each in pieces.to_pylist()], pa.string())


def refuse(rows: Places, which: NDArray[np.bool_]) -> None:
    """Raise Others for those of ``rows`` for which ``which`` is true, if there are any."""
    if which.any():
        raise Others(rows[which])


def _offsets(counts: Places) -> pa.Array:
    found = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=found[1:])
    return pa.array(found)


def _lists(counts: Places, elements: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(_offsets(counts), elements, type=list_type(elements.type))


@cache
def _octets() -> pa.Array:
    return pa.array(list(map(str, range(256))))
