"""Print what the size and the shape of the source are: the figures that the redesign and the prose are held to.

python -m tools.measure            a table
python -m tools.measure --json     the same for machines
python -m tools.measure --ways     also the modules that a record, an event and a clone's put pass; runs them

Sizes are counted from the syntax trees; nothing of chappe is imported but for ``--ways``.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import threading
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
SOURCES: Final = ROOT / "src" / "chappe"
CLAUSE: Final = re.compile(r"(What|Whether|Who|Whose|Whoever|As|See|Of)\b")
LONG_MODULE: Final = 300  # lines
WORDS_FEW: Final = 4


@dataclass
class Count:
    """What was counted in a tree of sources."""

    lines: int = 0
    code: int = 0
    modules: int = 0
    long_modules: int = 0
    docstrings: int = 0
    clause_docstrings: int = 0
    short_docstrings: int = 0
    drivers: list[str] = field(default_factory=list)
    handles: set[str] = field(default_factory=set)
    timeouts: set[str] = field(default_factory=set)
    effects: set[str] = field(default_factory=set)
    classes: Counter[str] = field(default_factory=Counter)

    def add(self, path: Path) -> None:
        """Count a module."""
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines = text.count("\n")
        self.modules += 1
        self.lines += lines
        self.long_modules += lines > LONG_MODULE
        self.code += len(code_lines(text, tree))
        self._add_docstring(ast.get_docstring(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self._add_class(path, node)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._add_function(node)
            elif isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "").endswith(("Action", "Effect")):
                self.effects |= {f"{path.parent}/{name}" for name in alternatives(node.value)}

    def _add_class(self, path: Path, node: ast.ClassDef) -> None:
        self.classes[node.name] += 1
        if path.parent.name in ("runtime", "driver") and takes_core(node):
            self.drivers.append(node.name)
        self._add_docstring(ast.get_docstring(node))

    def _add_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name.startswith("handle_"):
            self.handles.add(node.name)
        if node.name == "handle_timeout":
            self.timeouts.add(ast.unparse(node.args))
        self._add_docstring(ast.get_docstring(node))

    def _add_docstring(self, text: str | None) -> None:
        if text is None:
            return
        self.docstrings += 1
        self.clause_docstrings += CLAUSE.match(text) is not None
        self.short_docstrings += len(text.split()) <= WORDS_FEW


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """The lines with something else than docstrings, comments, imports and space."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in skipped
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (isinstance(node, ast.Expr) and _is_text(node.value)):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def takes_core(node: ast.ClassDef) -> bool:
    """Whether a class runs a core: it tells one that time has passed."""
    return any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr == "handle_timeout"
        and isinstance(each.func.value, ast.Attribute)
        and each.func.value.attr in {"core", "role", "member", "_core", "_role", "_sessions"}
        for each in ast.walk(node)
    )


def alternatives(value: ast.expr | None) -> Iterator[str]:
    """The names of a union ``A | B[T] | c.D``."""
    if isinstance(value, ast.BinOp):
        yield from alternatives(value.left)
        yield from alternatives(value.right)
    elif isinstance(value, ast.Subscript):
        yield from alternatives(value.value)
    elif isinstance(value, (ast.Name, ast.Attribute)):
        name = value.id if isinstance(value, ast.Name) else value.attr
        if not name.endswith(("Action", "Effect")):
            yield name


def count(root: Path = SOURCES) -> Count:
    """Count all modules below a directory."""
    counted = Count()
    for path in sorted(root.rglob("*.py")):
        counted.add(path)
    return counted


def words(path: Path) -> int:
    """The words of a page, without blocks of code."""
    return len(re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8")).split())


def longest_line(pages: Iterator[Path]) -> int:
    """The characters of the longest line of prose: rows of tables and blocks of code do not count."""
    longest = 0
    for page in pages:
        prose = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
        longest = max(longest, *(len(line) for line in prose.splitlines() if not line.startswith("|")), 0)
    return longest


def shape() -> dict[str, int]:
    """All that is counted without running anything, by its name."""
    of = count()
    return {
        "lines of src": of.lines,
        "lines of code": of.code,
        "modules": of.modules,
        f"modules over {LONG_MODULE} lines": of.long_modules,
        "classes that run cores": len(of.drivers),
        "classes of effects": len(of.effects),
        "names of handle_*": len(of.handles),
        "signatures of handle_timeout": len(of.timeouts),
        "class names used twice or more": sum(times > 1 for times in of.classes.values()),
        "docstrings": of.docstrings,
        "docstrings that begin with a clause": of.clause_docstrings,
        f"docstrings of {WORDS_FEW} words or fewer": of.short_docstrings,
        "words of README.md": words(ROOT / "README.md"),
        "words of architecture.md": words(ROOT / "docs/explanation/architecture.md"),
        "longest line of a page": longest_line((ROOT / "docs").rglob("*.md")),
        "lines of CHANGELOG.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").count("\n"),
    }


# -- ways ---------------------------------------------------------------------------------------------------

ROUNDS: Final = 30  # the fewest modules of all rounds count: beacons and other timers pass in some


class Trail:
    """Notes the modules of chappe whose functions run in this process, in threads that begin after it, too."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._seen.add(frame.f_code.co_filename)

    def of(self, act: Callable[[], object]) -> set[str]:
        """The modules that run while ``act`` does."""
        self._seen = set()
        act()
        seen, self._seen = self._seen, set()
        return {name for name in seen if name.startswith(str(SOURCES))}

    def shortest(self, act: Callable[[], object]) -> int:
        """The fewest modules of several rounds."""
        return min(len(self.of(act)) for _ in range(ROUNDS))


def ways() -> dict[str, int]:
    """How many modules a record, an event and a put of a clone pass, each from the call until it is there."""
    trail = Trail()
    return {
        "modules that a record passes": _record(trail),
        "modules that an event passes": _event(trail),
        "modules that a put of a clone passes": _put(trail),
    }


def _record(trail: Trail) -> int:
    import tempfile

    from chappe import Consumer, Producer, Store, Tower

    with (
        tempfile.TemporaryDirectory() as directory,
        Tower("127.0.0.1:0") as tower,
        Store(directory, tower=tower.address),
        Consumer("measured", tower=tower.address) as consumer,
        Producer("measured", tower=tower.address) as producer,
    ):

        def send() -> None:
            producer.send(b"a record")
            producer.flush(60)
            if not consumer.poll(60):
                raise RuntimeError("no record came")

        return trail.shortest(send)


def _event(trail: Trail) -> int:
    from chappe import Endpoint

    with Endpoint() as one, Endpoint() as other, other.subscribe("measured") as events:
        one.peer("127.0.0.1", other.listen(), timeout=60)
        one.await_peer(other.id, timeout=60)

        def publish() -> None:
            one.publish("measured", "an event")
            events.get(timeout=60)

        return trail.shortest(publish)


def _put(trail: Trail) -> int:
    from chappe import Endpoint

    with Endpoint() as one, Endpoint() as other:
        one.peer("127.0.0.1", other.listen(), timeout=60)
        with other.attach_master("measured"), one.attach_clone("measured") as clone:
            clone.put("a key", "a value")
            return trail.shortest(lambda: clone.put("a key", "a value"))


def main(arguments: list[str]) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tools.measure", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print an object")
    parser.add_argument("--ways", action="store_true", help="also follow a record, an event and a put")
    chosen = parser.parse_args(arguments)
    figures: dict[str, Any] = shape() | (ways() if chosen.ways else {})
    if chosen.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, figure in figures.items():
            print(f"{name:50} {figure:>9,}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
