"""A clone's questions for its master's position, by which it knows that it has all that the master had at a moment.

One question is in flight at a time, so its answer covers all that the master had when it was asked. A master of
chappe is asked by number, and answers with the number of its last event once all operations so far are durable. An
original has no such question. It is asked for an event that this clone already has, which it sends again or reports as
gone: that answer comes after all events that it sent before.

A clone's questions for the history of keys, which its master answers in parts, the newest changes first.

Each question goes on where its last part ended. It is repeated until it is answered, after longer and longer pauses, as
a part may be large; with another master it begins anew.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from chappe.core import Effect, Resolve
from chappe.data.values import Value
from chappe.defaults import CHANNEL_NACK_S, STORE_HISTORY_ASKS_MAX, STORE_HISTORY_MAX
from chappe.errors import BufferFull, InvalidData, InvalidOperation, ProtocolError, TimedOut
from chappe.kv import commands as cmd
from chappe.kv.backend import HistoryRow
from chappe.kv.clone_writes import Uplink
from chappe.kv.entity import Entity
from chappe.kv.history import PastChange, no_history, of_an_original, past_change

_PAUSE_MAX_S: Final = 5.0  # between two questions for the same part


class _PastQuestion:
    __slots__ = ("again_at", "below", "found", "key", "number", "pause_s", "ticket", "until")

    def __init__(self, ticket: int, key: Value, until: float) -> None:
        self.ticket = ticket
        self.key = key
        self.until = until
        self.number = 0  # of the question for a part, the same when it is repeated; 0: it was not asked yet
        self.below = 0
        self.again_at = -math.inf
        self.pause_s = CHANNEL_NACK_S
        self.found: list[PastChange] = []


class PastQuestions:
    def __init__(self, name: str, uplink: Uplink) -> None:
        self._name = name
        self._uplink = uplink
        self._asking: dict[int, _PastQuestion] = {}  # by ticket
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._asking)

    def add(self, ticket: int, key: Value, until: float) -> None:
        """Add a caller's question; raises BufferFull."""
        if len(self._asking) >= STORE_HISTORY_ASKS_MAX:
            raise BufferFull(f"{STORE_HISTORY_ASKS_MAX:,} questions for the history of keys wait: ask again later")
        self._asking[ticket] = _PastQuestion(ticket, key, until)

    def ask(self, master: Entity, now: float, actions: list[Effect]) -> None:
        for each in list(self._asking.values()):
            if not master.is_chappe:
                self._end(each, InvalidOperation(of_an_original(self._name)), actions)
            elif now >= each.again_at:
                self._send(each, master, now, actions)
                each.pause_s = min(2 * each.pause_s, _PAUSE_MAX_S)

    def handle(self, master: Entity, told: cmd.HistoryTold, now: float, actions: list[Effect]) -> None:
        """Take the master's answer; raises ProtocolError, and then the question is over, too."""
        asking = next((each for each in self._asking.values() if each.number == told.question), None)
        if asking is None:
            return
        if told.state == cmd.NO_HISTORY:
            self._end(asking, InvalidOperation(no_history(self._name)), actions)
            return
        try:
            part = [past_change(HistoryRow(b"", revision, body)) for revision, body in told.past()]
            if part and asking.below and part[-1].revision >= asking.below:
                raise InvalidData("a history goes on with changes that it has told already")
            asking.found[:0] = part
            if len(asking.found) > STORE_HISTORY_MAX or (told.state == cmd.MORE and not part):
                raise InvalidData(f"a history of more than {STORE_HISTORY_MAX} changes, or without an end")
        except ProtocolError as problem:
            self._end(asking, problem, actions)
            raise
        if told.state == cmd.MORE:
            asking.below, asking.number, asking.pause_s = part[0].revision, 0, CHANNEL_NACK_S
            self._send(asking, master, now, actions)
        else:
            self._end(asking, tuple(asking.found), actions)

    def begin_again(self) -> None:
        for each in self._asking.values():
            each.below, each.number, each.again_at, each.pause_s = 0, 0, -math.inf, CHANNEL_NACK_S
            each.found.clear()

    def tick(self, now: float, actions: list[Effect]) -> None:
        for each in [each for each in self._asking.values() if now >= each.until]:
            self._end(each, TimedOut(f"the master of store {self._name!r} did not tell the history in time"), actions)

    def next_due(self, connected: bool) -> float:
        """Return when ``tick`` is due, or ``ask`` where a master is followed."""
        return min([min(each.until, each.again_at) if connected else each.until for each in self._asking.values()])

    def _send(self, asking: _PastQuestion, master: Entity, now: float, actions: list[Effect]) -> None:
        if not asking.number:
            self._number += 1
            asking.number = self._number
        asking.again_at = now + asking.pause_s
        self._uplink.send(cmd.HistoryAsked(asking.number, asking.key, asking.below), master, actions)

    def _end(self, asking: _PastQuestion, outcome: object, actions: list[Effect]) -> None:
        del self._asking[asking.ticket]
        actions.append(Resolve(asking.ticket, outcome))


_PROBES_MAX = 64  # of an original; its answer to a later probe covers dropped ones


class Questions:
    """Questions by rising number; an answer also answers all earlier questions."""

    def __init__(self, uplink: Uplink) -> None:
        self.answered = 0
        self._uplink = uplink
        self._asked = 0
        self._ask_at = math.inf  # when the question in flight is repeated
        self._probes: deque[tuple[int, int]] = deque(maxlen=_PROBES_MAX)  # an original's: question and event

    @property
    def next(self) -> int:
        """The number of the question whose answer covers all that the master has now."""
        return self._asked + 1

    def ask(self, number: int, master: Entity, shown: int, now: float, actions: list[Effect]) -> None:
        """Ask the question that a caller waits for, unless one is in flight; ``shown`` is the last event's number."""
        if self.answered >= number:
            return
        if self.answered == self._asked:
            self._asked += 1
        elif now < self._ask_at:
            return
        self._ask_at = now + CHANNEL_NACK_S
        if master.is_chappe:
            self._uplink.send(cmd.PositionAsked(self._asked), master, actions)
        else:
            self._probes.append((self._asked, shown))
            self._uplink.send(cmd.MissingEvents((shown,)), master, actions)

    def take_position(self, number: int) -> None:
        if number == self._asked:
            self.answered = number

    def take_event(self, seq: int) -> None:
        """Take an original's answer: the event that this clone asked for, or its absence."""
        for place, (number, shown) in enumerate(self._probes):
            if shown == seq:
                del self._probes[place]
                self.answered = max(self.answered, number)
                return

    def begin_again(self) -> None:
        """Repeat the last question, for a new master or a new snapshot."""
        self.answered = max(0, self._asked - 1)
        self._ask_at = -math.inf
        self._probes.clear()

    def next_due(self, number: int) -> float:
        """Return when ``ask`` is due for a caller that waits for the answer to a question."""
        if self.answered >= number:
            return math.inf
        return -math.inf if self.answered == self._asked else self._ask_at
