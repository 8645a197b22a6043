"""The figures that ``tools.measure`` counts."""

from __future__ import annotations

import ast
from pathlib import Path

from tools import measure

MODULE = '''"""What a module says."""

import sys
from os import (
    path,
)

Action: TypeAlias = Send | pair.Tell | Asked[int] | OtherAction


class Node:
    """A driver."""

    def __init__(self, core: Core) -> None:
        self.core = core  # a comment
        self.core.handle_timeout(1.0)

    def handle_timeout(self, now: float) -> None:
        """See the other one, which has more to say."""
        text = """
        of three lines
        """


class Node:
    pass
'''


def counted(directory: Path, text: str = MODULE) -> measure.Count:
    (directory / "runtime").mkdir()
    (directory / "runtime" / "node.py").write_text(text, encoding="utf-8")
    return measure.count(directory)


def test_code_is_neither_docstrings_nor_comments_nor_imports_nor_space() -> None:
    lines = measure.code_lines(MODULE, ast.parse(MODULE))
    shown = [MODULE.splitlines()[line - 1].strip() for line in sorted(lines)]
    assert shown == [
        "Action: TypeAlias = Send | pair.Tell | Asked[int] | OtherAction",
        "class Node:",
        "def __init__(self, core: Core) -> None:",
        "self.core = core  # a comment",
        "self.core.handle_timeout(1.0)",
        "def handle_timeout(self, now: float) -> None:",
        'text = """',
        "of three lines",
        '"""',
        "class Node:",
        "pass",
    ]


def test_classes_effects_and_inputs(tmp_path: Path) -> None:
    of = counted(tmp_path)
    assert of.drivers == ["Node"]
    assert {each.rpartition("/")[2] for each in of.effects} == {"Send", "Tell", "Asked"}
    assert (of.handles, of.timeouts) == ({"handle_timeout"}, {"self, now: float"})
    assert of.classes == {"Node": 2}


def test_docstrings_by_their_words(tmp_path: Path) -> None:
    of = counted(tmp_path)
    assert (of.docstrings, of.clause_docstrings, of.short_docstrings) == (3, 2, 2)


def test_a_page_counts_prose_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n\nfour words of prose\n\n```python\nnot = these\n```\n| a row | is long |\n")
    assert measure.words(page) == 3 + 4 + 7
    assert measure.longest_line(iter([page])) == len("four words of prose")


def test_the_tree_of_today_has_figures_for_all() -> None:
    figures = measure.shape()
    assert all(count for name, count in figures.items() if not name.startswith("docstrings that")), figures
    assert figures["lines of code"] + figures["docstrings"] < figures["lines of src"]
