"""Sources: each looks at one kind of member, as a member itself or from outside, and asks no more than it needs.

A source has ``name``, ``look() -> Part``, which may raise ChappeError or OSError, and ``close()``.
"""

from __future__ import annotations

from typing import Protocol

from chappe.observing.snapshot import ObservedPart


class DashboardSource(Protocol):
    name: str
    mend: str  # what to do if it cannot look

    def look(self) -> ObservedPart:
        """Look once. Raises ChappeError, OSError if it cannot tell."""

    def close(self) -> None: ...
