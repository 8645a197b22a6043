"""Lengths and counts as the original writes them: 7 bits per byte, the lowest first, the high bit says "more"."""

from __future__ import annotations

from typing import Final

from chappe.errors import ProtocolError

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
