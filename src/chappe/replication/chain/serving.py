"""Serves clients of a chain: sessions and commands at the head, answers at the tail, reads anywhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from chappe.core import Clock, Effect, Reply, Send
from chappe.errors import ProtocolError
from chappe.limits import ChainLimits
from chappe.replication.agreement.core import Agreement
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.log import EntryLog
from chappe.replication.chain.messages import (
    EXPIRED,
    STEP_BYTES,
    Chain,
    Confirm,
    Confirmed,
    Do,
    Done,
    Entry,
    Listen,
    Open,
    Opened,
    Outcomes,
    Read,
    Request,
    Says,
)
from chappe.replication.chain.origins import ORIGIN_BYTES_MAX
from chappe.replication.chain.peers import Peers
from chappe.replication.chain.replica import INDEX_MASK, ChainReplica, session_opened


@dataclass(slots=True)
class WaitingRead:
    """A read.

    Args:
        round: Answers to this question or a later one count.
        need: The entry up to which the state has to be applied; -1: the tail is asked.
    """

    client: Hashable
    token: int
    query: bytes
    round: int
    need: int


class ReadingRounds:
    """One question for all reads that came before it: whether a majority has voted for nothing newer.

    Args:
        most: Most reads that wait.
        bytes_max: Of the queries of those that wait.
    """

    def __init__(self, most: int, bytes_max: int) -> None:
        self._most = most
        self._bytes_max = bytes_max
        self._bytes = 0
        self._reads: deque[WaitingRead] = deque()
        self._known: set[tuple[Hashable, int]] = set()  # whose they are, and their tokens
        self._votes: set[int] = set()
        self._passed = 0  # the newest round that a majority answered
        self.round = 0
        self.asking = False

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, client: Hashable, token: int, query: bytes, need: int) -> bool:
        """Add a read, which counts on the next question; one that waits already stays. False: there is no room."""
        if (client, token) in self._known:
            return True
        if len(self._reads) >= self._most or self._bytes + len(query) > self._bytes_max:
            return False
        self._bytes += len(query)
        self._known.add((client, token))
        self._reads.append(WaitingRead(client, token, query, self.round + 1, need))
        return True

    def ask(self) -> bool:
        if self.asking or not self._reads or self._reads[-1].round <= self.round:
            return False
        self.round += 1
        self.asking = True
        self._votes = set()
        return True

    @property
    def stuck(self) -> bool:
        """True if the tail's answer was lost."""
        return not self.asking and bool(self._reads) and self._reads[0].need < 0

    def again(self) -> None:
        """Ask anew for all reads: the configuration has changed, or an answer was lost."""
        self.asking = False
        self._passed = self.round
        for each in self._reads:
            each.round, each.need = self.round + 1, -1

    def vote(self, place: int, round_: int, majority: int) -> None:
        if not self.asking or round_ != self.round:
            return
        self._votes.add(place)
        if len(self._votes) >= majority:
            self.asking = False
            self._passed = self.round

    def committed(self, round_: int, committed: int) -> None:
        """Note the last entry that was committed when the tail was asked."""
        for each in self._reads:
            if each.need < 0 and each.round <= round_:
                each.need = committed

    def ready(self, applied: int) -> list[WaitingRead]:
        """Take reads that may be answered now; in the order in which they came."""
        found = []
        while self._reads:
            first = self._reads[0]
            if first.round > self._passed or not 0 <= first.need <= applied:
                break
            found.append(self._reads.popleft())
            self._known.discard((first.client, first.token))
            self._bytes -= len(first.query)
        return found

    def clear(self) -> list[WaitingRead]:
        """Take all reads, which cannot be answered here."""
        found = list(self._reads)
        self._reads.clear()
        self._known.clear()
        self._bytes = 0
        self.asking = False
        return found


Listening = int | bytes  # a session, or what one is opened with


class ServingServer(Protocol):
    place: int
    life: int
    number: int
    configuration: Configuration
    committed: int
    aligned: bool
    why: str
    fixed: bool  # servers decide alone
    member: bool  # this life is one of the chain
    head: bool  # it numbers commands
    tail: bool  # what it has is committed
    log: EntryLog
    replica: ChainReplica
    agreement: Agreement
    peers: Peers
    clock: Clock

    @property
    def majority(self) -> int: ...

    @property
    def shown(self) -> int:
        """The entry that a read at the tail has to show now."""
        ...

    @property
    def log_most(self) -> int:
        """The bytes that the log may have before a state takes its place."""
        ...


class Serving:
    def __init__(self, server: ServingServer, limits: ChainLimits) -> None:
        self._server = server
        self._limits = limits
        self._listeners: dict[Listening, Hashable] = {}  # who is answered; the one heard of least recently goes first
        self._lasts: dict[int, int] = {}  # of sessions with commands that are not committed: the newest one
        self._reads = ReadingRounds(limits.reads_max, limits.reads_bytes)

    # -- inputs -----------------------------------------------------------------------------------------------

    def handle(self, client: Hashable, request: Request, origin: bytes) -> list[Effect]:
        server = self._server
        match request:
            case Listen():
                self._listen(client, request.session or request.nonce)
                return [self._redirect(client)]
            case Read():
                return self._read(client, request)
            case Open():
                self._listen(client, request.nonce)
                if not server.head:
                    return [self._redirect(client)]
                if self._room():
                    self._append(0, 0, 0, request.nonce, (origin[:ORIGIN_BYTES_MAX],) if origin else ())
            case Do():
                self._listen(client, request.session)
                if not server.head:
                    return [self._redirect(client)]
                return self._do(client, request)
        return []

    def _do(self, client: Hashable, request: Do) -> list[Effect]:
        server, session = self._server, request.session
        if request.also and len(request.command) + sum(map(len, request.also)) > STEP_BYTES:
            raise ProtocolError("several commands that are too many bytes for one step")
        last = self._last(session)
        if last is None:
            known = server.fixed or server.committed >= session  # else it is not known here yet, or never was
            return self._done(client, session, request.seq, ((EXPIRED, b""),)) if known else []
        if server.fixed and request.done > last:  # these steps went with the side of the chain that had them
            return self._done(client, session, request.seq, ((EXPIRED, b""),))
        if request.seq <= last:
            outcomes = server.replica.result(session, request.seq)
            return [] if outcomes is None else self._done(client, session, request.seq, outcomes)
        room = request.seq - request.done <= self._limits.session_window
        if request.seq == last + 1 and request.done < request.seq and room and self._room():
            self._append(session, request.seq, request.done, request.command, request.also)
            self._lasts[session] = request.seq
            if len(self._lasts) > 2 * self._limits.sessions_max:
                self.forget()
        return []

    def _read(self, client: Hashable, request: Read) -> list[Effect]:
        server = self._server
        if not server.member or not server.aligned:
            return [self._redirect(client)]
        clean = server.tail or server.log.end == server.committed
        self._reads.add(client, request.token, request.query, server.shown if clean else -1)
        return []

    def confirmed(self, sender: int, message: Confirmed) -> None:
        server = self._server
        if sender == server.configuration.places[-1]:
            self._reads.committed(message.round, message.committed)
        self._reads.vote(sender, message.round, server.majority)

    def propose(self, command: bytes) -> None:
        """Number a command of the head itself. There is room for it: the machine bounds its commands."""
        self._append(0, 1, 0, command)

    # -- what the server tells --------------------------------------------------------------------------------

    def committed(self, index: int, entry: Entry, outcomes: Outcomes | None) -> list[Effect]:
        """Answer the clients that wait for an entry, which the tail has applied."""
        server = self._server
        if entry.own:
            return []
        if not entry.session:
            client = self._listeners.pop(entry.command, None)
            if client is None:
                return []
            session = session_opened(index, entry.term, fixed=server.fixed)
            self._listen(client, session)
            return [Reply(client, Opened(entry.command, session))]
        client = self._listeners.get(entry.session)
        if client is None or outcomes is None:
            return []
        return self._done(client, entry.session, entry.seq, outcomes)

    def entered(self) -> list[Effect]:
        server = self._server
        self.forget()
        if server.member:
            self._reads.again()
            return []
        return [self._redirect(each.client) for each in self._reads.clear()]

    def forget(self) -> None:
        self._lasts = {}
        server = self._server
        if server.head:
            for entry in server.log.after(server.committed):
                if entry.session:
                    self._lasts[entry.session] = entry.seq

    def repeat(self) -> list[Effect]:
        if self._reads.stuck:
            self._reads.again()
        return self._ask() if self._reads.asking and self._server.member else []

    def flush(self) -> list[Effect]:
        """Ask the questions that reads wait for, and answer those that may be answered."""
        server, actions = self._server, list[Effect]()
        if self._lasts and server.log.end == server.committed:
            self._lasts = {}
        if server.member and server.aligned and self._reads.ask():
            actions += self._ask()
        for each in self._reads.ready(server.committed) if server.member and server.aligned else ():
            outcome, result = server.replica.read(each.query)
            actions.append(Reply(each.client, Says(each.token, outcome, result)))
        return actions

    # -- parts ------------------------------------------------------------------------------------------------

    def _ask(self) -> list[Effect]:
        server = self._server
        if server.agreement.untouched and server.agreement.may_vote:
            if server.tail:
                self._reads.committed(self._reads.round, server.shown)
            self._reads.vote(server.place, self._reads.round, server.majority)
        confirm = Confirm(server.number, server.life, self._reads.round)
        return [Send(place, confirm) for place in server.peers.others]

    def _last(self, session: int) -> int | None:
        server = self._server
        last = self._lasts.get(session)
        if last is None:
            last = server.replica.last(session)
        index = session & INDEX_MASK if server.fixed else session
        if last is None and server.committed < index <= server.log.end:
            opens = server.log.entry(index)
            same = session_opened(index, opens.term, fixed=server.fixed) == session
            last = 0 if same and not opens.session and not opens.own else None
        return last

    def _append(self, session: int, seq: int, done: int, command: bytes, also: tuple[bytes, ...] = ()) -> None:
        server = self._server
        log = server.log
        before = log.entry(log.end).at_us if log.end > log.base else server.replica.now_us
        at_us = max(before, server.clock.wall_ns() // 1_000)
        log.append(Entry(server.number, at_us, session, seq, done, command, also))

    def _room(self) -> bool:
        server, limits = self._server, self._limits
        few = server.log.end - server.committed < limits.window
        return few and server.log.bytes < server.log_most + limits.window_bytes

    def _listen(self, client: Hashable, what: Listening) -> None:
        self._listeners.pop(what, None)
        self._listeners[what] = client
        if len(self._listeners) > 2 * self._limits.sessions_max:
            self._listeners.pop(next(iter(self._listeners)))

    def _done(self, client: Hashable, session: int, seq: int, outcomes: Outcomes) -> list[Effect]:
        configuration = self._server.configuration
        members, durable = len(configuration.chain), configuration.durable
        found: list[Effect] = []
        first = size = 0
        for place, (_, result) in enumerate(outcomes):
            if place > first and size + len(result) > STEP_BYTES:
                found.append(Reply(client, _results(session, seq, members, durable, first, outcomes[first:place])))
                first, size = place, 0
            size += len(result)
        found.append(Reply(client, _results(session, seq, members, durable, first, outcomes[first:])))
        return found

    def _redirect(self, client: Hashable) -> Reply:
        server = self._server
        return Reply(client, Chain(server.number, server.configuration.places, server.why[:1_000]))


def _results(session: int, seq: int, members: int, durable: bool, first: int, outcomes: Outcomes) -> Done:
    return Done(session, seq, *outcomes[0], members, durable, first, outcomes[1:])
