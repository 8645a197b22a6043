"""The clocks of producers: who asks for them, what is known, and what waits until it is.

A producer answers what its clock shows, and so does a store that has asked it before: of a producer that is gone, or
that only a forwarder reaches, a store's reading is the one that there is. Originals do not hear of the question.

Consumers ask about partitions of which something is to be judged, and then it waits, until it is known or nobody has
answered for a while. Stores ask whoever publishes, seldom, and again when a consumer wants to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from chappe.compiled import Frozen
from chappe.core import Clock, Deliver, Effect, Publish
from chappe.deadlines import Deadlines
from chappe.log.messages import UNKNOWN_US, AskClock, ClockTold

DRIFT: Final = 0.000_5  # seconds a second: as fast as a clock that is being corrected may run away (adjtime)
SLACK_S: Final = 0.05  # what differs by less was not set; so much older may be what is not called old yet
COARSE_S: Final = 0.01  # a reading that took so much longer than another one, and twice as long, is worse
FRESH_S: Final = 1.0  # a worse reading replaces one that is older; of an older one a store asks the producer again
RUNS_MAX: Final = 8


@dataclass(slots=True)
class _Run:
    """A span in which the clock was not set, by the best of its last readings."""

    begins: float  # by our steady clock: before this it had not begun
    ends: float  # ... and after this it had ended
    offset_us: int  # its time of day is our steady clock and this
    error_s: float
    at: float  # when it was read
    seen: float  # when it was surely so

    def tolerance_s(self, now: float) -> float:
        return self.error_s + DRIFT * max(0.0, now - self.at)


class ClockEstimate:
    """The time of day of another node, measured against our own steady clock; without ``slack_s``, our own time of day.

    The other reads its clock between question and answer, so the offset between its time of day and our steady clock is
    known to half of that. Our own time of day does not matter: it may be wrong, and may be set. A reading that does not
    fit those before shows that the other's clock was set in between, and begins a new run. Each stamp tells to which
    run it belongs, since it means a moment of that run. Where two would do, the younger is meant: a fresh record is
    never called old.

    Source: chappe's own; the estimate is that of NTP (RFC 5905), without its filters.
    """

    __slots__ = ("_runs", "_slack_s")

    def __init__(self, slack_s: float = SLACK_S) -> None:
        self._slack_s = slack_s
        self._runs: list[_Run] = []

    @property
    def known(self) -> bool:
        return bool(self._runs)

    @property
    def seen(self) -> float:
        """The last time at which it was surely going by the last run; minus infinity if it was never read."""
        return self._runs[-1].seen if self._runs else -math.inf

    @property
    def runs(self) -> int:
        return len(self._runs)

    def read(self, asked: float, came: float, time_us: int, error_s: float = 0.0, ago_s: float = 0.0) -> None:
        """Note that it showed ``time_us`` between ``asked`` and ``came``.

        Args:
            error_s: The reading is wrong by at most this.
            ago_s: The node that answers read it this long ago.
        """
        offset_us = time_us - round((asked + came) * 500_000)
        read = _Run(-math.inf, math.inf, offset_us, (came - asked) / 2 + error_s, came, asked - ago_s)
        if not self._runs:
            self._runs.append(read)
            return
        run = self._runs[-1]
        differs_s = abs(offset_us - run.offset_us) / 1e6
        if differs_s <= read.error_s + run.tolerance_s(came) + SLACK_S:
            better = read.error_s <= 2 * run.error_s + COARSE_S
            if read.seen > run.seen and (better or read.seen > run.seen + FRESH_S):
                read.begins = run.begins
                self._runs[-1] = read
        elif read.seen > run.seen:
            read.begins, run.ends = run.seen, came
            self._runs = [*self._runs[1 - RUNS_MAX :], read]

    def now(self, now: float) -> tuple[int, float, float]:
        """Return its present time, the largest error of that, and the seconds since it was read; it must be known."""
        run = self._runs[-1]
        return run.offset_us + round(now * 1e6), run.tolerance_s(now), max(0.0, now - run.seen)

    def age_s(self, timestamp: int, now: float) -> float:
        return self._age(timestamp, now)[0]

    def is_old(self, timestamp: int, max_age_s: float, now: float) -> bool:
        """Return True if it surely showed this longer ago."""
        age_s, tolerance_s = self._age(timestamp, now)
        return age_s - tolerance_s > max_age_s

    def olds(self, max_age_s: float, now: float) -> Callable[[int], bool]:
        if len(self._runs) > 1:
            return lambda timestamp: self.is_old(timestamp, max_age_s, now)
        run = self._runs[-1]
        before_s = now - max_age_s - run.tolerance_s(now) - self._slack_s
        return (run.offset_us + math.floor(before_s * 1e6)).__gt__

    def young_until(self, timestamp: int, max_age_s: float) -> float:
        """Return until when it, and all later ones, surely are not too old by our steady clock; -inf if unknown."""
        if len(self._runs) > 1:
            return -math.inf
        return (timestamp - self._runs[-1].offset_us) / 1e6 + max_age_s

    def is_ahead(self, timestamp: int, now: float) -> bool:
        """Return True if it surely had not shown this yet: it was set since, or a producer gave a future time."""
        age_s, tolerance_s = self._age(timestamp, now)
        return age_s + tolerance_s < 0

    def _age(self, timestamp: int, now: float) -> tuple[float, float]:
        found: list[tuple[float, float]] = []
        for run in self._runs:
            published = (timestamp - run.offset_us) / 1e6
            tolerance_s = run.tolerance_s(now) + self._slack_s
            if run.begins - tolerance_s <= published <= min(run.ends, now) + tolerance_s:
                found.append((now - published, tolerance_s))
        # A time that no run has shown was given by whoever published it.
        return min(found) if found else (now - published, tolerance_s)


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
GRACE_S: Final = 0.3  # ... and waits so long for the answer before it says what it has


class ClockRead(Frozen, frozen=True):
    """The clock of a partition's producer was told, or is waited for no longer: its records can be judged."""

    partition: str


@dataclass(slots=True)
class _ClockState:
    """The known clock of one partition's producer, and the questions about it."""

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
        """Return the clock by which to judge records; None while it is asked for, until ``ClockRead`` at the latest.

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
        """Return the clock of a partition's producer; an unknown one is taken to agree with ours."""
        state = self._states.get(partition)
        return state.clock if state is not None and state.clock.known else self.own(now)

    def own(self, now: float) -> ClockEstimate:
        self._own.read(now, now, self._clock.wall_ns() // 1000)
        return self._own

    def handle_timeout(self, now: float) -> list[Effect]:
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
        return self._waits.next

    # -- of a store -----------------------------------------------------------------------------------

    def knows(self, partition: str) -> bool:
        state = self._states.get(partition)
        return state is not None and state.clock.known

    def published(self, partition: str, now: float) -> None:
        """Note that a producer has published something: it is asked soon, if that is due."""
        if self._pause_s == math.inf:
            return
        state = self._of(partition)
        if now >= state.asked_at + state.pause_s and partition not in self._waits:
            self._waits.set(partition, now)

    def answer(self, question: AskClock, now: float) -> list[Effect]:
        """Answer a consumer that asks for a clock; it asks again until it is answered."""
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
