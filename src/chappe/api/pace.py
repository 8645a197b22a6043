"""The pace of a replay: the original speed, a multiple of it, or at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from chappe.system import time

STEP_S: Final = 0.005  # at a given speed, what is due is sent this often
SHOW_S: Final = 0.1  # how often progress is reported


@dataclass(slots=True)
class Pace:
    """Says when records are due; ``speed`` None: at once."""

    speed: float | None
    _origin: tuple[float, int] | None = field(default=None, init=False)  # a moment of ours, and the time due then

    def due(self, first: int) -> int | None:
        """Return the time up to which records may be sent now, None for all; ``first`` is the time of the next one."""
        if self.speed is None:
            return None
        now = time.monotonic()
        if self._origin is None:
            self._origin = (now, first)
        began, at = self._origin
        return at + int((now - began) * self.speed * 1e6)

    def wait(self, time_us: int, meanwhile: Callable[[], None]) -> None:
        """Wait until a record of this time is due."""
        while (left := self.left_s(time_us)) > 0:
            time.sleep(min(max(left, STEP_S), SHOW_S))
            meanwhile()

    def left_s(self, time_us: int) -> float:
        if self.speed is None or self._origin is None:
            return 0.0
        began, at = self._origin
        return max(began + (time_us - at) / 1e6 / self.speed - time.monotonic(), 0.0)
