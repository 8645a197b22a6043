"""A client of a chain: speaks to the head, listens to the tail, and repeats itself until it is answered.

It knows the named servers. Who of them is in the chain it is told by whomever it asks, and believes the highest number.
Each command is done once, as long as its session lives; a command whose session is over ends as ``EXPIRED``.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final, TypeAlias

from chappe.core import Report
from chappe.errors import UsageError
from chappe.limits import CHAIN_LIMITS, ChainLimits
from chappe.replication.chain.messages import (
    EXPIRED,
    Answer,
    Chain,
    Do,
    Done,
    Listen,
    Open,
    Opened,
    Outcome,
    Read,
    Request,
    Says,
)

AGAIN_BEATS: Final = 2  # what is not answered for so long is said again


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to a server, by its place; it may be lost."""

    server: int
    message: Request


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a command or a read; ``token`` is what ``do`` or ``read`` returned."""

    token: int
    outcome: Outcome
    members: int = 0  # servers that have it
    durable: bool = False  # on disk


ClientAction: TypeAlias = Send | Report


@dataclass(slots=True)
class _Waiting:
    seq: int  # 0: it has none yet
    command: bytes


class ChainClient:
    """One client. Inputs take ``now``, monotonic seconds, and return what is to be done, in order.

    Args:
        servers: How many are named.
        nonce: Random bytes that no other client has.
    """

    def __init__(self, servers: int, nonce: bytes, *, now: float, limits: ChainLimits = CHAIN_LIMITS) -> None:
        if servers < 1:
            raise UsageError("a chain without servers cannot do anything: name at least one")
        self._servers = servers
        self._limits = limits
        self._again_s = AGAIN_BEATS * limits.beat_s
        self._nonce = nonce
        self._opened = 0  # sessions
        self._at = now
        self.number = 0
        self.members: tuple[int, ...] = ()
        self.why = ""
        self._turn = 0  # whom it asks next
        self._token = 0
        self._session = 0
        self._used_at = now
        self._seq = 0
        self._done = 0
        self._commands: dict[int, _Waiting] = {}  # by token, in their order
        self._unsent: deque[int] = deque()  # those that have no number yet
        self._by_seq: dict[int, int] = {}
        self._reads: dict[int, tuple[int | None, bytes]] = {}

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is due."""
        return self._at if self._commands or self._reads else math.inf

    def do(self, command: bytes, now: float) -> tuple[int, list[ClientAction]]:
        """Have a command done; returns its token."""
        self._token += 1
        if not self._commands and now - self._used_at > self._limits.session_s / 2:
            self._end_session()  # it may be over, and nothing is under way
        self._commands[self._token] = _Waiting(0, command)
        self._unsent.append(self._token)
        self._used_at = now
        self._at = min(self._at, now + self._again_s)
        return self._token, self._number(now)

    def read(self, query: bytes, now: float, *, server: int | None = None) -> tuple[int, list[ClientAction]]:
        """Ask the machine, at a server or at the tail; returns the token of the question."""
        self._token += 1
        self._reads[self._token] = (server, query)
        self._at = min(self._at, now + self._again_s)
        return self._token, [self._ask(self._token)]

    def withdraw(self, token: int) -> bool:
        """Ask no more, if that is possible: False for a command that was sent, which is repeated until answered."""
        if self._reads.pop(token, None) is not None:
            return True
        waiting = self._commands.get(token)
        if waiting is None or waiting.seq:
            return False
        del self._commands[token]
        self._unsent.remove(token)
        return True

    def abandon(self) -> None:
        """Repeat nothing of what was asked, whatever becomes of it, and begin anew with the next command."""
        self._end_session()
        self._commands, self._reads = {}, {}
        self._unsent.clear()

    def handle_answer(self, server: int, message: Answer, now: float) -> list[ClientAction]:
        """A server has answered."""
        match message:
            case Chain():
                return self._hear(message, now)
            case Opened():
                if self._session or message.nonce != self._name():
                    return []
                self._session = message.session
                tail = self.members[-1:] or (server,)
                return [Send(tail[0], Listen(self._session, b"-")), *self._number(now)]
            case Done():
                return self._finish(message, now)
            case Says():
                if message.token not in self._reads:
                    return []
                del self._reads[message.token]
                return [Report(Finished(message.token, (message.outcome, message.result)))]

    def handle_timeout(self, now: float) -> list[ClientAction]:
        """Say again what was not answered, and ask somebody else who is in the chain."""
        if now < self.next_timeout():
            return []
        self._at = now + self._again_s
        self._turn = (self._turn + 1) % self._servers
        listen = Listen(self._session, self._name())
        actions: list[ClientAction] = [Send(self._turn, listen)]
        if self.members:
            actions.append(Send(self.members[-1], listen))
        actions += self._again(now)
        for token, (server, query) in self._reads.items():
            actions.append(Send(self._turn, Read(token, query)) if server is not None else self._ask(token))
        return actions

    # -- parts ------------------------------------------------------------------------------------------------

    def _hear(self, message: Chain, now: float) -> list[ClientAction]:
        self.why = message.why
        if message.number <= self.number or not message.members or max(message.members) >= self._servers:
            return []
        self.number, self.members = message.number, message.members
        listen = Send(self.members[-1], Listen(self._session, self._name()))
        return [listen, *self._again(now), *(self._ask(token) for token in self._reads)]

    def _again(self, now: float) -> list[ClientAction]:
        """All commands under way, once more."""
        if self._commands and not self._session:
            return [Send(self._head(), Open(self._name()))]
        found: list[ClientAction] = [
            Send(self._head(), Do(self._session, each.seq, self._done, each.command))
            for each in self._commands.values() if each.seq
        ]  # fmt: skip
        return found + self._number(now)

    def _number(self, now: float) -> list[ClientAction]:
        """Number commands as far as there is room in the session, and send them."""
        if not self._session:
            return [Send(self._head(), Open(self._name()))] if len(self._commands) == 1 else []
        found: list[ClientAction] = []
        while self._unsent and self._seq - self._done < self._limits.session_window:
            token = self._unsent.popleft()
            waiting = self._commands[token]
            self._seq += 1
            waiting.seq = self._seq
            self._by_seq[self._seq] = token
            found.append(Send(self._head(), Do(self._session, self._seq, self._done, waiting.command)))
        return found

    def _finish(self, message: Done, now: float) -> list[ClientAction]:
        if message.session != self._session:
            return []
        self._used_at = now
        if message.outcome == EXPIRED:
            if message.seq not in self._by_seq:
                return []  # it was answered before: its result may be forgotten, and the session goes on
            over = [token for token, each in self._commands.items() if each.seq]
            self._end_session()
            for token in over:
                del self._commands[token]
            ended: list[ClientAction] = [Report(Finished(token, (EXPIRED, b""))) for token in over]
            return ended + self._number(now)
        if message.seq not in self._by_seq:
            return []
        token = self._by_seq.pop(message.seq)
        del self._commands[token]
        self._done = next(iter(self._by_seq), self._seq + 1) - 1  # they are there in their order
        self._at = now + self._again_s
        outcome = (message.outcome, message.result)
        return [Report(Finished(token, outcome, message.members, message.durable)), *self._number(now)]

    def _end_session(self) -> None:
        if self._session:
            self._opened += 1
        self._session, self._seq, self._done, self._by_seq = 0, 0, 0, {}

    def _name(self) -> bytes:
        return self._nonce + b"%d" % self._opened

    def _head(self) -> int:
        return self.members[0] if self.members else self._turn

    def _ask(self, token: int) -> Send:
        server, query = self._reads[token]
        place = server if server is not None else self.members[-1] if self.members else self._turn
        return Send(place, Read(token, query))
