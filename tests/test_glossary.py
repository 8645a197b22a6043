"""Every noun of the glossary is that of the module it is said to belong to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "explanation" / "glossary.md"


def table() -> list[tuple[str, list[str]]]:
    """Noun and modules of each line."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [(noun, re.findall("`([^`]+)`", modules)) for noun, _, modules in cells[2:]]


def path_of(module: str) -> Path:
    """The file of a module below ``chappe``."""
    return ROOT / "src" / "chappe" / f"{module.replace('.', '/')}.py"


def names(path: Path) -> Iterator[str]:
    """The module's own name, and those of all classes, functions, fields and constants that it defines."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def plain(name: str) -> str:
    return name.replace("_", "").replace(" ", "").casefold()


@pytest.mark.parametrize(
    ("noun", "module"), [(noun, module) for noun, modules in table() for module in modules or [""]]
)
def test_the_module_of_a_noun_defines_it(noun: str, module: str) -> None:
    assert path_of(module).is_file(), f"no module {module}"
    assert [each for each in names(path_of(module)) if plain(noun) in plain(each)], f"{module} defines no {noun}"


def test_nouns_are_in_order_and_explained_once() -> None:
    nouns = [noun for noun, _ in table()]
    assert nouns == sorted(set(nouns))
    assert len(nouns) > 50
