"""The core of a gateway, and its parts, as functions: what is seen and what comes in, what is to be done out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.fixed_clock import FixedClock

from chappe.core import Effect, Report, Send
from chappe.errors import ProtocolError, UsageError
from chappe.gateway import announcement, marks
from chappe.gateway.announcement import MARKED, NAME_BYTES, PREFIX, Announcement, as_chosen, elect, summary
from chappe.gateway.core import GatewayCore, PublishToSide, SideOptions, SubscribeAtSide
from chappe.gateway.events import GatewayPasses, GatewayWaits, NotPassed, OtherName, SameMesh
from chappe.gateway.marks import WINDOW, Marked, SeenMarks
from chappe.limits import GATEWAY_LIMITS, GatewayLimits
from chappe.mesh.filters import Filter
from chappe.mesh.messages import Message

WALL_US = 1_700_000_000_000_000
READY_S = GATEWAY_LIMITS.hold_s + GATEWAY_LIMITS.listen_s
ALICE, BOB, OWN_A, OWN_B, OTHER_A, OTHER_B = (bytes([each]) * 16 for each in range(1, 7))
ALL = as_chosen([b""], "a")


def name(age: int) -> bytes:
    return age.to_bytes(NAME_BYTES)


def gateway(
    chosen: tuple[Filter, Filter] = (ALL, ALL), limits: GatewayLimits = GATEWAY_LIMITS,
    gateways: frozenset[bytes] | None = None,
) -> GatewayCore:  # fmt: skip
    sides = SideOptions("a", OWN_A, chosen[0], gateways), SideOptions("b", OWN_B, chosen[1], gateways)
    return GatewayCore(sides, FixedClock(WALL_US * 1000), limits)


def passing(core: GatewayCore, a: dict[bytes, Filter], b: dict[bytes, Filter]) -> list[Effect]:
    """Let a gateway see its domains, and time pass until it does what it is to do."""
    actions = core.start(0.0)
    actions += core.handle_subscription(0, a, 0.0)
    actions += core.handle_subscription(1, b, 0.0)
    while core.next_timeout() < 10.0:
        at = core.next_timeout()
        actions += core.handle_timeout(at)
    return actions


def wanted(actions: Sequence[Effect], side: int) -> list[Filter]:
    """What the endpoint of a side is to want, one after the other."""
    sent = [each.message for each in actions if isinstance(each, Send) and each.to == side]
    return [each.topics for each in sent if isinstance(each, SubscribeAtSide)]


def asked(actions: Sequence[Effect], side: int) -> list[bytes]:
    """What a gateway wants of a side by now, but for what it announces."""
    latest = wanted(actions, side)[-1]
    return [topic for topic in latest if not topic.startswith(b"<")]


def announced(actions: Sequence[Effect], side: int) -> Announcement:
    found = announcement.find(wanted(actions, side)[-1])
    assert found is not None
    return found


def published(topic: bytes, origin: bytes = ALICE) -> Message:
    return Message(topic, b"payload of " + topic, sender=origin, origin=origin)


# -- what is wanted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "chosen", "found"),
    [
        ((b"/a/x",), (b"/a", b"/b"), (b"/a/x",)),
        ((b"/",), (b"/a", b"/b"), (b"/a", b"/b")),
        ((b"",), (b"/a",), (b"/a",)),
        ((b"/c",), (b"/a",), ()),
        ((b"/a/1", b"/a/2", b"/b"), (b"/a", b"/b"), (b"/a/1", b"/a/2", b"/b")),
        ((b"/a/1", b"/a/2", b"/a/3", b"/a/4"), (b"/a", b"/b"), (b"/a",)),  # more than three topics
        ((b"/a/1", b"/a/2", b"/b", b"/c"), (b"/",), (b"/",)),
        ((), (b"/a",), ()),
        ((b"/a",), (), ()),
    ],
)
def test_a_summary_is_what_is_wanted_of_what_was_chosen(wanted: Filter, chosen: Filter, found: Filter) -> None:
    assert summary(wanted, chosen, topics_max=3, bytes_max=1_000) == found


def test_a_summary_of_too_many_bytes_is_widened() -> None:
    assert summary((b"/a/" + b"x" * 100,), (b"/a",), topics_max=9, bytes_max=50) == (b"/a",)


def test_everything_is_all_but_reserved_topics() -> None:
    assert len(ALL) == 255
    assert summary((b"",), ALL, 512, 10_000) == ALL
    assert summary((b"/a",), ALL, 512, 10_000) == (b"/a",)


def test_reserved_topics_cannot_be_chosen_and_prefixes_are_bounded() -> None:
    for reserved in (b"<$>/data", b"<"):
        with pytest.raises(UsageError, match="begin with '<'"):
            as_chosen([reserved], "a")
    with pytest.raises(UsageError, match="300 prefixes of domain a are too many"):
        as_chosen([b"/%03d" % each for each in range(300)], "a")


# -- announcements and marks --------------------------------------------------------------------------------


def test_an_announcement_is_found_among_other_prefixes() -> None:
    for each in (
        Announcement("a", "b"),
        Announcement("office-1", "plant.2", (name(1), name(2)), settled=True, up=True, passes=True),
    ):
        assert announcement.find((b"/a", each.pack(), b"zeek/")) == each
    assert announcement.find((b"/a", MARKED)) is None


@pytest.mark.parametrize(
    "form", [b"", b"a", b"a/b/sdp", b"a/b/sdp/00", b"a/b/xdp/", b"a/b/sdp/" + b"0" * 32 + b".", b"/b/sdp/",
             b"a/b/sdp/" + b".".join([b"0" * 32] * 600)],
)  # fmt: skip
def test_what_is_no_announcement_is_none(form: bytes) -> None:
    assert announcement.find((PREFIX + form,)) is None


def test_a_mark_goes_along_and_is_taken_once() -> None:
    marked = Marked(name(7), 3, 2, b"/topic", b"\0payload")
    assert marks.parse(marked.pack()) == marked
    seen = SeenMarks(2)
    assert [seen.is_new(name(1), each) for each in (5, 3, 5, 3, 6, 5 + WINDOW, 5, 7)] == [
        True, True, False, False, True, True, False, True,
    ]  # fmt: skip
    assert seen.is_new(name(1), 2**64 - 1)
    assert [seen.is_new(name(each), 1) for each in (2, 3)] == [True, True]
    assert len(seen) == 2


def test_every_cut_of_a_marked_message_is_refused() -> None:
    whole = Marked(name(7), 3, 2, b"/topic", b"").pack()
    for end in range(len(whole)):
        with pytest.raises(ProtocolError):
            marks.parse(whole[:end])
    with pytest.raises(ProtocolError):
        marks.parse(b"\2" + whole[1:])


# -- who passes ---------------------------------------------------------------------------------------------


def test_alone_it_passes_once_both_domains_have_been_there_for_a_while() -> None:
    core = gateway()
    assert announced(core.start(0.0), 0) == Announcement("a", "b")
    core.handle_subscription(0, {ALICE: (b"/a",)}, 0.0)
    assert (core.next_timeout(), core.reason()) == (float("inf"), "nobody else is in b")
    core.handle_subscription(1, {BOB: (b"/b",)}, 5.0)
    assert core.handle_timeout(5.9) == []
    assert core.next_timeout() == 5.0 + GATEWAY_LIMITS.hold_s
    core.handle_timeout(6.0)
    assert core.state == "listening"
    actions = core.handle_timeout(5.0 + READY_S)
    assert core.passing
    assert (asked(actions, 0), asked(actions, 1)) == ([b"/b"], [b"/a"])
    assert Report(GatewayPasses(("a", "b"))) in actions


def test_of_two_the_older_passes_and_the_other_takes_over_when_it_is_gone() -> None:
    older = Announcement("a", "b", (name(1),), settled=True, passes=True)
    there = Announcement("b", "a", (name(1),), settled=True, passes=True)
    core = gateway()
    actions = passing(core, {ALICE: (b"/a",), OTHER_A: (older.pack(),)}, {BOB: (b"/b",), OTHER_B: (there.pack(),)})
    assert core.state == "standing by"
    assert (asked(actions, 0), asked(actions, 1)) == ([], [])
    assert Report(GatewayWaits(("a", "b"), "another gateway passes")) in actions

    core.handle_subscription(1, {BOB: (b"/b",)}, 20.0)
    actions = core.handle_subscription(0, {ALICE: (b"/a",)}, 20.01)
    assert core.passing
    assert asked(actions, 0) == [b"/b"]


def test_who_passes_goes_on_passing_when_a_younger_one_comes() -> None:
    core = gateway()
    passing(core, {ALICE: (b"/a",)}, {BOB: (b"/b",)})
    younger = Announcement("a", "b", (b"\xff" * 16,), settled=True)
    core.handle_subscription(0, {ALICE: (b"/a",), OTHER_A: (younger.pack(),)}, 20.0)
    assert core.passing


def test_who_is_to_feed_a_domain_waits_until_nobody_else_does_but_not_for_ever() -> None:
    core = gateway()
    feeder = Announcement("a", "c", (b"\xff" * 16,), settled=True, passes=True)
    actions = passing(core, {ALICE: (b"/a",), OTHER_A: (feeder.pack(),)}, {BOB: (b"/b",)})
    reports = [str(each.event) for each in actions if isinstance(each, Report)]
    assert reports == [
        "passing nothing between a and b: another gateway still passes",
        "passing between a and b",
    ]
    assert core.passing


def test_a_gateway_in_both_ways_of_a_circle_is_cut_where_it_is_worst() -> None:
    root = Announcement("a", "c", (name(1),), settled=True, passes=True)
    better = Announcement("b", "c", (name(1), name(2)), settled=True, passes=True)
    core = gateway()
    passing(core, {OTHER_A: (root.pack(),)}, {OTHER_B: (better.pack(),)})
    assert core.state == "standing by"
    assert core.place is not None
    assert (core.place.up, core.place.path[0], core.place.rival) == (0, name(1), OTHER_B)


def test_nobody_believes_what_he_said_himself_or_who_is_too_deep() -> None:
    deep = Announcement("a", "b", tuple(name(each) for each in range(1, 10)), settled=True)
    for each, depth in ((Announcement("a", "b", (name(1), name(50)), settled=True), 9), (deep, 9)):
        place = elect(name(50), ({OTHER_A: each}, {}), 0, depth)
        assert (place.up, place.path) == (None, (name(50),))
    assert elect(name(50), ({OTHER_A: deep}, {}), 0, 10).path == (*deep.path, name(50))


def test_losing_a_side_ends_it() -> None:
    core = gateway()
    passing(core, {ALICE: (b"/a",)}, {BOB: (b"/b",)})
    actions = core.handle_subscription(0, {}, 20.0)
    assert core.state == "waiting"
    assert asked(actions, 1) == []
    assert announced(actions, 1).path == ()
    core.handle_subscription(0, {ALICE: (b"/a",)}, 21.0)
    assert core.next_timeout() == 21.0 + GATEWAY_LIMITS.hold_s


def test_two_sides_of_one_mesh_are_noticed() -> None:
    core = gateway()
    passing(core, {ALICE: (b"/a",)}, {BOB: (b"/b",)})
    actions = core.handle_subscription(0, {ALICE: (b"/a",), OWN_B: ()}, 20.0)
    assert core.state == "misjoined"
    assert Report(SameMesh(("a", "b"))) in actions
    core.handle_subscription(0, {ALICE: (b"/a",)}, 21.0)
    assert core.state == "waiting"


def test_sides_that_are_mistaken_for_each_other_are_told_once() -> None:
    core = gateway()
    wrong = Announcement("b", "a")
    news = [
        each
        for filters in ({OTHER_A: (wrong.pack(),)}, {OTHER_A: (wrong.pack(),), ALICE: ()})
        for each in core.handle_subscription(0, filters, 0.0)
        if isinstance(each, Report)
    ]
    assert news == [Report(OtherName(OTHER_A, "a", "b"))]


@pytest.mark.parametrize(
    ("names", "ids", "text"),
    [
        (("a", "a"), (OWN_A, OWN_B), "both sides are called a"),
        (("a", "b/c"), (OWN_A, OWN_B), "'b/c' is not a name of a domain"),
        (("a", ""), (OWN_A, OWN_B), "'' is not a name"),
        (("a", "b"), (OWN_A, OWN_A), "same endpoint id"),
    ],
)
def test_what_cannot_be_a_gateway_is_refused(names: tuple[str, str], ids: tuple[bytes, bytes], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        GatewayCore((SideOptions(names[0], ids[0], ALL), SideOptions(names[1], ids[1], ALL)), FixedClock())


# -- messages -----------------------------------------------------------------------------------------------


def test_chosen_topics_pass_as_they_are_and_nothing_else_does() -> None:
    core = gateway(chosen=((b"/a",), (b"/b",)))
    passing(core, {ALICE: (b"/b",)}, {BOB: (b"",)})
    messages = [published(each) for each in (b"/a/1", b"/b/1", b"other", b"<$>/x", b"/a/2")]
    assert core.handle_message(0, messages, 20.0) == [
        Send(1, PublishToSide([(b"/a/1", b"payload of /a/1"), (b"/a/2", b"payload of /a/2")], []))
    ]
    assert core.handle_message(1, [published(b"/a/1", BOB)], 20.0) == []
    alone = Message(b"/a/1", b"", sender=ALICE, origin=ALICE, receiver=OWN_A)
    assert core.handle_message(0, [alone], 20.0) == []


def test_what_stands_by_passes_nothing_and_says_so() -> None:
    core = gateway()
    core.start(0.0)
    assert core.handle_message(0, [published(b"/a")] * 3, 1.0) == []
    assert core.handle_timeout(core.next_timeout()) == [Report(NotPassed("a", 3, "as another gateway passes by now"))]
    assert core.sides()[0].refused == 3


def test_gateways_of_the_next_domain_get_a_mark_and_take_no_message_without() -> None:
    further = Announcement("b", "c", (b"\xff" * 16,), settled=True, passes=True, up=True)
    core = gateway()
    passing(core, {ALICE: (b"/a",)}, {BOB: (b"/b",), OTHER_B: (b"/a", further.pack())})
    (publish,) = core.handle_message(0, [published(b"/a/1"), published(b"/b")], 20.0)
    assert isinstance(publish, Send)
    assert [topic for topic, _ in publish.message.messages] == [b"/a/1", b"/b"]
    ((receiver, payload),) = publish.message.marked
    marked = marks.parse(payload)
    assert (receiver, marked.topic, marked.payload, marked.passed) == (OTHER_B, b"/a/1", b"payload of /a/1", 1)

    assert core.handle_message(1, [published(b"/a/1", OTHER_B)], 20.0) == []  # without a mark
    core.handle_subscription(1, {BOB: (b"/b",)}, 20.0)
    assert core.handle_message(1, [published(b"/a/1", OTHER_B)], 20.0) == []  # it was one until now
    assert core.handle_message(0, [Message(MARKED, payload, origin=OTHER_B, receiver=OWN_A)], 20.0) == []


def test_a_marked_message_passes_once_and_not_in_circles() -> None:
    other = Announcement("a", "c", (b"\xff" * 16,), settled=True, passes=True, up=True)
    core = gateway(chosen=((b"/a",), ALL))
    actions = passing(core, {OTHER_A: (b"/b", other.pack())}, {BOB: (b"/a",)})
    own = announced(actions, 0).path[-1]

    def take(marked: Marked, origin: bytes = OTHER_A) -> list[Effect]:
        return core.handle_message(0, [Message(MARKED, marked.pack(), origin=origin, receiver=OWN_A)], 20.0)

    assert take(Marked(name(9), 1, 1, b"/a", b"x")) == [Send(1, PublishToSide([(b"/a", b"x")], []))]
    assert take(Marked(name(9), 1, 3, b"/a", b"x")) == []
    assert take(Marked(own, 1, 1, b"/a", b"x")) == []
    assert take(Marked(name(9), 2, 2 * GATEWAY_LIMITS.depth_max, b"/a", b"x")) == []
    assert take(Marked(name(9), 3, 1, b"/b", b"x")) == []  # not chosen
    assert take(Marked(name(9), 4, 1, b"<$>/local/x", b"x")) == []
    assert take(Marked(name(9), 5, 1, b"/a", b"x"), origin=ALICE) == []  # no gateway
    assert core.handle_message(0, [Message(MARKED, b"x", origin=OTHER_A, receiver=OWN_A)], 20.0) == []
    assert core.invariants() == []


# -- rogues -------------------------------------------------------------------------------------------------


def test_only_who_is_believed_counts_as_a_gateway() -> None:
    rogue = Announcement("a", "b", (name(1),), settled=True, passes=True)
    core = gateway(gateways=frozenset({OTHER_B}))
    passing(core, {ALICE: (b"/a", rogue.pack())}, {BOB: (rogue.pack(),)})
    assert core.passing
    assert [each.gateways for each in core.sides()] == [0, 0]


def test_many_gateways_and_wishes_have_bounds() -> None:
    limits = GatewayLimits(gateways_max=10, wanted_max=5)
    core = gateway(chosen=((b"/a",), (b"/b",)), limits=limits)
    rogues = {bytes([each]) * 16: (b"/b/%d" % each, Announcement("a", "b").pack()) for each in range(7, 200)}
    actions = passing(core, {ALICE: (), **rogues}, {BOB: (b"/a/" + b"x" * 60_000,)})
    assert core.sides()[0].gateways == 10
    assert asked(actions, 1) == [b"/b"]
    assert asked(actions, 0) == [b"/a"]
    core.handle_subscription(0, {ALICE: ()}, 20.0)
    others = {bytes([each]) * 15 + b"x": (Announcement("a", "b").pack(),) for each in range(7, 200)}
    core.handle_subscription(0, {ALICE: (), **others}, 21.0)
    core.handle_subscription(0, {ALICE: ()}, 22.0)
    assert core.invariants() == []


def test_wishes_that_change_all_the_time_are_told_now_and_then() -> None:
    core = gateway()
    passing(core, {ALICE: ()}, {BOB: (b"/a",)})
    told = [
        each
        for step in range(1_000)
        for each in core.handle_subscription(1, {BOB: (b"/%d" % step,)}, 20.0 + step / 1_000)
        if isinstance(each, Send) and isinstance(each.message, SubscribeAtSide)
    ]
    assert len(told) <= 1.0 / GATEWAY_LIMITS.tell_pause_s + 1
    assert asked(core.handle_timeout(core.next_timeout()), 0) == [b"/999"]
