"""The merge point: what comes from peers and what is published here goes to subscribers and to other peers.

A message is looked at as little as possible. Its topic leads to a *route*, which is remembered: which subscribers get
it, along which tree it goes to endpoints of chappe, and which originals beside us get it. Payloads are never decoded.
How messages go on is up to the version of the protocol that a link speaks: ``version1`` has originals, ``version2``
endpoints of chappe. What an original brings is published here for all of chappe, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Final

from chappe.core import Deliver, Effect, Flush, Report
from chappe.defaults import LOST_AFTER, MESH_MESSAGE_BYTES_MAX, ORDER_BYTES_MAX, TTL
from chappe.errors import ProtocolError, UsageError
from chappe.mesh.events import EndpointDiscovered, EndpointUnreachable, SubscriptionRefused
from chappe.mesh.filters import LAST_ASK, Filter
from chappe.mesh.flows import FLOWS, HEAD_BYTES, KIND_AT, PREFIX, check_size, inner, messages_in, parse_publications
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.forwarding.branches import Branch
from chappe.mesh.forwarding.congestion import Congestion, Outboxes
from chappe.mesh.forwarding.duplicates import Early, LossesElsewhere, Opens, SeenMessages, Turn
from chappe.mesh.forwarding.echoes import MESH, TOO_OFTEN
from chappe.mesh.forwarding.flooding import Flooding
from chappe.mesh.forwarding.group_keys import HandingOn, KeysHandingOn
from chappe.mesh.forwarding.holds import Holds
from chappe.mesh.forwarding.judging import ForwardFilter, MessageJudge, Refusals
from chappe.mesh.forwarding.last_exchange import LastExchange
from chappe.mesh.forwarding.last_values import TOPICS, KeptLastValues
from chappe.mesh.forwarding.losses import Drops, Loss, Losses, LossReason
from chappe.mesh.forwarding.routes import Route, Routes, TopicSubscriptions
from chappe.mesh.forwarding.version1 import Originals
from chappe.mesh.forwarding.version2 import Trees
from chappe.mesh.links.link import EndpointOptions, Link
from chappe.mesh.messages import (
    COMMAND,
    DATA,
    GROUP_KEYS,
    LINK_STATE,
    LINK_STATES_HAD,
    LOSS,
    NOBODY,
    PERMISSIONS,
    PING,
    PONG,
    RESERVED_TOPIC,
    Message,
    parse_message,
)
from chappe.mesh.places import Places
from chappe.mesh.rules import MeshRules
from chappe.mesh.topology import Topology

Control = Callable[[Link, Message, float], Sequence[Effect]]
Contain = Callable[[Link, Exception, bytes, float], Sequence[Effect]]

_NOBODY_ELSE: Final[frozenset[bytes]] = frozenset()
_LARGE: Final = MESH_MESSAGE_BYTES_MAX // 2  # what is larger may be too large
_LAST_KIND: Final = COMMAND  # kinds up to this are messages of applications


class Router:
    """The routing of one endpoint.

    Args:
        control: Called with pings and pongs.
        contain: Called with a defect of ours that a frame brought to light: ends the link, or raises it.
    """

    def __init__(self, own: bytes, options: EndpointOptions, control: Control, contain: Contain, now: float) -> None:
        self.topology = Topology(own, options.forwarding, options.first_number, now, options.limits)
        self.subscriptions = TopicSubscriptions()
        self.drops = Drops()
        self.losses = Losses(own)
        self.judge = MessageJudge(own, self.losses, self.drops)
        self.congestion = Congestion(own, options.first_number, LOST_AFTER * options.heartbeat_s)
        self.holds = Holds(LOST_AFTER * options.heartbeat_s)
        self.outboxes = Outboxes(self.congestion, self.holds, self.drops, options.peer_policy is Policy.BLOCK)
        self._full_here = self.holds.full
        self._along: Branch | None = None  # along which tree a message came, while somebody here is full
        self.dropped_here: dict[int, int] = {}  # messages that were not taken for a subscriber
        self.seen = SeenMessages(own, options.limits)
        self.links: dict[bytes, Link] = {}  # by peer
        put_control = self.outboxes.put_control
        self.originals = Originals(own, self.topology, self.judge, self.outboxes.put, put_control)
        self.passing = ForwardFilter(self.drops, self.originals.links)
        self.trees = Trees(
            own,
            options,
            self.topology,
            self.links,
            self.losses,
            self.holds,
            self.judge,
            self.passing,
            self.outboxes.put,
            self.outboxes.put_batch,
            put_control,
            lambda: self.routes.forget(),
        )
        self.routes = Routes(
            own, self.topology, self.subscriptions, self.trees, self.originals, self.judge, options.paths,
            options.limits.routes_max,
        )  # fmt: skip
        self.flooding = Flooding(own, options.forwarding, self.topology, self.links, self.judge, put_control)
        self.handing_on = HandingOn(own, self.links, put_control)
        self.group_keys = KeysHandingOn(own, self.links, put_control, lambda: self.topology.forwards)
        self._own = own
        self._forwards = options.forwarding
        self._blocks = options.peer_policy is Policy.BLOCK
        self._control = control
        self._contain = contain
        self.opens: Opens | None = None  # opens what comes in sealed topics
        self._refused: dict[bytes, tuple[str, str]] = {}  # of what we want, and why
        self.settled = 0  # rises whenever the network, or what somebody in it wants, has changed
        self._early = Early()
        self.places = Places(options.first_number, options.limits.routes_max)
        self.last_values = self.trees.last_values = KeptLastValues(options.last_values) if options.last_values else None
        self.lasts = LastExchange(
            own, self.last_values, self.topology, self.subscriptions, self.routes, self.trees, self.flooding, self.judge
        )
        if self.last_values is not None:
            self.subscriptions.forward([LAST_ASK])
            self.topology.set_filter(self.subscriptions.filter)
        self.reached = 0  # how many receivers elsewhere the last publication went to

    # -- links and subscriptions ------------------------------------------------------------------

    def link_up(self, link: Link, wanted: Filter, announced: Filter, now: float) -> list[Effect]:
        """Note an established link; ``wanted`` and ``announced`` are the filters of its handshake."""
        self.links[link.peer_id] = link
        if link.chappe:
            link.outbox.on_drop = partial(self.trees.dropped, link, why=LossReason.FULL)
        else:
            wanted = self.originals.link_up(link, wanted, announced)
        reached = self.topology.reaches(link.peer_id)
        self.topology.link_up(link.peer_id, not link.chappe, wanted, link.key)
        actions = self.settle(now)
        self.handing_on.link_up(link)
        if link.chappe:
            self.flooding.link_up(link, reached, now)
            missed = self.losses.owed(link.peer_id)
            if missed:
                actions += self._tell_loss(Loss(link.peer_id, NOBODY, missed, LossReason.LINK_ENDED), {link.peer_id})
            actions.append(link.flush)
        return actions

    def link_down(self, link: Link, discarded: bool, had: bool, now: float) -> tuple[list[Effect], int]:
        """Note a link that ended.

        Args:
            discarded: It takes no more waiting messages; otherwise they are still written.
            had: The peer has got all that was sent to it.

        Returns actions, and how many of the waiting messages do not arrive everywhere.
        """
        del self.links[link.peer_id]
        link.outbox.on_drop = None
        self.outboxes.link_down(link)
        waiting = link.outbox.discard() if discarded else []
        if not link.chappe:
            self.originals.link_down(link)
        self.flooding.link_down(link.peer_id)
        self.handing_on.link_down(link)
        self.group_keys.link_down(link)
        self.topology.link_down(link.peer_id)
        actions = self.settle(now)
        if link.kept_bytes:  # who gets what is sent around is to know that it does not come back over this link
            actions += self.flooding.hurry(now)
        lost = self.trees.link_down(link, waiting, had) if link.chappe else len(waiting)
        if lost:
            self.drops.add(f"to {link.peer_id.hex()}, {LossReason.LINK_ENDED.text}", lost)
            if link.chappe:
                self.losses.owe(link.peer_id, lost)
        return actions + self._flushes(), lost

    @property
    def rules(self) -> MeshRules | None:
        """The permissions; None where everything is allowed."""
        return self.judge.rules

    @property
    def refusals(self) -> Refusals:
        return self.judge.refusals

    def set_rules(self, rules: MeshRules | None, now: float) -> list[Effect]:
        """Take other permissions: all messages are judged anew, and ways lead over endpoints that may forward."""
        former, self._refused = self._refused, {} if rules is None else rules.refused(self.subscriptions.filter)
        self.judge.rules = rules
        self.topology.set_rules(rules)
        self._forwards = self.trees.forwards = self.topology.forwards
        self.flooding.set_rules(self._forwards, now)
        self.originals.refilter()
        self.handing_on.set_rules(rules, now)
        news = [(topic, why) for topic, why in self._refused.items() if topic not in former]
        told = [Report(SubscriptionRefused(topic, *why)) for topic, why in news]
        return [*told, *self.settle(now), *[link.flush for link in self.links.values()]]

    def confirm(self) -> list[Flush]:
        """Confirm arrived messages now, as a neighbour leaves: they would be told as lost."""
        self.trees.confirm()
        return self._flushes()

    def send_all(self, now: float = inf) -> list[Flush]:
        """Send all messages, as a neighbour leaves: none waits for another one, and for room only until ``now``."""
        self.trees.order.give_up(now)
        return self._flushes()

    def give_up(self, link: Link) -> None:
        """Give up a link that ended with a goodbye before it took everything."""
        lost = sum([messages_in(frame, PREFIX) for frame in link.outbox.discard()])
        if lost:
            self.drops.add(f"to {link.peer_id.hex()}, {LossReason.LINK_ENDED.text}", lost)

    def _flushes(self) -> list[Flush]:
        """Return flushes for frames that were put as a side effect."""
        found = list(self.trees.flushes.values())
        self.trees.flushes.clear()
        return found

    def refilter(self, changed: bool, now: float) -> list[Effect]:
        """Tell others of changed subscriptions; ``changed`` if the filter for others is another one now."""
        self.routes.forget()
        if not changed:
            return []
        self.topology.set_filter(self.subscriptions.filter, self.subscriptions.asks_times)
        return self.settle(now)

    def settle(self, now: float) -> list[Effect]:
        """Draw the consequences of changes in the network; tell neighbours."""
        if not self.topology.changed:
            return []
        discovered, unreachable, linked, forgotten = self.topology.settle(now)
        self.settled += 1
        self.routes.forget()
        self.trees.changed()
        for endpoint in forgotten:
            self.seen.forget(endpoint)
        if linked:
            self.originals.echoes.forget(now)
        self.lasts.asking.look()
        actions: list[Effect] = [Report(EndpointDiscovered(each)) for each in discovered]
        actions += self.flooding.tell(now)
        actions += self.originals.announce()
        actions += self.flooding.reconsider(now)
        return actions + [Report(EndpointUnreachable(each)) for each in unreachable]

    def invariants(self) -> list[str]:
        found = [*self.seen.invariants(), *self.topology.states.invariants()]
        known = {peer: (link.chappe, link.conn) for peer, link in self.links.items()}
        if self.topology.neighbours != {peer: chappe for peer, (chappe, _) in known.items()}:
            found.append("links and the network's picture of them differ")
        if self.originals.links != {peer: link for peer, link in self.links.items() if not link.chappe}:
            found.append("originals and the links to them differ")
        found += self.trees.invariants() + self.holds.invariants()
        found += [] if self.last_values is None else self.last_values.invariants()
        found += self.outboxes.invariants(self.links)
        if not self.topology.changed:
            found += self.routes.invariants()
        return found

    # -- publishing -------------------------------------------------------------------------------

    def publish(
        self, topic: bytes, payload: bytes, kind: int, receiver: bytes, now: float, since: float | None = None
    ) -> Sequence[Flush]:
        route = self.routes.known.get(topic) or self.routes.find(topic)
        if route.refused:
            raise UsageError("nothing can be published to the topics <$> and <$>/local/...: choose another topic")
        if receiver != NOBODY:
            route = self.routes.towards(receiver, kind, topic)
        elif not route.ready:
            self.routes.make_ready(route, topic)
        place = self._place(route, topic, payload) if kind == DATA and receiver == NOBODY else 0
        told: Sequence[Effect] = ()
        if self.topology.telling.tell_at < inf or self.flooding.held:  # others take what they know to be here
            told = self.flooding.hurry(now)
        if route.tree is not None:
            self.trees.publish(route.tree, kind, receiver, topic, payload, now if since is None else since, place)
        if route.originals:
            self.originals.publish(route.originals, receiver, kind, topic, payload, now)
        if self.originals.links and route.tree is not None:
            self.originals.echoes.note(MESH, topic, payload, now, own=True)
        if self.last_values is not None and kind == DATA and receiver == NOBODY:
            self.lasts.keep(topic, payload, self.places.last(topic))
        self.reached = route.count
        return [*route.flushes, *[each for each in told if isinstance(each, Flush)]] if told else route.flushes

    def _place(self, route: Route, topic: bytes, payload: bytes) -> int:
        """Return the place of a message of data to everybody; raise UsageError if it is too large for a tree."""
        if len(payload) > _LARGE and route.tree is not None:
            check_size(topic, payload)
        return self.places.take(topic)

    def publish_many(
        self, messages: Iterable[tuple[bytes, bytes]], now: float, since: float | None = None
    ) -> tuple[Sequence[Flush], int]:
        flushes: dict[Flush, None] = {}
        wanted = 0
        for topic, run in groupby(messages, itemgetter(0)):
            payloads = [payload for _, payload in run]
            found = self.publish(topic, payloads[0], DATA, NOBODY, now, since)
            flushes.update(dict.fromkeys(found))
            wanted += len(payloads) if found else 0
            rest, route = payloads[1:], self.routes.known.get(topic)
            tree = None if route is None or self.originals.links else route.tree
            if tree is not None:
                self.trees.publish_many(tree, topic, rest, now if since is None else since, self.places)
                if self.last_values is not None:
                    self.lasts.keep(topic, payloads[-1], self.places.last(topic))
            else:
                for payload in rest:
                    flushes.update(dict.fromkeys(self.publish(topic, payload, DATA, NOBODY, now, since)))
        flushes.update(dict.fromkeys(self._flushes()))
        return list(flushes), wanted

    def deliver_here(self, topic: bytes, payload: bytes, but: int, place: int = 0) -> list[Deliver]:
        route = self.routes.of(topic)
        own = self._own
        message = Message(topic, payload, sender=own, origin=own, sequence=self.trees.number, place=place)
        return [Deliver(each, [message]) for each in route.data if each != but]

    def deliver_opened(self, messages: Iterable[Message]) -> list[Effect]:
        found: list[Effect] = []
        for each in messages:
            route = self.routes.of(each.topic)
            for number in route.data if each.kind == DATA else route.commands:
                found += self.lasts.deliver(number, [each])
        return found

    def room(self, topics: Iterable[bytes] | None, receiver: bytes) -> bool:
        """Return whether publishers to these topics may go on; None for data stores, whose commands are never held."""
        if not self._blocks:
            return True
        if self.trees.order.size >= ORDER_BYTES_MAX:
            return False
        if not self.outboxes.full and (topics is None or not self.holds.waits):
            return True
        return topics is not None and all(self._has_room(each, receiver) for each in topics)

    def _has_room(self, topic: bytes, receiver: bytes) -> bool:
        """Return whether no peer on the way of messages is full, and their tree is not held."""
        route = self.routes.open(topic, receiver)
        if route.tree is not None and self.trees.is_held(route.tree):
            return False
        return not any(each.link in self.outboxes.full for each in route.flushes)

    def taken(self, link: Link) -> None:
        """Note that something that waited for a link is gone."""
        if self.outboxes.taken(link):
            self.trees.order.has_room()

    # -- what comes -------------------------------------------------------------------------------

    def handle_frames(self, link: Link, frames: Sequence[bytes], now: float) -> list[Effect]:
        link.received += len(frames)
        turn = Turn(self.opens, self.lasts.newest)
        chappe = link.chappe
        self.outboxes.source = link, now
        for body in frames:
            try:
                if chappe and len(body) >= HEAD_BYTES and body[KIND_AT] in FLOWS:
                    self._take_from_chappe(link, body, turn, now)
                    continue
                message = parse_message(body)
                if message.sender != link.peer_id:
                    self.drops.add(f"from {link.peer_id.hex()}, which named another sender")
                elif message.kind <= _LAST_KIND and not chappe:
                    self._take_from_original(link, message, turn, now)
                else:
                    turn.close()
                    self._handle_control(link, message, turn, now)
                    if link.ended:
                        break
            except LossesElsewhere:
                for each in self._early.keep(link, body, self.settled, now):
                    self._refuse(*each)
            except ProtocolError:
                self.drops.add(f"from {link.peer_id.hex()}, which could not be read")
            except Exception as defect:
                turn.close()
                turn.actions += self._contain(link, defect, body, now)
                break
        self.outboxes.source = None
        turn.close()
        if self.holds.due <= now:
            self.trees.hold(now)
        if self.trees.confirm_at <= now:
            self.trees.confirm()
        if self.seen.late_of:
            self.losses.hurry()
        if self.topology.changed:
            try:
                turn.actions += self.settle(now)
            except Exception as defect:
                turn.actions += self._contain(link, defect, b"", now)
        if self._early.is_due(self.settled):
            self._take_early(turn, now)
            turn.close()
        if self.trees.flushes:
            turn.actions += self._flushes()
        return turn.actions

    def _take_early(self, turn: Turn, now: float) -> None:
        """Try again the frames that came before the news of their origin."""
        source = self.outboxes.source

        def take(link: Link, body: bytes) -> None:
            if self.links.get(link.peer_id) is not link:
                return  # who brought it sends it another way
            self.outboxes.source = link, now
            try:
                self._take_from_chappe(link, body, turn, now)
            except LossesElsewhere:
                raise
            except ProtocolError:
                self.drops.add(f"from {link.peer_id.hex()}, which could not be read")
            except Exception as defect:
                turn.close()
                turn.actions += self._contain(link, defect, body, now)

        self._early.try_again(self.settled, take)
        self.outboxes.source = source

    def _refuse(self, link: Link, body: bytes) -> None:
        """Tell the origin of a refused body: another member sent this in its name, or the news take too long."""
        try:
            if self.links.get(link.peer_id) is link:
                self.trees.refuse(link, body)
            messages = parse_publications(inner(body), NOBODY)
        except ProtocolError:
            self.drops.add("which could not be read")
            return
        first, count = messages[0], len(messages)
        self.drops.add("from endpoints that are not behind who brought them", count)
        if first.kind != LOSS:
            self.losses.add(self._own, first.origin, first.topic, LossReason.EARLY, _NOBODY_ELSE, count)

    def _route(self, topic: bytes, turn: Turn, now: float) -> Route:
        route = self.routes.known.get(topic)
        if route is None or self.topology.changed:
            if self.topology.changed:
                turn.close()
                turn.actions += self.settle(now)
            route = self.routes.find(topic)
        return route

    def _take_from_chappe(self, link: Link, body: bytes, turn: Turn, now: float) -> None:
        """Take a message of version 2; one for us, or for originals that we speak with, may have come before."""
        if self.topology.changed:
            turn.close()
            turn.actions += self.settle(now)
        if self._early.due < inf and self._early.is_due(self.settled):
            self._take_early(turn, now)
        if (not link.told or self.flooding.held) and self._forwards:  # others take only what they know to be behind us
            turn.close()
            turn.actions += self.flooding.hurry(now)
        found = self.trees.take(link, body, now)
        if found is None:
            return
        if self._full_here:
            self._along = self.trees.branch(link, body)
        if type(found) is not Message:
            assert isinstance(found, list)
            self._take_several(link, found, turn, now)
        elif self.seen.is_new(found.origin, found.sequence):
            kind, here = found.kind, found.receiver == NOBODY or found.receiver == self._own
            route = self.routes.known.get(found.topic)
            if route is None or route.refused or not here or kind == LOSS or self.originals.links or self._full_here:
                self._take_message(link, found, turn, now)
            else:  # nearly always
                turn.deliver(route.data if kind == DATA else route.commands, found)

    def _take_several(self, link: Link, messages: list[Message], turn: Turn, now: float) -> None:
        """Take several messages of one origin, kind and topic, with consecutive numbers."""
        first, last = messages[0], messages[-1]
        if not self.seen.is_new_run(first.origin, range(first.sequence, last.sequence + 1)):
            messages = [each for each in messages if self.seen.is_new(each.origin, each.sequence)]
        if len(messages) < 2 or self.originals.links:
            for each in messages:
                self._take_message(link, each, turn, now)
            return
        route = self.routes.of(first.topic)
        if route.refused:
            raise ProtocolError("nobody may send to its topic")
        taken = self._takers(route.data, first, len(messages), now) if self._full_here else route.data
        turn.deliver_all(taken, messages)

    def _takers(self, subscribers: tuple[int, ...], message: Message, count: int, now: float) -> tuple[int, ...]:
        """Return the subscribers for which such messages are taken; full ones make their publishers wait."""
        found = []
        for each in subscribers:
            if each not in self._full_here or self.holds.is_for(each, self._along, count, now):
                found.append(each)
                continue
            self.drops.add("for a subscriber that takes less than is published", count)
            self.dropped_here[each] = self.dropped_here.get(each, 0) + count
            if message.origin != NOBODY:
                self.losses.add(self._own, message.origin, message.topic, LossReason.FULL, _NOBODY_ELSE, count)
        return tuple(found)

    def _take_message(self, link: Link, message: Message, turn: Turn, now: float) -> None:
        topic, receiver, kind = message.topic, message.receiver, message.kind
        if kind == LOSS:
            self._take_loss(message, now)
            return
        route = self.routes.of(topic)
        if route.refused:
            if topic not in TOPICS or receiver != self._own or kind != DATA:
                raise ProtocolError("nobody may send to its topic")
            turn.close()
            turn.actions += self.lasts.take(message, self.opens, now)
            return
        originals = route.originals
        if receiver == NOBODY or receiver == self._own:
            subscribers = route.data if kind == DATA else route.commands
            turn.deliver(self._takers(subscribers, message, 1, now) if self._full_here else subscribers, message)
            if receiver != NOBODY:
                return
        else:
            originals = self.originals.towards(receiver, kind)
        if self.originals.links:
            self.originals.echoes.note(MESH, topic, message.payload, now)
            passed = self.passing.message(message) if originals and self._forwards else None
            if passed is not None:
                if passed is not message:
                    self.originals.echoes.note(MESH, topic, passed.payload, now)
                self._pass_to_originals(originals, passed, TTL, link, turn, now)
                for each in originals:
                    if each in self._full_here:
                        self.holds.is_for(each, self._along, 1, now)

    def _take_from_original(self, link: Link, message: Message, turn: Turn, now: float) -> None:
        topic, payload, receiver = message.topic, message.payload, message.receiver
        route = self._route(topic, turn, now)
        if route.refused or receiver not in (NOBODY, self._own):
            self.drops.add(f"from {link.peer_id.hex()}, which may not send them")
            return
        if not self.judge.takes_from_original(link, message.kind, topic, payload):
            return
        subscribers = route.data if message.kind == DATA else route.commands
        if self._full_here:
            self._along = None
            subscribers = self._takers(subscribers, message, 1, now)
            for subscriber in subscribers:
                if subscriber in self._full_here:
                    self.holds.hold_back(link, subscriber)
        if receiver == self._own:
            turn.deliver(subscribers, message)
            return
        if link.blocked or not self.topology.speaks_with(link.peer_id):
            return  # another endpoint takes it for all of us
        culprit = self.originals.echoes.came(link.peer_id, topic, payload, now)
        if culprit == TOO_OFTEN:
            self.drops.add(f"from {link.peer_id.hex()}, which brought them back very often")
            return
        if culprit is not None:
            turn.close()
            turn.actions += self.originals.block(culprit, link.peer_id, now)
            turn.actions += self.settle(now)
            return
        turn.deliver(subscribers, message)
        if not self._forwards:
            return
        if not route.ready:
            self.routes.make_ready(route, topic)
        if self.holds.waits and self._blocks:
            route = self.routes.open(topic)
            for tree in () if route.tree is None else route.tree.both():
                if tree in self.holds.waits:
                    self.holds.hold_back(link, tree)
        if not message.ttl:
            if route.tree is not None or any(each is not link for each in route.originals):
                self.drops.add(f"from {link.peer_id.hex()}, whose TTL is used up")
            return
        data = message.kind == DATA
        kept = data and self.last_values is not None
        goes_on = kept or route.tree is not None or any(each is not link for each in route.originals)
        onward = self.passing.message(message) if goes_on else None
        try:
            place = self._place(route, topic, payload if onward is None else onward.payload) if data else 0
            if onward is not None and route.tree is not None:
                self.trees.publish(route.tree, message.kind, NOBODY, topic, onward.payload, now, place)
            if onward is not None and kept:
                self.lasts.keep(topic, onward.payload, self.places.last(topic))
        except UsageError:
            self.drops.add(f"from {link.peer_id.hex()}, too large to be passed on")
        if onward is None:
            return
        if route.tree is not None:
            for each in self.trees.peers(route.tree):
                turn.flushes[each.conn] = each.flush
        self._pass_to_originals(route.originals, onward, message.ttl - 1, link, turn, now)

    def _pass_to_originals(
        self, links: tuple[Link, ...], message: Message, ttl: int, but: Link, turn: Turn, now: float
    ) -> None:
        for link in self.originals.pass_on(links, message, ttl, but, now):
            turn.flushes[link.conn] = link.flush

    # -- control ----------------------------------------------------------------------------------

    def _handle_control(self, link: Link, message: Message, turn: Turn, now: float) -> None:
        if message.kind in (PING, PONG):
            turn.actions += self._control(link, message, now)
        elif not link.chappe:
            self.originals.take_control(link, message)
        elif message.kind in (LINK_STATE, LINK_STATES_HAD):
            turn.actions += self.flooding.take(link, message, now)
            self.trees.number_from(self.topology.telling.numbers_from)
        elif message.kind == PERMISSIONS:
            turn.actions += self.handing_on.hear(link, message.payload, now) + self.group_keys.meet(link)
        elif message.kind == GROUP_KEYS:
            turn.actions += self.group_keys.hear(link, message.payload, now)
        else:
            self.trees.take_control(link, message, now)

    def _take_loss(self, message: Message, now: float) -> None:
        loss = Loss.parse(message.payload)
        if loss.why is LossReason.LATE:  # somebody used numbers of ours that were still to come
            if loss.origin == self._own == message.receiver:
                self.trees.outdo(loss.count, now)
            return
        if message.receiver == self._own or (self.subscriptions.filter and loss.origin != self._own):
            self.losses.heard(message.origin, loss)

    def _tell_loss(self, loss: Loss, missing: Iterable[bytes]) -> list[Effect]:
        """Tell the origin of messages, and the receivers that do not get them."""
        for receivers, receiver in (((loss.origin,), loss.origin), (missing, NOBODY)):
            to = frozenset(receivers) - {self._own, NOBODY}
            tree = self.trees.to(to) if to else None
            if tree is not None:
                self.trees.tell(tree, receiver, RESERVED_TOPIC, loss.pack())
        return list(self._flushes())

    def handle_timeout(self, now: float) -> list[Effect]:
        self.originals.unblock(self.originals.echoes.tick(now))
        self.outboxes.note_drops()
        if self.holds.due <= now:
            self.trees.hold(now)
        for early in self._early.give_up(now):
            self._refuse(*early)
        if self.trees.confirm_at <= now:
            self.trees.confirm()
        if self.trees.order.due <= now:
            self.trees.go_on(now)
        lasts: list[Effect] = []
        if self.lasts.asking.due <= now and not self.topology.changed:
            lasts += self.lasts.ask(now)
        if self.lasts.answer_at <= now:
            self.lasts.answer(now)
        losses, reports = self.losses.take(now, self.seen.take_late)
        told = [action for each, missing in losses for action in self._tell_loss(each, missing)]
        settled = [*self.settle(now), *self.flooding.tell(now), *self.group_keys.say(now), *self.handing_on.say(now)]
        if self._early.is_due(self.settled):
            turn = Turn(self.opens, self.lasts.newest)
            self._take_early(turn, now)
            turn.close()
            settled += turn.actions
        self.trees.number_from(self.topology.telling.numbers_from)
        return [*settled, *lasts, *self.drops.handle_timeout(now), *told, *self._flushes(), *reports]

    def next_timeout(self) -> float:
        if self.topology.changed or self._early.is_due(self.settled):
            return -inf
        echoes = self.originals.echoes
        dues = echoes.due, self.drops.due, self.losses.due, self.flooding.due, self._early.due
        handing_on = min(self.handing_on.due, self.group_keys.due)
        lasts = min(self.lasts.asking.due, self.lasts.answer_at)
        return min(*dues, self.holds.due, self.trees.confirm_at, self.trees.order.due, handing_on, lasts)
