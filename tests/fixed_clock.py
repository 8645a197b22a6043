"""A time of day that a test sets."""

from __future__ import annotations


class FixedClock:
    """Shows ``us``, microseconds since 1970 UTC, until a test sets it."""

    def __init__(self, us: int = 0) -> None:
        self.us = us

    def wall_ns(self) -> int:
        """See ``core.Clock``."""
        return self.us * 1000
