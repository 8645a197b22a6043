"""What a pipeline's file says, checked and complete."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from chappe.errors import UsageError

Kind: TypeAlias = Literal["topic", "table", "parquet", "console"]
Mode: TypeAlias = Literal["append", "update", "complete"]
KINDS: Final[tuple[str, ...]] = get_args(Kind)
MODES: Final[tuple[str, ...]] = get_args(Mode)
AVAILABLE_NOW: Final = "available-now"
BACK_TO_BACK: Final = "as fast as possible"
RECORD_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key")  # beside the columns of a JSON value

_UNITS: Final = {
    "ms": 1, "millisecond": 1, "milliseconds": 1,
    "s": 1000, "second": 1000, "seconds": 1000,
    "m": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_NAME: Final = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_HEADER: Final = re.compile(rf"\s*(\[\[?)\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*\]")
_ASSIGNMENT: Final = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=\s*(.*)")
_PART: Final = re.compile(r""""([^"]*)"|'([^']*)'|([\w-]+)""")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a pipeline, and where: a sentence, the file, and the line in it."""

    file: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.text}"


class PipelineInvalid(UsageError):
    """A pipeline's file cannot be used; ``problems`` has everything that is wrong, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Place:
    """The stores to read from or write to: their query endpoints, or towers that know them. Empty: the default."""

    stores: tuple[str, ...] = ()
    towers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late a row may be: later ones may be left out of windows that are done."""

    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Input:
    """Topics that become one view. Without ``schema`` the view has the source's own columns."""

    name: str
    topics: tuple[str, ...]
    prefix: str | None
    place: Place
    schema: str | None
    watermark: Watermark | None
    starting: Mapping[str, str]  # as options of the source
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Output:
    """Where the rows of a query go. ``path`` is absolute, or a URI; ``chain``, instead of a place, is absolute."""

    kind: Kind
    mode: Mode
    topic: str | None
    path: str | None
    key: tuple[str, ...]
    place: Place
    options: Mapping[str, str]
    chain: str | None = None


@dataclass(frozen=True, slots=True)
class Trigger:
    """When micro-batches run: once for all that is there, or every ``interval_ms``; 0 is back to back."""

    available_now: bool = False
    interval_ms: int = 0


@dataclass(frozen=True, slots=True)
class Sql:
    """The text of a query, and where its first line stands."""

    text: str
    file: Path
    line: int


@dataclass(frozen=True, slots=True)
class Query:
    """One streaming query. ``sql`` is None in a Python file; ``at`` are the keys of its section."""

    name: str
    sql: Sql | None
    output: Output
    checkpoint: str
    trigger: Trigger
    at: Keys


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole file."""

    name: str
    file: Path
    python: bool
    master: str
    settings: Mapping[str, str]
    inputs: tuple[Input, ...]
    queries: tuple[Query, ...]
    lines: Lines = field(repr=False, compare=False)

    def problem(self, keys: Keys, text: str) -> Problem:
        """A complaint about what ``keys`` set."""
        return Problem(self.file, self.lines.of(keys), text)


def duration_ms(text: str) -> int:
    """Milliseconds of ``10 seconds``, ``500 ms``, ``1m``; raises UsageError."""
    match = _DURATION.fullmatch(text.lower())
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is not a duration; write it as 500 ms, 10 seconds, 1 minute or 2h")
    return round(float(match[1]) * _UNITS[match[2]])


Keys: TypeAlias = tuple[str | int, ...]


class Lines:
    """The lines of a valid TOML text's keys, which ``tomllib`` does not tell.

    An element of an array of tables is named by its number, from 0. Lines inside multi-line strings are passed over,
    since SQL has lines that look like keys and sections.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[Keys, int] = {}
        self._texts: dict[Keys, int] = {}
        self._counts: dict[Keys, int] = {}
        self._scan(text)

    def of(self, keys: Keys) -> int:
        """The line that sets ``keys``, or what they lie in; 1 if it cannot be told."""
        for length in range(len(keys), 0, -1):
            if keys[:length] in self._lines:
                return self._lines[keys[:length]]
        return 1

    def of_text(self, keys: Keys) -> int:
        """The line on which the text begins that ``keys`` is set to: the next one if it begins with a line break."""
        return self._texts.get(keys, self.of(keys))

    def _scan(self, text: str) -> None:
        section: Keys = ()
        closing = ""
        for number, line in enumerate(text.splitlines(), 1):
            if closing:
                closing = "" if closing in line else closing
                continue
            header = _HEADER.match(line)
            if header:
                section = self._section(header[2], array=header[1] == "[[")
                self._note(section, number)
                continue
            assignment = _ASSIGNMENT.match(line)
            if assignment is None:
                continue
            keys = (*section, *_parts(assignment[1]))
            self._note(keys, number)
            value = assignment[2]
            for quotes in ('"""', "'''"):
                if value.startswith(quotes):
                    rest = value[3:]
                    closing = "" if quotes in rest else quotes
                    self._texts[keys] = number + (not rest.strip())

    def _note(self, keys: Keys, number: int) -> None:
        for length in range(1, len(keys) + 1):
            self._lines.setdefault(keys[:length], number)

    def _section(self, text: str, *, array: bool) -> Keys:
        found: Keys = ()
        parts = _parts(text)
        for index, part in enumerate(parts):
            found = (*found, part)
            if array and index == len(parts) - 1:
                self._counts[found] = self._counts.get(found, -1) + 1
            if found in self._counts:
                found = (*found, self._counts[found])
        return found


def _parts(text: str) -> list[str]:
    return [part[0] or part[1] or part[2] for part in _PART.findall(text)]


def toml_problem(message: str, text: str) -> tuple[int, str]:
    """Line and sentence of what ``tomllib`` complains about."""
    match = re.search(r"\s*\((?:at line (\d+), column \d+|at end of document)\)", message)
    if match is None:
        return 1, message
    return int(match[1] or len(text.splitlines()) or 1), message[: match.start()].strip()
