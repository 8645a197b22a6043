"""Forwarders, as a node sees them that knows nobody else: which of those it was given are there.

Such a node is not found and finds nobody. It dials every forwarder, and takes what all of them send. A forwarder says
once a second who it is (STORE-INFO); one that is silent for some seconds is gone, until it is heard again.

Source: chappe's own. It takes the place of ``beacon.Discovery`` where there is no tower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chappe.core import Effect, Report
from chappe.defaults import BEACON_TIMEOUT_S
from chappe.log.beacon import Left
from chappe.log.events import ForwarderFound, ForwarderLost


@dataclass(slots=True)
class _Heard:
    """One forwarder."""

    at: str  # as people are told of it
    lost_at: float  # if it is silent until then
    address: str | None = None  # of its present life


class Forwarders:
    """The forwarders that one node was given; ``places`` is how they are called, ``role`` is told who is gone."""

    def __init__(self, role: Left, places: Sequence[str], *, now: float) -> None:
        self._role = role
        self._heard = [_Heard(each, now + BEACON_TIMEOUT_S) for each in places]

    @property
    def tower(self) -> bool:
        """Whether a forwarder is there; it does what a tower does for others."""
        return self.peers > 0

    @property
    def told(self) -> ForwarderFound | ForwarderLost | None:
        """What was last reported of the first one that is there, or else of the first one that is not."""
        here = [each for each in self._heard if each.address is not None]
        if here:
            return ForwarderFound(here[0].at)
        return next((ForwarderLost(each.at) for each in self._heard if each.lost_at == math.inf), None)

    @property
    def peers(self) -> int:
        """Number of forwarders that are there."""
        return sum(each.address is not None for each in self._heard)

    @property
    def met(self) -> list[tuple[str, str]]:
        """Address and place of every forwarder that is there."""
        return [(each.address, each.at) for each in self._heard if each.address is not None]

    def heard(self, place: int, address: str, now: float) -> list[Effect]:
        """The forwarder at a place said who it is."""
        found = self._heard[place]
        former, found.address, found.lost_at = found.address, address, now + BEACON_TIMEOUT_S
        if former == address:
            return []
        return [Report(ForwarderFound(found.at))] if former is None else self._role.handle_gone(former, now)

    def store_heard(self, address: str, now: float) -> None:
        """Nothing follows: ``heard`` tells what a forwarder says of itself, and no other store is met."""

    def handle_timeout(self, now: float) -> list[Effect]:
        """Those that were silent for long are gone."""
        actions: list[Effect] = []
        for each in self._heard:
            if now >= each.lost_at:
                if each.address is not None:
                    actions += self._role.handle_gone(each.address, now)
                each.address, each.lost_at = None, math.inf
                actions.append(Report(ForwarderLost(each.at)))
        return actions

    def next_timeout(self) -> float:
        """When the next one is gone, if it stays silent."""
        return min((each.lost_at for each in self._heard), default=math.inf)

    def claim(self, identity: str, now: float) -> list[Effect]:
        """Nobody is told: those who go on with an identity do not hear each other here."""
        return []

    def disclaim(self, identity: str) -> list[Effect]:
        """See ``claim``."""
        return []

    def newcomer(self, identity: str, now: float) -> bool:
        """See ``claim``."""
        return False

    def goodbye(self) -> list[Effect]:
        """A connection that ends says enough."""
        return []
