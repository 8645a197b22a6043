"""Where a read starts and ends, and how it is cut into tasks. Pure.

Offsets are ``{topic: {partition: next offset}}``, kept in Spark's checkpoint as JSON. Spark compares the JSON as
text, so keys are always sorted. A partition that is missing in a start begins at the earliest record there is: it
appeared later. Two numbers are symbols, as in Kafka: -1 the latest, -2 the earliest offset.

The start "latest" is ``{"": {"": -1}}`` (no topic has an empty name). A stream that begins with a -1 first makes an
empty batch whose end holds the numbers found, so that these are in the checkpoint before anything is read: a restart
then never begins at a later "latest" than the first start did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Offsets: TypeAlias = dict[str, dict[str, int]]
Key: TypeAlias = tuple[str, str]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
AT_LATEST: Final = -1
AT_EARLIEST: Final = -2
FROM_LATEST: Final[Offsets] = {"": {"": AT_LATEST}}
TASK_BYTES_MIN: Final = 1 << 20  # a task costs 20 to 30 ms: less than this is not worth one of its own
RECORD_BYTES: Final = 100  # assumed where a store has not said how large a partition is


@dataclass(frozen=True, slots=True)
class Known:
    """A partition as all stores together have it: ``first`` <= offsets < ``next``.

    ``bytes`` is the size of the largest copy, ``holders`` the endpoints of the stores that have any of it.
    """

    first: int
    next: int
    bytes: int
    holders: tuple[str, ...]


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

    def __str__(self) -> str:
        return f"offsets {self.start}..{self.end - 1} of partition {self.partition} of topic {self.topic}"


def sort_offsets(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The same offsets with their keys in order."""
    return {topic: dict(sorted(offsets[topic].items())) for topic in sorted(offsets)}


def flatten(offsets: Offsets) -> dict[Key, int]:
    """One flat mapping, easier to compute with."""
    return {(topic, partition): n for topic, each in offsets.items() for partition, n in each.items()}


def unflatten(flat: Mapping[Key, int]) -> Offsets:
    """The inverse of ``flatten``, sorted."""
    found: Offsets = {}
    for topic, partition in sorted(flat):
        found.setdefault(topic, {})[partition] = flat[topic, partition]
    return found


def is_symbolic(start: Offsets) -> bool:
    """Whether a -1 in it still has to be replaced by a number."""
    return any(n == AT_LATEST for each in start.values() for n in each.values())


def resolve(start: Offsets, known: Mapping[Key, Known]) -> Offsets:
    """Replace -1 by what is the latest now, and leave out -2: missing means earliest."""
    given = flatten(start)
    found = {key: n for key, n in given.items() if n >= 0}
    for key in known if start == FROM_LATEST else given:
        if given.get(key, AT_LATEST) == AT_LATEST and key in known:
            found[key] = known[key].next
    return unflatten(found)


def latest(start: Offsets, known: Mapping[Key, Known], rows_max: int | None) -> Offsets:
    """How far a batch that begins at ``start`` reads: to every head, or ``rows_max`` rows shared out.

    Never before ``start``: a store that is away for a while takes nothing back.
    """
    begin = {key: n for key, n in flatten(start).items() if n >= 0}
    first = {key: begin.get(key, each.first) for key, each in known.items()}
    waiting = {key: each.next - first[key] for key, each in known.items() if each.next > first[key]}
    taken = _share(waiting, rows_max)
    return unflatten(begin | {key: first[key] + rows for key, rows in taken.items()})


def _share(waiting: Mapping[Key, int], rows_max: int | None) -> Mapping[Key, int]:
    """Rows to take of each partition: in proportion to what waits there, the rest where most waits."""
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        return waiting
    taken = {key: rows_max * rows // total for key, rows in waiting.items()}
    left = rows_max - sum(taken.values())  # less than one for each partition
    for key in sorted(waiting, key=lambda key: (taken[key] - waiting[key], key))[:left]:
        taken[key] += 1
    return {key: rows for key, rows in taken.items() if rows}


def ranges(start: Offsets, end: Offsets, known: Mapping[Key, Known], everyone: Sequence[str]) -> list[Range]:
    """What lies between two offsets, in the order of topics and partitions.

    ``everyone`` are the stores to ask for a partition that none of them has told of.
    """
    begin = flatten(start)
    found = []
    for (topic, partition), stop in sorted(flatten(end).items()):
        have = known.get((topic, partition))
        at = begin.get((topic, partition), AT_EARLIEST)
        if at == AT_LATEST or start == FROM_LATEST:
            continue
        if at == AT_EARLIEST:
            at = min(have.first, stop) if have else 0
        if at < stop:
            size = have.bytes // max(have.next - have.first, 1) if have else RECORD_BYTES
            found.append(Range(topic, partition, at, stop, have.holders if have else tuple(everyone), max(size, 1)))
    return found


def cut(found: Iterable[Range], tasks: int, bytes_min: int = TASK_BYTES_MIN) -> list[tuple[Range, ...]]:
    """Share ranges out among at most ``tasks`` tasks of about the same number of bytes, at least ``bytes_min`` each.

    The ranges are laid end to end and the line is cut at equal distances, so no more than ``tasks`` - 1 ranges are
    split, and each task's ranges are neighbours.
    """
    queue = list(found)
    total = sum(len(each) * each.record_bytes for each in queue)
    share = max(-(-total // max(tasks, 1)), bytes_min, 1)
    shared: list[tuple[Range, ...]] = []
    current: list[Range] = []
    room = share
    for each in queue:
        start = each.start
        while start < each.end:
            rows = min(each.end - start, -(-room // each.record_bytes))
            current.append(_part(each, start, start + rows))
            start += rows
            room -= rows * each.record_bytes
            if room <= 0:
                shared.append(tuple(current))
                current, room = [], share
    if current:
        shared.append(tuple(current))
    return shared


def _part(whole: Range, start: int, end: int) -> Range:
    return Range(whole.topic, whole.partition, start, end, whole.holders, whole.record_bytes)
