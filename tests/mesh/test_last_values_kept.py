"""Last values: who keeps them, who is told, and that nothing comes twice or behind something newer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.mesh.net_rig import TOPIC, Net, Node
from tests.mesh.rogue_rig import Peer, Rig

from chappe.defaults import LAST_ASKED_AGAIN_S, LAST_TRIES, LAST_VALUES_BYTES_MAX
from chappe.errors import ProtocolError, UsageError
from chappe.mesh.filters import LAST_ASK, LAST_TOLD, Filter
from chappe.mesh.forwarding.last_values import (
    KeptLastValues,
    LastQuestions,
    Newest,
    is_newer,
    pack_answers,
    pack_question,
    parse_answer,
    parse_question,
)
from chappe.mesh.messages import COMMAND, DATA, NOBODY, Message
from chappe.mesh.places import COUNT_MAX

ORIGIN, OTHER = b"o" * 16, b"p" * 16
COUNTING = COUNT_MAX + 1
LATE = 9  # a subscriber
ALL = (b"/",)


def message(
    place: int, topic: bytes = TOPIC, origin: bytes = ORIGIN, payload: bytes = b"x", number: int = 0
) -> Message:
    return Message(topic, payload, origin=origin, sequence=number or place, place=place)


def ask(net: Net, node: Node, wanted: Filter = ALL) -> None:
    node.do(node.core.subscribe(LATE, wanted, DATA, False, True, now=node.now))
    for _ in range(3):
        net.pass_time(0.1)
        net.pump()


def keeping(count: int, links: Sequence[tuple[int, int]], *keepers: int, topics: int = 100) -> Net:
    """A net of which some nodes keep last values."""
    net = Net(count)
    for number in keepers:
        net.nodes[number] = Node(number, last_values=topics)
    for one, two in links:
        net.link(one, two)
    net.settle()
    return net


# -- who is told ----------------------------------------------------------------------------------------


def test_who_subscribes_late_gets_the_newest_of_each_topic_from_the_publisher() -> None:
    net = keeping(2, [(0, 1)], 0)
    for text in (b"1", b"2", b"3"):
        net[0].publish(text, b"/a")
    net[0].do(net[0].core.publish_many([(b"/b", b"%d" % each) for each in range(9)], net[0].now)[0])
    net[0].publish(b"elsewhere", b"other")
    ask(net, net[1])
    assert [(each.topic, each.payload) for each in net[1].delivered] == [(b"/a", b"3"), (b"/b", b"8")]
    assert {(each.origin, each.place & COUNT_MAX) for each in net[1].delivered} == {(net[0].id, 3), (net[0].id, 9)}
    net[0].publish(b"4", b"/a")
    net.pump()
    assert net[1].payloads[2:] == [b"4"]


def test_who_passes_it_on_tells_it_when_the_publisher_is_gone() -> None:
    net = keeping(4, [(0, 1), (1, 2), (1, 3)], 1)
    net.want(2)
    net[0].publish(b"1")
    net[0].do(net[0].core.publish_many([(TOPIC, b"2"), (TOPIC, b"3")], net[0].now)[0])
    net[0].publish(b"for one", to=net[2])
    net.settle()
    net.kill(0)
    ask(net, net[3])
    assert net[3].payloads == [b"3"]
    assert net[3].delivered[0].origin == net[0].id


def test_two_that_keep_it_bring_it_once_and_nobody_else_is_told() -> None:
    net = keeping(4, [(0, 1), (1, 2), (1, 3)], 0, 1)
    net.want(2)
    net[0].publish(b"1")
    net.settle()
    ask(net, net[3])
    assert net[3].payloads == [b"1"]
    assert net[2].payloads == [b"1"]


def test_one_that_comes_into_reach_is_asked_then_and_one_that_is_back_is_asked_again() -> None:
    net = keeping(2, [], 0)
    net[0].publish(b"1")
    ask(net, net[1])
    assert net[1].payloads == []
    for text in (b"1", b"2"):
        net[0].publish(text)
        net.link(0, 1)
        net.settle()
        for _ in range(3):
            net.pass_time(0.1)
            net.pump()
        net.cut(0, 1)
        net.settle()
    assert net[1].payloads == [b"1", b"2"]


def test_a_topic_that_is_added_is_asked_for_and_one_that_has_ended_asks_nobody() -> None:
    net = keeping(2, [(0, 1)], 0)
    net[0].publish(b"a", b"/a")
    net[0].publish(b"b", b"/b")
    ask(net, net[1], (b"/a",))
    ask(net, net[1], (b"/b",))
    assert net[1].payloads == [b"a", b"b"]
    net[1].do(net[1].core.unsubscribe(LATE, None, net[1].now))
    assert not net[1].core.router.lasts.newest
    assert not net[1].core.router.lasts.asking._asked


def test_what_is_kept_here_is_told_here_but_not_what_is_published_here() -> None:
    net = keeping(2, [(0, 1)], 1)
    net.want(1)
    net[0].publish(b"theirs", b"/t/1")
    net[1].publish(b"ours", b"/t/2")
    net.settle()
    assert net[1].payloads == [b"theirs"]
    ask(net, net[1])
    assert net[1].payloads == [b"theirs", b"theirs"]  # of two subscribers


def test_what_an_original_brought_is_told() -> None:
    net = keeping(2, [(0, 1)], 0)
    original = Peer(net[0], b"\x77" * 16, chappe=False)
    original.send(original.plain(DATA, TOPIC, b"1"))
    ask(net, net[1])
    assert [(each.payload, each.origin) for each in net[1].delivered] == [(b"1", net[0].id)]


def test_many_values_come_in_parts_as_there_is_room() -> None:
    net = keeping(3, [(0, 1), (1, 2)], 0, topics=2_000)
    for number in range(1_500):
        net[0].publish(bytes(1_000), b"/%d" % number)
    ask(net, net[2])
    for _ in range(100):
        net.pass_time(0.05)
        net.pump()
    assert len({each.topic for each in net[2].delivered}) == len(net[2].delivered) == 1_500
    assert not net[0].core.router.lasts.answering


def test_nobody_publishes_to_these_topics_or_asks_everybody() -> None:
    net = keeping(2, [(0, 1)], 0)
    for topic in (LAST_ASK, LAST_TOLD):
        with pytest.raises(UsageError):
            net[1].publish(b"", topic)
    rig = Rig(last_values=3)
    peer = Peer(rig, b"v" * 16)
    peer.send(peer.publication(LAST_ASK, pack_question(1, ALL)))
    peer.send(peer.publication(LAST_TOLD, next(pack_answers(1, [message(1)])), sequence=2))
    rig.want(b"")
    peer.send(peer.publication(LAST_TOLD, next(pack_answers(1, [message(1)])), sequence=3, receiver=rig.core.own_id))
    assert rig.delivered == []


@pytest.mark.parametrize("payload", [b"", b"\0" * 8, bytes(7), pack_question(1, ALL)[:-1]])
def test_malformed_questions_and_answers_are_refused(payload: bytes) -> None:
    rig = Rig(last_values=3)
    peer = Peer(rig, b"v" * 16)
    rig.do(rig.core.subscribe(LATE, ALL, DATA, False, True, now=0.0))
    for number, topic in ((1, LAST_ASK), (2, LAST_TOLD)):
        peer.send(peer.publication(topic, payload, sequence=number, receiver=rig.core.own_id))
    assert rig.delivered == []
    with pytest.raises(ProtocolError):
        parse_question(payload)


def test_an_answer_that_is_cut_off_anywhere_is_refused() -> None:
    [whole] = pack_answers(5, [message(3, b"/t", payload=b"value")])
    assert parse_answer(whole, OTHER)[0:2] == (5, True)
    assert [each.payload for each in parse_answer(whole, OTHER)[2]] == [b"value"]
    for length in {*range(len(whole))} - {9}:
        with pytest.raises(ProtocolError):
            parse_answer(whole[:length], OTHER)
    with pytest.raises(ProtocolError):
        parse_answer(next(pack_answers(5, [message(COUNTING)])), OTHER)


# -- what is kept ---------------------------------------------------------------------------------------


def test_the_newest_of_each_topic_is_kept_and_the_oldest_topics_give_way() -> None:
    kept = KeptLastValues(2)
    for each in (message(2), message(1), message(1, b"/u"), message(3), message(1, b"/v")):
        kept.note(each)
    assert [(topic, found.place) for topic in kept.topics((b"",)) if (found := kept.get(topic))] == [
        (TOPIC, 3),
        (b"/v", 1),
    ]
    assert kept.topics((b"/v",)) == [b"/v"]
    assert kept.invariants() == []


def test_of_two_publishers_the_one_that_came_last_is_kept() -> None:
    kept = KeptLastValues(2)
    for each in (message(9), message(1, origin=OTHER), message(8)):
        kept.note(each)
    found = kept.get(TOPIC)
    assert found is not None
    assert (found.origin, found.place) == (ORIGIN, 8)


def test_the_bytes_of_all_have_a_bound() -> None:
    kept = KeptLastValues(1_000)
    for number in range(5):
        kept.note(message(1, b"/%d" % number, payload=bytes(LAST_VALUES_BYTES_MAX // 4)))
    kept.note(message(1, b"/large", payload=bytes(LAST_VALUES_BYTES_MAX)))
    assert kept.topics((b"",)) == [b"/2", b"/3", b"/4"]
    assert kept.invariants() == []


def test_commands_and_what_is_for_one_alone_are_no_values() -> None:
    net = keeping(2, [(0, 1)], 0, 1)
    net.want(1)
    net[0].do(net[0].core.publish(TOPIC, b"command", COMMAND, NOBODY, net[0].now))
    net[0].publish(b"one", to=net[1])
    net.settle()
    for node in net.nodes:
        assert node.core.router.last_values is not None
        assert len(node.core.router.last_values) == 0


@pytest.mark.parametrize(
    ("one", "two", "newer"),
    [
        ((5, 1), (4, 9), True),
        ((4, 9), (5, 1), False),
        ((5, 5), (5, 5), False),
        ((COUNTING + 1, 9), (7, 8), True),  # another life
        ((7, 8), (COUNTING + 1, 9), False),
    ],
)
def test_places_say_what_is_newer_and_numbers_across_countings(
    one: tuple[int, int], two: tuple[int, int], newer: bool
) -> None:
    assert is_newer(*one, two) is newer


def test_a_subscriber_gets_nothing_that_is_not_newer_but_what_was_sealed_together() -> None:
    newest = Newest()
    given = [message(2), message(2), message(1), message(3), message(1, b"/u"), message(0), message(0)]
    assert [each.place for each in newest.fresh(given)] == [2, 2, 3, 1, 0, 0]
    assert newest.fresh([message(3), message(1, b"/u"), message(2)]) == []
    small = Newest(2)
    small.fresh([message(1), message(1, b"/u")])
    assert not small.full
    assert len(small.fresh([message(1, b"/v")])) == 1
    assert small.full


def test_who_does_not_answer_is_asked_again_a_few_times() -> None:
    asking = LastQuestions()
    asking.begin(1)
    now, asked = 0.0, []
    for _ in range(2 * LAST_TRIES):
        asked += asking.ask(frozenset([ORIGIN]), now)
        now += LAST_ASKED_AGAIN_S
    assert asked == [(1, ORIGIN)] * LAST_TRIES
    assert asking.ask(frozenset(), now) == []
    assert asking.ask(frozenset([ORIGIN]), now) == [(1, ORIGIN)]
    assert asking.answered(1, ORIGIN, True, now)
    assert not asking.answered(1, OTHER, True, now)
    assert asking.ask(frozenset([ORIGIN]), now + 9 * LAST_ASKED_AGAIN_S) == []
