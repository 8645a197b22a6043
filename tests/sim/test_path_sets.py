"""The table of frames, of versioned path sets and of link states, is what a model and the endpoints count."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest
from tests.sim.path_sets import PathSets
from tests.worlds.scale.network import LINK_STATES, LISTS, Network
from tests.worlds.scale.shapes import Edge

PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "explanation" / "link-states.md"
ROW: Final = re.compile(r"^\| (chain|full) \|" + r" ([\d,]+) \|" * 6 + "$", re.MULTILINE)
ROWS: Final = [
    (shape, *(int(each.replace(",", "")) for each in numbers))
    for shape, *numbers in ROW.findall(PAGE.read_text(encoding="utf-8"))
]


def links_of(shape: str, count: int) -> list[Edge]:
    every = list(combinations(range(count), 2))
    return every if shape == "full" else [(one, two) for one, two in every if two == one + 1]


def link_states(edges: list[Edge], count: int) -> tuple[int, int]:
    """The frames of joining, and of a new subscription."""
    network = Network(count)
    network.connect(edges)
    network.settle(5.0)
    joined = network.frames[LINK_STATES] + network.frames[LISTS]
    network.subscribe(0, b"/new")
    network.settle(5.0)
    assert network.disagreement() is None
    return joined, network.frames[LINK_STATES] + network.frames[LISTS] - joined


def test_the_table_has_both_examples_of_the_guide() -> None:
    assert {row[0] for row in ROWS} == {"chain", "full"}
    assert len(ROWS) == 7


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_frames_are_as_many_as_the_table_says(row: tuple[str, int, int, int, int, int, int]) -> None:
    shape, count, guide, changed, told, joined, met = row
    edges = links_of(shape, count)
    model = PathSets(edges, count)

    assert guide == (count - 1 if shape == "chain" else (count - 1) ** 2)
    assert (model.join(), model.change(0)) == (joined, changed)
    assert link_states(edges, count) == (met, told)


def test_the_model_knows_every_way_without_a_circle() -> None:
    model = PathSets(links_of("full", 4), 4)
    model.join()
    assert model.paths[0][3] == {(3,), (1, 3), (2, 3), (1, 2, 3), (2, 1, 3)}
    eight = PathSets(links_of("full", 8), 8)
    eight.join()
    assert len(eight.paths[0][7]) == 1_957
