"""Shows each message that passes from one neighbour to another to a function, which may change it or hold it back.

The function belongs to whoever drives the endpoint. It sees messages of data on their way: not what is published here,
not commands of data stores, and no topic that begins with ``<$>``, which are those of endpoints themselves. Subscribers
here get what came. A frame of which nothing is changed goes on as it came; any other one is packed anew, under the same
origin, numbers and time. What is held back is confirmed as if it had arrived, as nobody is to send it again.

A message is shown once for each time that it comes: twice where it is published in two ways or sent around, and then
perhaps changed already. Messages of batches are shown one after the other; what is left of a batch may be several
frames, of which a box that is smaller than a batch may drop some. Of two ways each has its own endpoints, so what is
held back on one may come by the other, and late.

Source: none; Broker passes on everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from chappe.mesh.flows import check_size, parse_publications, with_payloads
from chappe.mesh.forwarding.losses import Drops
from chappe.mesh.links.link import Link
from chappe.mesh.messages import DATA, RESERVED_TOPIC, Message

# Returns the payload to pass on: that of the message, which is the same object then, another one, or None for nothing.
Shows: TypeAlias = Callable[[Message], bytes | None]
FAILED: Final = "that on_forward failed on"


class ForwardFilter:
    """Of one endpoint; while ``shows`` is None everything passes unseen.

    Args:
        originals: Links to originals, by peer: what goes on to them, too, is shown once nevertheless.
    """

    def __init__(self, drops: Drops, originals: Mapping[bytes, Link]) -> None:
        self.shows: Shows | None = None
        self.filtered = 0  # messages that were held back
        self._drops = drops
        self._originals = originals
        self._origin = b""  # of the body that was shown last, and what became of its messages, by number
        self._shown: dict[int, bytes | None] = {}

    def bodies(self, body: bytes, sender: bytes) -> list[bytes] | None:
        """Show the messages of a body of PUBLICATIONS; returns the bodies that are to go on, or None for itself."""
        messages = parse_publications(body, sender)
        first = messages[0]
        if not _is_shown(first):
            return None
        kept: list[tuple[int, bytes]] = []
        changed = False
        self._origin, self._shown = first.origin, {}
        for message in messages:
            payload = self._payload(message)
            changed = changed or payload is not message.payload
            if payload is not None:
                kept.append((message.sequence, payload))
            if self._originals:
                self._shown[message.sequence] = payload
        return with_payloads(body, kept) if changed else None

    def message(self, message: Message) -> Message | None:
        """The message as it goes on from or to an original; None if it does not."""
        if self.shows is None or not _is_shown(message):
            return message
        if message.origin == self._origin and message.sequence in self._shown:
            payload = self._shown.pop(message.sequence)
        else:
            payload = self._payload(message)
        if payload is None or payload is message.payload:
            return message if payload is not None else None
        return Message(
            message.topic, payload, message.kind, message.sender, message.receiver, message.ttl, message.origin,
            message.sequence, message.published, message.place,
        )  # fmt: skip

    def _payload(self, message: Message) -> bytes | None:
        assert self.shows is not None
        try:
            payload = self.shows(message)
            if payload is not None and payload is not message.payload:
                check_size(message.topic, payload)
        except Exception:  # of the application: the function says which, and nothing passes that it has not seen
            self._drops.add(FAILED)
            return None
        if payload is None:
            self.filtered += 1
        return payload


def _is_shown(message: Message) -> bool:
    return message.kind == DATA and not message.topic.startswith(RESERVED_TOPIC)
