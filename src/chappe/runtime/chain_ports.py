"""Servers and clients of chains on their sockets: ZeroMQ, the process's loop, the disk.

A server has one socket that others speak to, servers and clients, and answers clients there; to each other server it
speaks over a connection of its own. What the disk has to do is done on a lane of the worker's, a write and what gathers
meanwhile one after the other; while a vote is written, the server hears nothing, and the others of the process go on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import zmq

from chappe.errors import ProtocolError, StorageError, UsageError
from chappe.replication.agreement.core import Keep
from chappe.replication.chain.actions import Applied, Change, Reply, Save, Tell, Write
from chappe.replication.chain.client import ChainClient, Send
from chappe.replication.chain.core import ChainServer
from chappe.replication.chain.wire import (
    ANSWER,
    FRAME_BYTES_MAX,
    REQUEST,
    SERVER,
    AnyAnswer,
    AnyRequest,
    Exclude,
    Excluded,
    Look,
    Other,
    Refused,
    Seen,
    decode_header,
    encode_header,
    encode_one,
    pack,
    unpack_answers,
    unpack_between,
    unpack_requests,
)
from chappe.runtime.chain_answers import Unread
from chappe.runtime.chain_rules import ChainRules
from chappe.runtime.kv_node import CLOSE_S
from chappe.runtime.socket_node import Frames, SocketNode
from chappe.runtime.worker import DISKS, Lane
from chappe.storage.chain_files import ChainFiles
from chappe.system import time
from chappe.transports.addresses import bind
from chappe.transports.gate import Gate
from chappe.transports.maps import MapAddress, requester, send
from chappe.transports.zeromq import open_socket

QUEUE_MESSAGES: Final = 64  # of one connection, in ZeroMQ; they have a megabyte each at most, or one large command
LEAVE_S: Final = 1.0  # who ends in good order waits so long for the others to go on without it
CONNECTIONS_WAITING: Final = 1_024  # to be accepted: clients come back at once after a restart


class _Out:
    """Has what was gathered sent."""


OUT: Final = _Out()
Told = Callable[[Sequence[Applied], bool], None]
Done = Callable[[float], Sequence[object]]
NotDone = Callable[[float, str], Sequence[object]]  # with the reason


class _Core(Protocol):
    """What servers and clients have in common."""

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is due."""

    def handle_timeout(self, now: float) -> Sequence[object]:
        """Do what is due."""


class _Paced:
    """A core as a ``SocketNode`` drives it: it stands still while a vote is written, and what it sends is gathered."""

    def __init__(self, core: _Core, flush: Callable[[float], Sequence[object]]) -> None:
        self.core = core
        self.still = False
        self._flush = flush

    def next_timeout(self) -> float:
        """See ``socket_node.Core``."""
        return math.inf if self.still else self.core.next_timeout()

    def handle_timeout(self, now: float) -> Sequence[object]:
        """See ``socket_node.Core``."""
        return self.core.handle_timeout(now)

    def flush(self, now: float) -> Sequence[object]:
        """See ``socket_node.Core``."""
        return [OUT] if self.still else [*self._flush(now), OUT]


class _Peers:
    """Connections by which a node speaks to servers: to each its own, so that one that is slow holds up no other.

    What a full queue does not take is dropped: whoever sent it says it again.
    """

    def __init__(
        self,
        node: SocketNode,
        addresses: Sequence[MapAddress | None],
        header: bytes,
        answered: Callable[[int, Frames], Sequence[object]],
    ) -> None:
        self.dropped = 0
        self._node = node
        self._header = header
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        self._gathered: dict[int, list[bytes]] = {}
        for place, address in enumerate(addresses):
            if address is None:
                continue
            made = self._sockets[place] = requester(node.gate)
            made.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
            made.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
            node.watch(made, partial(answered, place))
            node.dial(made, address.endpoint(0), hear=True)

    def gather(self, place: int, message: bytes) -> None:
        """Have it sent with what else comes until ``out``."""
        self._gathered.setdefault(place, []).append(message)

    def out(self) -> None:
        """Send what was gathered."""
        gathered, self._gathered = self._gathered, {}
        for place, messages in gathered.items():
            sock = self._sockets[place]
            self._node.used(sock)
            for frame in pack(messages):
                try:
                    send(sock, [self._header, frame])
                except zmq.Again:
                    self.dropped += 1


class ChainServerNode(SocketNode):
    """Runs one server.

    Args:
        addresses: Of all named servers, in order; at its own place where it listens.
        chain: Which one it is, as ``wire.chain_of`` says.
        core: Made with what ``files`` have.
        files: Its disk; None: it keeps nothing, not even its votes.
        rules: Of a server with keys.
        on_applied: Called with the lock held with what was committed and done, and whether this is the tail.
    """

    def __init__(
        self,
        addresses: Sequence[MapAddress],
        chain: bytes,
        core: ChainServer,
        *,
        files: ChainFiles | None,
        gate: Gate | None,
        rules: ChainRules | None,
        on_report: Callable[[Any], None],
        on_applied: Told | None,
    ) -> None:
        self._paced = _Paced(core, core.flush)
        super().__init__(self._paced, "server of a chain", on_report, gate)
        self.core = core
        self.rules = rules
        self._files = files
        self._lane = Lane(DISKS, self.turns.run)
        self._in_work: Change | None = None  # the newest state that the disk was given
        self._chain = chain
        self._on_applied = on_applied
        self.on_flush: Callable[[], None] | None = None  # called after all that it did, with the lock held
        self._inbox: deque[Callable[[], Sequence[object]]] = deque()  # what came while a vote was written
        self._replies: dict[bytes, list[bytes]] = {}
        self._unread = Unread()
        core.news = None if on_applied is None else []
        self.table |= {
            Keep: self._keep,
            Write: self._write,
            Save: self._save,
            Tell: self._tell,
            Reply: self._reply,
            _Out: self._out,
        }
        try:
            own = addresses[core.place]
            self._router = open_socket(zmq.ROUTER, gate)
            self._router.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
            self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self._router.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
            self._router.setsockopt(zmq.BACKLOG, CONNECTIONS_WAITING)
            if gate is not None:
                self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
            self._hear = self.watch(
                self._router, partial(self._on_frames, ""), lambda: self._paced.still, self._on_frames, addresses=True
            )
            port = bind(self._router, own.host, own.port, gate)
            self.address = MapAddress(own.host, port, "" if gate is None else gate.name)
            others = [None if place == core.place else each for place, each in enumerate(addresses)]
            self._peers = _Peers(self, others, encode_header(SERVER, core.place, chain), _nothing)
        except BaseException:
            self.release()
            self._close_files()
            raise

    def start(self) -> None:
        """Begin."""
        with self.lock:
            self.do(self.core.start(time.monotonic()))
        self.turns.start()

    def close(self) -> None:
        """Have the others go on without this server, finish the write under way, and release everything."""
        if not self.turns.closed and self.turns.halted is None:
            with self.lock:
                self.core.leave(time.monotonic())
                self.turns.look_again_at(0.0)
            alone = self.core.configuration.places in ((), (self.core.place,))
            self.turns.wait(lambda: alone or not self.core.member, LEAVE_S)
        if not self.turns.closed:
            self._close_files()
        super().close()

    def _stopped(self, reason: str) -> None:
        super()._stopped(reason)
        if self.on_flush is not None:
            self.on_flush()

    def _close_files(self) -> None:
        self._lane.close(CLOSE_S, None if self._files is None else self._files.close)

    # -- what comes --------------------------------------------------------------------------------------------------

    def _on_frames(self, who: str, frames: Frames) -> Sequence[object]:
        if self._paced.still:  # the rest of what was taken from the socket together
            self._inbox.append(lambda: self._take(who, frames))
            return ()
        return self._take(who, frames)

    def _take(self, who: str, frames: Frames) -> Sequence[object]:
        if len(frames) != 3:
            raise ProtocolError(f"a message of {len(frames)} frames to a server of a chain")
        header = decode_header(frames[1])
        if header.chain != self._chain:
            if header.kind == REQUEST:
                why = "this server has another chain: compare the names, and fixed, in the files"
                refused = pack([encode_one(Refused(why))])
                self._send(frames[0], encode_header(ANSWER, self.core.place, header.chain), refused)
            raise ProtocolError("a message to another chain: names of chain and servers, or fixed, differ in the files")
        if header.kind == SERVER:
            return self._from_server(who, header.place, frames[2])
        if header.kind != REQUEST:
            raise ProtocolError("an answer to a server of a chain")
        return self._from_client(who, frames[0], frames[2])

    def _from_server(self, who: str, place: int, frame: bytes) -> Sequence[object]:
        core = self.core
        if place >= len(core.names) or place == core.place:
            raise ProtocolError(f"a message of a server at the place {place} of the chain")
        if self.rules is not None and not self.rules.server(who, place):
            return ()
        return self._each([partial(core.handle_message, place, each) for each in unpack_between(frame)])

    def _from_client(self, who: str, client: bytes, frame: bytes) -> Sequence[object]:
        self._unread.said(client)
        return self._each([partial(self._request, who, client, each) for each in unpack_requests(frame)])

    def _each(self, inputs: Sequence[Callable[[float], Sequence[object]]]) -> Sequence[object]:
        """Hand on messages that came together, until one of them has a vote written: then the rest waits."""
        now = time.monotonic()
        for number, each in enumerate(inputs):
            self.perform(each(now))
            if self._paced.still:
                self._inbox.extendleft(reversed([self._later(rest) for rest in inputs[number + 1 :]]))
                break
        return ()

    def _later(self, handle: Callable[[float], Sequence[object]]) -> Callable[[], Sequence[object]]:
        return lambda: handle(time.monotonic())

    def _request(self, who: str, client: bytes, request: AnyRequest, now: float) -> Sequence[object]:
        why = "" if self.rules is None else self.rules.request(who, request)
        if why:
            self._answer(client, Refused(why[:1_000]))
            return ()
        match request if self.rules is None else self.rules.heard(who, request):
            case Look(token):
                self._answer(client, self.seen(token, now))
            case Exclude(token, place, out):
                self._answer(client, Excluded(token, self.ask_out(place, out)))
            case asked:
                return self.core.handle_request(client, asked, who.encode(), now)
        return ()

    def ask_out(self, place: int, out: bool) -> str:
        """Have a server stay out of the chain, or come back; returns why that cannot be. The lock is held."""
        if place >= len(self.core.names):
            return f"the chain has {len(self.core.names)} servers"
        try:
            self.core.ask_out(place, out, time.monotonic())
        except UsageError as error:
            return str(error)
        self.turns.look_again_at(0.0)
        return ""

    def seen(self, token: int, now: float) -> Seen:
        """How this server is; the lock is held."""
        core, status = self.core, self.core.status(now)
        out = tuple(name for name, left in zip(core.names, core.configuration.out, strict=False) if left)
        others = tuple(Other(*each) for each in status.others)
        return Seen(
            token, core.place, status.number, status.members, out, core.configuration.durable, status.end,
            status.synced, status.committed, others, core.replica.sessions, self.malformed, status.why[:1_000],
        )  # fmt: skip

    # -- what goes ---------------------------------------------------------------------------------------------------

    def _tell(self, action: Tell) -> None:
        self._peers.gather(action.server, encode_one(action.message))

    def _reply(self, action: Reply) -> None:
        self._answer(action.client, action.message)

    def _answer(self, client: Hashable, message: AnyAnswer) -> None:
        assert isinstance(client, bytes)
        self._replies.setdefault(client, []).append(encode_one(message))

    def _out(self, action: _Out) -> None:
        self._tell_applied()
        if self.on_flush is not None:
            self.on_flush()
        self._peers.out()
        if not self._replies:
            return
        replies, self._replies = self._replies, {}
        header = encode_header(ANSWER, self.core.place, self._chain)
        self.used(self._router)
        for client, messages in replies.items():
            self._send(client, header, pack(messages))

    def _send(self, client: bytes, header: bytes, frames: Sequence[bytes]) -> None:
        try:
            for frame in frames:
                if self._unread.may_send(client, len(frame)):
                    send(self._router, [client, header, frame])
        except zmq.ZMQError as error:  # its queue is full, and it will ask again; or it is not there any more
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise

    def _tell_applied(self) -> None:
        if self.core.news and self._on_applied is not None:
            news, self.core.news = self.core.news, []
            self._on_applied(news, self.core.tail)

    # -- the disk ----------------------------------------------------------------------------------------------------

    def perform(self, actions: Sequence[object]) -> None:
        """Carry out actions in order, those behind a vote when it is on disk; the lock is held."""
        if self._files is not None:
            for number, action in enumerate(actions):
                if isinstance(action, Keep):
                    super().perform(actions[:number])
                    self._begin_to_keep(action, actions[number + 1 :])
                    return
        super().perform(actions)

    def _keep(self, action: Keep) -> None:
        """There is no disk."""

    def _begin_to_keep(self, action: Keep, rest: Sequence[object]) -> None:
        files = self._files
        assert files is not None
        assert not self._paced.still
        self._paced.still = True
        self._lane.do(lambda: _tried(partial(files.keep, action.memory)), lambda error: self._kept(error, rest))

    def _kept(self, error: StorageError | None, rest: Sequence[object]) -> None:
        self._paced.still = False
        self.perform(rest if error is None else self.core.handle_not_kept(time.monotonic(), str(error)))
        while self._inbox and not self._paced.still:
            try:
                self.perform(self._inbox.popleft()())
            except ProtocolError as problem:
                self.complain(problem)
        if not self._paced.still:
            self._suspect(self._hear)
            self.look_at(0.0)
            self.do(())

    def _write(self, action: Write) -> None:
        core, change = self.core, action.change
        if change.state is None:
            assert self._files is not None
            work = partial(self._files.write, change)
            self._lane.do(lambda: _tried(work), partial(self._after, core.handle_written, core.handle_not_written))
        else:
            self._in_parts(change, core.handle_written, core.handle_not_written)

    def _save(self, action: Save) -> None:
        self._in_parts(action.change, self.core.handle_saved, self.core.handle_not_saved)

    def _in_parts(self, change: Change, done: Done, refused: NotDone) -> None:
        """Write a state; other work for the disk, such as a vote, comes between two parts.

        One that is written already is given up for it: a server that joins may have begun to save as a member.
        """
        files = self._files
        assert files is not None
        self._in_work = change

        def written(error: StorageError | None) -> None:
            if self._in_work is not change:
                self._after(done, refused, None)
            elif error is None and files.saving:
                self._lane.do(lambda: _tried(files.save_more), written)
            else:
                self._after(done, refused, error)

        self._lane.do(lambda: _tried(partial(files.save, change)), written)

    def _after(self, done: Done, refused: NotDone, error: StorageError | None) -> None:
        """Tell the core the result of a disk operation."""

        def tell() -> Sequence[object]:
            now = time.monotonic()
            return done(now) if error is None else refused(now, str(error))

        if self._paced.still:
            self._inbox.append(tell)
        else:
            self.do(tell())


class ChainClientNode(SocketNode):
    """Runs one client.

    Args:
        addresses: Of all named servers, in order.
        chain: Which chain is meant.
        answered: Called with the lock held with what only servers' administrators ask, and with refusals.
    """

    def __init__(
        self,
        addresses: Sequence[MapAddress],
        chain: bytes,
        core: ChainClient,
        *,
        gate: Gate | None,
        on_report: Callable[[Any], None],
        answered: Callable[[int, Seen | Excluded | Refused], None],
    ) -> None:
        super().__init__(_Paced(core, core.flush), "client of a chain", on_report, gate)
        self.core = core
        self._chain = chain
        self._answered = answered
        self.table |= {Send: self._send, _Out: self._out}
        try:
            self._peers = _Peers(self, addresses, encode_header(REQUEST, 0, chain), self._on_answers)
        except BaseException:
            self.release()
            raise

    def ask(self, place: int, question: Look | Exclude) -> None:
        """Ask one server what only administrators ask; the lock is held, ``do`` follows."""
        self._peers.gather(place, encode_one(question))

    def _out(self, action: _Out) -> None:
        self._peers.out()

    def _send(self, action: Send) -> None:
        self._peers.gather(action.server, encode_one(action.message))

    def _on_answers(self, place: int, frames: Frames) -> Sequence[object]:
        if len(frames) != 2:
            raise ProtocolError(f"an answer of {len(frames)} frames of a server of a chain")
        header = decode_header(frames[0])
        if header.kind != ANSWER or header.place != place or header.chain != self._chain:
            raise ProtocolError("an answer of another server than was asked")
        now = time.monotonic()
        for each in unpack_answers(frames[1]):
            if isinstance(each, Seen | Excluded | Refused):
                self._answered(place, each)
            else:
                self.perform(self.core.handle_answer(place, each, now))
        self.turns.news = True
        return ()


def _tried(work: Callable[[], None]) -> StorageError | None:
    """What a disk refuses is no defect."""
    try:
        work()
    except StorageError as problem:
        return problem
    return None


def _nothing(place: int, frames: Frames) -> Sequence[object]:
    raise ProtocolError("servers of a chain answer over connections of their own")
