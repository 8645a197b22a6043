"""Topics of one site kept at another one too: the same records, in the same partitions, at the same offsets.

A store keeps one record at a place, whatever is sent to that place again. So a copy needs no memory of its own: it goes
on where the stores of the target end, also after a kill, from another machine, or beside a second copy. Batches pass as
they are, sealed ones too.

A topic that gets another name gets partitions of other names, always the same ones for the same partitions: the
producers of the source may be there, too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from chappe.api.log.discovery import need_stores
from chappe.api.log.mirror import MirrorProducer, place_of
from chappe.api.pace import SHOW_S
from chappe.data.topic import Filter, check_topic
from chappe.defaults import MIB
from chappe.errors import OffsetOutOfRange, ProtocolError, TimedOut, UnknownTopic, UsageError
from chappe.log.batch import Batch
from chappe.reading.fetch import PATIENCE_S, ReadTask, read_blocks
from chappe.reading.offsets import Key, KnownPartition, Range
from chappe.reading.selection import Selection
from chappe.reading.view import StoresView
from chappe.system import time
from chappe.transports.queries import StoreClient

logger = logging.getLogger(__name__)

WRITERS_MAX: Final = 16  # partitions that are written at once ...
BUFFER_BYTES: Final = 8 * MIB  # ... each with so much on its way
ASK_S: Final = 5.0  # a store of the target that does not answer for so long is left out
READY_S: Final = 10.0
FIND_S: Final = 5.0  # between two looks for a store of the source that is away: it may come back elsewhere
LOOK_S: Final = 0.25  # how often the source is asked for what is new
PAUSE_S: Final = 2.0  # while the source does not answer


@dataclass(slots=True)
class CopyProgress:
    sent: int = 0  # records, in this run
    stored: int = 0  # those of them that enough stores of the target have
    total: int = 0  # those that were found to be copied
    gone: int = 0  # those that the source had let go of, or lost, before they were copied
    seconds: float = 0.0


class TopicCopy:
    """Copies topics from one place to another; a context.

    Args:
        topics: ``name``, or ``prefix*`` for all topics that begin so.
        source: Where the records are: arguments of ``Producer``, ``tower`` and ``listen`` or ``forwarders``, and
            ``security``.
        target: Where they go, likewise.
        to: The name of the topic there; None: the same. For one topic.
        min_acks: Stores of the target that must have each record.

    Raises:
        UsageError: Both places have the same stores, and no other name was given; or several topics for one name.
        TimedOut: No store answers at one of the places.
        UnknownTopic: The source has no such topic.
    """

    def __init__(
        self,
        topics: Iterable[str],
        source: Mapping[str, Any],
        target: Mapping[str, Any],
        *,
        to: str | None = None,
        min_acks: int = 1,
    ) -> None:
        filters = tuple(dict.fromkeys(map(Filter.parse, topics)))
        if to is not None and (len(filters) != 1 or filters[0].prefix):
            raise UsageError("one name for several topics would mix them: name one topic, or leave out --to")
        self._to = None if to is None or check_topic(to) == filters[0].name else to
        self._source, self._target = dict(source), dict(target)
        self._min_acks = min_acks
        there = {each.store_id for each in need_stores(**self._target)}
        self._found = need_stores(**self._source)
        if self._to is None and not there.isdisjoint(each.store_id for each in self._found):
            raise UsageError("the stores of both places are the same: name another topic with --to")
        self._view = StoresView(
            Selection(filters), (), "source", find=lambda _: self._find(), security=self._source.get("security")
        )
        self._waiting: set[Key] = set()  # partitions with anything new
        self._at: dict[Key, int] = {}  # the next offset of each partition that was looked at
        self._holes: dict[Key, list[tuple[int, int]]] = {}  # first and last of what the target lacks before that
        self._writers: dict[str, MirrorProducer] = {}  # by partition; the one that was used last is the last
        self._stored = 0  # by writers that are closed
        self._find_at = -math.inf
        self._began = self._shown_at = time.monotonic()
        self.progress = CopyProgress()
        self.show: Callable[[CopyProgress], None] = lambda progress: None
        try:
            self._look()
            names = {topic for topic, _ in self._view.known}
            if missing := [each.name for each in filters if not each.prefix and each.name not in names]:
                raise UnknownTopic(f"no store of the source has a topic {missing[0]!r}")
        except BaseException:
            self._view.close()
            raise

    def run(self, *, follow: bool = False) -> None:
        """Copy what is there, and wait until it is stored; with ``follow`` go on with what comes, for ever.

        Ctrl-C ends it at any time.

        Raises:
            TimedOut: A store of the source that may have what others lack does not answer, and ``follow`` is not
                set; or no store of the target does at the beginning.
            ChappeError: Of the producers. The same copy can be run again, and goes on.
        """
        while True:
            try:
                self._look()
                self._copy_all()
                pause_s = LOOK_S
            except TimedOut as error:
                if not follow:
                    raise
                logger.warning("%s; still trying", error)
                pause_s = PAUSE_S
            if not follow:
                break
            self._tell()
            time.sleep(pause_s)
        for partition in list(self._writers):
            self._close(partition)
        self._tell()

    def abandon(self) -> None:
        """Leave in the middle; nothing is lost by it."""
        for each in self._writers.values():
            with suppress(TimedOut):
                each.close(0.0)
        self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def _find(self) -> list[str]:
        found, self._found = self._found or need_stores(**self._source), []
        return [each.endpoint for each in found]

    # -- what there is to copy --------------------------------------------------------------------------------

    def _look(self) -> None:
        if not self._view.whole and time.monotonic() >= self._find_at:
            self._find_at = time.monotonic() + FIND_S
            self._view.meet(self._find())
        self._waiting |= self._view.refresh()

    def _copy_all(self) -> None:
        known = self._view.known
        waiting = sorted(key for key in self._waiting if key in known)
        self._begin([key for key in waiting if key not in self._at])
        self.progress.total = self.progress.sent + sum(max(0, known[key].next - self._at[key]) for key in waiting)
        for key in waiting:
            self._copy(key, known[key])
            self._waiting.discard(key)
        self.progress.total = self.progress.sent

    def _begin(self, keys: list[Key]) -> None:
        """Find out where the stores of the target end. Raises TimedOut if none answers."""
        places = {key: place_of(key, self._to) for key in keys}
        ends: dict[Key, list[int]] = {}
        holes: dict[Key, set[tuple[int, int]]] = {}
        topics = sorted({topic for topic, _ in places.values()})
        answered = not topics
        for store in need_stores(**self._target) if topics else ():
            try:
                with closing(StoreClient(store.endpoint, ASK_S, self._target.get("security"))) as client:
                    for topic in topics:
                        infos, _ = client.heads(topic)
                        for info in infos:
                            ends.setdefault((info.topic, info.partition), []).append(info.next)
                        for key, lacking in client.holes.items():
                            holes.setdefault(key, set()).update(lacking)
                answered = True
            except (TimedOut, ProtocolError) as error:
                logger.warning("%s; going on without it", error)
        if not answered:
            raise TimedOut("no store of the target says what it has")
        for key, place in places.items():
            there = sorted(ends.get(place, ()), reverse=True)
            self._at[key] = there[self._min_acks - 1] if len(there) >= self._min_acks else 0
            if lacking := [hole for hole in sorted(holes.get(place, ())) if hole[0] < self._at[key]]:
                self._holes[key] = lacking

    def _copy(self, key: Key, have: KnownPartition) -> None:
        self._fill(key, have)
        at = self._at[key]
        if at < have.first:  # retention was faster, unless a store that is away has it
            self._need_all(f"partition {key[1]} of topic {key[0]!r} from offset {at} on")
            self.progress.gone += have.first - at if at else 0
            at = self._at[key] = have.first
        if at >= have.next:
            return
        for first, batch in self._batches(Range(*key, at, have.next, have.holders, have.record_bytes)):
            self.progress.gone += first - self._at[key]
            self._send(key, Batch.parse(batch.slice(first, min(batch.next, have.next)), check=False))
        if self._at[key] < have.next:
            self.progress.gone += have.next - self._at[key]
            self._at[key] = have.next

    def _fill(self, key: Key, have: KnownPartition) -> None:
        """Copy what a copy that was killed has left open, or what damage has made so."""
        for first, last in self._holes.get(key, ()):
            low, high = max(first, have.first), min(last + 1, have.next)
            for start, batch in self._batches(Range(*key, low, high, have.holders)) if low < high else ():
                self._send(key, Batch.parse(batch.slice(start, min(batch.next, high)), check=False))
        self._holes.pop(key, None)

    def _batches(self, wanted: Range) -> Iterator[tuple[int, Batch]]:
        """Yield batches of the source, with the first offset of each that is wanted."""
        source = self._source
        task = ReadTask(
            (wanted,),
            towers=None if source.get("forwarders") else source.get("tower"),
            fail_on_data_loss=not self._view.whole,
            patience_s=PATIENCE_S,
            security=source.get("security"),
            raw=True,
        )
        try:
            for start, _, batches in read_blocks(task):
                for each in batches:
                    yield max(start, each.base), each
        except OffsetOutOfRange:
            self._need_all(str(wanted))
            raise

    def _need_all(self, wanted: str) -> None:
        if not self._view.whole:
            away = ", ".join(self._view.away) or "a store that was there"
            raise TimedOut(f"{wanted} may be at {away}, which does not answer: start it")

    # -- writing ------------------------------------------------------------------------------------------------

    def _send(self, key: Key, batch: Batch) -> None:
        topic, partition = place_of(key, self._to)
        if batch.sealed is not None and (topic, partition) != key:
            raise UsageError(f"topic {key[0]!r} is sealed for a group: it can only be copied under its own name")
        writer = self._writers.pop(partition, None)
        if writer is not None and writer.next_in(topic) not in (None, batch.base):
            self._writers[partition] = writer
            self._close(partition)  # behind a gap the partition begins anew
            writer = None
        while writer is None and len(self._writers) >= WRITERS_MAX:
            self._close(next(iter(self._writers)))
        if writer is None:
            writer = MirrorProducer(partition, min_acks=self._min_acks, buffer_bytes=BUFFER_BYTES, **self._target)
            writer.wait_ready(READY_S)
        self._writers[partition] = writer
        writer.put(topic, batch)
        self._at[key] = max(batch.next, self._at[key])
        self.progress.sent += batch.count
        if time.monotonic() >= self._shown_at + SHOW_S:
            self._tell()

    def _close(self, partition: str) -> None:
        writer = self._writers[partition]
        while True:
            try:
                writer.flush(SHOW_S)
                break
            except TimedOut:
                self._tell()
        self._stored += writer.put_and_stored
        del self._writers[partition]
        writer.close()

    def _tell(self) -> None:
        self._shown_at = now = time.monotonic()
        self.progress.stored = self._stored + sum(each.put_and_stored for each in self._writers.values())
        self.progress.seconds = now - self._began
        self.show(self.progress)
