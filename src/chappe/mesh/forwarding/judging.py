"""Asks the permissions for each message that comes from a neighbour or goes to one; counts and tells what they refuse.

A message is judged where it enters the mesh, by who is beside us: what it sends as its own has to be allowed to it, and
what it passes on of others. Messages are not signed, so nobody else can. It is judged once more where it goes to a
neighbour. What is refused is taken and confirmed, as its sender would keep it for ever, and goes no further.
"""

from __future__ import annotations

from typing import Final

from chappe.mesh.filters import Filter
from chappe.mesh.flows import FLOW_DATA, HEAD_BYTES, inner, messages_in, peek, unpack_head
from chappe.mesh.forwarding.losses import Drops, Losses, LossReason
from chappe.mesh.links.link import Link
from chappe.mesh.messages import COMMAND, ID_BYTES, LOSS
from chappe.mesh.refusals import Refusals
from chappe.mesh.rules import COMMAND_HEAD, MeshRules
from chappe.permissions.rules import FORWARD

_NOBODY_ELSE: Final[frozenset[bytes]] = frozenset()


class MessageJudge:
    """Of one endpoint. ``rules`` is None where everybody may everything: then nobody is to ask."""

    def __init__(self, own: bytes, losses: Losses, drops: Drops) -> None:
        self.rules: MeshRules | None = None
        self.refusals = Refusals()
        self._own = own
        self._losses = losses
        self._drops = drops

    def takes(self, link: Link, body: bytes) -> bool:
        """Whether a neighbour may send this, of FLOWS and sound. Its origin is told otherwise."""
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
        """Whether an original may send this, which is told nothing."""
        if self.rules is None:
            return True
        verb = self.rules.sending(link.identity, kind, topic, payload[:COMMAND_HEAD])
        if verb:
            self._refuse(f"from {link.identity}", link, verb, 1, topic)
        return not verb

    def gives(self, link: Link, topic: bytes, count: int = 1) -> bool:
        """Whether messages may be sent to a neighbour."""
        verb = "" if self.rules is None else self.rules.getting(link.identity, topic)
        if verb:
            self._refuse(f"to {link.identity}", link, verb, count, topic)
        return not verb

    def gives_on(self, link: Link, body: bytes) -> bool:
        """The same of a body of FLOWS."""
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
        """Whether a neighbour may pass on anything of others."""
        return self.rules is None or self.rules.forwards(link.identity)

    def may_tell(self, link: Link) -> bool:
        """Whether a neighbour may tell the link states of others."""
        if self.passes_on(link):
            return True
        self.refusals.add(link.identity, FORWARD)
        return False

    def may_get(self, link: Link, topic: bytes) -> bool:
        """As ``gives``, before there is anything to be sent."""
        return self.rules is None or not self.rules.getting(link.identity, topic)

    def subscribed(self, link: Link, wanted: Filter) -> Filter:
        """A neighbour subscribes: what of that counts."""
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
