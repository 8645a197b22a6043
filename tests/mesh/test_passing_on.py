"""A function that is shown what passes: what goes on, what does not, and what nobody downstream notices otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from tests.mesh.net_rig import TOPIC, Net, Node
from tests.mesh.rogue_rig import SUBSCRIBER, Peer, Rig

from chappe.defaults import DROPS_REPORT_S, MESH_MESSAGE_BYTES_MAX
from chappe.mesh.flows import FLOW_BATCH, FLOW_DATA
from chappe.mesh.forwarding.judging import FAILED, Shows
from chappe.mesh.messages import COMMAND, DATA, NOBODY, Message

CHAIN = [(0, 1), (1, 2), (2, 3)]


def shows(node: Node | Rig, function: Callable[[Message], bytes | None]) -> list[Message]:
    """Have a function shown what passes at a node; returns what it was shown."""
    seen: list[Message] = []

    def show(message: Message) -> bytes | None:
        seen.append(message)
        return function(message)

    found: Shows = show
    node.core.router.passing.shows = found
    return seen


def unchanged(message: Message) -> bytes | None:
    return message.payload


def but_threes(message: Message) -> bytes | None:
    """What is no multiple of three."""
    return message.payload if int(message.payload) % 3 else None


def publish_many(node: Node, count: int) -> None:
    messages = [(TOPIC, b"%d" % number) for number in range(1, count + 1)]
    node.do(node.core.publish_many(messages, node.now)[0])


def texts(numbers: range, but: int = 10**9) -> list[bytes]:
    return [b"%d" % number for number in numbers if number % but]


def test_what_passes_unchanged_goes_on_as_it_came() -> None:
    frames = []
    for active in (False, True):
        net = Net(4, CHAIN)
        net.want(1, 3)
        seen = shows(net[1], unchanged) if active else []
        net[0].publish(b"1")
        publish_many(net[0], 5)
        net.pump()
        frames.append(net.flows())
        assert net[1].payloads == net[3].payloads == [b"1", *texts(range(1, 6))]
        assert [each.payload for each in seen] == ([b"1", *texts(range(1, 6))] if active else [])
    assert frames[0] == frames[1]
    assert {(each.topic, each.origin, each.kind) for each in seen} == {(TOPIC, net[0].id, DATA)}


def test_it_is_not_shown_what_is_published_here_or_goes_no_further() -> None:
    net = Net(4, CHAIN)
    net.want(0, 1)
    seen = shows(net[1], lambda message: None)
    net[1].publish(b"1")
    net[0].publish(b"2")
    net.pump()
    assert seen == []
    assert (net[0].payloads, net[1].payloads) == ([b"1"], [b"2"])


def test_commands_of_data_stores_and_topics_of_endpoints_pass_unseen() -> None:
    net = Net(4, CHAIN)
    net.want(3, topic=b"")
    net[3].do(net[3].core.subscribe(SUBSCRIBER + 1, [b""], COMMAND, now=net[3].now))
    net.settle()
    seen = shows(net[1], lambda message: None)
    net[0].do(net[0].core.publish(b"store", b"1", COMMAND, NOBODY, net[0].now))
    net[0].publish(b"2", b"<$>/links/told")
    net.pump()
    assert seen == []
    assert net[3].payloads == [b"1", b"2"]


@pytest.mark.parametrize("several", [False, True])
def test_those_downstream_miss_what_is_held_back_and_nothing_is_sent_again(several: bool) -> None:
    net = Net(4, CHAIN)
    net.want(1, 2, 3)
    shows(net[1], but_threes)
    if several:
        publish_many(net[0], 11)
    else:
        for text in texts(range(1, 12)):
            net[0].publish(text)
    net.settle()
    assert net[1].payloads == texts(range(1, 12))  # subscribers here get what came
    assert net[2].payloads == net[3].payloads == texts(range(1, 12), 3)
    assert net[1].core.router.passing.filtered == 3
    assert net.is_idle()
    assert [each for node in net.nodes for each in (*node.told(), *node.dropped())] == []


def test_a_batch_of_which_some_are_held_back_goes_on_in_few_frames() -> None:
    net = Net(4, CHAIN)
    net.want(3)
    shows(net[1], but_threes)
    publish_many(net[0], 8)
    net.pump()
    assert Counter(net.ways([FLOW_BATCH])) == {(0, 1): 1, (1, 2): 2, (2, 3): 2}  # of 2 to 8: 4 and 5, 7 and 8
    assert Counter(net.ways([FLOW_DATA])) == {(0, 1): 1, (1, 2): 2, (2, 3): 2}  # 1, which is no part of it, and 2


def test_what_is_changed_keeps_its_origin_number_and_receiver() -> None:
    net = Net(4, CHAIN)
    net.want(1, 3)
    shows(net[1], lambda message: message.payload * 2)
    net[0].publish(b"1", to=net[3])
    publish_many(net[0], 3)
    net.pump()
    assert net[3].payloads == [b"11", b"11", b"22", b"33"]
    got, came = net[3].delivered, net[1].delivered
    assert [each.receiver for each in got] == [net[3].id, NOBODY, NOBODY, NOBODY]
    assert [(each.origin, each.sequence) for each in got[1:]] == [(each.origin, each.sequence) for each in came]
    net.settle()
    assert net.is_idle()


def test_the_time_of_a_publication_stays() -> None:
    net = Net(4, CHAIN)
    node = net[3]
    node.do(node.core.subscribe(SUBSCRIBER, [TOPIC], DATA, True, now=node.now))
    net.settle()
    shows(net[1], lambda message: message.payload + b"0")
    publish_many(net[0], 3)
    net.pump()
    assert [each.payload for each in node.delivered] == [b"10", b"20", b"30"]
    assert all(each.published is not None for each in node.delivered)


def test_larger_payloads_are_as_many_batches_as_they_need() -> None:
    net = Net(4, CHAIN)
    net.want(3)
    shows(net[1], lambda message: message.payload.ljust(100_000))
    publish_many(net[0], 6)
    net.pump()
    assert net[3].payloads == [each.ljust(100_000) for each in texts(range(1, 7))]


@pytest.mark.parametrize("wrong", ["raises", "too large"])
def test_what_it_fails_on_is_held_back_and_counted(wrong: str) -> None:
    def fail(message: Message) -> bytes | None:
        if message.payload != b"2":
            return message.payload
        if wrong == "raises":
            raise LookupError("of the application")
        return bytes(MESH_MESSAGE_BYTES_MAX)

    net = Net(4, CHAIN)
    net.want(3)
    shows(net[1], fail)
    publish_many(net[0], 3)
    net.pump()
    net.pass_time(DROPS_REPORT_S)
    assert net[3].payloads == [b"1", b"3"]
    assert [(each.where, each.count) for each in net[1].dropped()] == [(FAILED, 1)]
    assert net[1].core.router.passing.filtered == 0


def test_a_detour_is_shown_and_what_is_left_of_its_batch_arrives_in_order() -> None:
    # 0-1-2-3, and 1-4-5-3 that is longer: when 2-3 breaks, 2 sends what it keeps around over 1, which is shown it.
    net = Net(6, [*CHAIN, (1, 4), (4, 5), (5, 3)])
    net.want(3)
    net.held = {(2, 3)}
    publish_many(net[0], 8)
    net.pump()
    assert net[3].payloads == []
    seen = shows(net[1], but_threes)
    net.held = {(2, 1), (1, 2)}
    net.cut(2, 3)
    net.held = set()
    net.settle()
    net[0].publish(b"10")
    net.settle()
    assert [each.payload for each in seen] == [*texts(range(1, 9)), b"10"]
    assert net[3].payloads == [*texts(range(1, 9), 3), b"10"]
    assert net.is_idle()


# -- beside originals ---------------------------------------------------------------------------------------------


def original(rig: Rig, number: int, *wanted: bytes) -> Peer:
    return Peer(rig, bytes([number]) * 16, chappe=False, wanted=wanted)


def came_to(peer: Peer) -> list[bytes]:
    return [each.payload for each in peer.messages() if each.kind == DATA]


def test_what_passes_between_originals_is_shown_once() -> None:
    rig = Rig()
    one, two, three = (original(rig, number, TOPIC) for number in (1, 2, 3))
    rig.want(TOPIC)
    rig.pass_time(5.0)
    for peer in (one, two, three):
        peer.take()
    seen = shows(rig, lambda message: None if message.payload == b"2" else message.payload + b"0")
    for text in texts(range(1, 4)):
        one.send(one.plain(DATA, TOPIC, text))
    assert [each.payload for each in seen] == texts(range(1, 4))
    assert [each.payload for each in rig.delivered] == texts(range(1, 4))
    assert came_to(one) == []
    assert came_to(two) == came_to(three) == [b"10", b"30"]


def test_what_passes_on_to_originals_and_others_is_shown_once() -> None:
    rig = Rig()
    one, two = (Peer(rig, bytes([number]) * 16, wanted=[TOPIC]) for number in (1, 2))
    three = original(rig, 3, TOPIC)
    for peer in (one, two):
        peer.send(peer.state(wanted=[TOPIC], chappe=[rig.core.own_id]))
    rig.want(TOPIC)
    rig.pass_time(5.0)
    for peer in (one, two, three):
        peer.take()
    seen = shows(rig, lambda message: None if message.payload == b"2" else message.payload + b"0")
    for number in range(1, 4):
        one.send(one.publication(TOPIC, b"%d" % number, sequence=number, below=[two.id]))
    assert [each.payload for each in seen] == texts(range(1, 4))
    assert [each.payload for each in rig.delivered] == texts(range(1, 4))
    assert came_to(two) == came_to(three) == [b"10", b"30"]
    three.send(three.plain(DATA, TOPIC, b"4"))
    assert came_to(one) == came_to(two) == [b"40"]
