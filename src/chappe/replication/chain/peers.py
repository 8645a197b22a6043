"""Beats of the other servers, and who hears whom."""

from __future__ import annotations

import math

from chappe.replication.chain.messages import Beat


class Peers:
    """The other named servers, by place; one without a beat for ``silent_s`` is silent."""

    def __init__(self, place: int, servers: int, silent_s: float) -> None:
        self.place = place
        self.others = tuple(each for each in range(servers) if each != place)
        self._silent_s = silent_s
        self._beats: dict[int, Beat] = {}
        self._heard_at: dict[int, float] = {}

    def hear(self, sender: int, beat: Beat, now: float) -> None:
        self._beats[sender] = beat
        self._heard_at[sender] = now

    def paused(self, now: float) -> None:
        """Forget silences: this server stood still, and did not hear others meanwhile."""
        for place in self._heard_at:
            self._heard_at[place] = now

    def beat(self, place: int, now: float) -> Beat | None:
        fresh = now - self._heard_at.get(place, -math.inf) < self._silent_s
        return self._beats.get(place) if fresh else None

    def heard(self, now: float) -> dict[int, Beat]:
        found = ((place, self.beat(place, now)) for place in self.others)
        return {place: beat for place, beat in found if beat is not None}

    def hears(self, now: float) -> int:
        return sum(1 << place for place in self.heard(now))

    def mutual(self, place: int, now: float) -> Beat | None:
        beat = self.beat(place, now)
        return beat if beat is not None and beat.hears >> self.place & 1 else None
