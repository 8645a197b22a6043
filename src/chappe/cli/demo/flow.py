"""What flows while the demo runs: the newest value of each metric, and how fast and how soon things happen."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chappe.cli.demo.numbers import count, delay, quantity, rate

RATE_S: Final = 5.0  # rates are of about the last seconds
CURVE_MAX: Final = 60  # values kept for the small curve
METRICS_MAX: Final = 1000  # that are shown


@dataclass(slots=True)
class Flow:
    """Told again and again how far everything is; used by one thread."""

    clock: Callable[[], float] = time.monotonic
    sent: int = 0
    stored: int = 0
    in_windows: int = 0  # values
    windows: int = 0  # that got new values, each time
    batches: int = 0
    stored_s: float | None = None  # from the moment of a record until it is stored
    windows_s: float | None = None  # until it is in a window
    newest: dict[str, tuple[float, str]] = field(default_factory=dict)  # value and unit
    lately: dict[str, deque[float]] = field(default_factory=dict)
    _told: object = None
    _samples: deque[tuple[float, int, int, int]] = field(default_factory=deque)

    def hear(self, facts: Mapping[str, Any]) -> None:
        """Take over what the producer told."""
        first = int(facts.get("first", 0))
        self.sent = int(facts.get("sent", first)) - first
        self.stored = max(0, int(facts.get("stored", first)) - first)
        self.stored_s = facts.get("stored_s", self.stored_s)
        values = facts.get("newest")
        if values is not None and values is not self._told:
            self._told = values
            for metric, (value, unit) in values.items():
                if metric in self.newest or len(self.newest) < METRICS_MAX:
                    self.newest[metric] = (value, unit)
                    self.lately.setdefault(metric, deque(maxlen=CURVE_MAX)).append(value)
        self._sample()

    def unit(self, metric: str) -> str:
        """The unit of a metric, as far as it is known."""
        return self.newest[metric][1] if metric in self.newest else ""

    @property
    def records(self) -> str:
        """How many were sent and stored, how fast and how soon."""
        sent, stored, _ = self._rates()
        soon = f" after {delay(self.stored_s)}" if self.stored_s is not None else ""
        return f"{count(self.sent)} sent ({rate(sent)}), {count(self.stored)} stored ({rate(stored)}){soon}"

    @property
    def counted(self) -> str:
        """The same of the windows."""
        if not self.batches:
            return "none yet"
        *_, windows = self._rates()
        soon = f" after {delay(self.windows_s)}" if self.windows_s is not None else ""
        batches = f"{count(self.batches)} batch{'es' if self.batches > 1 else ''}"
        return f"{count(self.in_windows)} values in {batches}, {quantity(windows)} windows/s,{soon}".rstrip(",")

    def _sample(self) -> None:
        now = self.clock()
        self._samples.append((now, self.sent, self.stored, self.windows))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_S:
            self._samples.popleft()

    def _rates(self) -> tuple[float, float, float]:
        """Records sent and stored, and windows, a second."""
        if len(self._samples) < 2 or self._samples[-1][0] <= self._samples[0][0]:
            return 0.0, 0.0, 0.0
        (then, *before), (now, *after) = self._samples[0], self._samples[-1]
        sent, stored, windows = ((b - a) / (now - then) for a, b in zip(before, after, strict=True))
        return sent, stored, windows
