"""Asks the permissions for each message that comes from a neighbour or goes to one; counts and tells what they refuse.

A message is judged where it enters the mesh, by who is beside us: what it sends as its own has to be allowed to it, and
what it passes on of others. Messages are not signed, so nobody else can. It is judged once more where it goes to a
neighbour. What is refused is taken and confirmed, as its sender would keep it for ever, and goes no further.

``Refusals`` counts what the permissions refused to neighbours.

Shows each message that passes from one neighbour to another to a function, which may change it or hold it back.

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
from dataclasses import dataclass
from typing import Final, TypeAlias

from chappe.defaults import REFUSALS_MAX
from chappe.mesh.filters import Filter
from chappe.mesh.flows import (
    FLOW_DATA,
    HEAD_BYTES,
    check_size,
    inner,
    messages_in,
    parse_publications,
    peek,
    unpack_head,
    with_payloads,
)
from chappe.mesh.forwarding.losses import Drops, Losses, LossReason
from chappe.mesh.links.link import Link
from chappe.mesh.messages import COMMAND, DATA, ID_BYTES, LOSS, RESERVED_TOPIC, Message
from chappe.mesh.rules import COMMAND_HEAD, MeshRules
from chappe.permissions.rules import FORWARD

# Returns the payload to pass on: that of the message, which is the same object then, another one, or None for nothing.
Shows: TypeAlias = Callable[[Message], bytes | None]
FAILED: Final = "that on_forward failed on"


class ForwardFilter:
    """Shows passing messages to a function; while ``shows`` is None all pass unseen. ``originals``: links to originals,
    by peer: what goes on to them, too, is shown once nevertheless.
    """

    def __init__(self, drops: Drops, originals: Mapping[bytes, Link]) -> None:
        self.shows: Shows | None = None
        self.filtered = 0  # messages that were held back
        self._drops = drops
        self._originals = originals
        self._origin = b""  # of the body that was shown last, and what became of its messages, by number
        self._shown: dict[int, bytes | None] = {}

    def bodies(self, body: bytes, sender: bytes) -> list[bytes] | None:
        """Show the messages of a body of PUBLICATIONS; return the bodies that are to go on, or None for itself."""
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
        """Return the message as it goes on from or to an original; None if it does not."""
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


OTHERS: Final = ""  # beyond the bound


@dataclass(frozen=True, slots=True)
class Refusal:
    """The number of refusals of one kind to an identity: ``verb`` is one of the permissions, or ``join``."""

    identity: str
    verb: str
    count: int


class Refusals:
    """Counts of one endpoint, which only rise. ``heard`` is told of each: identity, verb, topic or none, how often."""

    def __init__(self) -> None:
        self.heard: Callable[[str, str, bytes, int], None] | None = None
        self.total = 0
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, identity: str, verb: str, count: int = 1, topic: bytes = b"") -> None:
        """Count a refusal; a ``topic`` ends in ``*`` if it is a whole prefix."""
        if self.heard is not None:
            self.heard(identity, verb, topic, count)
        key = identity, verb
        if key not in self._counts and len(self._counts) >= REFUSALS_MAX:
            key = OTHERS, verb
        self._counts[key] = self._counts.get(key, 0) + count
        self.total += count

    def listed(self) -> list[Refusal]:
        return [Refusal(*key, count) for key, count in sorted(self._counts.items())]


_NOBODY_ELSE: Final[frozenset[bytes]] = frozenset()


class MessageJudge:
    """Applies the permissions to messages. ``rules`` is None where everything is allowed, and then callers skip it."""

    def __init__(self, own: bytes, losses: Losses, drops: Drops) -> None:
        self.rules: MeshRules | None = None
        self.refusals = Refusals()
        self._own = own
        self._losses = losses
        self._drops = drops

    def takes(self, link: Link, body: bytes) -> bool:
        """Return whether a neighbour may send this well-formed body of FLOWS; if not, its origin is told."""
        rules = self.rules
        assert rules is not None
        origin, _, _, type, flags, length, _ = unpack_head(body)
        if type == FLOW_DATA and not flags:  # nearly always
            lacking = rules.publishing if origin == link.peer_id else rules.forwarding
            if not lacking(link.identity, body[HEAD_BYTES : HEAD_BYTES + length]):
                return True
        published = inner(body)
        origin, kind, topic, at = peek(published)
        if kind == LOSS:  # a word on what others sent
            return True
        if origin == link.peer_id == body[:ID_BYTES]:
            head = published[at : at + COMMAND_HEAD] if kind == COMMAND else b""
            verb = rules.sending(link.identity, kind, topic, head)
        else:
            verb = rules.forwarding(link.identity, topic)
        if not verb:
            return True
        count = messages_in(published)
        self._refuse(f"from {link.identity}", link, verb, count, topic)
        self._losses.add(self._own, origin, topic, LossReason.NOT_ALLOWED, _NOBODY_ELSE, count)
        return False

    def takes_from_original(self, link: Link, kind: int, topic: bytes, payload: bytes) -> bool:
        """Return whether an original may send this; a refusal is not reported to it."""
        if self.rules is None:
            return True
        verb = self.rules.sending(link.identity, kind, topic, payload[:COMMAND_HEAD])
        if verb:
            self._refuse(f"from {link.identity}", link, verb, 1, topic)
        return not verb

    def gives(self, link: Link, topic: bytes, count: int = 1) -> bool:
        verb = "" if self.rules is None else self.rules.getting(link.identity, topic)
        if verb:
            self._refuse(f"to {link.identity}", link, verb, count, topic)
        return not verb

    def gives_on(self, link: Link, body: bytes) -> bool:
        assert self.rules is not None
        _, _, _, type, flags, length, _ = unpack_head(body)
        if type == FLOW_DATA and not flags:
            topic = body[HEAD_BYTES : HEAD_BYTES + length]
            if not self.rules.getting(link.identity, topic):
                return True
        published = inner(body)
        _, kind, topic, _ = peek(published)
        return kind == LOSS or self.gives(link, topic, messages_in(published))

    def passes_on(self, link: Link) -> bool:
        """Return whether a neighbour may pass on anything of others."""
        return self.rules is None or self.rules.forwards(link.identity)

    def may_tell(self, link: Link) -> bool:
        """Return whether a neighbour may tell the link states of others."""
        if self.passes_on(link):
            return True
        self.refusals.add(link.identity, FORWARD)
        return False

    def may_get(self, link: Link, topic: bytes) -> bool:
        """Return whether a message of this topic could be sent to a neighbour, without counting a refusal."""
        return self.rules is None or not self.rules.getting(link.identity, topic)

    def subscribed(self, link: Link, wanted: Filter) -> Filter:
        """Return the part of a neighbour's subscription that counts."""
        if self.rules is None:
            return wanted
        verbs = [self.rules.wanting(link.identity, each) for each in wanted]
        for each, verb in zip(wanted, verbs, strict=True):
            if verb:
                self.refusals.add(link.identity, verb, 1, each + b"*")
        return tuple([each for each, verb in zip(wanted, verbs, strict=True) if not verb])

    def _refuse(self, where: str, link: Link, verb: str, count: int, topic: bytes) -> None:
        self.refusals.add(link.identity, verb, count, topic)
        self._drops.add(f"{where}, which may not {verb} them", count)
