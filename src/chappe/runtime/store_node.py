"""A store on its sockets and its disk: a node with a query socket, and lanes for what is slow."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec
import zmq

from chappe.defaults import BATCH_BYTES_MAX, DISK_RETRY_S, SCRUB_BYTES_S, SCRUB_IDLE_S, SCRUB_PIECE_BYTES, SCRUB_SHARE
from chappe.errors import ChappeError, ProtocolError, StorageError
from chappe.log.actions import Action, Reply, Retain, Transact, Write
from chappe.log.exactly_once.redo import Finishing, recover
from chappe.log.exactly_once.staged import CommitBatch, StagedStorage
from chappe.log.forwarder import LogForwarder
from chappe.log.guard import PRODUCERS, Guard
from chappe.log.ordered.keeping import Keeping, OrderedStore
from chappe.log.queries import (
    ErrorAnswer,
    HeadsAnswer,
    HeadsRequest,
    Request,
    Stage,
    decode_request,
    encode_query,
    unknown_kind,
)
from chappe.log.storage import LogStorage, Retention, Scrubbed
from chappe.log.store import LogStore
from chappe.runtime.driver import SYSTEM_CLOCK
from chappe.runtime.log_node import Node
from chappe.runtime.meeting import Meeting
from chappe.runtime.worker import DISKS, Lane
from chappe.system import machine, time
from chappe.system.forking import own
from chappe.system.memory import keep_freed
from chappe.transports.gate import user_of

logger = logging.getLogger(__name__)

POLICIES_TOLD: Final = 100  # of the retention, the first ones
CLOSE_S: Final = 30.0  # a write under way at close may take this long


class StoreNode:
    """Runs one store.

    Args:
        storage: Where records are kept; closed with the node.
        staged: Where rows of exactly-once sinks wait; closed with the node.
        meeting: How it meets others.
        name: For people.
        forwards: Whether it passes on what it takes.
        keeping: What a chain has for it, of which it is the store of a member.
        retention: How much to keep, by topic or ``prefix*``; the first that matches counts.

    Raises:
        StorageError: The disk refuses what a commit had decided before the store's last end.
    """

    def __init__(
        self,
        address: str,
        storage: LogStorage,
        staged: StagedStorage,
        meeting: Meeting,
        *,
        name: str,
        forwards: bool = False,
        keeping: Keeping | None = None,
        retention: Sequence[tuple[str, Retention]] = (),
        on_report: Callable[[object], None],
    ) -> None:
        own(self)
        self.storage = storage
        self._gate = meeting.gate
        self._staged = staged
        self._retention = list(retention)
        self._policies = [(each, kept.age_s, kept.bytes, kept.records) for each, kept in retention[:POLICIES_TOLD]]
        self._closing = machine.current().event()
        kept = recover(staged, storage)
        self.core = LogStore(address, storage, "", now=time.monotonic(), clock=SYSTEM_CLOCK, kept=kept)
        role: LogStore | LogForwarder | OrderedStore = self.core
        if forwards:
            role = LogForwarder(self.core, now=time.monotonic())
        elif keeping is not None:
            role = OrderedStore(self.core, keeping)
        self._ordered = role if isinstance(role, OrderedStore) else None
        self.node = Node(
            role,
            meeting,
            on_report=on_report,
            perform={
                Write: lambda action: self._do(partial(self._write, action)),
                Retain: lambda action: self._do(self._retain),
                Transact: lambda action: self._do(partial(self._transact, action)),
                Reply: self._reply,
            },
            takes=PRODUCERS,
            views=False,
        )
        self._name = self.node.traffic.names[address] = name
        try:
            self._router, self.core.endpoint = meeting.open_router()
        except BaseException:
            self.node.close()
            raise
        self.endpoint = self.core.endpoint
        self.node.watch_socket(self._router, self._drain_router)
        self._disk = Lane(DISKS, self.node.run)  # whatever writes
        self._reading = Lane(DISKS, self.node.run)  # a scrub, which nothing else waits for

    def start(self) -> None:
        """Begin."""
        keep_freed()
        self.node.start()
        with self.node.lock:
            self.node.call_idle(self, time.monotonic() + SCRUB_IDLE_S)

    def close(self) -> None:
        """Finish the write under way, acknowledge it, and release everything."""
        if self.node.turns.closed:
            return
        self._closing.set()
        self._disk.close(CLOSE_S)
        self._reading.close(CLOSE_S)
        self.node.close()
        with self.node.lock:
            self._router.close()
        self.storage.close()
        self._staged.close()

    # -- queries ----------------------------------------------------------------------------------------

    def _drain_router(self) -> bool:
        if self.core.transactions.paused:
            return False  # left in the queue, which is bounded; whoever sends waits
        if self._router.closed:
            return False
        if self.node.guard is None:
            return self.node.receive(self._router, self._on_query)
        return self.node.receive_frames(self._router, partial(self._on_query_of, self.node.guard))

    def _on_query_of(self, guard: Guard, frames: list[zmq.Frame]) -> Sequence[Action]:
        """A query of an identity that was let in: it is told what it may know."""
        who, raw = user_of(frames[0]), [each.bytes for each in frames]
        request = _request_of(raw)
        if isinstance(request, ErrorAnswer):
            return [Reply(raw[0], raw[1], request)]
        refusal = guard.asks(who, request)
        if refusal is not None:
            return [Reply(raw[0], raw[1], refusal)]
        actions = self._handle_query(raw, guard.asked(request))
        if isinstance(request, HeadsRequest) and not request.since:
            more: dict[str, object] = {"name": self._name}
            if guard.administers(who):
                refusals = [] if self._gate is None else self._gate.refusals.listed()
                more |= {"refusals": refusals, "retention": self._policies}
            actions = [_with(each, **more) for each in actions]
        return [
            replace(each, answer=guard.told(who, each.answer)) if isinstance(each, Reply) else each for each in actions
        ]

    def _on_query(self, frames: list[bytes]) -> Sequence[Action]:
        request = _request_of(frames)
        if isinstance(request, ErrorAnswer):
            return [Reply(frames[0], frames[1], request)]
        actions = self._handle_query(frames, request)
        if isinstance(request, HeadsRequest) and not request.since:
            actions = [_with(each, retention=self._policies, name=self._name) for each in actions]
        return actions

    def _handle_query(self, frames: list[bytes], request: Request) -> Sequence[Action]:
        if len(frames) != (4 if isinstance(request, Stage) else 3) or len(frames[-1]) > BATCH_BYTES_MAX:
            raise ProtocolError("query with too many frames, too few, or too large ones")
        payload = frames[3] if isinstance(request, Stage) else b""
        asked = self.core if self._ordered is None else self._ordered
        return asked.handle_query(frames[0], frames[1], request, time.monotonic(), payload)

    def _reply(self, reply: Reply) -> None:
        frames = [reply.client, reply.request_id, encode_query(reply.answer), *reply.batches]
        try:
            self._router.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:
            pass  # the client does not take its answers: it asks again if it still lives
        self.node.suspect(self._drain_router)

    # -- the disk ---------------------------------------------------------------------------------------

    def _do(self, job: Callable[[], Callable[[float], Sequence[Action]] | None]) -> None:
        """Run a job behind those before; what it returns tells the core how it ended."""
        if not self._closing.is_set():
            self._disk.do(job, self._ended)

    def _ended(self, tell: Callable[[float], Sequence[Action]] | None) -> None:
        """A job on a lane has ended: tell the core."""
        if tell is not None:
            self.node.perform(tell(time.monotonic()))

    def _write(self, work: Write) -> Callable[[float], Sequence[Action]]:
        try:
            written = self.storage.write(work.appends)
        except StorageError as error:
            return partial(self._failed, str(error))
        except Exception as error:
            logger.exception("the write failed in a way that was not foreseen")
            return partial(self._failed, str(error))
        return partial(self._written, written)

    def _written(self, written: object, now: float) -> Sequence[Action]:
        self.storage.publish(written)
        actions = self._after(self.core.handle_written, now)
        return actions if self._ordered is None else [*actions, *self._ordered.handle_written(now)]

    def _failed(self, reason: str, now: float) -> Sequence[Action]:
        return self._after(lambda now: self.core.handle_write_failed(reason, now), now)

    def _after(self, tell: Callable[[float], Sequence[Action]], now: float) -> Sequence[Action]:
        """Tell the core how a write ended; if it waited for that, receiving goes on."""
        was_paused = self.core.paused
        actions = tell(now)
        if was_paused and not self.core.paused:
            self.node.resume()
        return actions

    def _transact(self, work: Transact) -> Callable[[float], Sequence[Action]] | None:
        job = work.job
        try:
            if isinstance(job, CommitBatch):
                finishing = Finishing(self._staged, self.storage, self._staged.prepare(job))
                return partial(self._transacted, work, finishing) if self._finish(finishing) else None
            self._staged.carry_out(job)
        except ChappeError as error:
            return partial(self._transacted, work, error)
        except Exception as error:
            logger.exception("a job of a sink failed in a way that was not foreseen")
            defect = StorageError(f"the store could not do this: {error}; its log says more")
            return partial(self._transacted, work, defect)
        return partial(self._transacted, work, None)

    def _finish(self, finishing: Finishing) -> bool:
        """Carry out what is decided, however often the disk refuses; False if the store was closed before."""
        while not finishing.done:
            try:
                finishing.step()
            except StorageError as error:
                self.node.call(lambda now, reason=str(error): self.core.handle_commit_waits(reason, now))
                if self._closing.wait(DISK_RETRY_S):
                    return False
        return True

    def _transacted(self, work: Transact, outcome: Finishing | ChappeError | None, now: float) -> Sequence[Action]:
        was_paused = self.core.transactions.paused
        if isinstance(outcome, Finishing):
            for written in outcome.written:
                self.storage.publish(written)
            actions = self.core.handle_transacted(work.ticket, outcome.intent, now)
        else:
            actions = self.core.handle_transacted(work.ticket, outcome, now)
        if was_paused and not self.core.transactions.paused:
            self.node.suspect(self._drain_router)
            self.node.turns.wake()
        return actions

    def idle(self) -> float:
        """Read a further piece of what is kept; everything is read over and over. See ``Gatherer.idle``."""
        self._reading.do(self._scrub, self._scrub_ended)
        return math.inf

    def _scrub(self) -> tuple[Scrubbed, float]:
        began = time.monotonic()
        try:
            found = self.storage.scrub()
        except Exception:
            logger.exception("reading what is kept failed in a way that was not foreseen")
            found = Scrubbed(idle=True)
        return found, time.monotonic() - began

    def _scrub_ended(self, scrubbed: tuple[Scrubbed, float]) -> None:
        """A piece was read: leave disk and processor to the others most of the time."""
        found, spent_s = scrubbed
        now = time.monotonic()
        if found.news or (self.storage.suspicious and found.detail is not None):
            self.node.perform(self.core.handle_scrubbed(self.storage.scrubbed(found), now))
        idle = found.idle and not self.storage.suspicious
        pause_s = SCRUB_IDLE_S if idle else max(SCRUB_PIECE_BYTES / SCRUB_BYTES_S, SCRUB_SHARE * spent_s)
        self.node.call_idle(self, now + pause_s)

    def _retain(self) -> Callable[[float], Sequence[Action]]:
        try:
            return partial(self._retained, self.storage.retain(self._retention, time.time_ns() // 1000))
        except (StorageError, OSError) as error:
            logger.warning("retention failed and is tried again later: %s", error)
            return partial(self.core.handle_retained, problem=str(error))

    def _retained(self, retained: object, now: float) -> Sequence[Action]:
        self.storage.forget(retained)
        return self.core.handle_retained(now)


def _with(action: Action, **more: object) -> Action:
    """A list with what is told besides."""
    if not isinstance(action, Reply) or not isinstance(action.answer, HeadsAnswer):
        return action
    return replace(action, answer=msgspec.structs.replace(action.answer, **more))


def _request_of(frames: list[bytes]) -> Request | ErrorAnswer:
    """What is asked, or what is answered to a question of a newer format."""
    if len(frames) < 3 or len(frames[1]) != 8:
        raise ProtocolError("query that is not two frames")
    try:
        return decode_request(frames[2])
    except ProtocolError:
        answer = unknown_kind(frames[2])
        if answer is None:
            raise
        return answer
