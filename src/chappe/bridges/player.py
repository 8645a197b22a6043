"""From a topic of the log back into the mesh.

Records of several partitions are published in the order of their times. A record counts as recorded when it was, or
when the one before it in its partition was, whichever is later: each partition keeps its order even if a clock went
back. A partition is opened when its first record is due, so those that are read at once are those whose times overlap:
a few MiB of memory for each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Final, Literal, TypeAlias

from chappe.api.mesh.arguments import Encoded
from chappe.api.mesh.endpoint import Endpoint
from chappe.api.pace import SHOW_S, Pace
from chappe.api.times import as_micros
from chappe.bridges.form import Played, unpack
from chappe.data.topic import decode_topic
from chappe.errors import UsageError
from chappe.reading.bounds import Bound, Moment, TopicRead, bounded
from chappe.reading.fetch import read_blocks
from chappe.reading.offsets import EARLIEST, LATEST, Range
from chappe.reading.selection import Selection
from chappe.security import LogSecurity
from chappe.system import settings, time

Start: TypeAlias = Literal["earliest"] | int | datetime
PIECE: Final = 1024  # messages published at once
AT_FIRST: Final = -(1 << 63)
AT_LAST: Final = (1 << 63) - 1

_name = lru_cache(4096)(decode_topic)


@dataclass(slots=True)
class PlayerProgress:
    sent: int = 0  # messages published
    skipped: int = 0  # records that were not recorded from the mesh
    total: int = 0  # records there are to look at
    at_us: int = 0  # the time of the last message, in microseconds since 1970
    seconds: float = 0.0  # since it began
    left_s: float | None = None  # until everything is sent, about; None before that can be told


class Player:
    """Publishes again what a recorder recorded, to the topics that it came from.

    What stores have when it is made is played; what comes later is not. The mesh confirms nothing: a subscriber that is
    there gets each message once, and one that comes later gets what is left. Peers that take less slow it down if the
    endpoint's policy is ``block``, as it is by default.

    Args:
        endpoint: Of the mesh; peers are its user's affair.
        topic: Of the log.
        tower: ``HOST[:PORT]`` of the towers that know the stores, separated by commas; by default what the settings
            say, as of ``Consumer``.
        start: ``"earliest"``; an offset, in each partition; or a datetime with a time zone.
        end: None for everything, or a datetime: messages from then on are not played.
        speed: 1.0 is the original speed, 10.0 ten times that; None: as fast as the peers take it.

    Raises:
        UnknownTopic: No store has the topic.
        TimedOut: No store answers.
        UsageError: An argument is wrong.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        topic: str,
        *,
        tower: str | None = None,
        start: Start = EARLIEST,
        end: datetime | None = None,
        speed: float | None = 1.0,
        security: LogSecurity = None,
    ) -> None:
        if speed is not None and not 0 < speed < float("inf"):
            raise UsageError(f"a speed is a number above 0, or None for as fast as possible, not {speed!r}")
        self._endpoint = endpoint
        self._pace = Pace(speed)
        self._wanted = TopicRead(
            Selection.of_topics([topic]),
            starting=_bound(start),
            ending=LATEST if end is None else Moment(as_micros(end)),
            towers=settings.tower(tower),
            fail_on_data_loss=False,
            security=security,
        )
        self._waiting = self._plan(start if isinstance(start, int) else None)
        last = max([at for _, at, _ in self._waiting], default=0)
        self._last = last if end is None else min(last, as_micros(end))
        self._began = self._shown_at = time.monotonic()
        self.progress = PlayerProgress(total=sum(len(each) for _, _, each in self._waiting))
        self.show: Callable[[PlayerProgress], None] = lambda progress: None

    def run(self) -> PlayerProgress:
        """Publish everything, and wait until it is on its way to the peers; Ctrl-C ends it at any time.

        Raises:
            ChappeError: Of the stores or the endpoint.
        """
        self._began = time.monotonic()
        try:
            for played in self._in_order():
                self._send(played)
            while self._endpoint.buffered:
                time.sleep(SHOW_S / 10)
                self._look()
        finally:
            self._look(now=True)
        return self.progress

    # -- what is to be played ---------------------------------------------------------------------------

    def _plan(self, offset: int | None) -> list[tuple[int, int, Range]]:
        """Return the ranges, each after its earliest and latest time; the latest ranges first."""
        with closing(self._wanted.view()) as view:
            found = bounded(self._wanted, view)
            times = {key: (each.timestamp_min, each.timestamp_max) for key, each in view.known.items()}
        if offset is not None:
            found = [each.part(max(each.start, offset), each.end) for each in found if each.end > offset]
        planned = [(*times[each.topic, each.partition], each) for each in found]
        return sorted(planned, key=lambda each: (each[0], each[2].partition), reverse=True)

    def _in_order(self) -> Iterator[Played]:
        streams: list[_PartitionReader] = []
        while self._waiting or streams:
            opens_at = self._waiting[-1][0] if self._waiting else AT_LAST
            if not streams or opens_at <= min(each.next_time for each in streams):
                stream = _PartitionReader(self._blocks(self._waiting.pop()[2]))
                if stream.fill():
                    streams.append(stream)
                continue
            # what is complete: up to the first end of what was read, and before anything that was not opened
            until = min(opens_at - 1, min(each.last_time for each in streams))
            yield _merged([each.take(until) for each in streams])
            streams = [each for each in streams if each.fill()]

    def _blocks(self, wanted: Range) -> Iterator[Played]:
        latest = AT_FIRST
        for start, end, batches in read_blocks(self._wanted.task((wanted,))):
            for batch in batches:
                played, others = unpack(batch, max(start, batch.base), min(end, batch.next), latest)
                self.progress.skipped += others
                if played.times:
                    latest = played.times[-1]
                    yield played

    # -- publishing ---------------------------------------------------------------------------------------

    def _send(self, played: Played) -> None:
        times, messages = played
        at = 0
        while at < len(times):
            due = self._pace.due(times[at])
            end = len(times) if due is None else bisect_right(times, due)
            if end <= at:
                self._pace.wait(times[at], self._look)
                continue
            end = min(end, at + PIECE)
            self._endpoint.publish_batch([(_name(topic), Encoded(raw)) for topic, raw in messages[at:end]])
            self.progress.sent += end - at
            self.progress.at_us = times[end - 1]
            at = end
            self._look()

    def _look(self, now: bool = False) -> None:
        moment = time.monotonic()
        if not now and moment - self._shown_at < SHOW_S:
            return
        self._shown_at = moment
        progress = self.progress
        progress.seconds = moment - self._began
        done = progress.sent + progress.skipped
        if self._pace.speed is not None:
            progress.left_s = self._pace.left_s(self._last)
        elif done:
            progress.left_s = (progress.total - done) * progress.seconds / done
        self.show(progress)


class _PartitionReader:
    def __init__(self, blocks: Iterator[Played]) -> None:
        self._blocks = blocks
        self._block = Played([], [])
        self._at = 0

    @property
    def next_time(self) -> int:
        return self._block.times[self._at]

    @property
    def last_time(self) -> int:
        return self._block.times[-1]

    def fill(self) -> bool:
        """Read on if nothing is left; False at the end."""
        if self._at >= len(self._block.times):
            self._block, self._at = next(self._blocks, Played([], [])), 0
        return bool(self._block.times)

    def take(self, until: int) -> Played:
        times, messages = self._block
        start, self._at = self._at, bisect_right(times, until, self._at)
        return Played(times[start : self._at], messages[start : self._at])


def _merged(parts: list[Played]) -> Played:
    filled = [each for each in parts if each.times]
    if len(filled) == 1:
        return filled[0]
    rows = sorted((row for each in filled for row in zip(*each, strict=True)), key=itemgetter(0))
    return Played([at for at, _ in rows], [message for _, message in rows])


def _bound(start: Start) -> Bound:
    if isinstance(start, datetime):
        return Moment(as_micros(start))
    if start == EARLIEST or (isinstance(start, int) and not isinstance(start, bool) and start >= 0):
        return EARLIEST
    raise UsageError(f"start is 'earliest', an offset or a datetime, not {start!r}")
