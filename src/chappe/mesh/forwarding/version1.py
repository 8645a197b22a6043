"""Version 1, with originals: messages go to all who announced a filter for them, and know no origin and no number.

Filters are not passed on by originals, so an endpoint announces to each what all of chappe wants, if it is the one who
speaks with that original (see ``topology``). Loops that originals close are found by what comes back (``echoes``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chappe.core import Effect, Report
from chappe.defaults import TTL
from chappe.errors import ProtocolError, UsageError
from chappe.mesh.events import PeerBlocked
from chappe.mesh.filters import EVERYTHING, NOTHING, Filter, minimal
from chappe.mesh.forwarding.echoes import Echoes
from chappe.mesh.forwarding.judging import MessageJudge
from chappe.mesh.links.link import Link
from chappe.mesh.messages import COMMAND, ROUTING_UPDATE, Message, pack_message, pack_routing_update, parse_filter
from chappe.mesh.topology import Topology


class Originals:
    """The links of version 1; ``put`` and ``put_control`` put a frame into the outbox of a link."""

    def __init__(
        self,
        own: bytes,
        topology: Topology,
        judge: MessageJudge,
        put: Callable[[Link, bytes], bool],
        put_control: Callable[[Link, bytes], None],
    ) -> None:
        self.links: dict[bytes, Link] = {}  # by peer
        self.echoes = Echoes()
        self._own = own
        self._topology = topology
        self._judge = judge
        self._put = put
        self._put_control = put_control

    def link_up(self, link: Link, wanted: Filter, announced: Filter) -> Filter:
        """Note an established link; the filters are those of its handshake. Return what it wants and may have."""
        self.links[link.peer_id] = link
        link.filter = wanted
        link.announced = announced
        return self._judge.subscribed(link, wanted)

    def refilter(self) -> None:
        for link in self.links.values():
            if not link.blocked:
                self._topology.set_original_filter(link.peer_id, self._judge.subscribed(link, link.filter))

    def link_down(self, link: Link) -> None:
        del self.links[link.peer_id]
        self.unblock(self.echoes.link_down(link.peer_id))

    def take_control(self, link: Link, message: Message) -> None:
        """Take the changed filter of an original, which sends no other control message."""
        if message.kind != ROUTING_UPDATE:
            raise ProtocolError("a message of a kind that originals do not send")
        link.filter = minimal(parse_filter(message.payload))
        if not link.blocked:
            self._topology.set_original_filter(link.peer_id, self._judge.subscribed(link, link.filter))

    def announce(self) -> list[Effect]:
        actions: list[Effect] = []
        for link in self.links.values():
            wanted = NOTHING if link.blocked else self._topology.announcement(link.peer_id)
            if wanted == link.announced:
                continue
            link.announced = wanted
            try:
                frame = pack_routing_update(self._own, link.peer_id, wanted)
            except UsageError:  # more than a filter can hold: we look again at what comes
                frame = pack_routing_update(self._own, link.peer_id, EVERYTHING)
            self._put_control(link, frame)
            actions.append(link.flush)
        return actions

    def to_all(self) -> tuple[Link, ...]:
        speaks_with = self._topology.speaks_with
        return tuple([link for link in self.links.values() if not link.blocked and speaks_with(link.peer_id)])

    def towards(self, receiver: bytes, kind: int) -> tuple[Link, ...]:
        """Return the links for a message for ``receiver`` alone that an endpoint of chappe has brought us."""
        direct = self.links.get(receiver)
        if direct is not None:  # others bring it to an original too: only one may pass it on
            return (direct,) if self._topology.speaks_with(receiver) else ()
        return self.to_all() if kind == COMMAND and not self._topology.reaches(receiver) else ()

    def publish(
        self, links: Sequence[Link], receiver: bytes, kind: int, topic: bytes, payload: bytes, now: float
    ) -> None:
        frame = pack_message(self._own, receiver, kind, TTL, topic, payload)
        for link in links:
            if self._judge.gives(link, topic):
                self._put(link, frame)
                self.echoes.note(link.peer_id, topic, payload, now, own=True)

    def pass_on(self, links: Sequence[Link], message: Message, ttl: int, but: Link, now: float) -> list[Link]:
        """Send a message that came over the link ``but``; return the links that it goes to."""
        found = [link for link in links if link is not but and self._judge.gives(link, message.topic)]
        if found:
            topic, payload = message.topic, message.payload
            frame = pack_message(self._own, message.receiver, message.kind, ttl, topic, payload)
            for link in found:
                self.echoes.note(link.peer_id, topic, payload, now)
                self._put(link, frame)
        return found

    def block(self, culprit: bytes, other: bytes, now: float) -> list[Effect]:
        """Let nothing pass between us and an original for a while, to cut a loop; settle afterwards."""
        link = self.links.get(culprit)
        if link is None or link.blocked:
            return []
        seconds = self.echoes.block(culprit, other, now)
        link.blocked = True
        self._topology.set_original_filter(culprit, NOTHING)
        self._topology.changed = True
        return [Report(PeerBlocked(culprit, seconds))]

    def unblock(self, originals: Sequence[bytes]) -> None:
        for each in originals:
            link = self.links[each]
            link.blocked = False
            self._topology.set_original_filter(each, self._judge.subscribed(link, link.filter))
            self._topology.changed = True
