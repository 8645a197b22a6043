"""Marks: what goes along with a message from one gateway to the next.

Subscribers get a message as it was published. The gateways of a domain that wait for its topic get it once more, each
for itself, with a mark: which gateway took it first, that one's number for it, and how many gateways it has passed.
That ends what would run in a circle while gateways do not agree yet who passes::

    u8 version 1, name of the first gateway 16, u64 number, u16 gateways passed, u16 length of the topic, topic, payload
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from chappe.errors import ProtocolError

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">B16sQHH")
WINDOW: Final = 1024  # numbers of one gateway that are told apart; what is older than the newest by more is refused
_MASK: Final = (1 << WINDOW) - 1


@dataclass(frozen=True, slots=True)
class Marked:
    first: bytes
    number: int
    passed: int
    topic: bytes
    payload: bytes

    def pack(self) -> bytes:
        """The payload of a message on the topic ``MARKED``."""
        head = _HEAD.pack(_VERSION, self.first, self.number, self.passed, len(self.topic))
        return b"".join((head, self.topic, self.payload))


def parse(payload: bytes) -> Marked:
    """The message in a payload; raises ProtocolError."""
    if len(payload) < _HEAD.size:
        raise ProtocolError("a marked message is cut off")
    version, first, number, passed, length = _HEAD.unpack_from(payload)
    end = _HEAD.size + length
    if version != _VERSION or len(payload) < end:
        raise ProtocolError("a marked message is cut off, or of an unknown version")
    return Marked(first, number, passed, payload[_HEAD.size : end], payload[end:])


class SeenMarks:
    """The marks that came: of each gateway the last numbers; of so many gateways, those heard of last."""

    def __init__(self, gateways_max: int) -> None:
        self._max = gateways_max
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()  # highest number; bit n: so far below it

    def __len__(self) -> int:
        return len(self._known)

    def is_new(self, first: bytes, number: int) -> bool:
        """Note a mark; False if it was noted before, or is too old to tell."""
        known = self._known.get(first)
        if known is None:
            while len(self._known) >= self._max:
                self._known.popitem(last=False)
            self._known[first] = (number, 1)
            return True
        highest, bits = known
        if number > highest:
            ahead = number - highest
            known = (number, ((bits << ahead) & _MASK) | 1 if ahead < WINDOW else 1)
        else:
            back = highest - number
            if back >= WINDOW or bits >> back & 1:
                return False
            known = (highest, bits | 1 << back)
        self._known[first] = known
        self._known.move_to_end(first)
        return True
