"""The disk of a server of a chain, in memory."""

from __future__ import annotations

from dataclasses import replace

from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain.log import LoadedChain, LogChange


class Disk:
    """What a server of a chain has on disk."""

    def __init__(self, disk: int) -> None:
        self.memory = VoteRecord(disk)
        self.loaded = LoadedChain()
        self._saves: tuple[LogChange, ...] | None = None  # the change being saved, and changes written since

    def save(self, change: LogChange) -> None:
        """Begin to save a change with a state beside later changes."""
        self._saves = (change,)

    def saved(self, done: bool) -> None:
        """End a save: if ``done``, the change replaces everything before it."""
        saves, self._saves = self._saves, None
        if done:
            for each in saves or ():
                self._do(each)

    def write(self, change: LogChange) -> None:
        """Do a change; one with a state gives up a save."""
        if change.state is not None:
            self._saves = None
        elif self._saves is not None:
            self._saves = (*self._saves, change)
        self._do(change)

    def _do(self, change: LogChange) -> None:
        if change.state is not None:
            self.loaded = LoadedChain(change.state, change.entries, change.committed)
            return
        loaded, entries = self.loaded, change.entries
        base = 0 if loaded.state is None else loaded.state.index
        kept = loaded.entries[: change.keep - base]
        assert base + len(kept) == change.keep, f"entries behind {change.keep}, the disk has {base + len(kept)}"
        committed = max(loaded.committed, change.committed)
        self.loaded = replace(loaded, entries=(*kept, *entries), committed=min(committed, change.keep + len(entries)))
