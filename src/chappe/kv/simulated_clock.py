"""The clock of an endpoint's data stores in a simulation: it stands still until it is advanced.

The time of day goes as far as the caller says, and entries expire by it. Heartbeats, acknowledgements, searches and
time-outs of masters and clones count ticks instead; one tick passes at most, however far the clock is advanced. So a
jump over years loses no clone or master that had no chance to answer.

Source: Zeek Broker, ``sim_clock`` in ``endpoint.cc``. Departures: two advances of half a tick make one tick; an entry
expires in the advance that reaches its time, where the original looks after its entries once in a tick.
"""

from __future__ import annotations

from typing import Final

from chappe.defaults import CHANNEL_TICK_S

_NS: Final = 1_000_000_000
_TICK_NS: Final = int(CHANNEL_TICK_S * _NS)


class SimulatedClock:
    """Begins at 1970. ``now`` is the seconds that ticks have made."""

    def __init__(self) -> None:
        self._wall_ns = 0
        self.now = 0.0
        self._ticked_ns = 0  # a sum of floats would drift

    def wall_ns(self) -> int:
        return self._wall_ns

    def advance(self, wall_ns: int) -> bool:
        """Set the time of day; return False, and change nothing, if that is not later."""
        passed_ns = wall_ns - self._wall_ns
        if passed_ns <= 0:
            return False
        self._wall_ns = wall_ns
        self._ticked_ns += min(passed_ns, _TICK_NS)
        self.now = self._ticked_ns / _NS
        return True
