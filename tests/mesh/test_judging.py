"""What the permissions allow arrives and nothing else does, whoever is on the way; refusals are counted and told."""

from __future__ import annotations

import pytest
from tests.mesh.net_rig import TOPIC, Net
from tests.mesh.rogue_rig import Peer, Rig
from tests.mesh.rules_rig import NOW, go_by, identity, judged, rules

from chappe.mesh.events import LostElsewhere, MessagesDropped, SubscriptionRefused
from chappe.mesh.flows import pack_detour, pack_publication
from chappe.mesh.forwarding.judging import Refusal
from chappe.mesh.messages import COMMAND, DATA, LINK_STATE, LOSS, NOBODY
from chappe.mesh.rules import MeshRules

HUBS = "allow forward hub *"
OPEN = "allow publish,subscribe member *"
A, B, C, HUB = (bytes([number]) * 16 for number in (0x11, 0x22, 0xEE, 0x99))


def settle(net: Net) -> None:
    """Until all is confirmed, and told."""
    for _ in range(6):
        net.pass_time(2)
    assert net.is_idle()


def refused(net: Net, number: int) -> list[tuple[str, str, int]]:
    return [(each.identity, each.verb, each.count) for each in net[number].core.router.refusals.listed()]


# -- publishing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paths", [1, 2])
def test_what_nobody_may_publish_goes_no_further_than_the_first_hop_and_its_origin_is_told(paths: int) -> None:
    net = judged("small hub hub member", "0-1-3 0-2-3", HUBS, OPEN, "allow publish small /a*", paths=paths)
    net.want(1, 3, topic=b"/")
    for number in range(3):
        net[0].publish(b"%d" % number, b"/b")
        net[0].publish(b"%d" % number, b"/a")
    settle(net)

    assert net[1].payloads == net[3].payloads == [b"0", b"1", b"2"]
    assert {each.topic for each in net[1].delivered + net[3].delivered} == {b"/a"}
    assert refused(net, 1) == [("n0", "publish", 3 * paths)]  # it is a receiver, too
    assert refused(net, 3) == []
    told = net[0].told()
    assert {(each.place, each.origin, each.topic, each.count) for each in told} == {
        (net[number].id, net[0].id, b"/b", 3 * paths if number == 1 else 3)
        for number in ((1, 2) if paths == 2 else (1,))
    }
    assert {each.reason for each in told} == {"as the permissions do not allow them"}
    assert [each.where for each in net[1].dropped()] == ["from n0, which may not publish them"]


def test_batches_are_refused_as_a_whole_and_counted_one_by_one() -> None:
    net = judged("small member", "0-1", OPEN, "allow publish small /a")
    net.want(1, topic=b"/")
    net[0].do(net[0].core.publish_many([(b"/b", b"1")] * 5 + [(b"/a", b"2")] * 3, net[0].now)[0])
    settle(net)
    assert net[1].payloads == [b"2"] * 3
    assert refused(net, 1) == [("n0", "publish", 5)]
    assert [each.count for each in net[0].told()] == [5]


def test_rules_that_change_count_at_once_for_what_is_published_then() -> None:
    net = judged("small hub member", "0-1-2", HUBS, OPEN)
    net.want(2)
    net[0].publish(b"early")
    net.pass_time(0.1)
    assert net[2].payloads == []
    go_by(net, "small hub member", HUBS, OPEN, "allow publish small *")
    net[0].publish(b"allowed")
    net.pass_time(0.1)
    assert net[2].payloads == [b"allowed"]
    go_by(net, "small hub member", HUBS, OPEN)
    net[0].publish(b"late")
    settle(net)
    assert net[2].payloads == [b"allowed"]


def test_who_may_forward_a_topic_may_publish_and_be_sent_it() -> None:
    net = judged("hub hub", "0-1", "allow forward hub /t")
    net.want(1, topic=b"/")
    net[0].publish(b"1")
    net[0].publish(b"2", b"/u")
    net.pump()
    assert net[1].payloads == [b"1"]


# -- subscribing ----------------------------------------------------------------------------------------------


def test_a_subscriber_gets_of_what_it_wants_that_which_it_may_have() -> None:
    net = judged("member hub small", "0-1-2", HUBS, OPEN, "deny subscribe small /a/x*", "allow subscribe small /a*")
    net.want(2, topic=b"")
    for topic in (b"/a/1", b"/a/x/1", b"/b", b"/a"):
        net[0].publish(topic, topic)
    settle(net)
    assert net[2].payloads == [b"/a/1", b"/a"]
    assert net.count(0x21) == 4  # nothing else went anywhere
    assert net[0].told() == net[2].told() == []  # none of this is a loss
    assert refused(net, 0) == refused(net, 1) == []


def test_a_subscription_of_which_nothing_is_allowed_is_counted_by_who_is_beside_it() -> None:
    net = judged("member hub small", "0-1-2", HUBS, OPEN)
    net.want(2)
    net[0].publish(b"1")
    settle(net)
    assert net[2].payloads == []
    assert refused(net, 0) == []
    assert refused(net, 1) == [("n2", "subscribe", 1)]


def test_what_an_origin_with_other_rules_sends_is_refused_on_the_last_hop_and_told() -> None:
    net = judged("member hub small", "0-1-2", HUBS, OPEN)
    wide = rules(*(identity(name, endpoint=net[at].id) for at, name in enumerate(net.names)))
    net[0].do(net[0].core.set_rules(wide, net[0].now))
    net.want(2)
    net[0].publish(b"1")
    settle(net)
    assert net[2].payloads == []
    assert refused(net, 1) == [("n2", "subscribe", 2)]  # when it subscribed, and then
    [told] = net[0].told()
    assert (told.place, told.towards, told.topic) == (net[1].id, net[2].id, TOPIC)


def test_what_goes_to_one_receiver_alone_needs_the_same() -> None:
    net = judged("member small", "0-1", OPEN, "allow subscribe small /a")
    net.want(1, topic=b"/a")
    net[0].publish(b"1", b"/a", to=net[1])
    net[0].publish(b"2", b"/b", to=net[1])
    settle(net)
    assert net[1].payloads == [b"1"]
    [told] = net[0].told()
    assert (told.place, told.towards, told.topic) == (net[0].id, net[1].id, b"/b")
    assert refused(net, 0) == [("n1", "subscribe", 1)]


def test_who_has_subscribed_is_told_once_when_it_may_not_have_it_any_more_and_again_the_next_time() -> None:
    rig = Rig(HUB)
    rig.want(b"/a", b"/b")

    def go(*lines: str) -> list[SubscriptionRefused]:
        made = rules(identity("me"), rules=lines)
        rig.events.clear()
        rig.do(rig.core.set_rules(MeshRules(made.permissions, NOW, b"", "me"), rig.now))
        return [each for each in rig.events if isinstance(each, SubscriptionRefused)]

    assert go("allow subscribe * *") == []
    assert [(each.topic, each.verb) for each in go("allow subscribe * /a/x*")] == [(b"/b", "subscribe")]
    assert go("allow subscribe * /a*") == []
    [told] = go("allow subscribe * /b*")
    assert str(told) == "gets nothing more of '/a': we may not subscribe it, no rule allows it"
    assert [each.topic for each in go("allow subscribe * /a*")] == [b"/b"]
    rig.do(rig.core.set_rules(None, rig.now))
    assert [each.topic for each in go("allow subscribe * /a*")] == [b"/b"]


# -- forwarding -----------------------------------------------------------------------------------------------


def test_ways_lead_around_those_that_may_not_forward_whatever_they_say() -> None:
    net = judged("member small hub hub member", "0-1-4 0-2-3-4", HUBS, OPEN, "allow publish,subscribe small *")
    rogue = net[1].core.router  # it says that it forwards, and does
    rogue.topology.states.set_rules(None)
    rogue.topology.forwards = rogue.trees.forwards = rogue.flooding._forwards = rogue._forwards = True
    rogue.topology._touch()
    settle(net)
    assert net[0].core.router.topology.states.known[net[1].id].state.forwards
    net.want(4, 1)
    net[0].publish(b"1")
    settle(net)
    assert net[4].payloads == net[1].payloads == [b"1"]
    assert (1, 4) not in net.ways()
    go_by(net, "member small hub hub member", HUBS, OPEN, "allow publish,subscribe,forward small *")
    net[0].publish(b"2")
    settle(net)
    assert net[4].payloads == net[1].payloads == [b"1", b"2"]
    assert (1, 4) in net.ways()


def test_who_may_not_forward_says_so_and_starts_to_when_it_may() -> None:
    net = judged("member small member", "0-1-2", OPEN)
    assert not net[0].core.reaches(net[2].id)
    assert not net[0].core.router.topology.states.known[net[1].id].state.forwards
    go_by(net, "member hub member", OPEN, HUBS)
    net.want(2)
    assert net[0].core.reaches(net[2].id)
    net[0].publish(b"1")
    net.pass_time(0.2)
    assert net[2].payloads == [b"1"]
    go_by(net, "member small member", OPEN)
    assert not net[0].core.reaches(net[2].id)
    assert refused(net, 0) == refused(net, 2) == []


def test_what_is_under_way_over_a_hub_that_loses_its_right_is_confirmed_or_sent_another_way() -> None:
    net = judged("member hub hub member", "0-1-3 0-2-3", OPEN, HUBS)
    net.want(3)
    net.held = {(1, 3), (2, 3)}
    for number in range(10):
        net[0].publish(b"%d" % number)
    net.pump()
    net.held.clear()
    go_by(net, "member small hub member", OPEN, HUBS)
    net[0].publish(b"after")
    settle(net)
    assert net[3].payloads[-1] == b"after"


def rig(*lines: str) -> Rig:
    """A hub, and what its permissions say of a, b and c."""
    made = Rig(HUB)
    known = (identity(name, name, endpoint=id) for name, id in (("a", A), ("b", B), ("c", C)))
    made.do(made.core.set_rules(rules(*known, identity("o", "o"), rules=lines), made.now))
    return made


def peer(made: Rig, id: bytes, name: str, **options: object) -> Peer:
    return Peer(made, id, key=id, named=() if name == "o" else (id,), identity=name, **options)  # type: ignore[arg-type]


def listed(made: Rig) -> list[Refusal]:
    return made.core.router.refusals.listed()


def test_link_states_of_others_count_only_from_who_may_forward_and_directed_ones_go_through() -> None:
    made = rig("allow publish,subscribe * *", "allow forward b *")
    a, b = peer(made, A, "a"), peer(made, B, "b")
    a.send(a.state(chappe=[HUB, C]))
    a.send(a.state(C, chappe=[A]))
    assert not made.core.reaches(C)
    assert listed(made) == [Refusal("a", "forward", 1)]
    b.send(b.state(chappe=[HUB, C]))
    b.send(b.state(C, chappe=[B]))
    assert made.core.reaches(C)
    b.take()
    directed = bytearray(a.state(C, version=5, chappe=[B]))
    directed[16:32] = C
    a.send(bytes(directed))
    assert [each.receiver for each in b.messages() if each.kind == LINK_STATE] == [C]
    assert len(listed(made)) == 1


def test_messages_of_others_from_who_may_not_forward_are_refused_and_confirmed() -> None:
    made = rig("allow publish,subscribe * *")
    made.want(b"/")
    a = peer(made, A, "a")
    a.send(a.state(chappe=[HUB, C]))
    a.send(a.publication(b"/t", b"1", origin=C))
    a.send(a.publication(b"/t", b"2"))
    made.pass_time(1)
    assert [each.payload for each in made.delivered] == [b"2"]
    assert listed(made) == [Refusal("a", "forward", 1)]
    assert not made.core.router._early._waiting


def test_what_is_on_a_detour_is_judged_by_what_it_is() -> None:
    made = rig("allow publish a /a", "allow publish,subscribe b *", "allow forward b /f")
    made.want(b"/")
    a, b = peer(made, A, "a"), peer(made, B, "b")

    def detour(via: Peer, origin: bytes, topic: bytes, number: int) -> None:
        label = 77 + number
        via.send(via.tree(label))
        body = pack_publication(origin, number, 0, DATA, NOBODY, topic, b"1")[4:]
        via.send(pack_detour(via.id, number, label, 0, body)[4:])

    b.send(b.state(chappe=[HUB, C]), b.state(C, chappe=[B]))
    detour(a, A, b"/a", 1)
    detour(a, A, b"/b", 2)
    detour(b, C, b"/f", 3)
    detour(b, C, b"/g", 4)
    assert [each.topic for each in made.delivered] == [b"/a", b"/f"]
    assert listed(made) == [Refusal("a", "publish", 1), Refusal("b", "forward", 1)]


def test_what_another_one_sent_another_way_is_passed_on_by_who_may_forward_alone() -> None:
    made = rig("allow publish a *", "allow publish,forward c *")
    made.want(b"/")
    a = peer(made, A, "a")
    a.send(a.state(chappe=[HUB, C]))
    a.send(a.tree(5, origin=C))
    body = pack_publication(A, 1, 0, DATA, NOBODY, b"/t", b"1")[4:]
    a.send(pack_detour(C, 1, 5, 0, body)[4:])
    assert made.delivered == []
    assert listed(made) == [Refusal("a", "forward", 1)]


def test_reports_of_losses_are_not_judged() -> None:
    made = rig()
    a = peer(made, A, "a")
    a.publication(b"/t")
    body = pack_publication(A, 1, 1, LOSS, HUB, b"<$>", A + HUB + (3).to_bytes(8) + b"\0")[4:]
    a.send(body)
    made.pass_time(1)
    assert [each.count for each in made.events if isinstance(each, LostElsewhere)] == [3]
    assert listed(made) == []


@pytest.mark.parametrize(("kind", "verb"), [(0, "write"), (7, "write"), (8, "attach-clone"), (130, "attach-clone")])
def test_commands_count_for_who_sends_them(kind: int, verb: str) -> None:
    made = rig(f"allow {verb} b *")
    heard = made.core.subscribe(2, [b"s/<$>/data/master"], COMMAND, now=0.0)
    made.do(heard)
    for each in (peer(made, A, "a"), peer(made, B, "b")):
        each.send(each.tree(1))
        payload = bytes(8) + B + bytes(8) + bytes(24) + bytes([kind])  # b is named as the sender
        each.send(pack_publication(each.id, 1, 1, COMMAND, NOBODY, b"s/<$>/data/master", payload)[4:])
    assert [each.origin for each in made.delivered] == [B]
    assert listed(made) == [Refusal("a", verb, 1)]


# -- originals ------------------------------------------------------------------------------------------------


def test_originals_send_and_get_what_their_identity_may() -> None:
    made = rig("allow publish o /o", "allow subscribe o /s*", "allow publish,subscribe a *")
    made.want(b"/")
    a = peer(made, A, "a", wanted=[b"/"])
    a.send(a.state(chappe=[HUB], wanted=[b"/"]))
    o = peer(made, b"\xaa" * 16, "o", chappe=False, wanted=[b"/s", b"/t"])
    assert listed(made) == [Refusal("o", "subscribe", 1)]
    for topic in (b"/o", b"/p"):
        o.send(o.plain(DATA, topic, b"1"))
    assert [each.topic for each in made.delivered] == [b"/o"]
    assert [each.topic for each in a.messages() if each.kind == DATA] == [b"/o"]
    made.delivered.clear()
    for number, topic in enumerate((b"/s/1", b"/t", b"/p"), 1):
        a.send(a.publication(topic, b"2", sequence=number))
    assert [each.topic for each in o.messages() if each.kind == DATA] == [b"/s/1"]
    assert listed(made) == [Refusal("o", "publish", 1), Refusal("o", "subscribe", 1)]
    made.pass_time(2)
    assert "from o, which may not publish them" in [e.where for e in made.events if isinstance(e, MessagesDropped)]


def test_what_originals_beside_a_forwarder_publish_counts_as_what_it_forwards() -> None:
    made = rig("allow forward a /o", "allow subscribe b *")
    made.want(b"/")
    a = peer(made, A, "a")
    a.send(a.publication(b"/o", b"1"), a.publication(b"/p", b"2", sequence=2))
    assert [each.payload for each in made.delivered] == [b"1"]


def test_without_rules_nobody_is_asked() -> None:
    net = Net(3, [(0, 1), (1, 2)])
    assert net[0].core.router.rules is None
    assert isinstance(judged("member", "", OPEN)[0].core.router.rules, MeshRules)


def test_what_was_not_believed_while_permissions_differed_is_asked_for_once_they_are_the_same() -> None:
    before, after = ("member small member", OPEN), ("member hub member", OPEN, HUBS)
    net = judged(before[0], "0-1-2", *before[1:])
    known = [identity(f"n{at}", role, endpoint=net[at].id) for at, role in enumerate(after[0].split())]
    later = rules(*known, rules=after[1:])
    for node in (net[1], net[2]):
        node.do(node.core.set_rules(later, node.now))
    net.pass_time(0.5)
    assert not net[0].core.reaches(net[2].id)
    assert refused(net, 0)[0][:2] == ("n1", "forward")

    net[0].do(net[0].core.set_rules(later, net[0].now))
    for _ in range(4):
        net.pass_time(0.5)

    assert net[0].core.reaches(net[2].id)
