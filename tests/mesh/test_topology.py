"""What an endpoint tells of itself, and what it makes of its own link state when that comes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from chappe.mesh.link_states import Verdict
from chappe.mesh.messages import LinkState, Neighbour, pack_link_state, parse_link_state, parse_message
from chappe.mesh.topology import Topology

OWN, PEER, OTHER, ORIGINAL = (bytes([number]) * 16 for number in range(1, 5))
PREFIX = 4  # bytes of a frame's length


@pytest.fixture
def topology() -> Topology:
    """An endpoint that wants something, between two others and an original."""
    made = Topology(OWN, forwards=True, version=7)
    made.set_filter((b"/a", b"/b"))
    made.link_up(PEER, False, (b"/c",))
    made.link_up(OTHER, False, ())
    made.link_up(ORIGINAL, True, (b"/d", b"/e"))
    return made


def tell(topology: Topology) -> LinkState:
    topology.settle(0.0)
    state = topology.tell(0.0)
    assert state is not None
    return state


def come_back(topology: Topology, state: LinkState) -> None:
    """Have a link state arrive as others pass it on."""
    frame = pack_link_state(PEER, state)
    again = parse_link_state(parse_message(frame[PREFIX:]).payload)
    assert topology.learn(again, frame, PEER, 0.0) is None


def test_what_we_told_is_no_news_when_it_comes_back_around_a_ring(topology: Topology) -> None:
    state = tell(topology)

    come_back(topology, state)

    assert not topology.changed
    assert topology.tell(0.0) is None


def test_what_we_told_earlier_is_no_news_either(topology: Topology) -> None:
    first = tell(topology)
    topology.set_filter(())
    come_back(topology, first)  # before the change is told ...
    second = tell(topology)
    come_back(topology, first)  # ... and after it

    assert second.version == first.version + 1
    assert topology.tell(0.0) is None


@pytest.mark.parametrize("ahead", [0, 1, 1000])
def test_what_an_earlier_life_told_is_outdone_at_once(topology: Topology, ahead: int) -> None:
    state = tell(topology)
    former = replace(state, version=state.version + ahead, filter=(b"/former",))

    come_back(topology, former)

    again = tell(topology)
    assert again == replace(state, version=former.version + 1)
    come_back(topology, again)
    assert topology.tell(0.0) is None


def test_a_link_state_that_goes_around_a_ring_is_told_once() -> None:
    """Of three in a ring the link between the first and the last is slow: all comes back over the others first."""
    ids = (OWN, PEER, OTHER)
    ring = {each: Topology(each, forwards=True, version=1) for each in ids}
    for each, topology in ring.items():
        for other in ids:
            if other != each:
                topology.link_up(other, False, ())
        topology.settle(0.0)
    told = 0
    state = ring[OWN].tell(0.0)
    while state is not None and told < 10:
        told += 1
        frame = pack_link_state(OWN, state)
        assert ring[PEER].learn(state, frame, OWN, 0.0) is Verdict.NEWS
        # To the last it comes the other way first: it believes what its neighbour says of itself from that alone.
        assert ring[OTHER].learn(state, frame, PEER, 0.0) is Verdict.DOUBTED
        assert ring[OTHER].towards(OWN) == OWN
        assert ring[OWN].learn(state, frame, OTHER, 0.0) is None
        ring[OWN].settle(0.0)
        state = ring[OWN].tell(0.0)

    assert told == 1


def test_who_can_have_said_what_comes(topology: Topology) -> None:
    far, beyond, behind, unknown = (bytes([number]) * 16 for number in range(5, 9))
    for state in (
        LinkState(PEER, 1, True, (), (Neighbour(OWN), Neighbour(far))),
        LinkState(far, 1, True, (), (Neighbour(PEER), Neighbour(beyond, True))),
    ):
        topology.settle(0.0)
        assert topology.learn(state, pack_link_state(PEER, state), PEER, 0.0) is Verdict.NEWS
    topology.settle(0.0)

    vouches = topology.vouches
    assert vouches(far, far)
    assert vouches(unknown, unknown)  # it has left behind what it said
    assert not vouches(PEER, far)  # it is there to speak for itself
    assert not vouches(far, OTHER)
    assert vouches(far, behind)  # which may be behind the original beyond it
    assert vouches(far, beyond)
    assert not vouches(PEER, behind)  # no original is beside this one
    assert topology.speaker(beyond) == far
    assert topology.speakers() == {far}
    assert topology.speaker(ORIGINAL) is topology.speaker(unknown) is None  # the first is for us, the other nowhere
    nobody = bytes(16)
    assert vouches(nobody, ORIGINAL)
    assert vouches(nobody, unknown)
    assert not vouches(nobody, PEER)
    assert not vouches(nobody, far)
    assert not any(vouches(origin, OWN) for origin in (PEER, OWN, nobody))


def test_what_concerns_another_endpoint_goes_to_it_on_the_shortest_way_of_a_ring(topology: Topology) -> None:
    one, two = (bytes([number]) * 16 for number in (10, 11))  # a ring: OWN, PEER, one, two, OTHER
    ring = {OWN: (PEER, OTHER), PEER: (OWN, one), one: (PEER, two), two: (one, OTHER), OTHER: (two, OWN)}
    for number, (endpoint, beside) in enumerate(ring.items()):
        if endpoint != OWN:
            state = LinkState(endpoint, 10 + number, True, (), tuple(map(Neighbour, beside)))
            topology.learn(state, pack_link_state(endpoint, state), PEER if endpoint in (PEER, one) else OTHER, 0.0)
    topology.settle(0.0)

    assert [topology.towards(each) for each in (PEER, one, two, OTHER)] == [PEER, PEER, OTHER, OTHER]


def link_states(rng: Random) -> Iterator[LinkState | bytes]:
    """Link states of up to twelve endpoints, most of which only add to the last ones; ids of neighbours come and go."""
    ids = [bytes((number,)) * 16 for number in range(20, 32)]
    links: dict[bytes, set[bytes]] = {each: set() for each in ids}
    wanted: dict[bytes, set[bytes]] = {each: set() for each in ids}
    forwards = {each: rng.random() < 0.8 for each in ids}
    for version in range(1, 150):
        each, other = rng.sample([*ids, OWN], 2)
        if OWN in (each, other):
            links[other if each == OWN else each].add(OWN)
            yield other if each == OWN else each
            continue
        chance = rng.random()
        if chance < 0.7:
            links[each].add(other)
            links[other].add(each)
        elif chance < 0.8:
            links[each].discard(other)
        elif chance < 0.95:
            wanted[each] ^= {bytes((rng.randrange(3),))}
        else:
            forwards[each] = not forwards[each]
        for told in (each, other) if chance < 0.7 else (each,):
            neighbours = [Neighbour(to) for to in sorted(links[told])]
            if rng.random() < 0.05:
                neighbours.append(Neighbour(ORIGINAL, True, (b"/o",)))
            yield LinkState(told, version, forwards[told], tuple(sorted(wanted[told])), tuple(neighbours))


@pytest.mark.parametrize("seed", range(40))
def test_what_follows_from_news_is_what_follows_from_all_that_is_known(seed: int) -> None:
    """One brings its answers up to date, the other finds them anew each time."""
    rng = Random(seed)
    one, two = (Topology(OWN, forwards=seed % 3 > 0, version=1) for _ in range(2))
    linked: set[bytes] = set()
    extended = 0
    for news in link_states(rng):
        if isinstance(news, bytes):
            for topology in (one, two):
                if news in linked:
                    topology.link_down(news)
                else:
                    topology.link_up(news, False, (b"/hello",))
            linked ^= {news}
        else:
            for topology in (one, two):
                peer = news.origin if news.origin in linked else min(linked, default=PEER)
                topology.learn(news, pack_link_state(PEER, news), peer, 0.0)
        assert one.changed == two.changed
        if not one.changed or rng.random() < 0.3:
            continue
        two._anew = True
        extended += not one._anew
        assert one.settle(0.0) == two.settle(0.0)
        for name in ("_present", "_listed", "_reachable", "_linked", "_designated", "_moved"):
            assert getattr(one, name) == getattr(two, name), name
        for peer in linked:
            mine, anew = one._sides[peer], two._sides[peer]
            for name in ("forwarding", "endpoints", "listed", "originals", "filter"):
                assert getattr(mine, name) == getattr(anew, name), name
        assert len(set(map(id, one._sides.values()))) == len(set(map(id, two._sides.values())))
        gone = [{each: made.gone_since for each, made in of._known.items()} for of in (one, two)]
        assert gone[0] == gone[1]
    assert extended > 10
