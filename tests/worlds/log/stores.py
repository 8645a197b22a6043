"""A store in the simulation: its query socket, and the thread that writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tests.worlds.clocked import HostClock
from tests.worlds.disk import Part, SimDisk
from tests.worlds.log.node import NodeHost
from tests.worlds.log.subjects import StoreSubject
from tests.worlds.log.world import HOST, LogWorld

from chappe.core import Persist, Reply
from chappe.defaults import DISK_RETRY_S
from chappe.errors import ChappeError, StorageError
from chappe.log.exactly_once.staged import CommitBatch, Finishing, SinkJob, recover
from chappe.log.queries import ReadRequest, TrimRequest, decode_request, encode_query
from chappe.log.sources import Key
from chappe.log.storage import AppendRecords, Retention, RunRetention, ScrubPiece, WriteRecords
from chappe.log.store import LogStore, StoreJob
from chappe.sim.pubsub import Dialogue

POWER_CUTS = 0.3  # of the deaths of a store are that of its machine
SCRUB_S = 0.5  # between two partitions: less than the time in which all is settled, more than anything else takes


class StoreHost(NodeHost, StoreSubject):
    """A store, its query socket and the thread that writes; as ``runtime.store_ports``."""

    def __init__(self, world: LogWorld, name: str, disk: SimDisk, retention: Sequence[tuple[str, Retention]]) -> None:
        self.disk = disk
        disk.staged.full = disk.full
        kept = recover(disk.staged, disk, world.limits)
        self.core: LogStore = world.cores.store(
            world.address(), disk, "", now=world.now, clock=HostClock(world, name), kept=kept, limits=world.limits
        )
        super().__init__(world, name, self._role(world.now))
        world.disk_of[self.core.address] = disk
        self.retention = retention
        self._work: deque[StoreJob] = deque()
        self._running: StoreJob | None = None
        self._finishing: Finishing | None = None  # a commit that is decided
        self._written: list[tuple[AppendRecords, ...]] = []  # durable, and the core does not know yet
        self._query_port = self.net.port()
        self.core.endpoint = f"tcp://{HOST}:{self._query_port}"
        self.net.routers[self.core.endpoint] = self
        self.table |= {Persist: self._queue, Reply: self._reply}
        self._clients: dict[bytes, Dialogue] = {}
        self._unsure: list[dict[Key, Part]] = []  # trimmed, and not on the disk yet: how partitions were before
        self._retaining = 0  # how many of these the run of retention under way makes durable
        world.clock.after(SCRUB_S, self._scrub)

    def _role(self, now: float) -> Any:
        """What is driven: the core, or what is around it."""
        return self.core

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """Stop; of a write under way any prefix of its blocks may be on the disk afterwards."""
        super().die(goodbye=goodbye, notice_s=notice_s)
        del self.net.routers[self.core.endpoint]
        self.net.release(self._query_port)
        for written in self._written:
            self.disk.publish(written)
        if isinstance(self._running, WriteRecords) and not self._written and not self.disk.full:
            survivors = self.world.rng.randint(0, len(self._running.appends))
            self.world.trace(self, "tears its write: %d of %d blocks", survivors, len(self._running.appends))
            self.disk.tear(self._running.appends, survivors)
        if self._finishing is not None:
            self._tear_commit(self._finishing)
        if self.world.disk_rng.random() < POWER_CUTS:
            self.disk.power_cut(self.world.disk_rng.randint(0, 4))
        if self.disk.staged.rows:
            self._lose_rows()
        for before in reversed(self._unsure):
            if self.world.more_rng.random() < 0.5:
                self.disk.remember(before)

    def _tear_commit(self, finishing: Finishing) -> None:
        """Of a commit what was written is on the disk, and of the chunk being written any prefix."""
        for written in finishing.written:
            self.disk.publish(written)
        if not self.disk.full and not finishing.done:
            chunk = finishing.next_chunk()
            survivors = self.world.sink_rng.randint(0, len(chunk))
            self.world.trace(self, "tears its commit: %d of %d blocks of a chunk", survivors, len(chunk))
            self.disk.tear(chunk, survivors)

    def _lose_rows(self) -> None:
        """If the machine died and not only the process, rows are lost that were not yet durable."""
        rng = self.world.sink_rng
        if rng.random() < 0.5:
            rows = self.disk.staged.rows
            self.disk.staged.crash({key: rng.randint(0, len(each.pieces)) for key, each in rows.items()})

    def on_query(self, dialogue: Dialogue, request_id: int, raw: bytes, payload: bytes) -> None:
        """A request on the query socket."""
        request = decode_request(raw)
        if self.doomed and isinstance(dialogue.asker, StoreHost) and isinstance(request, ReadRequest):
            self.die(goodbye=True)
        if self.alive:
            refusal = None if self.guard is None else self.guard.asks(dialogue.asker.name, request)
            if refusal is not None:
                dialogue.reply(request_id, encode_query(refusal), ())
                return
            if self.guard is not None:
                request = self.guard.asked(request)
            client = b"%d" % dialogue.number
            self._clients[client] = dialogue
            raw_id = request_id.to_bytes(8, "big")
            before: dict[Key, Part] = {}
            if isinstance(request, TrimRequest):
                before = self.disk.copies(request.topic)
                self._unsure.append(before)
            self.call(self.core.handle_request, client, raw_id, request, payload, self.world.now)
            if isinstance(request, TrimRequest):
                self.world.see("on_trim", self, dialogue.number, request_id, request, before)

    def _reply(self, action: Reply) -> None:
        dialogue, reply = self._clients.get(action.to), action.message
        if dialogue is not None:
            request_id = int.from_bytes(reply.request_id, "big")
            answer = reply.answer if self.guard is None else self.guard.told(dialogue.asker.name, reply.answer)
            dialogue.reply(request_id, encode_query(answer), reply.batches)

    def _scrub(self) -> None:
        """Read on, to find damage while others have good copies."""
        if not self.alive:
            return
        found = self.disk.scrub()
        if found.news and self.stalled_until <= self.world.now:
            self.call(self.core.handle_done, ScrubPiece(), self.disk.scrubbed(found), self.world.now)
        self.world.clock.after(SCRUB_S, self._scrub)

    # -- the thread that writes -----------------------------------------------------------------------

    def _queue(self, action: Persist) -> None:
        self._work.append(action.job)
        if self._running is None:
            self._next()

    def _next(self) -> None:
        self._running = self._work.popleft() if self._work else None
        if self._running is not None:
            self._retaining = len(self._unsure)
            self.world.clock.after(self.world.write_s(), self._finish, self._running)

    def _finish(self, work: StoreJob) -> None:
        world = self.world
        if not self.alive:
            return
        if isinstance(work, SinkJob):
            self._transact(work)
            return
        if isinstance(work, RunRetention):
            problem = None
            if self.disk.full:
                world.failed[RunRetention] += 1  # it is tried again the next time
                problem = StorageError("the disk of the simulation is full")
            else:
                self.disk.forget(self.disk.retain(self.retention, world.clock.wall_us))
                del self._unsure[: self._retaining]
            self.call(self.core.handle_done, work, problem, world.now)
            self._next()
            return
        assert isinstance(work, WriteRecords)
        try:
            written = self.disk.write(work.appends)
        except StorageError as error:
            world.trace(self, "cannot write: %s", error)
            world.failed[WriteRecords] += 1
            self._tell_failed(work, error)
            return
        self._written.append(written)
        world.clock.after(0.000_1, self._tell_written, work)

    def _tell_failed(self, work: WriteRecords, error: StorageError) -> None:
        """The core hears of it when the member is not stalled."""
        if self.stalled_until > self.world.now:
            self.world.clock.at(self.stalled_until, self._tell_failed, work, error)
        elif self.alive:
            self.call(self.core.handle_done, work, error, self.world.now)
            self._next()

    def _tell_written(self, work: WriteRecords) -> None:
        if self.stalled_until > self.world.now:
            self.world.clock.at(self.stalled_until, self._tell_written, work)
        elif self.alive:
            written = self._written.pop()
            self.world.see("on_written", self, written)
            self.disk.publish(written)
            self.call(self.core.handle_done, work, None, self.world.now)
            self._next()

    # -- the same thread, for sinks -----------------------------------------------------------------------

    def _transact(self, work: SinkJob) -> None:
        staged, job = self.disk.staged, work.job
        staged.full = self.disk.full
        try:
            if isinstance(job, CommitBatch):
                intent = staged.prepare(job)
                self._finishing = Finishing(staged, self.disk, intent, limits=self.world.limits)
                self.world.see("on_decided", self, intent)
                self.world.clock.after(self.world.write_s(), self._step, work)
                return
            staged.carry_out(job)
            self.world.see("on_staged", self, job)
        except ChappeError as error:
            self.world.trace(self, "cannot do %s: %s", type(job).__name__, error)
            self.world.failed[SinkJob] += 1
            self._tell_transacted(work, error)
            return
        self._tell_transacted(work, None)

    def _step(self, work: SinkJob) -> None:
        """Go on with what is decided; after a refusal a little later."""
        finishing = self._finishing
        if not self.alive or finishing is None:
            return
        self.disk.staged.full = self.disk.full
        try:
            finishing.step()
        except StorageError as error:
            self.call(self.core.commit_waits, error, self.world.now)
            self.world.clock.after(DISK_RETRY_S, self._step, work)
            return
        if finishing.done:
            self.world.clock.after(0.000_1, self._tell_transacted, work, None)
        else:
            self.world.clock.after(self.world.write_s(), self._step, work)

    def _tell_transacted(self, work: SinkJob, error: ChappeError | None) -> None:
        world = self.world
        if self.stalled_until > world.now:
            world.clock.at(self.stalled_until, self._tell_transacted, work, error)
            return
        if not self.alive:
            return
        finishing, self._finishing = self._finishing, None
        if finishing is None:
            self.call(self.core.handle_done, work, error, world.now)
        else:
            for written in finishing.written:
                assert isinstance(written, tuple)
                world.see("on_written", self, written)
                self.disk.publish(written)
            self.call(self.core.handle_done, work, finishing.intent, world.now)
        self._next()
