"""A client of a chain: what both faces of it, blocking and asyncio, stand on. Nothing here waits but ``leave``."""

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
from chappe.api.mesh.waiting import Asked, deadline_after, time_left
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
from chappe.runtime.chain_node import ChainClientNode
from chappe.security import LogSecurity
from chappe.system import time
from chappe.system.forking import own
from chappe.transports.gate import gate_of, keys_of

logger = logging.getLogger("chappe")

EVENTS_MAX: Final = 1_000
PENDING_MAX: Final = 65_536  # commands that are not answered; further ones wait, or raise BufferFull
PENDING_BYTES_MAX: Final = 64 * MIB
MANY: Final = 512  # commands of ``call_many`` that are handed over at once
CLOSE_S: Final = 2.0  # closing waits so long for commands that are not answered
NONCE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class ChainAnswer:
    """What became of a command: it is committed, and stays.

    Attributes:
        result: What the machine returned.
        members: So many servers have it.
        durable: Whether it is on their disks, or in their memory.
    """

    result: bytes
    members: int
    durable: bool


class ChainCall:
    """A command or a question that is not answered yet."""

    def __init__(self, member: ChainMember, asked: Asked, token: int) -> None:
        self._member = member
        self._asked = asked
        self._token = token

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._asked.done()

    def then(self, function: Callable[[], None]) -> None:
        """Have ``function`` called once it is, with the lock held, or now: it must be quick, and not wait."""
        with self._member.lock:
            self._asked.then(function)

    def wait(self, timeout: Seconds = None) -> bool:
        """Wait until the answer is there, at most so long; returns whether it is."""
        self._asked.wait(timeout)
        return self.done()

    def take(self) -> Any:
        """The answer, ``ChainAnswer`` to a command and ``bytes`` to a question; what is not there by now is given up.

        Raises:
            NoChain: No server has taken it; it is not done.
            TimedOut: It was sent and not answered yet; it may still be done.
            SessionExpired: Nobody knows whether it was done.
            CommandFailed: The machine has raised something.
            NotPermitted: The permissions do not allow it.
        """
        member, asked = self._member, self._asked
        if not asked.done() and self.give_up():
            member.check()
            raise NoChain(f"no server of the chain {member.configuration.name} took it in time{member.why()}")
        return asked.take(f"the command is not confirmed yet; it may still be done{member.why()}")

    def give_up(self) -> bool:
        """Want no answer any more; returns whether it is certain that it is not done."""
        member = self._member
        with member.lock:
            self._asked.forget()
            taken_back = not self.done() and member.core.withdraw(self._token)
            if taken_back:
                member.forget(self._token)
            return taken_back


class ChainMember:
    """See ``Chain`` for the arguments."""

    def __init__(self, configuration: ChainConfiguration | str | Path, *, security: LogSecurity = None) -> None:
        own(self)
        self.configuration = given = ChainConfiguration.of(configuration)
        gate = gate_of(keys_of(security))
        self.core = ChainClient(len(given.names), os.urandom(NONCE_BYTES), now=time.monotonic())
        self._asked: dict[int, Asked] = {}
        self._sizes: dict[int, int] = {}  # of commands that are not answered
        self._bytes = 0
        self._questions: dict[int, tuple[int, Seen | Excluded | None]] = {}  # by token: whom, and the answer
        self._tokens = itertools.count(1)
        self._refusals: dict[int, str] = {}
        self._events: deque[object] = deque(maxlen=EVENTS_MAX)
        self.node = ChainClientNode(
            given.known(gate), given.chain, self.core, gate=gate, on_report=self._reported, answered=self._answered
        )
        self.turns = self.node.turns
        self.lock = self.node.lock
        at_exit.add(self)
        self.node.start()

    # -- commands ----------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Commands that are not answered yet."""
        return len(self._sizes)

    def submit(self, command: bytes, *, at_once: bool = False) -> ChainCall:
        """Have a command done, without waiting. Raises BufferFull, RecordTooLarge, Closed, MemberStopped."""
        command = _as_command(command, "a command")
        with self.lock:
            self.check()
            if not self.room():
                raise BufferFull(f"{self.pending:,} commands wait for the chain {self.configuration.name}{self.why()}")
            token, actions = self.core.do(command, time.monotonic())
            self._sizes[token] = len(command)
            self._bytes += len(command)
            return self._asking(token, actions, at_once)

    def ask(self, query: bytes, server: str | None) -> ChainCall:
        """Ask the machine, without waiting. Raises RecordTooLarge, UsageError, Closed, MemberStopped."""
        place = None if server is None else self.configuration.place(server)
        query = _as_command(query, "a query")
        with self.lock:
            self.check()
            token, actions = self.core.read(query, time.monotonic(), server=place)
            return self._asking(token, actions, True)

    def _asking(self, token: int, actions: Any, at_once: bool) -> ChainCall:
        made = ChainCall(self, Asked(self.turns, self._asked, token), token)
        if at_once:
            self.node.do(actions)
        else:  # others may follow: they leave together
            self.node.perform(actions)
            self.node.look_at(0.0)
        return made

    def calling(self, command: bytes, timeout: Seconds) -> Steps[ChainAnswer]:
        """Have a command done, after a wait for room."""
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
        """Have many done, in order; the answers, or the first error when all are answered."""
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
        """Ask the machine."""
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
        """Whether a further command is taken."""
        return len(self._sizes) < PENDING_MAX and self._bytes < PENDING_BYTES_MAX

    def forget(self, token: int) -> None:
        """It is answered, or was never sent; the lock is held."""
        self._bytes -= self._sizes.pop(token, 0)

    def why(self) -> str:
        """What is known of why nobody answers, for the end of a sentence."""
        if self.core.why:
            return f": {self.core.why}"
        return "".join(f"; {self.configuration.names[place]}: {why}" for place, why in sorted(self._refusals.items()))

    # -- administration ----------------------------------------------------------------------------------------------

    def looking(self, timeout: Seconds) -> Steps[Mapping[str, ChainServerStatus | None]]:
        """Ask all servers how they are."""
        answers = yield from self._questioning([Look(next(self._tokens)) for _ in self.configuration.names], timeout)
        names = self.configuration.names
        return {
            name: status_of(found, names) if isinstance(found, Seen) else None
            for name, found in zip(names, answers, strict=True)
        }

    def excluding(self, name: str, out: bool, timeout: Seconds) -> Steps[None]:
        """Have a server stay out, or come back, and wait until that is decided."""
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
                self.node.ask(place, each)
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

    def _answered(self, place: int, answer: Seen | Excluded | Refused) -> None:
        if isinstance(answer, Refused):
            self._refusals[place] = answer.why
            if place == (self.core.members or (place,))[0]:
                self.core.abandon()  # it would be refused again and again
                self._sizes, self._bytes = {}, 0
                for each in list(self._asked.values()):
                    each.answer(NotPermitted(answer.why))
        elif self._questions.get(answer.token, (-1, None))[0] == place:
            self._questions[answer.token] = (place, answer)

    def _reported(self, event: object) -> None:
        if isinstance(event, Finished):
            self._finished(event)
            return
        if isinstance(event, ConnectionRefused):
            logger.warning("%s", event)
        self._events.append(event)

    def _finished(self, event: Finished) -> None:
        question = event.token not in self._sizes
        self.forget(event.token)
        self.turns.news = True
        asked = self._asked.get(event.token)
        if asked is None:
            return
        outcome, result = event.outcome
        if outcome == OK:
            asked.answer(result if question else ChainAnswer(result, event.members, event.durable))
        elif outcome == EXPIRED:
            asked.answer(
                SessionExpired("the chain has forgotten this client: whether the command was done is not known")
            )
        else:
            asked.answer(CommandFailed(f"the machine has raised {result.decode(errors='replace')}"))

    def events(self) -> list[object]:
        """What happened since the last call. Raises MemberStopped if nothing did, because it met a defect."""
        return happened(self._events, self.turns.check)

    def check(self) -> None:
        """Raise Closed or MemberStopped."""
        if self.turns.closed:
            raise Closed("the client of the chain was closed")
        self.turns.check()

    # -- the end -----------------------------------------------------------------------------------------------------

    def begin_leave(self) -> None:
        """See ``at_exit``: everything is sent as it comes."""

    def leave(self, timeout_s: float = CLOSE_S) -> list[str]:
        """Close, after commands under way are answered, or time is up; what is left, in sentences."""
        at_exit.remove(self)
        if self.turns.closed:
            return []
        self.turns.wait(lambda: not self._sizes, timeout_s if self.core.members else 0.0)
        left = self.pending
        self.node.close()
        return [f"{left:,} commands to a chain were not confirmed; they may be done"] if left else []


def _as_command(given: bytes, what: str) -> bytes:
    """What is given to a machine. Raises UsageError, RecordTooLarge."""
    if not isinstance(given, bytes | bytearray | memoryview):
        raise UsageError(f"{what} is bytes, not {given!r}")
    given = bytes(given)
    if len(given) > COMMAND_BYTES_MAX:
        raise RecordTooLarge(f"{what} has at most {COMMAND_BYTES_MAX:,} bytes, not {len(given):,}")
    return given
