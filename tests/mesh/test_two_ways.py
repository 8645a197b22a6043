"""Endpoints that publish in two ways: what crosses which link, what arrives when something dies, and what is told."""

from __future__ import annotations

from random import Random

import pytest
from tests.mesh.net_rig import TOPIC, Net
from tests.mesh.rogue_rig import SUBSCRIBER

from chappe.defaults import CONFIRM_S, DROPS_REPORT_S
from chappe.mesh.flows import DETOUR, FLOW_DATA, pack_publication, parse_head, parse_publication
from chappe.mesh.forwarding import published
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.forwarding.losses import LossReason
from chappe.mesh.messages import DATA, NOBODY, TREE

CHAIN = [(0, 1), (1, 2)]
DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]
HEXAGON = [(0, 1), (1, 2), (2, 5), (0, 3), (3, 4), (4, 5)]
BRIDGE = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)]  # a link, and a diamond behind it


def texts(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def assert_idle(net: Net, dead: int) -> None:
    """Nobody who lives keeps anything for anybody."""
    assert not any(branch.busy for node in net.nodes if node.number != dead for branch in node.trees._labels.values())


# -- what crosses which link ------------------------------------------------------------------------


def test_a_message_goes_in_two_ways_and_is_delivered_once() -> None:
    net = Net(4, DIAMOND, paths=2)
    net.want(3)
    for text in texts(1, 3):
        net[0].publish(text)
    net.pump()
    assert sorted(net.ways()) == sorted(DIAMOND * 3)
    assert len({parse_head(body)[:2] for _, _, body in net.flows()}) == 3  # both copies have the same number
    assert net[3].payloads == texts(1, 3)
    assert net[0].core.router.reached == 1
    net.settle()
    assert net.is_idle()


def test_each_of_both_is_told_once_and_confirmed_for_itself() -> None:
    net = Net(4, DIAMOND, paths=2)
    net.want(3)
    net.held = {(2, 3)}
    net[0].publish(b"1")
    net.pump()
    net[0].publish(b"2")
    for _ in range(3):
        net.pass_time(CONFIRM_S)
    assert sorted(net.ways([TREE])) == [(0, 1), (0, 2), (1, 3)]
    assert net[3].payloads == texts(1, 2)
    assert [net[0].link(net[hop]).kept_bytes > 0 for hop in (1, 2)] == [False, True]
    net.held.clear()
    net.settle()
    assert net.is_idle()
    assert net[3].payloads == texts(1, 2)


def test_who_asks_for_one_way_gets_one() -> None:
    net = Net(4, DIAMOND)
    net.want(3)
    net[0].publish(b"1")
    net.pump()
    assert net.ways() == [(0, 1), (1, 3)]


def test_where_there_is_one_way_nothing_is_sent_twice() -> None:
    net = Net(3, CHAIN, paths=2)
    net.want(1, 2)
    net[0].publish(b"1")
    net.pump()
    assert net.ways() == CHAIN
    assert net[1].payloads == net[2].payloads == [b"1"]


def test_a_common_way_is_gone_twice_for_those_alone_that_have_another_one_behind_it() -> None:
    net = Net(5, BRIDGE, paths=2)
    net.want(1, 4)
    net[0].publish(b"1")
    net.pump()
    assert sorted(net.ways()) == sorted([(0, 1), *BRIDGE])
    assert [node.payloads for node in net.nodes] == [[], [b"1"], [], [], [b"1"]]
    tree = net[0].trees.to(frozenset([net[1].id, net[4].id]), 2)
    assert tree is not None
    [one, two] = tree.both()
    assert [child.receivers for child in one.children.values()] == [{net[1].id, net[4].id}]
    assert [child.receivers for child in two.children.values()] == [{net[4].id}]


def test_in_a_full_mesh_it_costs_two_frames_for_each_of_two_ways() -> None:
    net = Net.full(6, paths=2)
    net.want(1, 2, 3, 4, 5)
    net[0].publish(b"1")
    net.pump()
    assert len(net.ways()) == 2 * 5
    assert all(node.payloads == [b"1"] for node in net.nodes[1:])


def test_what_is_for_one_alone_goes_in_two_ways_too() -> None:
    net = Net(4, DIAMOND, paths=2)
    net.want(1, 2, 3)
    net[0].publish(b"1", to=net[3])
    net.pump()
    assert sorted(net.ways()) == sorted(DIAMOND)
    assert [node.payloads for node in net.nodes] == [[], [], [], [b"1"]]


def test_many_messages_at_once_go_in_two_ways() -> None:
    net = Net(4, DIAMOND, paths=2)
    net.want(3)
    node = net[0]
    flushes, wanted = node.core.publish_many([(TOPIC, text) for text in texts(1, 9)], node.now)
    assert wanted == 9
    assert {each.link for each in flushes} == {node.conns[1], node.conns[2]}
    net.held = {(0, 1)}
    node.do(list(flushes))
    net.pump()
    assert net[3].payloads == texts(1, 9)
    net.held.clear()
    net.pump()
    assert sorted(net.ways()) == sorted(DIAMOND * 2)  # the first, and a batch of the others
    assert net[3].payloads == texts(1, 9)


@pytest.mark.parametrize("which", [0, 1])
def test_after_a_change_the_second_way_is_another_one_and_the_former_is_forgotten(which: int) -> None:
    net = Net(5, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)], paths=2)
    net.want(4)
    net[0].publish(b"1")
    net.pump()
    used = {one for one, two in net.ways() if two == 4}
    assert len(used) == 2
    gone = sorted(used)[which]
    net.settle()
    net[0].publish(b"2")
    net.settle()
    net.cut(0, gone)
    net.settle()
    net[0].publish(b"3")
    net.pump()
    assert {one for one, two in net.ways() if two == 4} == {1, 2, 3} - {gone}
    net.settle()
    assert net.is_idle()
    assert net[4].payloads == texts(1, 3)
    assert len(net[0].trees._labels) == 2
    assert [len(net[hop].trees._labels) for hop in (1, 2, 3)] == [each != gone for each in (1, 2, 3)]


def test_a_second_way_that_stays_is_not_told_again() -> None:
    net = Net(7, [*HEXAGON, (3, 6)], paths=2)
    net.want(5)
    net[0].publish(b"1")
    net.settle()
    net.link(1, 6)
    net.settle()
    net[0].publish(b"2")
    net.pump()
    assert net.count(TREE) == 0
    assert net[5].payloads == texts(1, 2)


def test_more_sets_of_receivers_than_trees_are_kept_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "TREES_MAX", 3)
    net = Net.full(5, paths=2)
    sets = [{1}, {2}, {1, 2}, {3, 4}, {1, 4}, {2, 3, 4}]
    for number, wanting in enumerate(sets):
        net.want(*wanting, topic=b"/%d" % number)
    for text in (b"first", b"second"):
        for number in range(len(sets)):
            net[0].publish(text, b"/%d" % number)
        net.settle()
    for each in range(1, 5):
        assert len(net[each].payloads) == 2 * sum([each in wanting for wanting in sets])
    assert len(net[0].trees._mine) <= 3
    assert len(net[0].trees._labels) <= 2 * 3
    assert net.is_idle()


# -- what dies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dead", [1, 2, 3, 4])
def test_when_a_hop_dies_in_mid_stream_nobody_waits_for_another_way(dead: int) -> None:
    """Nothing that anybody does about it gets anywhere: what comes arrived in the other way already."""
    net = Net(6, HEXAGON, paths=2)
    net.want(5)
    for text in texts(1, 3):
        net[0].publish(text)
    net.pump()
    net.held = {(dead, other) for other in net[dead].conns}
    for text in texts(4, 6):
        net[0].publish(text)
    net.pump()
    assert net[5].payloads == texts(1, 6)
    if dead in (2, 4):  # nobody but the hop before it knows
        net.held |= {(dead - 1, 0)}
        net.kill(dead)
    net[0].publish(b"7")
    net[0].publish(b"8")
    net.pump()
    assert net[5].payloads == texts(1, 8)
    assert net.count(DETOUR) == 0
    if dead not in (2, 4):
        net.kill(dead)
    net.held.clear()
    net.settle()
    assert net[5].payloads == texts(1, 8)
    net[0].publish(b"9")
    net.settle()
    assert net[5].payloads == texts(1, 9)
    assert_idle(net, dead)
    assert net[0].told() == net[5].told() == []


@pytest.mark.parametrize("seed", range(60))
def test_whatever_single_hop_dies_everybody_else_has_everything_at_once(seed: int) -> None:
    """Who can be reached without it has it, before anybody has done anything about it."""
    rng = Random(seed)
    count = rng.randint(4, 9)
    pairs = [(one, two) for two in range(count) for one in range(two)]
    links = rng.sample(pairs, rng.randint(count, min(len(pairs), 2 * count)))
    net = Net(count, links, paths=2)
    net.want(*range(1, count))
    net[0].publish(b"0")
    net.settle()
    dead = rng.randrange(1, count)
    net.held = {(dead, other) for other in net[dead].conns}
    reached, edge = {0}, [0]
    while edge:
        at = edge.pop()
        for one, two in links:
            other = one + two - at
            if at in (one, two) and other != dead and other not in reached:
                reached.add(other)
                edge.append(other)
    for text in texts(1, 5):
        net[0].publish(text)
    net.pump()
    assert net.count(DETOUR) == 0
    for each in reached - {0}:
        assert net[each].payloads == texts(0, 5)
    net.kill(dead)
    net.held.clear()
    net.settle()
    for each in reached - {0}:
        assert net[each].payloads == texts(0, 5)
    assert_idle(net, dead)


@pytest.mark.parametrize("seed", range(60))
def test_order_is_kept_over_all_topics_whichever_way_is_slow(seed: int) -> None:
    rng = Random(seed)
    count = rng.randint(3, 8)
    pairs = [(one, two) for two in range(count) for one in range(two)]
    net = Net(count, rng.sample(pairs, rng.randint(count - 1, len(pairs))), paths=2)
    for number in range(count):
        for topic in rng.sample([b"/a", b"/b", b"/c"], rng.randint(0, 3)):
            net.want(number, topic=topic)
    text = 0
    while text < 60:
        if rng.random() < 0.3:
            text += 1
            topic = rng.choice([b"/a", b"/b", b"/c"])
            wanting = [each for each in net.nodes[1:] if topic in each.core.router.subscriptions.filter]
            to = rng.choice(wanting) if wanting and rng.random() < 0.2 else None
            net[0].publish(b"%d" % text, topic, to)
        one = rng.choice([node for node in net.nodes if node.conns] or [net[0]])
        if one.conns:
            net._move(one.number, rng.choice(list(one.conns)))
    net.settle()
    for node in net.nodes[1:]:
        numbers = list(map(int, node.payloads))
        assert numbers == sorted(set(numbers))
    assert net.is_idle()


# -- what is told -----------------------------------------------------------------------------------


def test_what_one_way_drops_arrives_in_the_other_and_is_told_as_that() -> None:
    net = Net(6, HEXAGON, paths=2, peer_policy=Policy.DROP_NEWEST, peer_messages_max=4)
    net.want(5)
    net.held = {(1, 2)}
    for text in texts(1, 9):
        net[0].publish(text)
        net.pump()
    assert net[5].payloads == texts(1, 9)
    for _ in range(3):
        net.pass_time(DROPS_REPORT_S)
    net.held.clear()
    net.settle()
    for node in (net[0], net[5]):
        assert {(each.place, each.reason) for each in node.told()} == {(net[1].id, LossReason.FULL_ON_ONE.text)}
        assert sum([each.count for each in node.told()]) == 5
    assert "on one of two ways" in str(net[0].told()[0])
    assert net[5].payloads == texts(1, 9)
    assert net.is_idle()


def test_who_has_one_way_alone_is_told_that_it_misses_something() -> None:
    """0 - 1, and a diamond behind it: what is dropped before 1 does not get there; 4 may have it in another way."""
    net = Net(5, BRIDGE, paths=2, peer_policy=Policy.DROP_NEWEST, peer_messages_max=1_000)
    net.want(1, 4)
    tree = net[0].trees.to(frozenset([net[1].id, net[4].id]), 2)
    assert tree is not None
    assert tree.second is not None
    for branch, once in ((tree, {net[1].id}), (tree.second, set())):
        [child] = branch.children.values()
        assert child.receivers - child.twice == once
        assert child.twice == {net[4].id}
        frame = pack_publication(net[0].id, 10**6, branch.label, DATA, NOBODY, TOPIC, b"x")
        net[0].trees.dropped(net[0].link(net[1]), frame, LossReason.FULL)
    for _ in range(2):
        net.pass_time(DROPS_REPORT_S)
    assert [each.reason for each in net[1].told()] == [LossReason.FULL.text]
    assert {(each.reason, each.count) for each in net[4].told()} == {(LossReason.FULL_ON_ONE.text, 2)}


def test_when_no_way_is_left_each_of_both_tells_so() -> None:
    net = Net(6, HEXAGON, paths=2)
    net.want(5)
    net[0].publish(b"0")
    net.settle()
    net.held = {(2, 5), (4, 5)}
    for text in texts(1, 3):
        net[0].publish(text)
    net.pump()
    net.kill(5)
    net.held.clear()
    net.settle()
    for _ in range(3):
        net.pass_time(DROPS_REPORT_S)
    told = [(each.place, each.reason, each.count) for each in net[0].told()]
    assert sum([count for _, _, count in told]) == 6
    assert {reason for _, reason, _ in told} == {LossReason.NO_WAY_ON_ONE.text}
    assert_idle(net, 5)


def test_at_the_origin_too() -> None:
    net = Net(2, [(0, 1)], paths=2)
    net.want(1)
    net.held = {(0, 1)}
    net[0].publish(b"1")
    net.pump()
    net.kill(1)
    net[0].pass_time(DROPS_REPORT_S)
    assert [(each.reason, each.count) for each in net[0].told()] == [(LossReason.NO_WAY.text, 1)]
    net = Net(4, DIAMOND, paths=2)
    net.want(3)
    net.held = {(0, 1), (0, 2)}
    net[0].publish(b"1")
    net.pump()
    net.cut(0, 1)
    net.cut(0, 2)
    net[0].pass_time(DROPS_REPORT_S)
    assert {each.reason for each in net[0].told()} == {LossReason.NO_WAY_ON_ONE.text}  # one copy was on a detour


def test_what_goes_in_two_ways_is_what_was_published() -> None:
    net = Net(4, DIAMOND, paths=2)
    net.want(3)
    net[0].publish(b"payload", TOPIC + b"/x")
    net.pump()
    found = {parse_publication(body, net[0].id) for _, _, body in net.of(FLOW_DATA)}
    assert len(found) == 1
    [message] = found
    assert (message.topic, message.payload, message.origin) == (TOPIC + b"/x", b"payload", net[0].id)
    net[3].do(net[3].core.unsubscribe(SUBSCRIBER, [TOPIC], net[3].now))
