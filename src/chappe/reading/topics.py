"""The topics in the stores, as a value for programs and people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, overload

from chappe.api.log.lines import iso_time, readable_name
from chappe.data.markup import ROWS_MAX, many, table
from chappe.reading.offsets import Key, KnownPartition
from chappe.reading.topic import reached
from chappe.security import LogSecurity

COLUMNS: Final = ("topic", "partitions", "records", "bytes", "oldest", "newest", "stores")


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """One topic over all stores that answered; where they hold different parts, the numbers are upper bounds.

    Args:
        partitions: How many it has.
        records: How many are kept.
        head: The highest offset of any partition; -1: none yet.
        bytes: On disk, of one copy.
        oldest: Of the timestamps, in microseconds since 1970 UTC; None if nothing is kept.
        newest: The same.
        stores: Query endpoints of those that hold any of it, sorted.
    """

    topic: str
    partitions: int
    records: int
    head: int
    bytes: int
    oldest: int | None
    newest: int | None
    stores: tuple[str, ...]

    @staticmethod
    def of(topic: str, partitions: Sequence[KnownPartition]) -> TopicSummary:
        """Return the summary of some or all partitions of a topic, at least one."""
        kept = [each for each in partitions if each.next > each.first]
        return TopicSummary(
            topic,
            len(partitions),
            sum(each.next - each.first for each in partitions),
            max(each.next for each in partitions) - 1,
            sum(each.bytes for each in partitions),
            min((each.timestamp_min for each in kept), default=None),
            max((each.timestamp_max for each in kept), default=None),
            tuple(sorted({holder for each in partitions for holder in each.holders})),
        )


class TopicList(Sequence[TopicSummary]):
    """Topics by name; a table in notebooks."""

    def __init__(self, topics: Iterable[TopicSummary]) -> None:
        self._topics = tuple(topics)

    @overload
    def __getitem__(self, at: int) -> TopicSummary: ...
    @overload
    def __getitem__(self, at: slice) -> TopicList: ...
    def __getitem__(self, at: int | slice) -> TopicSummary | TopicList:
        return TopicList(self._topics[at]) if isinstance(at, slice) else self._topics[at]

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[TopicSummary]:
        return iter(self._topics)

    def __repr__(self) -> str:
        return f"<TopicList of {many(len(self), 'topic')}>"

    def _repr_html_(self) -> str:
        rows = (
            (
                *(readable_name(each.topic), each.partitions, each.records, each.bytes),
                *(None if at is None else iso_time(at)[:19] + "Z" for at in (each.oldest, each.newest)),
                len(each.stores),
            )
            for each in self._topics[:ROWS_MAX]
        )
        return table(many(len(self), "topic"), COLUMNS, rows, len(self))


def list_topics(
    topic: str | Sequence[str] = "*",
    *,
    tower: str | None = None,
    stores: str | Sequence[str] | None = None,
    security: LogSecurity = None,
) -> TopicList:
    """List the topics of the stores that answer; no records are read.

    Args:
        topic: As of ``read_topic``; all by default. A topic that no store has is left out.
        tower, stores, security: Like those of ``read_topic``.

    Raises:
        UsageError: An argument is wrong.
        TimedOut: No store is there, or none answers.
    """
    wanted = reached(topic, tower, stores, security)
    with closing(wanted.view()) as view:
        view.refresh()
        return TopicList(summaries(view.known))


def summaries(known: Mapping[Key, KnownPartition]) -> Iterator[TopicSummary]:
    by_topic: Any = itemgetter(0)
    for topic, keys in groupby(sorted(known), by_topic):
        yield TopicSummary.of(topic, [known[key] for key in keys])
