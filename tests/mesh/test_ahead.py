"""How far an origin may be ahead of what is confirmed, and what a link takes beyond its bounds."""

from __future__ import annotations

import pytest
from tests.mesh.net_rig import TOPIC, Net
from tests.mesh.rogue_rig import SUBSCRIBER

from chappe.defaults import AHEAD_BYTES, LOST_AFTER
from chappe.limits import MeshLimits
from chappe.mesh.events import LostElsewhere
from chappe.mesh.forwarding.boxes import Outbox
from chappe.mesh.forwarding.congestion import Congestion
from chappe.mesh.links.handshake import PeerHandshake
from chappe.mesh.links.link import Link
from chappe.mesh.links.peers import PeerTable

AHEAD_MAX = 256
PAYLOAD = bytes(2 * AHEAD_BYTES // AHEAD_MAX)  # so the bound in bytes is met first
OTHER = b"/other"
PATIENCE_S = LOST_AFTER * 1.0


def chain(nodes: int = 3) -> Net:
    links = [(number, number + 1) for number in range(nodes - 1)]
    net = Net(nodes, links, limits=MeshLimits(ahead_max=AHEAD_MAX), heartbeat_s=1.0)
    net.want(nodes - 1)
    return net


def publish_all(net: Net, at_once: int = 1) -> int:
    """As much as there is room for, and nothing of it confirmed."""
    count = 0
    node = net[0]
    while node.core.room((TOPIC,)):
        flushes, _ = node.core.publish_many([(TOPIC, PAYLOAD)] * at_once, node.now)
        node.do(list(flushes))
        count += at_once
        assert count < 10 * AHEAD_MAX, "nobody waits"
    return count


@pytest.mark.parametrize("at_once", [1, 10])
def test_an_origin_is_never_far_ahead_of_what_is_confirmed(at_once: int) -> None:
    net = chain()
    net[0].do(net[0].core.subscribe(SUBSCRIBER, [OTHER], now=net[0].now))
    net.want(1, topic=OTHER)
    published = publish_all(net, at_once)
    assert AHEAD_MAX <= published <= AHEAD_MAX + 2 * at_once
    assert net[0].core.room((OTHER,)), "it is for others"
    before = net[0].core.turned
    net.pump()
    net.pass_time(0.2)
    assert net[0].core.room((TOPIC,))
    assert net[0].core.turned > before, "whoever waits is told"
    assert len(net[2].payloads) == published
    net.settle()


def test_topics_with_the_same_receivers_wait_together_until_one_of_them_is_held() -> None:
    net = chain()
    net[2].do(net[2].core.subscribe(SUBSCRIBER, [OTHER], now=net[2].now))
    net.settle()
    publish_all(net)
    assert not net[0].core.room((OTHER,)), "it would leave behind all that"
    branch = next(iter(net[0].core.router.holds.waits))
    net[0].core.router.holds.hear(branch, next(iter(branch.children.values())), 0, net[0].now)
    assert net[0].core.room((OTHER,)), "somebody is full of the first"
    net[0].publish(b"at once", OTHER)
    net.pump()
    assert net[2].payloads[-1] == b"at once"
    net.settle()


def test_what_is_confirmed_in_part_is_waited_for_until_half_of_it_is() -> None:
    net = chain()
    publish_all(net)
    branch = next(iter(net[0].core.router.holds.waits))
    [child] = branch.children.values()
    while len(child.kept) > AHEAD_MAX // 2 + 2:
        net[0].trees.take_confirm(net[0].link(net[1]), confirm(branch.label, child.kept[0][0]), net[0].now)
        assert not net[0].core.room((TOPIC,))
    net[0].trees.take_confirm(net[0].link(net[1]), confirm(branch.label, child.kept[0][0]), net[0].now)
    assert net[0].core.room((TOPIC,))
    assert net[0].core.invariants() == []


def confirm(label: int, number: int) -> bytes:
    from chappe.mesh.flows import pack_confirm
    from chappe.mesh.messages import parse_message

    return parse_message(pack_confirm(b"x" * 16, [(label, number)])[4:]).payload


def test_who_confirms_nothing_is_waited_for_only_a_while() -> None:
    net = chain()
    publish_all(net)
    node = net[0]
    for _ in range(9):
        node.pass_time(0.1 * PATIENCE_S)
        node.core.heard(node.conns[1], node.now)
        assert not node.core.room((TOPIC,))
    node.pass_time(0.3 * PATIENCE_S)
    for _ in range(10):
        assert node.core.room((TOPIC,)), "and not again for each message"
        node.publish(PAYLOAD)


def test_a_link_that_ends_ends_the_wait_and_everything_arrives_another_way() -> None:
    net = Net(4, [(0, 1), (1, 3)], limits=MeshLimits(ahead_max=AHEAD_MAX), heartbeat_s=1.0)
    net.want(3)
    published = publish_all(net)
    net.held.add((0, 1))
    net.link(0, 2)
    net.link(2, 3)
    net.settle()
    assert not net[0].core.room((TOPIC,))
    net.cut(0, 1)
    net.settle()
    assert net[0].core.room((TOPIC,))
    assert len(net[3].payloads) == published
    assert [each for each in net[0].events if isinstance(each, LostElsewhere)] == []


def test_of_two_hops_that_are_behind_one_that_is_lost_does_not_end_the_wait() -> None:
    net = Net(3, [(0, 1), (0, 2)], limits=MeshLimits(ahead_max=AHEAD_MAX), heartbeat_s=1.0)
    net.want(1)
    net.want(2)
    published = publish_all(net)
    holds = net[0].core.router.holds
    [branch] = holds.waits
    net.cut(0, 1)
    assert holds.runs_ahead(branch)
    assert net[0].core.invariants() == []
    net.settle()
    assert not holds.runs_ahead(branch)
    assert len(net[2].payloads) == published


# -- links --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("surplus", [0, 100])
def test_a_box_takes_its_surplus_beyond_its_bounds(surplus: int) -> None:
    box = Outbox(10, surplus=surplus)
    taken = [(box.put(b"x"), box.full, box.pressed) for _ in range(300)]
    assert sum(was_taken for was_taken, _, _ in taken) == 2 * (10 + surplus)
    assert [full for _, full, _ in taken].index(True) == 9
    assert [pressed for _, _, pressed in taken].index(True) == 14 + surplus
    assert box.dropped == 300 - 2 * (10 + surplus)
    assert box.invariants() == []


def test_once_a_link_is_not_pressed_any_more_only_originals_are_held_back() -> None:
    def link(conn: int) -> Link:
        unused = PeerHandshake(1, b"o" * 16, True, (), PeerTable(), 0.0)
        return Link(conn, ("127.0.0.1", 1), None, unused, Outbox(), 0.0)

    congestion = Congestion(b"o" * 16, 1, PATIENCE_S)
    full, ours, original = link(1), link(2), link(3)
    ours.chappe = True
    congestion.note(full, ours, 0.0)
    congestion.note(full, original, 0.0)
    assert [congestion.holds_back(conn, 0.1) for conn in (2, 3)] == [True, True]
    congestion.eased(full.conn)
    assert [congestion.holds_back(conn, 0.1) for conn in (2, 3)] == [False, True]
    assert congestion.waits
    congestion.is_over(full.conn)
    congestion.note(full, ours, 0.0)
    congestion.eased(full.conn)
    assert not congestion.waits
