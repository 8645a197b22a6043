"""A blocking client of stores' query sockets, for readers outside a node: Spark tasks, the command line."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

import zmq

from chappe.data.label import is_label
from chappe.data.topic import decode_topic, encode_topic, identity_of
from chappe.defaults import HEARTBEAT_S, MESSAGE_BYTES_MAX, READ_BYTES, RETRY_S
from chappe.errors import (
    ChappeError,
    Fenced,
    NotPermitted,
    ProtocolError,
    StagedRowsMissing,
    StorageFull,
    TimedOut,
    UsageError,
)
from chappe.log.events import ConnectionRefused
from chappe.log.guard import DENIED, Guard
from chappe.log.queries import (
    EARLY,
    FENCED,
    FULL,
    MISSING,
    Answer,
    AttachSink,
    Commit,
    CommitAnswer,
    Drop,
    ErrorAnswer,
    HeadsAnswer,
    HeadsRequest,
    ReadAnswer,
    ReadRequest,
    Request,
    SeekAnswer,
    SeekRequest,
    SinkAnswer,
    StagedAnswer,
    decode_answer,
    encode_query,
)
from chappe.log.storage import PartitionInfo
from chappe.permissions.rules import STORE
from chappe.security import IDENTITY, LogSecurity
from chappe.system import time
from chappe.system.forking import own
from chappe.system.limits import need_descriptors
from chappe.transports.dialled import Dialled
from chappe.transports.gate import gate_of, keys_of
from chappe.transports.zeromq import DIALLING_LINGER_MS, new_socket, take

# What is raised for an answer of each kind; a ProtocolError for all others.
_ERRORS: Final[dict[str, type[ChappeError]]] = {
    FENCED: Fenced,
    MISSING: StagedRowsMissing,
    FULL: StorageFull,
    EARLY: TimedOut,
    DENIED: NotPermitted,
}
_Kind = TypeVar("_Kind", bound=Answer)


class StoreClient:
    """Asks one store, over one connection; not for use by two threads at once.

    Args:
        endpoint: The store's query socket, ``tcp://host:port``.
        timeout_s: Seconds to wait for one answer.
        security: Who we are, if the store has keys: an identity, by default the one that the environment names.

    Raises:
        UsageError: One of us has keys and the other has none, or they are not in the permissions.
    """

    def __init__(self, endpoint: str, timeout_s: float = 10.0, security: LogSecurity = None) -> None:
        own(self)
        self.endpoint = endpoint
        self.refusals: list[tuple[str, str, int]] = []  # identity, verb, how often; as it last said to administrators
        self.retention: list[tuple[str, float | None, int | None, int | None]] | None = None  # likewise
        self.name = ""  # of the store, for people, as it last said
        self.holes: dict[tuple[str, str], list[tuple[int, int]]] = {}  # first and last, as ``heads`` heard last
        self.store_id = ""  # likewise
        self.scrubbed_us = 0  # when the store had last read and checked all that it keeps, as it last said
        self._timeout_s = timeout_s
        self._ids = itertools.count(1)
        self._waiting: dict[
            bytes, tuple[Answer, Sequence[bytes | memoryview]] | None
        ] = {}  # asked: the answer, once it is here
        need_descriptors()
        where, name = identity_of(endpoint)
        gate = gate_of(keys_of(security))
        if gate is not None and not name:
            raise UsageError(
                f"the store at {where} has no keys, and we have: where it has some, #NAME follows the port"
            )
        if name and gate is None:
            raise UsageError(f"the store at {where} has keys, and we have none: name an identity ({IDENTITY})")
        self._name = name
        self._guard = None if gate is None else Guard(gate.decisions, gate.refusals.add_refusal)
        self._socket = new_socket(zmq.DEALER, gate)
        self._socket.setsockopt(zmq.LINGER, DIALLING_LINGER_MS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_S * 1000))
        self._refusal: ConnectionRefused | None = None
        self._dialled = Dialled(self._socket, gate, self._refused, STORE)
        self._dialled.connect(endpoint)
        if self._refusal is not None:
            self.close()
            raise UsageError(str(self._refusal))
        if gate is not None:  # while it may not be dialled there is nowhere to put a request
            self._socket.setsockopt(zmq.SNDTIMEO, int(timeout_s * 1000))

    def _refused(self, event: object) -> None:
        assert isinstance(event, ConnectionRefused)
        self._refusal = event

    def ask(self, request: Request) -> tuple[Answer, Sequence[bytes | memoryview]]:
        """Send one request and wait for its answer.

        Raises:
            TimedOut: The store did not answer in time; asking again, or another store, is safe.
            Fenced: Another run of this sink took over.
            StagedRowsMissing: The store lost rows of the batch; it is to be run again.
            StorageFull: The store's disk has no room.
            ProtocolError: The store refused for another reason, or answered something that does not decode.
        """
        (found,) = self.ask_many([request])
        return found

    def ask_many(self, requests: Sequence[Request]) -> Iterator[tuple[Answer, Sequence[bytes | memoryview]]]:
        """Send requests at once and yield their answers in the order of the requests."""
        wanted = [self.send(request) for request in requests]
        try:
            for raw_id in wanted:
                yield self.receive(raw_id)
        finally:
            self.forget(wanted)

    def send(self, request: Request, payload: bytes | None = None) -> bytes:
        """Send a request, a Stage with its batch, without waiting; return what ``receive`` or ``forget`` takes."""
        if self._guard is not None:
            request = self._guard.asking(self._name, request) or request  # who may not store it is not believed
        raw_id = struct.pack(">Q", next(self._ids))
        frames = [raw_id, encode_query(request)]
        try:
            self._socket.send_multipart(frames if payload is None else [*frames, payload], copy=payload is None)
        except zmq.Again:
            raise TimedOut(f"the store at {self.endpoint} cannot be asked: {self._refusal}") from None
        self._waiting[raw_id] = None
        return raw_id

    def receive(self, raw_id: bytes) -> tuple[Answer, Sequence[bytes | memoryview]]:
        """Wait for the answer to a request that was sent; answers to others are kept meanwhile. Raises as ``ask``."""
        deadline = time.monotonic() + self._timeout_s
        while (found := self._waiting[raw_id]) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                self.forget([raw_id])
                why = "" if self._refusal is None else f": {self._refusal}"
                raise TimedOut(f"the store at {self.endpoint} did not answer within {self._timeout_s:g} s{why}")
            if not self._socket.poll(int(min(left, RETRY_S) * 1000) + 1):
                self._dialled.look()
                continue
            self._refusal = None
            frames = take(self._socket)
            deadline = time.monotonic() + self._timeout_s
            if len(frames) >= 2 and bytes(frames[0]) in self._waiting:
                self._waiting[bytes(frames[0])] = (decode_answer(bytes(frames[1])), frames[2:])
        self.forget([raw_id])
        answer, batches = found
        if self._guard is not None:
            answer = self._guard.answered(self._name, answer)
        if isinstance(answer, ErrorAnswer):
            kind = _ERRORS.get(answer.kind, ProtocolError)
            raise kind(f"the store at {self.endpoint} refused: {answer.text}")
        return answer, batches

    def forget(self, raw_ids: Iterable[bytes]) -> None:
        for raw_id in raw_ids:
            self._waiting.pop(raw_id, None)

    def heads(self, topic_prefix: str = "", since: int = 0) -> tuple[list[PartitionInfo], int]:
        """Every partition changed after version ``since``, and the version to ask from next."""
        found: list[PartitionInfo] = []
        self.holes = {}
        while True:
            answer, _ = self._ask_for(HeadsAnswer, HeadsRequest(encode_topic(topic_prefix), since))
            found += answer.infos()
            for topic, partition, *hole in answer.holes:
                self.holes.setdefault((decode_topic(topic), decode_topic(partition)), []).append((hole[0], hole[1]))
            if not since:
                self.refusals, self.retention = answer.refusals, answer.retention
                self.name = answer.name if is_label(answer.name) else ""
            since = answer.version
            self.store_id = answer.store_id
            self.scrubbed_us = answer.scrubbed_us
            if not answer.more:
                return found, since

    def read(
        self, topic: str, partition: str, offset: int, bytes_max: int = READ_BYTES
    ) -> tuple[ReadAnswer, Sequence[bytes | memoryview]]:
        """Batches from the one containing ``offset`` on, as ``log.batch.Batch.parse`` takes them."""
        return self._ask_for(ReadAnswer, ReadRequest(encode_topic(topic), encode_topic(partition), offset, bytes_max))

    def seek(self, topic: str, partition: str, timestamp: int) -> int:
        """The first offset whose batch ends at or after ``timestamp`` (microseconds); -1 if unknown."""
        answer, _ = self._ask_for(SeekAnswer, SeekRequest(encode_topic(topic), encode_topic(partition), timestamp))
        return answer.offset

    # -- exactly-once sinks: see ``log.queries`` for what each promises; all raise as ``ask`` --

    def attach_sink(self, sink: str, run: str, home: str, lasting: bool) -> SinkAnswer:
        """Tell the store who the home of a sink is; if it is the home, make ``run`` the current run."""
        return self._ask_for(SinkAnswer, AttachSink(sink, run, home, lasting))[0]

    def commit(self, sink: str, run: str, batch: int, attempts: Sequence[tuple[int, int, int, int]]) -> CommitAnswer:
        """Make attempts (task, attempt, pieces, rows) visible; safe to ask again after TimedOut."""
        return self._ask_for(CommitAnswer, Commit(sink, run, batch, list(attempts)))[0]

    def drop(self, sink: str, run: str, batch: int, attempts: Sequence[tuple[int, int]]) -> None:
        self._ask_for(StagedAnswer, Drop(sink, run, batch, list(attempts)))

    def _ask_for(self, kind: type[_Kind], request: Request) -> tuple[_Kind, Sequence[bytes | memoryview]]:
        answer, batches = self.ask(request)
        if not isinstance(answer, kind):
            raise ProtocolError(f"the store at {self.endpoint} answered another question")
        return answer, batches

    def close(self) -> None:
        self._dialled.close()
        self._socket.close()
