"""The merge point: what comes from peers and what is published here goes to subscribers and to other peers.

A message is looked at as little as possible. Its topic leads to a *route*, which is remembered: which subscribers
and which links get it. Payloads are never decoded; who passes a message on rewrites the last hop and the hops left.
Only what goes to or comes from an original is packed anew, for it knows no origin and no number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from chappe.core import Report
from chappe.defaults import LOSS_TTL, LOST_AFTER, MESH_TOPIC_BYTES_MAX, ROUTES_BYTES_MAX, TTL
from chappe.errors import ProtocolError, UsageError
from chappe.mesh.actions import NOTHING as NOTHING_TO_DO
from chappe.mesh.actions import Action, Deliver, Flush
from chappe.mesh.events import EndpointDiscovered, EndpointUnreachable, PeerBlocked
from chappe.mesh.filters import EVERYTHING, LOCAL_PREFIX, NOTHING, Filter, minimal
from chappe.mesh.forwarding.congestion import Congestion
from chappe.mesh.forwarding.duplicates import Seen
from chappe.mesh.forwarding.echoes import MESH, TOO_OFTEN, Echoes
from chappe.mesh.forwarding.flooding import Flooding
from chappe.mesh.forwarding.losses import Drops, Loss, Losses, Why
from chappe.mesh.links.link import EndpointOptions, Link
from chappe.mesh.messages import (
    COMMAND,
    DATA,
    LINK_STATE,
    LINK_STATES_HAD,
    LOSS,
    NOBODY,
    PING,
    PONG,
    RESERVED_TOPIC,
    ROUTING_UPDATE,
    Message,
    pack_hop,
    pack_message,
    pack_origin_message,
    pack_routing_update,
    parse_filter,
    parse_message,
)
from chappe.mesh.policy import Policy
from chappe.mesh.subscriptions import Subscriptions
from chappe.mesh.topology import Topology

Control = Callable[[Link, Message, float], Sequence[Action]]
Contain = Callable[[Link, Exception, bytes, float], Sequence[Action]]

_LAST_KIND: Final = COMMAND  # kinds up to this are messages of applications


class Route:
    """Who gets the messages of one topic."""

    __slots__ = ("chappe", "commands", "data", "flushes", "originals", "refused")

    def __init__(
        self, data: tuple[int, ...], commands: tuple[int, ...], chappe: tuple[Link, ...], originals: tuple[Link, ...]
    ) -> None:
        self.data = data  # subscribers
        self.commands = commands
        self.chappe = chappe
        self.originals = originals
        self.flushes: list[Flush] = [link.flush for link in (*chappe, *originals)]
        self.refused = False  # a topic that nobody may send to another endpoint

    def leads_where(self, other: Route) -> bool:
        """Whether both say the same."""
        mine = self.data, self.commands, self.chappe, self.originals, self.flushes, self.refused
        return mine == (other.data, other.commands, other.chappe, other.originals, other.flushes, other.refused)


class _Turn:
    """What the frames of one call lead to: gathered, so that a subscriber is called once."""

    __slots__ = ("actions", "boxes", "flushes")

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.boxes: dict[int, list[Message]] = {}
        self.flushes: dict[int, Flush] = {}

    def deliver(self, subscribers: tuple[int, ...], message: Message) -> None:
        boxes = self.boxes
        for subscriber in subscribers:
            if subscriber in boxes:
                boxes[subscriber].append(message)
            else:
                boxes[subscriber] = [message]

    def close(self) -> None:
        """Put what was gathered into the actions: what follows happened later."""
        if self.boxes:
            self.actions += [Deliver(subscriber, messages) for subscriber, messages in self.boxes.items()]
            self.boxes = {}
        if self.flushes:
            self.actions += self.flushes.values()
            self.flushes = {}


class Router:
    """Routes of one endpoint.

    Args:
        control: Called with pings and pongs.
        contain: Called with a defect of ours that a frame brought to light: ends the link, or raises it.
    """

    def __init__(self, own: bytes, options: EndpointOptions, control: Control, contain: Contain, now: float) -> None:
        self.topology = Topology(own, options.forwarding, options.first_number, now, options.limits)
        self.subscriptions = Subscriptions()
        self.drops = Drops()
        self.losses = Losses()
        self.overflowed: dict[int, Link] = {}  # to be disconnected
        self.congestion = Congestion(own, options.first_number, LOST_AFTER * options.heartbeat_s)
        self.full: dict[int, Link] = {}  # nothing more is taken for them, or older messages give way
        self.seen = Seen(own, options.limits)
        self.echoes = Echoes()
        self._own = own
        self._routes_max = options.limits.routes_max
        self._forwards = options.forwarding
        self._blocks = options.peer_policy is Policy.BLOCK
        self._control = control
        self._contain = contain
        self.settled = 0  # rises whenever the network, or what somebody in it wants, has changed
        self._sequence = options.first_number
        self._routes: dict[bytes, Route] = {}
        self._routes_bytes = 0  # of their topics
        self.links: dict[bytes, Link] = {}  # by peer
        self.flooding = Flooding(own, options.forwarding, self.topology, self.links, self._put_control)
        self._originals: dict[bytes, Link] = {}  # of these, originals

    # -- links and subscriptions ------------------------------------------------------------------

    def link_up(self, link: Link, wanted: Filter, announced: Filter, now: float) -> list[Action]:
        """A link is established; ``wanted`` and ``announced`` are the filters of its handshake."""
        self.links[link.peer_id] = link
        if not link.chappe:
            self._originals[link.peer_id] = link
            link.filter = wanted
            link.announced = announced
        reached = self.topology.reaches(link.peer_id)
        self.topology.link_up(link.peer_id, not link.chappe, wanted)
        actions = self.settle(now)
        if link.chappe:
            self.flooding.link_up(link, reached, now)
            missed = self.losses.owed(link.peer_id)
            if missed:
                actions += self._tell_loss(Loss(link.peer_id, NOBODY, missed, Why.LINK_ENDED))
            actions.append(link.flush)
        return actions

    def discard(self, link: Link) -> int:
        """A link is of no further use: drop what waits for it; returns how many messages."""
        self._note_drops(link)
        lost = link.outbox.discard()
        if lost:
            self._note_drops(link, Why.LINK_ENDED)
            if link.chappe:
                self.losses.owe(link.peer_id, lost)
        return lost

    def link_down(self, link: Link, now: float) -> list[Action]:
        """A link ended."""
        del self.links[link.peer_id]
        self._note_drops(link)
        self.full.pop(link.conn, None)
        self.congestion.forget(link.conn)
        self.overflowed.pop(link.conn, None)
        if self._originals.pop(link.peer_id, None) is not None:
            self._unblock(self.echoes.link_down(link.peer_id))
        self.flooding.link_down(link.peer_id)
        self.topology.link_down(link.peer_id)
        return self.settle(now)

    def refilter(self, changed: bool, now: float) -> list[Action]:
        """Subscriptions were changed; ``changed`` if what we want of others is another filter now."""
        self._forget_routes()
        if not changed:
            return []
        self.topology.set_filter(self.subscriptions.filter)
        return self.settle(now)

    def settle(self, now: float) -> list[Action]:
        """Draw the consequences of what changed in the network; tell neighbours what is new."""
        if not self.topology.changed:
            return []
        discovered, unreachable, linked, forgotten = self.topology.settle(now)
        self.settled += 1
        self._forget_routes()
        for endpoint in forgotten:
            self.seen.forget(endpoint)
        if linked:
            self.echoes.forget(now)
        actions: list[Action] = [Report(EndpointDiscovered(each)) for each in discovered]
        actions += self.flooding.tell(now)
        for link in self._originals.values():
            actions += self._announce(link)
        actions += self.flooding.reconsider(now)
        return actions + [Report(EndpointUnreachable(each)) for each in unreachable]

    def _announce(self, link: Link) -> list[Action]:
        wanted = NOTHING if link.blocked else self.topology.announcement(link.peer_id)
        if wanted == link.announced:
            return []
        link.announced = wanted
        try:
            frame = pack_routing_update(self._own, link.peer_id, wanted)
        except UsageError:  # more than a filter can hold: we look again at what comes
            frame = pack_routing_update(self._own, link.peer_id, EVERYTHING)
        self._put_control(link, frame)
        return [link.flush]

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._routes_bytes = 0

    def _flood(self, frame: bytes, but: Link | None) -> list[Action]:
        return self._send_control(frame, [link for link in self.links.values() if link.chappe and link is not but])

    def _put_control(self, link: Link, frame: bytes) -> None:
        if not link.outbox.put_control(frame):
            self.overflowed[link.conn] = link

    def invariants(self) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        found = [*self.seen.invariants(), *self.topology.states.invariants()]
        known = {peer: (link.chappe, link.conn) for peer, link in self.links.items()}
        if self.topology.neighbours != {peer: chappe for peer, (chappe, _) in known.items()}:
            found.append("links and the network's picture of them differ")
        if self._originals != {peer: link for peer, link in self.links.items() if not link.chappe}:
            found.append("originals and the links to them differ")
        if sum(map(len, self._routes)) != self._routes_bytes or len(self._routes) > self._routes_max:
            found.append(f"{len(self._routes)} routes are counted as {self._routes_bytes} bytes")
        full = {link.conn for link in self.links.values() if link.outbox.full}
        if not full <= self.full.keys() <= {conn for _, conn in known.values()}:
            found.append(f"the boxes of {sorted(full)} are full, {sorted(self.full)} are noted")
        if not self.topology.changed:
            for topic, route in self._routes.items():
                if not route.leads_where(self._route_of(topic)):
                    found.append(f"the route of {topic!r} is not what filters and links lead to")
        return found

    # -- publishing -------------------------------------------------------------------------------

    def publish(self, topic: bytes, payload: bytes, kind: int, receiver: bytes, now: float) -> Sequence[Flush]:
        """See ``EndpointCore.publish``."""
        route = self._routes.get(topic) or self._find_route(topic)
        if route.refused:
            raise UsageError("nothing can be published to the topics <$> and <$>/local/...: choose another topic")
        self._sequence += 1
        chappe, originals = route.chappe, route.originals
        if receiver != NOBODY:
            chappe, originals = self._towards(receiver, None, kind)
        if chappe:
            own = self._own
            frame = pack_origin_message(own, receiver, kind, TTL, topic, payload, own, self._sequence)
            for link in chappe:
                self._put(link, frame)
        if originals:
            frame = pack_message(self._own, receiver, kind, TTL, topic, payload)
            for link in originals:
                self._put(link, frame)
                self.echoes.note(link.peer_id, topic, payload, now, own=True)
        if chappe and self._originals:
            self.echoes.note(MESH, topic, payload, now, own=True)
        if receiver != NOBODY:
            return [link.flush for link in (*chappe, *originals)]
        return route.flushes

    def deliver_here(self, topic: bytes, payload: bytes, but: int) -> list[Action]:
        """See ``EndpointCore.deliver_here``."""
        route = self._routes.get(topic) or self._find_route(topic)
        message = Message(topic, payload, sender=self._own, origin=self._own, sequence=self._sequence)
        return [Deliver(each, [message]) for each in route.data if each != but]

    def room(self) -> bool:
        """Whether publishers may go on."""
        return not self.full or not self._blocks

    def taken(self, link: Link) -> None:
        """Something of what waited for a link is gone."""
        if link.conn in self.full and not link.outbox.full:
            self._note_drops(self.full.pop(link.conn))
            self.congestion.is_over(link.conn)

    def note_drops(self) -> None:
        """Look for what outboxes dropped."""
        for link in self.full.values():
            self._note_drops(link)

    def _note_drops(self, link: Link, why: Why = Why.FULL) -> None:
        count = link.outbox.dropped - link.dropped_told
        if count:
            link.dropped_told = link.outbox.dropped
            self.drops.add(f"to {link.peer_id.hex()}, {why.text}", count)
            self.losses.add(link.peer_id, link.outbox.take_dropped(), why)

    def _put(self, link: Link, frame: bytes) -> None:
        outbox = link.outbox
        outbox.put(frame)
        if outbox.full:
            self.full[link.conn] = link
            if outbox.overflowed:
                self.overflowed[link.conn] = link

    def _find_route(self, topic: bytes) -> Route:
        self._routes_bytes += len(topic)
        if len(self._routes) >= self._routes_max or self._routes_bytes > ROUTES_BYTES_MAX:
            self._forget_routes()
            self._routes_bytes = len(topic)
        route = self._routes[topic] = self._route_of(topic)
        return route

    def _route_of(self, topic: bytes) -> Route:
        wanting = [link for link in self.links.values() if self.topology.wants(link.peer_id, topic)]
        route = Route(
            self.subscriptions.matching(topic, DATA),
            self.subscriptions.matching(topic, COMMAND),
            tuple([link for link in wanting if link.chappe]),
            tuple([link for link in wanting if not link.chappe and not link.blocked]),
        )
        route.refused = topic == RESERVED_TOPIC or topic.startswith(LOCAL_PREFIX) or len(topic) > MESH_TOPIC_BYTES_MAX
        return route

    def _towards(
        self, receiver: bytes, but: Link | None, kind: int = DATA
    ) -> tuple[tuple[Link, ...], tuple[Link, ...]]:
        """The links that a message for ``receiver`` alone takes: the direct one, or all that lead there.

        Stores know that an endpoint is behind an original, from what it said; who publishes data to nobody is told so.
        """
        direct = self.links.get(receiver)
        if direct is not None:
            # Others bring it to an original too: of those that it came to on its way only one may pass it on.
            if direct is but or (but is not None and not direct.chappe and not self.topology.speaks_with(receiver)):
                return (), ()
            return ((direct,), ()) if direct.chappe else ((), (direct,))
        leads_to = self.topology.leads_to
        found = [link for link in self.links.values() if link is not but]
        chappe = tuple([link for link in found if link.chappe and leads_to(link.peer_id, receiver)])
        return self._behind_originals(receiver, found) if kind == COMMAND and not chappe else (chappe, ())

    def _behind_originals(self, receiver: bytes, links: list[Link]) -> tuple[tuple[Link, ...], tuple[Link, ...]]:
        """The links behind which an endpoint may be that nobody knows a way to.

        An original does not say who is beside it; it passes on what is for one of those, and drops the rest.
        """
        topology = self.topology
        if topology.reaches(receiver):
            return (), ()
        chappe = [link for link in links if link.chappe and topology.has_originals(link.peer_id)]
        originals = [
            link for link in links if not link.chappe and not link.blocked and topology.speaks_with(link.peer_id)
        ]
        return tuple(chappe), tuple(originals)

    # -- what comes -------------------------------------------------------------------------------

    def handle_frames(self, link: Link, frames: Sequence[bytes], now: float) -> list[Action]:
        """Frames of an established link."""
        link.received += len(frames)
        turn = _Turn()
        take = self._take_from_chappe if link.chappe else self._take_from_original
        for body in frames:
            try:
                message = parse_message(body)
                if message.sender != link.peer_id:
                    self.drops.add(f"from {link.peer_id.hex()}, which named another sender")
                elif message.kind <= _LAST_KIND:
                    take(link, message, body, turn, now)
                else:
                    turn.close()
                    self._handle_control(link, message, turn, now)
                    if link.ended:
                        break
            except ProtocolError:
                self.drops.add(f"from {link.peer_id.hex()}, which could not be read")
            except Exception as defect:
                turn.close()
                turn.actions += self._contain(link, defect, body, now)
                break
        turn.close()
        if self.topology.changed:
            try:
                turn.actions += self.settle(now)
            except Exception as defect:
                turn.actions += self._contain(link, defect, b"", now)
        return turn.actions

    def _route(self, topic: bytes, turn: _Turn, now: float) -> Route:
        route = self._routes.get(topic)
        if route is None or self.topology.changed:
            if self.topology.changed:
                turn.close()
                turn.actions += self.settle(now)
            route = self._find_route(topic)
        return route

    def _take_from_chappe(self, link: Link, message: Message, body: bytes, turn: _Turn, now: float) -> None:
        topic = message.topic
        route = self._routes.get(topic)
        if route is None or self.topology.changed:
            route = self._route(topic, turn, now)
        origin = message.origin
        if route.refused or origin == NOBODY:
            self.drops.add(f"from {link.peer_id.hex()}, which may not send them")
            return
        if origin != link.peer_id and origin != self._own and not self.topology.may_bring(link.peer_id, origin, now):
            self.drops.add(f"from {link.peer_id.hex()}, behind which their origin is not")
            return
        if not self.seen.is_new(origin, message.sequence):
            return
        chappe, originals, receiver = route.chappe, route.originals, message.receiver
        if receiver == NOBODY or receiver == self._own:
            turn.deliver(route.data if message.kind == DATA else route.commands, message)
            if receiver == self._own:
                return
        else:
            chappe, originals = self._towards(receiver, link, message.kind)
        if self._originals:
            self.echoes.note(MESH, topic, message.payload, now)
        if not self._forwards:
            return
        if not message.ttl:
            self._end_of_hops(link, message, (*chappe, *originals))
            return
        if not link.told or self.flooding.held:  # others take from here only what they know to be behind here
            turn.close()
            turn.actions += self.flooding.hurry(now)
        if chappe and (len(chappe) > 1 or chappe[0] is not link):
            frame = pack_hop(body, self._own, message.ttl - 1)
            self._pass_on(chappe, frame, link, turn, now)
        if originals:
            self._pass_to_originals(originals, message, link, turn, now)

    def _take_from_original(self, link: Link, message: Message, body: bytes, turn: _Turn, now: float) -> None:
        topic, payload, receiver = message.topic, message.payload, message.receiver
        route = self._route(topic, turn, now)
        if route.refused or receiver not in (NOBODY, self._own) or message.origin != NOBODY:
            self.drops.add(f"from {link.peer_id.hex()}, which may not send them")
            return
        subscribers = route.data if message.kind == DATA else route.commands
        if receiver == self._own:
            turn.deliver(subscribers, message)
            return
        if link.blocked or not self.topology.speaks_with(link.peer_id):
            return  # another endpoint takes it for all of us
        culprit = self.echoes.came(link.peer_id, topic, payload, now)
        if culprit == TOO_OFTEN:
            self.drops.add(f"from {link.peer_id.hex()}, which brought them back very often")
            return
        if culprit is not None:
            turn.close()
            turn.actions += self._block(culprit, link.peer_id, now)
            return
        turn.deliver(subscribers, message)
        if not self._forwards:
            return
        if not message.ttl:
            self._end_of_hops(link, message, (*route.chappe, *route.originals))
            return
        if route.chappe:
            self._sequence += 1
            own, ttl = self._own, message.ttl - 1
            frame = pack_origin_message(own, NOBODY, message.kind, ttl, topic, payload, own, self._sequence)
            self._pass_on(route.chappe, frame, link, turn, now)
        self._pass_to_originals(route.originals, message, link, turn, now)

    def _end_of_hops(self, link: Link, message: Message, links: tuple[Link, ...]) -> None:
        """A message may go no further, though somebody beyond wants it."""
        for each in links:
            if each is not link:
                self.drops.add(f"to {each.peer_id.hex()}, {Why.TOO_FAR.text}")
                self.losses.add(each.peer_id, {message.origin: 1}, Why.TOO_FAR)

    def _pass_on(self, links: tuple[Link, ...], frame: bytes, but: Link, turn: _Turn, now: float) -> None:
        for link in links:
            if link is not but:
                self._put(link, frame)
                turn.flushes[link.conn] = link.flush
                if self._blocks and link.conn in self.full:
                    self.congestion.note(link, but, now)

    def _pass_to_originals(self, links: tuple[Link, ...], message: Message, but: Link, turn: _Turn, now: float) -> None:
        if not links or (len(links) == 1 and links[0] is but):
            return
        frame = pack_message(self._own, message.receiver, message.kind, message.ttl - 1, message.topic, message.payload)
        for link in links:
            if link is not but:
                self.echoes.note(link.peer_id, message.topic, message.payload, now)
        self._pass_on(links, frame, but, turn, now)

    # -- control ----------------------------------------------------------------------------------

    def _handle_control(self, link: Link, message: Message, turn: _Turn, now: float) -> None:
        if message.kind in (PING, PONG):
            turn.actions += self._control(link, message, now)
        elif message.kind in (LINK_STATE, LINK_STATES_HAD) and link.chappe:
            turn.actions += self.flooding.take(link, message, now)
            self._sequence = max(self._sequence, self.topology.numbers_from)
        elif message.kind == ROUTING_UPDATE and not link.chappe:
            link.filter = minimal(parse_filter(message.payload))
            if not link.blocked:
                self.topology.set_original_filter(link.peer_id, link.filter)
        elif message.kind == LOSS and link.chappe and message.origin != NOBODY:
            turn.actions += self._take_loss(link, message, now)
        else:
            raise ProtocolError("a message of a kind that this peer does not send")

    def _take_loss(self, link: Link, message: Message, now: float) -> Sequence[Action]:
        place = message.origin
        if place != link.peer_id and not self.topology.may_bring(link.peer_id, place, now):
            raise ProtocolError("a report of a loss from where its place is not")
        if not self.seen.is_new(place, message.sequence):
            return NOTHING_TO_DO
        loss = Loss.parse(message.payload)
        receiver = message.receiver
        missed = receiver == NOBODY and self.subscriptions.filter and loss.origin != self._own
        if receiver == self._own or missed:
            self.losses.heard(place, loss)
        if receiver == self._own or not self._forwards or not message.ttl:
            return NOTHING_TO_DO
        ttl, number = message.ttl - 1, message.sequence
        frame = pack_origin_message(
            self._own, receiver, LOSS, ttl, RESERVED_TOPIC, message.payload, place, number
        )  # fmt: skip
        if receiver != NOBODY:
            return self._send_control(frame, self._towards(receiver, link, message.kind)[0])
        return self._flood(frame, link)

    def _tell_loss(self, loss: Loss) -> Sequence[Action]:
        actions: list[Action] = []
        peer = self.links.get(loss.towards)
        if loss.origin not in (NOBODY, self._own):
            links = self._towards(loss.origin, None)[0]
            actions += self._send_control(self._pack_loss(loss, loss.origin), links)
        if peer is not None and peer.chappe:
            actions += self._send_control(self._pack_loss(loss, NOBODY), (peer,))
        return actions

    def _pack_loss(self, loss: Loss, receiver: bytes) -> bytes:
        self._sequence += 1
        own = self._own
        return pack_origin_message(own, receiver, LOSS, LOSS_TTL, RESERVED_TOPIC, loss.pack(), own, self._sequence)

    def _send_control(self, frame: bytes, links: Sequence[Link]) -> list[Action]:
        for link in links:
            self._put_control(link, frame)
        return [link.flush for link in links]

    def _block(self, culprit: bytes, other: bytes, now: float) -> list[Action]:
        link = self._originals.get(culprit)
        if link is None or link.blocked:
            return []
        seconds = self.echoes.block(culprit, other, now)
        link.blocked = True
        self.topology.set_original_filter(culprit, NOTHING)
        self.topology.changed = True
        return [Report(PeerBlocked(culprit, seconds)), *self.settle(now)]

    def _unblock(self, originals: list[bytes]) -> None:
        for each in originals:
            link = self._originals[each]
            link.blocked = False
            self.topology.set_original_filter(each, link.filter)
            self.topology.changed = True

    def handle_timeout(self, now: float) -> list[Action]:
        """Try blocked links again; report what was dropped."""
        self._unblock(self.echoes.handle_timeout(now))
        self.note_drops()
        losses, reports = self.losses.take(now)
        told = [action for each in losses for action in self._tell_loss(each)]
        return [*self.settle(now), *self.flooding.tell(now), *self.drops.handle_timeout(now), *told, *reports]

    def next_timeout(self) -> float:
        """When there is something to do."""
        if self.topology.changed:
            return -inf
        return min(self.echoes.due, self.drops.due, self.losses.due, self.flooding.due)
