"""What was asked of the stores of a world, and what their members were told became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

LISTS: Final = ("list a", "list b")  # serial numbers are pushed to them, and nothing else happens to them
UNIQUE: Final = tuple(f"unique {n}" for n in range(40))  # put_unique alone
TEMPORARY: Final = ("temporary a", "temporary b")  # always with an expiry, every value once
COUNTERS: Final = ("counter",)
MIXED: Final = ("mixed a", "mixed b", "mixed c")  # anything, so that much of it does not fit

PENDING: Final = object()


@dataclass(slots=True)
class Asked:
    """One operation."""

    member: str
    what: tuple[str, Any, Any, int]
    outcome: object = PENDING  # None, True, False or an exception


@dataclass(slots=True)
class ReplicaTruth:
    """All operations by their serial number."""

    asked: dict[int, Asked] = field(default_factory=dict)
    answered: int = 0  # of them, how many have an outcome

    def told(self, serial: int) -> object:
        """The outcome of an operation; ``PENDING`` while there is none."""
        return self.asked[serial].outcome
