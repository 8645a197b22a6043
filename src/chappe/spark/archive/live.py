"""Where the live log goes on after an archive: the offsets at which to read on, and what waits there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from chappe.data.topic import Filter
from chappe.errors import UsageError
from chappe.reading.offsets import EARLIEST, Key, Known, unflatten
from chappe.reading.pattern import escaped
from chappe.reading.selection import Selection
from chappe.reading.view import StoresView
from chappe.spark.archive.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Rest:
    """What of the log is not archived.

    Args:
        topics: All that the stores have.
        starting: The offset to read on from, of each partition that stores and archive have; others start at the
            earliest record.
        archived: Where the archive ends in the partitions of which the stores have less at the moment: if these
            come to have more, what is before is to be dropped.
        waiting: Records not archived, all together.
    """

    topics: tuple[str, ...]
    starting: Mapping[Key, int]
    archived: Mapping[Key, int]
    waiting: int


def rest_of(manifest: Manifest, known: Mapping[Key, Known], wanted: Filter) -> Rest:
    """What the stores have beyond the archive. Pure."""
    starting: dict[Key, int] = {}
    archived: dict[Key, int] = {}
    waiting = 0
    for key, have in known.items():
        done = manifest.next_of(*key)
        if done is not None:
            starting[key] = min(done, have.next)
            if done > have.next:
                archived[key] = done
        waiting += max(have.next - max(done or 0, have.first), 0)
    for topic in manifest.topics:
        if wanted.matches(topic):
            archived |= {
                (topic, partition): span.next
                for partition, span in manifest.positions[topic].items()
                if (topic, partition) not in known
            }
    topics = tuple(sorted({topic for topic, _ in known}))
    return Rest(topics, starting, archived, waiting)


def starting_offsets(starting: Mapping[Key, int]) -> str:
    """As the option ``startingOffsets`` takes it; what is missing starts at the earliest record."""
    return json.dumps(unflatten(starting)) if starting else EARLIEST


def look(manifest: Manifest, wanted: Filter, stores: tuple[str, ...], towers: str | None) -> Rest:
    """Ask the stores. Raises TimedOut if none answers."""
    view = StoresView(Selection((wanted,)), stores, towers)
    try:
        view.refresh()
        return rest_of(manifest, view.known, wanted)
    finally:
        view.close()


def pattern_of(*wanted: Filter) -> str:
    """What the option ``subscribePattern`` needs to read topics, or prefixes of them, whatever their names."""
    return "|".join(escaped(each.name) + (".*" if each.prefix else "") for each in wanted)


def parse_wanted(text: str) -> Filter:
    """``topic`` or ``prefix*``. Raises UsageError."""
    if "," in text:
        raise UsageError(f"{text!r}: name one topic, or a prefix* for several")
    return Filter.parse(text)
