"""``chappe node --map``: when a network has settled, how it is drawn, and the command as a real process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.cli.test_mesh_commands import start_node
from tests.waiting import until

from chappe import Endpoint
from chappe.cli import network as network_map
from chappe.cli.mesh import Life
from chappe.cli.network import Map, is_settled, lines, look
from chappe.errors import UsageError
from chappe.mesh.events import EndpointDiscovered, EndpointUnreachable
from chappe.mesh.network import Network, NetworkEndpoint, NetworkLink

Pairs = Sequence[tuple[int, int]]


def name(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def network(
    pairs: Pairs, *, unconfirmed: Pairs = (), originals: Sequence[int] = (), ends: Sequence[int] = (),
    unheard: Sequence[int] = (), wants: dict[int, tuple[str, ...]] | None = None,
) -> Network:  # fmt: skip
    """As the endpoint 0 sees it, which does not forward; distances and ways follow from the confirmed links."""
    beside: dict[int, set[int]] = {}
    for one, two in [*pairs, *unconfirmed]:
        beside.setdefault(one, set())
        beside.setdefault(two, set())
    for one, two in pairs:
        beside[one].add(two)
        beside[two].add(one)
    found: dict[int, tuple[int, int | None]] = {0: (0, None)}
    edge = [0]
    for at in edge:
        if at in (*originals, *ends, *unheard):
            continue
        for each in sorted(beside[at] - found.keys()):
            found[each] = (found[at][0] + 1, each if at == 0 else found[at][1])
            edge.append(each)

    def endpoint(number: int) -> NetworkEndpoint:
        distance, via = found.get(number, (None, None))
        heard = number not in (*originals, *unheard)
        forwards = number not in (*ends, 0) if heard else None
        wanted = None if number in unheard else (wants or {}).get(number, ())
        where = None if via is None else name(via)
        return NetworkEndpoint(name(number), number in originals, forwards, wanted, distance, where)

    endpoints = sorted(map(endpoint, beside), key=lambda each: (each.distance is None, each.distance, each.id))
    made = [NetworkLink((name(min(pair)), name(max(pair))), 0 in pair, True) for pair in pairs]
    made += [NetworkLink((name(min(pair)), name(max(pair))), False, False) for pair in unconfirmed]
    return Network(name(0), tuple(endpoints), tuple(sorted(made, key=lambda link: link.ends)))


def drawn(found: Network, width: int | None = 100) -> str:
    return "\n".join(lines(found, ":9999", width))


def test_a_ring_and_what_hangs_on_it() -> None:
    found = network([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 1), (3, 6)], ends=[6], wants={6: ("zeek/",), 4: ("",)})
    assert drawn(found).splitlines() == [
        "6 endpoints and 6 links, up to 4 hops away; seen over :9999",
        "hops  endpoint     kind           also linked to  wants",
        "   0  00000000     this command",
        "   1  00000001     chappe",
        "   2  ├─ 00000002  chappe",
        "   3  │  00000003  chappe",
        "   4  │  00000006  no forwarding                  zeek/",
        "   2  └─ 00000005  chappe",
        "   3     00000004  chappe         00000003        everything",
    ]


def test_one_endpoint() -> None:
    assert drawn(network([(0, 1)])).splitlines() == [
        "1 endpoint and 0 links, up to 1 hop away; seen over :9999",
        "hops  endpoint  kind          wants",
        "   0  00000000  this command",
        "   1  00000001  chappe",
    ]


def test_originals_and_what_no_way_leads_to() -> None:
    found = network([(0, 1), (1, 2), (1, 3)], unconfirmed=[(3, 4)], originals=[2], ends=[3], unheard=[4])
    assert drawn(found).splitlines() == [
        "4 endpoints (1 original) and 3 links, up to 2 hops away, and no way to 1 of them; seen over :9999",
        "hops  endpoint     kind           also linked to  wants",
        "   0  00000000     this command",
        "   1  00000001     chappe",
        "   2  ├─ 00000002  original",
        "   2  └─ 00000003  no forwarding",
        "   -  00000004     not heard of   00000003?       ?",
    ]


def test_a_chain_does_not_grow_to_the_right() -> None:
    shown = drawn(network([(each, each + 1) for each in range(60)]), 40).splitlines()
    assert len(shown) == 2 + 61
    assert max(map(len, shown[1:])) <= 40
    assert shown[-1] == "  60  0000003c  chappe"


def test_every_endpoint_and_every_link_of_a_full_mesh_is_there_once_if_it_is_whole() -> None:
    pairs = [(0, 1), *((one, two) for one in range(1, 13) for two in range(one + 1, 13))]
    rows = drawn(network(pairs), None).splitlines()[2:]
    assert [re.findall(r"[0-9a-f-]{36}", row)[0] for row in rows] == [name(each) for each in range(13)]
    ends = sum(len(re.findall(r"[0-9a-f-]{36}", row)) - 1 for row in rows)
    assert ends + 12 == len(pairs)  # 12 are in the tree
    cut = drawn(network(pairs), 100).splitlines()
    assert cut[-1].endswith("00000002, 00000003, 00000004, 7 more")


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_what_does_not_fit_gives_way_to_what_matters_more(width: int) -> None:
    pairs = [(0, 1), *((one, two) for one in range(1, 10) for two in range(one + 1, 10))]
    shown = drawn(network(pairs, wants={9: ("x" * 39, "y" * 39)}), width).splitlines()[1:]
    assert max(map(len, shown)) <= width
    assert all(name(each)[:8] in shown[each + 1] for each in range(10))
    assert ("kind" in shown[0]) == (width >= 80)


def test_wide_characters_are_cut_to_the_width_of_the_terminal() -> None:
    from rich.cells import cell_len

    shown = drawn(network([(0, 1)], wants={1: ("\u6771" * 40,)}), 40).splitlines()[1:]
    assert max(map(cell_len, shown)) <= 40
    assert "\u6771" in shown[-1]


def left_out(shown: list[str]) -> int:
    return sum(int(each) for row in shown for each in re.findall(r"(?<=\(\+)\d+|(?<=\.\.\. )\d+", row))


@pytest.mark.parametrize("shape", ["star", "tree", "chain"])
def test_of_a_thousand_endpoints_the_nearest_are_shown_and_the_others_counted(shape: str) -> None:
    found = network(
        [(0, 1), *(({"star": 1, "tree": each // 2, "chain": each - 1}[shape], each) for each in range(2, 1_001))]
    )
    shown = drawn(found, 120).splitlines()
    assert shown[0].endswith("; the nearest 100 are shown, all with --whole")
    endpoints = [row for row in shown[2:] if re.search(r"[0-9a-f]{8}", row)]
    assert len(endpoints) == 100
    assert len(shown) <= 2 + 100 + 50
    assert left_out(shown[2:]) == 1_001 - 100
    assert len(drawn(found, None).splitlines()) == 2 + 1_001


def test_trees_that_go_deep_and_branch_are_cut_at_the_left() -> None:
    pairs = [(0, 1)]
    for each in range(1, 60, 2):
        pairs += [(each, each + 1), (each, each + 2)]
    shown = drawn(network(pairs), 80).splitlines()[2:]
    assert max(map(len, shown)) <= 80
    assert all(name(each)[:8] in "\n".join(shown) for each in range(62))


def test_a_network_has_settled_when_all_in_reach_are_heard_and_agree() -> None:
    ring = [(0, 1), (1, 2), (2, 3), (3, 1)]
    assert is_settled(network(ring))
    assert is_settled(network([*ring, (3, 4)], originals=[4]))
    assert not is_settled(network(ring[:3], unconfirmed=[(3, 1)]))
    assert not is_settled(network([(0, 1)], unheard=[1]))
    assert not is_settled(network(ring, unconfirmed=[(3, 4)], unheard=[4]))
    assert is_settled(network(ring, unconfirmed=[(3, 4)], unheard=[4], ends=[3]))  # nobody will be heard from there


class Looked:
    """Stands for an endpoint that sees one network after the other."""

    def __init__(self, *seen: Network) -> None:
        self.seen: Iterator[Network] = iter(seen)
        self.pinged: list[str] = []

    def ping(self, peer: str, timeout: float) -> float:
        self.pinged.append(peer)
        return timeout

    def topology(self) -> Network:
        return next(self.seen)


def test_looking_ends_when_the_network_has_settled_and_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_map, "LOOK_S", 0.0)
    monkeypatch.setattr(network_map, "SETTLE_S", PATIENCE_S)
    early, small, whole = network([(0, 1)], unheard=[1]), network([(0, 1)]), network([(0, 1), (1, 2)])
    looked: Any = Looked(early, early, small, whole, whole, early)
    assert look(looked, ["one"]) == whole
    assert looked.pinged == ["one"]
    assert list(looked.seen) == [early]


def test_looking_ends_at_last_if_nothing_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_map, "SETTLE_S", 0.0)
    early: Any = network([(0, 1)], unheard=[1])
    looked: Any = Looked(early)
    assert look(looked, []) is early


def test_that_a_network_has_not_settled_is_said_beside_what_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(network_map, "look", lambda endpoint, peers: network([(0, 1)], unheard=[1]))
    with Endpoint() as there:
        network_map.show(Map(wanted=True), Life(), None, None, [f":{there.listen()}"], as_json=False)
    said = capsys.readouterr()
    assert said.err == "chappe: the network has not settled within 5 s: this is what is known now\n"
    assert "00000001  not heard of" in said.out


@pytest.mark.parametrize(
    ("how", "as_json", "others", "text"),
    [
        (Map(dot=True), False, {}, "--dot is for --map"),
        (Map(whole=True), True, {}, "--whole is for --map"),
        (Map(wanted=True, dot=True), True, {}, "only one of"),
        (Map(wanted=True, whole=True, dot=True), False, {}, "only one of"),
        (Map(wanted=True), False, {"--listen": [":0"]}, "leave out --listen"),
        (Map(wanted=True), True, {"--[no-]forwarding": False}, "leave out --[no-]forwarding"),
    ],
)
def test_options_that_contradict_each_other(how: Map, as_json: bool, others: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        how.check(as_json, others)


def test_other_options_are_as_they_were_without_a_map() -> None:
    Map().check(True, {"--listen": [":0"], "--[no-]forwarding": False})
    Map(wanted=True).check(True, {"--listen": None, "--origin": []})


@pytest.mark.process
def test_a_ring_of_processes_in_every_form(shell: Shell) -> None:
    facts = [start_node(shell)[1]]
    for number in range(1, 5):
        peers = [facts[-1]["listen"][0], *([facts[0]["listen"][0]] if number == 4 else [])]
        facts.append(start_node(shell, *(word for each in peers for word in ("--peer", each)))[1])
    ids = [each["id"] for each in facts]
    ring = {tuple(sorted((ids[number], ids[number - 1]))) for number in range(5)}
    where = facts[0]["listen"][0]
    with Endpoint(forwarding=False) as probe:
        probe.peer("127.0.0.1", int(where.rpartition(":")[2]))
        until(lambda: {each.ends for each in probe.topology().links if each.confirmed and not each.own} == ring)
        before = probe.topology()

    done = shell.run("node", "--map", "--json", "--peer", where)
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    distances = {each["id"]: each["distance"] for each in found["endpoints"]}
    assert distances == {found["id"]: 0, **dict(zip(ids, (1, 2, 3, 3, 2), strict=True))}
    assert {tuple(each["ends"]) for each in found["links"] if not each["own"]} == ring
    assert {each.id for each in before.endpoints[1:]} == set(ids)

    done = shell.run("node", "--map", "--whole", "--peer", where)
    rows = done.stdout.decode().splitlines()
    assert rows[0] == f"5 endpoints and 5 links, up to 3 hops away; seen over {where} ({ids[0][:8]})"
    named = [re.findall(r"[0-9a-f-]{36}", row) for row in rows[2:]]
    assert {each[0] for each in named[1:]} == set(ids)
    assert [set(each) for each in named if len(each) > 1] == [set(ids[2:4])]  # what closes the ring
    assert shell.run("node", "--map", "--peer", where).returncode == 0

    done = shell.run("node", "--map", "--dot", "--peer", where)
    text = done.stdout.decode()
    assert text.startswith("graph mesh {\n")
    assert all(f'"{one}" -- "{two}";' in text for one, two in ring)


@pytest.mark.process
def test_who_looks_wants_nothing_and_joins_nobody(shell: Shell) -> None:
    with Endpoint() as one, Endpoint() as two, Endpoint() as publisher, one.statuses() as statuses:
        publisher.peer("127.0.0.1", one.listen())
        places = [f"127.0.0.1:{one.listen()}", f"127.0.0.1:{two.listen()}"]
        done = shell.run("node", "--map", "--json", "--peer", places[0], "--peer", places[1])
        found = json.loads(done.stdout)
        distances = {each["id"]: each["distance"] for each in found["endpoints"]}
        assert distances == {found["id"]: 0, one.id: 1, two.id: 1, publisher.id: 2}
        seen: list[Any] = []
        while not any(type(each) is EndpointUnreachable for each in seen):  # it has been there, and left
            seen.append(statuses.get(PATIENCE_S))
        assert [each.id for each in seen if type(each) is EndpointDiscovered] == [publisher.id, found["id"]]
        assert publisher.core.peer_subscriptions() == ()


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--peer", "127.0.0.1:1"), 1, b"cannot peer with 127.0.0.1:1"),
        (("--peer", "nonsense:port"), 2, b"is not an address"),
        (("--peer", "10.0.0.1"), 2, b"is not this machine"),
        (("--listen", "127.0.0.1:0"), 2, b"leave out --listen"),
        (("--no-forwarding",), 2, b"leave out --[no-]forwarding"),
        (("--id", "nonsense"), 2, b"is not an endpoint id"),
        (("nowhere.toml",), 2, b"there is no file nowhere.toml"),
    ],
)
def test_what_cannot_be_looked_at_is_one_clear_line(
    shell: Shell, arguments: tuple[str, ...], code: int, text: bytes
) -> None:
    done = shell.run("node", "--map", *arguments)
    assert (done.returncode, done.stdout) == (code, b"")
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.process
def test_a_file_gives_peers_and_security(shell: Shell) -> None:
    _, facts = start_node(shell)
    (shell.directory / "node.toml").write_text(f'listen = ["127.0.0.1:1"]\npeers = ["{facts["listen"][0]}"]\n')
    found = json.loads(shell.run("node", "node.toml", "--map", "--json").stdout)
    assert [each["id"] for each in found["endpoints"]] == [found["id"], facts["id"]]
