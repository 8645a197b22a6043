"""Archived records on their way back into topics.

All records of a topic go through one producer, in the order of ``order.py``: so they are one partition of the new
topic, and each original partition keeps its order in it. A producer for each original partition would keep no more,
and cost a member of the network for each start of a program that ever produced, of which there may be a hundred
thousand.

**Interrupted replays go on.** The producers have an identity: each batch is in their journal before it is published, so
after a kill they know how many records they have sent, and what of that is not stored yet. As the order depends
on the archived records alone, the number of records says where to go on: none is lost or sent twice. Where the archive
ended when the replay began is kept too, so that it may grow meanwhile. From time to time it is noted how far the
replay is, so that what was sent need not be read again.

A replay writes to the partition that commands on this machine keep for the topic, if one is free: its journal belongs
to the replay from its start to its end, over interruptions.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
import pyarrow as pa

from chappe.api.log.kept_partition import KeptPartitions, continued, journal_of
from chappe.api.log.producer import Producer
from chappe.api.pace import SHOW_S, Pace
from chappe.arrow_rows import WRITTEN, BatchRows, parts, plain
from chappe.defaults import KIB
from chappe.errors import StorageFormat, TimedOut, UsageError
from chappe.reading.kept import Unsealing
from chappe.security import LogSecurity
from chappe.spark.archive.manifest import ArchiveManifest, load, path_of
from chappe.spark.archive.order import EARLIEST_US, LATEST_US, TopicRun, WantedRecords, plan, sweep
from chappe.spark.encode import now_us
from chappe.system import settings
from chappe.system.disk import sync_file
from chappe.system.places import users

FORMAT: Final = 2
STATE: Final = "replay.json"
PIECE_BYTES: Final = 256 * KIB  # of records in one batch: each is synced to the journal
NOTE_S: Final = 2.0  # how often the progress of the replay is noted
FLUSH_STEP_S: Final = 0.25


class ReplayState(msgspec.Struct, frozen=True):
    """The state of a replay that is not finished, as it is kept on disk.

    ``bounds`` are the ends of the partitions when it began, by topic. Everything before ``passed`` in the order was
    sent: of each topic the records from offset ``first`` of its new partition to before ``sent``.
    """

    bounds: dict[str, dict[str, int]]
    passed: int = EARLIEST_US
    sent: dict[str, int] = {}
    first: dict[str, int] = {}
    format: int = FORMAT


@dataclass(slots=True)
class ReplayProgress:
    sent: int = 0  # records, those of earlier runs included
    stored: int = 0  # those of them that a store has acknowledged
    total: int = 0  # all there are to send, at most
    earlier: int = 0  # those that earlier runs had sent
    seconds: float = 0.0  # since this run began
    left_s: float | None = None  # until everything is sent, about; None before that can be told


@dataclass(frozen=True, slots=True)
class ReplayOrder:
    topic: str | None = None  # ``name``, ``prefix*``, or None for all topics
    to: str | None = None  # the topic that the records of one topic go to; None: to the topics that they came from
    # 1.0 is the original speed, 10.0 ten times that; None: as fast as stores and consumers take it
    speed: float | None = None
    since: int = EARLIEST_US  # only records with timestamps from this one on, in microseconds since 1970
    until: int = LATEST_US  # only records with timestamps before this one


class Replay:
    """One replay; a context.

    Args:
        directory: The archive.
        order: What to replay.
        tower: Where producers find the stores.
        listen: Interface of the producers.
        security: Who they are, as of ``Producer``.
        anew: Forget where an earlier run of the same replay was interrupted.
        state: Where it is kept how far the replay is, and the partitions of finished ones; the user's data and state
            directories by default.

    Raises:
        UsageError: There is no archive, or several topics for one target.
        UnknownTopic: The archive has no such topic.
        IdentityInUse: The same replay is running.
        StorageFormat, StorageError: The archive or the state cannot be read.
    """

    def __init__(
        self,
        directory: Path,
        order: ReplayOrder,
        *,
        tower: str | None = None,
        listen: str | None = None,
        security: LogSecurity = None,
        anew: bool = False,
        state: Path | None = None,
    ) -> None:
        manifest = load(directory)
        topics = manifest.select(order.topic)
        if order.to is not None and len(topics) > 1:
            raise UsageError(f"one target for the topics {', '.join(topics)} would mix them: name one with --topic")
        self._order = order
        self._state = (state or users("data") / "replays") / _name(manifest, order)
        self._kept = None if state is None else state / "kept"
        self._where: dict[str, Any] = {"tower": settings.tower(tower), "listen": listen, "security": security}
        if anew:
            shutil.rmtree(self._state, ignore_errors=True)
        self.resumed = (self._state / STATE).exists()
        if self.resumed:
            self._noted = self._read()
        else:
            ends = {topic: {name: span.next for name, span in manifest.positions[topic].items()} for topic in topics}
            self._noted = ReplayState(ends)
        self._unsealing = Unsealing(security)
        self._wanted = WantedRecords(self._noted.bounds, order.since, order.until, self._noted.passed)
        files = [(path_of(directory, manifest, each), each) for each in manifest.files]
        self._groups = plan(files, self._wanted)
        self.progress = ReplayProgress()
        self._producers: dict[str, Producer] = {}
        self._skip: dict[str, int] = {}
        self._began = time.monotonic()
        self._noted_at = self._shown_at = self._began
        self._pace = Pace(order.speed)
        self._last = max((each.high for each in self._groups), default=0)
        self.show: Callable[[ReplayProgress], None] = lambda progress: None
        try:
            for topic in topics:
                self._open(topic)
            if not self.resumed:
                first = {topic: each.next_offset for topic, each in self._producers.items()}
                self._noted = msgspec.structs.replace(self._noted, sent=first, first=first)
                self._write(self._noted)
        except BaseException:
            self.abandon()
            raise
        noted, rows = self._noted, sum(each.rows for each in self._groups)
        self.progress.total = sum(noted.sent.values()) - sum(noted.first.values()) + rows
        self.progress.earlier = self.progress.sent = self._sent

    def run(self) -> None:
        """Send everything and wait until it is stored; Ctrl-C ends it at any time. Raises ChappeError: of the archive
        or of a producer. The same replay can be started again, and goes on.
        """
        for window in sweep(self._groups, self._wanted, unsealing=self._unsealing):
            self._send_window([self._not_sent(run) for run in window.runs])
            self._note(window.end)
        while not self._flush(FLUSH_STEP_S):
            self._look()
        self.progress.total = self._sent
        self._look()
        for each in self._producers.values():
            each.close()
        (self._state / STATE).unlink()  # from here on the replay is over, and its partitions belong to nobody
        for topic in self._producers:
            target = self._order.to or topic
            self._partitions(target).give(journal_of(self._state, _identity(target)))
        shutil.rmtree(self._state, ignore_errors=True)

    def interrupted(self, patience_s: float) -> int:
        """Leave in the middle; return how many records that were sent no store has yet. They are not lost."""
        self._flush(patience_s)
        self._look()
        left = self.progress.sent - self.progress.stored
        self.abandon()
        return left

    def abandon(self) -> None:
        for each in self._producers.values():
            with suppress(TimedOut):  # its journal has the rest
                each.close(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    # -- sending --------------------------------------------------------------------------------------------

    def _open(self, topic: str) -> None:
        target = self._order.to or topic
        identity = _identity(target)
        if self.resumed:
            producer = Producer(target, **self._where, identity=identity, directory=self._state)
        else:
            self._partitions(target).take(journal_of(self._state, identity))
            producer = continued(target, self._state, identity, self._where)
        self._producers[topic] = producer
        self._skip[topic] = producer.next_offset - self._noted.sent.get(topic, 0) if self.resumed else 0
        if self._skip[topic] < 0:
            raise StorageFormat(f"{self._state} does not fit together: start the replay anew with --anew")

    def _partitions(self, target: str) -> KeptPartitions:
        return KeptPartitions(target, directory=self._kept, **self._where)

    def _not_sent(self, run: TopicRun) -> TopicRun:
        """Leave out records that an earlier run sent after it had last noted its position."""
        skip = min(self._skip[run.topic], len(run.times))
        if not skip:
            return run
        self._skip[run.topic] -= skip
        return TopicRun(run.topic, run.records.slice(skip), run.times[skip:])

    def _send_window(self, runs: list[TopicRun]) -> None:
        at = [0] * len(runs)
        while any(start < len(run.times) for start, run in zip(at, runs, strict=True)):
            due = self._pace.due(min(int(r.times[n]) for n, r in zip(at, runs, strict=True) if n < len(r.times)))
            for index, run in enumerate(runs):
                end = len(run.times) if due is None else int(np.searchsorted(run.times, due, "right"))
                if end > at[index]:
                    self._send(run.topic, run.records.slice(at[index], end - at[index]))
                    at[index] = end
            following = [int(run.times[n]) for n, run in zip(at, runs, strict=True) if n < len(run.times)]
            if following:
                self._pace.wait(min(following), self._look)

    def _send(self, topic: str, records: pa.Table) -> None:
        producer = self._producers[topic]
        for part in pieces(records):
            producer.send_batch(part.encode())
            if time.monotonic() - self._shown_at >= SHOW_S:
                self._look()

    def _flush(self, timeout_s: float) -> bool:
        try:
            for each in self._producers.values():
                each.flush(timeout_s)
        except TimedOut:
            return False
        return True

    # -- how far it is --------------------------------------------------------------------------------------

    @property
    def _sent(self) -> int:
        return sum(each.next_offset for each in self._producers.values()) - sum(self._noted.first.values())

    def _look(self) -> None:
        now = time.monotonic()
        self._shown_at = now
        progress = self.progress
        progress.sent = self._sent
        stored = sum(each.stored for each in self._producers.values())
        progress.stored = max(0, stored - sum(self._noted.first.values()))
        progress.seconds = now - self._began
        done = progress.sent - progress.earlier
        if self._order.speed is not None:
            progress.left_s = self._pace.left_s(self._last)
        elif done:
            progress.left_s = (progress.total - progress.sent) * progress.seconds / done
        self.show(progress)

    def _note(self, passed: int) -> None:
        now = time.monotonic()
        if now - self._noted_at >= NOTE_S and not any(self._skip.values()):
            self._noted_at = now
            sent = {topic: each.next_offset for topic, each in self._producers.items()}
            self._write(msgspec.structs.replace(self._noted, passed=passed, sent=sent))

    def _read(self) -> ReplayState:
        path = self._state / STATE
        try:
            noted = msgspec.json.decode(path.read_bytes(), type=ReplayState)
        except (OSError, msgspec.MsgspecError) as error:
            raise StorageFormat(f"{path} cannot be read ({error}): start the replay anew with --anew") from None
        if noted.format > FORMAT:
            raise StorageFormat(f"{path} was written by a newer chappe: install that version, or use --anew")
        return noted

    def _write(self, noted: ReplayState) -> None:
        self._state.mkdir(parents=True, exist_ok=True)
        path = self._state / STATE
        temporary = path.with_suffix(".new")
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(noted))
            file.flush()
            sync_file(file.fileno())
        temporary.replace(path)


def pieces(records: pa.Table) -> Iterator[BatchRows]:
    for batch in records.to_batches():
        rows = max(batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1), 1)
        for start in range(0, batch.num_rows, rows):
            some = batch.slice(start, rows)
            yield from parts(plain({name: some.column(name) for name in WRITTEN}, now_us), now_us)


def _identity(target: str) -> str:
    return hashlib.sha256(target.encode()).hexdigest()[:16]


def _name(manifest: ArchiveManifest, order: ReplayOrder) -> str:
    """Return the same for the same replay; the speed may change."""
    parts = (manifest.archive, order.topic, order.to, order.since, order.until)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
