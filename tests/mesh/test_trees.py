"""Publications along trees: what crosses which link, what is kept and for how long, and what happens when links end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.mesh.net_rig import TOPIC, Net
from tests.mesh.rogue_rig import PREFIX, VICTIM, Peer, Rig

from chappe.defaults import (
    CONFIRM_MESSAGES,
    CONFIRM_S,
    DROPS_REPORT_S,
    EARLY_MAX,
    EARLY_S,
    KIB,
    MESH_BATCH_BYTES_MAX,
    MESH_MESSAGE_BYTES_MAX,
)
from chappe.errors import UsageError
from chappe.limits import MeshLimits
from chappe.mesh import flows
from chappe.mesh.events import PeerLost
from chappe.mesh.flows import (
    DETOUR,
    FLOW_BATCH,
    FLOW_DATA,
    FLOW_LOSS,
    FLOWS,
    HEAD_BYTES,
    KIND_AT,
    messages_in,
    pack_batch,
    pack_confirm,
    pack_detour,
    pack_forget,
    parse_detour,
    parse_entries,
    parse_forget,
    parse_head,
    parse_tree,
)
from chappe.mesh.forwarding import kept, published, version2
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.forwarding.losses import Loss, LossReason
from chappe.mesh.forwarding.routes import Route
from chappe.mesh.messages import CONFIRM, DATA, FORGET, LOSS, NOBODY, TREE, parse_message

CHAIN = [(0, 1), (1, 2)]
DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]  # from 0 to 3 the way leads over 1, and over 2 if that ends
LADDER = [*DIAMOND, (1, 2)]
SMALLER, GREATER = b"\x11" * 16, b"\xee" * 16


def texts(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


# -- what crosses which link ------------------------------------------------------------------------


def confirmed(net: Net) -> list[tuple[int, int, int]]:
    """The last confirmation that crossed each link: from, to, number; in the order of these."""
    found: dict[tuple[int, int], int] = {}
    for one, two, body in net.of(CONFIRM):
        [(_, number)] = parse_entries(parse_message(body).payload)
        found.pop((one, two), None)
        found[one, two] = number
    return [(*way, number) for way, number in found.items()]


def test_in_a_full_mesh_one_subscriber_costs_one_frame() -> None:
    net = Net.full(12)
    net.want(7)
    net[3].publish(b"1")
    net.pump()
    assert net.ways() == [(3, 7)]
    assert net[7].payloads == [b"1"]


def test_in_a_full_mesh_each_subscriber_costs_one_frame() -> None:
    net = Net.full(12)
    net.want(*range(12))
    net[3].publish(b"1")
    net.pump()
    assert sorted(net.ways()) == [(3, other) for other in range(12) if other != 3]
    assert [node.payloads for node in net.nodes] == [[] if node.number == 3 else [b"1"] for node in net.nodes]


def test_what_nobody_wants_goes_nowhere() -> None:
    net = Net(3, CHAIN)
    net.want(2)
    assert net[0].core.publish(b"/other", b"", DATA, NOBODY, net[0].now) == []
    net.pump()
    assert net.crossed == []


def test_a_common_way_is_gone_once_and_ends_at_the_last_who_wants_it() -> None:
    """0 - 1 - 2 - 3, and 4 and 5 behind 2; nobody behind 3 wants it."""
    net = Net(7, [(0, 1), (1, 2), (2, 3), (2, 4), (2, 5), (3, 6)])
    net.want(1, 4, 5)
    net[0].publish(b"1")
    net.pump()
    assert net.ways() == [(0, 1), (1, 2), (2, 4), (2, 5)]
    assert [node.payloads for node in net.nodes] == [[], [b"1"], [], [], [b"1"], [b"1"], []]


def test_a_tree_is_told_once_and_then_only_its_label() -> None:
    net = Net(4, [(0, 1), (1, 2), (2, 3)])
    net.want(3)
    for text in texts(1, 5):
        net[0].publish(text)
        net.pump()
    assert net.ways([TREE]) == [(0, 1), (1, 2), (2, 3)]
    assert net.ways() == [(0, 1), (1, 2), (2, 3)] * 5
    labels = {(one, parse_head(body)[2]) for one, _, body in net.flows()}
    assert len(labels) == 3  # each hop has one of its own
    kinds = [body[KIND_AT] for one, _, body in net.crossed if one == 0]
    assert kinds == [TREE, *[FLOW_DATA] * 5]
    assert net[3].payloads == texts(1, 5)


def test_each_hop_is_told_what_is_below_it_and_nothing_else() -> None:
    net = Net(5, [(0, 1), (1, 2), (1, 3), (3, 4)])
    net.want(2, 3, 4)
    net[0].publish(b"1")
    net.pump()
    told = {}
    for one, two, body in net.of(TREE):
        origin, _, deliver, _, hops = parse_tree(parse_message(body).payload, net[two].id)
        assert origin == net[0].id
        told[one, two] = deliver, [each.id for each in hops]
    ids = [node.id for node in net.nodes]
    assert told == {(0, 1): (False, [ids[2], ids[3]]), (1, 2): (True, []), (1, 3): (True, [ids[4]]), (3, 4): (True, [])}


def test_a_hop_passes_the_body_on_as_it_came_but_for_the_label() -> None:
    net = Net(4, [(0, 1), (1, 2), (2, 3)])
    net.want(3)
    for to in (None, net[3]):
        net.crossed.clear()
        net[0].publish(b"payload", to=to)
        net.pump()
        first, *others = [body for _, _, body in net.flows()]
        assert len(others) == 2
        assert all(body[:24] == first[:24] and body[32:] == first[32:] for body in others)
        assert len({body[24:32] for body in (first, *others)}) == 3


def test_another_set_of_receivers_has_another_tree() -> None:
    net = Net(4, [(0, 1), (1, 2), (1, 3)])
    net.want(2, topic=b"/2")
    net.want(3, topic=b"/3")
    for topic in (b"/2", b"/3", b"/2/x", b"/2"):
        net[0].publish(topic, topic)
    net.pump()
    assert net.ways([TREE]) == [(0, 1), (0, 1), (1, 2), (1, 3)]
    assert net[2].payloads == [b"/2", b"/2/x", b"/2"]
    assert net[3].payloads == [b"/3"]


def test_a_message_for_one_alone_goes_to_it_alone() -> None:
    net = Net(5, [(0, 1), (1, 2), (1, 3), (3, 4)])
    net.want(1, 2, 3, 4)
    net[0].publish(b"alone", to=net[4])
    net.pump()
    assert net.ways() == [(0, 1), (1, 3), (3, 4)]
    assert [node.payloads for node in net.nodes] == [[], [], [], [], [b"alone"]]


def test_who_passes_nothing_on_is_the_end_of_ways_and_on_none() -> None:
    """0 - 1 - 2, and 3 beside both of 0 and 2, which passes nothing on; a shorter way would lead over it."""
    net = Net(5, [(0, 1), (1, 4), (4, 2), (0, 3), (2, 3)], leaves=(2, 3))
    net.want(2, 3)
    net[0].publish(b"all")
    net[0].publish(b"alone", to=net[2])
    net[1].publish(b"from 1")
    net.pump()
    assert net[2].payloads.count(b"alone") == 1
    assert sorted(net[2].payloads) == [b"all", b"alone", b"from 1"]
    assert sorted(net[3].payloads) == [b"all", b"from 1"]
    assert (3, 2) not in net.ways()


def test_a_new_subscriber_is_on_the_tree_and_one_that_went_is_not() -> None:
    net = Net(4, [(0, 1), (1, 2), (1, 3)])
    net.want(2)
    net[0].publish(b"1")
    net.want(3)
    net[0].publish(b"2")
    net.settle()
    net[2].do(net[2].core.unsubscribe(1, [TOPIC], net[2].now))
    net.settle()
    net[0].publish(b"3")
    net.settle()
    assert [net[2].payloads, net[3].payloads] == [[b"1", b"2"], [b"2", b"3"]]


def test_a_chain_of_a_hundred_delivers() -> None:
    net = Net(100, [(number, number + 1) for number in range(99)])
    net.want(99)
    for text in texts(1, 3):
        net[0].publish(text)
    net.settle()
    assert net[99].payloads == texts(1, 3)
    assert all(node.told() == [] and node.dropped() == [] for node in net.nodes)


# -- what is kept -----------------------------------------------------------------------------------


def test_what_is_confirmed_is_kept_no_longer() -> None:
    net = Net(4, [(0, 1), (1, 2), (2, 3)])
    net.want(3)
    for text in texts(1, 10):
        net[0].publish(text)
    net.pump()
    assert [net[number].link(net[number + 1]).kept_bytes > 0 for number in range(3)] == [True] * 3
    assert net.count(CONFIRM) == 0
    net.pass_time(CONFIRM_S)
    assert net.is_idle()
    assert all(link.kept_bytes == 0 for node in net.nodes for link in node.core.links.values())
    last = parse_head(net.flows()[-1][2])[1]  # its number is the same on all ways
    assert confirmed(net) == [(3, 2, last), (2, 1, last), (1, 0, last)]
    net.check()


def test_after_so_many_messages_they_are_confirmed_at_once() -> None:
    net = Net(2, [(0, 1)])
    net.want(1)
    for text in texts(1, CONFIRM_MESSAGES - 1):
        net[0].publish(text)
    net.pump()
    assert net.count(CONFIRM) == 0
    net[0].publish(b"last")
    net.pump()
    assert net.count(CONFIRM) == 1
    assert net.is_idle()


def test_large_messages_are_confirmed_after_fewer() -> None:
    """What is kept has a bound in bytes."""
    net = Net(2, [(0, 1)])
    net.want(1)
    for count in range(1, 6):
        net[0].publish(bytes(CONFIRM_MESSAGES * KIB // 4))
        net.pump()
        assert len(net.of(CONFIRM)) == (count >= 4)
    assert net[0].link(net[1]).kept_bytes == len(net.flows()[-1][2]) + PREFIX


def test_who_leaves_confirms_before_its_goodbye() -> None:
    """If others leave too, nobody can say that it arrived, and who published is told of a loss."""
    net = Net(3, CHAIN)
    net.want(2)
    net[0].publish(b"1")
    net.pump()
    net[2].do(net[2].core.shutdown(net[2].now))
    net.pump()
    assert net.ways([CONFIRM]) == [(2, 1), (1, 0)]
    assert net[0].link(net[1]).kept_bytes == 0


def test_a_hop_confirms_only_what_all_below_have() -> None:
    """0 - 1, and 2 and 3 behind it; what 3 says is held back."""
    net = Net(4, [(0, 1), (1, 2), (1, 3)])
    net.want(1, 2, 3)
    net.held.add((3, 1))
    net[0].publish(b"1")
    net.pump()
    for _ in range(3):
        net.pass_time(CONFIRM_S)
    number = parse_head(net.flows()[0][2])[1]
    assert confirmed(net) == [(2, 1, number)]
    assert net[0].link(net[1]).kept_bytes > 0
    assert net[1].link(net[2]).kept_bytes == 0
    net.held.clear()
    net.pass_time(CONFIRM_S)
    assert net.is_idle()
    net.check()


def test_of_several_messages_those_are_confirmed_that_all_have() -> None:
    net = Net(4, [(0, 1), (1, 2), (1, 3)])
    net.want(2, 3)
    net[0].publish(b"1")
    net.pump()
    net.held.add((1, 3))
    net[0].publish(b"2")
    net[0].publish(b"3")
    net.pump()
    for _ in range(3):
        net.pass_time(CONFIRM_S)
    [branch] = net[0].trees._labels.values()
    [child] = branch.children.values()
    assert [frame[-1:] for _, frame in child.kept] == [b"2", b"3"]
    net.held.clear()
    for _ in range(3):
        net.pass_time(CONFIRM_S)
    assert net.is_idle()
    assert net[2].payloads == net[3].payloads == texts(1, 3)


def forgotten(net: Net) -> list[tuple[int, int]]:
    """Where it was told that one label is not used any more."""
    found = net.of(FORGET)
    assert [len(parse_forget(parse_message(body).payload)) for _, _, body in found] == [1] * len(found)
    return [(one, two) for one, two, _ in found]


def test_a_tree_that_is_not_used_any_more_is_forgotten_by_all() -> None:
    net = Net(5, [*DIAMOND, (3, 4)])
    net.want(4)
    net[0].publish(b"1")
    net.settle()
    [former] = net[0].trees._labels
    net.cut(1, 3)
    net.pump()
    net[0].publish(b"2")
    net.pump()
    net.pass_time(CONFIRM_S)
    assert former not in net[0].trees._labels
    assert forgotten(net) == [(3, 4), (0, 1)]  # 3 knows that nothing comes from 1 any more
    assert [len(node.trees._labels) for node in net.nodes] == [1, 0, 1, 1, 1]
    assert [list(node.trees._above) for node in net.nodes] == [[], [], [net[0].id], [net[2].id], [net[3].id]]
    net.check()


def test_a_tree_is_forgotten_only_when_all_that_went_along_it_has_arrived() -> None:
    """A shorter way appears while something is on its way along the longer one."""
    net = Net(4, [(0, 1), (1, 2), (2, 3)])
    net.want(3)
    net.held = {(2, 3)}
    net[0].publish(b"1")
    net.pump()
    net.link(0, 2)
    net.pump()
    net[0].publish(b"2")
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert forgotten(net) == []
    net.held.clear()
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert net[3].payloads == texts(1, 2)
    assert forgotten(net) == [(0, 1), (1, 2), (2, 3)]
    assert net.is_idle()
    assert [len(node.trees._labels) for node in net.nodes] == [1, 0, 1, 1]


# -- links that end ---------------------------------------------------------------------------------


def test_what_was_not_confirmed_arrives_another_way_and_nothing_twice() -> None:
    net = Net(4, DIAMOND)
    net.want(3)
    for text in texts(1, 3):
        net[0].publish(text)
    net.pump()
    for text in texts(4, 6):
        net[0].publish(text)
    net.crossed.clear()
    net.cut(0, 1)
    net.pump()
    assert net[3].payloads == texts(1, 6)
    assert [body[KIND_AT] for _, _, body in net.flows()] == [DETOUR] * 12  # all six, each over two links
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert net.is_idle()
    assert net[0].told() == net[3].told() == []
    net.check()


@pytest.mark.parametrize("links", [DIAMOND, LADDER])
@pytest.mark.parametrize("far", [False, True])
def test_a_link_that_ends_in_the_middle_loses_nothing(links: list[tuple[int, int]], far: bool) -> None:
    """5 - 0 - 1 - 3, and 2 beside; nothing is confirmed yet when the link on either side of 1 ends."""
    net = Net(6, [*links, (5, 0), (3, 4)])
    net.want(3, 4)
    net.held = {(3, 1)}
    for text in texts(1, 3):
        net[5].publish(text)
    net.pump()
    net.held |= {(1, 3), (0, 1)}
    for text in texts(4, 6):
        net[5].publish(text)
    net.pump()
    net.cut(*((1, 3) if far else (0, 1)))
    net.held.clear()
    net[5].publish(b"7")
    for _ in range(6):
        net.pass_time(CONFIRM_S)
    assert sorted(net[3].payloads) == sorted(net[4].payloads) == texts(1, 7)
    assert net.is_idle()
    assert all(node.told() == [] for node in net.nodes)
    net.check()


def test_a_hop_that_dies_with_all_that_it_has_loses_nothing() -> None:
    net = Net(4, DIAMOND)
    net.want(3)
    net.held = {(1, 3)}
    for text in texts(1, 5):
        net[0].publish(text)
    net.pump()
    net.pass_time(CONFIRM_S)
    assert net[3].payloads == []
    net.kill(1)
    net.held.clear()
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert net[3].payloads == texts(1, 5)
    assert net[0].told() == []


def test_what_comes_behind_a_link_that_ended_goes_around_as_long_as_the_origin_does_not_know() -> None:
    """5 - 0 - 1 - 3: what 0 tells 5 of its links is held back."""
    net = Net(6, [*DIAMOND, (5, 0), (3, 4)])
    net.want(4)
    net[5].publish(b"1")
    net.settle()
    net.held = {(0, 5)}
    net.cut(0, 1)
    net.crossed.clear()
    for text in texts(2, 4):
        net[5].publish(text)
    net.pump()
    assert net[4].payloads == texts(1, 4)
    assert net.ways([FLOW_DATA]) == [(5, 0)] * 3
    assert [way for way in net.ways([DETOUR]) if way[0] == 0] == [(0, 2)] * 3
    net.held.clear()
    net.settle()
    net[5].publish(b"5")
    net.pump()
    assert net.ways() == [(5, 0), (0, 2), (2, 3), (3, 4)]
    assert net.count(DETOUR) == 0
    net.pass_time(CONFIRM_S)
    net.pass_time(CONFIRM_S)
    assert net.is_idle()
    assert net[4].payloads == texts(1, 5)


def test_a_detour_whose_way_ends_goes_on_another_detour() -> None:
    """Three ways from 0 to 4: over 1, 2 and 3."""
    net = Net(5, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)])
    net.want(4)
    net.held = {(1, 4), (2, 4)}
    for text in texts(1, 3):
        net[0].publish(text)
    net.pump()
    net.cut(0, 1)
    net.pump()
    assert net[4].payloads == []
    net.cut(0, 2)
    net.pump()
    assert net[4].payloads == texts(1, 3)
    net.held.clear()
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert net[4].payloads == texts(1, 3)
    assert net.is_idle()
    assert net[0].told() == []
    net.check()


def test_a_detour_is_confirmed_before_what_it_is_for() -> None:
    """5 - 0: while the detour of 0 is on its way, 5 keeps what it published."""
    net = Net(6, [*DIAMOND, (5, 0), (3, 4)])
    net.want(4)
    net.held = {(0, 1), (2, 3)}
    net[5].publish(b"1")
    net.pump()
    net.cut(0, 1)
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert net[5].link(net[0]).kept_bytes > 0
    assert net[4].payloads == []
    net.held.clear()
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert net[4].payloads == [b"1"]
    assert net.is_idle()
    assert net[5].link(net[0]).kept_bytes == 0


def test_of_two_detours_the_second_waits_for_the_first_if_it_goes_another_way() -> None:
    """5 - 0, and three ways from there to 4. The first detour is slow, and the network looks different meanwhile."""
    net = Net(6, [(5, 0), (0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)])
    net.want(4)
    net.held = {(1, 4), (2, 4), (0, 5)}
    net[5].publish(b"1")
    net.pump()
    net.cut(0, 1)  # the first detour leads over 2, which does not send it on
    net.pump()
    net.believe_cut(0, 2, 4)
    net[5].publish(b"2")
    net.held.remove((0, 5))
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert net[4].payloads == []
    [kept] = [child.kept for branch in net[5].trees._labels.values() for child in branch.children.values()]
    assert [frame[-1:] for _, frame in kept] == [b"1", b"2"]  # all up to the first that has not arrived
    net.held.clear()
    net.settle()
    assert net[4].payloads == [b"1", b"2"]
    assert net.is_idle()


def test_of_two_detours_each_is_confirmed_for_itself() -> None:
    """5 - 0 - 1 and behind it 3 and 4, to which other ways lead too. The first detour does not come to 4; the second
    one is for 3 alone, and is confirmed sooner: that says nothing about the first."""
    net = Net(7, [(5, 0), (0, 1), (1, 3), (1, 4), (0, 2), (2, 3), (0, 6), (6, 4)])
    net.want(3, 4)
    net.held = {(1, 3), (1, 4), (6, 4), (0, 5)}
    net[5].publish(b"1")
    net.pump()
    net.kill(1)
    net.pump()
    net.believe_cut(0, 6, 4)
    net[5].publish(b"2")
    net.held.remove((0, 5))
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert net[3].payloads == [b"1", b"2"]
    [kept] = [child.kept for branch in net[5].trees._labels.values() for child in branch.children.values()]
    assert [frame[-1:] for _, frame in kept] == [b"1", b"2"]  # all up to the first that has not arrived


def test_a_link_that_comes_back_is_used_again() -> None:
    net = Net(3, CHAIN)
    net.want(2)
    for text in texts(1, 2):
        net[0].publish(text)
    net.settle()
    net.cut(0, 1)
    net.link(0, 1)
    net.settle()
    for text in texts(3, 4):
        net[0].publish(text)
    net.pump()
    assert sorted(net.ways()) == [(0, 1), (0, 1), (1, 2), (1, 2)]
    assert net[2].payloads == texts(1, 4)
    net.settle()
    assert net.is_idle()
    assert [len(node.trees._labels) for node in net.nodes] == [1, 1, 1]


def test_over_a_link_that_comes_back_the_tree_is_told_again() -> None:
    """The origin is far, and never hears that the link was gone."""
    net = Net(4, [(0, 1), (1, 2), (2, 3)])
    net.want(3)
    net[0].publish(b"1")
    net.settle()
    net.held = {(1, 0)}
    net.cut(1, 2)
    net.link(1, 2)
    net.pump()
    for text in texts(2, 3):
        net[0].publish(text)
    net.pump()
    assert net[3].payloads == texts(1, 3)
    assert net.ways([TREE]).count((1, 2)) == 1
    net.held.clear()
    net.settle()
    assert net.is_idle()


def test_a_tree_that_is_told_again_while_something_is_on_its_way_stays() -> None:
    """2 waits for what 3 confirms while its link to 1 ends and comes back; the origin never hears of that."""
    net = Net(4, [(0, 1), (1, 2), (2, 3)])
    net.want(3)
    net.held = {(3, 2), (1, 0)}
    net[0].publish(b"1")
    net.pump()
    net.cut(1, 2)
    net.link(1, 2)
    net.pump()
    net[0].publish(b"2")
    net.pump()
    net.held.remove((3, 2))
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    net[0].publish(b"3")
    net.pump()
    assert net[3].payloads == texts(1, 3)
    net.held.clear()
    net.settle()
    assert net.is_idle()


def test_confirmations_of_the_former_connection_count_for_nothing() -> None:
    """A hop confirms what came over a link that has ended since: it is on its way again, and stays kept until then."""
    net = Net(4, DIAMOND)
    net.want(3)
    net[0].publish(b"1")
    net.pump()
    label = next(iter(net[0].trees._labels))
    net.cut(0, 1)
    net.link(0, 1)
    net.held = {(2, 3)}
    net.pump()
    kept = [len(child.kept) for branch in net[0].trees._labels.values() for child in branch.children.values()]
    node = net[0]
    node.do(node.core.handle_frames(node.conns[1], [pack_confirm(net[1].id, [(label, 2**62)])[PREFIX:]], node.now))
    assert kept == [len(child.kept) for branch in net[0].trees._labels.values() for child in branch.children.values()]
    net.held.clear()
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert net[3].payloads == [b"1"]
    assert net.is_idle()


# -- no way -----------------------------------------------------------------------------------------


def test_where_no_way_leads_the_origin_is_told_with_topic_and_count() -> None:
    net = Net(4, [(0, 1), (1, 2), (2, 3)])
    net.want(3)
    net[0].publish(b"1")
    net.settle()
    net.held = {(1, 2)}
    for text in texts(2, 4):
        net[0].publish(text)
    net.pump()
    net.held = {(1, 0)}
    net.cut(1, 2)
    net[0].publish(b"5")  # it does not know yet
    net.pump()
    net.held.clear()
    net.pass_time(DROPS_REPORT_S)
    net.pass_time(DROPS_REPORT_S)
    assert net[3].payloads == [b"1"]
    losses = [(each.place, each.origin, each.topic, each.reason) for each in net[0].told()]
    assert set(losses) == {(net[1].id, net[0].id, TOPIC, LossReason.NO_WAY.text)}
    assert sum([each.count for each in net[0].told()]) == 4
    assert net.is_idle()
    net.check()


def test_who_can_still_be_reached_gets_it_and_the_rest_is_told() -> None:
    """Behind 1 are 2, which has another way, and 3, which has none."""
    net = Net(4, [(0, 1), (1, 2), (1, 3), (0, 2)])
    net.want(2, 3)
    net.held = {(1, 2), (1, 3), (0, 2)}
    net[0].publish(b"1")
    net.pump()
    net.kill(1)
    net.held.clear()
    net.pump()
    net.pass_time(DROPS_REPORT_S)
    assert [net[2].payloads, net[3].payloads] == [[b"1"], []]
    [lost] = [each for each in net[0].events if isinstance(each, PeerLost)]
    assert (lost.lost, lost.unconfirmed) == (0, 1)


def test_a_message_is_sent_another_way_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "DETOURS_MAX", 1)
    net = Net(6, [(5, 0), (0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)])
    net.want(4)
    net.held = {(1, 4), (2, 4)}
    net[5].publish(b"1")
    net.pump()
    net.cut(0, 1)
    net.pump()
    net.cut(0, 2)
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    net.pass_time(DROPS_REPORT_S)
    assert net[4].payloads == []
    net.held.clear()
    net.settle()
    assert [(each.count, each.topic, each.reason) for each in net[5].told()] == [(1, TOPIC, LossReason.NO_WAY.text)]
    assert net.is_idle()


def test_what_waits_when_a_link_ends_is_not_lost_if_it_arrives_another_way() -> None:
    net = Net(4, DIAMOND)
    net.want(3)
    net.held = {(0, 1)}
    for text in texts(1, 5):
        net[0].publish(text)
    net.pump()
    net.cut(0, 1)
    net.held.clear()
    net.settle()
    assert net[3].payloads == texts(1, 5)
    [lost] = [each for each in net[0].events if isinstance(each, PeerLost)]
    assert (lost.lost, lost.unconfirmed) == (0, 0)
    assert net[0].dropped() == []


def test_who_said_goodbye_gets_what_is_published_afterwards_another_way() -> None:
    """1 ends its peering with 0 in order; it can be reached over 2."""
    net = Net(3, [(0, 1), (0, 2), (1, 2)])
    net.want(1)
    net[0].publish(b"1")
    net.pump()
    net.held = {(0, 1)}
    conn = net[1].conns[0]
    net[1].do(net[1].core.unpeer(*net[1].core.links[conn].address, 7, net[1].now))
    net.pump()  # 0 has heard the goodbye; its answer is on its way
    net[0].publish(b"2")
    net.held.clear()
    net.pump()
    assert net[1].resolved[7] is True
    node = net[0]
    node.do(node.core.handle_gone(node.conns.pop(1), "closed by the peer", node.now))
    del net[1].conns[0]
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert net[1].payloads == texts(1, 2)


# -- many trees -------------------------------------------------------------------------------------


def test_more_sets_of_receivers_than_trees_are_kept_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "TREES_MAX", 4)
    net = Net(5, [(0, 1), (1, 2), (1, 3), (1, 4)])
    net.want(1, 2, 3, 4, topic=b"/all")
    for topic in range(1, 16):
        for number in range(4):
            if topic >> number & 1:
                net.want(number + 1, topic=b"/%d/" % topic)
    sent: dict[int, list[bytes]] = {number: [] for number in range(1, 5)}
    for text in (b"first", b"second"):
        for topic in range(1, 16):
            net[0].publish(text, b"/%d/" % topic)
            for number in range(4):
                if topic >> number & 1:
                    sent[number + 1].append(text)
        net.settle()
    assert {number: net[number].payloads for number in sent} == sent
    assert net.is_idle()
    assert len(net[0].trees._labels) <= 4
    assert all(len(known) <= 4 for node in net.nodes for known in node.trees._above.values())


# -- full boxes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Policy.DROP_OLDEST, Policy.DROP_NEWEST])
def test_what_a_box_drops_is_not_waited_for(policy: Policy) -> None:
    net = Net(3, CHAIN, peer_policy=policy, peer_messages_max=4)
    net.want(2)
    net.held = {(1, 2)}
    for text in texts(1, 9):
        net[0].publish(text)
        net.pump()
    [kept] = [child.kept for branch in net[1].trees._labels.values() for child in branch.children.values()]
    assert len(kept) == 4
    net.held.clear()
    for _ in range(3):
        net.pass_time(CONFIRM_S)
    net.pass_time(DROPS_REPORT_S)
    assert net[2].payloads == (texts(6, 9) if policy is Policy.DROP_OLDEST else texts(1, 4))
    assert sum([each.count for each in net[0].told()]) == 5
    assert {(each.topic, each.reason) for each in net[0].told()} == {(TOPIC, LossReason.FULL.text)}
    assert net.is_idle()
    net.check()


def test_a_detour_that_one_of_two_receivers_drops_is_kept_for_the_other() -> None:
    """5 - 0 - 1 - (3, 4), then over 2 and 6: the box of the first is full, the second is slow."""
    net = Net(7, [(5, 0), (0, 1), (0, 2), (0, 6), (1, 3), (1, 4), (2, 3), (6, 4)], peer_policy=Policy.DROP_NEWEST, peer_messages_max=4)  # fmt: skip # noqa: E501
    net.want(3, 4)
    net.want(2, topic=b"/fill")
    net.held = {(1, 3), (1, 4), (0, 2), (6, 4)}
    for text in texts(1, 4):
        net[0].publish(text, b"/fill")
    net[5].publish(b"1")
    net.pump()
    net.cut(0, 1)
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert net[4].payloads == []
    assert net[5].link(net[0]).kept_bytes > 0  # the second has nothing yet
    net.held.clear()
    for _ in range(4):
        net.pass_time(CONFIRM_S)
    assert net[4].payloads == [b"1"]
    assert net.is_idle()


# -- originals, and those who do not forward --------------------------------------------------------


def test_an_original_beside_a_hop_gets_what_it_wants_and_what_it_publishes_goes_along_a_tree() -> None:
    net = Net(3, CHAIN)
    net.want(0)
    original = Peer(net[2], b"\x77" * 16, chappe=False, wanted=[TOPIC])
    net.settle()
    original.take()
    net[0].publish(b"from chappe")
    net.pump()
    [message] = original.messages()
    assert (message.payload, message.origin) == (b"from chappe", NOBODY)
    net.crossed.clear()
    original.send(original.plain(DATA, TOPIC, b"from the original"))
    net.pump()
    assert net[0].payloads == [b"from the original"]
    assert net.ways() == [(2, 1), (1, 0)]
    assert parse_head(net.flows()[0][2])[0] == net[2].id
    assert original.messages() == []
    net.settle()
    assert net.is_idle()


def test_a_message_for_an_original_alone_goes_to_who_speaks_with_it() -> None:
    net = Net(3, CHAIN)
    original = Peer(net[2], b"\x77" * 16, chappe=False)
    net.settle()
    original.take()
    node = net[0]
    node.do(node.core.publish(TOPIC, b"alone", DATA, original.id, node.now))
    net.pump()
    assert net.ways() == [(0, 1), (1, 2)]
    [message] = original.messages()
    assert (message.payload, message.receiver) == (b"alone", original.id)
    assert [node.payloads for node in net.nodes] == [[], [], []]


def test_version_1_is_spoken_with_who_offers_no_more() -> None:
    old = Rig(SMALLER, version_max=1)
    new = Rig(GREATER)
    for one, two in ((old, GREATER), (new, SMALLER)):
        one.want(TOPIC)
        peer = Peer(one, two, chappe=one is not new, wanted=[TOPIC])
        one.do(one.core.publish(TOPIC, b"x", DATA, NOBODY, one.now))
        [message] = [each for each in peer.messages() if each.topic == TOPIC]
        assert message.origin == NOBODY
        assert not one.core.router.links[two].chappe


# -- what neighbours may not do ---------------------------------------------------------------------


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.want(b"/a")
    return made


def test_a_message_is_taken_only_on_a_tree_that_this_neighbour_told_of(rig: Rig) -> None:
    """Its origin is behind both neighbours."""
    one, two, far = Peer(rig, SMALLER), Peer(rig, GREATER), b"\x55" * 16
    one.send(one.state(chappe=(VICTIM, far)), one.state(far, 1, chappe=(SMALLER, GREATER)))
    two.send(two.state(chappe=(VICTIM, far)))
    body = one.publication(b"/a", b"1", far)
    two.send(body)
    assert rig.delivered == []
    assert rig.core.dropped == 1
    two.send(two.publication(b"/a", b"2", far, 2))
    one.send(body)
    assert [each.payload for each in rig.delivered] == [b"2", b"1"]


def test_a_message_of_another_origin_is_not_taken_on_a_tree(rig: Rig) -> None:
    one, far = Peer(rig, SMALLER), b"\x55" * 16
    one.send(one.state(chappe=(VICTIM, far)), one.state(far, 1, chappe=(SMALLER,)))
    one.send(one.tree(1), one.tree(2, far))
    own, other = one.publication(b"/a", b"own", None, 1), one.publication(b"/a", b"far", far, 1)
    swapped = [own[:24] + other[24:32] + own[32:], other[:24] + own[24:32] + other[32:]]
    one.send(*swapped)
    assert rig.delivered == []
    one.send(own, other)
    assert [each.payload for each in rig.delivered] == [b"own", b"far"]


def test_what_comes_before_the_news_of_its_origin_waits_for_them(rig: Rig) -> None:
    """As it is beside us, nobody but itself tells us of it."""
    old, new = Peer(rig, SMALLER), Peer(rig, GREATER)
    old.send(old.state(chappe=(VICTIM, GREATER)))
    old.send(*[old.publication(b"/a", b"%d" % number, GREATER, number) for number in (1, 2)])
    old.send(old.publication(b"/a", b"own"))
    assert [each.payload for each in rig.delivered] == [b"own"]
    new.send(new.state(chappe=(VICTIM, SMALLER)), new.publication(b"/a", b"3", sequence=3))
    assert [each.payload for each in rig.delivered] == [b"own", *texts(1, 3)]
    rig.pass_time(EARLY_S)
    assert (rig.core.dropped, rig.core.invariants()) == (0, [])


def test_a_defect_met_by_what_waited_for_news_ends_who_brought_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken when somebody else's frames came, whose connection has done nothing."""
    rig = Rig(contains=True)
    rig.want(b"/a")
    find = rig.core.router.routes.find

    def fail(topic: bytes) -> Route:
        if topic == b"/a/poison":
            raise RuntimeError("a defect")
        return find(topic)

    monkeypatch.setattr(rig.core.router.routes, "find", fail)
    old, new = Peer(rig, SMALLER), Peer(rig, GREATER)
    old.send(old.state(chappe=(VICTIM, GREATER)))
    old.send(old.publication(b"/a/poison", b"", GREATER, 1))
    new.send(new.state(chappe=(VICTIM, SMALLER)), new.publication(b"/a", b"2", sequence=2))
    assert set(rig.closed) == {old.conn}
    assert [each.payload for each in rig.delivered] == [b"2"]


@pytest.mark.parametrize("count", [1, EARLY_MAX + 2])
def test_of_what_nobody_may_bring_its_origin_is_told(rig: Rig, count: int) -> None:
    rogue, victim = Peer(rig, SMALLER), Peer(rig, GREATER)
    rogue.send(rogue.state(chappe=(VICTIM,)))
    victim.send(victim.state(chappe=(VICTIM,)))
    rogue.send(*[rogue.publication(b"/a", b"", GREATER, number) for number in range(1, count + 1)])
    assert rig.delivered == []
    assert rig.core.dropped == max(0, count - EARLY_MAX)
    rig.pass_time(EARLY_S)
    rig.pass_time(1.0)
    assert rig.core.dropped == count
    told = [Loss.parse(each.payload) for each in victim.messages() if each.kind == LOSS]
    assert {(each.towards, each.origin, each.why, each.topic) for each in told} == {
        (VICTIM, GREATER, LossReason.EARLY, b"/a")
    }
    assert sum(each.count for each in told) == count


@pytest.mark.parametrize("count", [1, EARLY_MAX + 2])
def test_what_is_refused_is_confirmed_in_its_turn(rig: Rig, count: int) -> None:
    """Its neighbour would keep it, and wait with later messages, for as long as the link stands."""
    friend = Peer(rig, SMALLER)
    friend.send(friend.state(chappe=(VICTIM,)))
    friend.send(*[friend.publication(b"/a", b"", GREATER, number) for number in range(1, count + 1)])
    rig.pass_time(EARLY_S / 2)
    assert numbers_confirmed(friend) == [count - EARLY_MAX] * (count > EARLY_MAX)
    rig.pass_time(EARLY_S)
    assert numbers_confirmed(friend)[-1] == count
    assert rig.core.invariants() == []


def numbers_confirmed(peer: Peer) -> list[int]:
    entries = [parse_entries(each.payload) for each in peer.messages() if each.kind == CONFIRM]
    return [number for each in entries for _, number in each]


def test_what_waits_for_news_is_not_taken_from_who_is_gone(rig: Rig) -> None:
    old, new = Peer(rig, SMALLER), Peer(rig, GREATER)
    old.send(old.state(chappe=(VICTIM, GREATER)))
    old.send(old.publication(b"/a", b"1", GREATER))
    rig.do(rig.core.handle_gone(old.conn, "it broke", rig.now))
    new.send(new.state(chappe=(VICTIM, SMALLER)))
    rig.pass_time(EARLY_S)
    assert rig.delivered == []


def test_a_label_that_was_forgotten_leads_nowhere(rig: Rig) -> None:
    peer = Peer(rig, SMALLER)
    first, second = peer.publication(b"/a", b"1"), peer.publication(b"/a", b"2", sequence=2)
    peer.send(first)
    rig.pass_time(CONFIRM_S)
    peer.send(pack_forget(peer.id, peer.labels.values())[PREFIX:], second)
    assert [each.payload for each in rig.delivered] == [b"1"]
    trees = rig.core.router.trees
    assert not any((trees._labels, trees._above, trees._sizes))


def test_a_label_that_is_used_anew_leads_where_it_says_last(rig: Rig) -> None:
    peer, below = Peer(rig, SMALLER), Peer(rig, GREATER, wanted=(b"/b",))
    below.send(below.state(wanted=(b"/b",), chappe=(VICTIM,)))
    body = peer.publication(b"/a", b"1")
    peer.send(body, peer.tree(1, below=(GREATER,)), peer.publication(b"/a", b"2", sequence=2))
    assert [each.payload for each in rig.delivered] == texts(1, 2)
    assert [each.payload for each in below.messages() if each.kind == DATA] == [b"2"]
    assert rig.core.invariants() == []


def test_a_number_that_came_is_neither_taken_nor_passed_on_again(rig: Rig) -> None:
    peer, below = Peer(rig, SMALLER), Peer(rig, GREATER)
    below.send(below.state(wanted=(b"/a",), chappe=(VICTIM,)))
    for number in (5, 5, 4, 6, 1, 6):
        peer.send(peer.publication(b"/a", b"%d" % number, sequence=number, below=(GREATER,)))
    assert [each.payload for each in rig.delivered] == [b"5", b"6"]
    assert [each.payload for each in below.messages() if each.kind == DATA] == [b"5", b"6"]


def test_a_confirmation_of_somebody_elses_hop_confirms_nothing(rig: Rig) -> None:
    below, rogue = Peer(rig, SMALLER), Peer(rig, GREATER)
    below.send(below.state(wanted=(b"/b",), chappe=(VICTIM,)))
    rig.do(rig.core.publish(b"/b", b"x", DATA, NOBODY, rig.now))
    [body] = [each for each in below.take() if each[KIND_AT] in FLOWS]
    _, number, label, _ = parse_head(body)
    link = rig.core.router.links[SMALLER]
    rogue.send(pack_confirm(GREATER, [(label, number)])[PREFIX:])
    assert link.kept_bytes == len(body) + PREFIX
    below.send(pack_confirm(SMALLER, [(label, number - 1), (label + 99, number)])[PREFIX:])
    assert link.kept_bytes == len(body) + PREFIX
    below.send(pack_confirm(SMALLER, [(label, number)])[PREFIX:])
    assert link.kept_bytes == 0


@pytest.mark.parametrize("wrong", ["topic", "receiver", "detour", "nested", "batch", "batch on a detour"])
def test_what_could_not_be_read_at_its_end_is_not_passed_on(rig: Rig, wrong: str) -> None:
    peer, below = Peer(rig, SMALLER), Peer(rig, GREATER)
    below.send(below.state(wanted=(b"/b",), chappe=(VICTIM,)))
    body = bytearray(peer.publication(b"/b", b"", below=(GREATER,)))
    good = peer.publication(b"/b", b"good", sequence=9, below=(GREATER,))
    if wrong == "topic":
        body[34:36] = b"\xff\xff"
    elif wrong == "receiver":
        body[33] = 1
    elif wrong == "detour":
        body[32] = DETOUR
    elif wrong.startswith("batch"):
        label = int.from_bytes(body[24:32])
        wrong_one = pack_batch(peer.id, 5, label, b"/b", texts(1, 3))[PREFIX:-1]
        on_detour = pack_detour(peer.id, 6, label, 0, wrong_one)[PREFIX:]
        body = bytearray(wrong_one if wrong == "batch" else on_detour)
    else:
        body = bytearray(body[:32] + bytes((DETOUR, 0, 0, 0)) + body[:32] + bytes((DETOUR, 0, 0, 0)) + good)
    peer.send(bytes(body))
    assert [each for each in below.take() if each[KIND_AT] in FLOWS] == []
    peer.send(good)
    assert len([each for each in below.take() if each[KIND_AT] in FLOWS]) == 1
    rig.do(rig.core.handle_gone(below.conn, "it broke", rig.now))
    assert rig.core.invariants() == []


def test_who_does_not_forward_passes_nothing_on_and_tells_the_origin() -> None:
    rig = Rig(forwarding=False)
    peer, below = Peer(rig, SMALLER), Peer(rig, GREATER)
    below.send(below.state(wanted=(b"/b",), chappe=(VICTIM,)))
    peer.send(peer.state(chappe=(VICTIM,)), peer.publication(b"/b", b"x", below=(GREATER,)))
    rig.pass_time(DROPS_REPORT_S)
    assert [each for each in below.take() if each[KIND_AT] == FLOW_DATA] == []
    assert len([each for each in peer.take() if each[KIND_AT] == FLOW_LOSS]) == 1


def test_trees_of_one_neighbour_have_a_bound(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version2, "TREES_BYTES_MAX", 30_000)
    peer, other = Peer(rig, SMALLER), Peer(rig, GREATER)
    peer.send(*[peer.tree(label) for label in range(1, 200)])
    trees = rig.core.router.trees
    assert 10 < len(trees._above[SMALLER]) < 40
    assert rig.core.dropped == 199 - len(trees._above[SMALLER])
    other.send(other.publication(b"/a", b"other"))
    assert [each.payload for each in rig.delivered] == [b"other"]
    peer.send(pack_forget(SMALLER, range(1, 200))[PREFIX:])
    peer.send(peer.publication(b"/a", b"again"))
    assert [each.payload for each in rig.delivered] == [b"other", b"again"]
    assert rig.core.invariants() == []


def test_what_is_kept_for_one_neighbour_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many trees it is spread over."""
    monkeypatch.setattr(kept, "KEPT_BYTES_MAX", 10_000)
    rig = Rig(limits=MeshLimits(ahead_bytes=5_000))
    rig.want(b"/a")
    peer, below = Peer(rig, SMALLER), Peer(rig, GREATER)
    below.send(below.state(wanted=(b"/b",), chappe=(VICTIM,)))
    link = rig.core.router.links[GREATER]
    for number in range(1, 30):
        peer.send(peer.publication(b"/b", bytes(1_000), sequence=number, below=(GREATER,)))
        below.take()
        assert link.kept_bytes <= 10_000
    peer.labels.clear()
    for number in range(30, 60):
        peer.send(peer.tree(1_000 + number, below=(GREATER,)))
        body = peer.publication(b"/b", bytes(1_000), sequence=number, below=(GREATER,))
        peer.send(body[:24] + (1_000 + number).to_bytes(8, "big") + body[32:])
        below.take()
        assert link.kept_bytes <= 10_000 + 2_000
    assert rig.core.invariants() == []


def test_what_is_too_large_for_a_detour_is_not_taken(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next hop would end the link to us if we sent it more than a frame may have."""
    assert version2._BODY_MAX == MESH_MESSAGE_BYTES_MAX - HEAD_BYTES
    monkeypatch.setattr(version2, "_BODY_MAX", 10_000 - HEAD_BYTES)
    peer, below, around = Peer(rig, SMALLER), Peer(rig, GREATER), Peer(rig, b"\xdd" * 16)
    below.send(below.state(wanted=(b"/b",), chappe=(VICTIM, around.id)))
    around.send(around.state(chappe=(VICTIM, GREATER)))
    for number, size in ((1, 10_000 - HEAD_BYTES), (2, 10_000 - HEAD_BYTES + 1), (3, 10_000)):
        body = peer.publication(b"/b", b"", sequence=number, below=(GREATER,))
        peer.send(body + bytes(size - len(body)))
    below.take()
    rig.do(rig.core.handle_gone(below.conn, "it broke", rig.now))
    assert [len(each) for each in around.take() if each[KIND_AT] == DETOUR] == [10_000]
    assert rig.core.dropped == 2


def test_a_message_of_an_original_that_is_too_large_for_a_tree_is_counted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "MESH_MESSAGE_BYTES_MAX", 10_000)
    original, peer = Peer(rig, SMALLER, chappe=False), Peer(rig, GREATER)
    peer.send(peer.state(wanted=(b"/a",), chappe=(VICTIM,)))
    original.send(original.plain(DATA, b"/a", bytes(10_000 - 39)))
    assert original.conn not in rig.closed
    assert [len(each.payload) for each in rig.delivered] == [10_000 - 39]
    assert rig.core.dropped == 1


# -- many at once -----------------------------------------------------------------------------------


def publish_many(net: Net, number: int, payloads: Sequence[bytes], topic: bytes = TOPIC) -> int:
    node = net[number]
    flushes, wanted = node.core.publish_many([(topic, each) for each in payloads], node.now)
    node.do(list(flushes))
    return wanted


@pytest.mark.parametrize("room", [1_024, 8])
def test_many_messages_at_once_are_the_same_as_one_after_the_other(room: int) -> None:
    net = Net(3, CHAIN, peer_messages_max=room)
    net.want(2)
    net.settle()
    many = (
        [(TOPIC + b"/x", text) for text in texts(1, 6)]
        + [(b"/nobody", b"")]
        + [(TOPIC + b"/y", text) for text in texts(7, 9)]
    )
    node = net[0]
    flushes, wanted = node.core.publish_many(many, node.now)
    node.do(list(flushes))
    net.pump()
    assert wanted == 9
    assert net[2].payloads == texts(1, 9)
    assert [each.topic for each in net[2].delivered] == [TOPIC + b"/x"] * 6 + [TOPIC + b"/y"] * 3
    numbers = [each.sequence for each in net[2].delivered]
    assert numbers == [*range(numbers[0], numbers[0] + 9)]
    net.settle()
    assert net.is_idle()


def test_messages_at_once_cross_each_link_in_few_frames_and_arrive_at_all_in_order() -> None:
    """Receivers on the way and at its ends; single messages before, between and behind."""
    net = Net(5, [(0, 1), (1, 2), (2, 3), (1, 4)])
    net.want(1, 3, 4)
    net[0].publish(b"before")
    publish_many(net, 0, texts(1, 600))
    net[0].publish(b"between")
    publish_many(net, 0, [b"", b"", b"x", b""])
    net[0].publish(b"behind")
    net.pump()
    sent = [b"before", *texts(1, 600), b"between", b"", b"", b"x", b"", b"behind"]
    assert [node.payloads for node in net.nodes] == [[], sent, [], sent, sent]
    for way in ((0, 1), (1, 2), (2, 3), (1, 4)):
        assert net.ways([FLOW_BATCH]).count(way) == 4  # the first of each many goes for itself: 599 are three
        assert net.ways([FLOW_DATA]).count(way) == 5
    assert {each.sequence for each in net[3].delivered} == {each.sequence for each in net[4].delivered}
    for _ in range(3):
        net.pass_time(CONFIRM_S)
    assert net.is_idle()
    assert all(link.kept_bytes == 0 for node in net.nodes for link in node.core.links.values())
    net.check()


def test_what_is_large_goes_for_itself_between_batches() -> None:
    net = Net(3, CHAIN)
    net.want(2)
    sizes = [1, 1, 1, MESH_BATCH_BYTES_MAX + 1, 3 * MESH_BATCH_BYTES_MAX, 1, 1, *[MESH_BATCH_BYTES_MAX // 2 - 1] * 5, 0]
    publish_many(net, 0, [bytes(size) for size in sizes])
    net.pump()
    assert [len(each) for each in net[2].payloads] == sizes
    assert max(len(body) for _, _, body in net.of(FLOW_BATCH)) < MESH_BATCH_BYTES_MAX + 1_000
    assert {len(body) > MESH_BATCH_BYTES_MAX for _, _, body in net.of(FLOW_DATA)} == {False, True}
    net.settle()
    assert net.is_idle()


def test_of_many_messages_those_before_one_that_is_too_large_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "MESH_MESSAGE_BYTES_MAX", 100_000)
    net = Net(3, CHAIN)
    net.want(2)
    with pytest.raises(UsageError, match="cannot be sent"):
        publish_many(net, 0, [*texts(1, 5), bytes(100_000), b"never"])
    net[0].publish(b"next")
    net.pump()
    assert net[2].payloads == [*texts(1, 5), b"next"]
    net.settle()
    assert net.is_idle()


@pytest.mark.parametrize("far", [False, True])
def test_batches_whose_link_ends_go_around_whole_and_nothing_comes_twice(far: bool) -> None:
    """5 - 0 - 1 - 3 - 4, and 2 beside 1: some has arrived and is not confirmed, some is on its way, some waits."""
    net = Net(6, [*DIAMOND, (5, 0), (3, 4)])
    net.want(3, 4)
    net.held = {(3, 1)}
    publish_many(net, 5, texts(1, 20))
    net.pump()
    net.held |= {(1, 3), (0, 1)}
    publish_many(net, 5, texts(21, 40))
    net[5].publish(b"41")
    net.pump()
    net.crossed.clear()
    net.cut(*((1, 3) if far else (0, 1)))
    net.held.clear()
    publish_many(net, 5, texts(42, 50))
    for _ in range(6):
        net.pass_time(CONFIRM_S)
    assert sorted(net[3].payloads) == sorted(net[4].payloads) == sorted(texts(1, 50))
    batches = [body for _, _, body in net.of(DETOUR) if parse_detour(body)[1][KIND_AT] == FLOW_BATCH]
    assert batches
    assert {messages_in(body) for body in batches} <= {19, 8}
    assert net.is_idle()
    assert all(node.told() == [] and node.dropped() == [] for node in net.nodes)
    net.check()


@pytest.mark.parametrize("many", [False, True])
def test_of_what_is_kept_more_goes_around_than_a_box_that_blocks_has_room_for(many: bool) -> None:
    """It goes as there is room, or it would be lost."""
    net = Net(4, DIAMOND, peer_messages_max=8)
    net.want(3)
    net.held = {(1, 3), (0, 2)}
    for first in range(1, 60, 6):
        if many:
            publish_many(net, 0, texts(first, first + 5))
        else:
            for text in texts(first, first + 5):
                net[0].publish(text)
        net.pump()
    net.kill(1)
    assert not net[0].core.room()
    net.held.clear()
    for _ in range(12):
        net.pass_time(CONFIRM_S)
    assert net[3].payloads == texts(1, 60)
    assert net[0].core.room()
    assert net[0].told() == []
    assert net[0].link(net[2]).kept_bytes == 0
    net.check()


def test_a_batch_of_which_some_came_before_brings_the_rest(rig: Rig) -> None:
    """Over two ways, in parts."""
    one, two, far = Peer(rig, SMALLER), Peer(rig, GREATER), b"\x55" * 16
    one.send(one.state(chappe=(VICTIM, far)), one.state(far, 1, chappe=(SMALLER, GREATER)))
    two.send(two.state(chappe=(VICTIM, far)))
    one.send(one.publication(b"/a", b"3", far, 3))
    label = two.publication(b"/a", b"", far)[24:32]
    two.send(pack_batch(far, 5, int.from_bytes(label), b"/a", texts(1, 5))[PREFIX:])
    one.send(pack_batch(far, 7, 1, b"/a", texts(4, 7))[PREFIX:])
    assert [each.payload for each in rig.delivered] == [b"3", b"1", b"2", b"4", b"5", b"6", b"7"]
    assert rig.core.invariants() == []


def test_where_no_way_leads_all_messages_of_a_batch_are_told() -> None:
    net = Net(4, [(0, 1), (1, 2), (2, 3)])
    net.want(3)
    net.held = {(1, 2)}
    publish_many(net, 0, texts(1, 30))
    net.pump()
    net.cut(1, 2)
    net.settle()
    assert sum([each.count for each in net[0].told()]) == 30
    assert {(each.topic, each.reason) for each in net[0].told()} == {(TOPIC, LossReason.NO_WAY.text)}
    [lost] = [each for each in net[1].events if isinstance(each, PeerLost)]
    assert (lost.lost, lost.unconfirmed) == (30, 0)
    assert net.is_idle()


def test_messages_of_a_batch_that_were_sent_are_counted_as_unconfirmed() -> None:
    net = Net(2, [(0, 1)])
    net.want(1)
    publish_many(net, 0, texts(1, 30))
    net.held = {(1, 0)}
    net.pump()
    publish_many(net, 0, texts(31, 50))
    assert net[0].core.buffered() == 20
    net.cut(0, 1)
    [lost] = [each for each in net[0].events if isinstance(each, PeerLost)]
    assert (lost.lost, lost.unconfirmed) == (20, 30)


@pytest.mark.parametrize("policy", [Policy.DROP_OLDEST, Policy.DROP_NEWEST])
@pytest.mark.parametrize("room", [16, 100, 1_024])
def test_a_full_box_drops_of_batches_about_what_it_would_drop_of_single_messages(policy: Policy, room: int) -> None:
    """What is dropped is told. Up to a batch goes or stays beyond that, which is a small part of the room."""
    batch = max(1, room // 16)
    for many in (False, True):
        net = Net(3, CHAIN, peer_policy=policy, peer_messages_max=room)
        net.want(2)
        outbox = net[1].link(net[2]).outbox
        net.held = {(1, 2)}
        for at in range(0, 2 * room, 13):
            if many:
                publish_many(net, 0, texts(at, at + 12))
            else:
                for text in texts(at, at + 12):
                    net[0].publish(text)
            net.pump()
            assert min(at + 13, room) - batch < len(outbox) - 1 < room + batch  # one is no message, but the tree
        net.check()
        net.held.clear()
        net.settle()
        for _ in range(3):
            net.pass_time(DROPS_REPORT_S)
        got = [int(each) for each in net[2].payloads]
        assert sum([each.count for each in net[0].told()]) == at + 13 - len(got)
        assert outbox.dropped == at + 13 - len(got)
        first = got[0]
        assert got == list(range(first, first + len(got)))
        assert (first == 0) is (policy is Policy.DROP_NEWEST)
        assert (got[-1] == at + 12) is (policy is Policy.DROP_OLDEST)
        assert net.is_idle()


@pytest.mark.parametrize("policy", Policy)
def test_a_hop_with_little_room_passes_a_batch_on_to_who_takes_it(policy: Policy) -> None:
    """Its origin has much room."""
    net = Net(3, CHAIN, peer_policy=policy)
    net.want(2)
    net[1].link(net[2]).outbox.messages_max = 4
    for first in (1, 101, 201):
        publish_many(net, 0, texts(first, first + 99))
        net.pump()
    assert net[2].payloads == texts(1, 300)
    assert net.count(FLOW_BATCH) == 2 * 3
    net.settle()
    assert net.is_idle()


def test_a_hop_that_blocks_drops_nothing_of_batches_and_waits() -> None:
    net = Net(3, CHAIN)
    net.want(2)
    outbox = net[1].link(net[2]).outbox
    outbox.messages_max = 20
    net.held = {(1, 2)}
    publish_many(net, 0, texts(1, 18))
    net.pump()
    conn = net[1].conns[0]
    assert not net[1].core.holds_back(conn, net[1].now)
    publish_many(net, 0, texts(19, 270))
    net.pump()
    assert net[1].core.holds_back(conn, net[1].now)
    assert not net[1].core.room()
    assert outbox.accepted == 270
    net.held.clear()
    net.pump()
    assert not net[1].core.holds_back(conn, net[1].now)
    assert net[1].core.room()
    assert net[2].payloads == texts(1, 270)
    net.settle()
    assert net.is_idle()


def test_an_original_gets_single_messages_of_version_1() -> None:
    """One beside the origin, one beside a receiver, and an endpoint of chappe that wants version 1."""
    net = Net(3, CHAIN)
    net.want(1, 2)
    near = Peer(net[0], b"\x77" * 16, chappe=False, wanted=[TOPIC])
    far = Peer(net[2], b"\x78" * 16, chappe=False, wanted=[TOPIC])
    net.settle()
    for peer in (near, far):
        peer.take()
    publish_many(net, 0, texts(1, 20))
    net.pump()
    for peer in (near, far):
        messages = peer.messages()
        assert [each.payload for each in messages] == texts(1, 20)
        assert {(each.kind, each.origin, each.topic) for each in messages} == {(DATA, NOBODY, TOPIC)}
    assert net[1].payloads == net[2].payloads == texts(1, 20)
    net.settle()
    assert net.is_idle()


def test_behind_a_batch_originals_get_each_message_of_it() -> None:
    """The origin has none beside it, so it sends batches."""
    net = Net(3, CHAIN)
    far = Peer(net[2], b"\x78" * 16, chappe=False, wanted=[TOPIC])
    net.settle()
    far.take()
    publish_many(net, 0, texts(1, 20))
    net.pump()
    assert net.count(FLOW_BATCH) == 2
    assert [each.payload for each in far.messages()] == texts(1, 20)


def test_a_batch_to_a_reserved_topic_is_refused(rig: Rig) -> None:
    peer = Peer(rig, SMALLER)
    peer.send(peer.publication(b"/a", b"x"))
    peer.send(pack_batch(peer.id, 9, 1, b"<$>/local/x", texts(1, 3))[PREFIX:])
    peer.send(pack_batch(peer.id, 19, 1, b"/a", texts(1, 3))[PREFIX:])
    assert [each.payload for each in rig.delivered] == [b"x", *texts(1, 3)]
    assert rig.core.dropped == 1


def test_detours_back_and_forth_are_confirmed() -> None:
    net = Net(4, [(0, 1), (1, 3), (0, 2), (2, 3)])
    net.want(3)
    net.held = {(1, 3), (0, 2)}
    net[0].publish(b"there and back")
    net.pump()
    net.cut(1, 3)
    net.pump()  # 1 sends it back to 0, which sends it to 2
    net.held.remove((1, 3))
    net.link(1, 3)
    net.settle()
    net.cut(0, 2)
    net.held.clear()
    net.settle()
    assert net[3].payloads == [b"there and back"]
    assert net.is_idle()
