"""The shape of a command of a data store: its kind and the shapes of its fields; and a command of a given shape.

Fields whose values have shapes keep them (``chappe.data.shapes``); a list is its count as u32, with the shapes of its
members if they are values; the tag in an ``Add`` is kept as it is. Numbers, entities and expiries are left out: a
command that is made of a shape has zeros there, and no expiry, so that it is 8 bytes shorter than one that had one.

Kinds are those of today's wire (``commands``). Recordings that the original made in 2021 and before have other numbers.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from chappe.data.binary import pack_varbyte, parse_varbyte
from chappe.data.order import VECTOR
from chappe.data.shapes import CutOff, add_shape, add_value, skip_shape
from chappe.defaults import VALUE_ELEMENTS_MAX
from chappe.errors import InvalidData
from chappe.kv.entity import ENTITY_BYTES

_U32: Final = Struct(">I")
_HEAD: Final = 8 + 2 * ENTITY_BYTES  # sequence number, sender, receiver
_EXPIRY_BYTES: Final = 8

# The fields of each kind: v a value, e an optional expiry, t the tag of a type, s a list of u64, p a list of pairs of
# values; the others leave no trace.
_KINDS: Final[dict[int, str]] = {
    0: "vven",  # Put
    1: "vvenqn",  # PutUnique
    2: "bnqn",  # PutUniqueResult
    3: "vn",  # Erase
    4: "vn",  # Expire
    5: "vvten",  # Add
    6: "vven",  # Subtract
    7: "n",  # Clear
    8: "qh",  # AttachWriter
    9: "q",  # Keepalive
    10: "q",  # CumulativeAck
    11: "s",  # MissingEvents
    12: "qhp",  # AckClone
    13: "q",  # RetransmitFailed
}
_PLAIN: Final = {"n": ENTITY_BYTES, "q": 8, "h": 2, "b": 1}  # bytes of fields that leave no trace


def add_command_shape(payload: bytes, shape: bytearray) -> None:
    """Append the shape of a command; raises InvalidData for other bytes, or a command that only ends of chappe send."""
    try:
        kind = payload[_HEAD]
        pos = _HEAD + 1
        shape.append(kind)
        for field in _fields(kind):
            if field == "v":
                pos = add_shape(payload, pos, shape)
            elif field in _PLAIN:
                pos += _PLAIN[field]
            elif field == "e":
                pos += 1 + _EXPIRY_BYTES * bool(payload[pos])
            elif field == "t":
                shape.append(payload[pos])
                pos += 1
            else:
                count, pos = parse_varbyte(payload, pos)
                shape += _U32.pack(count)
                if field == "s":
                    pos += 8 * count
                else:
                    for _ in range(_checked(count)):
                        pos = add_shape(payload, add_shape(payload, pos, shape), shape)
    except IndexError:
        raise InvalidData(f"a store command is cut off after {len(payload)} bytes") from None
    if pos != len(payload):
        raise InvalidData(f"a store command has {len(payload)} bytes, its fields need {pos}")


def skip_command_shape(shape: bytes, start: int) -> int:
    """Return the end of a command's shape; raises InvalidData for other bytes, CutOff if it is not all there."""
    if start >= len(shape):
        raise _cut_off(shape)
    pos = start + 1
    for field in _fields(shape[start]):
        if field == "v":
            pos = skip_shape(shape, pos)
        elif field == "t":
            if pos >= len(shape):
                raise _cut_off(shape)
            if shape[pos] > VECTOR:
                raise InvalidData(f"type {shape[pos]} in a shape is unknown")
            pos += 1
        elif field in "sp":
            if pos + _U32.size > len(shape):
                raise _cut_off(shape)
            count = _checked(_U32.unpack_from(shape, pos)[0])
            pos += _U32.size
            for _ in range(count if field == "p" else 0):
                pos = skip_shape(shape, skip_shape(shape, pos))
    return pos


def add_command(shape: bytes, start: int, payload: bytearray) -> None:
    """Append a command of a shape that ``skip_command_shape`` has found sound. Raises as ``add_value``."""
    payload += bytes(_HEAD)
    payload.append(shape[start])
    pos = start + 1
    for field in _fields(shape[start]):
        if field == "v":
            pos = add_value(shape, pos, payload)
        elif field in _PLAIN:
            payload += bytes(_PLAIN[field])
        elif field == "e":
            payload.append(0)
        elif field == "t":
            payload.append(shape[pos])
            pos += 1
        else:
            (count,) = _U32.unpack_from(shape, pos)
            pos += _U32.size
            payload += pack_varbyte(count)
            if field == "s":
                payload += bytes(8 * count)
            else:
                for _ in range(count):
                    pos = add_value(shape, add_value(shape, pos, payload), payload)


def _fields(kind: int) -> str:
    fields = _KINDS.get(kind)
    if fields is None:
        raise InvalidData(f"a store command of kind {kind} is not recorded")
    return fields


def _checked(count: int) -> int:
    if count > VALUE_ELEMENTS_MAX:
        raise InvalidData(f"a list has more than {VALUE_ELEMENTS_MAX:,} members")
    return count


def _cut_off(shape: bytes) -> CutOff:
    return CutOff(f"a shape is cut off after {len(shape)} bytes")
