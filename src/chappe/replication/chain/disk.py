"""What a server of a chain has on disk, and its jobs for it.

One change is written at a time, and one state is saved at a time. A vote may come between, and between two parts of a
state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain.messages import Entry


@dataclass(frozen=True, slots=True)
class ChainState:
    """The whole state after an entry of the log, in chunks, as ``Replica.make`` makes it."""

    index: int
    term: int  # of that entry
    chunks: tuple[bytes | memoryview, ...]

    @property
    def size(self) -> int:
        """The size in bytes."""
        return sum(map(len, self.chunks))


@dataclass(frozen=True, slots=True)
class LogChange:
    """What is to be on disk, done in this order.

    Args:
        state: Instead of everything that is there.
        keep: Entries behind this one go first.
        entries: Appended, the first of them is ``keep + 1``.
        committed: Everything up to there is committed: a hint for the next life, which may be late.
    """

    state: ChainState | None
    keep: int
    entries: tuple[Entry, ...]
    committed: int


@dataclass(frozen=True, slots=True)
class LoadedChain:
    """What is on a disk: every change that was written, and of the last one perhaps only the beginning."""

    state: ChainState | None = None
    entries: tuple[Entry, ...] = ()
    committed: int = 0


@dataclass(frozen=True, slots=True)
class SaveState:
    """A job: save a change, which has a state, in place of everything written so far, beside later changes.

    It may take long. Until the state is complete the older files count.
    """

    change: LogChange


Job: TypeAlias = VoteRecord | LogChange | SaveState
