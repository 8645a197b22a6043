"""The clocks of producers: who asks for them, what is known, and what waits until it is.

A producer answers what its clock shows, and so does a store that has asked it before: of a producer that is gone, or
that only a forwarder reaches, a store's reading is the one that there is. Originals do not hear of the question.

Consumers ask about partitions of which something is to be judged, and then it waits, until it is known or nobody has
answered for a while. Stores ask whoever publishes, seldom, and again when a consumer wants to know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from chappe.compiled import Frozen
from chappe.core import Clock, Deliver, Effect, Publish
from chappe.deadlines import Deadlines
from chappe.log.clock import ClockEstimate
from chappe.log.messages import UNKNOWN_US, AskClock, ClockTold

CLOCKS_MAX: Final = (
    10_000  # partitions whose clock is remembered, about 1 KiB each; then the one asked longest ago goes
)
ASKED_MAX: Final = 8  # questions about one that may still be answered
SOON_S: Final = 0.05  # somebody waits: it is asked so long after the last question ...
ASK_S: Final = 0.1  # ... again this often ...
PATIENCE_S: Final = 2.0  # ... and so long; members that can meet have met by then
FIRST_PAUSE_S: Final = 0.2  # between two questions while nobody waits, each time longer
CONSUMER_PAUSE_S: Final = 10.0  # ... up to this: a clock that was set is found by then, also if no record tells
UNKNOWN: Final = (0, UNKNOWN_US, 0)
FRESH_S: Final = 1.0  # a consumer asks a store about a clock that it has not read for so long: it asks itself ...
GRACE_S: Final = 0.3  # ... and waits so long for the answer before it says what it has


class ClockRead(Frozen, frozen=True):
    """The clock of a partition's producer was told, or is waited for no longer: its records can be judged."""

    partition: str


@dataclass(slots=True)
class _ClockState:
    """What is known of the clock of one partition's producer."""

    clock: ClockEstimate = field(default_factory=ClockEstimate)
    asked: dict[int, float] = field(default_factory=dict)  # questions, and when
    asked_at: float = -math.inf
    pause_s: float = FIRST_PAUSE_S
    since: float = math.inf  # since when somebody waits
    answered: set[str] = field(default_factory=set)  # since then
    silent: bool = False  # nobody is waited for: it does not answer
    wished: float = math.inf  # since when a consumer wants to hear more than we know


class Clocks:
    """The clocks that one member knows. ``pause_s``: between two questions while nobody waits."""

    def __init__(self, address: str, clock: Clock, pause_s: float = CONSUMER_PAUSE_S) -> None:
        self._address = address
        self._clock = clock
        self._pause_s = pause_s
        self._states: dict[str, _ClockState] = {}
        self._waits: Deadlines[str] = Deadlines()
        self._own = ClockEstimate(slack_s=0.0)
        self._number = 0

    def told(self, message: ClockTold, now: float) -> list[Effect]:
        """A producer or a store has answered."""
        state = self._states.get(message.address)
        asked = None if state is None else state.asked.get(message.number)
        if state is None or asked is None:
            return []
        if message.error_us != UNKNOWN_US:
            state.clock.read(asked, now, message.wall_us, message.error_us / 1e6, message.ago_us / 1e6)
            state.wished = math.inf
            if now - message.ago_us / 1e6 >= state.asked_at:
                state.silent = False
        if state.since == math.inf:
            return []
        state.answered.add(message.source)
        return [Deliver(self._address, ClockRead(message.address))]

    # -- of a consumer --------------------------------------------------------------------------------

    def judge(
        self,
        partition: str,
        span: tuple[int, int],
        arrived: float,
        max_age_s: float,
        *,
        live: bool,
        stores: int,
        now: float,
    ) -> tuple[ClockEstimate | None, list[Effect]]:
        """The clock by which records are to be judged; None while it is asked for, until ``ClockRead`` at the latest.

        Args:
            span: Their smallest and largest timestamps.
            arrived: When they came here.
            live: Whether their producer was heard of lately.
            stores: How many stores may know it.
        """
        self.own(now)  # when it was set is known by having looked
        state = self._of(partition)
        clock = state.clock
        if now - arrived > max_age_s:
            doubtful = False  # too old, whatever any clock says
        elif not clock.known:
            doubtful = True
        else:
            odd = any(clock.is_old(each, max_age_s, now) for each in span) or clock.is_ahead(span[1], arrived)
            doubtful = odd and clock.seen < arrived  # it may have been set meanwhile
        if doubtful and not live and state.since < math.inf and 0 < stores <= len(state.answered):
            state.silent = True  # whoever could know has said what it knows
        if doubtful and not state.silent:
            if state.since == math.inf:
                state.since = now
                state.answered.clear()
                self._waits.set(partition, max(now, state.asked_at + SOON_S))
            return None, self.handle_timeout(now)
        self._wait_no_more(partition, state)
        return self.clock(partition, now), self._ask_seldom(partition, state, now)

    def clock(self, partition: str, now: float) -> ClockEstimate:
        """What is known of a clock; if nothing is, it is taken to go as ours."""
        state = self._states.get(partition)
        return state.clock if state is not None and state.clock.known else self.own(now)

    def own(self, now: float) -> ClockEstimate:
        """Our own clock."""
        self._own.read(now, now, self._clock.wall_ns() // 1000)
        return self._own

    def handle_timeout(self, now: float) -> list[Effect]:
        """Ask again, or wait no more."""
        actions: list[Effect] = []
        for partition in self._waits.due(now):
            state = self._states[partition]
            if state.since == math.inf:  # it is a store's
                actions += self._ask_seldom(partition, state, now)
            elif now < state.since + PATIENCE_S:
                self._waits.set(partition, now + ASK_S)
                actions += self._ask(partition, state, now)
            else:
                state.silent = True
                self._wait_no_more(partition, state)
                actions.append(Deliver(self._address, ClockRead(partition)))
        return actions

    def next_timeout(self) -> float:
        """When something is due."""
        return self._waits.next

    # -- of a store -----------------------------------------------------------------------------------

    def knows(self, partition: str) -> bool:
        """Whether a clock was ever told."""
        state = self._states.get(partition)
        return state is not None and state.clock.known

    def published(self, partition: str, now: float) -> None:
        """A producer has published something: it is asked soon, if that is due."""
        if self._pause_s == math.inf:
            return
        state = self._of(partition)
        if now >= state.asked_at + state.pause_s and partition not in self._waits:
            self._waits.set(partition, now)

    def answer(self, question: AskClock, now: float) -> list[Effect]:
        """A consumer wants to know a clock; it asks again until it is answered."""
        partition = question.topic
        state = self._of(partition)
        clock, fresh, actions = state.clock, state.clock.seen >= now - FRESH_S, []
        if not fresh and now >= state.asked_at + (self._pause_s if state.silent else ASK_S):
            actions = self._ask(partition, state, now)
        if not fresh and not state.silent:
            state.wished = min(state.wished, now)
            if now < state.wished + GRACE_S:
                return actions
            state.silent = True
        known = UNKNOWN
        if clock.known:
            time_us, error_s, ago_s = clock.now(now)
            known = time_us, round(error_s * 1e6), round(ago_s * 1e6)
        told = ClockTold(question.address, partition, self._address, question.number, *known)
        return [*actions, Publish(told)]

    # -- inside ---------------------------------------------------------------------------------------

    def _of(self, partition: str) -> _ClockState:
        state = self._states.get(partition)
        if state is None:
            if len(self._states) >= CLOCKS_MAX:
                oldest = next(iter(self._states))
                self._wait_no_more(oldest, self._states.pop(oldest))
            state = self._states[partition] = _ClockState()
        return state

    def _wait_no_more(self, partition: str, state: _ClockState) -> None:
        state.since = math.inf
        self._waits.clear(partition)

    def _ask_seldom(self, partition: str, state: _ClockState, now: float) -> list[Effect]:
        if now < state.asked_at + state.pause_s:
            return []
        state.pause_s = self._pause_s if state.silent else min(2 * state.pause_s, self._pause_s)
        return self._ask(partition, state, now)

    def _ask(self, partition: str, state: _ClockState, now: float) -> list[Effect]:
        self._states[partition] = self._states.pop(partition)  # asked last
        self._number += 1
        state.asked_at = now
        if len(state.asked) >= ASKED_MAX:
            del state.asked[next(iter(state.asked))]
        state.asked[self._number] = now
        return [Publish(AskClock(partition, self._address, self._number))]
