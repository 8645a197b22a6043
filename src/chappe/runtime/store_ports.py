"""A store on its sockets and its disk: a node with a query socket, and lanes for what is slow."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import zmq

from chappe.core import Effect, Reply
from chappe.defaults import (
    BATCH_BYTES_MAX,
    DELETIONS_KEPT_S,
    DISK_RETRY_S,
    SCRUB_BYTES_S,
    SCRUB_IDLE_S,
    SCRUB_PIECE_BYTES,
    SCRUB_SHARE,
)
from chappe.errors import ChappeError, ProtocolError, StorageError
from chappe.log.catalogue import CatalogueJob, CatalogueStorage
from chappe.log.exactly_once.staged import CommitBatch, Finishing, SinkJob, StagedStorage, recover
from chappe.log.forwarder import LogForwarder
from chappe.log.groups.table import GroupJob, GroupStorage
from chappe.log.guard import PRODUCERS
from chappe.log.ordered.keeping import Keeping, OrderedRole
from chappe.log.queries import (
    ErrorAnswer,
    HeadsAnswer,
    HeadsRequest,
    QueryReply,
    Request,
    Stage,
    decode_request,
    encode_query,
    unknown_kind,
)
from chappe.log.storage import LogStorage, Retention, RunRetention, Scrubbed, ScrubPiece, WriteRecords
from chappe.log.store import LogStore
from chappe.runtime.driver import SYSTEM_CLOCK, Frames, Inlet
from chappe.runtime.log_ports import LogPorts
from chappe.runtime.meeting import Meeting
from chappe.runtime.worker import DISKS, Lane
from chappe.system import machine, time
from chappe.system.memory import keep_freed
from chappe.transports.gate import user_of

logger = logging.getLogger(__name__)

POLICIES_TOLD: Final = 100  # of the retention, the first ones
CLOSE_S: Final = 30.0  # a write under way at close may take this long
QUERIES: Final = "queries"  # the link over which clients ask
ASKED_MAX: Final = 10_000  # answers that are awaited; under permissions whoever asked before these asks again
_NOBLOCK: Final = int(zmq.NOBLOCK)


class StorePorts(LogPorts):
    """The sockets and the disk of a store: a node, a query socket and storage.

    Args:
        storage: Keeps records; closed with the node.
        staged: Keeps rows of exactly-once sinks; closed with the node.
        groups: Keeps positions of consumer groups; closed with the node.
        catalogue: Keeps settings and deletions of topics; closed with the node.
        meeting: How it meets others.
        name: For people.
        forwards: Whether it passes on what it takes.
        keeping: The batches of the chain whose member it is the store of.
        retention: How much to keep, by topic or ``prefix*``; the first that matches counts.
        deletions_s: How long deletions are remembered.

    Raises:
        StorageError: The disk refuses a commit that was decided before the store's last end.
    """

    close_s = CLOSE_S

    def __init__(
        self,
        address: str,
        storage: LogStorage,
        staged: StagedStorage,
        groups: GroupStorage,
        catalogue: CatalogueStorage,
        meeting: Meeting,
        *,
        name: str,
        forwards: bool = False,
        keeping: Keeping | None = None,
        retention: Sequence[tuple[str, Retention]] = (),
        deletions_s: float = DELETIONS_KEPT_S,
        on_report: Callable[[object], None],
    ) -> None:
        self.storage = storage
        self._staged = staged
        self._groups = groups
        self._catalogue = catalogue
        self._retention = list(retention)
        self._name = name
        self._closing = machine.current().event()
        self._queries_left = False  # in the queue, as a commit is under way
        # Who awaits an answer, by client and number, and whether it wants to know of the store, too.
        self._asked: dict[tuple[bytes, bytes], tuple[str, bool]] = {}
        kept = recover(staged, storage)
        self.store = LogStore(
            address,
            storage,
            "",
            now=time.monotonic(),
            clock=SYSTEM_CLOCK,
            kept=kept,
            groups=groups.kept(),
            catalogue=catalogue.kept(),
            deletions_s=deletions_s,
        )
        self._role: LogStore | LogForwarder | OrderedRole = self.store
        if forwards:
            self._role = LogForwarder(self.store, now=time.monotonic())
        elif keeping is not None:
            self._role = OrderedRole(self.store, keeping)
        super().__init__(self._role, meeting, on_report=on_report, takes=PRODUCERS, views=False)
        try:
            self._router, self.store.endpoint = meeting.open_router()
        except BaseException:
            self.driver.release()
            raise
        self._queries = self.driver.watch(Inlet(self._router, QUERIES, copied=self.guard is None))
        self._scrubbing = _Scrubbing(self)

    def start(self) -> None:
        keep_freed()
        super().start()
        with self.driver.lock:
            self.driver.call_idle(self._scrubbing, time.monotonic() + SCRUB_IDLE_S)

    def ending(self) -> None:
        self._closing.set()
        self._scrubbing.lane.close(CLOSE_S)

    def closed(self) -> None:
        self.storage.close()
        self._staged.close()
        self._groups.close()
        self._catalogue.close()

    # -- queries ----------------------------------------------------------------------------------------

    def holds(self, link: Any) -> bool:
        """Return True to leave queries in the bounded queue, while transactions are paused; their senders wait."""
        if link is QUERIES and self.store.transactions.paused:
            self._queries_left = True
            return True
        return super().holds(link)

    def flushed(self) -> None:
        super().flushed()
        if self._queries_left and not self.store.transactions.paused:
            self._queries_left = False
            self.driver.suspect_all()

    def hear(self, link: Any, frames: Frames) -> Sequence[Effect]:
        if link is not QUERIES:
            return super().hear(link, frames)
        who, raw = "", frames
        if self.guard is not None:
            who, raw = user_of(frames[0]), [each.bytes for each in frames]
        request = _request_of(raw)
        if isinstance(request, ErrorAnswer):
            return [Reply(raw[0], QueryReply(raw[1], request))]
        refusal = None if self.guard is None else self.guard.asks(who, request)
        if refusal is not None:
            return [Reply(raw[0], QueryReply(raw[1], refusal))]
        return self._ask_role(raw, request, who)

    def _about(self, who: str) -> dict[str, Any]:
        """Return what a store tells of itself; of refusals and retention to administrators alone, if there are keys."""
        if self.guard is None:
            return {"name": self._name, "retention": self._policies()}
        if not self.guard.administers(who):
            return {"name": self._name}
        refusals = [] if self.gate is None else self.gate.refusals.listed()
        return {"name": self._name, "refusals": refusals, "retention": self._policies()}

    def _policies(self) -> list[tuple[str, float | None, int | None, int | None]]:
        """Return the retention as it is told: that of topics with a setting in front."""
        found = [*self.store.catalogue.policies, *self._retention][:POLICIES_TOLD]
        return [(each, kept.age_s, kept.bytes, kept.records) for each, kept in found]

    def _ask_role(self, frames: list[bytes], request: Request, who: str) -> Sequence[Effect]:
        if len(frames) != (4 if isinstance(request, Stage) else 3) or len(frames[-1]) > BATCH_BYTES_MAX:
            raise ProtocolError("query with too many frames, too few, or too large ones")
        payload = frames[3] if isinstance(request, Stage) else b""
        self._asked[frames[0], frames[1]] = (who, isinstance(request, HeadsRequest) and not request.since)
        if len(self._asked) > ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        if self.guard is not None:
            request = self.guard.asked(request)
        return self._role.handle_request(frames[0], frames[1], request, payload, time.monotonic())

    def reply(self, effect: Reply) -> None:
        reply: QueryReply = effect.message
        answer = reply.answer
        # An answer may come much later, from the disk or once the store is open.
        who, whole = self._asked.pop((effect.to, reply.request_id), (None, False))
        if whole and isinstance(answer, HeadsAnswer):
            answer = msgspec.structs.replace(answer, **self._about(who or ""))
        if self.guard is not None and not isinstance(answer, ErrorAnswer):
            if who is None:
                return  # so many asked since that it is forgotten who did; whoever it was asks again
            answer = self.guard.told(who, answer)
        frames = [effect.to, reply.request_id, encode_query(answer), *reply.batches]
        try:
            self._router.send_multipart(frames, _NOBLOCK)
        except zmq.ZMQError:
            pass  # the client does not take its answers: it asks again if it still lives
        self.driver.suspect(self._queries)

    # -- the disk ---------------------------------------------------------------------------------------

    def carry_out(self, job: Any) -> object:
        if isinstance(job, RunRetention):
            return self._retain(job)
        try:
            if isinstance(job, GroupJob):
                self._groups.keep(job.changes)
                return None
            if isinstance(job, CatalogueJob):
                self._catalogue.keep(job)
                return None
            return self.storage.write(job.appends) if isinstance(job, WriteRecords) else self._transact(job)
        except StorageError:
            raise
        except Exception as error:
            logger.exception("a job of the disk failed in a way that was not foreseen")
            return StorageError(f"the store could not do this: {error}; its log says more")

    def _transact(self, work: SinkJob) -> object:
        try:
            if isinstance(work.job, CommitBatch):
                finishing = Finishing(self._staged, self.storage, self._staged.prepare(work.job))
                self._finish(finishing)
                return finishing
            self._staged.carry_out(work.job)
        except ChappeError as error:
            return error
        return None

    def _finish(self, finishing: Finishing) -> None:
        """Complete a decided commit, however often the disk refuses, unless the store is closed before."""
        while not finishing.done:
            try:
                finishing.step()
            except StorageError as error:
                self.driver.run(self._commit_waits, error)
                if self._closing.wait(DISK_RETRY_S):
                    return

    def _commit_waits(self, error: StorageError) -> None:
        self.driver.do(self.store.commit_waits(error, time.monotonic()))

    def _retain(self, job: RunRetention) -> object:
        try:
            return self.storage.retain([*job.topics, *self._retention], time.time_ns() // 1000)
        except (StorageError, OSError) as error:
            logger.warning("retention failed and is tried again later: %s", error)
            return StorageError(str(error))

    def done(self, job: Any, outcome: Any, now: float) -> Sequence[Effect]:
        """Make written records readable first, then tell the core."""
        if isinstance(outcome, Finishing):
            if not outcome.done:
                return ()  # the store is being closed; it goes on with it when it is opened again
            for written in outcome.written:
                self.storage.publish(written)
            outcome = outcome.intent
        elif isinstance(job, SinkJob | GroupJob | CatalogueJob) or isinstance(outcome, ChappeError):
            pass
        elif isinstance(job, WriteRecords):
            self.storage.publish(outcome)
            outcome = None
        elif isinstance(job, RunRetention):
            self.storage.forget(outcome)
            outcome = None
        return self._role.handle_done(job, outcome, now)


class _Scrubbing:
    """Reads everything that is kept over and over, in pieces, on a lane that nothing else waits for."""

    def __init__(self, ports: StorePorts) -> None:
        self._ports = ports
        self._storage = ports.storage
        self.lane = Lane(DISKS, ports.driver.run)

    def idle(self) -> float:
        self.lane.do(self._scrub, self._ended)
        return math.inf

    def _scrub(self) -> tuple[Scrubbed, float]:
        began = time.monotonic()
        try:
            found = self._storage.scrub()
        except Exception:
            logger.exception("reading what is kept failed in a way that was not foreseen")
            found = Scrubbed(idle=True)
        return found, time.monotonic() - began

    def _ended(self, scrubbed: tuple[Scrubbed, float]) -> None:
        """Pause after a piece: leave disk and processor to the others most of the time."""
        found, spent_s = scrubbed
        now, storage, driver = time.monotonic(), self._storage, self._ports.driver
        if found.news or (storage.suspicious and found.detail is not None):
            driver.do(self._ports.done(ScrubPiece(), storage.scrubbed(found), now))
        idle = found.idle and not storage.suspicious
        pause_s = SCRUB_IDLE_S if idle else max(SCRUB_PIECE_BYTES / SCRUB_BYTES_S, SCRUB_SHARE * spent_s)
        driver.call_idle(self, now + pause_s)


def _request_of(frames: list[bytes]) -> Request | ErrorAnswer:
    if len(frames) < 3 or len(frames[1]) != 8:
        raise ProtocolError("query that is not two frames")
    try:
        return decode_request(frames[2])
    except ProtocolError:
        answer = unknown_kind(frames[2])
        if answer is None:
            raise
        return answer
