"""The inner half of an endpoint: what subscribers, publishers and stores call, and how it publishes."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from itertools import count, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from chappe.api.faces import Closeable, Steps
from chappe.api.mesh.arguments import as_id, chunks, encode_topic, encode_value, own_id, topics_of
from chappe.api.mesh.identity import Own, sealing_of, watch_rules
from chappe.api.mesh.told import told
from chappe.api.mesh.waiting import Asked, KeysWait, QueueWaiting, time_left
from chappe.api.taps import MeshTap
from chappe.core import Flush
from chappe.defaults import KIB
from chappe.errors import Closed, Sealed, TimedOut, Unreachable
from chappe.member import Record
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.events import DefectContained, PeerLost
from chappe.mesh.filters import Filter, is_local
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.messages import DATA, NOBODY
from chappe.runtime.mesh_ports import MeshPorts
from chappe.runtime.recorder import EndpointRecorder, RecordingOptions
from chappe.runtime.tap_ports import Feed, TapPorts
from chappe.security import Keys, Security, check_security
from chappe.storage.recordings.files import RecordingFiles
from chappe.system import machine, time
from chappe.system.forking import own
from chappe.tapping.frames import named
from chappe.tapping.sessions import Wants
from chappe.transports.tls import contexts

if TYPE_CHECKING:
    from chappe.sealing.in_mesh import MeshSealing

logger = logging.getLogger("chappe.mesh")

CHUNK: Final = 1024  # messages of an iterable handed over at once ...
CHUNK_BYTES: Final = 256 * KIB  # ... or so many bytes of them; both never more than what may wait for a peer
CLOSED: Final = "the endpoint was closed"

# The call of a hook that this code is a part of, also in threads and tasks that inherit its context; see ``hooks``.
hook_call: Final[ContextVar[object]] = ContextVar("chappe_hook", default=None)


class EndpointHost:
    """The inner half of ``Endpoint``, without its face."""

    def __init__(
        self,
        id: str | UUID | None,
        security: Security | Keys,
        options: EndpointOptions,
        recording: RecordingOptions | None = None,
    ) -> None:
        own(self)
        self.security = check_security(security)
        made = contexts(self.security)
        rules = watch_rules(security) if isinstance(security, Keys) else None
        sealing = sealing_of(security) if isinstance(security, Keys) else None
        raw_id = own_id(id, made)
        self.id = str(UUID(bytes=raw_id))
        self.capacity = options.peer_messages_max
        self.waits = options.peer_policy is Policy.BLOCK  # publishing may wait for room, and for keys
        # Messages for ``try_publish_many``: each may go over the same link twice.
        self.at_once = max(1, min(CHUNK, options.peer_messages_max // options.paths))
        self._chunk_bytes = min(CHUNK_BYTES, options.peer_bytes_max // options.paths)
        files = None if recording is None else RecordingFiles(recording.directory, self.id, options.forwarding)
        self.core = EndpointCore(raw_id, options, time.monotonic())
        self.permitted = Own(security, self.core) if isinstance(security, Keys) else None
        self.numbers = count(1)  # of tickets and subscribers
        self.asked: dict[int, Asked] = {}
        self._subscribers: dict[int, Any] = {}
        self.listening: dict[Any, None] = {}  # subscribers to statuses
        self.hooks: Any = None  # functions that are called in order with what is published
        self.stores: dict[Any, None] = {}
        self._telling = False  # a report is being delivered as a message
        self._closing = False  # we say goodbye: what is published now would reach nobody
        self._rooms: dict[QueueWaiting, None] = {}  # of publishers with a descriptor, which says that there is room
        self._threads: list[threading.Thread] = []
        try:
            self.node = MeshPorts(self.core, self, made, rules, sealing)
        except BaseException:
            if files is not None:
                files.close()
            raise
        self._turns = self.node.turns
        self._lock = self.node.lock
        self._recorder: EndpointRecorder | None = None
        self._record: Record | None = None  # while messages are recorded
        self._tap: MeshTap | None = None  # while somebody looks at what passes
        self._taps: list[TapPorts] = []
        self._shown: tuple[int, Filter] | None = None  # what is wanted, and its version, at the last look
        if recording is not None and files is not None:
            self._begin_recording(files, recording.messages_max)

    # -- publishing -----------------------------------------------------------------------------------

    def publish(self, topic: str, value: object, *, to: str | UUID | None = None) -> int:
        """Send a value to every subscriber to a prefix of ``topic``, or ``to`` one endpoint alone.

        Returns the number of receivers: endpoints in reach that want the topic or have originals that do, and
        originals beside this one; 0 if it went nowhere. It is on its way when this returns. The endpoint's own
        subscribers do not get it, except for one of a queue whose share it is, which counts too. If a peer has no room
        and the policy is ``block``, this waits (Ctrl-C ends the wait); so it does, 5 s at most, while hooks run that
        were called before.

        Args:
            topic: At most 65,535 bytes.
            value: Any value that ``chappe.data.convert`` can convert, or a message of ``chappe.data.zeek``.
            to: Id of the only receiver, whatever its subscriptions: a subscriber there gets it if its prefix fits.

        Raises:
            UnsupportedValue: The value cannot be converted.
            UsageError: The topic is too long or reserved, or the message larger than 64 MiB.
            NotPermitted: The permissions do not let this identity publish there.
            Unreachable: There is no route to the endpoint ``to``.
            Sealed: The topic is sealed for a group, of which this endpoint has no keys. With the policy ``block`` keys
                that others hand on are waited for, 10 s at most.
            Closed: The endpoint was closed.
        """
        raw, payload = encode_topic(topic), encode_value(value)
        receiver = NOBODY if to is None else as_id(to).bytes
        since = None
        keys = KeysWait(self.waits)
        while True:
            try:
                peers = self.try_publish(raw, payload, receiver, since=since)
            except Sealed as error:
                self._turns.wait(lambda: False, keys.wait_s(error))
                continue
            if peers is not None:
                return peers
            since = since or time.monotonic()
            self._wait_for_room((raw,), receiver)

    def publishing(
        self, topic: bytes, payload: bytes, receiver: bytes = NOBODY, deadline: float = math.inf
    ) -> Steps[int]:
        """Publish in steps. Returns and raises as ``publish``; TimedOut without room by ``deadline``."""
        since = None
        keys, call = KeysWait(self.waits), hook_call.get()
        while True:
            try:
                peers = self.try_publish(topic, payload, receiver, since=since)
            except Sealed as error:
                yield (lambda: False), keys.wait_s(error)
                continue
            if peers is not None:
                return peers
            since = since or time.monotonic()
            if not (yield (lambda: self.room((topic,), receiver, call)), time_left(deadline)):
                self.check()
                raise TimedOut("there was no room for the message in time: a peer or subscriber takes too little")

    def try_publish(
        self,
        topic: bytes,
        payload: bytes,
        receiver: bytes = NOBODY,
        source: int | None = None,
        kind: int = DATA,
        since: float | None = None,
    ) -> int | None:
        """Publish an encoded message; return None if there is no room. Returns and raises as ``publish``.

        ``source`` is the number of a subscriber behind this endpoint that publishes through it, as a peer
        would: then the endpoint's other subscribers get it too. ``kind`` is DATA, or COMMAND for those of data stores.
        ``since`` is the time of the first attempt.
        """
        with self._lock:
            self.check()
            if (self.hooks is not None and self._is_held(hook_call.get())) or not self.core.room((topic,), receiver):
                return None
            if self.permitted is not None:
                self.permitted.publish((topic,), kind, payload)
            now = time.monotonic()
            plain = payload
            if self.node.sealing is not None:
                payload = self.node.sealing.seal(topic, payload, kind, receiver)
            flushes = self.core.publish(topic, payload, kind, receiver, now, since)
            reached = self.core.router.reached
            if self._record is not None and receiver == NOBODY:
                self._record(topic, payload, kind)
            if receiver != NOBODY and not flushes:
                raise Unreachable(f"there is no way to endpoint {UUID(bytes=receiver)}: wait for it with await_peer")
            if self._tap is not None:
                self._tap.published(topic, payload, kind, receiver)
            self.node.send_soon(flushes, now, len(payload))
            if source is not None or (receiver == NOBODY and self.node.member.queues.of):
                here = self.node.member.deliver_published(topic, plain, source)
                self.node.driver.perform(here)
                reached += 1 if here and source is None else 0
            self._done()
            return reached

    def publish_batch(self, messages: Iterable[tuple[str, object]]) -> int:
        """Send many messages, each a topic and a value: much faster than one by one. Raises as ``publish``.

        Returns how many were handed to at least one peer; the others have no subscribers in reach. Messages
        before a value that cannot be converted stay sent.
        """
        total = 0
        for chunk in self.chunks(messages):
            since = wanted = None
            keys = KeysWait(self.waits)
            while wanted is None:
                try:
                    wanted = self.try_publish_many(chunk, since)
                except Sealed as error:
                    self._turns.wait(lambda: False, keys.wait_s(error))
                    continue
                if wanted is None:
                    since = since or time.monotonic()
                    self._wait_for_room(dict.fromkeys(topics_of(chunk)))
            total += wanted
        return total

    def chunks(self, messages: Iterable[tuple[str, object]]) -> Iterator[list[tuple[bytes, bytes]]]:
        """Encode messages in lists that ``try_publish_many`` takes."""
        return chunks(messages, self.at_once, self._chunk_bytes)

    def try_publish_many(self, chunk: list[tuple[bytes, bytes]], since: float | None = None) -> int | None:
        """Publish encoded messages; return None if there is no room. Returns and raises as ``publish_batch``.

        ``since`` is the time of the first attempt.
        """
        with self._lock:
            self.check()
            if (self.hooks is not None and self._is_held(hook_call.get())) or not self.core.room(topics_of(chunk)):
                return None
            if self.permitted is not None:
                self.permitted.publish(topics_of(chunk), DATA)
            self.node.gatherer.at_once()  # the chunk may be as large as what waits for a peer may be
            if not self.node.member.queues.of:
                wanted = self._publish_many(chunk, since)
            else:
                wanted = sum([self._publish_shared(each, since) for each in chunk])
            self._done()
            return wanted

    def _publish_shared(self, message: tuple[bytes, bytes], since: float | None) -> int:
        """Publish a message that a queue's member here may own: one by one, as its place is part of who does."""
        wanted = self._publish_many([message], since)
        here = self.node.member.deliver_published(*message, None)
        self.node.driver.perform(here)
        return 1 if wanted or here else 0

    def _publish_many(self, chunk: list[tuple[bytes, bytes]], since: float | None) -> int:
        if self.node.sealing is None:
            flushes, wanted = self.core.publish_many(chunk, time.monotonic(), since)
        else:
            chunk, flushes, wanted = self._publish_sealed(chunk, self.node.sealing, since)
        if (record := self._record) is not None:
            for topic, payload in chunk:
                record(topic, payload, DATA)
        if self._tap is not None:
            self._tap.published_many(chunk)
        self.node.driver.perform(flushes)
        return wanted

    def _publish_sealed(
        self, chunk: list[tuple[bytes, bytes]], sealing: MeshSealing, since: float | None
    ) -> tuple[list[tuple[bytes, bytes]], Sequence[Flush], int]:
        """Publish a chunk of which some may be sealed; also return its published form."""
        runs: list[tuple[int, list[tuple[bytes, bytes]]]] = []  # how many were sealed, and as what they travel
        for topic, run in groupby(chunk, itemgetter(0)):
            plain = [payload for _, payload in run]
            payloads = sealing.seal_many(topic, plain) if sealing.seals(topic) else plain
            runs.append((len(plain), [(topic, payload) for payload in payloads]))
        flushes: dict[Flush, None] = {}
        wanted, now = 0, time.monotonic()
        for size, messages in runs:
            more, got = self.core.publish_many(messages, now, since)
            flushes.update(dict.fromkeys(more))
            wanted += size if got else 0
        return [each for _, messages in runs for each in messages], list(flushes), wanted

    def room(self, topics: Iterable[bytes], receiver: bytes = NOBODY, call: object = None) -> bool:
        """True if ``publish`` there would not wait now; takes the lock. ``call`` is the publisher's ``hook_call``."""
        with self._lock:
            return not self._is_held(call) and self.core.room(topics, receiver)

    def _is_held(self, call: object) -> bool:
        """Return True if hooks publish first and ``call`` is not one of their calls; the lock is held."""
        return self.hooks is not None and not self._closing and self.hooks.holds(call)

    @property
    def closing(self) -> bool:
        """True once the endpoint says goodbye or is closed."""
        return self._closing or self._turns.closed

    @property
    def buffered(self) -> int:
        """The number of messages that wait for the peer that is furthest behind."""
        with self._lock:
            return self.core.buffered()

    # -- for subscribers, publishers and stores, with the lock held -----------------------------------

    def check(self) -> None:
        """Raise Closed, or MemberStopped if a defect has stopped the endpoint."""
        if self._closing or self._turns.closed:  # not by a property: each publication asks
            raise Closed(CLOSED)
        self._turns.check()

    def call_when_done(self, asked: Asked, function: Callable[[Any], object], name: str) -> None:
        """Call ``function`` with the outcome of a question, in a thread of its own, without the lock."""

        def answer() -> None:
            asked.wait(None)
            function(asked.outcome)

        thread = machine.current().thread(answer, name)
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)
        thread.start()

    def forget(self, number: int) -> None:
        """End a subscription; the lock is held."""
        if self._subscribers.pop(number, None) is not None and self.node.runs():
            self.node.do(self.node.member.unsubscribe(number, time.monotonic()))

    def require_subscribe(self, topics: Iterable[bytes]) -> None:
        """Raise NotPermitted if our identity may have nothing of one of these."""
        if self.permitted is not None:
            self.permitted.subscribe([each for each in topics if not is_local(each)])

    def take(self, taker: Any, topics: list[bytes], kind: int) -> None:
        """Hand messages of a kind to ``taker.deliver``, until the endpoint closes it."""
        with self._lock:
            self.check()
            self.require_subscribe(topics)
            number = next(self.numbers)
            self._subscribers[number] = taker
            self.node.do(self.core.subscribe(number, topics, kind, now=time.monotonic()))

    def watch_room(self, waiting: QueueWaiting, on: bool) -> None:
        """Begin or stop telling a publisher's descriptor whether there is room."""
        with self._lock:
            if on:
                self._rooms[waiting] = None
                self._turns.listen(waiting.changed)
            elif waiting in self._rooms:
                del self._rooms[waiting]
                self._turns.unwatch(waiting.changed)
                waiting.close()

    def report(self, event: object) -> None:
        """Log an event, and hand it to status subscribers, stores and the recorder."""
        if isinstance(event, DefectContained):
            logger.error("%s", event, exc_info=event.error, extra={"defect": True})
        else:
            logger.info("%s", event)
        if isinstance(event, PeerLost):
            for store in self.stores:
                store.lost_peer = event
        for each in self.listening:
            each.report(event)
        if not self._telling:
            self._tell(event)
        if self._recorder is not None:
            self._recorder.hear(event)

    # -- inside ---------------------------------------------------------------------------------------

    def _tell(self, event: object) -> None:
        """Hand a report to subscribers of the endpoint's own topics; that itself causes no further report."""
        found = told(event)
        if found is None:
            return
        self._telling = True
        try:
            for effect in self.core.deliver_here(found[0], encode_value(found[1]), 0):
                self.deliver(effect.to, effect.messages)
        finally:
            self._telling = False

    def question(self, owner: object = None) -> Asked:
        """Make a question that ``resolve`` answers; the lock is held."""
        self.check()
        return Asked(self._turns, self.asked, next(self.numbers), owner)

    def _done(self) -> None:
        self._turns.tell()  # publishing brings nothing that is due before a sleeper looks anyway
        if self._rooms:
            for waiting in self._rooms:
                waiting.changed()

    def _wait_for_room(self, topics: Iterable[bytes], receiver: bytes = NOBODY) -> None:
        call = hook_call.get()  # other threads ask for us
        self._turns.wait(lambda: self.room(topics, receiver, call))
        self.check()

    def deliver(self, number: int, found: list[Any]) -> None:
        subscriber = self._subscribers.get(number)
        if subscriber is not None:
            subscriber.deliver(found)

    def resolve(self, ticket: int, outcome: object) -> None:
        if (asked := self.asked.get(ticket)) is not None:
            asked.answer(outcome)

    def hear(self, number: int, store: Any) -> None:
        """Hand a data store's changes to its ``deliver``, to none for None; the lock is held."""
        if store is None:
            self._subscribers.pop(number, None)
        else:
            self._subscribers[number] = store

    def feed(self, feed: Feed | None) -> None:
        with self._lock:
            tap = self._tap = None if feed is None else MeshTap(self.core, feed)
            self.node.tapped = None if tap is None else tap.came
            self.node.member.tapped = None if tap is None else tap.published

    def wants(self) -> Wants | None:
        with self._lock:
            settled, own = self.core.settled, self.core.router.subscriptions.filter
            if (settled, own) == self._shown:
                return None
            self._shown = settled, own
            filters = self.core.filters()
        everybody = {"here": own, **{named(each): found for each, found in filters.items()}}
        return {(who, topic): ("data",) for who, found in everybody.items() for topic in found}

    def _begin_recording(self, files: RecordingFiles, messages_max: int | None) -> None:
        recorder = EndpointRecorder(files, messages_max, self._turns.run, self.report, self._end_recording)
        with self._lock:
            self._recorder = recorder
            self._record = self.node.member.record = recorder.record
            self.node.member.note_filter = recorder.note_filter

    def _end_recording(self) -> None:
        self._record = self.node.member.record = None


class Publisher(Closeable):
    """Publishes to one topic, and tells how much room there is. Made by ``Endpoint.publisher``; thread-safe."""

    def __init__(self, endpoint: EndpointHost, topic: str) -> None:
        own(self)
        self.topic = topic
        self._endpoint = endpoint
        raw = (encode_topic(topic),)
        self._waiting = QueueWaiting(endpoint.node.turns, lambda: endpoint.room(raw))
        endpoint.watch_room(self._waiting, True)

    def publish(self, value: object) -> int:
        """Publish a value, as ``Endpoint.publish`` does."""
        return self._endpoint.publish(self.topic, value)

    def publish_batch(self, values: Iterable[object]) -> int:
        """Publish many values, as ``Endpoint.publish_batch`` does."""
        topic = self.topic
        return self._endpoint.publish_batch((topic, value) for value in values)

    @property
    def buffered(self) -> int:
        """The number of messages that wait for the peer that is furthest behind."""
        return self._endpoint.buffered

    @property
    def capacity(self) -> int:
        """How many messages can wait for one peer; then the endpoint's policy ``on_full`` applies."""
        return self._endpoint.capacity

    def fd(self) -> int:
        """Return a descriptor that is readable while ``publish`` does not wait: for select, poll and event loops."""
        return self._waiting.fileno()

    def close(self) -> None:
        """Release the descriptor; published messages are still sent."""
        self._endpoint.watch_room(self._waiting, False)
