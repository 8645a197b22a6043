"""How far its master is: a clone asks, to tell whether it has everything that the master had at a moment.

One question is under way at a time, so its answer tells of all that the master had when it was asked. A master of
chappe is asked by number, and answers with the number of its last event once what it had done is durable. An original
has no such question. It is asked for an event that this clone has already, which it sends again or says that it has no
more: that answer comes behind all events that it told before.
"""

from __future__ import annotations

import math
from collections import deque

from chappe.defaults import CHANNEL_NACK_S
from chappe.kv import commands as cmd
from chappe.kv.actions import Action
from chappe.kv.clone_writes import Uplink
from chappe.kv.entity import Entity

_PROBES_MAX = 64  # of an original; what it answers then is its answer to a later one


class Questions:
    """Numbers rise; the answer to one answers all before."""

    def __init__(self, uplink: Uplink) -> None:
        self.answered = 0
        self._uplink = uplink
        self._asked = 0
        self._ask_at = math.inf  # when the question under way is asked again
        self._probes: deque[tuple[int, int]] = deque(maxlen=_PROBES_MAX)  # an original's: question and event

    @property
    def next(self) -> int:
        """The question whose answer tells of all that the master has now."""
        return self._asked + 1

    def ask(self, number: int, master: Entity, shown: int, now: float, actions: list[Action]) -> None:
        """Somebody waits for the answer to a question: ask it, unless one is under way; ``shown`` is the last event."""
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

    def handle_position(self, number: int) -> None:
        """A master of chappe has answered."""
        if number == self._asked:
            self.answered = number

    def handle_event(self, seq: int) -> None:
        """An original has sent this clone an event that it asked for, or has it no more."""
        for place, (number, shown) in enumerate(self._probes):
            if shown == seq:
                del self._probes[place]
                self.answered = max(self.answered, number)
                return

    def begin_again(self) -> None:
        """Another master is followed, or all it has is taken anew: the last question is asked again."""
        self.answered = max(0, self._asked - 1)
        self._ask_at = -math.inf
        self._probes.clear()

    def next_timeout(self, number: int) -> float:
        """When ``ask`` has something to say, for somebody who waits for the answer to a question."""
        if self.answered >= number:
            return math.inf
        return -math.inf if self.answered == self._asked else self._ask_at
