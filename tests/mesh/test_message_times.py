"""When what comes was published: over any ways, by clocks that differ, and nothing of it where nobody asks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.mesh.net_rig import TOPIC, Net, Node
from tests.mesh.rogue_rig import PREFIX, SUBSCRIBER

from chappe.mesh.flows import (
    DETOUR,
    FLOW_BATCH,
    FLOW_BATCH_TIMED,
    FLOW_DATA,
    FLOW_DATA_TIMED,
    HEAD_BYTES,
    KIND_AT,
    time_of,
)
from chappe.mesh.links.link import NeighbourClock
from chappe.mesh.messages import COMMAND, DATA, NOBODY, PING, PONG

CHAIN = [(0, 1), (1, 2), (2, 3)]
DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]
APART_S = (0.0, 7_200.0, -86_400.0, 500_000.0)  # how far the clocks of four are ahead of the first
EXACT_S = 0.01  # by so much clocks may have drifted since they were read


def net_of(links: list[tuple[int, int]], asking: tuple[int, ...] = (), **options: Any) -> Net:
    """Nodes whose clocks differ, of which some ask for times; the last one wants everything."""
    net = Net(0)
    count = 1 + max(map(max, links))
    for number in range(count):
        net.nodes.append(Node(number, **options))
        net[number].now = 1_000_000.0 + APART_S[number]
    for one, two in links:
        net.link(one, two)
    net.settle()
    for number in asking:
        ask(net[number])
    net.want(count - 1)
    return net


def ask(node: Node) -> None:
    node.do(node.core.subscribe(SUBSCRIBER, [], DATA, True, now=node.now))


def ages(node: Node) -> list[float | None]:
    """How old what it got seems to be."""
    found = [None if each.published is None else node.now - each.published for each in node.delivered]
    node.delivered.clear()
    return found


def about(*expected: float) -> Any:
    return pytest.approx(list(expected), abs=EXACT_S)


def test_how_long_a_message_lay_anywhere_counts() -> None:
    net = net_of(CHAIN, asking=(3,))
    for held in CHAIN:
        net.held = {held}
        net[0].publish(b"1")
        net.pump()
        net.pass_time(1.5)
        net.held = set()
        net.pump()
        assert ages(net[3]) == about(1.5)
    net[0].publish(b"2")
    for held in CHAIN:
        net.held = {held}
        net.pump()
        net.pass_time(1.0)
    net.held = set()
    net.pump()
    assert ages(net[3]) == about(3.0)


def test_batches_have_a_time_too_and_it_counts_from_when_they_began_to_wait() -> None:
    net = net_of(CHAIN, asking=(3,))
    node = net[0]
    messages = [(TOPIC, b"%d" % number) for number in range(5)]
    node.do(node.core.publish_many(messages, node.now, node.now - 4.0)[0])
    net.pump()
    assert net.count(FLOW_BATCH_TIMED) == net.count(FLOW_DATA_TIMED) == 3
    assert ages(net[3]) == about(*[4.0] * 5)
    node.do(node.core.publish(TOPIC, b"", DATA, NOBODY, node.now, node.now - 2.0))
    node.do(node.core.publish(TOPIC, b"", DATA, net[3].id, node.now))
    net.pump()
    assert ages(net[3]) == about(2.0, 0.0)


def test_where_nobody_asks_nothing_is_told() -> None:
    net = net_of(CHAIN)
    for node in (net[0], net[2]):
        node.publish(b"1")
        node.do(node.core.publish_many([(TOPIC, b"2")] * 3, node.now)[0])
    net.pump()
    assert net.count(FLOW_DATA_TIMED, FLOW_BATCH_TIMED) == 0
    assert (net.count(FLOW_DATA), net.count(FLOW_BATCH)) == (8, 4)
    assert ages(net[3]) == [None] * 8


def test_who_does_not_ask_gets_no_times_but_on_a_tree_with_somebody_who_does() -> None:
    net = net_of([(0, 1), (0, 2), (0, 3)], asking=(3,))
    for number in (1, 2):
        net[number].want(b"/other")
        net[number].want(TOPIC + b"2")
    net.settle()
    net[0].publish(b"1", topic=b"/other")
    net[0].publish(b"1", topic=TOPIC + b"2")
    net.pump()
    assert net.ways([FLOW_DATA]) == [(0, 1), (0, 2)]
    assert net.ways([FLOW_DATA_TIMED]) == [(0, 1), (0, 2), (0, 3)]


def test_who_asks_no_more_is_told_no_more() -> None:
    net = net_of(CHAIN, asking=(3,))
    node = net[3]
    node.do(node.core.subscribe(SUBSCRIBER + 1, [TOPIC], now=node.now))
    node.do(node.core.unsubscribe(SUBSCRIBER, None, now=node.now))
    net.settle()
    net[0].publish(b"1")
    net.pump()
    assert ages(node) == [None]
    node.do(node.core.subscribe(SUBSCRIBER, [TOPIC], DATA, True, now=node.now))
    net.settle()
    net[0].publish(b"2")
    net.pump()
    assert ages(node) == about(0.0, 0.0)  # both subscribers get it


def test_commands_have_no_times() -> None:
    net = net_of(CHAIN, asking=(3,))
    node = net[3]
    node.do(node.core.subscribe(SUBSCRIBER + 1, [TOPIC], COMMAND, now=node.now))
    net.settle()
    net[0].do(net[0].core.publish(TOPIC, b"1", COMMAND, NOBODY, net[0].now))
    net.pump()
    assert net.count(FLOW_DATA_TIMED) == 0
    assert ages(node) == [None]


def test_a_detour_keeps_the_time() -> None:
    net = net_of(DIAMOND, asking=(3,))
    net.held = {(1, 3), (2, 3)}
    net[0].publish(b"1")
    net.pump()
    [(_, hop)] = [way for way in net.ways([FLOW_DATA_TIMED]) if way[1] in (1, 2)]
    net.pass_time(1.0)
    net.cut(hop, 3)
    net.held = set()
    net.pump()
    net.pass_time(0.0)
    assert net.count(DETOUR) >= 2
    assert all(time_of(body) is not None for _, _, body in net.of(DETOUR))
    assert ages(net[3]) == about(1.0)


def test_two_ways_tell_the_same() -> None:
    net = net_of(DIAMOND, asking=(3,), paths=2)
    for first in (1, 2):
        net.held = {(3 - first, 3)}
        net[0].publish(b"1")
        net.pump()
        net.held = set()
        net.pump()
        assert ages(net[3]) == about(0.0)
    assert net.count(FLOW_DATA_TIMED) == 8
    assert net.count(FLOW_DATA) == 0


def test_what_waits_for_its_order_is_as_old_as_it_is() -> None:
    net = net_of(DIAMOND, asking=(3,))
    net.held = {(1, 3), (2, 3)}
    net[0].publish(b"1")
    net.pump()
    [(_, hop)] = [way for way in net.ways([FLOW_DATA_TIMED]) if way[1] in (1, 2)]
    net.held = {(hop, 3), (hop, 0)}  # it hears that the way ends, and may not use another before all has arrived
    net.believe_cut(0, hop, 3)
    net[0].publish(b"2")
    assert net[0].core.router.trees.order.waits
    net.pass_time(2.0)
    net.held = set()
    net.pump()
    for _ in range(3):
        net.pass_time(0.1)
    assert sorted(each for each in ages(net[3]) if each is not None) == pytest.approx([2.0, 2.3], abs=0.4)


def forgetful(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of an earlier build, which does not know times."""
    topology = node.core.router.topology
    made = topology.state
    monkeypatch.setattr(topology, "state", lambda: replace(made(), knows_times=False, asks_times=False))
    topology.set_filter(topology._filter)  # so that it is told anew
    node.pass_time(0.0)


@pytest.mark.parametrize("old", range(4))
def test_those_who_do_not_know_times_are_sent_none(old: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of(CHAIN, asking=(3,))
    forgetful(net[old], monkeypatch)
    net.settle()
    for node in net.nodes[:3]:
        node.publish(b"1")
    net.pump()
    behind = [one for one in range(3) if old not in range(one + 1, 4)]
    assert [each for each in ages(net[3]) if each is not None] == about(*[0.0] * len(behind))
    assert not any(two == old for _, two in net.ways([FLOW_DATA_TIMED]))


def test_a_detour_over_somebody_who_does_not_know_times_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of(DIAMOND, asking=(3,))
    net[0].publish(b"0")
    net.pump()
    hop = next(two for _, two in net.ways([FLOW_DATA_TIMED]) if two in (1, 2))
    ages(net[3])
    forgetful(net[3 - hop], monkeypatch)
    net.settle()
    net.held = {(hop, 3)}
    net[0].publish(b"1")
    net.pump()
    net.cut(hop, 3)
    net.held = set()
    net.pump()
    net.pass_time(0.0)
    assert net.count(FLOW_DATA_TIMED) == 1
    assert net.count(DETOUR) >= 2
    assert not any(time_of(body) is not None for _, _, body in net.of(DETOUR))
    assert ages(net[3]) == [None]


def test_what_an_original_brings_is_from_when_it_came_to_the_first_of_ours() -> None:
    """Here the original stands between: behind it nobody knows when something was published."""
    net = Net(0)
    for number in range(4):
        net.nodes.append(Node(number, version_max=1 if number == 1 else 2))
        net[number].now = 1_000_000.0 + APART_S[number]
    for one, two in pairwise(range(4)):
        net.link(one, two)
    net.settle()
    ask(net[3])
    net.want(3)
    net.held = {(0, 1)}
    net[0].publish(b"1")
    net.pump()
    net.pass_time(1.0)
    net.held = {(2, 3)}
    net.pump()
    net.pass_time(0.5)
    net.held = set()
    net.pump()
    assert net.ways([DATA]) == [(0, 1), (1, 2)]
    assert ages(net[3]) == about(0.5)


def test_an_original_gets_not_a_byte_more() -> None:
    net = Net(0)
    for number in range(3):
        net.nodes.append(Node(number, version_max=1 if number == 1 else 2))
    net.link(0, 1)
    net.link(1, 2)
    net.settle()
    ask(net[2])
    net.want(2)
    for _ in range(4):
        net.pass_time(2.0)
    pings = [body for _, _, body in net.of(PING)]
    assert {len(each) for each in pings} == {len(each) for _, _, each in net.of(PONG)} == {37 + 3 + 9}
    assert len(pings) == 4 * 4


def test_only_the_answers_of_ours_tell_of_clocks() -> None:
    net = net_of([(0, 1)])
    for _ in range(4):
        net.pass_time(2.0)
    assert {len(body) for _, _, body in net.of(PING)} == {37 + 3 + 9}
    assert {len(body) for _, _, body in net.of(PONG)} == {37 + 3 + 9 + 8}
    assert net.count(PING) == 2 * 4


def test_a_time_that_is_cut_off_is_refused() -> None:
    net = net_of([(0, 1)], asking=(1,))
    net[0].publish(b"1", topic=TOPIC)
    net.pump()
    [(_, _, body)] = net.of(FLOW_DATA_TIMED)
    number = int.from_bytes(body[16:24])
    node = net[1]
    for size in range(8):
        number += 1
        cut = body[:16] + number.to_bytes(8) + body[24:34] + bytes(10 + size)  # without a topic
        assert len(cut) == HEAD_BYTES + size
        node.do(node.core.handle_frames(node.conns[0], [cut], node.now))
        assert node.core.dropped == size + 1
    assert len(node.delivered) == 1


def test_an_answer_goes_before_what_waits() -> None:
    net = net_of([(0, 1)])
    net.held = {(1, 0)}
    net[1].publish(b"1")
    net[1].do(net[1].core.subscribe(SUBSCRIBER, [b"/other"], now=net[1].now))
    net[0].pass_time(2.0)
    net.pump()
    waiting = [frame[PREFIX:] for frame in net[1].core.take(net[1].conns[0], 1 << 20)]
    assert [body[KIND_AT] for body in waiting].index(PONG) == 0


def test_a_link_that_was_never_read_passes_on_what_comes_as_fresh() -> None:
    """As in the first moment of a link, before its first ping is answered."""
    net = net_of(CHAIN, asking=(3,))
    net[1].link(net[0]).clock = NeighbourClock()
    net.held = {(0, 1), (1, 0)}
    net[0].publish(b"1")
    net.pump()
    net.pass_time(1.0)
    net.held = {(1, 2)}
    net.pump()
    net.pass_time(0.5)
    net.held = set()
    net.pump()
    assert ages(net[3]) == about(0.5)


def test_a_machine_that_stood_still_is_noticed_with_the_next_ping() -> None:
    net = net_of(CHAIN, asking=(3,))
    net[0].now -= 100.0  # it was suspended, and all others were not
    net.pass_time(2.0)
    net[0].publish(b"1")
    net.pump()
    net[1].now -= 100.0
    net.pass_time(2.0)
    net.pass_time(2.0)
    net[0].publish(b"2")
    net.pump()
    assert ages(net[3]) == about(4.0, 0.0)
