"""The records that ``chappe consume`` prints: between which offsets, of which partition, with which key and value."""

from __future__ import annotations

import os
import re
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias

from typer import Context, Option

from chappe.api.times import as_micros
from chappe.cli import completing, options
from chappe.cli.topics import check_known, looking
from chappe.cli.units import parse_moment
from chappe.data.topic import Filter
from chappe.errors import ChappeError, OffsetOutOfRange, UnknownTopic, UsageError

if TYPE_CHECKING:
    from chappe.log.batch import Record

Key: TypeAlias = tuple[str, str]  # topic and partition
Match: TypeAlias = Callable[["Record"], bool]
SEARCH_S: Final = 2.0  # of processor time that --grep gets for one value


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets to begin at, of partitions that begin elsewhere than ``--from`` says; and the ends, None: never."""

    begins: dict[Key, int] = field(default_factory=dict)
    ends: dict[Key, int] | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The options that choose records."""

    PANEL: ClassVar = "Choice"

    last: Annotated[
        int | None,
        Option(min=1, metavar="N", help="Begin with the newest N records of each partition, instead of --from."),
    ] = None
    until: Annotated[
        str | None,
        Option(
            metavar="TIME|AGE",
            help="End each partition at its first record not older than 2026-01-31T12:00, or 2h.",
        ),
    ] = None
    partition: Annotated[
        str | None,
        Option(
            metavar="P",
            help="Only the partition of this id, or those whose ids begin so.",
            autocompletion=completing.PARTITIONS,
        ),
    ] = None
    key: Annotated[str | None, Option(metavar="KEY", help="Only records with this key.")] = None
    grep: Annotated[
        str | None,
        Option(metavar="PATTERN", help="Only records in whose value this regular expression (Python's) is found."),
    ] = None

    def heed(self, context: Context) -> Choice:
        """Refuse two beginnings."""
        if self.last is not None and options.source_of(context, "start") == "COMMANDLINE":
            raise UsageError("give only one of --from and --last")
        return self

    def check_no_workers(self) -> None:
        """Raise UsageError if anything is chosen, where workers have the records."""
        for name, value in asdict(self).items():
            if value is not None:
                raise UsageError(f"--{name} does not go with --exec: workers have all that comes")

    def takes(self, partition: str) -> bool:
        """Return True for a partition whose records are wanted."""
        return self.partition is None or partition.startswith(self.partition)

    def span(self, filters: Sequence[Filter], reach: options.Reach, start: Any, *, until_end: bool) -> Span:
        """Ask the stores where partitions begin and end.

        Raises:
            UnknownTopic: There is no such topic, or no such partition of it.
            OffsetOutOfRange: No partition has reached the offset ``start``.
            UsageError: ``until`` is not a time in the past, or not after ``start``.
            TimedOut: No store answers.
        """
        until = self._until(start)
        bounded = until_end or until is not None
        if not bounded and self.last is None and self.partition is None and not isinstance(start, int):
            return Span()
        with looking(reach, filters) as (held, view):
            check_known(held, filters, reach)
            known = held.known
            ends = {key: each.next for key, each in known.items() if each.next > each.first}
            if until is not None:
                from chappe.reading.bounds import offsets_at

                ends |= offsets_at(view, as_micros(until), ends)
        wanted = [key for key in ends if self.takes(key[1])]
        if self.partition is not None and not any(self.takes(partition) for _, partition in known):
            raise UnknownTopic(f"no partition begins with {self.partition!r}; `chappe topics --partitions` lists all")
        if isinstance(start, int) and wanted and all(start > known[key].next for key in wanted):
            last = max(known[key].next for key in wanted) - 1
            raise OffsetOutOfRange(f"offset {start} is not there yet: the last one is {last}")
        begins = {key: each.next for key, each in known.items() if not self.takes(key[1])}  # nothing of them is read
        if self.last is not None:
            begins |= {key: max(known[key].first, ends[key] - self.last) for key in wanted}
        return Span(begins, {key: ends[key] for key in wanted if ends[key] > known[key].first} if bounded else None)

    def _until(self, start: Any) -> datetime | None:
        if self.until is None:
            return None
        found = parse_moment(self.until, "--until")
        if found > datetime.now(UTC):
            raise UsageError(f"--until {self.until} is in the future")
        if isinstance(start, datetime) and start >= found:
            raise UsageError("--from is not before --until: nothing would be printed")
        return found

    @contextmanager
    def matching(self) -> Iterator[Match | None]:
        """Yield the test for key and pattern that a record has to pass; None where all do. Raises UsageError."""
        key = None if self.key is None else os.fsencode(self.key)
        if self.grep is None:
            yield None if key is None else lambda record: record.key == key
            return
        with _searching(self.grep) as found:
            yield lambda record: (key is None or record.key == key) and record.value is not None and found(record.value)


@contextmanager
def _searching(pattern: str) -> Iterator[Callable[[bytes], bool]]:
    """Yield the search for a pattern in a value; bytes that are not UTF-8 match those of an argument.

    A pattern with nested repeats may search for years: ``SEARCH_S`` of processor time for one value end the command,
    where the system has such a clock.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            search = re.compile(pattern).search
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"--grep {pattern!r} is not a regular expression: {error}") from None

    def find(value: bytes) -> bool:
        return search(value.decode("utf-8", "surrogateescape")) is not None

    if not hasattr(signal, "setitimer"):
        yield find
        return

    def give_up(_signum: int, _frame: FrameType | None) -> None:
        raise ChappeError(f"--grep {pattern!r} takes too long for a value: avoid repeats of repeats, such as (a+)+")

    def find_in_time(value: bytes) -> bool:
        signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_S)
        try:
            return find(value)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    before = signal.signal(signal.SIGVTALRM, give_up)
    try:
        yield find_in_time
    finally:
        signal.signal(signal.SIGVTALRM, before)
