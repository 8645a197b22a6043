"""The form in which sealed messages travel in the mesh.

To anybody without keys it is an event of Zeek, which programs of Broker pass on and Zeek ignores where no script has a
handler for it: its name is ``chappe_sealed``, and its only argument is a string, what ``messages`` has in Base64. The
content of what is sealed as ``EVENTS`` is one value of the topic after the other, each as a u32 length and its bytes.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Final

from chappe.data.binary import encode, pack_varbyte, parse_varbyte
from chappe.data.scalars import Count
from chappe.errors import ProtocolError

NAME: Final = "chappe_sealed"
BEGIN: Final = encode((Count(1), Count(1), (NAME, ("",))))[:-1]  # all before the length of the string
VALUES_MAX: Final = 256  # that are sealed together ...
VALUES_BYTES_MAX: Final = 1 << 16  # ... or so many bytes of them, and at least one


def wrap(raw: bytes) -> bytes:
    text = binascii.b2a_base64(raw, newline=False)
    return b"".join((BEGIN, pack_varbyte(len(text)), text))


def is_sealed(payload: bytes) -> bool:
    """True if a payload is, or says that it is, what was sealed."""
    return payload.startswith(BEGIN)


def unwrap(payload: bytes) -> bytes:
    """Return the sealed bytes of a payload. Raises ProtocolError."""
    size, at = parse_varbyte(payload, len(BEGIN))
    if at + size != len(payload):
        raise ProtocolError("a sealed message that is cut off, or has something behind it")
    try:
        raw = binascii.a2b_base64(payload[at:], strict_mode=True)
    except binascii.Error:
        raise ProtocolError("a sealed message that is not in Base64") from None
    if wrap(raw) != payload:
        raise ProtocolError("a sealed message that is not written as it should be")
    return raw


def pack_values(payloads: Sequence[bytes]) -> bytes:
    return b"".join([part for each in payloads for part in (len(each).to_bytes(4), each)])


def parse_values(content: bytes) -> list[bytes]:
    """The values in it. Raises ProtocolError: a member has sealed something else."""
    found: list[bytes] = []
    at = 0
    while at < len(content):
        begin = at + 4
        at = begin + int.from_bytes(content[at:begin])
        if at > len(content) or len(found) >= VALUES_MAX:
            raise ProtocolError("sealed events that are cut off, or too many")
        found.append(content[begin:at])
    if not found:
        raise ProtocolError("sealed events of which there are none")
    return found


def in_lots(payloads: Sequence[bytes]) -> list[list[bytes]]:
    """Values in lots that are sealed together."""
    lots: list[list[bytes]] = []
    size = 0
    for each in payloads:
        if not lots or len(lots[-1]) >= VALUES_MAX or size + len(each) > VALUES_BYTES_MAX:
            lots.append([])
            size = 0
        lots[-1].append(each)
        size += len(each)
    return lots
