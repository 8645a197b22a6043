"""The places of messages among those of their origin and topic, and the gaps that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import pytest
from tests.mesh.net_rig import TOPIC, Net, Node
from tests.mesh.rogue_rig import Peer

from chappe.defaults import MESH_MESSAGE_BYTES_MAX
from chappe.errors import ProtocolError, UsageError
from chappe.limits import MeshLimits
from chappe.mesh import places
from chappe.mesh.events import Gap
from chappe.mesh.flows import HEAD_BYTES, PREFIX, pack_batch, pack_publication, parse_publications
from chappe.mesh.messages import COMMAND, DATA, NOBODY, Message
from chappe.mesh.places import COUNT_MAX, HOLES_MAX, MessageGaps, Places

ORIGIN, OTHER = b"o" * 16, b"p" * 16
COUNTING = COUNT_MAX + 1


def message(place: int, topic: bytes = TOPIC, origin: bytes = ORIGIN) -> Message:
    return Message(topic, b"", origin=origin, place=place)


def came(numbers: Iterable[int], gaps: MessageGaps | None = None) -> MessageGaps:
    gaps = MessageGaps() if gaps is None else gaps
    gaps.came([message(each) for each in numbers])
    return gaps


def missing(gaps: MessageGaps) -> list[int]:
    return [each.missing for each in gaps.take()]


def counts(node: Node) -> list[int]:
    return [each.place & COUNT_MAX for each in node.delivered]


# -- what an origin counts ----------------------------------------------------------------------------


def test_each_topic_is_counted_by_itself() -> None:
    made = Places(0, 10)
    found = [made.take(topic, count) for topic, count in ((b"/a", 1), (b"/a", 1), (b"/b", 1), (b"/a", 3), (b"/a", 1))]
    assert found == [1, 2, 1, 3, 6]


def test_each_life_has_its_own_counting_and_so_has_what_follows_too_many_topics() -> None:
    assert Places(17, 10).take(b"/a") == 17 * COUNTING + 1
    assert Places(18, 10).take(b"/a") == 18 * COUNTING + 1
    made = Places((1 << 24) - 1, 2)
    first = [made.take(topic) for topic in (b"/a", b"/b", b"/a")]
    assert first == [((1 << 24) - 1) * COUNTING + count for count in (1, 1, 2)]
    assert [made.take(topic) for topic in (b"/c", b"/a", b"/c")] == [1, 1, 2]


def test_the_topics_that_are_counted_have_a_bound_in_bytes() -> None:
    made = Places(0, 1_000)
    long = [bytes([each]) * 65_535 for each in range(65)]
    assert [made.take(topic) for topic in long] == [*[1] * 64, COUNTING + 1]


def test_singles_batches_and_late_ones_have_their_places_over_any_way() -> None:
    net = Net(3, [(0, 1), (1, 2)])
    net.want(2)
    net[0].publish(b"1")
    net[0].do(net[0].core.publish_many([(TOPIC, b"%d" % each) for each in range(2, 302)], net[0].now)[0])
    net[0].publish(b"other", b"/other")
    net[0].publish(b"302")
    net.pump()
    assert counts(net[2]) == [*range(1, 303)]
    assert {each.place >> 40 for each in net[2].delivered} == {1_000}


def test_what_nobody_wants_counts_and_what_is_for_one_or_a_command_does_not() -> None:
    net = Net(2, [(0, 1)])
    net[0].publish(b"nobody")
    net.want(1)
    net[0].publish(b"all")
    net[0].publish(b"one", to=net[1])
    net[0].do(net[0].core.publish(TOPIC, b"command", COMMAND, NOBODY, net[0].now))
    net[0].publish(b"all")
    net.pump()
    assert counts(net[1]) == [2, 0, 3]


def test_what_is_refused_has_no_place() -> None:
    net = Net(2, [(0, 1)])
    net.want(1)
    core = net[0].core
    net[0].publish(b"1")
    large = bytes(MESH_MESSAGE_BYTES_MAX)
    with pytest.raises(UsageError):
        core.publish(TOPIC, large, DATA, NOBODY, net[0].now)
    with pytest.raises(UsageError):
        core.publish_many([(TOPIC, b"2"), (TOPIC, b"3"), (TOPIC, large), (TOPIC, b"never")], net[0].now)
    net[0].publish(b"4")
    net.pump()
    assert [each.payload for each in net[1].delivered] == [b"1", b"2", b"3", b"4"]
    assert counts(net[1]) == [1, 2, 3, 4]


def test_both_copies_of_a_message_have_one_place() -> None:
    net = Net(4, [(0, 1), (0, 2), (1, 3), (2, 3)], paths=2)
    net.want(3)
    for _ in range(3):
        net[0].publish(b"x")
    net.pump()
    assert counts(net[3]) == [1, 2, 3]
    assert len(net.flows()) == 12


def test_an_original_has_no_places_and_an_endpoint_counts_what_it_brings_in() -> None:
    net = Net(2, [(0, 1)])
    net.want(0, 1)
    original = Peer(net[0], b"v" * 16, chappe=False)
    for text in (b"1", b"2"):
        original.send(original.plain(DATA, TOPIC, text))
    net.pump()
    assert counts(net[0]) == [0, 0]
    assert counts(net[1]) == [1, 2]


# -- the bytes ------------------------------------------------------------------------------------------


def test_the_place_ends_the_head_and_a_batch_names_the_last() -> None:
    single = pack_publication(ORIGIN, 7, 3, DATA, NOBODY, b"/t", b"x", 2 * COUNTING + 5)[PREFIX:]
    assert single[HEAD_BYTES - 8 :] == bytes.fromhex("000002 0000000005") + b"/tx"
    batch = pack_batch(ORIGIN, 9, 3, b"/t", [b"a", b"b", b"c"], COUNTING + 5)[PREFIX:]
    assert [each.place for each in parse_publications(batch, OTHER)] == [COUNTING + 3, COUNTING + 4, COUNTING + 5]
    unplaced = pack_batch(ORIGIN, 9, 3, b"/t", [b"a", b"b", b"c"])[PREFIX:]
    assert [each.place for each in parse_publications(unplaced, OTHER)] == [0, 0, 0]


@pytest.mark.parametrize("last", [1, 2, COUNTING + 2])
def test_a_batch_whose_places_begin_below_one_is_malformed(last: int) -> None:
    with pytest.raises(ProtocolError):
        parse_publications(pack_batch(ORIGIN, 9, 3, b"/t", [b"a", b"b", b"c"], last)[PREFIX:], OTHER)


# -- what a subscriber misses ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([5, 6, 7], []),
        ([5, 9], [3]),
        ([5, 9, 10, 12], [4]),
        ([5, 7, 6], []),  # late, before it was told
        ([5, 9, 8], [2]),
        ([5, 4, 3], []),  # from before the first one: that was never missing
        ([5, 7, 4, 8], [1]),
        ([5, 5, 5, 6], []),  # several values that were sealed together
        ([5, 7, 7], [1]),
        ([5, 10, 8, 6, 9, 7], []),
        ([5, 10, 8, 8], [3]),
        ([], []),
        ([0, 0, 5, 0, 6], []),  # without places
    ],
)
def test_gaps_are_what_is_missing_between_the_first_and_the_last(numbers: Sequence[int], found: list[int]) -> None:
    assert missing(came(numbers)) == found


def test_what_comes_after_it_was_told_as_missing_is_taken_back() -> None:
    gaps = came([1, 5])
    assert missing(gaps) == [3]
    came([3, 3, 6], gaps)
    assert gaps.take() == [Gap(str(UUID(bytes=ORIGIN)), "/t", -1)]
    came([2, 4], gaps)
    assert missing(gaps) == [-2]
    assert missing(came([2, 3, 4], gaps)) == []


def test_publishers_and_topics_are_told_apart() -> None:
    gaps = MessageGaps()
    gaps.came([message(1), message(1, b"/u"), message(1, TOPIC, OTHER), message(3), message(4, b"/u")])
    assert {(each.origin, each.topic, each.missing) for each in gaps.take()} == {
        (str(UUID(bytes=ORIGIN)), "/t", 1),
        (str(UUID(bytes=ORIGIN)), "/u", 2),
    }


def test_another_counting_begins_anew() -> None:
    gaps = came([3, 5, COUNTING + 7, COUNTING + 9])
    assert missing(gaps) == [2]
    assert missing(came([4, COUNTING + 10], gaps)) == []  # of the former life, late


def test_what_is_dropped_here_is_missing_if_it_has_a_place() -> None:
    gaps = came([1, 2, 3])
    for place in (1, 0, 2):
        gaps.dropped(message(place))
    assert missing(gaps) == [2]


def test_what_is_not_wanted_is_not_missing() -> None:
    gaps = MessageGaps()
    gaps.came([message(1), message(1, b"/u")])
    gaps.wants((b"/u",))
    gaps.came([message(9), message(4, b"/u")])
    assert [(each.topic, each.missing) for each in gaps.take()] == [("/u", 2)]


def test_all_it_remembers_has_a_bound() -> None:
    gaps = MessageGaps(topics_max=3)
    for topic in (b"/a", b"/b", b"/c"):
        gaps.came([message(1, topic), message(3, topic)])
    gaps.came([message(1, b"/d"), message(3, b"/d")])  # all others begin anew
    gaps.came([message(9, b"/a"), message(10, b"/a")])
    assert [(each.topic, each.missing) for each in gaps.take()] == [("/a", 1), ("/b", 1), ("/c", 1), ("", 1)]
    many = came(range(1, 4 * HOLES_MAX, 2))
    missing(many)
    assert missing(came([2], many)) == []  # its hole was forgotten
    assert missing(came([4 * HOLES_MAX - 2], many)) == [-1]


def test_a_gap_is_a_sentence() -> None:
    assert str(Gap("id", "/t", 3)) == "3 messages of endpoint id to '/t' are missing"
    assert str(Gap("id", "/t", 1)) == "1 message of endpoint id to '/t' is missing"
    assert str(Gap("id", "/t", -1)) == "1 message of endpoint id to '/t' came late and is not missing"
    assert str(Gap("", "", 2)) == "2 messages of several publishers are missing"


# -- over a net -----------------------------------------------------------------------------------------


def test_who_was_cut_off_sees_how_many_it_missed() -> None:
    net = Net(3, [(0, 1), (1, 2)])
    net.want(2)
    net[0].publish(b"1")
    net.settle()
    net.kill(1)
    for _ in range(4):
        net[0].publish(b"lost")
    net.link(0, 2)
    net.settle()
    net[0].publish(b"6")
    net.settle()
    gaps = MessageGaps()
    gaps.came(net[2].delivered)
    assert missing(gaps) == [4]


def test_a_publisher_of_too_many_topics_begins_anew() -> None:
    net = Net(2, [(0, 1)], limits=MeshLimits(routes_max=2))
    net.want(1, topic=b"/")
    for topic in (b"/a", b"/b", b"/a", b"/c", b"/a"):
        net[0].publish(b"x", topic)
    net.pump()
    assert counts(net[1]) == [1, 1, 2, 1, 1]
    assert [each.place // COUNTING for each in net[1].delivered] == [1_000, 1_000, 1_000, 1_001, 1_001]
    assert places.SEVERAL == (NOBODY, b"")
