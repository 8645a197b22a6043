"""A client of a chain, the base of its blocking and asyncio faces. Nothing here waits but ``leave``."""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chappe.api import at_exit
from chappe.api.chain.configuration import ChainConfiguration
from chappe.api.chain.status import ChainServerStatus, status_of
from chappe.api.faces import Seconds, Steps, happened
from chappe.api.mesh.waiting import deadline_after, time_left
from chappe.defaults import MIB
from chappe.errors import (
    BufferFull,
    Closed,
    CommandFailed,
    NoChain,
    NotPermitted,
    RecordTooLarge,
    SessionExpired,
    TimedOut,
    UsageError,
)
from chappe.log.events import ConnectionRefused
from chappe.replication.chain.client import ChainClient, Finished
from chappe.replication.chain.messages import COMMAND_BYTES_MAX, EXPIRED, OK
from chappe.replication.chain.wire import Exclude, Excluded, Look, Refused, Seen
from chappe.runtime.chain_ports import ChainClientPorts
from chappe.security import LogSecurity
from chappe.system import time
from chappe.system.forking import own
from chappe.transports.gate import gate_of, keys_of

logger = logging.getLogger("chappe.replication")

EVENTS_MAX: Final = 1_000
PENDING_MAX: Final = 65_536  # commands that are not answered; further ones wait, or raise BufferFull
PENDING_BYTES_MAX: Final = 64 * MIB
MANY: Final = 512  # commands of ``call_many`` that are handed over at once
CLOSE_S: Final = 2.0  # closing waits so long for commands that are not answered
NONCE_BYTES: Final = 16
_PENDING: Final = object()


@dataclass(frozen=True, slots=True)
class ChainAnswer:
    """The answer to a command, which is committed and stays.

    Attributes:
        result: The machine's return value.
        members: The number of servers that have the command.
        durable: True if it is on their disks, False if in their memory.
    """

    result: bytes
    members: int
    durable: bool


class ChainCall:
    """A command or a question under way."""

    __slots__ = ("_member", "_outcome", "_size", "_then", "_token")

    def __init__(self, member: ChainMember, token: int, size: int) -> None:
        self._size = size  # of a command; -1: it is a question
        self._member = member
        self._token = token
        self._outcome: Any = _PENDING
        self._then: Callable[[], None] | None = None

    def done(self) -> bool:
        """True once the answer is there."""
        return self._outcome is not _PENDING

    def then(self, function: Callable[[], None]) -> None:
        """Call ``function`` once the answer is there, with the lock held: it must be quick, and not wait."""
        with self._member.lock:
            if self.done():
                function()
            else:
                self._then = function

    def _answer(self, outcome: object) -> None:
        """Store the answer or the error; the lock is held."""
        self._outcome = outcome
        if self._then is not None:
            self._then()

    def wait(self, timeout: Seconds = None) -> bool:
        """Wait for the answer; return False if the time is up first. Ctrl-C gives the command up."""
        try:
            return self._member.turns.wait(self.done, timeout)
        except BaseException:
            self.give_up()
            raise

    def take(self) -> Any:
        """Return the answer, ``ChainAnswer`` to a command and ``bytes`` to a question; give it up if it is not there.

        Raises:
            NoChain: No server has taken it; it is not done.
            TimedOut: It was sent and not answered yet; it may still be done.
            SessionExpired: It may have been done or not.
            CommandFailed: The machine has raised an exception.
            NotPermitted: The permissions do not allow it.
        """
        outcome = self._outcome
        if outcome is _PENDING:
            taken_back = self.give_up()
            outcome = self._outcome  # it may have come by now
            if outcome is _PENDING:
                raise self._too_late(taken_back)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _too_late(self, taken_back: bool) -> Exception:
        member = self._member
        member.check()
        if taken_back:
            return NoChain(f"no server of the chain {member.configuration.name} took it in time{member.why()}")
        why = member.why() or ": `chappe chain status` says what the chain waits for"
        return TimedOut(f"the command is not confirmed yet; it may still be done{why}")

    def give_up(self) -> bool:
        """Drop the answer; return True if the command is certainly not done."""
        member = self._member
        with member.lock:
            taken_back = not self.done() and member.core.withdraw(self._token)
            if taken_back:
                member.forget(self._token)
            return taken_back


class ChainMember:
    def __init__(self, configuration: ChainConfiguration | str | Path, *, security: LogSecurity = None) -> None:
        own(self)
        self.configuration = given = ChainConfiguration.of(configuration)
        gate = gate_of(keys_of(security))
        self.core = ChainClient(len(given.names), os.urandom(NONCE_BYTES), now=time.monotonic())
        self._calls: dict[int, ChainCall] = {}  # unanswered commands and questions, by token
        self._commands = 0  # unanswered ones
        self._bytes = 0
        self._questions: dict[int, tuple[int, Seen | Excluded | None]] = {}  # by token: the server, its answer
        self._tokens = itertools.count(1)
        self._refusals: dict[int, str] = {}
        self._events: deque[object] = deque(maxlen=EVENTS_MAX)
        self._ports = ChainClientPorts(given.known(gate), given.chain, self.core, gate=gate, user=self)
        self.node = self._ports.driver
        self.turns = self.node.turns
        self.lock = self.node.lock
        at_exit.add(self)
        self.node.start()

    # -- commands ----------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        return self._commands

    def submit(self, command: bytes, *, at_once: bool = False) -> ChainCall:
        """Send a command, without waiting. Raises BufferFull, RecordTooLarge, Closed, MemberStopped."""
        if type(command) is not bytes or len(command) > COMMAND_BYTES_MAX:
            command = _as_command(command, "a command")
        with self.lock:
            if self.turns.closed or self.turns.halted is not None:
                self.check()
            if self._commands >= PENDING_MAX or self._bytes >= PENDING_BYTES_MAX:
                raise BufferFull(f"{self.pending:,} commands wait for the chain {self.configuration.name}{self.why()}")
            token, size = self.core.do(command, time.monotonic()), len(command)
            call = self._calls[token] = ChainCall(self, token, size)
            self._commands += 1
            self._bytes += size
            if at_once:
                self.node.do(())
            else:
                self.node.look_at(0.0)  # others may follow: they leave together
            return call

    def ask(self, query: bytes, server: str | None) -> ChainCall:
        """Ask the machine, without waiting. Raises RecordTooLarge, UsageError, Closed, MemberStopped."""
        place = None if server is None else self.configuration.place(server)
        query = _as_command(query, "a query")
        with self.lock:
            self.check()
            token, actions = self.core.read(query, time.monotonic(), server=place)
            call = self._calls[token] = ChainCall(self, token, -1)
            self.node.do(actions)
            return call

    def calling(self, command: bytes, timeout: Seconds) -> Steps[ChainAnswer]:
        """Send a command, after a wait for room."""
        deadline = deadline_after(timeout)
        while True:
            try:
                call = self.submit(command, at_once=True)
                break
            except BufferFull:
                if not (yield self.room, time_left(deadline)):
                    self.check()
                    raise
        answer: ChainAnswer = yield from self._taking(call, deadline)
        return answer

    def calling_many(self, commands: Iterable[bytes], timeout: Seconds) -> Steps[list[ChainAnswer]]:
        """Send many in order; return the answers, or raise the first error when all are answered."""
        deadline = deadline_after(timeout)
        calls: list[ChainCall] = []
        for command in commands:
            if not self.room() and not (yield self.room, time_left(deadline)):
                self.check()
                raise BufferFull(f"{self.pending:,} commands wait for the chain {self.configuration.name}{self.why()}")
            calls.append(self.submit(command))
            if len(calls) % MANY == 0:
                yield None
        answers: list[ChainAnswer] = []
        failed: list[Exception] = []
        for call in calls:
            try:
                answers.append((yield from self._taking(call, deadline)))
            except Exception as problem:
                failed.append(problem)
        if failed:
            raise failed[0]
        return answers

    def reading(self, query: bytes, server: str | None, timeout: Seconds) -> Steps[bytes]:
        said: bytes = yield from self._taking(self.ask(query, server), deadline_after(timeout))
        return said

    def _taking(self, call: ChainCall, deadline: float) -> Steps[Any]:
        try:
            yield call.done, time_left(deadline)
        except BaseException:  # Ctrl-C, a cancellation
            call.give_up()
            raise
        return call.take()

    def room(self) -> bool:
        return self._commands < PENDING_MAX and self._bytes < PENDING_BYTES_MAX

    def forget(self, token: int) -> None:
        """Remove a call that is answered or was never sent; the lock is held."""
        call = self._calls.pop(token, None)
        if call is not None and call._size >= 0:
            self._commands -= 1
            self._bytes -= call._size

    def why(self) -> str:
        """Return the known reason for a missing answer, for the end of a sentence."""
        if self.core.why:
            return f": {self.core.why}"
        return "".join(f"; {self.configuration.names[place]}: {why}" for place, why in sorted(self._refusals.items()))

    # -- administration ----------------------------------------------------------------------------------------------

    def looking(self, timeout: Seconds) -> Steps[Mapping[str, ChainServerStatus | None]]:
        answers = yield from self._questioning([Look(next(self._tokens)) for _ in self.configuration.names], timeout)
        names = self.configuration.names
        return {
            name: status_of(found, names) if isinstance(found, Seen) else None
            for name, found in zip(names, answers, strict=True)
        }

    def excluding(self, name: str, out: bool, timeout: Seconds) -> Steps[None]:
        """Keep a server out, or let it back, and wait until that is decided."""
        deadline = deadline_after(timeout)
        place = self.configuration.place(name)
        while True:
            known = yield from self.looking(min(1.0, timeout or 1.0))
            newest = max(
                (each for each in known.values() if each is not None), key=lambda each: each.number, default=None
            )
            if newest is not None and newest.number and (name in newest.out) is out and (out or name in newest.members):
                return
            left = time_left(deadline)
            if left == 0.0:
                raise TimedOut(f"that is not decided yet{self.why()}: `chappe chain status` says what is waited for")
            if newest is None or (name in newest.out) is not out:
                questions = [Exclude(next(self._tokens), place, out) for _ in known]
                answers = yield from self._questioning(questions, min(1.0, left or 1.0))
                refused = [each.why for each in answers if isinstance(each, Excluded) and each.why]
                if refused:
                    raise UsageError(refused[0])
            yield (lambda: False), 0.1

    def _questioning(
        self, questions: Sequence[Look | Exclude], timeout: Seconds
    ) -> Steps[list[Seen | Excluded | None]]:
        tokens = [each.token for each in questions]
        with self.lock:
            self.check()
            for place, each in enumerate(questions):
                self._questions[each.token] = (place, None)
                self._ports.question(place, each)
            self.node.do(())
        try:
            yield (lambda: all(self._questions[each][1] is not None for each in tokens)), timeout
        finally:
            found = [self._questions.pop(each)[1] for each in tokens]
        denied = [why for why in self._refusals.values() if "may not" in why]
        if denied and not any(found):
            raise NotPermitted(denied[0])
        return found

    # -- the core's, with the lock held --------------------------------------------------------------------------------

    def answered(self, place: int, answer: Seen | Excluded | Refused) -> None:
        if isinstance(answer, Refused):
            self._refusals[place] = answer.why
            if place == (self.core.members or (place,))[0]:
                self.core.abandon()  # it would be refused again and again
                calls, self._calls, self._commands, self._bytes = self._calls, {}, 0, 0
                for call in calls.values():
                    call._answer(NotPermitted(answer.why))
                self.turns.news = True
        elif self._questions.get(answer.token, (-1, None))[0] == place:
            self._questions[answer.token] = (place, answer)

    def reported(self, event: object) -> None:
        if isinstance(event, Finished):
            self._finished(event)
            return
        if isinstance(event, ConnectionRefused):
            logger.warning("%s", event)
        self._events.append(event)

    def _finished(self, event: Finished) -> None:
        self.turns.news = True
        calls, members, durable = self._calls, event.members, event.durable
        for token, (outcome, result) in zip(event.tokens, event.outcomes, strict=True):
            call = calls.get(token)
            if call is None:
                continue
            self.forget(token)
            if outcome == OK:
                call._answer(result if call._size < 0 else ChainAnswer(result, members, durable))
            elif outcome == EXPIRED:
                call._answer(
                    SessionExpired("the chain has forgotten this client: whether the command was done is not known")
                )
            else:
                call._answer(CommandFailed(f"the machine has raised {result.decode(errors='replace')}"))

    def events(self) -> list[object]:
        """Return the events since the last call. Raises MemberStopped if there are none, because of a defect."""
        return happened(self._events, self.turns.check)

    def check(self) -> None:
        if self.turns.closed:
            raise Closed("the client of the chain was closed")
        self.turns.check()

    # -- the end -----------------------------------------------------------------------------------------------------

    def begin_leave(self) -> None:
        """Do nothing: commands are sent as they come."""

    def leave(self, timeout_s: float = CLOSE_S) -> list[str]:
        """Close, after commands under way are answered, or time is up; return sentences about the rest."""
        at_exit.remove(self)
        if self.turns.closed:
            return []
        self.turns.wait(lambda: not self._commands, timeout_s if self.core.members else 0.0)
        left = self.pending
        self.node.close()
        return [f"{left:,} commands to a chain were not confirmed; they may be done"] if left else []


def _as_command(given: bytes, what: str) -> bytes:
    """Check a command or query. Raises UsageError, RecordTooLarge."""
    if not isinstance(given, bytes | bytearray | memoryview):
        raise UsageError(f"{what} is bytes, not {given!r}")
    given = bytes(given)
    if len(given) > COMMAND_BYTES_MAX:
        raise RecordTooLarge(f"{what} has at most {COMMAND_BYTES_MAX:,} bytes, not {len(given):,}")
    return given
