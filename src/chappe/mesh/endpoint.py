"""An endpoint of the mesh: the core that a driver runs.

``peerings`` has what concerns connections; what concerns messages is passed on to ``routing``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chappe.core import Deliver, Effect, Flush
from chappe.defaults import HANDSHAKE_FRAME_BYTES_MAX, MESH_MESSAGE_BYTES_MAX
from chappe.mesh.filters import Filter
from chappe.mesh.forwarding.group_keys import KeysHere
from chappe.mesh.links.link import EndpointOptions, PeerInfo
from chappe.mesh.links.peerings import Peerings
from chappe.mesh.messages import DATA, ID_BYTES, NOBODY, Message
from chappe.mesh.network import Facts

__all__ = ["EndpointCore", "EndpointOptions", "PeerInfo"]


class EndpointCore(Peerings):
    """One endpoint. Every method returns what to do, in order; ``now`` is monotonic seconds.

    ``conn`` are numbers that the driver gives to connections, never twice; ``ticket`` are the application's numbers of
    calls that a ``Resolve`` answers later; ``subscriber`` are its numbers of subscribers.
    """

    def __init__(self, own_id: bytes, options: EndpointOptions, now: float) -> None:
        assert len(own_id) == ID_BYTES
        assert own_id != NOBODY
        super().__init__(own_id, options, now)
        self.peer_messages_max = options.peer_messages_max
        self.peer_bytes_max = options.peer_bytes_max

    # -- the driver -------------------------------------------------------------------------------

    def messages_max(self, conn: int) -> int:
        """Return how many messages to hand in at once: one frame in a handshake, then half of what a peer's box takes.

        Of more, some would be dropped on their way to a peer for which half as much again is taken. See ``portion``.
        """
        link = self.links.get(conn)
        established = link is not None and link.established_at is not None
        return max(1, self.peer_messages_max // 2) if established else 1

    def handle_frames(self, conn: int, frames: Sequence[bytes], now: float) -> list[Effect]:
        """Take complete bodies of frames, at most ``messages_max``; none is larger than ``frame_bytes_max``."""
        link = self.links.get(conn)
        if link is None:
            return []
        link.heard_at = now
        actions: list[Effect] = []
        at = 0
        while link.established_at is None and at < len(frames):
            actions += self._greet(link, frames[at], now)
            if conn not in self.links:
                return actions
            at += 1
        if at < len(frames):
            actions += self.router.handle_frames(link, frames[at:] if at else frames, now)
        if self.router.outboxes.overflowed:
            actions += self._drop_overflowed(now)
        return actions + self._resolve_awaited() + self._say_goodbyes()

    def contain(self, conn: int, defect: Exception, frame: bytes, now: float) -> list[Effect]:
        """Handle a defect that a frame brought to light behind this core (``EndpointOptions.contains``)."""
        link = self.links.get(conn)
        return [] if link is None else self._contain(link, defect, frame, now)

    def heard(self, conn: int, now: float) -> None:
        """Note bytes that are not a whole frame yet: the peer is alive."""
        link = self.links.get(conn)
        if link is not None:
            link.heard_at = now

    def moved(self, conn: int, now: float) -> None:
        """Note that a connection took bytes again after it had been full: its other end reads."""
        link = self.links.get(conn)
        if link is not None:
            link.moved_at = now

    def handle_full(self, subscriber: int, full: bool, beyond: bool, now: float) -> None:
        """Note that a subscriber that blocks has no room, or has some again; ``beyond`` if far too much waits for it.

        Publishers for it are told to wait. Messages on their way come nevertheless.
        """
        if full:
            self.router.holds.fill(subscriber, now, beyond)
        else:
            self.router.holds.free(subscriber)

    def handle_taken(self, subscriber: int, now: float) -> None:
        self.router.holds.taken(subscriber, now)

    def drained(self, count: int, now: float) -> None:
        """Note that a subscriber for which the driver reads nothing has taken so many messages, and has no room yet."""
        self.heartbeats.drained(count, now)

    def pause(self, on: bool, now: float) -> None:
        """Note that the driver reads nothing from links for a while, or reads again: silence then means nothing."""
        self.heartbeats.pause(on, self.links.values(), now)

    def holds_back(self, conn: int, now: float) -> bool:
        """Return whether the driver must not read from a link for now, because its messages go on to a peer that is
        full.

        To be asked again soon; whether a peer has room is seen by nobody else.
        """
        congestion, holds = self.router.congestion, self.router.holds
        if congestion.waits and congestion.holds_back(conn, now):
            return True
        return holds.holds_any_back and holds.holds_back(conn, now)

    def frame_bytes_max(self, conn: int) -> int:
        link = self.links.get(conn)
        if link is None or link.established_at is None:
            return HANDSHAKE_FRAME_BYTES_MAX
        return MESH_MESSAGE_BYTES_MAX

    def take(self, conn: int, bytes_max: int) -> list[bytes]:
        """Remove and return what is to be written next, with lengths: at most so many bytes, but at least a frame."""
        link = self.links.get(conn)
        if link is None:
            return self._take_last(conn, bytes_max)
        outbox = link.outbox
        if not outbox.bytes and not outbox.control_bytes:
            return []
        frames = self.heartbeats.take(link, bytes_max)
        if conn in self.router.outboxes.full or link in self.router.holds.full:
            self.router.taken(link)
        return frames

    # -- messages ---------------------------------------------------------------------------------

    def peer_subscriptions(self) -> Filter:
        """The prefixes that others want: what is published here to any other topic goes nowhere."""
        return self.router.topology.peer_filter()

    def subscribe(
        self,
        subscriber: int,
        topics: Iterable[bytes],
        kind: int = DATA,
        times: bool = False,
        last: bool = False,
        *,
        now: float,
    ) -> list[Effect]:
        """Have messages of ``kind`` whose topics start with one of ``topics`` delivered, in addition to others.

        With ``times`` others are asked to tell when they published what they send here; with ``last`` those who keep
        last values are asked for them, and messages that are not newer than the ones before are left out from now on.

        Raises:
            UsageError: A topic is too long, or all filters together are.
        """
        actions = self.router.refilter(self.router.subscriptions.add(subscriber, topics, kind, times), now)
        if last:
            self.router.lasts.want(subscriber)
        return actions

    def unsubscribe(self, subscriber: int, topics: Iterable[bytes] | None, now: float) -> list[Effect]:
        """Take back some topics of a subscriber, or the subscriber with all of them."""
        if topics is None:
            self.router.lasts.forget(subscriber)
        return self.router.refilter(self.router.subscriptions.remove(subscriber, topics), now)

    def forward(self, topics: Iterable[bytes], now: float) -> list[Effect]:
        """Want topics for others that nobody here wants; only originals need it. Raises UsageError as ``subscribe``."""
        return self.router.refilter(self.router.subscriptions.forward(topics), now)

    def publish(
        self, topic: bytes, payload: bytes, kind: int = DATA, receiver: bytes = NOBODY, now: float = 0.0,
        since: float | None = None,
    ) -> Sequence[Flush]:  # fmt: skip
        """Send a message to all who want its topic, or to ``receiver`` alone; own subscribers do not get it.

        It is taken whether there is ``room`` or not, up to twice the bounds. The answer is not to be changed.

        Args:
            since: When it began to wait for ``room``; that is when it was published.

        Raises:
            UsageError: The topic is reserved or too long, or the message is too large.
        """
        return self.router.publish(topic, payload, kind, receiver, now, since)

    def publish_many(
        self, messages: Iterable[tuple[bytes, bytes]], now: float, since: float | None = None
    ) -> tuple[Sequence[Flush], int]:
        """Publish many messages of data, each a topic and a payload, in order. Raises as ``publish``.

        Returns what to write too, and how many of the messages were put for at least one peer.
        """
        return self.router.publish_many(messages, now, since)

    def deliver_here(self, topic: bytes, payload: bytes, but: int, place: int = 0) -> list[Deliver]:
        """Give a message of data that is published here to our own subscribers too, except for one of them."""
        return self.router.deliver_here(topic, payload, but, place)

    def deliver_opened(self, messages: Iterable[Message], now: float) -> list[Effect]:
        """Give messages to our subscribers that came before, sealed, and could not be opened then."""
        return self.router.deliver_opened(messages)

    def set_keys(self, here: KeysHere, now: float) -> list[Effect]:
        """Hand on the group keys of this endpoint, which have changed; only where there are rules."""
        return self.router.group_keys.set_keys(here, now)

    def room(self, topics: Iterable[bytes] | None = None, receiver: bytes = NOBODY) -> bool:
        """Return whether there is room for what is published to these topics, or to ``receiver`` alone.

        With the policy to block there is none while a peer is full on the way, or a subscriber at its end. Without
        topics, as data stores ask: while any peer is full.
        """
        return self.router.room(topics, receiver)

    @property
    def turned(self) -> int:
        """Rises whenever publishers to some topic have to wait for a full subscriber, or no longer have to."""
        return self.router.holds.turned

    def buffered(self) -> int:
        return max([len(link.outbox) for link in self.links.values()], default=0)

    # -- looks ------------------------------------------------------------------------------------

    def invariants(self) -> list[str]:
        found = self.router.invariants()
        linked = {link.peer_id: link for link in self.links.values() if link.established_at is not None}
        if linked != self.router.links:
            found.append("the connections that are established are not those that are routed to")
        if any(("empty", conn) not in self._deadlines for conn in self._closing):
            found.append("connections that are closed wait for ever to be emptied")
        for link in self.links.values():
            found += [f"to {link.peer_id.hex()} {each}" for each in link.outbox.invariants()]
        return found

    def story(self, peer_id: bytes, now: float) -> str:
        """Describe an endpoint and the link to it, for people."""
        for link in self.links.values():
            if link.established_at is not None and link.peer_id == peer_id:
                box = link.outbox
                waiting = box.accepted - box.messages
                return (
                    f"{'an endpoint of chappe' if link.chappe else 'an original'}, linked for "
                    f"{now - link.established_at:.1f} s, heard {now - link.heard_at:.1f} s ago; {waiting}"
                    f" messages wait ({box.bytes:,} bytes), {box.messages} were sent, {link.confirmed} of them read, "
                    f"{box.dropped} dropped{'; blocked' if link.blocked else ''}{'; leaving' if link.bye else ''}"
                )
        if not self.reaches(peer_id):
            return "out of reach"
        wanted = b", ".join(self.filters().get(peer_id, ())).decode(errors="replace")
        return f"in reach through others; it wants {wanted or 'nothing'}"

    def reaches(self, endpoint: bytes) -> bool:
        """Return whether there is a path to an endpoint, direct or through others."""
        return self.router.topology.reaches(endpoint)

    def filters(self) -> dict[bytes, Filter]:
        """Return the filter of each endpoint in reach; a subscriber to less than its endpoint may be hidden."""
        return self.router.topology.filters()

    @property
    def dropped(self) -> int:
        self.router.outboxes.note_drops()
        return self.router.drops.total + self.router.seen.late

    def network(self) -> Facts:
        """Return the known network; ``Network.of`` makes the picture of it, which takes long if that is large."""
        return self.router.topology.facts()

    @property
    def settled(self) -> int:
        """Rises whenever the network, or what somebody in it wants, has changed: see ``filters``."""
        return self.router.settled

    def resubscribe(self, subscriber: int, topics: Iterable[bytes], *, now: float) -> list[Effect]:
        """Have a subscriber want exactly these prefixes; others hear of it as one change. Raises as ``subscribe``."""
        return self.router.refilter(self.router.subscriptions.replace(subscriber, topics, DATA), now)
