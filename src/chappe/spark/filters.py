"""Restricts topics to a query's filters, as the option ``filters`` of a batch read.

It only narrows the read: Spark applies its filters as well. Times of records need not rise within a partition, so a
lower bound drops what comes before the first batch that reaches it, and an upper bound drops single batches behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from chappe.arrow import shown
from chappe.reading.bounds import offsets_at
from chappe.reading.offsets import OFFSET_MAX, TIME_MAX, TIME_MIN, Range
from chappe.reading.view import StoresView


@dataclass(frozen=True, slots=True)
class Filters:
    """Bounds of the records that a query can use; all of them hold at once."""

    topics: frozenset[str] | None = None  # names as they are shown; None: any
    partitions: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()  # of the name of a topic
    first: int = 0  # the smallest offset
    end: int = OFFSET_MAX  # the offset behind the largest
    since: int = TIME_MIN  # the earliest timestamp in microseconds since 1970
    until: int = TIME_MAX  # the latest

    def as_text(self) -> str:
        """Return the option's value: JSON of the bounds that differ from ``ALL``."""
        none = asdict(ALL)
        found = {name: value for name, value in asdict(self).items() if value != none[name]}
        return json.dumps({name: sorted(v) if isinstance(v, frozenset) else v for name, v in found.items()})

    @classmethod
    def parse(cls, text: str) -> Filters | None:
        """Return the inverse of ``as_text``; None for any other text."""
        try:
            given: dict[str, Any] = json.loads(text)
            for name, value in given.items():
                if name in ("topics", "partitions", "prefixes"):
                    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                        return None
                    given[name] = tuple(value) if name == "prefixes" else frozenset(value)
                elif type(value) is not int or name not in {each.name for each in fields(cls)}:
                    return None
            return cls(**given)
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None

    def equal(self, column: str, values: Iterable[str | int]) -> Filters:
        """Add ``column IN values``; numbers are offsets, or microseconds since 1970."""
        found = [*values]
        if column in ("topic", "partition"):
            names = frozenset(each for each in found if isinstance(each, str))
            if column == "topic":
                return replace(self, topics=names if self.topics is None else names & self.topics)
            return replace(self, partitions=names if self.partitions is None else names & self.partitions)
        numbers = [each for each in found if isinstance(each, int)]
        return self.at_least(column, min(numbers)).at_most(column, max(numbers)) if numbers else self

    def at_least(self, column: str, value: int) -> Filters:
        if column == "offset":
            return replace(self, first=max(self.first, min(value, OFFSET_MAX)))
        return replace(self, since=max(self.since, min(value, TIME_MAX))) if column == "timestamp" else self

    def at_most(self, column: str, value: int) -> Filters:
        if column == "offset":
            return replace(self, end=max(0, min(self.end, value + 1)))
        return replace(self, until=min(self.until, max(value, TIME_MIN))) if column == "timestamp" else self

    def starts_with(self, prefix: str) -> Filters:
        return replace(self, prefixes=(*self.prefixes, prefix))

    def fits(self, topic: str, partition: str) -> bool:
        topic, partition = shown(topic), shown(partition)
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and all(topic.startswith(each) for each in self.prefixes)
        )

    def apply(self, wanted: Sequence[Range], view: StoresView) -> list[Range]:
        """Return the parts of the ranges that may match."""
        found = [each for each in map(self._offsets, wanted) if len(each) > 0]
        found = [each for each in found if self._may_be_in_time(each, view)]
        if self.since == TIME_MIN:
            return found
        keys = [(each.topic, each.partition) for each in found if (each.topic, each.partition) in view.known]
        reached = offsets_at(view, self.since, keys, exact=False)
        found = [each.part(max(each.start, reached.get((each.topic, each.partition), 0)), each.end) for each in found]
        return [each for each in found if each.start < each.end]

    def _offsets(self, each: Range) -> Range:
        start, end = max(each.start, self.first), min(each.end, self.end)
        return each.part(min(start, each.end), max(end, min(start, each.end)))

    def _may_be_in_time(self, each: Range, view: StoresView) -> bool:
        have = view.known.get((each.topic, each.partition))
        return have is None or (have.timestamp_max >= self.since and have.timestamp_min <= self.until)


ALL: Final = Filters()
