"""What can be installed is said in several places: they name the same extras and packages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import run

from tools import try_wheel

ROOT: Final = Path(__file__).parent.parent.parent


def test_each_extra_is_tried_with_the_wheel() -> None:
    assert set(try_wheel.FOR) == {"", *try_wheel.all_extras()}


def test_the_environment_that_run_makes_has_all_extras() -> None:
    assert run.EXTRAS.split(",") == sorted(try_wheel.all_extras())


def test_every_extra_and_package_has_its_reason_among_the_dependencies() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        made = tomllib.load(file)
    extras = made["project"]["optional-dependencies"]
    listed = [made["project"]["dependencies"], *extras.values(), *made["dependency-groups"].values()]
    packages = {re.match(r"[\w-]+", each)[0] for some in listed for each in some if isinstance(each, str)}  # type: ignore[index]
    tables = "\n".join(re.findall(r"^\|.*\|$", (ROOT / "docs/explanation/dependencies.md").read_text(), re.MULTILINE))
    assert [each for each in sorted(packages) if not re.search(rf"(?<![\w-]){each}(?![\w-])", tables)] == []
    assert [each for each in extras if f"| `{each}` |" not in tables] == []
