"""The order of what an origin publishes while its ways change: what waits, for how long, and when it is given up."""

from __future__ import annotations

from functools import partial
from math import inf

import pytest
from tests.mesh.net_rig import TOPIC, Net
from tests.mesh.rogue_rig import SUBSCRIBER

from chappe.defaults import CONFIRM_S, ORDER_BYTES_MAX, ORDER_S, ROOM_LOOK_S, UNPEER_S
from chappe.errors import UsageError
from chappe.mesh.flows import DETOUR, KIND_AT, pack_hops, pack_publication
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.forwarding.branches import Branch, Key
from chappe.mesh.forwarding.order import Order
from chappe.mesh.messages import DATA, NOBODY, PING, parse_message

ROUND = [(0, 1), (1, 3), (0, 2), (2, 3)]  # from 0 to 3 the way leads over 1


def turned(count: int = 1) -> Net:
    """A net in which ``count`` messages are under way to 3 over 1, and 0 has just heard that 1 has no link to 3.

    To 4, behind 0, the way is the same as before.
    """
    net = Net(5, [*ROUND, (0, 4)])
    net.want(3, 4)
    net.want(4, topic=b"/only")
    net.held = {(1, 0), (1, 2)}  # nothing that 1 confirms or says comes to anybody
    for number in range(count):
        net[0].publish(b"%d" % number)
    net.pump()
    net.held.add((1, 3))
    net[0].publish(b"late")
    net.pump()
    net.held.remove((1, 0))
    net.held.add((2, 3))
    net.cut(1, 3)  # what was late goes over 0 and 2, which does not send it on yet
    net.pump()
    return net


def test_what_goes_another_way_waits_for_what_was_published_before() -> None:
    net = turned()
    net[0].publish(b"next")
    net.pump()
    assert net[3].payloads == [b"0"]
    assert net[4].payloads == [b"0", b"late"]  # it is for both, and goes to both at once
    net.held.clear()
    net.settle()
    assert net[3].payloads == [b"0", b"late", b"next"]
    assert net[4].payloads == [b"0", b"late", b"next"]
    assert net.is_idle()
    assert net[0].trees.order.due == inf


def test_what_is_for_others_does_not_wait() -> None:
    net = turned()
    net[0].publish(b"next", topic=b"/only")
    net.pump()
    assert net[4].payloads[-1] == b"next"


def test_what_is_for_some_of_the_same_waits_for_what_waits() -> None:
    """4 gets what is for 3 and 4 before what is for 4 alone."""
    net = turned()
    net[0].publish(b"both")
    net[0].publish(b"one", topic=b"/only")
    net.pump()
    assert b"one" not in net[4].payloads
    net.held.clear()
    net.settle()
    assert net[4].payloads[-2:] == [b"both", b"one"]


def test_many_at_once_wait_too() -> None:
    net = turned()
    net[0].do(net[0].core.publish_many([(b"/t", b"a"), (b"/t", b"b")], net[0].now)[0])
    net.held.clear()
    net.settle()
    assert net[3].payloads == [b"0", b"late", b"a", b"b"]


def test_the_order_is_given_up_when_nothing_arrives_for_long() -> None:
    net = turned()
    net[0].publish(b"next")
    net.held.remove((2, 3))
    net.held.add((3, 2))  # what has arrived is not confirmed
    net.held.add((3, 0))
    net.pass_time(0.0)
    net.pass_time(ORDER_S - 0.1)
    assert b"next" not in net[3].payloads
    net.pass_time(0.1)
    assert net[3].payloads == [b"0", b"late", b"next"]
    assert net[0].trees.order.given_up == 1


def test_a_link_that_is_back_is_not_used_before_what_went_around_has_arrived() -> None:
    """5 - 0 - 1, and a detour over 2. To 5 all looks as before."""
    net = Net(7, [(5, 0), (0, 1), (0, 2), (2, 1), (0, 6)])
    net.want(1)
    net.want(1, 6, topic=b"/both")
    net.held = {(0, 1), (2, 1), (0, 5)}
    net[5].publish(b"1")
    net.pump()
    net.cut(0, 1)
    net.pump()
    net.held = {(2, 1), (0, 5)}
    net.link(0, 1)
    net.settle()
    net[5].publish(b"2", topic=b"/both")
    net.pump()
    assert net[1].payloads == []
    net.held.clear()
    net.settle()
    assert net[1].payloads == [b"1", b"2"]
    assert net[6].payloads == [b"2"]


def test_what_waits_goes_on_as_soon_as_a_full_box_has_room() -> None:
    net = Net(3, [(0, 1), (1, 2)], peer_messages_max=2, peer_policy=Policy.DROP_NEWEST)
    net.want(2)
    trees, link, key = net[0].trees, net[0].link(net[1]), Key(frozenset((net[2].id,)))
    for number in range(6):
        later = partial(trees._publish_late, key, DATA, NOBODY, TOPIC, b"%d" % number, 0.0, number + 1)
        trees.order.put(key.receivers, number, 1, later, lambda: not link.outbox.full)
    net[0].pass_time(0.0)
    for _ in range(2):
        net.pump()
        assert net[0].core.next_timeout() <= net[0].now
        net[0].pass_time(0.0)
    net.pump()
    assert net[2].payloads == [b"%d" % number for number in range(6)]
    assert net[0].core.next_timeout() > net[0].now


def test_what_arrives_or_goes_meanwhile_lengthens_the_time() -> None:
    receivers = frozenset((b"\x01" * 16,))
    branch = Branch(NOBODY, NOBODY, 0, 1, False, pack_hops(NOBODY, receivers, {NOBODY: [*receivers]}))
    [child] = branch.children.values()
    child.kept.extend([(number, pack_publication(NOBODY, number, 1, DATA, NOBODY, b"", b"")) for number in (1, 2)])
    order = Order()
    sent: list[str] = []
    rooms = [True, False, False]
    order.begin(branch, [child], lambda each: each)
    order.put(receivers, 3, 1, lambda: sent.append("first"), lambda: rooms.pop(0))
    order.put(receivers, 4, 1, lambda: sent.append("second"), lambda: rooms.pop(0))
    assert order.due < 0
    order.go_on(0.0)
    assert order.due == ORDER_S
    child.kept.popleft()
    order.go_on(ORDER_S)
    assert (order.due, sent) == (2 * ORDER_S, [])
    child.kept.popleft()
    order.go_on(6.0)
    assert (order.due, sent) == (6.0 + ROOM_LOOK_S, ["first"])
    order.go_on(6.0 + ORDER_S - 0.1)
    assert sent == ["first"]
    order.go_on(6.0 + ORDER_S)
    assert sent == ["first", "second"]
    assert (order.due, order.held, order.size, order.given_up) == (inf, {}, 0, 0)


def test_of_what_goes_two_ways_one_is_enough() -> None:
    """0 - 1 - 3 and 0 - 2 - 3; what went over 1 does not arrive, and what went over 2 does."""
    net = Net(4, ROUND, paths=2)
    net.want(3)
    net.held = {(1, 3), (1, 0)}
    net[0].publish(b"1")
    net.settle()
    net.cut(1, 3)
    net.held = {(1, 0), (1, 2)}
    net[3].do(net[3].core.subscribe(SUBSCRIBER, [b"/more"], now=net[3].now))
    net.believe_cut(0, 1, 3)
    net[0].publish(b"2")
    net.pump()
    assert net[3].payloads == [b"1", b"2"]


def test_what_waits_goes_only_as_boxes_have_room() -> None:
    """Of as many messages as take a moment to publish, a small box would drop some."""
    net = Net(5, [*ROUND, (0, 4)], peer_messages_max=4, peer_policy=Policy.DROP_NEWEST)
    net.want(3)
    net.held = {(1, 0), (1, 2), (1, 3), (2, 3)}
    net[0].publish(b"0")
    net.pump()
    net.held.remove((1, 0))
    net.cut(1, 3)
    net.pump()
    for number in range(1, 20):
        net[0].publish(b"%d" % number)
    net.held.clear()
    net.pump()
    net[0].trees.go_on(net[0].now)
    for _ in range(20):
        net.pass_time(CONFIRM_S)
    assert net[3].payloads == [b"%d" % number for number in range(20)]


def test_who_publishes_waits_while_much_waits() -> None:
    net = turned()
    half = bytes(ORDER_BYTES_MAX // 2)
    net[0].publish(half)
    assert net[0].core.room()
    net[0].publish(half)
    assert not net[0].core.room()
    net[0].publish(half)
    net.pass_time(0.0)
    assert net[0].trees.order.waits
    net[0].publish(half)
    net.pass_time(0.0)
    assert not net[0].trees.order.waits
    assert net[0].trees.order.given_up == 1
    assert net[0].core.room()


def test_small_messages_that_wait_have_a_bound_too() -> None:
    """Each takes far more than its topic and payload."""
    net = turned()
    count = 0
    while net[0].core.room():
        net[0].publish(b"%d" % count)
        count += 1
        assert count < 20_000
    net.held.clear()
    for _ in range(8):
        net.pass_time(CONFIRM_S)
    assert net[3].payloads == [b"0", b"late", *[b"%d" % each for each in range(count)]]


def test_what_cannot_be_sent_is_refused_though_it_would_wait() -> None:
    net = turned()
    with pytest.raises(UsageError):
        net[0].core.publish(b"/t", bytes(1 << 26), DATA, NOBODY, net[0].now)
    assert not net[0].trees.order.waits


def test_what_waits_for_somebody_to_whom_no_way_leads_any_more_is_told() -> None:
    net = turned()
    net[0].publish(b"next")
    net.kill(3)
    net.held.clear()
    net.settle()
    net.pass_time(1.0)
    assert net[4].payloads[-1] == b"next"
    assert sum(each.count for each in net[0].told()) == 3  # nobody knows that one of them had arrived


@pytest.mark.parametrize("soon", [True, False])
def test_a_goodbye_follows_what_was_published_before(soon: bool) -> None:
    net = turned()
    net[0].publish(b"next")
    node = net[0]
    net.crossed.clear()
    node.do(node.core.shutdown(node.now))
    net.pump()
    assert not [1 for one, _, body in net.crossed if one == 0 and parse(body).startswith(b"BYE")]
    if soon:
        net.held.clear()
        net.pump()
        for _ in range(3):
            net.pass_time(CONFIRM_S)
    else:
        net.pass_time(UNPEER_S / 2)
    sent = [parse(body) for one, two, body in net.crossed if (one, two) == (0, 2)]
    assert b"next" in sent
    [bye] = [number for number, each in enumerate(sent) if each.startswith(b"BYE")]
    assert sent.index(b"next") < bye


def parse(body: bytes) -> bytes:
    """The payload of a message or a ping; nothing of anything else."""
    if body[KIND_AT] in (0x21, DETOUR):
        return body[-4:]
    message = parse_message(body)
    return message.payload if message.kind == PING else b""


def test_before_a_goodbye_what_was_published_before_waits_for_room_too() -> None:
    net = Net(5, [*ROUND, (0, 4)], peer_messages_max=4, peer_policy=Policy.DROP_NEWEST)
    net.want(3)
    net.held = {(1, 0), (1, 2), (1, 3), (2, 3)}
    net[0].publish(b"0")
    net.pump()
    net.held.remove((1, 0))
    net.cut(1, 3)
    net.pump()
    for number in range(1, 20):
        net[0].publish(b"%d" % number)
    net.held.remove((2, 3))
    net[0].do(net[0].core.shutdown(net[0].now))
    net.pump()
    assert net[3].payloads == [b"0"]
    net.pass_time(UNPEER_S / 2)
    for _ in range(10):
        net.pass_time(ROOM_LOOK_S)
    assert net[3].payloads == [b"%d" % number for number in range(20)]


def test_what_came_back_goes_on_without_a_wait_for_what_came_back_before() -> None:
    one, two = (bytes([number]) * 16 for number in (1, 2))
    branch = Branch(NOBODY, NOBODY, 0, 1, False, pack_hops(NOBODY, frozenset((one, two)), {NOBODY: [one, two]}))
    [child] = [each for each in branch.children.values() if one in each.receivers]
    child.begin()
    child.kept.extend([(number, pack_publication(NOBODY, number, 1, DATA, NOBODY, b"", b"")) for number in (1, 2, 3)])
    order = Order()
    sent: list[int] = []
    order.begin(branch, [child], lambda _: frozenset((one, two)))
    order.came_back(frozenset((one,)), 2)
    order.came_back(frozenset((one,)), 3)
    for number in (2, 3):
        order.put(frozenset((one,)), number, 1, partial(sent.append, number), lambda: True)
        order.put(frozenset((two,)), number, 1, partial(sent.append, -number), lambda: True)
    order.go_on(0.0)
    assert sent == []  # 1 may still arrive another way
    child.kept.popleft()
    order.go_on(0.0)
    assert sent == [2, -2, 3]  # to the other one 2 is still on its way, and 3 waits for that
