"""The list of planted faults fits the sources: each can be planted, and is a program still."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.mutations.plants import PLANTS, SCENARIOS, Plant

SOURCE = Path(__file__).parent.parent / "src" / "chappe"


@pytest.mark.parametrize("plant", PLANTS, ids=lambda each: each.name)
def test_the_fault_can_be_planted(plant: Plant, tmp_path: Path) -> None:
    copy = tmp_path / "chappe" / plant.file
    copy.parent.mkdir(parents=True)
    copy.write_text((SOURCE / plant.file).read_text(encoding="utf-8"), encoding="utf-8")
    plant.into(tmp_path)
    ast.parse(copy.read_text(encoding="utf-8"))


def test_names_are_used_once_and_every_part_has_faults() -> None:
    assert len({each.name for each in PLANTS}) == len(PLANTS) >= 60
    assert {each.part for each in PLANTS} == set(SCENARIOS)
