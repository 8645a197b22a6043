"""What a node does for all that it carries: each part gets what concerns it, and nothing is asked for twice."""

from __future__ import annotations

import math

import pytest
from tests.fixed_clock import FixedClock

from chappe.core import Ask, Deliver, Effect, Publish, Report, Subscribe
from chappe.data.topic import Filter
from chappe.defaults import FULL_PEER_WAIT_LIVE_S, POLL_HEADS_S
from chappe.limits import LogLimits
from chappe.log.batch import encode_batch
from chappe.log.consumer import EARLIEST, LogConsumer
from chappe.log.consuming import ASKED_APART_MAX, ConsumingMember
from chappe.log.member import AT_ONCE, REQUESTS, LogProducers, OfPart, PartBroken, ProducingMember
from chappe.log.messages import BatchMessage, ConsumerHello, Fetch, GetHeads, Head, RecordMessage, Stored, StoreInfo
from chappe.log.producer import GREET_S, LogProducer, StoredTo
from chappe.log.queries import ErrorAnswer, HeadsAnswer, HeadsRequest
from chappe.log.sources import ANSWER_S

NOW = 100.0
WALL = 1_700_000_000_000_000
CLOCK = FixedClock(us=WALL)
STORE = StoreInfo("", "STORE", "id", "tcp://127.0.0.1:7000")
LIMITS = LogLimits(consumer_queue_bytes=1_000)
MANY = LIMITS.apart_max + 1


def batch(topic: str, base: int, count: int = 1, *, to: str = "") -> BatchMessage:
    body = encode_batch(base, [b"x" * 100] * count, WALL)
    return BatchMessage(to or topic, "P", topic, body, direct=bool(to))


def delivered(actions: list[Effect]) -> list[tuple[str, int]]:
    return [(each.to, each.messages.start) for each in actions if isinstance(each, Deliver)]


def subscribed(actions: list[Effect]) -> set[bytes]:
    return {each.prefix for each in actions if isinstance(each, Subscribe)}


# -- producers ------------------------------------------------------------------------------------------------


class Producing:
    """A node that carries some producers, each with a topic."""

    def __init__(self) -> None:
        self.node = ProducingMember("N")
        self.all: dict[str, LogProducers] = {}
        self.parts: dict[str, LogProducer] = {}

    def add(self, address: str, topic: str, *, identity: bool = False) -> list[Effect]:
        made = self.all[address] = LogProducers(address, self.node.subscriptions, clock=CLOCK)
        part = self.parts[address] = LogProducer(
            topic, address, subscriptions=made.subscriptions, kept=made.kept, clock=CLOCK
        )
        return [*self.node.add(made, NOW, identity), *self.node.add_topic(made, part, NOW)]

    def publish(self, address: str) -> None:
        self.parts[address].append(b"a")
        self.node.carry(self.all[address], self.parts[address].flush(NOW))


def test_its_address_says_that_it_produces() -> None:
    assert ProducingMember("N").address == "producing-N"
    assert ConsumingMember("N").address == "consuming-N"


def test_an_acknowledgement_reaches_the_producer_that_it_names() -> None:
    rig = Producing()
    for address in ("A", "B"):
        rig.add(address, "t")
        rig.publish(address)
    rig.parts["B"].awaited = 0

    (told,) = rig.node.handle_message(Stored("B", "STORE", "t", 0), NOW)

    assert told == Deliver("B", StoredTo("t", 1))
    assert (rig.parts["A"].stored, rig.parts["B"].stored) == (0, 1)
    assert rig.node.handle_message(Stored("C", "STORE", "t", 0), NOW) == []


def test_a_producer_that_comes_later_knows_who_listens() -> None:
    rig = Producing()
    rig.add("A", "t")
    rig.node.handle_subscription(b"F", True, NOW)
    rig.node.handle_subscription(b"Mt", True, NOW)
    rig.add("B", "t")

    assert rig.all["B"].stores == 1
    assert rig.all["B"].wanted


def test_a_new_listener_is_greeted_by_those_whose_topic_it_wants() -> None:
    rig = Producing()
    for address, topic in (("A", "one"), ("B", "two"), ("C", "twofold"), ("D", "zero")):
        rig.add(address, topic)
        rig.publish(address)

    assert rig.node.handle_subscription(b"Rtwo", True, NOW) == []
    heads = rig.node.handle_timeout(NOW + GREET_S)

    assert heads == [Publish(Head("two", "B", "two", 0)), Publish(Head("twofold", "C", "twofold", 0))]


def test_time_outs_are_handled_some_at_a_time() -> None:
    rig = Producing()
    for number in range(AT_ONCE + 5):
        rig.add(f"{number:03}", "t")
        rig.publish(f"{number:03}")
    due = rig.node.next_timeout()
    assert NOW < due < math.inf

    assert len(rig.node.handle_timeout(due)) == AT_ONCE
    assert rig.node.next_timeout() == due
    assert len(rig.node.handle_timeout(due)) == 5
    assert rig.node.next_timeout() > due


def test_who_leaves_takes_its_subscriptions_along_and_is_told_nothing_more() -> None:
    rig = Producing()
    rig.add("A", "t")
    rig.add("B", "t")
    rig.publish("A")

    assert rig.node.remove("A", NOW) == [Subscribe(each + b"A", False) for each in (b"A", b"T", b"F", b"K")]
    assert rig.node.remove("A", NOW) == []
    assert rig.node.next_timeout() == math.inf
    assert rig.node.handle_message(Fetch("A", "ME", "t", 0, 1), NOW) == []
    assert rig.node.handle_subscription(b"R", True, NOW) == []
    assert len(rig.node) == 1


def test_an_identity_is_claimed_as_long_as_its_producer_is_there() -> None:
    class Told:
        def claim(self, identity: str, now: float) -> list[Effect]:
            return [Report(("claim", identity, now))]

        def disclaim(self, identity: str) -> list[Effect]:
            return [Report(("disclaim", identity))]

    rig = Producing()
    rig.node.claims = Told()
    assert Report(("claim", "A", NOW)) in rig.add("A", "t", identity=True)
    assert not [each for each in rig.add("B", "t") if isinstance(each, Report)]
    assert rig.node.remove("A", NOW)[-1] == Report(("disclaim", "A"))
    assert not [each for each in rig.node.remove("B", NOW) if isinstance(each, Report)]


def test_a_part_is_asked_when_it_is_due_only_when_somebody_wants_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Producing()
    rig.add("A", "t")
    part = rig.all["A"]
    rig.node.next_timeout()
    asked: list[float] = []
    monkeypatch.setattr(part, "next_timeout", lambda: asked.append(1.0) or NOW + 7.0)  # type: ignore[func-returns-value]
    for _ in range(3):
        rig.node.carry(part, [])
    assert not asked
    assert rig.node.next_timeout() == rig.node.next_timeout() == NOW + 7.0
    assert len(asked) == 1


def test_a_part_that_does_not_know_when_it_is_due_is_carried_no_more_and_the_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Producing()
    for address in ("A", "B"):
        rig.add(address, "t")
    error = ZeroDivisionError("defect")

    def broken() -> float:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(rig.all["A"], "next_timeout", broken)
        rig.node.carry(rig.all["A"], [])
        assert rig.node.next_timeout() == -math.inf
        assert Report(OfPart("A", PartBroken(error))) in rig.node.handle_timeout(NOW)
    assert len(rig.node) == 1
    assert rig.node.next_timeout() > -math.inf


def test_a_part_that_raises_is_carried_no_more_and_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Producing()
    for address in ("A", "B"):
        rig.add(address, "t")
        rig.publish(address)
    error = ZeroDivisionError("defect")

    def broken(now: float) -> list[Effect]:
        raise error

    monkeypatch.setattr(rig.all["A"], "handle_timeout", broken)
    actions = rig.node.handle_timeout(rig.node.next_timeout())

    assert Report(OfPart("A", PartBroken(error))) in actions
    assert Subscribe(b"FA", False) in actions
    assert Publish(Head("t", "B", "t", 0)) in actions
    assert rig.node.carry(rig.all["A"], [Report("late")]) == []


# -- consumers ------------------------------------------------------------------------------------------------


class Consuming:
    """A node that carries some consumers."""

    def __init__(self) -> None:
        self.node = ConsumingMember("N", LIMITS)
        self.cores: dict[str, LogConsumer] = {}

    def add(self, address: str, *wanted: str) -> list[Effect]:
        core = self.cores[address] = LogConsumer(
            address, map(Filter.parse, wanted), EARLIEST, limits=LIMITS, clock=CLOCK
        )
        return self.node.add(core, NOW)

    def hear(self, message: BatchMessage | RecordMessage | Head | StoreInfo, now: float = NOW) -> list[Effect]:
        return self.node.handle_message(message, now)

    def take(self, address: str) -> list[Effect]:
        core = self.cores[address]
        return self.node.carry(core, core.taken(core._delivery.queued_bytes, NOW))


def test_what_several_want_is_subscribed_to_once_and_until_the_last_one_leaves() -> None:
    rig = Consuming()
    assert {b"I", b"Mt", b"Rt", b"Ht", b"SA"} <= subscribed(rig.add("A", "t"))
    assert subscribed(rig.add("B", "t")) == {b"DB", b"EB", b"LB", b"SB"}

    ends = {each.prefix for each in rig.node.remove("A", NOW) if isinstance(each, Subscribe) and not each.on}
    assert ends == {*(b"DA", b"EA", b"LA", b"SA")}
    assert Subscribe(b"Rt", False) in rig.node.remove("B", NOW)


def test_a_batch_reaches_everybody_who_wants_its_topic_once() -> None:
    rig = Consuming()
    for address, wanted in (("A", ["one"]), ("B", ["two", "t*"]), ("C", ["*"]), ("D", ["two"])):
        rig.add(address, *wanted)

    assert sorted(delivered(rig.hear(batch("one", 0)))) == [("A", 0), ("C", 0)]
    assert sorted(delivered(rig.hear(batch("two", 0)))) == [("B", 0), ("C", 0), ("D", 0)]
    rig.node.remove("C", NOW)
    assert sorted(delivered(rig.hear(batch("two", 1)))) == [("B", 1), ("D", 1)]


def test_an_answer_reaches_the_one_that_asked() -> None:
    rig = Consuming()
    rig.add("A", "t")
    rig.add("B", "t")

    assert delivered(rig.hear(batch("t", 0, to="B"))) == [("B", 0)]
    assert delivered(rig.hear(batch("t", 0, to="C"))) == []


def test_requests_of_several_consumers_are_told_apart() -> None:
    rig = Consuming()
    rig.add("A", "t")
    rig.add("B", "t")

    asks = [each for each in rig.hear(STORE) if isinstance(each, Ask)]
    assert len({each.ticket for each in asks}) == 2
    by_part = {each.ticket // REQUESTS: each.ticket for each in asks}
    for number, address in zip(sorted(by_part), ("A", "B"), strict=True):
        assert not rig.cores[address].synced
        rig.node.handle_answer(by_part[number], HeadsAnswer([], 1, False), [], NOW)
        assert rig.cores[address].synced
    assert rig.node.handle_answer(99 * REQUESTS, HeadsAnswer([], 1, False), [], NOW) == []


def test_a_consumer_that_comes_later_hears_of_the_stores() -> None:
    rig = Consuming()
    rig.add("A", "t")
    rig.hear(STORE)
    rig.node.handle_subscription(b"WORIGINAL", True, NOW)

    actions = rig.add("B", "t")

    (ask,) = [each for each in actions if isinstance(each, Ask)]
    assert isinstance(ask.request, HeadsRequest)
    assert ask.to == STORE.endpoint
    assert Publish(ConsumerHello("ORIGINAL", "B", ("t",))) in actions
    rig.node.handle_subscription(b"WORIGINAL", False, NOW)
    rig.node.handle_gone("STORE", NOW)
    assert not [each for each in rig.add("C", "t") if isinstance(each, Ask)]
    assert rig.cores["A"].stores == rig.cores["B"].stores == 0


def asked_originals(node: ConsumingMember, now: float) -> list[GetHeads]:
    """What original stores are asked until ``now``."""
    found: list[Effect] = []
    while (due := node.next_timeout()) <= now:
        found += node.handle_timeout(due)
    return [each.message for each in found if isinstance(each, Publish) and isinstance(each.message, GetHeads)]


def test_when_a_member_goes_original_stores_are_asked_for_all_consumers_at_once() -> None:
    rig = Consuming()
    rig.add("A", "t")
    rig.add("B", "t", "u*")
    rig.node.handle_gone("PRODUCER", NOW)
    assert asked_originals(rig.node, NOW + 5.0) == []  # there is no original store
    rig.node.handle_subscription(b"WORIGINAL", True, NOW + 5.0)
    asked_originals(rig.node, NOW + 50.0)

    rig.node.handle_gone("consuming-other", NOW + 50.0)
    assert asked_originals(rig.node, NOW + 60.0) == []
    rig.node.handle_gone("PRODUCER", NOW + 60.0)
    assert asked_originals(rig.node, NOW + 61.0) == [GetHeads("t", "A"), GetHeads("u", "A")]
    assert asked_originals(rig.node, NOW + 61.0) == []

    actions = rig.hear(Head("A", "P", "t", 4, direct=True), NOW + 61.0)
    fetches = [each.message for each in actions if isinstance(each, Publish)]
    assert fetches == [Fetch("P", each, "t", 0, 5) for each in ("A", "B")]


def test_a_store_of_ours_is_not_asked_as_an_original() -> None:
    rig = Consuming()
    rig.add("A", "t")
    rig.hear(STORE)
    rig.node.handle_subscription(b"WSTORE", True, NOW)
    rig.node.handle_subscription(b"G", True, NOW)
    rig.node.handle_gone("PRODUCER", NOW)
    assert asked_originals(rig.node, NOW + 10.0) == []


def test_the_topics_of_many_consumers_are_asked_for_by_what_they_begin_with() -> None:
    rig = Consuming()
    rig.add("A", *(f"topic{n}" for n in range(ASKED_APART_MAX + 1)))
    rig.node.handle_subscription(b"WORIGINAL", True, NOW)
    assert asked_originals(rig.node, NOW + 1.0) == [GetHeads("topic", "A")]


# -- consumers that are not read ----------------------------------------------------------------------------------


def fill(rig: Consuming, address: str, topic: str) -> None:
    base = 0
    while not rig.cores[address].paused:
        assert (address, base) in delivered(rig.hear(batch(topic, base)))
        base += 1


def test_alone_in_its_node_one_that_is_not_read_leaves_messages_in_the_queue() -> None:
    rig = Consuming()
    rig.add("A", "t")
    assert not rig.node.paused
    fill(rig, "A", "t")
    rig.node.handle_timeout(NOW + 2 * FULL_PEER_WAIT_LIVE_S)
    assert rig.node.paused

    rig.take("A")
    assert not rig.node.paused


def test_what_was_left_in_the_queue_is_read_when_another_consumer_comes() -> None:
    rig = Consuming()
    rig.add("A", "t")
    rig.hear(STORE)
    fill(rig, "A", "t")
    assert rig.node.paused

    rig.add("B", "other")
    assert not rig.node.paused


def test_beside_one_that_is_not_read_the_others_go_on_and_it_reads_from_the_store() -> None:
    rig = Consuming()
    rig.add("A", "t")
    rig.add("B", "*")
    rig.hear(STORE)
    fill(rig, "A", "t")
    missed = rig.cores["A"].positions()["t", "P"]
    rig.take("B")

    assert not rig.node.paused
    assert delivered(rig.hear(batch("t", missed))) == [("B", missed)]
    assert rig.cores["A"].heads()["t", "P"] == missed + 1
    assert [each for each in rig.take("A") if isinstance(each, (Ask, Publish))]  # for what it let pass


def test_where_there_is_no_store_the_others_wait_a_little() -> None:
    rig = Consuming()
    rig.add("A", "t")
    rig.add("B", "other")
    fill(rig, "A", "t")

    assert rig.node.paused
    assert rig.node.next_timeout() <= NOW + FULL_PEER_WAIT_LIVE_S
    rig.node.handle_timeout(NOW + FULL_PEER_WAIT_LIVE_S)
    assert not rig.node.paused
    assert delivered(rig.hear(batch("other", 0), NOW + 5)) == [("B", 0)]


def test_one_that_leaves_unread_holds_nobody_up() -> None:
    rig = Consuming()
    rig.add("A", "t")
    rig.add("B", "other")
    fill(rig, "A", "t")
    assert rig.node.paused

    rig.node.remove("A", NOW)
    assert not rig.node.paused


# -- news of stores -----------------------------------------------------------------------------------------------


def asked(actions: list[Effect]) -> list[Ask]:
    return [each for each in actions if isinstance(each, Ask)]


def many() -> Consuming:
    """Consumers of ``t00*``, ``t01*`` ... that know version 7 of a store, but for the last one: it knows 6."""
    rig = Consuming()
    for number in range(MANY):
        rig.add(f"{number:02}", f"t{number:02}*")
    asks = asked(rig.hear(STORE))
    assert len(asks) == MANY
    for ask in asks:
        rig.node.handle_answer(ask.ticket, HeadsAnswer([], 6 if ask is asks[-1] else 7, False), [], NOW)
    return rig


def second(rig: Consuming, number: float) -> list[Ask]:
    return asked(rig.node.handle_timeout(NOW + number * POLL_HEADS_S))


def rows(topic: str, version: int) -> list[tuple[bytes, bytes, int, int, int, int, int, int]]:
    return [(topic.encode(), b"P", 0, 1, 10, 0, 0, version)]


def test_few_ask_for_news_themselves() -> None:
    rig = Consuming()
    for number in range(MANY - 1):
        rig.add(f"{number:02}", f"t{number:02}*")
    for ask in asked(rig.hear(STORE)):
        rig.node.handle_answer(ask.ticket, HeadsAnswer([], 7, False), [], NOW)
    assert len(second(rig, 1)) == MANY - 1


def test_for_many_the_node_asks_once_a_second_and_nothing_else_is_due() -> None:
    rig = many()
    for number in range(1, 4):
        assert rig.node.next_timeout() == NOW + number
        (ask,) = second(rig, number)
        assert ask.request == HeadsRequest(b"t", 6 if number == 1 else 7)
        assert rig.node.handle_answer(ask.ticket, HeadsAnswer([], 7, False), [], NOW + number) == []


def test_those_who_want_what_is_new_ask_for_themselves() -> None:
    rig = many()
    (ask,) = second(rig, 1)
    (own,) = asked(rig.node.handle_answer(ask.ticket, HeadsAnswer(rows("t03", 8), 8, False), [], NOW + 1))
    assert own.request == HeadsRequest(b"t03", 7)
    (read,) = asked(rig.node.handle_answer(own.ticket, HeadsAnswer(rows("t03", 8), 8, False), [], NOW + 1))
    assert read.request.topic == b"t03"
    assert [each.request for each in second(rig, 2)] == [HeadsRequest(b"t", 8)]


def test_who_knows_less_than_the_others_misses_nothing() -> None:
    rig = many()
    (ask,) = second(rig, 1)
    (own,) = asked(rig.add("late", "t99*"))
    rig.node.handle_answer(own.ticket, HeadsAnswer([], 5, False), [], NOW + 1)
    rig.node.handle_answer(ask.ticket, HeadsAnswer([], 7, False), [], NOW + 1)  # to a question from before
    (ask,) = second(rig, 2)
    assert ask.request == HeadsRequest(b"t", 5)
    (own,) = asked(rig.node.handle_answer(ask.ticket, HeadsAnswer(rows("t99", 6), 7, False), [], NOW + 2))
    assert own.request == HeadsRequest(b"t99", 5)


@pytest.mark.parametrize("answer", [HeadsAnswer([], 7, True), ErrorAnswer("no")])
def test_if_the_answer_does_not_tell_all_everybody_asks(answer: HeadsAnswer | ErrorAnswer) -> None:
    rig = many()
    (ask,) = second(rig, 1)
    asks = asked(rig.node.handle_answer(ask.ticket, answer, [], NOW + 1))
    assert len(asks) == MANY
    for each in asks:
        rig.node.handle_answer(each.ticket, HeadsAnswer([], 9, False), [], NOW + 1)
    assert [each.request for each in second(rig, 2)] == [HeadsRequest(b"t", 9)]


def test_if_no_answer_comes_everybody_asks() -> None:
    rig = many()
    second(rig, 1)
    assert second(rig, 1 + ANSWER_S - 0.1) == []
    assert len(second(rig, 1 + ANSWER_S)) == MANY


def test_a_store_that_is_gone_is_not_asked() -> None:
    rig = many()
    (ask,) = second(rig, 1)
    rig.node.handle_gone("STORE", NOW + 1)
    assert rig.node.handle_answer(ask.ticket, HeadsAnswer([], 9, False), [], NOW + 1) == []
    assert second(rig, 9) == []
    assert rig.node.next_timeout() == math.inf


def test_who_wants_to_know_the_end_while_its_question_is_under_way_asks_again() -> None:
    rig = many()
    core = rig.cores["03"]
    (first,) = asked(rig.node.carry(core, core.seek_end(NOW + 0.5)))
    assert asked(rig.node.carry(core, core.seek_end(NOW + 0.6))) == []
    rig.node.handle_answer(first.ticket, HeadsAnswer([], 7, False), [], NOW + 0.7)
    assert not core.end_known(NOW + 0.6, NOW + 0.7)
    (again,) = second(rig, 0.7)
    rig.node.handle_answer(again.ticket, HeadsAnswer([], 7, False), [], NOW + 0.8)
    assert core.end_known(NOW + 0.6, NOW + 0.8)


def end(rig: Consuming) -> None:
    """Nobody wants anything any more; all are still there."""
    for core in rig.cores.values():
        for wanted in core.filters:
            rig.node.unsubscribe(core, wanted, NOW)


def test_when_all_have_ended_nothing_is_asked_and_who_comes_then_is_asked_for() -> None:
    rig = many()
    end(rig)
    rig.node.remove("00", NOW)

    assert second(rig, 1) == []
    assert second(rig, 2) == []
    now = NOW + 3
    (own,) = asked(rig.node.add(LogConsumer("late", [Filter.parse("t00*")], EARLIEST, limits=LIMITS, clock=CLOCK), now))
    rig.node.handle_answer(own.ticket, HeadsAnswer([], 7, False), [], now)
    assert [each.request for each in second(rig, 4)] == [HeadsRequest(b"t00", 7)]


def test_an_answer_to_one_that_has_ended_meanwhile_does_no_harm() -> None:
    rig = many()
    (own,) = asked(rig.add("late", "t99*"))
    end(rig)

    assert not rig.node.handle_answer(own.ticket, HeadsAnswer([], 7, False), [], NOW)


def test_nothing_is_left_of_one_that_has_ended_and_leaves() -> None:
    rig = Consuming()
    rig.add("A", "t", "u*")
    rig.add("B", "t")
    end(rig)

    assert (rig.node._exact, rig.node._prefixed) == ({}, {})
    rig.node.remove("A", NOW)
    rig.node.remove("B", NOW)
    assert (rig.node._exact, rig.node._named, rig.node._prefixed) == ({}, {}, {})


def test_records_go_to_those_who_want_the_topic_by_now() -> None:
    rig = Consuming()
    rig.add("A", "t")
    rig.add("B", "u*")
    assert delivered(rig.node.handle_message(batch("u1", 0), NOW)) == [("B", 0)]

    told = rig.node.subscribe(rig.cores["A"], Filter("u1"), NOW)
    rig.node.unsubscribe(rig.cores["B"], Filter("u", prefix=True), NOW)

    assert subscribed(told) == {b"Ru1", b"Mu1", b"Hu1"}
    assert delivered(rig.node.handle_message(batch("u1", 0), NOW)) == [("A", 0)]
    rig.node.subscribe(rig.cores["B"], Filter("u", prefix=True), NOW)
    assert delivered(rig.node.handle_message(batch("u1", 1), NOW)) == [("A", 1), ("B", 1)]


def test_the_other_patterns_of_one_that_unsubscribes_stay() -> None:
    rig = Consuming()
    rig.add("A", "t*", "u*", "v", "v*")
    rig.node.unsubscribe(rig.cores["A"], Filter("t", prefix=True), NOW)
    rig.node.unsubscribe(rig.cores["A"], Filter("v"), NOW)

    assert delivered(rig.node.handle_message(batch("t1", 0), NOW)) == []
    assert delivered(rig.node.handle_message(batch("u1", 0), NOW)) == [("A", 0)]
    assert delivered(rig.node.handle_message(batch("v", 0), NOW)) == [("A", 0)]


def test_a_node_that_asks_for_all_asks_for_topics_that_are_subscribed_later() -> None:
    rig = many()
    core = rig.cores["03"]
    (own,) = [
        each for each in asked(rig.node.subscribe(core, Filter("x"), NOW)) if each.request == HeadsRequest(b"x", 0)
    ]
    rig.node.handle_answer(own.ticket, HeadsAnswer(rows("x", 6), 7, False), [], NOW)
    assert {each.request.topic_prefix for each in second(rig, 5) if isinstance(each.request, HeadsRequest)} >= {b""}
