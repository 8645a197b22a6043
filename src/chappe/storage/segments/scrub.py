"""Reading everything that is kept, piece by piece, so that damage is found while other stores still have good copies.

A scrubber belongs to a thread of its own. It reads from the disk, even what the system has in memory, and decides
nothing: what looks wrong it passes on as a suspicion, and the thread that reads looks at it again. Only the second
copies of indexes and identities it mends itself. Where a round has come to is noted in the file ``scrub``, so that a
restart goes on with it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from chappe.data.topic import decode_topic
from chappe.defaults import SCRUB_PIECE_BLOCKS, SCRUB_PIECE_BYTES, SCRUB_ROUND_S, SCRUB_SAVE_S
from chappe.errors import Damaged, StorageFormat
from chappe.storage.segments.blocks import SEGMENT_HEADER, Scan
from chappe.storage.segments.directory import TopicFolder, load_identity
from chappe.storage.segments.files import FileOps, encode_name, logged
from chappe.storage.segments.index import Index
from chappe.storage.segments.index_files import find_index, save_copy
from chappe.storage.segments.topics import UnreadBlock
from chappe.system import time

logger: Final = logging.getLogger(__name__)
SCRUB_FILE: Final = "scrub"


@dataclass(frozen=True, slots=True)
class ScrubTarget:
    """A segment to be read, up to ``length``."""

    folder: TopicFolder
    number: int
    length: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Bytes ``first`` <= n < ``end`` of a segment look wrong; the whole segment if ``gone``."""

    topic: str
    segment: int
    first: int
    end: int
    gone: bool = False


@dataclass(frozen=True, slots=True)
class ScrubStep:
    """The result of one call of ``Scrubber.read``; ``ended`` if a round did, ``idle`` if the next one is not due."""

    bytes: int = 0
    suspicions: tuple[Suspicion, ...] = ()
    readable: tuple[UnreadBlock, ...] = ()
    ended: bool = False
    idle: bool = False
    total: int = 0  # bytes of the round that ended, as far as this process has read them
    took_s: float = 0.0


class Scrubber:
    """Reads the segments that ``targets`` gives of each topic, oldest first; and again what was ``unread`` lately."""

    def __init__(
        self,
        ops: FileOps,
        path: str,
        topics: Callable[[], Sequence[str]],
        targets: Callable[[str], Sequence[ScrubTarget]],
        unread: Callable[[], Sequence[UnreadBlock]],
    ) -> None:
        self.ended_us = 0  # when the last round ended, microseconds since 1970; 0 if none did
        self._ops = ops
        self._path = path
        self._topics = topics
        self._targets = targets
        self._unread = unread
        self._began_us = 0
        self._at: tuple[str, int] | None = None  # topic and segment that the round has come to
        self._round: Iterator[tuple[int, Suspicion | None]] | None = None
        self._saved = time.monotonic()
        self._total = 0
        self._load()

    @property
    def under_way(self) -> bool:
        return self._at is not None

    def read(self) -> ScrubStep:
        """Read on, at most about ``SCRUB_PIECE_BYTES`` and ``SCRUB_PIECE_BLOCKS``."""
        if self._round is None:
            now_us = time.time_ns() // 1000
            if self._at is None and 0 <= now_us - self._began_us < SCRUB_ROUND_S * 1_000_000:
                return ScrubStep(readable=tuple(each for each in self._unread() if self._can_read(each)), idle=True)
            if self._at is None:
                self._began_us = now_us
            self._total = 0
            self._round = self._all(self._at)
        size = 0
        suspicions: list[Suspicion] = []
        for _ in range(SCRUB_PIECE_BLOCKS):
            found = next(self._round, None)
            if found is None:
                self._round, self._at = None, None
                self.ended_us = time.time_ns() // 1000
                self.save()
                took_s = (self.ended_us - self._began_us) / 1_000_000
                return ScrubStep(size, tuple(suspicions), ended=True, total=self._total, took_s=took_s)
            size += found[0]
            self._total += found[0]
            if found[1] is not None:
                suspicions.append(found[1])
            if size >= SCRUB_PIECE_BYTES:
                break
        return ScrubStep(size, tuple(suspicions))

    def _can_read(self, unread: UnreadBlock) -> bool:
        folder = next((each.folder for each in self._targets(unread.topic)), None)
        if folder is None:
            return False
        try:
            with self._ops.opened(folder.segment(unread.extent.segment)) as fd:
                self._ops.drop_cache(fd, unread.position, unread.size)
                self._ops.read_some(fd, unread.size or 1, unread.position)
        except OSError:
            return False
        return True

    def _all(self, start: tuple[str, int] | None) -> Iterator[tuple[int, Suspicion | None]]:
        """Iterate over sizes of read bytes, with the suspicion if there is one."""
        try:
            load_identity(self._ops, self._path)
        except (OSError, StorageFormat) as error:
            logger.error("the identity of the store is damaged, it will not start again: %s", error)
        for topic in self._topics():
            if start is not None and topic < start[0]:
                continue
            for target in self._targets(topic):
                if start is not None and (topic, target.number) < start:
                    continue
                self._at = (topic, target.number)
                yield from self._segment(target)
                if time.monotonic() - self._saved > SCRUB_SAVE_S:
                    self.save()

    def _segment(self, target: ScrubTarget) -> Iterator[tuple[int, Suspicion | None]]:
        path = target.folder.segment(target.number)
        try:
            fd = self._ops.open(path, os.O_RDONLY)
        except FileNotFoundError:
            known = self._targets(target.folder.topic)
            if any(each.number == target.number for each in known):  # else retention removed it
                logger.error("%s is missing", path)
                yield 0, Suspicion(target.folder.topic, target.number, 0, target.length, gone=True)
            return
        except OSError as error:
            logger.error("%s cannot be opened: %s", path, error)
            return
        try:
            yield from self._blocks(target, fd)
        except OSError as error:
            logger.error("%s cannot be read: %s", path, error)
        finally:
            self._ops.close(fd)
        if target.sealed:
            yield self._check_indexes(target), None

    def _blocks(self, target: ScrubTarget, fd: int) -> Iterator[tuple[int, Suspicion | None]]:
        at = len(SEGMENT_HEADER)
        scan = Scan(target.folder, target.number, fd, target.length, window_bytes=SCRUB_PIECE_BYTES, fresh=True)
        for block in scan:
            suspicion = None
            if block.position != at or not block.sound:
                end = block.position if block.sound else block.end
                suspicion = Suspicion(target.folder.topic, target.number, at, end)
            at = block.end
            yield block.size, suspicion
        if at < target.length:
            yield target.length - at, Suspicion(target.folder.topic, target.number, at, target.length)

    def _check_indexes(self, target: ScrubTarget) -> int:
        size = 0
        sound: list[bytes | None] = []
        for path in (target.folder.index(target.number), target.folder.copy(target.number)):
            raw = None
            try:
                raw = self._ops.read_file(path)
                size += len(raw)
                Index(raw, target.number)
            except (OSError, Damaged) as error:
                logger.error("%s cannot be used: %s", path, error)
                raw = None
            sound.append(raw)
        if not any(each.number == target.number and each.sealed for each in self._targets(target.folder.topic)):
            return size  # it was removed meanwhile
        with logged("the copy of an index of topic %r cannot be written", target.folder.topic, level=logging.ERROR):
            if sound[0] is None:
                find_index(target.folder, target.number)  # mends it
            elif sound[1] != sound[0]:
                save_copy(target.folder, target.number, sound[0])
        return size

    def save(self) -> None:
        """Note how far the round has come; never raises."""
        self._saved = time.monotonic()
        topic, segment = self._at or ("", 0)
        raw = encode_name(topic).hex()
        fields = {"ended_us": self.ended_us, "began_us": self._began_us, "topic": raw, "segment": segment}
        with logged("cannot note where the check of the store has come to"):
            self._ops.replace_file(os.path.join(self._path, SCRUB_FILE), [json.dumps(fields).encode()], durable=False)

    def _load(self) -> None:
        try:
            found = json.loads(self._ops.read_file(os.path.join(self._path, SCRUB_FILE)))
            self.ended_us, self._began_us = int(found["ended_us"]), int(found["began_us"])
            topic, segment = decode_topic(bytes.fromhex(found["topic"])), int(found["segment"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        self._at = (topic, segment) if segment else None
