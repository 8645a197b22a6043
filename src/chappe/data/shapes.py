"""The shape of a value: its types and sizes without its contents; and a value of a given shape.

A shape is the value's binary form (``chappe.data.binary``) with the contents left out: the type tag; after that of a
string or enum value its length as u32, after that of a container its count as u32 (a table counts pairs) and the shapes
of its members; nothing for the rest. Numbers are big-endian.

A value that is made of a shape has as many bytes as the one that the shape was made of. Members of a set and keys of a
table differ, as they must: those of one shape are numbered, and the number is what they contain.

Source: what Broker's ``meta_data_writer`` writes. Departure: the original fills in random contents; here they are the
same each time, so that two runs send the same bytes.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final

from chappe.data.binary import pack_varbyte, parse_varbyte
from chappe.data.order import ADDRESS, BOOLEAN, ENUM_VALUE, NONE, PORT, REAL, STRING, SUBNET, TABLE, VECTOR
from chappe.defaults import VALUE_BYTES_MAX, VALUE_DEPTH_MAX, VALUE_ELEMENTS_MAX
from chappe.errors import InvalidData, ProtocolError

_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_F64: Final = Struct(">d")
_SIZES: Final = (0, 1, 8, 8, 8, 0, 16, 17, 3, 8, 8)  # of contents, by tag
_STRINGS: Final = (STRING, ENUM_VALUE)
_NUMBERS: Final = 2**32  # more different contents than a container may have members
_STRING_DIGITS: Final = 4  # bytes at the end of a string that tell one from another
_FIRST: Final = b"xyzabcdefghijklmnopqrstuvwABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_LETTERS: Final = _FIRST + bytes([each for each in range(256) if each not in _FIRST])
_V4: Final = bytes(10) + b"\xff\xff"


class CutOff(InvalidData):
    """A shape goes on behind the end of what there is."""


# -- from a value -------------------------------------------------------------------------------------------------


def add_shape(data: bytes, start: int, shape: bytearray) -> int:
    """Append the shape of the value that begins at ``start``; returns where the value ends.

    The contents are not looked at. Raises InvalidData for anything but a value within the bounds.
    """
    pos = start
    seen = 0
    left = [1]  # members to come: of each container around, the innermost last
    try:
        while left:
            if not left[-1]:
                left.pop()
                continue
            left[-1] -= 1
            tag = data[pos]
            pos += 1
            shape.append(tag)
            if tag != STRING and tag < ENUM_VALUE:
                pos += _SIZES[tag]
                continue
            if tag > VECTOR:
                raise InvalidData(f"type {tag} at byte {pos - 1} is unknown")
            count, pos = parse_varbyte(data, pos)
            shape += _U32.pack(count)
            if tag in _STRINGS:
                pos += count
            else:
                seen += _begin(tag, count, left, seen)
    except InvalidData:
        raise
    except (IndexError, ProtocolError):
        raise _cut_off(data) from None
    if pos > len(data):
        raise _cut_off(data)
    return pos


# -- to a value ---------------------------------------------------------------------------------------------------


def skip_shape(shape: bytes, start: int) -> int:
    """Return the end of the shape that begins at ``start``; raises InvalidData for an invalid shape.

    CutOff if that is all that is wrong.
    """
    pos = start
    seen = size = 0
    left = [1]
    try:
        while left:
            if not left[-1]:
                left.pop()
                continue
            left[-1] -= 1
            tag = shape[pos]
            pos += 1
            if tag != STRING and tag < ENUM_VALUE:
                size += 1 + _SIZES[tag]
            elif tag > VECTOR:
                raise InvalidData(f"type {tag} in a shape is unknown")
            else:
                (count,) = _U32.unpack_from(shape, pos)
                pos += _U32.size
                size += 1 + len(pack_varbyte(count))
                if tag in _STRINGS:
                    size += count
                else:
                    seen += _begin(tag, count, left, seen)
            if size > VALUE_BYTES_MAX:
                raise InvalidData(f"a value is larger than the {VALUE_BYTES_MAX:,} bytes that are possible")
    except (IndexError, error):
        raise CutOff(f"a shape is cut off after {len(shape)} bytes") from None
    return pos


def _begin(tag: int, count: int, left: list[int], seen: int) -> int:
    """A container begins; returns how many members it has. Raises InvalidData beyond the bounds."""
    members = 2 * count if tag == TABLE else count
    if seen + members > VALUE_ELEMENTS_MAX:
        raise InvalidData(f"a value has more than {VALUE_ELEMENTS_MAX:,} elements")
    if len(left) > VALUE_DEPTH_MAX:
        raise InvalidData(f"a value is nested deeper than {VALUE_DEPTH_MAX} containers")
    left.append(members)
    return members


def add_value(shape: bytes, start: int, value: bytearray) -> int:
    """Append a value of the shape that begins at ``start``, which ``skip_shape`` has found sound; returns its end.

    Raises InvalidData if a set or table is to have more different members than there are.
    """
    return _add(shape, start, 0, value)


def _add(shape: bytes, start: int, number: int, value: bytearray) -> int:
    """``number`` is which of the values of this shape, from 0 and below their ``_variety``."""
    tag = shape[start]
    pos = start + 1
    value.append(tag)
    if tag != STRING and tag < ENUM_VALUE:
        value += _contents(tag, number)
        return pos
    (count,) = _U32.unpack_from(shape, pos)
    pos += _U32.size
    value += pack_varbyte(count)
    if tag in _STRINGS:
        digits = min(count, _STRING_DIGITS)
        value += _LETTERS[:1] * (count - digits) + number.to_bytes(digits, "big").translate(_LETTERS)
    elif tag == VECTOR:
        for _ in range(count):
            share = 0
            if number:
                number, share = divmod(number, _variety(shape, pos)[0])
            pos = _add(shape, pos, share, value)
    else:
        taken: dict[bytes, int] = {}  # members of each shape
        for _ in range(count):
            end = skip_shape(shape, pos)
            alike = shape[pos:end]
            place = taken.get(alike, 0)
            taken[alike] = place + 1
            which = place + number
            if which:
                variety = _variety(shape, pos)[0]
                if place >= variety:
                    raise InvalidData(f"a set or table of {count} members has only {variety} different ones")
                which %= variety
            pos = _add(shape, pos, which, value)
            if tag == TABLE:
                pos = _add(shape, pos, 0, value)
    return pos


def _contents(tag: int, number: int) -> bytes:
    if tag == NONE:
        return b""
    if tag == BOOLEAN:
        return bytes((number,))
    if tag == REAL:
        return _F64.pack(number)
    if tag == PORT:
        return bytes((number >> 8 & 0xFF, number & 0xFF, number >> 16))
    if tag in (ADDRESS, SUBNET):
        address = _V4 + _U32.pack(number)
        return address if tag == ADDRESS else address + b"\x80"
    return _U64.pack(number)


def _variety(shape: bytes, start: int) -> tuple[int, int]:
    """Return the number of distinct values of a shape, capped, and the end of the shape."""
    tag = shape[start]
    pos = start + 1
    if tag != STRING and tag < ENUM_VALUE:
        few = {NONE: 1, BOOLEAN: 2, PORT: 4 << 16}
        return few.get(tag, _NUMBERS), pos
    (count,) = _U32.unpack_from(shape, pos)
    pos += _U32.size
    if tag in _STRINGS:
        return int(256 ** min(count, _STRING_DIGITS)), pos
    found = 1
    members: dict[bytes, tuple[int, int]] = {}  # variety of each shape, and how many there are
    for _ in range(count):
        variety, end = _variety(shape, pos)
        if tag == VECTOR:
            found = min(found * variety, _NUMBERS)
        else:
            alike = shape[pos:end]
            members[alike] = variety, members.get(alike, (0, 0))[1] + 1
            end = skip_shape(shape, end) if tag == TABLE else end
        pos = end
    # members are numbered in a circle, from one further on each time: that differs unless they are all there are
    return max([found, *[variety for variety, taken in members.values() if taken < variety]]), pos


def _cut_off(data: bytes) -> InvalidData:
    return InvalidData(f"a value is cut off after {len(data)} bytes")
