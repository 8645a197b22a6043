"""Values to and from bytes: the original's binary format, version 1.

A value is one byte that names its type (the tags of ``chappe.data.order``) and then::

    none        nothing                        port        u16 number, u8 protocol (0 unknown 1 tcp 2 udp 3 icmp)
    boolean     u8, 0 or 1                     timestamp   i64 nanoseconds since 1970 UTC
    count       u64                            timespan    i64 nanoseconds
    integer     i64                            enum value  varbyte length, bytes of the name
    real        8 bytes, see quirks            set         varbyte count, the members in order
    string      varbyte length, bytes          table       varbyte count, key and value by turns, in order of the keys
    address     16 bytes                       vector      varbyte count, the elements
    subnet      16 bytes, u8 length of 128

Numbers are big-endian. A varbyte holds 7 bits per byte, the lowest first, the high bit saying that more follow.

The reader takes sets and tables in any order, booleans other than 1, and varbytes that are longer than needed, as the
original does; it refuses what names no value: truncated or trailing bytes, unknown types and protocols, members or
keys that occur twice, subnets with host bits set, and anything beyond the bounds of ``chappe.defaults``.

This module is written for speed: the commonest types are handled in the loop of the vector that holds them, and no
length is compared with the end of the data before a slice. A slice beyond the end is short, and then either the next
byte is missing (IndexError) or the final position lies past the end; both are noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_not
from struct import Struct, error
from typing import Any, Final, TypeAlias

from chappe.data import order
from chappe.data.convert import to_value
from chappe.data.order import COUNT, INTEGER, PORT, REAL, STRING, TABLE, TIMESPAN, TIMESTAMP, VECTOR, arrange, places
from chappe.data.quirks import NORMAL_MAX, NORMAL_MIN, pack_real, unpack_real
from chappe.data.scalars import PROTOCOLS, Address, Count, EnumValue, Port, Subnet, Timespan, Timestamp, mask
from chappe.data.values import EMPTY_SET, EMPTY_TABLE, Set, Table, Value
from chappe.defaults import VALUE_BYTES_MAX, VALUE_DEPTH_MAX, VALUE_ELEMENTS_MAX
from chappe.errors import ErrorCode, InvalidData, ProtocolError, UnsupportedValue

VARBYTE_MAX: Final = (1 << 32) - 1  # the original keeps them in 32 bits
VARBYTE_BYTES_MAX: Final = 5
_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(128))


def pack_varbyte(number: int) -> bytes:
    """Return the bytes of ``number``, which lies in 0 .. ``VARBYTE_MAX``."""
    assert 0 <= number <= VARBYTE_MAX
    if number < 128:
        return _ONE_BYTE[number]
    packed = bytearray()
    while number > 127:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    return bytes(packed)


def parse_varbyte(body: bytes, at: int) -> tuple[int, int]:
    """Return the number at position ``at`` and the position after it; ProtocolError if it is cut off or too large.

    A number written with more bytes than it needs is taken, as the original takes it, up to five bytes.
    """
    number = shift = 0
    for byte in body[at : at + VARBYTE_BYTES_MAX]:
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 128:
            if number > VARBYTE_MAX:
                break
            return number, at
        shift += 7
    raise ProtocolError("a length is cut off or larger than 32 bits")


Parts: TypeAlias = list[bytes]
Reader: TypeAlias = Callable[[bytes, int, int], tuple[Value, int]]
Writer: TypeAlias = Callable[[Parts, Any, int], None]

_u64: Final = Struct(">Q").unpack_from
_i64: Final = Struct(">q").unpack_from
_f64: Final = Struct(">d").unpack_from
_u16: Final = Struct(">H").unpack_from
_tag_u64: Final = Struct(">BQ").pack
_tag_i64: Final = Struct(">Bq").pack
_tag_f64: Final = Struct(">Bd").pack
_tag_port: Final = Struct(">BHB").pack
_new_int: Final = int.__new__
_new_bytes: Final = bytes.__new__
_new_tuple: Final = tuple.__new__

_SMALL: Final = 128  # lengths below it take one byte
_STRINGS: Final = tuple([bytes((STRING, length)) for length in range(_SMALL)])
_VECTORS: Final = tuple([bytes((VECTOR, length)) for length in range(_SMALL)])
_NONE: Final = bytes((order.NONE,))
_FALSE: Final = bytes((order.BOOLEAN, 0))
_TRUE: Final = bytes((order.BOOLEAN, 1))
_ADDRESS: Final = bytes((order.ADDRESS,))
_SUBNET: Final = bytes((order.SUBNET,))
_REAL: Final = bytes((REAL,))
_ENUM_VALUE: Final = bytes((order.ENUM_VALUE,))
_SET: Final = bytes((order.SET,))
_TABLE: Final = bytes((TABLE,))
_PORT_PROTOCOLS: Final = {name: number for number, name in enumerate(PROTOCOLS)}


# -- reading --------------------------------------------------------------------------------------


def decode(data: bytes | memoryview) -> Value:
    """The value that all of ``data`` is; raises InvalidData."""
    raw = data if type(data) is bytes else bytes(data)
    if len(raw) > VALUE_ELEMENTS_MAX:
        skip(raw, 0)
    try:
        value, end = _READERS[raw[0]](raw, 1, 0)
    except (IndexError, error):
        raise _truncated(raw) from None
    if end != len(raw):
        if end > len(raw):
            raise _truncated(raw)
        raise InvalidData(f"{len(raw) - end} bytes follow a value that ends at byte {end}")
    return value


def decode_at(data: bytes, start: int) -> tuple[Value, int]:
    """The value that begins at ``start``, and where it ends; raises InvalidData."""
    if len(data) - start > VALUE_ELEMENTS_MAX:
        skip(data, start)
    try:
        value, end = _READERS[data[start]](data, start + 1, 0)
    except (IndexError, error):
        raise _truncated(data) from None
    if end > len(data):
        raise _truncated(data)
    return value, end


def skip(data: bytes, start: int) -> int:
    """Return the end of the value that begins at ``start`` without decoding it; raises InvalidData beyond the bounds.

    Only what is needed to find the end is looked at: the value may still turn out invalid when it is decoded.
    """
    pos = start
    budget = 1
    seen = 0
    try:
        while budget:
            budget -= 1
            tag = data[pos]
            pos += 1
            if tag <= PORT or TIMESTAMP <= tag <= TIMESPAN:
                if tag == STRING:
                    size, pos = _varbyte(data, pos)
                    pos += size
                else:
                    pos += _SIZES[tag]
            elif tag == order.ENUM_VALUE:
                size, pos = _varbyte(data, pos)
                pos += size
            elif tag <= VECTOR:
                size, pos = _varbyte(data, pos)
                size = 2 * size if tag == TABLE else size
                budget += size
                seen += size
            else:
                raise _unknown_type(tag, pos - 1)
            if seen > VALUE_ELEMENTS_MAX:
                raise InvalidData(f"a value has more than {VALUE_ELEMENTS_MAX:,} elements")
    except IndexError:
        raise _truncated(data) from None
    if pos > len(data):
        raise _truncated(data)
    if pos - start > VALUE_BYTES_MAX:
        raise InvalidData(f"a value is {pos - start:,} bytes long, at most {VALUE_BYTES_MAX:,} are possible")
    return pos


def _read_real(data: bytes, pos: int, depth: int) -> tuple[Value, int]:
    number: float = _f64(data, pos)[0]
    if NORMAL_MIN <= number <= NORMAL_MAX or -NORMAL_MAX <= number <= -NORMAL_MIN or number == 0.0:
        return number, pos + 8
    return unpack_real(data[pos : pos + 8]), pos + 8


def _read_string(data: bytes, pos: int, depth: int) -> tuple[Value, int]:
    size = data[pos]
    pos += 1
    if size >= _SMALL:
        size, pos = _varbyte(data, pos - 1)
    end = pos + size
    try:
        return data[pos:end].decode(), end
    except UnicodeDecodeError:
        return data[pos:end], end


def _read_subnet(data: bytes, pos: int, depth: int) -> tuple[Value, int]:
    bits = data[pos + 16]
    network = _new_bytes(Address, data[pos : pos + 16])
    length = bits - 96 if network.is_v4 else bits
    if length < 0 or bits > 128 or mask(network, bits) != network:
        raise InvalidData(f"{network} with a prefix of {bits} of 128 bits at byte {pos} is not a subnet")
    return _new_tuple(Subnet, (network, length)), pos + 17


def _read_port(data: bytes, pos: int, depth: int) -> tuple[Value, int]:
    protocol = data[pos + 2]
    if protocol >= len(PROTOCOLS):
        raise InvalidData(f"a port at byte {pos} has the unknown protocol {protocol}")
    return _new_tuple(Port, (_u16(data, pos)[0], PROTOCOLS[protocol])), pos + 3


def _read_enum_value(data: bytes, pos: int, depth: int) -> tuple[Value, int]:
    size, pos = _varbyte(data, pos)
    end = pos + size
    return EnumValue(data[pos:end], "utf-8", "surrogateescape"), end


def _read_set(data: bytes, pos: int, depth: int) -> tuple[Value, int]:
    items, pos = _read_vector(data, pos, depth)
    if not items:
        return EMPTY_SET, pos
    arranged = items
    if len(items) > 1:
        arranged = arrange(items)
        if len(arranged) != len(items):
            raise InvalidData(f"a set that ends at byte {pos} has a member twice")
    return Set.of_arranged(arranged), pos


def _read_table(data: bytes, pos: int, depth: int) -> tuple[Value, int]:
    items, pos = _read_vector(data, pos, depth, 2)
    if not items:
        return EMPTY_TABLE, pos
    keys = items[::2]
    values = items[1::2]
    if len(keys) > 1:
        arranged = arrange(keys)
        if len(arranged) != len(keys):
            raise InvalidData(f"a table that ends at byte {pos} has a key twice")
        if any(map(is_not, arranged, keys)):
            return Table.of_arranged(arranged, tuple([values[place] for place in places(keys)])), pos
    return Table.of_arranged(keys, values), pos


def _read_vector(data: bytes, pos: int, depth: int, width: int = 1) -> tuple[tuple[Value, ...], int]:
    """Count and elements; ``width`` is how many values count as one, 2 in tables."""
    if depth >= VALUE_DEPTH_MAX:
        raise InvalidData(f"a value is nested deeper than {VALUE_DEPTH_MAX} containers")
    count = data[pos]
    pos += 1
    if count >= _SMALL:
        count, pos = _varbyte(data, pos - 1)
    items: list[Value] = []
    for _ in range(width * count):
        tag = data[pos]
        pos += 1
        if tag == STRING and (size := data[pos]) < _SMALL:
            pos += 1
            try:
                items.append(data[pos : pos + size].decode())
            except UnicodeDecodeError:
                items.append(data[pos : pos + size])
            pos += size
        elif tag == COUNT:
            items.append(_new_int(Count, _u64(data, pos)[0]))
            pos += 8
        else:
            item, pos = _READERS[tag](data, pos, depth + 1)
            items.append(item)
    return tuple(items), pos


def _read_unknown(data: bytes, pos: int, depth: int) -> tuple[Value, int]:
    raise _unknown_type(data[pos - 1], pos - 1)


def _varbyte(data: bytes, pos: int) -> tuple[int, int]:
    number = data[pos]
    if number < _SMALL:
        return number, pos + 1
    try:
        return parse_varbyte(data, pos)
    except ProtocolError as problem:
        raise InvalidData(str(problem)) from None


def _truncated(data: bytes) -> InvalidData:
    return InvalidData(f"a value is cut off after {len(data)} bytes")


def _unknown_type(tag: int, pos: int) -> InvalidData:
    return InvalidData(f"type {tag} at byte {pos} is unknown").coded(ErrorCode.INVALID_TAG)


_SIZES: Final = (0, 1, 8, 8, 8, 0, 16, 17, 3, 8, 8)
_READERS: Final[tuple[Reader, ...]] = (
    lambda data, pos, depth: (None, pos),
    lambda data, pos, depth: (data[pos] != 0, pos + 1),
    lambda data, pos, depth: (_new_int(Count, _u64(data, pos)[0]), pos + 8),
    lambda data, pos, depth: (_i64(data, pos)[0], pos + 8),
    _read_real,
    _read_string,
    lambda data, pos, depth: (_new_bytes(Address, data[pos : pos + 16]), pos + 16),
    _read_subnet,
    _read_port,
    lambda data, pos, depth: (_new_int(Timestamp, _i64(data, pos)[0]), pos + 8),
    lambda data, pos, depth: (_new_int(Timespan, _i64(data, pos)[0]), pos + 8),
    _read_enum_value,
    _read_set,
    _read_table,
    _read_vector,
    *[_read_unknown] * (256 - VECTOR - 1),
)


# -- writing --------------------------------------------------------------------------------------


def encode(value: object) -> bytes:
    """The bytes of a value, or of a Python object that ``chappe.data.convert.to_value`` makes one of.

    Raises UnsupportedValue for anything else, and beyond the bounds of ``chappe.defaults``.
    """
    parts: Parts = []
    write = _WRITERS.get(type(value))
    if write is None:
        value = to_value(value)
        write = _WRITERS[type(value)]
    write(parts, value, 0)
    raw = b"".join(parts)
    if len(raw) > VALUE_ELEMENTS_MAX:
        try:
            skip(raw, 0)
        except InvalidData as problem:
            raise UnsupportedValue(str(problem)) from None
    return raw


def _write_integer(parts: Parts, value: int, depth: int) -> None:
    try:
        parts.append(_tag_i64(INTEGER, value))
    except error:
        raise UnsupportedValue(f"{value} is outside of -2**63 to 2**63-1; a Count goes up to 2**64-1") from None


def _write_real(parts: Parts, value: float, depth: int) -> None:
    if NORMAL_MIN <= value <= NORMAL_MAX or -NORMAL_MAX <= value <= -NORMAL_MIN or value == 0.0:
        parts.append(_tag_f64(REAL, value))
    else:
        parts.append(_REAL + pack_real(value))


def _write_string(parts: Parts, value: str, depth: int) -> None:
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise UnsupportedValue(f"{value!r} holds half of a surrogate pair, which UTF-8 cannot carry") from None
    size = len(raw)
    if size < _SMALL:
        parts.append(_STRINGS[size])
    else:
        parts.append(bytes((STRING,)) + pack_varbyte(size))
    parts.append(raw)


def _write_bytes(parts: Parts, value: bytes, depth: int) -> None:
    size = len(value)
    if size < _SMALL:
        parts.append(_STRINGS[size])
    else:
        parts.append(bytes((STRING,)) + pack_varbyte(size))
    parts.append(value)


def _write_enum_value(parts: Parts, value: EnumValue, depth: int) -> None:
    name = value.encode("utf-8", "surrogateescape")
    parts.append(_ENUM_VALUE + pack_varbyte(len(name)))
    parts.append(name)


def _write_set(parts: Parts, value: Set, depth: int) -> None:
    parts.append(_SET + pack_varbyte(len(value)))
    _write_items(parts, value.members, depth)


def _write_table(parts: Parts, value: Table, depth: int) -> None:
    parts.append(_TABLE + pack_varbyte(len(value)))
    _write_items(parts, [each for pair in value.pairs() for each in pair], depth)


def _write_vector(parts: Parts, value: list[object] | tuple[object, ...], depth: int) -> None:
    size = len(value)
    if size < _SMALL:
        parts.append(_VECTORS[size])
    else:
        parts.append(bytes((VECTOR,)) + pack_varbyte(size))
    _write_items(parts, value, depth)


def _write_items(parts: Parts, items: list[object] | tuple[object, ...], depth: int) -> None:
    if depth >= VALUE_DEPTH_MAX:
        raise UnsupportedValue(f"a value is nested deeper than {VALUE_DEPTH_MAX} containers")
    depth += 1
    for item in items:
        kind = type(item)
        if kind is str:
            _write_string(parts, item, depth)  # type: ignore[arg-type]
        elif kind is Count:
            parts.append(_tag_u64(COUNT, item))
        else:
            write = _WRITERS.get(kind)
            if write is None:
                item = to_value(item, depth)
                write = _WRITERS[type(item)]
            write(parts, item, depth)


_WRITERS: Final[dict[type, Writer]] = {
    type(None): lambda parts, value, depth: parts.append(_NONE),
    bool: lambda parts, value, depth: parts.append(_TRUE if value else _FALSE),
    Count: lambda parts, value, depth: parts.append(_tag_u64(COUNT, value)),
    int: _write_integer,
    float: _write_real,
    str: _write_string,
    bytes: _write_bytes,
    Address: lambda parts, value, depth: parts.append(_ADDRESS + value),
    Subnet: lambda parts, value, depth: parts.append(_SUBNET + value.network + bytes((value.wire_length,))),
    Port: lambda parts, value, depth: parts.append(_tag_port(PORT, value[0], _PORT_PROTOCOLS[value[1]])),
    Timestamp: lambda parts, value, depth: parts.append(_tag_i64(TIMESTAMP, value)),
    Timespan: lambda parts, value, depth: parts.append(_tag_i64(TIMESPAN, value)),
    EnumValue: _write_enum_value,
    Set: _write_set,
    Table: _write_table,
    tuple: _write_vector,
    list: _write_vector,
}
