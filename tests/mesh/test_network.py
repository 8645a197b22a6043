"""The picture of the network that an endpoint makes of the link states that it has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from uuid import UUID

import pytest

from chappe.data.logical import LamportTimestamp, VectorTimestamp
from chappe.defaults import ENDPOINTS_MAX, NETWORK_LINKS_MAX
from chappe.mesh.filters import Filter
from chappe.mesh.link_states import KnownEndpoint, Verdict
from chappe.mesh.messages import LinkState, Neighbour, pack_link_state
from chappe.mesh.network import Facts, Network, NetworkEndpoint
from chappe.mesh.topology import Topology

OWN, A, B, C, D = (bytes([number]) * 16 for number in range(1, 6))
ORIGINAL, OTHER = b"o" * 16, b"p" * 16


def name(endpoint: bytes) -> str:
    return str(UUID(bytes=endpoint))


def looking(*neighbours: bytes, originals: dict[bytes, Filter] | None = None, forwards: bool = True) -> Topology:
    """What an endpoint knows that has just peered."""
    made = Topology(OWN, forwards=forwards, version=1)
    for each in neighbours:
        made.link_up(each, False, ())
    for each, wanted in (originals or {}).items():
        made.link_up(each, True, wanted)
    made.settle(0.0)
    return made


def tell(
    topology: Topology,
    over: bytes,
    origin: bytes,
    chappe: Iterable[bytes],
    *,
    originals: dict[bytes, Filter] | None = None,
    wanted: Filter = (),
    forwards: bool = True,
    version: int = 1,
) -> None:
    """A link state comes."""
    beside = [*map(Neighbour, chappe), *(Neighbour(each, True, of) for each, of in (originals or {}).items())]
    state = LinkState(origin, version, forwards, wanted, tuple(beside))
    assert topology.learn(state, pack_link_state(over, state), over, 0.0) is Verdict.NEWS
    topology.settle(0.0)


def picture(topology: Topology) -> Network:
    return Network.of(topology.facts())


def ways(network: Network) -> dict[str, tuple[int | None, str | None]]:
    return {each.id: (each.distance, each.via) for each in network.endpoints}


def links(network: Network) -> dict[tuple[str, str], tuple[bool, bool]]:
    """Whether each is our own, and whether it is confirmed."""
    return {each.ends: (each.own, each.confirmed) for each in network.links}


def between(one: bytes, two: bytes) -> tuple[str, str]:
    return name(one), name(two)


def ring() -> Topology:
    """OWN, A, C, D, B: two ways to each of the others."""
    made = looking(A, B)
    made.set_filter((b"/own",))
    tell(made, A, A, (OWN, C), wanted=(b"/a", b"/b"))
    tell(made, B, B, (OWN, D))
    tell(made, A, C, (A, D), wanted=(b"",))
    tell(made, B, D, (B, C), forwards=False)
    return made


def test_an_endpoint_alone_sees_itself() -> None:
    only = NetworkEndpoint(name(OWN), False, True, (), 0, None, LamportTimestamp(1))
    assert picture(looking()) == Network(name(OWN), (only,), ())


def test_a_ring_with_what_each_wants_and_how_far_it_is() -> None:
    network = picture(ring())

    assert network.id == name(OWN)
    assert network.endpoints == (
        NetworkEndpoint(name(OWN), False, True, ("/own",), 0, None, LamportTimestamp(1)),
        NetworkEndpoint(name(A), False, True, ("/a", "/b"), 1, name(A), LamportTimestamp(1)),
        NetworkEndpoint(name(B), False, True, (), 1, name(B), LamportTimestamp(1)),
        NetworkEndpoint(name(C), False, True, ("",), 2, name(A), LamportTimestamp(1)),
        NetworkEndpoint(name(D), False, False, (), 2, name(B), LamportTimestamp(1)),
    )
    assert links(network) == {
        between(OWN, A): (True, True),
        between(OWN, B): (True, True),
        between(A, C): (False, True),
        between(B, D): (False, True),
        between(C, D): (False, True),
    }


def test_the_same_facts_make_the_same_picture_in_whatever_order_they_came() -> None:
    other = looking(B, A)
    other.set_filter((b"/own",))
    tell(other, B, B, (D, OWN))
    tell(other, B, D, (C, B), forwards=False)
    tell(other, A, A, (C, OWN), wanted=(b"/a", b"/b"))
    tell(other, A, C, (D, A), wanted=(b"",))

    assert picture(other) == picture(ring())


def test_a_link_that_breaks_leads_the_other_way_round() -> None:
    made = ring()
    made.link_down(A)
    made.settle(0.0)
    tell(made, B, D, (B, C), version=2)
    tell(made, B, A, (C,), version=2)

    network = picture(made)

    assert ways(network)[name(A)] == (4, name(B))
    assert between(OWN, A) not in links(network)


def test_pictures_are_ordered_by_what_they_have_seen() -> None:
    made, other = ring(), ring()
    first = picture(made).time
    assert first == picture(other).time == VectorTimestamp(dict.fromkeys(map(name, (OWN, A, B, C, D)), 1))

    tell(made, A, C, (A, D), wanted=(), version=2)
    tell(other, B, D, (B, C), version=2)
    one, two = picture(made).time, picture(other).time
    assert first < one
    assert first < two
    assert one.concurrent(two)
    tell(other, A, C, (A, D), wanted=(), version=2)
    assert one < picture(other).time == one.merged(two)


def test_a_link_that_one_end_alone_tells_of_leads_nowhere_and_is_shown() -> None:
    made = looking(A)
    tell(made, A, A, (OWN, B))  # B has not been heard
    network = picture(made)

    assert network.endpoints[-1] == NetworkEndpoint(name(B), False, None, None, None, None)
    assert links(network)[between(A, B)] == (False, False)

    tell(made, A, B, (A,))
    assert links(picture(made))[between(A, B)] == (False, True)
    assert ways(picture(made))[name(B)] == (2, name(A))


def test_a_neighbour_that_still_tells_of_a_link_that_we_have_no_more() -> None:
    made = looking(A, B)
    tell(made, A, A, (OWN, B))
    tell(made, B, B, (OWN, A))
    made.link_down(A)
    made.settle(0.0)

    assert links(picture(made))[between(OWN, A)] == (False, False)
    assert ways(picture(made))[name(A)] == (2, name(B))


def test_beyond_an_endpoint_that_passes_nothing_on_only_its_neighbours_are_seen() -> None:
    made = looking(A)
    tell(made, A, A, (OWN, B), forwards=False)
    network = picture(made)

    assert network.endpoints[1:] == (
        NetworkEndpoint(name(A), False, False, (), 1, name(A), LamportTimestamp(1)),
        NetworkEndpoint(name(B), False, None, None, None, None),
    )
    assert links(network)[between(A, B)] == (False, False)


def test_who_has_gone_is_not_in_the_picture_though_its_link_state_is_kept() -> None:
    made = ring()
    tell(made, A, A, (OWN,), version=2)
    tell(made, B, B, (OWN,), version=2)

    assert C in made.remembered
    assert [each.id for each in picture(made).endpoints] == [name(OWN), name(A), name(B)]
    assert set(links(picture(made))) == {between(OWN, A), between(OWN, B)}


def test_a_peer_that_has_told_nothing_yet_is_there_with_the_filter_of_its_handshake() -> None:
    made = looking()
    made.link_up(A, False, (b"/early",))
    made.settle(0.0)

    assert picture(made).endpoints[1] == NetworkEndpoint(name(A), False, None, ("/early",), 1, name(A))
    assert links(picture(made)) == {between(OWN, A): (True, True)}


def test_originals_are_seen_beside_endpoints_of_chappe_whose_word_is_enough() -> None:
    made = looking(A, originals={ORIGINAL: (b"/near",)})
    tell(made, A, A, (OWN, B), originals={OTHER: (b"/x",)})
    tell(made, A, B, (A,), originals={OTHER: (b"/y",)})
    network = picture(made)

    assert [each for each in network.endpoints if each.original] == [
        NetworkEndpoint(name(ORIGINAL), True, None, ("/near",), 1, name(ORIGINAL)),
        NetworkEndpoint(name(OTHER), True, None, ("/x", "/y"), 2, name(A)),
    ]
    assert links(network)[between(OWN, ORIGINAL)] == (True, True)
    assert links(network)[between(A, OTHER)] == (False, True)
    assert links(network)[between(B, OTHER)] == (False, True)


def test_who_is_known_to_be_of_chappe_is_no_original_by_the_word_of_others() -> None:
    made = ring()
    tell(made, A, C, (A, D), originals={B: (), OWN: ()}, version=2)
    network = picture(made)

    assert not any(each.original for each in network.endpoints)
    assert links(network)[between(B, C)] == (False, False)
    assert links(network)[between(OWN, C)] == (False, False)


def test_who_names_itself_has_no_link_to_itself() -> None:
    made = looking(A)
    tell(made, A, A, (OWN, A))
    assert list(links(picture(made))) == [between(OWN, A)]


def test_the_nearest_endpoints_stay_if_there_are_too_many_and_the_others_are_counted() -> None:
    crowd = tuple(Neighbour(number.to_bytes(16)) for number in range(1, ENDPOINTS_MAX + 1))
    known = KnownEndpoint(LinkState(A, 1, True, (), crowd), b"")
    facts = Facts(OWN, True, (), {A: ()}, {}, {A: known}, {A: (1, A)})
    network = Network.of(facts)

    assert len(network.endpoints) == ENDPOINTS_MAX
    assert [each.id for each in network.endpoints[:2]] == [name(OWN), name(A)]
    assert network.endpoints_left_out == 2
    assert len(network.links) == ENDPOINTS_MAX - 1
    assert network.links_left_out == 0


def test_links_beyond_the_bound_are_counted() -> None:
    crowd = tuple(Neighbour(number.to_bytes(16)) for number in range(1, 9_001))
    each_of = [bytes([200, number]) + bytes(14) for number in range(30)]
    known = {each: KnownEndpoint(LinkState(each, 1, True, (), crowd), b"") for each in each_of}
    facts = Facts(OWN, True, (), dict.fromkeys(each_of, ()), {}, known, {each: (1, each) for each in each_of})
    network = Network.of(facts)

    assert network.endpoints_left_out == 0
    assert len(network.links) == NETWORK_LINKS_MAX
    assert network.links_left_out == 30 + 30 * 9_000 - NETWORK_LINKS_MAX


def test_a_dictionary_that_json_takes() -> None:
    made = looking(A)
    tell(made, A, A, (OWN, B), wanted=(b"/\xff",))
    found = json.loads(json.dumps(picture(made).to_dict()))

    assert found["id"] == name(OWN)
    assert found["endpoints"][1] == {
        "id": name(A), "original": False, "forwards": True, "filter": ["/\udcff"], "distance": 1, "via": name(A),
        "version": 1,
    }  # fmt: skip
    assert found["endpoints"][2]["distance"] is None
    assert {"ends": [name(A), name(B)], "own": False, "confirmed": False} in found["links"]
    assert (found["endpoints_left_out"], found["links_left_out"]) == (0, 0)


STRING = r'"((?:[^"\\]|\\.)*)"'
NODE = re.compile(rf"  {STRING} \[label={STRING} tooltip={STRING}((?: \w+=\w+)*)\];")
EDGE = re.compile(rf"  {STRING} -- {STRING}( \[style=dashed\])?;")


def read(dot: str) -> tuple[dict[str, tuple[str, str]], dict[tuple[str, str], bool]]:
    """Label and look of each endpoint, and whether each link is dashed, of a graph that is nothing else."""
    first, second, *rest, last = dot.splitlines()
    assert (first, second, last) == ("graph mesh {", "  node [shape=box];", "}")
    nodes, edges = {}, {}
    for line in rest:
        if node := NODE.fullmatch(line):
            assert node[1] == node[3]
            nodes[node[1]] = (node[2], node[4].strip())
        else:
            edge = EDGE.fullmatch(line)
            assert edge, line
            edges[edge[1], edge[2]] = edge[3] is not None
    return nodes, edges


def test_a_graph_for_graphviz() -> None:
    made = looking(A, originals={ORIGINAL: ()})
    tell(made, A, A, (OWN, B, C), forwards=True, wanted=(b"/a", b"/b"))
    tell(made, A, B, (A,), forwards=False)
    nodes, edges = read(picture(made).to_dot())

    assert nodes == {
        name(OWN): ("01010101", "style=filled"),
        name(A): (r"02020202\n/a, /b", ""),
        name(B): ("03030303", "shape=ellipse"),
        name(C): (r"04040404\n?", "color=gray fontcolor=gray"),
        name(ORIGINAL): ("6f6f6f6f", "shape=hexagon"),
    }
    assert edges == {
        between(OWN, A): False,
        between(OWN, ORIGINAL): False,
        between(A, B): False,
        between(A, C): True,
    }


@pytest.mark.parametrize(
    ("topic", "label"),
    [
        (b'a"b', r"'a\"b'"),
        (b"a\\nb\\", r"a\\nb\\"),
        (b"a\nb\0\x1b", r"a\\nb\\x00\\x1b"),
        (b"\xff\xfe", r"\\xff\\xfe"),
        (b"&amp;<b>", r"&amp;amp;<b>"),
        ("é€\u202e".encode(), r"é€\\u202e"),
        (b"", "everything"),
        (b"everything", "'everything'"),
        (b"one, two", "'one, two'"),
        (b"x" * 41, "x" * 40 + "..."),
    ],
)
def test_topics_of_any_bytes_stay_within_their_label(topic: bytes, label: str) -> None:
    made = looking()
    made.set_filter((topic,))
    nodes, _ = read(picture(made).to_dot())
    assert nodes == {name(OWN): (rf"01010101\n{label}", "style=filled")}


def test_what_is_left_out_is_said_in_the_graph() -> None:
    assert '  label="2 endpoints and 1 links are left out";' in Network("x", (), (), 2, 1).to_dot()


def test_ids_are_shown_as_long_as_they_have_to_be() -> None:
    def with_ids(*ids: str) -> Network:
        return Network(ids[0], tuple(NetworkEndpoint(each, False, True, (), 1, None) for each in ids), ())

    chosen = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(3)]
    assert with_ids(*chosen).short() == 36
    assert with_ids(chosen[0]).short() == 8
    assert with_ids("aaaaaaaa-1", "aaaaaaaa-2", "b").short() == 10


def test_only_the_first_prefixes_of_a_filter_are_shown_to_people() -> None:
    endpoint = NetworkEndpoint("x", False, True, tuple("abcdef"), 1, None)
    assert endpoint.wants() == "a, b, c, d, 2 more"
    assert endpoint.wants(6) == "a, b, c, d, e, f"
