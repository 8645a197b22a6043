"""``SegmentStorage``: the log storage port on disk."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from chappe.defaults import DISK_RESERVE_BYTES, SEGMENT_BYTES, SEGMENT_ENTRIES
from chappe.errors import Damaged, StorageError, StorageFull
from chappe.log.events import ScrubEnded
from chappe.log.storage import AppendRecords, Hole, PartitionInfo, Retention, Scrubbed, StorageRead
from chappe.storage.segments.appender import (
    Appender,
    Pins,
    Policies,
    choose,
    load_pins,
    passed,
    pin_resets,
    remove_first,
)
from chappe.storage.segments.aside import Aside
from chappe.storage.segments.blocks import SEGMENT_HEADER
from chappe.storage.segments.directory import ASIDE, MANIFEST, StoreDirectory, TopicFolder, segment_numbers, topic_of
from chappe.storage.segments.files import FileOps, descriptors, file_ops, logged, storage_error, trying
from chappe.storage.segments.index import encode_index
from chappe.storage.segments.index_files import load_index, save_index
from chappe.storage.segments.manifest import KnownTopic, Mark, StoreManifest
from chappe.storage.segments.opening import Folders, TopicOpener, owned
from chappe.storage.segments.reading import SegmentReader
from chappe.storage.segments.scrub import Scrubber, ScrubStep, ScrubTarget
from chappe.storage.segments.slots import Slot
from chappe.storage.segments.table import BlockTable
from chappe.storage.segments.topics import TopicIndex, UnreadBlock
from chappe.system import time
from chappe.system.forking import own

logger: Final = logging.getLogger(__name__)
APPENDERS_OPEN_MAX: Final = 128  # segments open for writing


@dataclass(slots=True)
class _CommittedWrite:
    sealed: list[tuple[str, int]] = field(default_factory=list)
    rows: list[tuple[str, BlockTable, int, int]] = field(default_factory=list)
    removed: list[tuple[str, set[int], Pins]] = field(default_factory=list)


class SegmentStorage:
    """Batches of all partitions, in segment files below ``directory``; for its methods see ``LogStorage``.

    ``write`` and ``retain`` may run on one other thread, everything else on the thread that opened it; the
    results of ``write`` and ``retain`` must be given to ``publish`` and ``forget`` in the order of the calls.

    Args:
        segment_bytes: A segment is sealed at this size ...
        segment_entries: ... or at this many blocks.

    Raises:
        StorageLocked: Somebody else uses the directory.
        StorageFormat: It was written by a newer chappe, or holds something else.
        StorageError: It cannot be read or written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        segment_entries: int = SEGMENT_ENTRIES,
        ops: FileOps | None = None,
    ) -> None:
        own(self)
        self._ops = ops or file_ops()
        self._segment_bytes = segment_bytes
        self._segment_entries = segment_entries
        self._directory = StoreDirectory(os.fspath(directory), self._ops)
        self.store_id = self._directory.store_id
        # read side
        self._reader = SegmentReader(self._ops, self._touch)
        self._index: dict[str, TopicIndex] = {}
        self._sorted: list[str] = []
        self.version = 0  # of the newest change
        # write side
        self._appenders: dict[str, Appender] = {}
        self._opened: OrderedDict[str, Appender] = OrderedDict()
        self._open_max = descriptors(APPENDERS_OPEN_MAX)
        self._manifest = StoreManifest(self._ops, os.path.join(self._directory.path, MANIFEST), self.store_id)
        self._sealed: list[tuple[str, int]] = []  # not yet told to the read side, as are ...
        self._removed: list[tuple[str, set[int], Pins]] = []
        # from the read side to the write side
        self._resets: deque[tuple[str, str, int]] = deque()
        # on a thread of its own
        path, topics = self._directory.path, lambda: sorted(self._appenders)
        self._scrubber = Scrubber(self._ops, path, topics, self._targets, self._unread)
        with trying(f"open the store in {path}", self._directory.close):
            self._load()

    # -- opening and closing ---------------------------------------------------------------------

    def _load(self) -> None:
        newest_us = time.time_ns() // 1000
        aside = Aside(self._ops, os.path.join(self._directory.path, ASIDE))
        known = self._manifest.load()
        if known is None and os.listdir(self._directory.topics):
            logger.error(
                "%s is missing or damaged: what the newest segments of topics had is believed as it is found",
                self._manifest.path,
            )
        changed = known is None or not self._manifest.whole
        for folder in Folders(self._ops, self._directory, known).find():
            of_topic = None if known is None else known.pop(folder.topic, None)
            opener = TopicOpener(folder, aside, of_topic, self._segment_bytes, self._segment_entries)
            index = self._add_topic(folder)
            for segment in opener.segments():
                if isinstance(segment, BlockTable):
                    index.load_table(segment)
                else:
                    index.load_index(segment, missing=segment.summary.number in opener.missing)
            index.finish_loading(load_pins(folder))
            self._appenders[folder.topic] = opener.appender
            newest_us = max(newest_us, opener.newest_us)
            changed = changed or opener.changed
        aside.prune()
        if changed:
            self._renew_manifest()
        # Versions only grow from one start to the next, whatever the clock does: a reader remembers one.
        self.version = self._directory.begin_versions(newest_us)
        for topic in self._sorted:
            self._touch(self._index[topic], list(self._index[topic].slots.values()))
            for hole in self._holes_of(self._index[topic]):
                logger.error(
                    "topic %r, partition %r: offsets %d to %d are damaged", topic, hole.partition, hole.first, hole.last
                )

    def _renew_manifest(self) -> None:
        """Write the manifest anew from the segments; the next write tries again if the disk refuses."""
        with logged("cannot write %s", self._manifest.path):
            self._manifest.renew(self._known())

    def _known(self) -> Iterator[tuple[str, KnownTopic]]:
        for topic, appender in self._appenders.items():
            table = appender.table
            yield topic, KnownTopic(appender.oldest, Mark(table.number, table.length, table.spans()))

    def close(self) -> None:
        """Write the files that make the next start quick, and release the directory."""
        for topic, index in self._index.items():
            appender = self._appenders.get(topic)
            if appender is None:
                continue
            appender.close()
            for number, positions in index.damaged.items():
                try:
                    table = load_index(index.folder, number).table()
                    table.damaged = {row for row, position in enumerate(table.position) if position in positions}
                    save_index(index.folder, number, encode_index(table), durable=False)
                except (OSError, Damaged) as error:
                    logger.warning("topic %r: cannot note damage in segment %d: %s", topic, number, error)
        with logged("cannot save where partitions start"):
            pin_resets(self._appenders, self._resets)
        self._manifest.sync()
        self._manifest.close()
        self._directory.save_version(self.version)
        if self._scrubber.under_way:
            self._scrubber.save()
        self._reader.handles.close()
        self._directory.close()

    def forked(self) -> None:
        """Forget the files: in a child's copy the system would keep files that the parent removes."""
        for appender in self._appenders.values():
            appender.release()
        self._manifest.close()
        self._reader.handles.close()

    # -- the writing thread ----------------------------------------------------------------------

    def write(self, appends: Sequence[AppendRecords]) -> object:
        by_topic: dict[str, list[AppendRecords]] = {}
        total = 0
        for each in appends:
            by_topic.setdefault(each.topic, []).append(each)
            total += len(each.body)
        touched: list[Appender] = []
        synced = 0
        try:
            if self._ops.free_bytes(self._directory.path) < total + DISK_RESERVE_BYTES:
                raise StorageFull(
                    f"the disk of {self._directory.path} has less than {DISK_RESERVE_BYTES >> 20} MiB left; "
                    "free some space and the write is accepted again"
                )
            for topic, part in by_topic.items():
                appender = self._appender(topic)
                touched.append(appender)
                appender.write(part)
                if len(touched) - synced >= self._open_max:
                    synced = self._sync(touched, synced)
            self._sync(touched, synced)
            if not self._manifest.whole:
                self._manifest.renew(self._known())
            self._manifest.note([(each.folder.topic, -1, each.mark()) for each in touched])
        except BaseException as error:
            for appender in touched:
                before = appender.table.number
                appender.revert()
                appender.release()
                if appender.table.number != before:
                    self._sealed.append((appender.folder.topic, before))
            if isinstance(error, OSError):
                raise storage_error(error, f"write to the store in {self._directory.path}") from error
            raise
        written = _CommittedWrite(sealed=self._sealed)
        self._sealed = []
        for appender in touched:
            table = appender.table
            written.rows.append((appender.folder.topic, table, *appender.accept()))
        return written

    def _sync(self, touched: list[Appender], start: int) -> int:
        """Sync those from ``start`` on, and close the files that were used longest ago; returns how many there are."""
        for appender in touched[start:]:
            appender.sync()
        while len(self._opened) > self._open_max:
            self._opened.popitem(last=False)[1].release()
        return len(touched)

    def _appender(self, topic: str) -> Appender:
        appender = self._appenders.get(topic)
        if appender is None:
            appender = self._appenders[topic] = self._create(topic)
        if appender.is_over(self._segment_bytes, self._segment_entries):
            self._sealed.append((topic, appender.seal()))
        self._opened[topic] = appender
        self._opened.move_to_end(topic)
        return appender

    def _create(self, topic: str) -> Appender:
        folder = self._directory.folder(topic)
        if os.path.isdir(folder.path) and owned(folder) is False:
            away = self._directory.put_away(folder.path)
            logger.error("%s holds nothing of topic %r and this store; it is moved to %s", folder.path, topic, away)
        if not os.path.isdir(folder.path) or topic_of(self._ops, folder.path) != topic:
            if not os.path.isdir(folder.path):
                self._ops.mkdir(folder.path)
            folder.keep_name()
            self._ops.sync_directory(self._directory.topics)
        elif os.path.basename(folder.path) not in os.listdir(self._directory.topics):
            raise StorageError(f"topic {topic!r} differs only in case from another one, which this disk cannot hold")
        number = max(set().union(*segment_numbers(folder.path)), default=0) + 1  # one without its name may have some
        return Appender(folder, BlockTable(number), [], indexed=False)

    def retain(self, policies: Sequence[tuple[str, Retention]], now_us: int) -> object:
        with trying(f"apply retention in {self._directory.path}"):
            pinned = pin_resets(self._appenders, self._resets)
            chosen = Policies(policies)
            for topic, appender in self._appenders.items():
                remove = choose(appender, chosen.of(topic), now_us)
                if remove is None:
                    self._sealed.append((topic, appender.seal()))
                    remove = choose(appender, chosen.of(topic), now_us)
                if topic in pinned:
                    past = passed(appender, pinned[topic])
                    if past is None:
                        self._sealed.append((topic, appender.seal()))
                        past = passed(appender, pinned[topic])
                    remove = max(remove or [], past or [], key=len)  # both begin with the oldest
                if remove:
                    firsts = remove_first(appender, remove)
                    self._removed.append((topic, {each.number for each in remove}, firsts))
            self._tend_manifest()
        retained = _CommittedWrite(sealed=self._sealed, removed=self._removed)
        self._sealed, self._removed = [], []
        return retained

    def _tend_manifest(self) -> None:
        """Note removals, and make notes durable; raises OSError if a removal cannot be noted."""
        if self._removed and self._manifest.whole:
            marks: list[tuple[str, int, Mark]] = []
            for topic, _, _ in self._removed:
                appender = self._appenders[topic]
                marks.append((topic, appender.oldest, Mark(appender.table.number, appender.table.length, {})))
            self._manifest.note(marks)
        self._manifest.sync()
        if self._manifest.large or not self._manifest.whole:
            self._renew_manifest()

    # -- the reading thread: changes -------------------------------------------------------------

    def publish(self, written: object) -> None:
        assert isinstance(written, _CommittedWrite)
        for topic, number in written.sealed:
            self._topic(topic).seal(number)
        for topic, table, start, end in written.rows:
            index = self._topic(topic)
            self._touch(index, index.publish(table, start, end))

    def forget(self, retained: object) -> None:
        assert isinstance(retained, _CommittedWrite)
        for topic, number in retained.sealed:
            self._topic(topic).seal(number)
        for topic, numbers, firsts in retained.removed:
            index = self._topic(topic)
            self._touch(index, index.remove(numbers, firsts))
            for number in sorted(numbers):
                for path in (index.folder.copy, index.folder.index, index.folder.segment):
                    self._ops.discard(path(number))

    def reset(self, topic: str, partition: str, first: int) -> None:
        """Start a partition at ``first``; never lowers it. Durable after the next ``retain`` or ``close``."""
        index = self._topic(topic)
        slot = index.reset(partition, first)
        self._touch(index, [slot])
        self._resets.append((topic, partition, slot.first))

    def _topic(self, topic: str) -> TopicIndex:
        return self._index.get(topic) or self._add_topic(self._directory.folder(topic))

    def _add_topic(self, folder: TopicFolder) -> TopicIndex:
        index = self._index[folder.topic] = TopicIndex(folder, self._reader.handles)
        insort(self._sorted, folder.topic)
        return index

    def _touch(self, index: TopicIndex, slots: list[Slot]) -> None:
        for slot in slots:
            self.version += 1
            index.changes.touch(slot, self.version)

    # -- a thread of its own: scrubbing ----------------------------------------------------------

    def scrub(self) -> Scrubbed:
        piece = self._scrubber.read()
        return Scrubbed(piece.bytes, piece.idle, piece.ended or bool(piece.suspicions or piece.readable), piece)

    def _targets(self, topic: str) -> list[ScrubTarget]:
        appender = self._appenders[topic]
        table = appender.table
        sealed = [(each.number, each.length, True) for each in list(appender.sealed)]
        known = [each for each in (*sealed, (table.number, table.length, False)) if each[1] > len(SEGMENT_HEADER)]
        return [ScrubTarget(appender.folder, *each) for each in known]

    def _unread(self) -> list[UnreadBlock]:
        some = [each for index in list(self._index.values()) for each in list(index.unread.values())]
        return list(itertools.chain.from_iterable(some))

    def scrubbed(self, found: Scrubbed) -> ScrubEnded | None:
        piece = found.detail
        assert isinstance(piece, ScrubStep)
        for unread in piece.readable:
            index = self._index[unread.topic]
            index.take_back(unread)
            self._touch(index, [unread.slot])
        for suspicion in piece.suspicions:
            self._reader.suspect(self._index[suspicion.topic], suspicion)
        self._reader.examine()
        return ScrubEnded(piece.total, piece.took_s) if piece.ended else None

    @property
    def suspicious(self) -> bool:
        return self._reader.suspicious

    @property
    def scrubbed_us(self) -> int:
        return self._scrubber.ended_us

    # -- the reading thread: questions -----------------------------------------------------------

    def topics(self) -> list[str]:
        return list(self._sorted)

    def partition(self, topic: str, partition: str) -> PartitionInfo | None:
        slot = self._slot(topic, partition)
        return None if slot is None else slot.info()

    def changed(self, topic_prefix: str, since: int, limit: int) -> list[PartitionInfo]:
        logs = [index.changes.after(since) for index in self._matching(topic_prefix) if index.changes.newest > since]
        merged = logs[0] if len(logs) == 1 else heapq.merge(*logs, key=lambda change: change[0])
        return [slot.info() for _, slot in itertools.islice(merged, limit)]

    def holes(self, topic: str | None = None) -> list[Hole]:
        topics = self._sorted if topic is None else [topic] if topic in self._index else []
        return [hole for each in topics for hole in self._holes_of(self._index[each])]

    def offset_at(self, topic: str, partition: str, timestamp: int) -> int:
        slot = self._slot(topic, partition)
        if slot is None:
            return 0
        index = self._index[topic]
        for extent in slot.all():
            if extent.timestamp_max >= timestamp and extent.next > slot.first:
                first = max(extent.first, slot.first)
                try:
                    found = index.blocks(extent.segment).at_time(partition, first, extent.next, timestamp)
                except (OSError, Damaged):
                    found = first  # reading will tell what is wrong
                if found is not None:
                    return found
        return slot.next

    def time_of(self, topic: str, partition: str, offset: int) -> int | None:
        """The largest timestamp of the block that has ``offset``, microseconds since 1970; None if none has it."""
        slot = self._slot(topic, partition)
        extent = None if slot is None else slot.find(offset)
        try:
            return None if extent is None else self._index[topic].blocks(extent.segment).time_of(partition, offset)
        except (OSError, Damaged):  # reading will tell what is wrong
            return None

    def kept(self, topic: str) -> tuple[int, int, int, int]:
        """Partitions, records, bytes and newest timestamp of a topic; zeros if it is not there."""
        index = self._index.get(topic)
        infos = [] if index is None else [slot.info() for slot in index.slots.values()]
        return (
            len(infos),
            sum(each.next - each.first for each in infos),
            sum(each.bytes for each in infos),
            max((each.timestamp_max for each in infos), default=0),
        )

    def read(self, topic: str, partition: str, offset: int, bytes_max: int) -> StorageRead:
        slot = self._slot(topic, partition)
        if slot is None or not slot.first <= offset < slot.next:
            return StorageRead(())
        batches: list[bytes] = []
        size, at = 0, offset
        for body, next_ in self._reader.bodies(slot, self._index[topic], offset, bytes_max):
            if batches and size + len(body) > bytes_max:
                break
            batches.append(body)
            size += len(body)
            at = next_
            if size >= bytes_max:
                break
        index = self._index[topic]
        if batches:
            return StorageRead(tuple(batches), ahead=self._reader.end_of(slot, index, at, bytes_max))
        hole = next((hole for hole in index.holes(slot) if hole.first <= at <= hole.last), None)
        return StorageRead((), hole)

    def _slot(self, topic: str, partition: str) -> Slot | None:
        index = self._index.get(topic)
        return None if index is None else index.slots.get(partition)

    def _matching(self, prefix: str) -> Iterator[TopicIndex]:
        for at in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            topic = self._sorted[at]
            if not topic.startswith(prefix):
                return
            yield self._index[topic]

    def _holes_of(self, index: TopicIndex) -> list[Hole]:
        return [hole for slot in list(index.holed.values()) for hole in index.holes(slot)]
