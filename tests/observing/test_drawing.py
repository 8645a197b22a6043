"""Places on the map: calm, and bounded."""

from __future__ import annotations

from chappe.observing.drawing import APART, EDGES_MAX, SERVERS_Y, SINGLE_MAX, draw
from chappe.observing.snapshot import Kind, ObservedLink, ObservedMember, witness


def member(kind: Kind, number: int, host: str = "10.0.0.1") -> ObservedMember:
    return ObservedMember(f"{kind}-{number}", kind, f"{kind} {number}", f"tcp://{host}:{4000 + number}")


def test_somebody_who_comes_to_the_mesh_moves_nobody_or_few() -> None:
    log = [member("tower", 0), *(member("store", n) for n in range(3))]
    before = [*log, *(member("endpoint", n) for n in range(60))]

    moved = []
    for newcomer in range(1_000, 1_005):
        old = {each.id: (each.x, each.y) for each in draw(before, []).nodes}
        new = {each.id: (each.x, each.y) for each in draw([*before, member("endpoint", newcomer)], []).nodes}
        moved.append([name for name in old if new[name] != old[name]])
        before.append(member("endpoint", newcomer))

    assert all(len(each) <= 6 for each in moved)
    assert sum(map(len, moved)) <= 10
    assert not any(name.startswith(("tower", "store")) for each in moved for name in each)


def test_a_store_that_comes_moves_stores_by_half_a_place_and_nobody_else_of_the_log() -> None:
    before = [member("tower", 0), *(member("store", n) for n in range(3)), *(member("consumers", n) for n in range(5))]

    old = {each.id: each.x for each in draw(before, []).nodes}
    new = {each.id: each.x for each in draw([*before, member("store", 9)], []).nodes}

    assert {name for name in old if new[name] != old[name]} <= {f"store-{n}" for n in range(3)}
    assert all(abs(new[name] - old[name]) <= 110 for name in old)


def test_the_order_in_which_members_are_told_does_not_matter() -> None:
    members = [member("endpoint", n) for n in range(40)]

    one, other = draw(members, []), draw(members[::-1], [])

    assert {each.id: (each.x, each.y) for each in one.nodes} == {each.id: (each.x, each.y) for each in other.nodes}


def test_no_two_members_stand_at_one_place() -> None:
    members = [member("endpoint", n) for n in range(100)] + [member("store", n) for n in range(30)]

    places = {(each.x, each.y) for each in draw(members, []).nodes}

    assert len(places) == 130


def test_a_thousand_members_become_groups_and_what_is_rare_stays_by_itself() -> None:
    crowd = [member("endpoint", n, f"10.0.0.{n % 4}") for n in range(1_000)]
    few = [member("tower", 0), member("store", 0), member("store", 1)]
    links = [
        ObservedLink((f"endpoint-{n}", f"store-{n % 2}"), "mesh", sent_per_s=2.0, received_per_s=1.0)
        for n in range(1_000)
    ]

    made = draw([*few, *crowd], links)

    assert len(made.nodes) == 7
    assert sorted(each.size for each in made.nodes) == [1, 1, 1, 250, 250, 250, 250]
    assert {each.name for each in made.nodes if each.size > 1} == {"250 endpoints"}
    assert sum(each.links for each in made.edges) == 1_000
    assert sum(each.there + each.back for each in made.edges) == 3_000


def test_a_group_in_which_somebody_is_ill_looks_ill() -> None:
    crowd = [member("endpoint", n) for n in range(SINGLE_MAX + 1)]
    ill = ObservedMember("endpoint-ill", "endpoint", "ill", "tcp://10.0.0.1:1", "silent", "failed")

    (group,) = draw([*crowd, ill], []).nodes

    assert (group.size, group.level) == (SINGLE_MAX + 2, "failed")


def test_edges_have_a_bound_and_those_on_which_most_goes_stay() -> None:
    members = [member("endpoint", n) for n in range(80)]
    pairs = [(a, b) for a in range(80) for b in range(a)]
    links = [ObservedLink((f"endpoint-{a}", f"endpoint-{b}"), "mesh", sent_per_s=float(a + b)) for a, b in pairs]

    made = draw(members, links)

    assert len(made.edges) == EDGES_MAX
    assert made.left_out == len(pairs) - EDGES_MAX
    assert made.edges[0].there + made.edges[0].back == 79 + 78


def test_servers_of_a_chain_stand_in_the_order_in_which_they_are_told_and_say_their_place() -> None:
    names = ("oslo", "bern", "rome", "kyiv")
    servers = [ObservedMember(f"chain c {each}", "chain server", each, status="middle") for each in names]

    nodes = sorted(draw(servers, []).nodes, key=lambda each: each.y)

    assert [each.name for each in nodes] == [f"{each}, middle" for each in names]
    assert {each.x for each in nodes} == {0.0}
    assert all(each.server for each in nodes)


def test_a_pair_stands_above_its_witness_on_the_left_of_everybody_else() -> None:
    pair = [
        ObservedMember(f"map {n}", "map server", f"m{n}", status=status)
        for n, status in enumerate(("passive", "active"))
    ]
    others = [member("tower", 0), *(member("store", n) for n in range(9))]

    nodes = {each.id: each for each in draw([witness("judge@h:5576"), *others, *pair], []).nodes}

    assert [nodes[each].y for each in ("map 0", "map 1", "witness h:5576")] == [0.0, SERVERS_Y, 2 * SERVERS_Y]
    assert [nodes[each].name for each in ("map 0", "map 1")] == ["m0, passive", "m1, active"]
    assert {each for each in nodes if nodes[each].server} == {"map 0", "map 1", "witness h:5576"}
    assert min(nodes[each.id].x for each in others) >= APART
