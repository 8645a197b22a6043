"""Where a consumer starts in a partition of which it has no position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from chappe.log.storage import PartitionInfo

UNDECIDED: Final = -1  # an offset: it is not known yet where to begin


@dataclass(frozen=True, slots=True)
class Reset:
    """Where to start in a partition without a position: ``earliest``, ``latest``, ``offset`` or ``time``.

    ``value`` is the offset, or the time in microseconds.
    """

    kind: Literal["earliest", "latest", "offset", "time"]
    value: int = 0

    @property
    def strict(self) -> bool:
        """Whether the user named the offset: out of range is an error then, not a reset."""
        return self.kind == "offset"

    def when_heard(self, offset: int, *, new: bool) -> int:
        """Where to start in a partition that comes live at ``offset``; UNDECIDED if that takes a store to say.

        ``new``: all stores listed what they had and this was not in it, so nothing of it is old.
        """
        match self.kind:
            case "earliest":
                return 0
            case "latest":
                return 0 if new else offset
            case "offset":
                return self.value
            case "time":
                return UNDECIDED

    def when_listed(self, info: PartitionInfo, *, new: bool) -> int:
        """Where to start in a partition that a store lists; UNDECIDED if the store must be asked for a time.

        ``new``: the store listed all it had before, and this was not in it.
        """
        match self.kind:
            case "earliest":
                return info.first
            case "latest":
                return info.first if new else info.next
            case "offset":
                return self.value
            case "time" if self.value <= info.timestamp_min:
                return info.first
            case "time" if self.value > info.timestamp_max:
                return info.next
        return UNDECIDED


EARLIEST: Final = Reset("earliest")
LATEST: Final = Reset("latest")
