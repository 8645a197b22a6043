"""A client of a chain: speaks to the head, listens to the tail, and repeats itself until it is answered.

It knows the named servers. Every server that it asks tells the members of the chain; it believes the highest number.
Each command is done once, as long as its session lives; a command whose session is over ends as ``EXPIRED``.

Commands that come together leave as one step of the session: the chain keeps, sends and answers it as a whole, which
costs a fraction of what it costs for each alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chappe.core import Effect, Report, Send
from chappe.errors import UsageError
from chappe.limits import CHAIN_LIMITS, ChainLimits
from chappe.replication.chain.messages import (
    EXPIRED,
    STEP_BYTES,
    STEP_MAX,
    Answer,
    Chain,
    Do,
    Done,
    Listen,
    Open,
    Opened,
    Outcome,
    Read,
    Says,
)

AGAIN_BEATS: Final = 2  # what is not answered for so long is said again


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of commands or a read; a token is what ``do`` or ``read`` returned."""

    tokens: Sequence[int]
    outcomes: Sequence[Outcome]  # in the same order
    members: int = 0  # servers that have them
    durable: bool = False  # on disk


@dataclass(slots=True)
class _Step:
    tokens: list[int]  # 0: it is answered
    commands: tuple[bytes, ...]
    left: int  # so many are not answered


class ChainClient:
    """The state of one client of ``servers`` named servers; ``nonce``: random bytes that no other client has."""

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
        self._opening = False  # a session is asked for
        self._unsent: dict[int, bytes] = {}  # by token, in their order
        self._steps: dict[int, _Step] = {}  # by number, in their order
        self._reads: dict[int, tuple[int | None, bytes]] = {}

    def next_timeout(self) -> float:
        return self._at if self._steps or self._unsent or self._reads else math.inf

    def do(self, command: bytes, now: float) -> int:
        """Queue a command; those before ``flush`` go together. Return its token."""
        self._token += 1
        if not self._steps and not self._unsent and now - self._used_at > self._limits.session_s / 2:
            self._end_session()  # it may be over, and nothing is under way
        self._unsent[self._token] = command
        self._used_at = now
        self._at = min(self._at, now + self._again_s)
        return self._token

    def read(self, query: bytes, now: float, *, server: int | None = None) -> tuple[int, list[Effect]]:
        """Ask the machine, at a server or at the tail; returns the token of the question."""
        self._token += 1
        self._reads[self._token] = (server, query)
        self._at = min(self._at, now + self._again_s)
        return self._token, [self._ask(self._token)]

    def withdraw(self, token: int) -> bool:
        """Withdraw a question; return False for a command that was sent, which is repeated until answered."""
        return self._reads.pop(token, None) is not None or self._unsent.pop(token, None) is not None

    def abandon(self) -> None:
        """Stop repeating anything, with any outcome, and begin anew with the next command."""
        self._end_session()
        self._unsent, self._reads = {}, {}

    def handle_message(self, server: int, message: Answer, now: float) -> list[Effect]:
        match message:
            case Chain():
                return self._hear(message, now)
            case Opened():
                if self._session or message.nonce != self._name():
                    return []
                self._session = message.session
                tail = self.members[-1:] or (server,)
                return [Send(tail[0], Listen(self._session, b"-"))]
            case Done():
                return self._finish(message, now)
            case Says():
                if message.token not in self._reads:
                    return []
                del self._reads[message.token]
                return [Report(Finished([message.token], [(message.outcome, message.result)]))]

    def handle_timeout(self, now: float) -> list[Effect]:
        """Repeat unanswered messages, and ask another server for the chain's members."""
        if now < self.next_timeout():
            return []
        self._at = now + self._again_s
        self._turn = (self._turn + 1) % self._servers
        listen = Listen(self._session, self._name())
        actions: list[Effect] = [Send(self._turn, listen)]
        if self.members:
            actions.append(Send(self.members[-1], listen))
        actions += self._again()
        for token, (server, query) in self._reads.items():
            actions.append(Send(self._turn, Read(token, query)) if server is not None else self._ask(token))
        return actions

    def flush(self, now: float) -> list[Effect]:
        """Number commands as far as there is room in the session, and send them; called after one or several inputs."""
        if not self._unsent:
            return []
        if not self._session:
            if self._opening:
                return []
            self._opening = True
            return [Send(self._head(), Open(self._name()))]
        found: list[Effect] = []
        while self._unsent and self._seq - self._done < self._limits.session_window:
            self._seq += 1
            self._steps[self._seq] = self._step()
            found.append(self._say(self._seq))
        return found

    # -- parts ------------------------------------------------------------------------------------------------

    def _step(self) -> _Step:
        unsent, size = self._unsent, 0
        tokens: list[int] = []
        for token, command in unsent.items():
            size += len(command)
            if tokens and (size > STEP_BYTES or len(tokens) == STEP_MAX):
                break
            tokens.append(token)
        return _Step(tokens, tuple([unsent.pop(each) for each in tokens]), len(tokens))

    def _say(self, seq: int) -> Send:
        commands = self._steps[seq].commands
        return Send(self._head(), Do(self._session, seq, self._done, commands[0], commands[1:]))

    def _hear(self, message: Chain, now: float) -> list[Effect]:
        self.why = message.why
        if message.number <= self.number or not message.members or max(message.members) >= self._servers:
            return []
        self.number, self.members = message.number, message.members
        listen = Send(self.members[-1], Listen(self._session, self._name()))
        return [listen, *self._again(), *(self._ask(token) for token in self._reads)]

    def _again(self) -> list[Effect]:
        if self._unsent and not self._session:
            return [Send(self._head(), Open(self._name()))]
        return [self._say(each) for each in self._steps]

    def _finish(self, message: Done, now: float) -> list[Effect]:
        if message.session != self._session:
            return []
        self._used_at = now
        if message.outcome == EXPIRED:
            if message.seq not in self._steps:
                return []  # it was answered before: its result may be forgotten, and the session goes on
            over = [token for step in self._steps.values() for token in step.tokens if token]
            self._end_session()
            return [Report(Finished(over, [(EXPIRED, b"")] * len(over)))]
        step = self._steps.get(message.seq)
        if step is None:
            return []
        outcomes = ((message.outcome, message.result), *message.also)
        here = slice(message.first, message.first + len(outcomes))
        found = [each for each in zip(step.tokens[here], outcomes, strict=False) if each[0]]
        if not found:
            return []
        step.tokens[here] = [0] * len(step.tokens[here])
        step.left -= len(found)
        if not step.left:
            del self._steps[message.seq]
            self._done = next(iter(self._steps), self._seq + 1) - 1
        self._at = now + self._again_s
        tokens, told = zip(*found, strict=True)
        return [Report(Finished(tokens, told, message.members, message.durable))]

    def _end_session(self) -> None:
        if self._session:
            self._opened += 1
        self._session, self._seq, self._done, self._steps, self._opening = 0, 0, 0, {}, False

    def _name(self) -> bytes:
        return self._nonce + b"%d" % self._opened

    def _head(self) -> int:
        return self.members[0] if self.members else self._turn

    def _ask(self, token: int) -> Send:
        server, query = self._reads[token]
        place = server if server is not None else self.members[-1] if self.members else self._turn
        return Send(place, Read(token, query))
