"""A clone's questions for its master's position, by which it knows that it has all that the master had at a moment.

One question is in flight at a time, so its answer covers all that the master had when it was asked. A master of
chappe is asked by number, and answers with the number of its last event once all operations so far are durable. An
original has no such question. It is asked for an event that this clone already has, which it sends again or reports as
gone: that answer comes after all events that it sent before.
"""

from __future__ import annotations

import math
from collections import deque

from chappe.core import Effect
from chappe.defaults import CHANNEL_NACK_S
from chappe.kv import commands as cmd
from chappe.kv.clone_writes import Uplink
from chappe.kv.entity import Entity

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
        """Take the answer of a master of chappe."""
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
