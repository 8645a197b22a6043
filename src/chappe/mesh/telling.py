"""When an endpoint tells its own link state, and as which version.

What is told in an endpoint's name by an earlier life of it, or by somebody else, travels to the endpoint itself, which
outdoes it with the next version.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from chappe.data.logical import LamportTimestamp
from chappe.defaults import (
    DOUBT_S,
    LIFE_NUMBERS,
    LINK_STATE_AHEAD,
    NUMBER_MAX,
    TELL_FEW,
    TELL_PAUSE_MAX_S,
    TELL_PAUSE_S,
)
from chappe.mesh.link_states import may_follow
from chappe.mesh.messages import LinkState


class Telling:
    """Of one endpoint.

    Args:
        version: Of its first link state; higher than any that an earlier life of this id told.
    """

    def __init__(self, version: int, now: float) -> None:
        self.version = LamportTimestamp(version)  # of our link state, and so of our filter
        self.tell_at = inf  # when our link state, which changed since ``tell``, is to be told
        self.outdo_at = inf  # when what somebody else told in our name is to be outdone
        self.numbers_from = 0  # publications of an earlier life may have numbers up to this
        self._first_version = version
        self._born = now
        self._outdo = 0  # the version of what is to be outdone
        self._outdone_at = -inf
        self._told: LinkState | None = None  # what ``tell`` returned last
        self._told_at = -inf
        self._recent = 0  # links that came or went shortly after another

    def change(self, urgent: bool, links: int = 0) -> None:
        """Our link state has changed; while several of our links come and go, ``links`` of them, it waits a little."""
        if urgent:
            self.tell_at = -inf
        elif self.tell_at > -inf:
            self._recent += 1
            many = max(self._recent, links if links > TELL_FEW else 0)
            self.tell_at = self._told_at + min(TELL_PAUSE_MAX_S, TELL_PAUSE_S * many)

    def tell(self, now: float, made: Callable[[], LinkState]) -> LinkState | None:
        """Our link state, as ``made`` with the next version, if it changed, or others told one, and it is time."""
        if now >= self.outdo_at:
            self._outdone_at, self.outdo_at = now, inf
            self.numbers_from = self._outdo + LIFE_NUMBERS
            self.version = self.version.merged(self._outdo)
        elif now < self.tell_at:
            return None
        self.tell_at = inf
        if now > self._told_at + TELL_PAUSE_MAX_S:
            self._recent = 0
        self._told_at = now
        self.version = self.version.incremented()
        self._told = made()
        return self._told

    def hurry(self) -> None:
        """What is untold is needed now."""
        if self.tell_at < inf:
            self.tell_at = -inf

    def holds_until(self, now: float) -> float:
        """Until when link states of others are to wait as several links of ours come or go; ``now`` if they are not."""
        pause = min(TELL_PAUSE_MAX_S, TELL_PAUSE_S * self._recent)
        told_at = self._told_at if self.tell_at == inf else self.tell_at
        return max(now, told_at + pause) if pause else now

    def hear(self, state: LinkState, now: float) -> bool:
        """A link state of ours came from elsewhere; whether it is to be outdone at once.

        In a ring what we told last comes back whenever the way around is faster than a link. It is not news: to answer
        it with a new version would be answered by another round, for ever. Two endpoints with one id do answer each
        other for ever, so this is done now and then only.
        """
        if state.version < self.version or state == self._told:
            return False
        if not may_follow(state.version, self.version, self.limit(now)):
            return False
        self._outdo = max(self._outdo, state.version)
        self.outdo_at = max(now, self._outdone_at + DOUBT_S)
        return self.outdo_at <= now

    def limit(self, now: float) -> int:
        """How high versions may be by our own clock, which gave us our first one."""
        return self._first_version + int((now - self._born) * 1e6) + LINK_STATE_AHEAD

    def number_limit(self, now: float) -> int:
        """What the numbers of publications are below, by the same clock."""
        return min(NUMBER_MAX, self.limit(now) + LIFE_NUMBERS)
