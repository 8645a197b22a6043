"""Ways through a network that does not change: the shortest one to each, and two that share nothing without need."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from random import Random

import pytest

from chappe.mesh.link_states import KnownEndpoint
from chappe.mesh.messages import LinkState, Neighbour
from chappe.mesh.ways import Tree, Ways

Links = Collection[tuple[int, int]]


def endpoint(number: int) -> bytes:
    return number.to_bytes(16, "big")


def ways_of(count: int, links: Links, leaves: Collection[int] = ()) -> Ways:
    """The ways from 0; leaves pass nothing on."""
    known = {}
    for number in range(1, count):
        beside = sorted({one + two - number for one, two in links if number in (one, two)})
        neighbours = tuple([Neighbour(endpoint(each)) for each in beside])
        state = LinkState(endpoint(number), 1, number not in leaves, (), neighbours)
        known[endpoint(number)] = KnownEndpoint(state, b"")
    return Ways(endpoint(0), [endpoint(one + two) for one, two in links if 0 in (one, two)], known, {})


class Counted(bytes):
    """An id that counts how often one is looked up."""

    hashed = 0

    def __hash__(self) -> int:
        Counted.hashed += 1
        return super().__hash__()


def routes(tree: Tree) -> dict[int, list[int]]:
    """The way to each receiver of a tree, which is one: nobody is below two hops, and all ends are receivers."""
    receivers, below = tree
    parents: dict[int, int] = {}
    for hop, there in below.items():
        for each in there:
            assert int.from_bytes(each, "big") not in parents
            parents[int.from_bytes(each, "big")] = int.from_bytes(hop, "big")
    found = {}
    for receiver in sorted(receivers):
        way = [int.from_bytes(receiver, "big")]
        while way[-1] != 0:
            way.append(parents[way[-1]])
            assert len(way) <= len(parents) + 1
        found[way[0]] = way[::-1]
    assert parents.keys() == {hop for way in found.values() for hop in way[1:]}
    return found


def distances(count: int, links: Links, leaves: Collection[int] = ()) -> dict[int, int]:
    """How many hops away everybody is from 0, as one sees it who looks at all links again and again."""
    found = {0: 0}
    for _ in range(count):
        for one, two in (*links, *[(two, one) for one, two in links]):
            if one in found and (one == 0 or one not in leaves):
                found[two] = min(found.get(two, count), found[one] + 1)
    return found


def everybody(ways: Ways) -> frozenset[bytes]:
    return frozenset(filter(ways.lead_to, map(endpoint, range(1, 100))))


def hops_of(way: list[int]) -> set[int]:
    return set(way[1:-1])


def links_of(way: list[int]) -> set[tuple[int, int]]:
    return {(min(pair), max(pair)) for pair in pairwise(way)}


def random_network(rng: Random) -> tuple[int, Links, list[int]]:
    count = rng.randint(2, 12)
    pairs = [(one, two) for two in range(count) for one in range(two)]
    links = rng.sample(pairs, rng.randint(min(count - 1, len(pairs)), len(pairs)))
    if rng.random() < 0.5:
        links = links[: 3 * count // 2]
    return count, links, [each for each in range(count) if rng.random() < 0.2]


@pytest.mark.parametrize("seed", range(200))
def test_two_ways_share_only_what_every_way_has(seed: int) -> None:
    count, links, leaves = random_network(Random(seed))
    ways = ways_of(count, links, leaves)
    receivers = everybody(ways)
    trees = ways.two_trees(receivers)
    one, two = routes(trees[0]), routes(trees[1]) if len(trees) > 1 else {}
    reached = distances(count, links, leaves)
    assert one.keys() == reached.keys() - {0}
    for receiver, way in one.items():
        other = two.get(receiver, way)
        for each in (way, other):
            assert links_of(each) <= set(links)
            assert not hops_of(each) & set(leaves)
        assert (receiver in two) == (other != way)
        for hop in set(range(1, count)) - {receiver}:
            without = [link for link in links if hop not in link]
            needed = receiver not in distances(count, without, leaves)
            assert needed == (hop in hops_of(way) & hops_of(other))
        for link in links:
            without = [each for each in links if each != link]
            needed = receiver not in distances(count, without, leaves)
            assert needed == (link in links_of(way) & links_of(other))


@pytest.mark.parametrize("seed", range(1_000, 1_040))
def test_places_that_come_too_close_are_given_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.mesh.ways._STEP_MIN", 0.4)
    test_two_ways_share_only_what_every_way_has(seed)


def test_there_is_a_place_for_any_number_of_hops_between_two() -> None:
    """Behind 1, which is beside 0, all others; behind these 2, which is beside 0 too."""
    others = range(3, 99)
    ways = ways_of(99, [(0, 1), (0, 2), (1, 2), *[(end, each) for each in others for end in (1, 2)]])
    one, two = map(routes, ways.two_trees(everybody(ways)))
    assert all(sorted([one[each], two[each]]) == [[0, 1, each], [0, 2, each]] for each in others)


@pytest.mark.parametrize("seed", range(60))
def test_one_way_is_a_shortest_one(seed: int) -> None:
    count, links, leaves = random_network(Random(seed))
    ways = ways_of(count, links, leaves)
    found = routes(ways.tree(everybody(ways)))
    assert {0: 0} | {receiver: len(way) - 1 for receiver, way in found.items()} == distances(count, links, leaves)
    assert ways.distances.keys() == {endpoint(each) for each in found}


@pytest.mark.parametrize("seed", range(60))
def test_trees_to_some_are_parts_of_those_to_all(seed: int) -> None:
    """So two messages never take different ways to the same endpoint."""
    rng = Random(seed)
    count, links, leaves = random_network(rng)
    ways = ways_of(count, links, leaves)
    receivers = everybody(ways)
    some = frozenset(rng.sample(sorted(receivers), len(receivers) // 2))
    for whole, part in zip(ways.two_trees(receivers), ways.two_trees(some), strict=False):
        assert routes(part).items() <= routes(whole).items()
    assert routes(ways.tree(some)).items() <= routes(ways.tree(receivers)).items()


def test_where_the_shortest_way_is_in_the_way_of_two_neither_is_it() -> None:
    """0 - 1 - 2 - 5 is the shortest, and leaves no other: 0 - 1 - 4 - 5 and 0 - 3 - 2 - 5 are two."""
    links = [(0, 1), (1, 2), (2, 5), (1, 6), (4, 6), (4, 5), (0, 7), (3, 7), (2, 3)]
    ways = ways_of(8, links)
    assert routes(ways.tree(frozenset({endpoint(5)}))) == {5: [0, 1, 2, 5]}
    one, two = map(routes, ways.two_trees(frozenset({endpoint(5)})))
    assert sorted([one[5], two[5]]) == [[0, 1, 6, 4, 5], [0, 7, 3, 2, 5]]


def test_in_a_full_mesh_one_way_is_the_link_and_the_other_leads_over_one_hop() -> None:
    ways = ways_of(9, [(one, two) for two in range(9) for one in range(two)])
    one, two = map(routes, ways.two_trees(everybody(ways)))
    assert sorted(map(len, one.values())) == [*[2] * 7, 3]
    assert sorted(map(len, two.values())) == [2, *[3] * 7]
    assert all({len(one[each]), len(two[each])} == {2, 3} for each in one)


def test_two_ways_are_not_much_longer_than_the_shortest() -> None:
    rng = Random(1)
    count = 99
    links = {(rng.randrange(each), each) for each in range(1, count)}
    while len(links) < 3 * count:
        one, two = sorted(rng.sample(range(count), 2))
        links.add((one, two))
    ways = ways_of(count, sorted(links))
    hops = [
        sum([len(way) - 1 for way in routes(tree).values()]) / (count - 1) for tree in ways.two_trees(everybody(ways))
    ]
    shortest = sum([distance for distance, _ in ways.distances.values()]) / (count - 1)
    assert hops[0] < 1.4 * shortest
    assert hops[1] < 2 * shortest


def test_a_link_that_only_one_of_its_ends_tells_of_is_on_no_way() -> None:
    ways = ways_of(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    known = ways._known
    known[endpoint(2)].chappe -= {endpoint(3)}
    again = Ways(endpoint(0), [endpoint(1), endpoint(2)], known, {})
    assert list(map(routes, again.two_trees(frozenset({endpoint(3)})))) == [{3: [0, 1, 3]}]


def test_a_neighbour_that_has_told_nothing_yet_is_an_end() -> None:
    ways = Ways(endpoint(0), [endpoint(1)], {}, {})
    assert list(map(routes, ways.two_trees(frozenset({endpoint(1)})))) == [{1: [0, 1]}]


def test_the_effort_grows_in_proportion_to_the_network() -> None:
    found = []
    for count in (100, 400):
        ids = [Counted(endpoint(number)) for number in range(count)]
        known: dict[bytes, KnownEndpoint] = {}
        for number in range(1, count):
            neighbours = tuple([Neighbour(each) for each in ids[number - 1 : number + 2 : 2]])
            known[ids[number]] = KnownEndpoint(LinkState(ids[number], 1, True, (), neighbours), b"")
        before = Counted.hashed
        assert Ways(ids[0], [ids[1]], known, {}).distances[ids[-1]] == (count - 1, ids[1])
        found.append(Counted.hashed - before)
    assert found[1] <= 5 * found[0]
