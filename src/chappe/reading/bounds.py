"""What lies between a start and an end, as ranges of offsets: reads that are bounded when they begin."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from chappe.arrow import COLUMNS
from chappe.errors import OffsetOutOfRange, TimedOut, UnknownTopic
from chappe.reading.fetch import PATIENCE_S, Task
from chappe.reading.moments import offsets_at
from chappe.reading.offsets import (
    AT_EARLIEST,
    AT_LATEST,
    EARLIEST,
    LATEST,
    Key,
    Known,
    Offsets,
    Range,
    flatten,
    ranges,
    unflatten,
)
from chappe.reading.selection import Selection
from chappe.reading.view import StoresView

logger = logging.getLogger(__name__)

NAMED_MAX: Final = 10  # ranges in one error


@dataclass(frozen=True, slots=True)
class Moment:
    """A bound in time: microseconds since 1970 UTC."""

    timestamp: int


Bound: TypeAlias = str | Offsets | Moment  # EARLIEST, LATEST, offsets or a moment


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read, and from whom.

    Args:
        selection: Topics or partitions.
        stores: Query endpoints; without any, ``towers`` are asked for them.
        towers: Addresses of towers, separated by commas.
        starting: None leaves the default of whoever reads.
        ending: The same.
        fail_on_data_loss: Whether records that no store has any more are an error, or skipped with a warning.
        columns: What is built of each record.
        fetch_timeout_s: How long stores that are away or behind are waited for.
    """

    selection: Selection
    stores: tuple[str, ...] = ()
    towers: str | None = None
    starting: Bound | None = None
    ending: Bound | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = COLUMNS
    fetch_timeout_s: float = PATIENCE_S

    def view(self) -> StoresView:
        """A new picture of the stores; close it."""
        return StoresView(self.selection, self.stores, self.towers)

    def task(self, shared: tuple[Range, ...], since: int | None = None, until: int | None = None) -> Task:
        """What reads ``shared``; without batches that lie wholly outside of ``since`` <= timestamp <= ``until``."""
        return Task(shared, self.fail_on_data_loss, self.towers, self.columns, self.fetch_timeout_s, since, until)


def bounded(wanted: Reading, view: StoresView, fits: Callable[[str, str], bool] | None = None) -> list[Range]:
    """The ranges of a read that begins and ends with what the stores have now.

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


def check_ends(wanted: Mapping[Key, int], known: Mapping[Key, Known], option: str) -> None:
    """Raises OffsetOutOfRange for an offset behind the end of its partition."""
    for key, n in wanted.items():
        have = known.get(key)
        if n > (have.next if have else 0):
            raise OffsetOutOfRange(
                f"partition {key[1]} of topic {key[0]} ends before offset {have.next if have else 0}: "
                f"{n} in `{option}` is not there yet"
            )


def without_lost(wanted: Sequence[Range], known: Mapping[Key, Known], fail: bool) -> list[Range]:
    """Find records that retention took before they were read.

    The tasks check again, since retention goes on; found here, one error names all that is lost. Raises
    OffsetOutOfRange if ``fail``.
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
    """A bound as numbers; partitions that it does not name get ``default``."""
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
