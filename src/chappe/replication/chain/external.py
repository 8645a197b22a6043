"""A machine of which a part lies elsewhere on its member's disk: what it applied is written there later, by others.

The chain's log is where such a part is safe until then. So a log is not shortened before that is written which the
state behind it means; and its state, which goes to joiners, need not hold it: a joiner gets it on a way of its own.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ExternalState(Protocol):
    """What a chain asks of such a machine; all of it is looked up often, and must be quick."""

    @property
    def settled(self) -> int:
        """Everything with a mark up to this one is on disk."""
        ...

    @property
    def full(self) -> bool:
        """Whether so much is not written yet that a member confirms nothing more, and who joins takes nothing more."""
        ...

    @property
    def complete(self) -> bool:
        """Whether all is there that the state means from which it was restored. Who joins is let in only then."""
        ...

    def mark(self) -> int:
        """The mark of what was applied last."""
        ...
