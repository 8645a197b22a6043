"""The schema of a pipeline's file, checked and complete."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from chappe.errors import UsageError
from chappe.system.toml import Keys, TomlLines

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


@dataclass(frozen=True, slots=True)
class Problem:
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
class StorePlace:
    """The stores to read from or write to: their query endpoints, or towers that know them. Empty: the default."""

    stores: tuple[str, ...] = ()
    towers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Watermark:
    """The lateness that a row may have: later ones may be left out of windows that are done."""

    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Input:
    """Topics that become one view. Without ``schema`` the view has the source's own columns.

    ``key`` are columns of the schema that the record's key has, as a table's topic is written.
    """

    name: str
    topics: tuple[str, ...]
    prefix: str | None
    place: StorePlace
    schema: str | None
    watermark: Watermark | None
    starting: Mapping[str, str]  # as options of the source
    options: Mapping[str, str]
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """The target of a query's rows. ``path`` is absolute, or a URI; ``chain``, instead of a place, is absolute."""

    kind: Kind
    mode: Mode
    topic: str | None
    path: str | None
    key: tuple[str, ...]
    place: StorePlace
    options: Mapping[str, str]
    chain: str | None = None


@dataclass(frozen=True, slots=True)
class Trigger:
    """The times of micro-batches: once for all that is there, or every ``interval_ms``; 0 is back to back."""

    available_now: bool = False
    interval_ms: int = 0


@dataclass(frozen=True, slots=True)
class Sql:
    """The text of a query, and where its first line stands."""

    text: str
    file: Path
    line: int


@dataclass(frozen=True, slots=True)
class PipelineQuery:
    """One streaming query. ``sql`` is None in a Python file; ``at`` are the keys of its section."""

    name: str
    sql: Sql | None
    output: Output
    checkpoint: str
    trigger: Trigger
    at: Keys


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    file: Path
    python: bool
    master: str
    settings: Mapping[str, str]
    inputs: tuple[Input, ...]
    queries: tuple[PipelineQuery, ...]
    lines: TomlLines = field(repr=False, compare=False)

    def problem(self, keys: Keys, text: str) -> Problem:
        return Problem(self.file, self.lines.of(keys), text)


def duration_ms(text: str) -> int:
    """Return milliseconds of ``10 seconds``, ``500 ms``, ``1m``; raises UsageError."""
    match = _DURATION.fullmatch(text.lower())
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is not a duration; write it as 500 ms, 10 seconds, 1 minute or 2h")
    return round(float(match[1]) * _UNITS[match[2]])
