"""Opening a store: which folder holds which topic, and what each has, mended as far as it can be.

The manifest and the copies of the indexes say which topics there should be. A folder that is gone comes back empty, so
that what it had is known to be missing. A folder that holds another topic was renamed, or changed names with others: it
is moved to the folder ``left-alone``, and from there to its own name, unless that one is taken. A folder in which
nothing belongs to this store stays there, and nothing is written into it.

Segments with a valid index are believed without a look inside. Others are scanned (``blocks``), after they were
synced: what a killed process has written may be in memory only. What the indexes, their copies and the manifest say was
once there and is not is a hole. A segment with damage is not written to any more. Nothing is thrown away: what is no
part of the log goes to the folder ``aside``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Final

from chappe.storage.segments.appender import Appender
from chappe.storage.segments.aside import Aside
from chappe.storage.segments.blocks import SEGMENT_HEADER, owns, scan_segment
from chappe.storage.segments.directory import (
    COPIES,
    SEGMENT,
    StoreDirectory,
    TopicFolder,
    folder_name,
    numbers_of,
    segment_numbers,
    topic_of,
)
from chappe.storage.segments.files import FileOps
from chappe.storage.segments.index import Index, Summary, encode_index
from chappe.storage.segments.index_files import find_index, forget_index, load_index, try_to_save_index
from chappe.storage.segments.manifest import KnownTopic, Mark
from chappe.storage.segments.table import BlockTable, LostOffsets

logger: Final = logging.getLogger(__name__)


class Folders:
    """The folders of a store's topics; ``known`` has the manifest's entry of each, None if there is no manifest."""

    def __init__(self, ops: FileOps, directory: StoreDirectory, known: Mapping[str, KnownTopic] | None) -> None:
        self._ops = ops
        self._directory = directory
        self._known = known
        self._found: dict[str, TopicFolder] = {}
        self._strange: dict[str, TopicFolder] = {}  # nothing in them is of their topic

    def find(self) -> list[TopicFolder]:
        """The folder of each topic, sorted by topic. Raises OSError: A folder cannot be read."""
        expected = self._expected()
        self._look(expected)
        for folder in self._strange.values():
            self._place(folder, expected)
        self._give_names_back(expected)
        for topic in expected:
            if topic not in self._found:
                self._bring_back(topic)
        return [folder for _, folder in sorted(self._found.items())]

    def _look(self, expected: list[str]) -> None:
        """Sort the folders by whether they hold a block of this store."""
        names = {folder_name(topic): topic for topic in expected}
        for name in sorted(os.listdir(self._directory.topics)):
            path = os.path.join(self._directory.topics, name)
            topic = topic_of(self._ops, path) if os.path.isdir(path) else None
            if topic is None and name in names:
                topic = names[name]
                logger.error("%s had lost the name of its topic, which is %r", path, topic)
                self._directory.folder(topic, path).keep_name()
            if topic is None:
                logger.error("%s is not the folder of a topic, or lost its name; it is left alone", path)
                continue
            folder = self._directory.folder(topic, path)
            (self._strange if owned(folder) is False else self._found)[topic] = folder

    def _expected(self) -> list[str]:
        expected = {
            topic
            for topic, (oldest, mark) in (self._known or {}).items()
            if mark.length > len(SEGMENT_HEADER) or oldest < mark.segment
        }
        copies = os.path.join(self._directory.path, COPIES)
        for name in os.listdir(copies) if os.path.isdir(copies) else ():
            topic = topic_of(self._ops, os.path.join(copies, name))
            if topic is not None and segment_numbers(os.path.join(copies, name))[1]:
                expected.add(topic)
        return sorted(expected)

    def _place(self, folder: TopicFolder, expected: list[str]) -> None:
        """Decide on a folder without a block of its topic."""
        path, topic = folder.path, folder.topic
        segments, indexes = segment_numbers(path)
        unfinished = self._known is not None and len(segments) == 1 and not indexes
        for other in sorted({*expected, *self._strange}):
            if other != topic and owned(self._directory.folder(other, path)):
                logger.error("%s holds topic %r, not %r", path, other, topic)
                self._put_away(path)
                return
        if topic in expected or unfinished:  # all of it is damaged, or its first write never ended
            self._found[topic] = folder
        else:
            logger.error("%s holds nothing of topic %r and this store", path, topic)
            self._put_away(path)

    def _put_away(self, path: str) -> None:
        logger.error("%s is moved to %s, and left alone there", path, self._directory.put_away(path))

    def _give_names_back(self, expected: list[str]) -> None:
        """Move folders from ``left-alone`` to their topics' names, also after a kill halfway."""
        paths = self._directory.left_alone()
        named = (topic_of(self._ops, path) for path in paths)
        for topic in sorted({*expected, *self._strange, *(each for each in named if each is not None)}):
            right = self._directory.folder(topic)
            if topic in self._found or os.path.exists(right.path):
                continue
            found = next((path for path in paths if owned(self._directory.folder(topic, path))), None)
            if found is not None:
                self._ops.replace(found, right.path)
                self._ops.sync_directory(self._directory.topics)
                right.keep_name()
                paths.remove(found)
                self._found[topic] = right
                logger.error("the folder of topic %r had been renamed; a topic has one name: %s", topic, right.path)

    def _bring_back(self, topic: str) -> None:
        folder = self._directory.folder(topic)
        if os.path.exists(folder.path):
            logger.error("%s is in the way of topic %r", folder.path, topic)
            self._put_away(folder.path)
        logger.error("the folder of topic %r is gone: %s", topic, folder.path)
        self._ops.mkdir(folder.path)
        folder.keep_name()
        self._ops.sync_directory(self._directory.topics)
        self._found[topic] = folder


def owned(folder: TopicFolder) -> bool | None:
    """Look for a block of the folder's topic; None if the folder has no blocks."""
    answer: bool | None = None
    for number in sorted(segment_numbers(folder.path)[0], reverse=True):
        if os.stat(folder.segment(number)).st_size > len(SEGMENT_HEADER):
            answer = owns(folder, number)
        if answer:
            break
    return answer


class TopicOpener:
    """Opens a topic's folder; ``known`` is the manifest's entry, None if there is none.

    ``segments()`` gives the content of each segment, oldest first; when it is exhausted, ``appender`` goes on with the
    topic. So no more than one index is in memory at a time.
    """

    def __init__(
        self, folder: TopicFolder, aside: Aside, known: KnownTopic | None, segment_bytes: int, segment_entries: int
    ) -> None:
        self.newest_us = 0  # when a segment was last written, microseconds since 1970
        self.missing: set[int] = set()  # segments of which only the index is left
        self.changed = known is None  # whether the manifest is out of date
        self.appender: Appender
        self._folder = folder
        self._aside = aside
        self._known = known
        self._segment_bytes = segment_bytes
        self._segment_entries = segment_entries
        self._sealed: list[Summary] = []
        self._table: BlockTable | None = None  # to go on with
        self._indexed = False

    def segments(self) -> Iterator[Index | BlockTable]:
        """Yield sealed segments' indexes, then any table of the one to go on with. Raises OSError: unreadable."""
        segments, numbers = self._numbers()
        last = max(numbers, default=0)
        for number in sorted(numbers):
            mark = None if self._known is None or self._known.mark.segment != number else self._known.mark
            if number not in segments:
                index = self._missing(number, mark)
                if index is not None:
                    yield index
                continue
            mtime_ns = os.stat(self._folder.segment(number)).st_mtime_ns
            self.newest_us = max(self.newest_us, mtime_ns // 1000)
            if number < last:
                index = load_index(self._folder, number)
                self._sealed.append(index.summary)
                yield index
            else:
                yield self._newest(number, mark)
        table = BlockTable(last + 1) if self._table is None else self._table
        self.appender = Appender(self._folder, table, self._sealed, self._indexed)

    def _numbers(self) -> tuple[set[int], set[int]]:
        """Return the segments that are there, and all that should be or of which an index is left."""
        segments, indexes = segment_numbers(self._folder.path)
        copies, begun = numbers_of(self._folder.copies, ".idx"), numbers_of(self._folder.beginnings, SEGMENT)
        numbers = segments.union(indexes, copies, begun)
        if self._known is not None:
            oldest, mark = self._known
            if mark.length > len(SEGMENT_HEADER):
                numbers.add(mark.segment)
            numbers.update(range(oldest, max(numbers, default=0)))
            numbers = {each for each in numbers if each >= oldest or each in segments}  # others were removed
        return segments, numbers

    def _missing(self, number: int, mark: Mark | None) -> Index | None:
        """Return the index of a segment whose file is gone; None if its content is unknown."""
        path = self._folder.segment(number)
        index, _ = find_index(self._folder, number)
        if mark is not None and (index is None or index.summary.length < mark.length):
            table = BlockTable(number) if index is None else index.table()
            _lose(table, mark)
            raw = encode_index(table)
            try_to_save_index(self._folder, number, raw)
            self.changed = True
            index = Index(raw, number)
        if index is None:
            logger.error("%s is missing, and nothing says what it had; other stores may have it", path)
            return None
        logger.error("%s is missing; what it had is fetched from other stores, if they have it", path)
        self.missing.add(number)
        self._sealed.append(Summary(number, 0, 0, index.summary.timestamp_min, index.summary.timestamp_max))
        return index

    def _newest(self, number: int, mark: Mark | None) -> Index | BlockTable:
        index, unreadable = find_index(self._folder, number)
        if index is not None and mark is not None and index.summary.length < mark.length:
            logger.error("the index of %s is older than the segment; not used", self._folder.segment(number))
            index = None
        if index is None:
            return self._scanned(number, mark, unreadable)
        if self._has_room(index) and self._cut(number, index.summary.length):
            self._indexed = True
            self._table = index.table()
            return self._table
        self._sealed.append(index.summary)
        return index

    def _scanned(self, number: int, mark: Mark | None, unreadable: bool) -> Index | BlockTable:
        """Read the segment that was being written to; ``unreadable`` if it has an index that cannot be read now."""
        acknowledged = 0 if mark is None else mark.length
        scanned = scan_segment(self._folder, number, acknowledged=acknowledged)
        if not unreadable:
            forget_index(self._folder, number)  # it must not count again when more is appended
        self._folder.ops.sync_directory(self._folder.path)
        table = scanned.table
        self.changed = self.changed or table.length > acknowledged  # it is acknowledged from now on
        if scanned.rotten and mark is not None:
            _lose(table, mark)
        readable = scanned.readable and not unreadable
        whole = scanned.synced and readable and not scanned.rotten
        if whole and not len(table) and scanned.size > len(SEGMENT_HEADER):
            self._aside.take(self._folder.segment(number))
            self._table = BlockTable(number)
        elif whole and self._cut(number, table.length):
            self._table = table
        else:
            return self._shelve(table, readable)
        return self._table

    def _shelve(self, table: BlockTable, readable: bool) -> Index:
        """Write no more to a segment: it ends at its table's length, whatever else the file holds."""
        table.length = max(table.length, len(SEGMENT_HEADER))
        raw = encode_index(table)
        if readable:
            try_to_save_index(self._folder, table.number, raw)
        self.changed = True
        index = Index(raw, table.number)
        self._sealed.append(index.summary)
        return index

    def _has_room(self, index: Index) -> bool:
        """Return True if writing can go on in a segment that a clean end sealed early."""
        small = 2 * index.summary.length < self._segment_bytes and 2 * index.entries < self._segment_entries
        return small and not any(True for _ in index.lost())

    def _cut(self, number: int, length: int) -> bool:
        """Cut a segment to ``length``; return False if the bytes behind that cannot be kept aside."""
        path = self._folder.segment(number)
        if os.stat(path).st_size <= length:
            return True
        try:
            self._aside.keep_end(path, length)
        except OSError as error:
            logger.warning("the end of %s is left where it is: %s", path, error)
            return False
        ops = self._folder.ops
        with ops.opened(path, os.O_RDWR) as fd:
            ops.ftruncate(fd, length)
            ops.fsync(fd)
        return True


def _lose(table: BlockTable, mark: Mark) -> None:
    table.lost += [LostOffsets(name, first, next_) for name, (first, next_) in mark.spans.items()]
