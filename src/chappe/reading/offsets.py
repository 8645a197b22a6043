"""Starts and ends of a read, and its division into tasks. Pure.

Offsets are ``{topic: {partition: next offset}}``, kept in Spark's checkpoint as JSON. Spark compares the JSON as
text, so keys are always sorted. A partition that is missing in a start begins at the earliest record there is: it
appeared later. Two numbers are symbols, as in Kafka: -1 the latest, -2 the earliest offset.

No topic has an empty name, so what stands under ``""`` is not a topic: ``{"": {"": -1}}`` is the start "latest", and
``{"": {"time": T}}`` the start at a moment. A stream that begins with such a symbol first makes an empty batch whose
end holds the numbers found, so that these are in the checkpoint before anything is read: a restart then never begins at
a later "latest" than the first start did. Anything else under ``""`` was written by a newer chappe.

A partition that is missing in a start which is not the first one of its query has not been read at all: it begins at
offset 0, and what retention has removed of it is lost. So partitions that were read and emptied stay in the offsets.
Only beyond ``KEPT_MAX`` partitions these leave, down to that number; then one that is missing may be one of them, and
begins at its earliest record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from chappe.errors import StorageFormat

Offsets: TypeAlias = dict[str, dict[str, int]]
Key: TypeAlias = tuple[str, str]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
AT_LATEST: Final = -1
AT_EARLIEST: Final = -2
OFFSET_MAX: Final = (1 << 63) - 1
TIME_MIN: Final = -(1 << 63)  # a moment may lie before 1970
TIME_MAX: Final = OFFSET_MAX
_NOTHING: Final[dict[str, int]] = {}
SYMBOLS: Final = ""  # stands in the place of a topic
TIME: Final = "time"
FROM_LATEST: Final[Offsets] = {SYMBOLS: {"": AT_LATEST}}
TASK_BYTES_MIN: Final = 1 << 20  # a task costs 20 to 30 ms: less than this is not worth one of its own
KEPT_MAX: Final = 10_000  # partitions; their offsets are 250 KB, which Spark writes with each batch
RECORD_BYTES: Final = 100  # assumed where a store has not said how large a partition is


@dataclass(frozen=True, slots=True)
class KnownPartition:
    """A partition as all stores together have it: ``first`` <= offsets < ``next``.

    ``bytes`` is the size of the largest copy, ``holders`` the endpoints of the stores that have any of it. All its
    records lie within the timestamps, in microseconds since 1970; no record, no meaning.
    """

    first: int
    next: int
    bytes: int
    holders: tuple[str, ...]
    timestamp_min: int = 0
    timestamp_max: int = 0

    @property
    def record_bytes(self) -> int:
        return max(self.bytes // max(self.next - self.first, 1), 1)


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets ``start`` <= n < ``end`` of one partition, and who has them."""

    topic: str
    partition: str
    start: int
    end: int
    holders: tuple[str, ...] = ()
    record_bytes: int = RECORD_BYTES

    def __len__(self) -> int:
        return self.end - self.start

    def part(self, start: int, end: int) -> Range:
        return Range(self.topic, self.partition, start, end, self.holders, self.record_bytes)

    def __str__(self) -> str:
        return f"offsets {self.start}..{self.end - 1} of partition {self.partition} of topic {self.topic}"


def sort_offsets(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {topic: dict(sorted(offsets[topic].items())) for topic in sorted(offsets)}


def flatten(offsets: Offsets) -> dict[Key, int]:
    return {(topic, partition): n for topic, each in offsets.items() for partition, n in each.items()}


def unflatten(flat: Mapping[Key, int]) -> Offsets:
    """Return the inverse of ``flatten``, sorted."""
    found: Offsets = {}
    for topic, partition in sorted(flat):
        found.setdefault(topic, {})[partition] = flat[topic, partition]
    return found


def from_moment(timestamp: int) -> Offsets:
    return {SYMBOLS: {TIME: timestamp}}


def check_offsets(offsets: object) -> None:
    """Check offsets from a checkpoint. Raises StorageFormat: a newer chappe, or something else, wrote them."""
    if not isinstance(offsets, dict) or not all(isinstance(each, dict) for each in offsets.values()):
        raise StorageFormat(
            "the checkpoint does not hold offsets of format chappe; give the query a checkpoint of its own"
        )
    if set(offsets.get(SYMBOLS, ())) - {"", TIME}:
        raise StorageFormat("the checkpoint was written by a newer chappe; install that version to go on from it")
    for topic, partitions in offsets.items():
        for partition, n in partitions.items():
            least = TIME_MIN if topic == SYMBOLS and partition == TIME else AT_EARLIEST
            if type(n) is not int or not least <= n <= OFFSET_MAX:
                raise StorageFormat(
                    f"the offsets in the checkpoint are damaged: {json.dumps(n)[:100]} stands for partition "
                    f"{partition} of topic {topic}; restore the checkpoint from a copy, or begin with a new one"
                )


def is_symbolic(start: Offsets) -> bool:
    """True if something in it still has to be replaced by numbers."""
    return SYMBOLS in start or any(AT_LATEST in each.values() for each in start.values())


def resolve(start: Offsets, known: Mapping[Key, KnownPartition], at_moment: Mapping[Key, int] | None = None) -> Offsets:
    """Replace -1 by the latest offset, and -2 or nothing by the earliest; partitions at 0 may be omitted.

    ``at_moment`` has the numbers for a start at a moment.
    """
    if at_moment is not None:
        return unflatten(at_moment)
    given = flatten(start)
    found = {key: n for key, n in given.items() if n >= 0}
    otherwise = AT_LATEST if start == FROM_LATEST else AT_EARLIEST
    for key, have in known.items():
        symbol = given.get(key, otherwise)
        if symbol == AT_LATEST:
            found[key] = have.next
        elif symbol == AT_EARLIEST and have.first > 0:
            found[key] = have.first
    return unflatten(found)


def remembers_all(start: Offsets) -> bool:
    """True if the offsets hold every partition that was ever read."""
    return sum(map(len, start.values())) < KEPT_MAX


def latest(
    start: Offsets,
    known: Mapping[Key, KnownPartition],
    rows_max: int | None = None,
    bytes_max: int | None = None,
    keys: Iterable[Key] | None = None,
) -> Offsets:
    """Return the end of a batch that begins at ``start``: every head, or as much as the limits allow, shared out.

    Never before ``start``: a store that is away for a while takes nothing back. ``bytes_max`` is kept to as far as the
    records of a partition are of one size; at least one record is read. ``keys`` are those that may have anything new,
    where the caller knows: with a hundred thousand partitions, looking at each takes long. A partition that is new and
    does not begin at 0 has a place in the end also where nothing of it is read.
    """
    end = {topic: dict(each) for topic, each in start.items()}
    placed = remembers_all(start)
    waiting: dict[Key, int] = {}
    unsorted = set()
    for key in known if keys is None else keys:
        have = known.get(key)
        if have is None:
            continue
        at = end.get(key[0], _NOTHING).get(key[1], AT_EARLIEST)
        if at < 0:
            at = have.first
            if placed and at > 0:
                end.setdefault(key[0], {})[key[1]] = at
                unsorted.add(key[0])
        if at < have.next:
            waiting[key] = have.next - at
    for key, rows in _share(waiting, _rows_max(waiting, known, rows_max, bytes_max)).items():
        topic, partition = key
        if partition not in end.setdefault(topic, {}):
            unsorted.add(topic)
        end[topic][partition] = known[key].next - waiting[key] + rows
    for topic in unsorted:  # the others are in order already: they come from here
        end[topic] = dict(sorted(end[topic].items()))
    return {topic: end[topic] for topic in sorted(end)}


def without_retired(start: Offsets, known: Mapping[Key, KnownPartition], keys: Iterable[Key]) -> Offsets:
    """Drop fully read partitions of ``keys`` without remaining records, if there are more than ``KEPT_MAX`` in all.

    At least ``KEPT_MAX`` stay, by which ``remembers_all`` knows that others were dropped.
    """
    found = dict(start)
    copied = set()
    spare = sum(map(len, start.values())) - KEPT_MAX
    for topic, partition in keys:
        if spare <= 0:
            break
        have = known.get((topic, partition))
        n = found.get(topic, _NOTHING).get(partition)
        if have is not None and n is not None and n == have.first == have.next:
            if topic not in copied:
                copied.add(topic)
                found[topic] = dict(found[topic])
            del found[topic][partition]
            spare -= 1
    return found


def _rows_max(
    waiting: Mapping[Key, int], known: Mapping[Key, KnownPartition], rows_max: int | None, bytes_max: int | None
) -> int | None:
    """Return both limits as one: since rows are taken in proportion, a part of them is the same part of the bytes."""
    if bytes_max is None:
        return rows_max
    size = sum(rows * known[key].record_bytes for key, rows in waiting.items())
    if size <= bytes_max:
        return rows_max
    rows = max(sum(waiting.values()) * bytes_max // size, 1)
    return rows if rows_max is None else min(rows, rows_max)


def _share(waiting: Mapping[Key, int], rows_max: int | None) -> Mapping[Key, int]:
    """Return rows to take of each partition: in proportion to what waits there, the rest where most waits."""
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        return waiting
    taken = {key: rows_max * rows // total for key, rows in waiting.items()}
    left = rows_max - sum(taken.values())  # less than one for each partition
    for key in sorted(waiting, key=lambda key: (taken[key] - waiting[key], key))[:left]:
        taken[key] += 1
    return {key: rows for key, rows in taken.items() if rows}


def ranges(
    start: Offsets,
    end: Offsets,
    known: Mapping[Key, KnownPartition],
    everyone: Sequence[str],
    keys: Iterable[Key] | None = None,
    *,
    first: bool = True,
) -> list[Range]:
    """Return the ranges between two offsets, in the order of topics and partitions.

    ``everyone`` are the stores to ask for a partition that none of them has told of. ``keys`` are those that may
    differ, where the caller knows. If the start is not the ``first`` one of a query, a partition that is missing in it
    is wanted from offset 0, whatever is left of it.
    """
    found: list[Range] = []
    if SYMBOLS in start:
        return found
    if keys is None:
        keys = ((topic, partition) for topic, each in end.items() for partition in each)
    for topic, partition in sorted(keys):
        stop = end.get(topic, _NOTHING).get(partition, 0)
        at = start.get(topic, _NOTHING).get(partition, AT_EARLIEST)
        if at >= stop or at == AT_LATEST:
            continue
        have = known.get((topic, partition))
        if at == AT_EARLIEST:
            at = min(have.first, stop) if have and (first or not remembers_all(start)) else 0
        if at < stop:
            holders, size = (have.holders, have.record_bytes) if have else (tuple(everyone), RECORD_BYTES)
            found.append(Range(topic, partition, at, stop, holders, size))
    return found


def at_most(shared: Iterable[tuple[Range, ...]], records_max: int) -> list[tuple[Range, ...]]:
    """Split the ranges of tasks further, so that none has more than ``records_max`` records."""
    return [part for ranges_of_one in shared for part in _portions(ranges_of_one, records_max, lambda each: 1)]


def cut(found: Iterable[Range], tasks: int, bytes_min: int = TASK_BYTES_MIN) -> list[tuple[Range, ...]]:
    """Share ranges out among at most ``tasks`` tasks of about the same number of bytes, at least ``bytes_min`` each.

    The ranges are laid end to end and the line is cut at equal distances, so no more than ``tasks`` - 1 ranges are
    split, and each task's ranges are neighbours.
    """
    queue = list(found)
    total = sum(len(each) * each.record_bytes for each in queue)
    share = max(-(-total // max(tasks, 1)), bytes_min, 1)
    return list(_portions(queue, share, lambda each: each.record_bytes))


def _portions(line: Iterable[Range], share: int, cost: Callable[[Range], int]) -> Iterator[tuple[Range, ...]]:
    """Cut a line of ranges wherever the costs of its records have come to ``share``."""
    current: list[Range] = []
    room = share
    for each in line:
        start = each.start
        while start < each.end:
            rows = min(each.end - start, -(-room // cost(each)))
            current.append(each.part(start, start + rows))
            start += rows
            room -= rows * cost(each)
            if room <= 0:
                yield tuple(current)
                current, room = [], share
    if current:
        yield tuple(current)
