"""Turns moments into offsets: the ranges between a start and an end, and counts of records over time.

Stores know the times of whole batches; the batch that a moment points to is read to find the record in it. Where clocks
went back and forth, later records of the partition may be older than the moment all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

from chappe.data.topic import encode_topic
from chappe.errors import OffsetOutOfRange, ProtocolError, TimedOut, UnknownTopic
from chappe.log.batch import Batch
from chappe.log.queries import ReadRequest, SeekAnswer, SeekRequest
from chappe.reading.fetch import Manner, ReadTask
from chappe.reading.offsets import (
    AT_EARLIEST,
    AT_LATEST,
    EARLIEST,
    LATEST,
    TIME_MAX,
    TIME_MIN,
    Key,
    KnownPartition,
    Offsets,
    Range,
    flatten,
    ranges,
    unflatten,
)
from chappe.reading.selection import Selection
from chappe.reading.view import StoresView

logger = logging.getLogger(__name__)

AT_ONCE: Final = 1_000  # questions under way to one store
NAMED_MAX: Final = 10  # ranges in one error


def offsets_at(view: StoresView, timestamp: int, keys: Iterable[Key], *, exact: bool = True) -> dict[Key, int]:
    """Return each partition's offset of its first record at or after ``timestamp`` (microseconds), or its end.

    Args:
        view: What the stores have; refreshed before.
        timestamp: Microseconds since 1970 UTC.
        keys: Partitions of ``view.known``.
        exact: Look into the batches; otherwise the offset may be that of an older record of the same batch.
    """
    found: dict[Key, int] = {}
    unclear: list[Key] = []
    for key in keys:
        have = view.known[key]
        if have.first == have.next or have.timestamp_max < timestamp:
            found[key] = have.next
        elif have.timestamp_min >= timestamp:
            found[key] = have.first
        else:
            unclear.append(key)
    for key, (offset, endpoint) in _seek(view, timestamp, unclear).items():
        have = view.known[key]
        at = min(max(offset, have.first), have.next)
        found[key] = _within(view, endpoint, key, at, timestamp) if exact and at < have.next else at
    return found


def _seek(view: StoresView, timestamp: int, keys: list[Key]) -> dict[Key, tuple[int, str]]:
    """Return the smallest offset that a store names for each partition, and that store."""
    found = {key: (view.known[key].next, "") for key in keys}
    for endpoint in view.endpoints:
        client = view.client(endpoint)
        if client is None:
            continue
        held = [key for key in keys if endpoint in view.known[key].holders]
        for begin in range(0, len(held), AT_ONCE):
            part = held[begin : begin + AT_ONCE]
            requests = [SeekRequest(encode_topic(t), encode_topic(p), timestamp) for t, p in part]
            try:
                for key, (answer, _) in zip(part, client.ask_many(requests), strict=True):
                    if isinstance(answer, SeekAnswer) and 0 <= answer.offset < found[key][0]:
                        found[key] = (answer.offset, endpoint)
            except (TimedOut, ProtocolError) as error:
                # the others know as much; where nobody answers, everything from the first record on is read
                logger.warning("%s; asking the other stores what was when", error)
                found |= {key: (view.known[key].first, endpoint) for key in part if not found[key][1]}
    return found


def _within(view: StoresView, endpoint: str, key: Key, offset: int, timestamp: int) -> int:
    """Return the offset of the first record at or after ``timestamp`` in the batch that has ``offset``."""
    batch = batch_at(view, [endpoint], key, offset)
    if batch is None:  # then the whole batch is taken
        return offset
    stamps, begin = batch.timestamps(), max(offset - batch.base, 0)
    return next((batch.base + n for n in range(begin, batch.count) if stamps[n] >= timestamp), offset)


def batch_at(view: StoresView, endpoints: Iterable[str], key: Key, offset: int) -> Batch | None:
    """Return the batch that has an offset, from the first of the stores that gives it; None without one."""
    for endpoint in endpoints:
        client = view.client(endpoint)
        if client is None:
            continue
        try:
            _, raws = client.ask(ReadRequest(encode_topic(key[0]), encode_topic(key[1]), offset, 1))
            if raws:
                return Batch.parse(raws[0])
        except (TimedOut, ProtocolError) as error:
            logger.warning("%s; times of single records in that batch are not known", error)
    return None


@dataclass(frozen=True, slots=True)
class Moment:
    """A bound in time: microseconds since 1970 UTC."""

    timestamp: int


Bound: TypeAlias = str | Offsets | Moment  # EARLIEST, LATEST, offsets or a moment


@dataclass(frozen=True, slots=True)
class TopicRead(Manner):
    """The topics to read, between which bounds, and from which stores.

    Args:
        selection: Topics or partitions.
        stores: Query endpoints; without any, ``towers`` are asked for them.
        starting: None leaves the default to the caller.
        ending: The same.
    """

    selection: Selection
    stores: tuple[str, ...] = ()
    starting: Bound | None = None
    ending: Bound | None = None

    def view(self) -> StoresView:
        return StoresView(self.selection, self.stores, self.towers, security=self.security)

    def task(self, shared: tuple[Range, ...], since: int = TIME_MIN, until: int = TIME_MAX) -> ReadTask:
        """Make a task for ``shared``; it skips batches wholly outside of ``since`` <= timestamp <= ``until``."""
        return ReadTask(shared, since, until, **{each.name: getattr(self, each.name) for each in fields(Manner)})


def bounded(wanted: TopicRead, view: StoresView, fits: Callable[[str, str], bool] | None = None) -> list[Range]:
    """Return the ranges of a read that begins and ends with what the stores have now.

    Args:
        wanted: The read.
        view: A picture of the stores; refreshed here.
        fits: Leaves out topics and partitions that are not looked at.

    Raises:
        TimedOut: A store does not answer, and may have what others lack.
        UnknownTopic: No store has a topic that was named, or any that matches a pattern.
        OffsetOutOfRange: A bound is behind the end of its partition, or records before it are lost.
    """
    view.refresh()
    if view.away and wanted.fail_on_data_loss:
        raise TimedOut(
            f"the store at {', '.join(view.away)} does not answer and may have records that others lack; "
            "start it, leave it out of `stores`, or set failOnDataLoss to false"
        )
    found = {topic for topic, _ in view.known}
    missing = wanted.selection.missing(found)
    if missing is not None:
        raise UnknownTopic(f"no store at {', '.join(view.endpoints)} has a topic {missing}")
    start = _numbers(wanted.starting or EARLIEST, view, EARLIEST)
    end = _numbers(wanted.ending or LATEST, view, LATEST)
    check_ends(start, view.known, "startingOffsets")
    check_ends(end, view.known, "endingOffsets")
    if fits is not None:
        end = {key: n for key, n in end.items() if fits(*key)}
    between = ranges(unflatten(start), unflatten(end), view.known, view.endpoints)
    return without_lost(between, view.known, wanted.fail_on_data_loss)


def check_ends(wanted: Mapping[Key, int], known: Mapping[Key, KnownPartition], option: str) -> None:
    """Raise OffsetOutOfRange for an offset behind the end of its partition."""
    for key, n in wanted.items():
        have = known.get(key)
        if n > (have.next if have else 0):
            raise OffsetOutOfRange(
                f"partition {key[1]} of topic {key[0]} ends before offset {have.next if have else 0}: "
                f"{n} in `{option}` is not there yet"
            )


def without_lost(wanted: Sequence[Range], known: Mapping[Key, KnownPartition], fail: bool) -> list[Range]:
    """Find records that retention took before they were read. The tasks check again, since retention goes on; found
    here, one error names all that is lost. Raises OffsetOutOfRange if ``fail``.
    """
    kept, lost = [], []
    for each in wanted:
        have = known.get((each.topic, each.partition))
        start = max(each.start, min(have.first, each.end)) if have else each.start
        if start > each.start:
            lost.append(each.part(each.start, start))
        if start < each.end:
            kept.append(each.part(start, each.end))
    if lost:
        text = "; ".join(map(str, lost[:NAMED_MAX]))
        text += f"; and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
        if fail:
            raise OffsetOutOfRange(
                f"data loss: no store has {text} any more; set failOnDataLoss to false to go on without them"
            )
        logger.warning("data loss: no store has %s any more; going on without them", text)
    return kept


def _numbers(bound: Bound, view: StoresView, default: str) -> dict[Key, int]:
    if isinstance(bound, Moment):
        return offsets_at(view, bound.timestamp, view.known)
    given = flatten(bound) if isinstance(bound, dict) else {}
    otherwise = default if isinstance(bound, dict) else bound
    found = {key: n for key, n in given.items() if n >= 0}
    for key, each in view.known.items():
        if key not in found:
            n = given.get(key, AT_LATEST if otherwise == LATEST else AT_EARLIEST)
            found[key] = each.next if n == AT_LATEST else each.first
    return found


def counts(view: StoresView, keys: Iterable[Key], edges: Sequence[int]) -> dict[Key, list[int]]:
    """Return the numbers of each partition's records from each moment of ``edges`` up to the next one.

    What is counted are offsets: records that nobody has any more count where those beside them lie. Where timestamps
    go back and forth, a record counts with those before it. Those of a batch that is sealed count at its beginning.

    Args:
        view: What the stores have; refreshed before.
        keys: Partitions of ``view.known``. Each costs a question for each moment, and a batch for some of them.
        edges: Microseconds since 1970 UTC, rising.
    """
    keys = list(keys)
    found: dict[Key, list[int]] = {key: [] for key in keys}
    for edge in edges:
        for key, offset in offsets_at(view, edge, keys, exact=False).items():
            found[key].append(offset)
    for key, offsets in found.items():
        exact = accumulate(_exact(view, key, offsets, edges), max)
        found[key] = [after - before for before, after in pairwise(exact)]
    return found


def _exact(view: StoresView, key: Key, offsets: Sequence[int], edges: Sequence[int]) -> list[int]:
    """Turn offsets of batches into offsets of records; the latest batch is kept, as the next moment may lie in it."""
    exact = []
    batch: Batch | None = None
    stamps: Sequence[int] = ()
    have = view.known[key]
    for offset, edge in zip(offsets, edges, strict=True):
        if have.first < have.next and have.timestamp_min < edge <= have.timestamp_max:
            if batch is None or not batch.base <= offset < batch.next:
                batch = batch_at(view, have.holders, key, offset)
                stamps = () if batch is None else batch.timestamps()
            if batch is not None:
                at = next((n for n in range(offset - batch.base, batch.count) if stamps[n] >= edge), batch.count)
                offset = batch.base + at
        exact.append(offset)
    return exact
