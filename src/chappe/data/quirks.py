"""Surprising forms of Zeek Broker, reproduced here and nowhere else.

Binary form, reals (``pack_real``, ``unpack_real``):

- +inf is written fff0000000000000 and -inf 7ff0000000000000, each with the sign bit of the other;
- any NaN is written ffffffffffffffff, and only that is read as NaN; other patterns that IEEE has for NaN are read as
  the infinity that their sign bit names;
- subnormal numbers (below 2.2e-308) come out mangled, 5e-324 as -1.6e+293. Zeros and all other numbers are plain IEEE.

JSON form:

- reals have six digits after the point, so 1e-7 becomes 0.000000; infinities and NaN are written ``inf`` and ``nan``,
  which is not JSON (``REAL_FORMAT``, ``repair``);
- in strings ``\\v`` is written so, which is not JSON; other control characters and bytes that are not UTF-8 go out as
  they are (``ESCAPES``, ``repair``);
- times are cut to milliseconds, and before 1970 the milliseconds are 000 (``json_time``).

Text form: reals as in JSON; nothing is quoted, so text alone does not tell a string from another type.
"""

from __future__ import annotations

import math
import re
import struct
from datetime import timedelta
from typing import Final

from chappe.data.scalars import EPOCH, Timestamp

PLUS_INFINITY: Final = bytes.fromhex("fff0000000000000")
MINUS_INFINITY: Final = bytes.fromhex("7ff0000000000000")
NAN: Final = bytes.fromhex("ffffffffffffffff")
NORMAL_MIN: Final = 2.2250738585072014e-308  # from here on to the largest number a real is plain IEEE
NORMAL_MAX: Final = 1.7976931348623157e308

_PLAIN: Final = struct.Struct(">d")
_BITS: Final = 1 << 64
_FRACTION_BITS: Final = 52
_FRACTION: Final = (1 << _FRACTION_BITS) - 1
_EXPONENT: Final = 0x7FF
_BIAS: Final = 1023

REAL_FORMAT: Final = "%f"
ESCAPES: Final = {
    "\\": "\\\\", '"': '\\"', "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"
}  # fmt: skip
# A JSON string, to the end if it has none, or a number that JSON does not have. Every character is looked at once.
_STRINGS_AND_WORDS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|-?\b(?:inf|nan)\b', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\.", re.DOTALL)
_WORDS: Final = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN", "-nan": "NaN"}


def pack_real(value: float) -> bytes:
    """The eight bytes of a real in the binary form."""
    if NORMAL_MIN <= value <= NORMAL_MAX or -NORMAL_MAX <= value <= -NORMAL_MIN or value == 0.0:
        return _PLAIN.pack(value)
    if value != value:
        return NAN
    if math.isinf(value):
        return PLUS_INFINITY if value > 0 else MINUS_INFINITY
    mantissa, exponent = math.frexp(abs(value))  # mantissa in 0.5..1; the original's lies in 1..2
    fraction = int((2.0 * mantissa - 1.0) * (1 << _FRACTION_BITS))
    sign = 1 << 63 if value < 0 else 0
    # The exponent is below what eleven bits hold, and flows into the sign bit.
    return (sign | (exponent - 1 + _BIAS << _FRACTION_BITS) % _BITS | fraction).to_bytes(8, "big")


def unpack_real(packed: bytes) -> float:
    """The real that eight bytes of the binary form stand for."""
    bits = int.from_bytes(packed, "big")
    exponent = bits >> _FRACTION_BITS & _EXPONENT
    fraction = bits & _FRACTION
    if 0 < exponent < _EXPONENT or (exponent == 0 and fraction == 0):
        number: float = _PLAIN.unpack(packed)[0]
        return number
    if packed == NAN:
        return math.nan
    negative = bits >> 63 == 1
    if exponent == _EXPONENT:
        swapped = fraction == 0
        return -math.inf if negative != swapped else math.inf
    size = math.ldexp(1.0 + fraction / (1 << _FRACTION_BITS), -_BIAS)
    return -size if negative else size


def json_time(time: Timestamp) -> str:
    """A timestamp in the JSON form: UTC, to the millisecond."""
    if time < 0:
        seconds, milliseconds = -(-int(time) // 1_000_000_000), 0
    else:
        seconds, milliseconds = divmod(int(time) // 1_000_000, 1_000)
    moment = EPOCH + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}"


def repair(text: str) -> str:
    """Legal JSON for what the original writes: ``inf``, ``nan``, and ``\\v`` in strings."""
    return _STRINGS_AND_WORDS.sub(_repair_one, text)


def _repair_one(match: re.Match[str]) -> str:
    found = match.group()
    if found[0] == '"':
        return _ESCAPE.sub(lambda escape: "\\u000b" if escape.group() == "\\v" else escape.group(), found)
    return _WORDS[found]
