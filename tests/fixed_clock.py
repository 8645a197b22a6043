"""A time of day that a test sets."""

from __future__ import annotations

from collections.abc import Callable


class FixedClock:
    """Shows ``ns``, nanoseconds since 1970 UTC, until a test sets it, or what a function says."""

    def __init__(self, ns: int = 0, *, us: int = 0, of: Callable[[], int] | None = None) -> None:
        self.ns = ns + us * 1000
        self._of = of

    def wall_ns(self) -> int:
        """See ``core.Clock``."""
        return self.ns if self._of is None else self._of()
