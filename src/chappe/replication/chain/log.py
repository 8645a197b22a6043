"""The log of one member: entries in memory behind a state, numbered from 1, and the jobs that put them on disk.

One change is written at a time, and one state is saved at a time. A vote may come between, and between two parts of a
state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain.messages import Entry

ENTRY_BYTES = 40  # counted for each, beside its command


class EntryLog:
    """Entries ``base + 1`` to ``end``; ``base`` is the last entry in the oldest state that it stands on."""

    def __init__(self, base: int = 0, term: int = 0, entries: Sequence[Entry] = ()) -> None:
        self.base = base
        self.base_term = term
        self._entries = list(entries)
        self.bytes = sum(map(_size, self._entries))

    @property
    def end(self) -> int:
        return self.base + len(self._entries)

    def term(self, index: int) -> int:
        return self.base_term if index == self.base else self._entries[index - self.base - 1].term

    def entry(self, index: int) -> Entry:
        assert index > self.base
        return self._entries[index - self.base - 1]

    def after(self, index: int, bytes_max: int | None = None) -> tuple[Entry, ...]:
        """Return the entries behind one: all, or of about so many bytes, one entry at least."""
        entries, start = self._entries, index - self.base
        if bytes_max is None:
            return tuple(entries[start:])
        size = 0
        for place in range(start, len(entries)):
            size += _size(entries[place])
            if size > bytes_max and place > start:
                return tuple(entries[start:place])
        return tuple(entries[start:])

    @staticmethod
    def size(entries: Sequence[Entry]) -> int:
        return sum(map(_size, entries))

    def runs(self) -> tuple[tuple[int, int], ...]:
        """Return the last entry of each term, oldest first; the base counts as one."""
        found = [(self.base_term, self.base)]
        for index, entry in enumerate(self._entries, self.base + 1):
            if entry.term == found[-1][0]:
                found[-1] = (entry.term, index)
            else:
                found.append((entry.term, index))
        return tuple(found)

    def common(self, runs: Sequence[tuple[int, int]]) -> int | None:
        """Return the last entry that another log has, too: a term numbers an entry once. None: it is no longer here."""
        for place in range(len(runs) - 1, -1, -1):
            term, last = runs[place]
            first = runs[place - 1][1] + 1 if place else self.base
            for index in range(min(last, self.end), max(first, self.base) - 1, -1):
                if self.term(index) == term:
                    return index
                if self.term(index) < term:
                    break
        return None

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)
        self.bytes += _size(entry)

    def cut(self, index: int) -> None:
        assert index >= self.base
        gone = self._entries[index - self.base :]
        del self._entries[index - self.base :]
        self.bytes -= sum(map(_size, gone))

    def shorten(self, index: int) -> None:
        """Drop an entry and all before it: a state has them."""
        if index > self.base:
            term = self.term(index)
            gone = self._entries[: index - self.base]
            del self._entries[: index - self.base]
            self.bytes -= sum(map(_size, gone))
            self.base, self.base_term = index, term


def _size(entry: Entry) -> int:
    return ENTRY_BYTES + len(entry.command) + sum(map(len, entry.also))


@dataclass(frozen=True, slots=True)
class ChainState:
    """The whole state after an entry of the log, in chunks, as ``Replica.make`` makes it."""

    index: int
    term: int  # of that entry
    chunks: tuple[bytes | memoryview, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.chunks))


@dataclass(frozen=True, slots=True)
class LogChange:
    """A change of the log on disk, done in this order.

    Args:
        state: Replaces everything that is there.
        keep: Entries behind this one are removed first.
        entries: Appended, the first of them is ``keep + 1``.
        committed: Everything up to there is committed: a hint for the next life, which may be late.
    """

    state: ChainState | None
    keep: int
    entries: tuple[Entry, ...]
    committed: int


@dataclass(frozen=True, slots=True)
class LoadedChain:
    """The content of a disk: every change that was written, and of the last one perhaps only the beginning."""

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
