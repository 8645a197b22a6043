"""Servers and clients of chains on their sockets and their disk.

A server has one socket that others speak to, servers and clients, and answers clients there; to each other server it
speaks over a connection of its own. What came together is answered together: messages wait for ``flushed``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import zmq

from chappe.core import Effect, Reply, Send
from chappe.errors import ProtocolError, StorageError, UsageError
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain.client import ChainClient
from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.events import Applied
from chappe.replication.chain.log import Job, SaveState
from chappe.replication.chain.messages import encode
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
    pack,
    unpack_answers,
    unpack_between,
    unpack_requests,
)
from chappe.runtime.chain_answers import UnreadAnswers
from chappe.runtime.chain_rules import ChainRules
from chappe.runtime.dialling import Connections
from chappe.runtime.driver import Driver, Frames, Inlet, Ports
from chappe.storage.chain_files import ChainFiles
from chappe.system import time
from chappe.transports.addresses import bind
from chappe.transports.gate import Gate, address_of, sender_of
from chappe.transports.maps import MapAddress, requester, send
from chappe.transports.zeromq import open_socket

QUEUE_MESSAGES: Final = 64  # of one connection, in ZeroMQ; they have a megabyte each at most, or one large command
LEAVE_S: Final = 1.0  # a server that ends in good order waits this long for the others to go on without it
CONNECTIONS_WAITING: Final = 1_024  # to be accepted: clients come back at once after a restart

Told = Callable[[Sequence[Applied], bool], None]


class _FromServer(NamedTuple):
    place: int


class _FromClient(NamedTuple):
    """A link of a request: the client's identity or address, and where the answer goes."""

    who: str
    client: bytes


class _Connections:
    """Connections, one to each server, so none delays another; a full queue drops messages: senders repeat them."""

    def __init__(
        self,
        driver: Driver,
        dialling: Connections,
        gate: Gate | None,
        addresses: Sequence[MapAddress | None],
        header: bytes,
    ) -> None:
        self.dropped = 0
        self._driver = driver
        self._header = header
        self._inlets: dict[int, Inlet] = {}
        self._gathered: dict[int, list[bytes]] = {}
        for place, address in enumerate(addresses):
            if address is None:
                continue
            made = requester(gate)
            made.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
            made.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
            inlet = self._inlets[place] = driver.watch(Inlet(made, place))
            dialling.connect(inlet, address.endpoint(0), hear=True)

    def gather(self, place: int, message: bytes) -> None:
        self._gathered.setdefault(place, []).append(message)

    def send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for place, messages in gathered.items():
            inlet = self._inlets[place]
            self._driver.suspect(inlet)
            for frame in pack(messages):
                try:
                    send(inlet.sock, [self._header, frame])
                except zmq.Again:
                    self.dropped += 1


class EndpointLink(Protocol):
    """Looks at a server after each of its steps: ``kv_chain.ChainLink``."""

    def look(self) -> None: ...


class ChainServerPorts(Ports):
    """The sockets and files of a chain's server: one that others speak to, and one to each other server.

    Args:
        addresses: Of all named servers, in order; at its own place where it listens.
        chain: Which one it is, as ``wire.chain_of`` says.
        core: Made with the content of ``files``.
        files: Its disk; None: it keeps nothing, not even its votes.
        rules: Of a server with keys.
        on_report: Called with every event, with the lock held: it must be quick and not call back.
        on_applied: Called with the lock held for each command that was carried out, and whether this is the tail.
    """

    def __init__(
        self,
        addresses: Sequence[MapAddress],
        chain: bytes,
        core: ChainServerCore,
        *,
        files: ChainFiles | None,
        gate: Gate | None,
        rules: ChainRules | None,
        on_report: Callable[[Any], None],
        on_applied: Told | None,
    ) -> None:
        self.core = core
        self.rules = rules
        self.link: EndpointLink | None = None  # to the endpoint whose data store this is
        self._files = files
        self._gate = gate
        self._chain = chain
        self._on_report = on_report
        self._on_applied = on_applied
        self._replies: dict[bytes, list[bytes]] = {}
        self._unread = UnreadAnswers()
        core.news = None if on_applied is None else []
        driver = Driver(core, self, "server of a chain")
        self._dialling = Connections(driver, gate)
        try:
            own = addresses[core.place]
            self._router = router = open_socket(zmq.ROUTER, gate)
            self._asked = driver.watch(Inlet(router, None, copied=False))
            router.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            router.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
            router.setsockopt(zmq.BACKLOG, CONNECTIONS_WAITING)
            if gate is not None:
                router.setsockopt(zmq.ROUTER_HANDOVER, 1)
            port = bind(router, own.host, own.port, gate)
            self.address = MapAddress(own.host, port, "" if gate is None else gate.name)
            others = [None if place == core.place else each for place, each in enumerate(addresses)]
            header = encode_header(SERVER, core.place, chain)
            self._servers = _Connections(driver, self._dialling, gate, others, header)
        except BaseException:
            driver.release()
            raise

    def start(self) -> None:
        self.driver.start(self.core.start(time.monotonic()))

    def leave(self) -> None:
        """Let the others go on without this server; waits a moment for that."""
        core, turns = self.core, self.driver.turns
        if turns.closed or turns.halted is not None:
            return
        with self.driver.lock:
            core.leave(time.monotonic())
            turns.look_again_at(0.0)
        alone = core.configuration.places in ((), (core.place,))
        turns.wait(lambda: alone or not core.member, LEAVE_S)

    def release(self) -> None:
        self._dialling.release()

    def close_files(self) -> None:
        if self._files is not None:
            self._files.close()

    def halted(self, reason: str) -> None:
        if self.link is not None:
            self.link.look()

    # -- input -------------------------------------------------------------------------------------------------------

    def hear(self, link: Any, frames: Any) -> Sequence[Effect]:
        """Take several messages that come in one of the socket, one by one."""
        if link is None:
            self._unpack(frames)
            return ()
        if isinstance(link, _FromServer):
            return self.core.handle_message(link.place, frames, time.monotonic())
        if isinstance(link, _FromClient):
            return self._request(link, frames, time.monotonic())
        raise ProtocolError("servers of a chain answer over connections of their own")

    def _unpack(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 3:
            raise ProtocolError(f"a message of {len(frames)} frames to a server of a chain")
        client, raw_header, content = [each.bytes for each in frames]
        header = decode_header(raw_header)
        if header.chain != self._chain:
            if header.kind == REQUEST:
                why = "this server has another chain: compare the names, and fixed, in the files"
                refused = pack([encode(Refused(why))])
                self._send(client, encode_header(ANSWER, self.core.place, header.chain), refused)
            raise ProtocolError("a message to another chain: names of chain and servers, or fixed, differ in the files")
        who = address_of(frames) if self._gate is None else sender_of(frames)
        if header.kind == SERVER:
            if header.place >= len(self.core.names) or header.place == self.core.place:
                raise ProtocolError(f"a message of a server at the place {header.place} of the chain")
            if self.rules is None or self.rules.server(who, header.place):
                self.driver.take_each(_FromServer(header.place), unpack_between(content))
        elif header.kind == REQUEST:
            self._unread.said(client)
            self.driver.take_each(_FromClient(who, client), unpack_requests(content))
        else:
            raise ProtocolError("an answer to a server of a chain")

    def _request(self, link: _FromClient, request: AnyRequest, now: float) -> Sequence[Effect]:
        rules, who, client = self.rules, link.who, link.client
        if rules is not None:
            why = rules.request(who, request)
            if why:
                self._answer(client, Refused(why[:1_000]))
                return ()
            request = rules.heard(who, request)
        match request:
            case Look(token):
                self._answer(client, self.seen(token, now))
            case Exclude(token, place, out):
                self._answer(client, Excluded(token, self.ask_out(place, out)))
            case asked:
                return self.core.handle_request(client, asked, who.encode(), now)
        return ()

    # -- what servers' administrators ask ----------------------------------------------------------------------------

    def ask_out(self, place: int, out: bool) -> str:
        """Ask to keep a server out of the chain, or to let it back; return why that cannot be. The lock is held."""
        if place >= len(self.core.names):
            return f"the chain has {len(self.core.names)} servers"
        try:
            self.core.ask_out(place, out, time.monotonic())
        except UsageError as error:
            return str(error)
        self.driver.turns.look_again_at(0.0)
        return ""

    def seen(self, token: int, now: float) -> Seen:
        core, status = self.core, self.core.status(now)
        out = tuple(name for name, left in zip(core.names, core.configuration.out, strict=False) if left)
        others = tuple(Other(*each) for each in status.others)
        return Seen(
            token, core.place, status.number, status.members, out, core.configuration.durable, status.end,
            status.synced, status.committed, others, core.replica.sessions, self.driver.malformed, status.why[:1_000],
        )  # fmt: skip

    # -- effects -----------------------------------------------------------------------------------------------------

    def send(self, effect: Send) -> None:
        self._servers.gather(effect.to, encode(effect.message))

    def reply(self, effect: Reply) -> None:
        self._answer(effect.to, effect.message)

    def report(self, event: object) -> None:
        self._on_report(event)

    def _answer(self, client: Hashable, message: AnyAnswer) -> None:
        assert isinstance(client, bytes)
        self._replies.setdefault(client, []).append(encode(message))

    def flushed(self) -> None:
        if self.core.news and self._on_applied is not None:
            news, self.core.news = self.core.news, []
            self._on_applied(news, self.core.tail)
        if self.link is not None:
            self.link.look()
        self._servers.send_gathered()
        if not self._replies:
            return
        replies, self._replies = self._replies, {}
        header = encode_header(ANSWER, self.core.place, self._chain)
        self.driver.suspect(self._asked)
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

    # -- the disk ----------------------------------------------------------------------------------------------------

    def carry_out(self, job: Job) -> Iterator[None] | None:
        """Begin to write a state in parts. A newer one gives it up: a server that joins may have begun."""
        files = self._files
        if files is None:
            return None
        if isinstance(job, VoteRecord):
            files.keep(job)
            return None
        change = job.change if isinstance(job, SaveState) else job
        if change.state is not None:
            return files.save(change)
        files.write(change)
        return None

    def done(self, job: Any, outcome: StorageError | None, now: float) -> Sequence[Effect]:
        return self.core.handle_done(job, outcome, now)


class ChainUser(Protocol):
    """The user of a chain's client; called with the lock held."""

    def reported(self, event: object) -> None: ...

    def answered(self, place: int, answer: Seen | Excluded | Refused) -> None: ...


class ChainClientPorts(Ports):
    """The connections of a client of ``chain``, one to each named server, at ``addresses`` in order."""

    def __init__(
        self, addresses: Sequence[MapAddress], chain: bytes, core: ChainClient, *, gate: Gate | None, user: ChainUser
    ) -> None:
        self.core = core
        self._chain = chain
        self._user = user
        driver = Driver(core, self, "client of a chain")
        self._dialling = Connections(driver, gate)
        try:
            self._servers = _Connections(driver, self._dialling, gate, addresses, encode_header(REQUEST, 0, chain))
        except BaseException:
            driver.release()
            raise

    def release(self) -> None:
        self._dialling.release()

    def question(self, place: int, question: Look | Exclude) -> None:
        """Send one server an administrator's question; the lock is held, ``Driver.do`` follows."""
        self._servers.gather(place, encode(question))

    def send(self, effect: Send) -> None:
        self._servers.gather(effect.to, encode(effect.message))

    def report(self, event: object) -> None:
        self._user.reported(event)

    def flushed(self) -> None:
        self._servers.send_gathered()

    def hear(self, link: int, frames: Frames) -> Sequence[Effect]:
        if len(frames) != 2:
            raise ProtocolError(f"an answer of {len(frames)} frames of a server of a chain")
        header = decode_header(frames[0])
        if header.kind != ANSWER or header.place != link or header.chain != self._chain:
            raise ProtocolError("an answer of another server than was asked")
        now = time.monotonic()
        effects: list[Effect] = []
        for each in unpack_answers(frames[1]):
            if isinstance(each, Seen | Excluded | Refused):
                self._user.answered(link, each)
            else:
                effects += self.core.handle_message(link, each, now)
        return effects
