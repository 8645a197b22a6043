"""The exchange of last values: asks other endpoints for those that subscribers here want, and answers others."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from chappe.core import Deliver, Effect, Flush
from chappe.defaults import LAST_ROOM_S
from chappe.mesh.filters import LAST_ASK, LAST_TOLD, Filter, matches, minimal
from chappe.mesh.forwarding.duplicates import Opens
from chappe.mesh.forwarding.flooding import Flooding
from chappe.mesh.forwarding.judging import MessageJudge
from chappe.mesh.forwarding.last_values import (
    KeptLastValues,
    LastAnswers,
    LastQuestions,
    Newest,
    pack_answers,
    pack_question,
    parse_answer,
    parse_question,
)
from chappe.mesh.forwarding.routes import Routes, TopicSubscriptions
from chappe.mesh.forwarding.version2 import Trees
from chappe.mesh.messages import DATA, NOBODY, Message
from chappe.mesh.topology import Topology


class LastExchange:
    """Questions, answers and ``kept`` values, if any, of one endpoint; ``newest`` by subscriber that wants them."""

    def __init__(
        self,
        own: bytes,
        kept: KeptLastValues | None,
        topology: Topology,
        subscriptions: TopicSubscriptions,
        routes: Routes,
        trees: Trees,
        flooding: Flooding,
        judge: MessageJudge,
    ) -> None:
        self.kept = kept
        self.newest: dict[int, Newest] = {}
        self.asking = LastQuestions()
        self.answering = LastAnswers()
        self.answer_at = inf
        self._own = own
        self._topology = topology
        self._subscriptions = subscriptions
        self._routes = routes
        self._trees = trees
        self._flooding = flooding
        self._judge = judge

    def want(self, subscriber: int) -> None:
        self.newest.setdefault(subscriber, Newest())
        self.asking.begin(subscriber)

    def forget(self, subscriber: int) -> None:
        if self.newest.pop(subscriber, None) is not None:
            self.asking.forget(subscriber)

    def keep(self, topic: bytes, payload: bytes, place: int) -> None:
        assert self.kept is not None
        self._trees.number += 1  # also of what went nowhere, so that what follows is newer
        number = self._trees.number
        self.kept.note(Message(topic, payload, DATA, self._own, NOBODY, 0, self._own, number, None, place))

    def ask(self, now: float) -> list[Effect]:
        """Send the questions that are due; values kept here are delivered at once."""
        wanting = [each for each, wanted in self._topology.filters().items() if matches(wanted, LAST_ASK)]
        keepers = frozenset([self._own, *filter(self._topology.has_way, wanting)])
        found: list[Effect] = []
        for subscriber, keeper in self.asking.ask(keepers, now):
            prefixes = self._subscriptions.prefixes(subscriber)
            if keeper != self._own:
                self._say(keeper, LAST_ASK, pack_question(subscriber, prefixes), now)
                continue
            self.asking.answered(subscriber, keeper, True, now)
            kept = self.kept
            if kept is not None:
                values = [each for topic in kept.topics(minimal(prefixes)) if (each := kept.get(topic)) is not None]
                found += self.deliver(subscriber, [each for each in values if each.origin != self._own])
        return found

    def take(self, message: Message, opens: Opens | None, now: float) -> list[Effect]:
        asker = message.origin
        if message.topic == LAST_ASK:
            subscriber, wanted = parse_question(message.payload)
            if self.answering.owe(asker, subscriber, pack_answers(subscriber, self._values_for(asker, wanted))):
                self.answer(now)
            return []
        subscriber, complete, messages = parse_answer(message.payload, message.sender)
        newest = self.newest.get(subscriber)
        if newest is None or not self.asking.answered(subscriber, message.origin, complete, now) or newest.full:
            return []
        prefixes = tuple(self._subscriptions.prefixes(subscriber))
        wanted_ones = [each for each in messages if each.origin != self._own and each.topic.startswith(prefixes)]
        if opens is not None:
            wanted_ones = [opened for each in wanted_ones for opened in opens([each])]
        return self.deliver(subscriber, wanted_ones)

    def _values_for(self, asker: bytes, wanted: Filter) -> Iterator[Message]:
        """Iterate over the kept messages of some topics that an endpoint may have, each read when its turn comes."""
        kept = self.kept
        for topic in [] if kept is None else kept.topics(wanted):
            message = None if kept is None else kept.get(topic)
            rules = self._judge.rules
            if message is not None and (rules is None or rules.gets_as(asker, topic)):
                yield message

    def answer(self, now: float) -> None:
        """Send answers that are owed, as far as there is room."""
        self.answer_at = inf
        for key in self.answering.askers():
            while True:
                route = self._routes.towards(key[0], DATA, LAST_TOLD)
                if route.tree is None:
                    self.answering.forget(key)
                    break
                if any(link.outbox.full for link in self._trees.peers(route.tree)) or self._trees.is_held(route.tree):
                    self.answer_at = now + LAST_ROOM_S
                    break
                part = self.answering.next_part(key)
                if part is None:
                    break
                self._say(key[0], LAST_TOLD, part, now)

    def _say(self, receiver: bytes, topic: bytes, payload: bytes, now: float) -> None:
        route = self._routes.towards(receiver, DATA, topic)
        if route.tree is not None:
            for each in self._flooding.hurry(now):
                if isinstance(each, Flush):
                    self._trees.flushes[each.link] = each
            for link in self._trees.peers(route.tree):
                self._trees.flushes[link.conn] = link.flush
            self._trees.publish(route.tree, DATA, receiver, topic, payload, now, 0)

    def deliver(self, subscriber: int, messages: list[Message]) -> list[Effect]:
        newest = self.newest.get(subscriber)
        fresh = messages if newest is None else newest.fresh(messages)
        return [Deliver(subscriber, fresh)] if fresh else []
