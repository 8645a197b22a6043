"""Who is full has those wait who publish what it wants, over any number of hops, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.mesh.net_rig import TOPIC, Net, Node
from tests.mesh.rogue_rig import SUBSCRIBER

from chappe.defaults import HOLD_S, LANES_MAX, LOST_AFTER
from chappe.mesh.flows import pack_holds
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.forwarding.holds import LET_GO
from chappe.mesh.messages import HOLD, parse_message

OTHER = b"/other"
QUICK = SUBSCRIBER + 1
HEARTBEAT_S = 1.0
PATIENCE_S = LOST_AFTER * HEARTBEAT_S


def chain(nodes: int = 3, **options: Any) -> Net:
    """The last one has a subscriber to one topic, and one to another."""
    net = Net(nodes, [(number, number + 1) for number in range(nodes - 1)], heartbeat_s=HEARTBEAT_S, **options)
    last = net[nodes - 1]
    last.do(last.core.subscribe(QUICK, [OTHER], now=last.now))
    net.want(nodes - 1)
    return net


def fill(net: Net, at: int, full: bool = True, beyond: bool = False) -> None:
    net[at].core.handle_full(SUBSCRIBER, full, beyond, net[at].now)


def publish(net: Net, topic: bytes = TOPIC, count: int = 1, at: int = 0) -> None:
    """Whether there is room or not."""
    for number in range(count):
        net[at].publish(b"%d" % number, topic)
    net.pump()


def fill_and_tell(net: Net, at: int) -> None:
    """Have the origin know, which publishes along the tree for all topics, and then along the one of its own."""
    fill(net, at)
    while net[0].core.room((TOPIC,)):
        publish(net)


def pass_patience(net: Net) -> None:
    for _ in range(int(PATIENCE_S / HOLD_S) + 2):
        net.pass_time(HOLD_S)


@pytest.mark.parametrize("nodes", [2, 3, 6])
def test_a_full_subscriber_stops_what_it_wants_over_any_number_of_hops_and_nothing_else(nodes: int) -> None:
    net = chain(nodes)
    fill_and_tell(net, nodes - 1)

    assert not net[0].core.room((TOPIC,))
    assert not net[0].core.room((OTHER, TOPIC))
    assert net[0].core.room((OTHER,))
    assert net[0].core.room(), "commands of data stores"
    publish(net, OTHER, 10)
    assert net[0].core.room((OTHER,))
    before = net[0].core.turned
    fill(net, nodes - 1, False)
    net.pass_time(0.0)
    assert net[0].core.room((TOPIC,))
    assert net[0].core.turned > before, "whoever waits is told"
    net.check()


def test_what_one_endpoint_alone_is_sent_waits_for_its_full_subscriber_too() -> None:
    net = chain()
    fill(net, 2)
    for _ in range(3):
        net[0].publish(b"", TOPIC, to=net[2])
        net.pump()
        net[0].core.room((TOPIC,), net[2].id)
    assert not net[0].core.room((TOPIC,), net[2].id)
    assert net[0].core.room((OTHER,), net[2].id)


def test_only_who_takes_something_now_and_then_is_waited_for() -> None:
    net = chain()
    fill_and_tell(net, 2)
    for _ in range(4 * int(PATIENCE_S / HOLD_S)):
        net[2].core.handle_taken(SUBSCRIBER, net[2].now)
        net.pass_time(HOLD_S)
        assert not net[0].core.room((TOPIC,))
    pass_patience(net)
    assert net[0].core.room((TOPIC,)), "it has stopped"
    net[2].core.handle_taken(SUBSCRIBER, net[2].now)
    for _ in range(5):  # each hop tells the next one four times a second
        net.pass_time(HOLD_S)
    assert not net[0].core.room((TOPIC,)), "it goes on"


def test_a_hold_ends_with_the_link_over_which_it_came_and_is_told_again_when_that_is_back() -> None:
    net = chain()
    fill_and_tell(net, 2)
    net.cut(1, 2)
    net.pump()
    assert net[0].core.room((TOPIC,))
    net.link(1, 2)
    net.settle()
    fill_and_tell(net, 2)
    assert not net[0].core.room((TOPIC,))
    net.check()


@pytest.mark.parametrize("policy", list(Policy))
def test_beyond_the_surplus_only_those_who_wait_are_listened_to(policy: Policy) -> None:
    net = chain(peer_policy=policy)
    fill(net, 2, beyond=True)
    publish(net, count=10)
    taken = 10 if policy is Policy.BLOCK else 0

    assert len(net[2].payloads) == taken
    assert net[2].core.router.dropped_here.get(SUBSCRIBER, 0) == 10 - taken
    net.pass_time(1.0)
    net.pass_time(1.0)
    assert sum(each.count for each in net[2].dropped()) == 10 - taken
    assert sum(each.count for each in net[0].told()) == 10 - taken
    publish(net, OTHER, 5)
    assert len(net[2].payloads) == taken + 5


@pytest.mark.parametrize("policy", list(Policy))
def test_a_hop_before_a_slow_link_goes_on_reading_from_who_does_not_wait(policy: Policy) -> None:
    """0 - 1 - 2, where 1 blocks, and nothing crosses to 2; 3 is beside it."""
    net = Net(4, peer_messages_max=8, heartbeat_s=HEARTBEAT_S)
    net.nodes[0] = Node(0, heartbeat_s=HEARTBEAT_S, peer_policy=policy)
    for one, two in ((0, 1), (1, 2), (1, 3)):
        net.link(one, two)
    net.want(2)
    net.want(3, topic=OTHER)
    net.held.add((1, 2))
    publish(net, count=30)
    publish(net, OTHER, 5)
    waits = policy is Policy.BLOCK

    assert net[1].core.holds_back(net[1].conns[0], net[1].now) is waits
    assert net[1].link(net[2]).outbox.accepted - net[1].link(net[2]).outbox.messages == (16 if waits else 8)
    assert len(net[3].payloads) == 5
    net.held.clear()
    net.settle()
    assert len(net[2].payloads) == (16 if waits else 8)
    assert sum(each.count for each in net[0].told()) == 30 - len(net[2].payloads)
    net.check()


def test_nobody_is_listened_to_beyond_the_surplus_of_who_has_stopped() -> None:
    net = chain()
    fill(net, 2, beyond=True)
    pass_patience(net)
    publish(net)
    assert net[2].payloads == []
    net[2].core.handle_taken(SUBSCRIBER, net[2].now)
    publish(net)
    assert net[2].payloads == [b"0"]


def test_more_topics_than_there_are_trees_share_them() -> None:
    net = chain()
    topics = [b"/t/%d" % number for number in range(2 * LANES_MAX)]
    fill(net, 2)
    for topic in topics:
        publish(net, topic)
        net[0].core.room((topic,))
    lanes = net[0].trees.lanes
    assert sum(map(len, lanes.values())) == LANES_MAX
    publish(net, OTHER)
    net.check()


def test_a_hold_counts_for_trees_that_lead_over_who_says_so() -> None:
    net = Net(3, [(0, 1), (0, 2)], heartbeat_s=HEARTBEAT_S)
    net.want(1, 2)
    publish(net)
    labels = sorted(net[0].trees._labels)
    net.want(1, topic=OTHER)
    publish(net, OTHER)
    [new] = sorted(set(net[0].trees._labels) - set(labels))
    for payload in ([(new, 0)], [(12345, 0), (0, LET_GO)]):
        frame = pack_holds(net[2].id, payload)
        net[0].do(net[0].core.handle_frames(net[0].conns[2], [frame[4:]], net[0].now))
    assert net[0].core.room((OTHER,))
    assert net[0].core.room((TOPIC,))
    net.check()


def test_who_holds_says_how_long_ago_it_took_something() -> None:
    net = chain(2)
    fill(net, 1)
    net.pass_time(0.1)
    net.crossed.clear()
    publish(net)
    [(_, _, body)] = net.of(HOLD)
    label, idle_ms = (int.from_bytes(parse_message(body).payload[at : at + 8]) for at in (0, 8))
    assert label in net[0].trees._labels
    assert idle_ms == 100
