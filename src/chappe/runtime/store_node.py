"""A store on its sockets and its disk: a node with a query socket and a thread that writes."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import zmq

from chappe.defaults import BATCH_BYTES_MAX, DISK_RETRY_S, SCRUB_BYTES_S, SCRUB_IDLE_S, SCRUB_PIECE_BYTES, SCRUB_SHARE
from chappe.errors import ChappeError, ProtocolError, StorageError
from chappe.log.actions import Action, Reply, Retain, Transact, Write
from chappe.log.exactly_once.redo import Finishing, carry_out, recover
from chappe.log.exactly_once.staged import CommitBatch, StagedStorage
from chappe.log.queries import Stage, decode_request, encode_query
from chappe.log.storage import LogStorage, Retention, Scrubbed
from chappe.log.store import LogStore
from chappe.runtime.log_node import Node, wall_us
from chappe.system.forking import own
from chappe.system.memory import keep_freed
from chappe.transports.addresses import TowerAddress

logger = logging.getLogger(__name__)

CLOSE_S: Final = 30.0  # a write under way at close may take this long


class StoreNode:
    """Runs one store.

    Args:
        address: The node's address.
        storage: Where records are kept; closed with the node.
        staged: Where rows of exactly-once sinks wait; closed with the node.
        retention: How much to keep, by topic or ``prefix*``; the first that matches counts.

    Raises:
        StorageError: The disk refuses what a commit had decided before the store's last end.
    """

    def __init__(
        self,
        address: str,
        storage: LogStorage,
        staged: StagedStorage,
        towers: Sequence[TowerAddress],
        listen: str,
        *,
        retention: Sequence[tuple[str, Retention]] = (),
        on_report: Callable[[object], None],
    ) -> None:
        own(self)
        self.storage = storage
        self._staged = staged
        self._retention = list(retention)
        self._work: queue.SimpleQueue[Write | Retain | Transact | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        kept = recover(staged, storage)
        self.core = LogStore(address, storage, "", now=time.monotonic(), kept=kept)
        self.node = Node(
            self.core,
            towers,
            listen,
            on_report=on_report,
            perform={
                Write: self._work.put,
                Retain: self._work.put,
                Transact: self._work.put,
                Reply: self._reply,
            },
        )
        try:
            self._router, port = self.node.open_router()
        except BaseException:
            self.node.close()
            raise
        self._router.setsockopt(zmq.LINGER, 0)
        self.endpoint = self.core.endpoint = f"tcp://{self.node.host}:{port}"
        self.node.watch_socket(self._router, self._drain_router)
        self._writer = threading.Thread(target=self._write_all, name="chappe-disk", daemon=True)
        self._scrubber = threading.Thread(target=self._scrub_all, name="chappe-scrub", daemon=True)

    def start(self) -> None:
        """Begin."""
        keep_freed()
        self._writer.start()
        self._scrubber.start()
        self.node.start()

    def close(self) -> None:
        """Finish the write under way, acknowledge it, and release everything."""
        if self.node.closed:
            return
        self._closing.set()
        self._work.put(None)
        self._writer.join(CLOSE_S)
        self._scrubber.join(CLOSE_S)
        self.node.close()
        with self.node.lock:
            self._router.close()
        self.storage.close()
        self._staged.close()

    # -- queries ----------------------------------------------------------------------------------------

    def _drain_router(self) -> bool:
        if self.core.transactions.paused:
            return False  # left in the queue, which is bounded; whoever sends waits
        return not self._router.closed and self.node.receive(self._router, self._on_query)

    def _on_query(self, frames: list[bytes]) -> Sequence[Action]:
        if len(frames) < 3 or len(frames[1]) != 8:
            raise ProtocolError("query that is not two frames")
        request = decode_request(frames[2])
        if len(frames) != (4 if isinstance(request, Stage) else 3) or len(frames[-1]) > BATCH_BYTES_MAX:
            raise ProtocolError("query with too many frames, too few, or too large ones")
        payload = frames[3] if isinstance(request, Stage) else b""
        return self.core.handle_query(frames[0], frames[1], request, time.monotonic(), payload)

    def _reply(self, reply: Reply) -> None:
        frames = [reply.client, reply.request_id, encode_query(reply.answer), *reply.batches]
        try:
            self._router.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:
            pass  # the client does not take its answers: it asks again if it still lives
        self.node.suspect(self._drain_router)

    # -- the disk ---------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        try:
            while (work := self._work.get()) is not None:
                if isinstance(work, Write):
                    self._write(work)
                elif isinstance(work, Transact):
                    self._transact(work)
                else:
                    self._retain()
        except Exception as error:  # a store that does not write any more must not look as if it did
            self.node.halt(error)

    def _write(self, work: Write) -> None:
        try:
            written = self.storage.write(work.appends)
        except StorageError as error:
            self.node.call(lambda now, reason=str(error): self._failed(reason, now))
            return
        except Exception as error:
            logger.exception("the write failed in a way that was not foreseen")
            self.node.call(lambda now, reason=str(error): self._failed(reason, now))
            return
        self.node.call(lambda now: self._written(written, now))

    def _written(self, written: object, now: float) -> Sequence[Action]:
        self.storage.publish(written)
        return self._after(self.core.handle_written, now)

    def _failed(self, reason: str, now: float) -> Sequence[Action]:
        return self._after(lambda now: self.core.handle_write_failed(reason, now), now)

    def _after(self, tell: Callable[[float], Sequence[Action]], now: float) -> Sequence[Action]:
        """Tell the core how a write ended; if it waited for that, receiving goes on."""
        was_paused = self.core.paused
        actions = tell(now)
        if was_paused and not self.core.paused:
            self.node.resume()
            self.node.wake()
        return actions

    def _transact(self, work: Transact) -> None:
        job = work.job
        try:
            if isinstance(job, CommitBatch):
                finishing = Finishing(self._staged, self.storage, self._staged.prepare(job))
            else:
                carry_out(self._staged, job)
        except ChappeError as error:
            self.node.call(lambda now, failure=error: self._transacted(work, failure, now))
            return
        except Exception as error:
            logger.exception("a job of a sink failed in a way that was not foreseen")
            defect = StorageError(f"the store could not do this: {error}; its log says more")
            self.node.call(lambda now: self._transacted(work, defect, now))
            return
        if not isinstance(job, CommitBatch):
            self.node.call(lambda now: self._transacted(work, None, now))
        elif self._finish(finishing):
            self.node.call(lambda now: self._transacted(work, finishing, now))

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
            self.node.wake()
        return actions

    def _scrub_all(self) -> None:
        """Read everything that is kept, over and over, and leave disk and processor to the others most of the time."""
        pause_s = SCRUB_IDLE_S
        while not self._closing.wait(pause_s):
            began = time.monotonic()
            try:
                found = self.storage.scrub()
            except Exception:
                logger.exception("reading what is kept failed in a way that was not foreseen")
                found = Scrubbed(idle=True)
            if found.news or (self.storage.suspicious and found.detail is not None):
                self.node.call(lambda now, found=found: self._scrubbed(found, now))
            spent_s = time.monotonic() - began
            idle = found.idle and not self.storage.suspicious
            pause_s = SCRUB_IDLE_S if idle else max(SCRUB_PIECE_BYTES / SCRUB_BYTES_S, SCRUB_SHARE * spent_s)

    def _scrubbed(self, found: Scrubbed, now: float) -> Sequence[Action]:
        return self.core.handle_scrubbed(self.storage.scrubbed(found), now)

    def _retain(self) -> None:
        try:
            retained = self.storage.retain(self._retention, wall_us())
        except (StorageError, OSError) as error:
            logger.warning("retention failed and is tried again later: %s", error)
            self.node.call(lambda now: self.core.handle_retained(now))
            return
        self.node.call(lambda now: self._retained(retained, now))

    def _retained(self, retained: object, now: float) -> Sequence[Action]:
        self.storage.forget(retained)
        return self.core.handle_retained(now)
