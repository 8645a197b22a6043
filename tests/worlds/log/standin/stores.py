"""A store in the simulation: its query socket, and the thread that writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tests.worlds.clocked import HostClock
from tests.worlds.disk import SimDisk
from tests.worlds.log.standin.node import NodeHost
from tests.worlds.log.standin.world import HOST, LogWorld
from tests.worlds.log.subjects import StoreSubject

from chappe.core import Persist, Reply
from chappe.errors import StorageError
from chappe.log.exactly_once.staged import recover
from chappe.log.queries import ReadRequest, decode_request, encode_query
from chappe.log.storage import AppendRecords, Retention, RunRetention, ScrubPiece, WriteRecords
from chappe.log.store import LogStore, StoreJob
from chappe.sim.pubsub import Dialogue

POWER_CUTS = 0.3  # of the deaths of a store are that of its machine
SCRUB_S = 0.5  # between two partitions: less than the time in which all is settled, more than anything else takes


class StoreHost(NodeHost, StoreSubject):
    """A store, its query socket and the thread that writes; as ``runtime.store_ports``."""

    def __init__(self, world: LogWorld, name: str, disk: SimDisk, retention: Sequence[tuple[str, Retention]]) -> None:
        self.disk = disk
        kept = recover(disk.staged, disk, world.limits)
        self.core: LogStore = world.cores.store(
            world.address(), disk, "", now=world.now, clock=HostClock(world, name), kept=kept, limits=world.limits
        )
        super().__init__(world, name, self._role(world.now))
        world.disk_of[self.core.address] = disk
        self.retention = retention
        self._work: deque[StoreJob] = deque()
        self._running: StoreJob | None = None
        self._written: list[tuple[AppendRecords, ...]] = []  # durable, and the core does not know yet
        self._query_port = self.net.port()
        self.core.endpoint = f"tcp://{HOST}:{self._query_port}"
        self.net.routers[self.core.endpoint] = self
        self.table |= {Persist: self._queue, Reply: self._reply}
        self._clients: dict[bytes, Dialogue] = {}
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
        if self.world.disk_rng.random() < POWER_CUTS:
            self.disk.power_cut(self.world.disk_rng.randint(0, 4))

    def on_query(self, dialogue: Dialogue, request_id: int, raw: bytes, payload: bytes) -> None:
        """A request on the query socket."""
        request = decode_request(raw)
        if self.doomed and isinstance(dialogue.asker, StoreHost) and isinstance(request, ReadRequest):
            self.die(goodbye=True)
        if self.alive:
            client = b"%d" % dialogue.number
            self._clients[client] = dialogue
            raw_id = request_id.to_bytes(8, "big")
            self.call(self.core.handle_request, client, raw_id, request, payload, self.world.now)

    def _reply(self, action: Reply) -> None:
        dialogue, reply = self._clients.get(action.to), action.message
        if dialogue is not None:
            request_id = int.from_bytes(reply.request_id, "big")
            dialogue.reply(request_id, encode_query(reply.answer), reply.batches)

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
            self.world.clock.after(self.world.write_s(), self._finish, self._running)

    def _finish(self, work: StoreJob) -> None:
        world = self.world
        if not self.alive:
            return
        if isinstance(work, RunRetention):
            problem = None
            if self.disk.full:
                world.failed[RunRetention] += 1  # it is tried again the next time
                problem = StorageError("the disk of the simulation is full")
            else:
                self.disk.forget(self.disk.retain(self.retention, world.clock.wall_us))
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
