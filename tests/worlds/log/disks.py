"""What the files of a store hold, as checkers read it: through the storage of the store, or a copy of its files."""

from __future__ import annotations

import shutil
from collections import Counter, deque
from collections.abc import Container, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.worlds.disk import Block, Key, Part, SimDisk

from chappe.errors import StorageError
from chappe.log.batch import Batch
from chappe.log.catalogue import CatalogueJob
from chappe.log.exactly_once.staged import CommitBatch, Intent, SinkJob, StagedAttempt, Step
from chappe.log.storage import AppendRecords, Retention, RunRetention, WriteRecords
from chappe.storage.catalogue_database import CatalogueDatabase
from chappe.storage.segments import SegmentStorage
from chappe.storage.segments.files import FileOps
from chappe.storage.staged_files import StagedFiles

READ_BYTES = 1_000_000
CHANGES_MAX = 100_000


class StoreDisk(SimDisk):
    """The directory of a store, over all its lives; ``parts`` are what its files hold."""

    def __init__(self, store_id: str, directory: Path) -> None:
        super().__init__(store_id)
        self.directory = directory
        self.staged: Any = None
        self.damaged = False  # some of it was broken on purpose
        self._largest: Counter[str] = Counter()  # records of one write, by topic: they go to one segment
        self._seen = 0  # the version of the storage that was looked at

    def follow(self, storage: SegmentStorage) -> None:
        """A store has opened it."""
        self._seen = 0
        self.parts.clear()
        self.look(storage)

    def look(self, storage: SegmentStorage, appended: Container[Key] = ()) -> None:
        """Read what has changed; of partitions of which nothing but the end has, only that."""
        if storage.version == self._seen:
            return
        for info in storage.changed("", self._seen, CHANGES_MAX):
            key = (info.topic, info.partition)
            part = Part(info.first, info.next, info.version, info.bytes, info.timestamp_min, info.timestamp_max)
            known = self.parts.get(key, part)
            if key in appended and known.first == info.first and not storage.holes(info.topic):
                part.blocks, at = known.blocks, known.next
            else:
                at = info.first
            part.blocks += _blocks(storage, *key, at, info.next)
            self.parts[key] = part
        self._seen = storage.version

    def believe(self) -> None:
        """Take what a store finds when it opens for safe: a kill may have torn a write whose end nobody heard of."""
        for key, part in self.parts.items():
            ever = self.ever.setdefault(key, bytearray())
            ever.extend(bytes(max(0, part.next - len(ever))))
            for low, high in part.sound():
                ever[low:high] = b"\1" * (high - low)

    def look_at_files(self, scratch: Path) -> None:
        """Read a copy of the files: nobody has them open."""
        copy = scratch / "copy"
        shutil.copytree(self.directory, copy)
        try:
            storage = SegmentStorage(copy, ops=FileOps())
            try:
                self.follow(storage)
            finally:
                storage.close()
        finally:
            shutil.rmtree(copy)

    def safe(self, appends: Sequence[AppendRecords]) -> None:
        """The store says that these are on the disk."""
        self._safe(appends)
        for topic in {each.topic for each in appends}:
            records = sum(each.count for each in appends if each.topic == topic)
            self._largest[topic] = max(self._largest[topic], records)

    def retain(self, policies: Sequence[tuple[str, Retention]], now_us: int) -> object:
        """Topics that keep more records than their retention and one segment, which goes as a whole."""
        found: list[str] = []
        for topic, policy in policies:
            parts = [part for (of, _), part in self.parts.items() if of == topic]
            kept = sum(high - low for part in parts for low, high in part.sound())
            segment = self._largest[topic] * WatchedStorage.world.segment_entries
            if policy.records is not None and kept > policy.records + segment:
                found.append(topic)
        return found

    def flip(self, block: Block, rng: Random) -> bool:
        """Flip a bit of a block in its file; return False if it is not found."""
        for path in sorted(self.directory.rglob("*")):
            if path.is_file() and (at := path.read_bytes().find(block.body)) >= 0:
                with path.open("r+b") as file:
                    file.seek(at + rng.randrange(len(block.body)))
                    byte = file.read(1)[0]
                    file.seek(-1, 1)
                    file.write(bytes([byte ^ 1 << rng.randrange(8)]))
                self.damaged = block.damaged = True
                return True
        return False

    def missing_of_safe(self) -> str | None:
        """Say what was on the disk once and is no longer; None if all is there."""
        for key, ever in self.ever.items():
            part = self.parts.get(key)
            sound = [] if part is None else part.sound()
            for offset, flag in enumerate(ever):
                began = part is not None and offset < part.first
                if flag and not began and not any(low <= offset < high for low, high in sound):
                    return f"{self.store_id} has lost {key} offset {offset}, which was on its disk"
        return None


def _blocks(storage: SegmentStorage, topic: str, partition: str, at: int, end: int) -> list[Block]:
    found: list[Block] = []
    while at < end:
        read = storage.read(topic, partition, at, READ_BYTES)
        if read.hole is not None:
            at = read.hole.last + 1
            continue
        if not read.batches:
            break
        for raw in read.batches:
            batch = Batch.parse(bytes(raw))
            found.append(Block(batch.base, batch.next, bytes(batch.raw), batch.timestamp_min, batch.timestamp_max))
            at = batch.next
    return found


class WatchedStorage(SegmentStorage):
    """The storage of a store, which says what it writes."""

    world: ClassVar[Any] = None  # that is played

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory, segment_entries=self.world.segment_entries, **options)
        self._unpublished: deque[tuple[AppendRecords, ...]] = deque()
        self._disk: StoreDisk = self.world.disk_at(directory)
        self._disk.follow(self)
        self._disk.believe()

    def write(self, appends: Sequence[AppendRecords]) -> Any:
        """See ``LogStorage``; what it has written is on the disk."""
        with self.world.counted(WriteRecords):
            written = super().write(appends)
        self._disk.safe(appends)
        self._unpublished.append(tuple(appends))
        return written

    def publish(self, written: Any) -> None:
        """See ``LogStorage``."""
        appends = self._unpublished.popleft()
        self.world.written(self._disk, appends)
        super().publish(written)
        healed = {(each.topic, each.partition) for each in appends if each.heal}
        self._disk.look(self, {(each.topic, each.partition) for each in appends} - healed)

    def retain(self, policies: Sequence[tuple[str, Retention]], now_us: int) -> object:
        """See ``LogStorage``."""
        with self.world.counted(RunRetention):
            return super().retain(policies, now_us)

    def reset(self, topic: str, partition: str, first: int) -> None:
        """See ``LogStorage``."""
        self.world.show("on_reset", self._disk, (topic, partition), first)
        super().reset(topic, partition, first)
        self._disk.look(self)

    def forget(self, retained: Any) -> None:
        """See ``LogStorage``."""
        super().forget(retained)
        self._disk.look(self)


class WatchedCatalogue(CatalogueDatabase):
    """What a store keeps of the catalogue of topics, which says what it keeps, and at times refuses to."""

    world: ClassVar[Any] = None

    def keep(self, job: CatalogueJob) -> None:
        """See ``CatalogueStorage``."""
        with self.world.counted(CatalogueJob):
            if self.world.trims.there and self.world.trims.rng.random() < 0.1:
                raise StorageError("the disk has no room for the catalogue")
            super().keep(job)
        self.world.show("on_catalogue", job)


class WatchedStaged(StagedFiles):
    """What a store has staged, which says what it does."""

    world: ClassVar[Any] = None

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._disk: StoreDisk = self.world.disk_at(directory)
        self._disk.staged = self

    @property
    def rows(self) -> list[StagedAttempt]:
        """Attempts of which rows are there."""
        return list(self._files)

    @property
    def intents(self) -> list[str]:
        """Sinks of which a commit is under way."""
        return [each.sink for each in self.pending()]

    def run_of(self, sink: str) -> str:
        """The run that may write."""
        return next(each.run for each in self._sinks.states() if each.sink == sink)

    def prepare(self, commit: CommitBatch) -> Intent:
        """See ``StagedStorage``."""
        with self.world.counted(SinkJob):
            intent = super().prepare(commit)
        self.world.show("on_decided", self._disk, intent)
        return intent

    def carry_out(self, job: Step) -> None:
        """See ``StagedStorage``."""
        with self.world.counted(SinkJob):
            super().carry_out(job)
        self.world.show("on_staged", self._disk, job)
