"""Spark's query progress as the numbers that people and alarms want: rates, lag, state. Pure.

Spark says after each batch how far the source has been read and how far it goes. The lag in records is the
difference. The lag in seconds is how long ago the topic was as long as what is read now; it follows from the lengths
seen so far, and from the pace of the topic for what is older than the first look. It is unknown (None) for a backlog
in a topic that does not grow, since nothing then tells its pace. The bytes of the lag are the source's, which says them
beside the lengths.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from chappe.observing.snapshot import ObservedLag, ObservedQuery

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LOOKS_MAX: Final = 512  # lengths of a topic remembered; every second one is forgotten when it gets more


@dataclass(slots=True)
class _Pace:
    looks: deque[tuple[float, int]] = field(default_factory=deque)

    def look(self, now: float, length: int) -> None:
        if self.looks and length < self.looks[-1][1]:  # a store that knew more is away: start again
            self.looks.clear()
        if len(self.looks) >= 2 and self.looks[-1][1] == self.looks[-2][1] == length:
            self.looks.pop()  # of a time without growth, first and last look say everything
        self.looks.append((now, length))
        if len(self.looks) > LOOKS_MAX:
            self.looks = deque([each for n, each in enumerate(self.looks) if n % 2 == 0 or n == LOOKS_MAX])

    def behind_s(self, now: float, read: int) -> float | None:
        if not self.looks or read >= self.looks[-1][1]:
            return 0.0
        before: tuple[float, int] | None = None
        for at, length in self.looks:
            if length > read:
                return None if before is None and not self._rate else now - self._when(before, (at, length), read)
            before = (at, length)
        return 0.0

    @property
    def _rate(self) -> float:
        (first_at, first), (last_at, last) = self.looks[0], self.looks[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0

    def _when(self, before: tuple[float, int] | None, after: tuple[float, int], read: int) -> float:
        at, length = after
        if before is None:
            return at - (length - read) / self._rate
        return before[0] + (at - before[0]) * (read - before[1]) / (length - before[1])


class Tracker:
    def __init__(self, query: str) -> None:
        self.numbers = ObservedQuery(query)
        self._paces: dict[str, _Pace] = {}

    def take(self, progress: Mapping[str, Any], now: float) -> ObservedQuery:
        """Take over a ``StreamingQueryProgress``; ``now`` is seconds on any clock that only goes forward."""
        old, operators = self.numbers, progress.get("stateOperators") or ()
        self.numbers = replace(
            old,
            batch=int(progress["batchId"]),
            at=str(progress.get("timestamp", "")),
            batch_rows=int(progress.get("numInputRows") or 0),
            batch_s=_number(progress.get("batchDuration")) / 1000,
            rows_in_s=_number(progress.get("inputRowsPerSecond")),
            rows_processed_s=_number(progress.get("processedRowsPerSecond")),
            rows=old.rows + int(progress.get("numInputRows") or 0),
            batches=old.batches + 1,
            late_rows=old.late_rows + sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in operators),
            state_rows=sum(int(each.get("numRowsTotal") or 0) for each in operators),
            state_bytes=sum(int(each.get("memoryUsedBytes") or 0) for each in operators),
            watermark=_watermark(progress),
            lag=tuple(self._lag(progress.get("sources") or (), now)),
        )
        return self.numbers

    def idle(self) -> ObservedQuery:
        """Note that nothing has come for a while: the rates of the last batch hold no longer."""
        self.numbers = replace(self.numbers, rows_in_s=0.0, rows_processed_s=0.0)
        return self.numbers

    def _lag(self, sources: Iterable[Mapping[str, Any]], now: float) -> Iterable[ObservedLag]:
        found: dict[str, tuple[int, int, int]] = {}  # a topic that is read twice lags as its slower reader
        for source in sources:
            heads, read = _lengths(source.get("latestOffset")), _lengths(source.get("endOffset"))
            sizes = _parts(source.get("latestOffset")).get("", {})
            for topic, parts in heads.items():
                done = read.get(topic, {})
                length = sum(parts.values())
                reached = sum(min(done.get(part, 0), n) for part, n in parts.items())
                here = (length, reached, sizes.get(topic, 0) if reached < length else 0)
                found[topic] = min(found.get(topic, here), here, key=lambda each: each[1])
        for topic, (length, reached, size) in sorted(found.items()):
            pace = self._paces.setdefault(topic, _Pace())
            pace.look(now, length)
            seconds = pace.behind_s(now, reached)
            told_s = None if seconds is None else round(max(0.0, seconds), 3)
            yield ObservedLag(topic, length - reached, told_s, size)


def lag(query: StreamingQuery) -> tuple[ObservedLag, ...]:
    """Return a streaming query's lag behind each of its topics, from the progress that Spark remembers.

    It contacts no store: Spark updates the progress when it plans a batch. Empty before the first batch. Seconds follow
    from the progress that Spark remembers (100 batches), so of a young query with a backlog they may be unknown.
    """
    tracker = Tracker(query.name or str(query.id))
    for each in query.recentProgress:
        facts = json.loads(each.json)
        tracker.take(facts, datetime.fromisoformat(facts["timestamp"]).timestamp())
    return tracker.numbers.lag


def _lengths(offsets: object) -> dict[str, dict[str, int]]:
    return {topic: parts for topic, parts in _parts(offsets).items() if topic}


def _parts(offsets: object) -> dict[str, dict[str, int]]:
    """Parse offsets as the source writes them; empty for anything else, such as null."""
    try:
        given = json.loads(offsets) if isinstance(offsets, str) else offsets
    except ValueError:
        return {}
    if not isinstance(given, dict):
        return {}
    return {
        topic: {part: n for part, n in parts.items() if isinstance(n, int) and n >= 0}
        for topic, parts in given.items()
        if isinstance(parts, dict)
    }


def _watermark(progress: Mapping[str, Any]) -> str:
    text = str((progress.get("eventTime") or {}).get("watermark", ""))
    return "" if text.startswith("1970-01-01T00:00:00") else text  # Spark's word for: none yet


def _number(value: object) -> float:
    found = float(value) if isinstance(value, int | float) else 0.0
    return found if math.isfinite(found) else 0.0
