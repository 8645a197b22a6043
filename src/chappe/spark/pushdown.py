"""What filters of a query on topic, partition, offset and timestamp leave to be read.

A filter only ever narrows: Spark applies all of them again. Times of records need not rise within a partition, so a
lower bound drops what comes before the first batch that reaches it, and an upper bound drops single batches behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from chappe.api.times import as_micros
from chappe.arrow import shown
from chappe.reading.bounds import offsets_at
from chappe.reading.offsets import Range
from chappe.reading.view import StoresView


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What may be left; None: no limit.

    Args:
        topics: Names, as they are shown.
        partitions: The same.
        prefixes: What a topic's name starts with.
        first: The smallest offset.
        end: The offset behind the largest.
        since: The earliest timestamp in microseconds since 1970.
        until: The latest.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()
    first: int | None = None
    end: int | None = None
    since: int | None = None
    until: int | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Narrowing:
        """All filters together; those that say nothing of use here are passed over."""
        found = cls()
        for each in filters:
            found = found._with(each)
        return found

    def fits(self, topic: str, partition: str) -> bool:
        """Whether anything of a partition may be left."""
        topic, partition = shown(topic), shown(partition)
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and all(topic.startswith(each) for each in self.prefixes)
        )

    def apply(self, wanted: Sequence[Range], view: StoresView) -> list[Range]:
        """What is left of the ranges."""
        found = [each for each in map(self._offsets, wanted) if len(each) > 0]
        found = [each for each in found if self._may_be_in_time(each, view)]
        if self.since is None:
            return found
        keys = [(each.topic, each.partition) for each in found if (each.topic, each.partition) in view.known]
        reached = offsets_at(view, self.since, keys, exact=False)
        found = [each.part(max(each.start, reached.get((each.topic, each.partition), 0)), each.end) for each in found]
        return [each for each in found if each.start < each.end]

    def _with(self, given: Filter) -> Narrowing:
        match given:
            case EqualTo(("topic",), str(name)) | EqualNullSafe(("topic",), str(name)):
                return replace(self, topics=_both(self.topics, {name}))
            case EqualTo(("partition",), str(name)) | EqualNullSafe(("partition",), str(name)):
                return replace(self, partitions=_both(self.partitions, {name}))
            case In(("topic",), names):
                return replace(self, topics=_both(self.topics, {each for each in names if isinstance(each, str)}))
            case In(("partition",), names):
                return replace(
                    self, partitions=_both(self.partitions, {each for each in names if isinstance(each, str)})
                )
            case StringStartsWith(("topic",), prefix):
                return replace(self, prefixes=(*self.prefixes, prefix))
            case _:
                return self._within(given)

    def _within(self, given: Filter) -> Narrowing:
        """The same with a filter on a number or a time."""
        match given:
            case EqualTo((name,), value) | EqualNullSafe((name,), value):
                low, high = _number(value), _number(value)
            case GreaterThan((name,), value) | GreaterThanOrEqual((name,), value):
                low, high = _number(value), None
            case LessThan((name,), value) | LessThanOrEqual((name,), value):
                low, high = None, _number(value)
            case _:
                return self
        if name == "offset":
            low = low + 1 if isinstance(given, GreaterThan) and low is not None else low
            end = None if high is None else high + (not isinstance(given, LessThan))
            return replace(self, first=_most(self.first, low), end=_least(self.end, end))
        if name == "timestamp":
            return replace(self, since=_most(self.since, low), until=_least(self.until, high))
        return self

    def _offsets(self, each: Range) -> Range:
        start = max(each.start, self.first or 0)
        end = each.end if self.end is None else min(each.end, self.end)
        return each.part(min(start, each.end), max(end, min(start, each.end)))

    def _may_be_in_time(self, each: Range, view: StoresView) -> bool:
        have = view.known.get((each.topic, each.partition))
        if have is None:
            return True
        return (self.since is None or have.timestamp_max >= self.since) and (
            self.until is None or have.timestamp_min <= self.until
        )


def _both(one: frozenset[str] | None, other: set[str]) -> frozenset[str]:
    return frozenset(other) if one is None else one & other


def _number(value: object) -> int | None:
    if isinstance(value, datetime):
        return as_micros(value) if value.tzinfo is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _most(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)
