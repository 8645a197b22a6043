"""The shapes of networks, their shortest-path trees, and how much networks of thirty endpoints send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.scale.__main__ import main
from tests.worlds.scale.alone import measure_alone
from tests.worlds.scale.measure import Report, deep_bytes, measure
from tests.worlds.scale.network import (
    CONFIRMATIONS,
    HANDSHAKES,
    LINK_STATES,
    MESSAGES,
    PINGS,
    TREES,
    Network,
    kind_of,
)
from tests.worlds.scale.shapes import SHAPES, eccentricity, make, neighbours, parents, tree_links

from chappe.mesh.flows import pack_confirm, pack_publication, pack_tree
from chappe.mesh.messages import DATA, pack_message, pack_ping

ID = b"\x40" + bytes(15)


@pytest.mark.parametrize("count", [2, 3, 7, 16, 30])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_every_shape_is_one_network_of_simple_links(shape: str, count: int) -> None:
    edges = make(shape, count)
    assert len(set(edges)) == len(edges)
    assert all(0 <= one < two < count for one, two in edges)
    assert parents(neighbours(edges, count), 0).keys() == set(range(count))


@pytest.mark.parametrize(
    ("shape", "links", "reach"),
    [("ring", 16, 8), ("grid", 24, 6), ("tree", 15, 4), ("star-of-stars", 15, 2), ("full", 120, 1)],
)
def test_shapes_have_the_links_and_the_reach_that_they_are_known_for(shape: str, links: int, reach: int) -> None:
    edges = make(shape, 16)
    assert len(edges) == links
    assert eccentricity(neighbours(edges, 16), 0) == reach


def test_a_random_network_has_its_mean_degree_and_is_decided_by_the_seed() -> None:
    assert len(make("random", 100)) == 200
    assert make("random", 100, seed=1) == make("random", 100, seed=1) != make("random", 100, seed=2)


def test_the_tree_shares_ways_and_takes_the_shortest() -> None:
    grid = neighbours(make("grid", 16), 16)
    assert tree_links(grid, 0, []) == 0
    assert tree_links(grid, 0, [0]) == 0
    assert tree_links(grid, 0, [15]) == 6
    assert tree_links(grid, 0, [1, 2, 3]) == 3
    assert tree_links(grid, 0, [3, 12]) == 6
    assert tree_links(grid, 5, range(16)) == 15
    ring = neighbours(make("ring", 10), 10)
    assert tree_links(ring, 0, [4, 6]) == 8
    assert tree_links(ring, 0, [1, 4]) == 4


def test_frames_are_counted_by_kind() -> None:
    assert kind_of(pack_ping(ID, ID, b"")) == PINGS
    assert kind_of(pack_message(ID, ID, DATA, 1, b"t", b"")) == MESSAGES
    assert kind_of(pack_publication(ID, 1, 1, DATA, ID, b"t", b"")) == MESSAGES
    assert kind_of(pack_tree(ID, ID, 1, b"")) == TREES
    assert kind_of(pack_confirm(ID, [(1, 1)])) == CONFIRMATIONS
    assert kind_of(pack_message(ID, ID, 0x2C, 1, b"t", b"")) == "type 0x2c"


def test_deep_bytes_counts_everything_once() -> None:
    text = "x" * 10_000
    assert 10_000 < deep_bytes([text, text]) < 11_000
    assert deep_bytes([int, len]) < 200


def test_endpoints_that_do_not_know_all_are_found() -> None:
    network = Network(3)
    network.connect([(0, 1), (1, 2)])
    assert network.disagreement() == "endpoint 0 reaches 0 of 2 others"
    network.settle(3.0)
    assert network.disagreement() is None
    network.subscribe(2, b"/late")
    assert network.disagreement() == "endpoint 0 has a wrong filter of 1 others"


@pytest.mark.parametrize("shape", ["random", "tree", "ring"])
def test_one_endpoint_learns_of_all_others_from_each_neighbour(shape: str) -> None:
    found = measure_alone(shape, 200)
    assert found.links == len(make(shape, 200))
    assert found.frames % 199 == 0
    assert found.endpoint_bytes > 199 * 500


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    return {shape: measure(shape, 30) for shape in SHAPES}


def test_all_that_join_at_once_tell_each_link_state_about_once_over_each_link(reports: dict[str, Report]) -> None:
    for shape, report in reports.items():
        assert report.join[HANDSHAKES] == 7 * report.links
        assert report.join[LINK_STATES] <= report.join_bound, shape
    assert reports["full"].join[LINK_STATES] <= 0.3 * reports["full"].join_bound


def test_a_change_costs_about_a_frame_for_each_link_and_direction(reports: dict[str, Report]) -> None:
    for shape, report in reports.items():
        changes = report.changes
        assert changes["subscribe"].frames <= 2 * report.links * changes["subscribe"].count, shape
        for what in (
            "link cut",
            "link back",
        ):  # two endpoints tell of it; where that parts the network, all is told anew
            most = 2 * 2 * report.links + (2 * report.endpoints if report.links < report.endpoints else 0)
            assert changes[what].frames <= most * changes[what].count, (shape, what)


def test_publications_come_to_all_who_want_them_and_cost_their_tree(reports: dict[str, Report]) -> None:
    for shape, report in reports.items():
        for made in report.publications:
            assert made.delivered == made.receivers * made.count, shape
            assert made.frames == made.tree, shape
            assert made.others == made.tree, shape  # each hop confirms once
            assert made.first == 3 * made.first_tree, shape  # the tree is told, and nothing confirmed twice
            assert made.stream_tree < made.stream <= 1.05 * made.stream_tree, shape


def test_reports_are_printed_as_tables_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--endpoints", "4", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["shape"], found["endpoints"], found["links"], found["join"]["handshakes"]) == ("ring", 4, 4, 28)
    assert found["alone"]["frames"] == 2 * 3

    assert main(["ring", "--endpoints", "4"]) == 0
    told = capsys.readouterr().out
    assert "| ring  |" in told
    assert "round trips" in told

    for wrong in (["wheel"], ["--endpoints", "1"], ["--from", "/nowhere"], ["--json", "--from", "/nowhere"]):
        with pytest.raises(SystemExit):
            main(wrong)


def test_tables_are_made_of_what_was_found_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shape, file in (("tree", "first"), ("ring", "second"), ("tree", "second")):
        main([shape, "--endpoints", "4", "6", "--json"])
        with (tmp_path / file).open("a") as there:
            there.write(capsys.readouterr().out)
    assert main(["--from", str(tmp_path / "first"), str(tmp_path / "second")]) == 0
    told = capsys.readouterr().out.split("## ")[1:]
    assert [part.split(":")[0] for part in told[:3]] == ["Joining", "Publications", "Changes"]
    rows = [line.split("|")[1:3] for line in told[0].splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        [" ring  ", "         4 "],
        [" ring  ", "         6 "],
        [" tree  ", "         4 "],
        [" tree  ", "         6 "],
    ]
    (tmp_path / "second").write_text("{}")
    with pytest.raises(SystemExit):
        main(["--from", str(tmp_path / "second")])
