"""A time of day for cores in tests."""

from __future__ import annotations

from collections.abc import Callable


class Daytime:
    """The clock that a core asks: it shows ``ns``, or what a function says."""

    def __init__(self, ns: int = 0, of: Callable[[], int] | None = None) -> None:
        self.ns = ns
        self._of = of

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 UTC."""
        return self.ns if self._of is None else self._of()
