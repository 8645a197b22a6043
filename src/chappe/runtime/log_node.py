"""A node: one core on its sockets.

Any thread may drive a node: a lock guards the sockets and the core, and waiting is done outside of it on the
sockets' file descriptors. A thread of the node's own does so whenever no user's thread is waiting in ``pump``;
so records reach a waiting user, and leave a sending one, without changing threads.
"""

from __future__ import annotations

import errno
import logging
import math
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import zmq

from chappe.core import Halt, Report
from chappe.defaults import FULL_PEER_WAIT_S, MIB, SUBSCRIPTION_BYTES_MAX
from chappe.errors import MemberStopped, ProtocolError, StorageError
from chappe.log.actions import Action, Ask, Beacon, Connect, Disconnect, Publish, Subscribe, TakeOver, Unsubscribe
from chappe.log.beacon import BEACON, GOODBYE, WELCOME, Discovery
from chappe.log.events import MachineRefused, Stopped
from chappe.log.messages import Message, decode, encode
from chappe.log.queries import Answer
from chappe.system.forking import own
from chappe.system.limits import need_descriptors
from chappe.transports.addresses import TowerAddress, bind, reachable_host
from chappe.transports.dealers import Dealers
from chappe.transports.publishing import RETRY_S, PublishingSocket
from chappe.transports.zeromq import open_socket

logger = logging.getLogger(__name__)

DRAIN_MAX: Final = 256  # messages taken from one socket before the others get their turn ...
DRAIN_BYTES: Final = MIB  # ... or so many bytes: what a user takes next is still in the processor's cache
GRACE_S: Final = 0.05  # the node's own thread stays away this long after a user's thread drove ...
GRACE_SENDING_S: Final = 0.001  # ... or so long where users send
COMPLAIN_S: Final = 10.0  # malformed messages are logged at most this often, and so is what the machine refuses
YIELD_S: Final = 0.000_1  # enough for a thread that waits for the lock to get it
REFUSED_S: Final = 1.0  # what is due waits so long after the machine refused it
# What a machine refuses today and may grant tomorrow. Everything else that is raised is a defect of ours.
REFUSALS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EIO, errno.ENOSPC,
                             errno.EDQUOT, errno.ESTALE})  # fmt: skip
T = TypeVar("T", bytes, zmq.Frame)
_NOBLOCK: Final = int(zmq.NOBLOCK)


def is_refusal(error: Exception) -> bool:
    """Whether it is the machine that refuses, and not a defect of ours."""
    if isinstance(error, (OSError, zmq.ZMQError)):
        return error.errno in REFUSALS
    return isinstance(error, StorageError)


def wall_us() -> int:
    """The time of day in microseconds since 1970 UTC."""
    return time.time_ns() // 1000


class Role(Protocol):
    """What a node runs: the core of a producer, a consumer or a store."""

    address: str

    def start(self, now: float) -> list[Action]:
        """Begin."""

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Action]:
        """A peer subscribed to our publications, or no longer."""

    def handle_message(self, message: Message, now: float, wall_us: int) -> list[Action]:
        """A peer published something."""

    def handle_gone(self, address: str, now: float) -> list[Action]:
        """A member left."""

    def handle_timeout(self, now: float) -> list[Action]:
        """Do what is due."""

    def next_timeout(self) -> float:
        """When something is due."""


class Node:
    """Runs one core.

    Args:
        role: The core.
        towers: Where to announce it and to learn of others.
        listen: Host to listen on; ``*`` for all interfaces.
        on_report: Called with every event, with the lock held: it must be quick and not call back.
        perform: Further actions by their class.
        idle: Called with the lock held before each wait: what piled up is to be sent now. Returns how many seconds
            it may be until it is called again.
        full_peer_wait_s: How long ``publish`` waits for a peer whose queue is full.

    An exception that is neither of the protocol nor of the machine is a defect: ``halted`` says so from then on, a
    ``Stopped`` event is reported, and every thread that waits is woken.
    """

    def __init__(
        self,
        role: Role,
        towers: Sequence[TowerAddress],
        listen: str,
        *,
        on_report: Callable[[object], None],
        perform: dict[type, Callable[[Any], None]] | None = None,
        idle: Callable[[], float] | None = None,
        full_peer_wait_s: float = FULL_PEER_WAIT_S,
    ) -> None:
        own(self)
        need_descriptors()
        self.role = role
        self.lock = threading.RLock()
        self.malformed = 0
        self.halted: str | None = None
        self.halt_event = threading.Event()
        self.closed = False
        self._on_report = on_report
        self._idle = idle
        # A thread that gathers records to be sent is not driving: somebody must look after them meanwhile.
        self._grace_s = GRACE_S if idle is None else GRACE_SENDING_S
        self._dealers = Dealers(self, self._answered)
        self._perform: dict[type, Callable[[Any], None]] = {
            Publish: lambda action: self.publish(encode(action.message)),
            Subscribe: lambda action: self._sub.setsockopt(zmq.SUBSCRIBE, action.prefix),
            Unsubscribe: lambda action: self._sub.setsockopt(zmq.UNSUBSCRIBE, action.prefix),
            Report: lambda action: on_report(action.event),
            Halt: self._halt,
            Ask: self._dealers.ask,
            Beacon: self._send_beacon,
            Connect: self._connect,
            Disconnect: self._disconnect,
            TakeOver: self._take_over,
            **(perform or {}),
        }
        # Two, since one cannot be used by two threads at once: our own thread's, and the users'.
        self._polls = (select.poll(), select.poll())
        self._users = threading.Lock()
        self._drains: dict[int, Callable[[], bool]] = {}
        self._suspects: list[Callable[[], bool]] = []  # sockets used since their descriptor was last looked at
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._watch(self._wake_read.fileno(), self._drain_wake)
        self._later: deque[Callable[[], None]] = deque()  # what our thread is to do without the lock
        self._callers: deque[None] = deque()  # threads that wait for the lock in ``call``
        self._sleep_until = math.inf
        self._driven_at = -math.inf
        self._complain_at = -math.inf
        self._refused_at = -math.inf  # when the machine refused something last, and it was reported
        self._due_from = -math.inf  # what is due is not done before
        self._stop = threading.Event()
        self._sockets: list[zmq.Socket[bytes]] = []
        try:
            self._open(towers, listen, full_peer_wait_s)
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name=f"chappe-{type(role).__name__}", daemon=True)

    # -- life -----------------------------------------------------------------------------------------

    def _open(self, towers: Sequence[TowerAddress], listen: str, full_peer_wait_s: float) -> None:
        self._pub = PublishingSocket(full_peer_wait_s)
        self._sockets.append(self._pub.socket)
        self.listen = listen
        self.host = reachable_host(listen)
        self.port = bind(self._pub.socket, listen)
        self._sub = open_socket(zmq.SUB)
        self._sockets.append(self._sub)
        self._beacon_pub = open_socket(zmq.XPUB)
        self._sockets.append(self._beacon_pub)
        self._beacon_pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._beacon_pub.setsockopt(zmq.MAXMSGSIZE, SUBSCRIPTION_BYTES_MAX)
        self._beacon_pub.setsockopt(zmq.LINGER, 100)
        self._beacon_sub = open_socket(zmq.SUB)
        self._sockets.append(self._beacon_sub)
        for kind in (BEACON, GOODBYE, WELCOME):
            self._beacon_sub.setsockopt(zmq.SUBSCRIBE, kind)
        self.discovery = Discovery(self.role.address, self.host, self.port, now=time.monotonic())
        for tower in towers:
            self._beacon_pub.connect(f"tcp://{tower.host}:{tower.sub_port}")
            self._beacon_sub.connect(f"tcp://{tower.host}:{tower.pub_port}")
        for each, drain in (
            (self._pub.socket, self._drain_pub),
            (self._sub, self._drain_sub),
            (self._beacon_pub, self._drain_beacon_pub),
            (self._beacon_sub, self._drain_beacon_sub),
        ):
            self.watch_socket(each, drain)

    def open_router(self) -> tuple[zmq.Socket[bytes], int]:
        """A further listening socket for queries, and its port; the caller watches and closes it."""
        router = open_socket(zmq.ROUTER)
        return router, bind(router, self.listen)

    def start(self) -> None:
        """Begin; call once everything else is set up."""
        self.call(self.role.start)
        self._thread.start()

    def close(self) -> None:
        """Say goodbye and release everything; safe to call twice."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self._pub.retry(patient=False)
            self.perform(self.discovery.goodbye())
        self._stop.set()
        self.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        with self.lock:
            self._release()

    def _release(self) -> None:
        for each in self._sockets:
            each.close()
        self._dealers.close()
        self._wake_read.close()
        self._wake_write.close()

    # -- driving --------------------------------------------------------------------------------------

    def call(self, method: Callable[..., Sequence[Action]], *args: object) -> None:
        """Make one call into the core and carry out its answer; from any thread."""
        self._callers.append(None)
        with self.lock:
            self._callers.pop()
            if self.closed or self.halted is not None:
                return
            try:
                self.perform(method(*args, now=time.monotonic()))
            except Exception as error:  # also of the machine: what is told here is told once
                self.halt(error)
            if self.role.next_timeout() < self._sleep_until:
                self.wake()

    def check(self) -> None:
        """Raise MemberStopped if the member met a defect."""
        if self.halted is not None:
            raise MemberStopped(self.halted)

    def halt(self, error: Exception) -> None:
        """A defect of ours: say so to whoever uses the member, rather than live on and serve nobody."""
        logger.error("the member stopped", exc_info=error)
        with self.lock:
            self._halt(Halt(f"the member stopped because of a defect: {error!r}; the log says more"))

    def _refused(self, error: Exception) -> None:
        """Report what the machine refuses; raises the error again if it is a defect of ours."""
        if not is_refusal(error):
            raise error
        now = time.monotonic()
        if now >= self._refused_at + COMPLAIN_S:
            self._refused_at = now
            self._on_report(MachineRefused(str(error)))

    def perform(self, actions: Sequence[Action]) -> None:
        """Carry out actions in order; the lock is held."""
        table = self._perform
        for action in actions:
            table[type(action)](action)

    def pump(self, timeout_s: float, until: Callable[[], bool]) -> None:
        """Wait at most so long for something to happen, and handle it; for a user's thread that does not hold the lock.

        Does not wait if ``until`` (called with the lock held) says that what the user waits for is there.
        """
        self._driven_at = began = time.monotonic()
        if self._users.acquire(timeout=timeout_s):
            try:
                self._pump(max(0.0, began + timeout_s - time.monotonic()), self._polls[1], until)
            finally:
                self._users.release()
        self._driven_at = time.monotonic()

    def serve(self) -> None:
        """Handle what is there, without waiting and without keeping our own thread away."""
        if self._users.acquire(blocking=False):
            try:
                self._pump(0.0, self._polls[1])
            finally:
                self._users.release()

    def later(self, function: Callable[[], None]) -> None:
        """Have our thread call a function soon, without the lock; also if a defect stops it."""
        self._later.append(function)
        self.wake()

    def wake_before(self, at: float) -> None:
        """Make the thread that waits look again no later than ``at``."""
        if self._sleep_until > at:
            self.wake()

    def wake(self) -> None:
        """Make the thread that waits look again."""
        try:
            self._wake_write.send(b"\0")
        except OSError:
            pass  # full: it will look; or closed: nobody is there

    def _run(self) -> None:
        while not self._stop.is_set() and self.halted is None:
            self._do_later()
            away = self._grace_s if self._users.locked() else self._driven_at + self._grace_s - time.monotonic()
            if away > 0:
                self._stop.wait(away)
                continue
            self._pump(1.0, self._polls[0])
            if self._users.locked():
                self.wake()  # what was just handled may be what that thread waits for
        self._do_later()

    def _do_later(self) -> None:
        while self._later:
            self._later.popleft()()

    def _pump(self, timeout_s: float, poll: select.poll, until: Callable[[], bool] | None = None) -> None:
        try:
            self._wait_and_handle(timeout_s, poll, until)
        except Exception as error:
            self.halt(error)

    def _wait_and_handle(self, timeout_s: float, poll: select.poll, until: Callable[[], bool] | None) -> None:
        with self.lock:
            if self.closed or self.halted is not None:
                return
            wait_s = self._before_wait(timeout_s)
            if until is not None and until():
                return
        if self._callers:
            time.sleep(YIELD_S)  # the lock is not fair: who has much to do would keep them out for seconds
        ready = poll.poll(math.ceil(wait_s * 1000) if wait_s > 0.001 else (1 if wait_s > 0 else 0))
        with self.lock:
            self._sleep_until = math.inf
            if self.closed or self.halted is not None:
                return
            for descriptor, _ in ready:
                drain = self._drains.get(descriptor)
                if drain is not None and drain():
                    self._suspects.append(drain)
            self._timeouts()

    def _before_wait(self, timeout_s: float) -> float:
        """Handle what is there already; returns how long to wait for more."""
        self._retry()
        if self._idle is not None:
            timeout_s = min(timeout_s, self._idle())
        if self._pub.waits:
            timeout_s = min(timeout_s, RETRY_S)
        if self._suspects:
            suspects, self._suspects = self._suspects, []
            self._suspects += [drain for drain in suspects if drain()]
        now = self._timeouts()
        if self._pub.choked:
            self._sleep_until = now + timeout_s
            return timeout_s
        if self._suspects:
            return 0.0
        due = min(max(self.role.next_timeout(), self._due_from), self.discovery.next_timeout())
        wait_s = max(0.0, min(timeout_s, due - now))
        self._sleep_until = now + wait_s
        return wait_s

    def _timeouts(self) -> float:
        now = time.monotonic()
        if now >= self.discovery.next_timeout():
            self.perform(self.discovery.handle_timeout(now))
        if now >= max(self.role.next_timeout(), self._due_from) and not self._pub.choked:
            try:
                self.perform(self.role.handle_timeout(now))
            except Exception as error:
                self._refused(error)
                self._due_from = now + REFUSED_S
        return now

    # -- sockets in -------------------------------------------------------------------------------------

    def _watch(self, descriptor: int, drain: Callable[[], bool]) -> None:
        self._drains[descriptor] = drain
        for poll in self._polls:
            poll.register(descriptor, select.POLLIN)

    def watch_socket(self, sock: zmq.Socket[bytes], drain: Callable[[], bool]) -> None:
        """Have ``drain`` called when the socket may have something; it returns whether more is there."""
        self._watch(int(sock.getsockopt(zmq.FD)), drain)
        self._suspects.append(drain)

    def unwatch_socket(self, sock: zmq.Socket[bytes]) -> None:
        """Take back ``watch_socket``."""
        descriptor = int(sock.getsockopt(zmq.FD))
        for poll in self._polls:
            poll.unregister(descriptor)
        self._drains.pop(descriptor, None)

    def suspect(self, drain: Callable[[], bool]) -> None:
        """The socket of ``drain`` was used otherwise: its descriptor may not tell what arrived meanwhile."""
        if drain not in self._suspects:
            self._suspects.append(drain)

    def receive(self, sock: zmq.Socket[bytes], handle: Callable[[list[bytes]], Sequence[Action]]) -> bool:
        """Handle what a socket has; returns whether there may be more. Malformed messages are counted."""
        return self._receive(sock, lambda: sock.recv_multipart(_NOBLOCK), handle)

    def _receive(
        self, sock: zmq.Socket[bytes], take: Callable[[], list[T]], handle: Callable[[list[T]], Sequence[Action]]
    ) -> bool:
        size = 0
        for _ in range(DRAIN_MAX):
            if size >= DRAIN_BYTES:
                return True
            if self._pub.choked:
                return False  # left in the queue, until there is room for what comes of it
            try:
                frames = take()
            except zmq.Again:
                return False
            except zmq.ZMQError:
                if self.closed or sock.closed:  # by what was just handled
                    return False
                raise
            size += len(frames[-1])
            try:
                self.perform(handle(frames))
            except ProtocolError as error:
                self._complain(error)
            except Exception as error:  # this message alone is lost, and whoever sent it asks again
                self._refused(error)
        return True

    def _complain(self, error: ProtocolError) -> None:
        self.malformed += 1
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_S
            logger.warning("dropped a malformed message (%s); %d so far", error, self.malformed)

    def _drain_wake(self) -> bool:
        try:
            return len(self._wake_read.recv(4096)) == 4096
        except OSError:
            return False

    def _retry(self) -> None:
        """Send what waited for a full peer; receiving goes on if too much did."""
        choked = self._pub.choked
        self._pub.retry()
        if choked and not self._pub.choked:
            for drain in self._drains.values():
                self.suspect(drain)

    def _drain_sub(self) -> bool:
        if getattr(self.role, "paused", False):
            # Left in the queue: it is bounded, and whoever is missed by it is read from a store later.
            return False
        return self.receive(self._sub, self._on_message)

    def resume(self) -> None:
        """The core is no longer paused."""
        self.suspect(self._drain_sub)

    def _on_message(self, frames: list[bytes]) -> Sequence[Action]:
        return self.role.handle_message(decode(frames), time.monotonic(), wall_us())

    def _drain_pub(self) -> bool:
        pub = self._pub.socket
        return self._receive(pub, lambda: pub.recv_multipart(_NOBLOCK, copy=False), self._on_subscription)

    def _on_subscription(self, frames: list[zmq.Frame]) -> Sequence[Action]:
        prefix, on = self._pub.subscription(frames)
        return self.role.handle_subscription(prefix, on, time.monotonic())

    def _drain_beacon_pub(self) -> bool:
        def handle(frames: list[bytes]) -> Sequence[Action]:
            return self.discovery.handle_tower_ready(time.monotonic()) if frames[0] == b"\1" + BEACON else ()

        return self.receive(self._beacon_pub, handle)

    def _drain_beacon_sub(self) -> bool:
        return self.receive(self._beacon_sub, lambda frames: self.discovery.handle_beacon(frames, time.monotonic()))

    def _answered(self, request_id: int, answer: Answer, batches: list[bytes]) -> Sequence[Action]:
        handle: Callable[[int, Answer, list[bytes], float], Sequence[Action]] = self.role.handle_answer  # type: ignore[attr-defined]
        return handle(request_id, answer, batches, time.monotonic())

    # -- sockets out --------------------------------------------------------------------------------------

    def publish(self, frames: list[bytes]) -> None:
        """Send to whoever subscribed, without waiting; full peers are waited for a little by whoever drives."""
        self.suspect(self._drain_pub)
        self._pub.send(frames)
        if self._pub.waits:
            self.wake_before(time.monotonic() + RETRY_S)

    def published(self) -> Callable[[], bool]:
        """Tells whether everything published before this call was taken, by full peers too, or lost by them."""
        mark = self._pub.kept
        return lambda: self._pub.sent >= mark

    @property
    def choked(self) -> bool:
        """Whether so much waits for full peers that nothing more should be published."""
        return self._pub.choked

    def _send_beacon(self, action: Beacon) -> None:
        self._beacon_pub.send_multipart(action.frames, zmq.NOBLOCK)
        self.suspect(self._drain_beacon_pub)

    def _connect(self, action: Connect) -> None:
        try:
            self._sub.connect(action.endpoint)
        except zmq.ZMQError as error:
            logger.warning("cannot connect to the member at %s: %s", action.endpoint, error.strerror)
        self.suspect(self._drain_sub)

    def _disconnect(self, action: Disconnect) -> None:
        try:
            self._sub.disconnect(action.endpoint)
        except zmq.ZMQError:
            pass  # it never was connected
        self.suspect(self._drain_sub)
        self.perform(self.role.handle_gone(action.address, time.monotonic()))

    def _take_over(self, action: TakeOver) -> None:
        self.perform(self.role.handle_gone(action.former, time.monotonic()))

    def _halt(self, action: Halt) -> None:
        if self.halted is None:
            self.halted = action.reason
            self.halt_event.set()
            self._on_report(Stopped(action.reason))
            self.wake()
