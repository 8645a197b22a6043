"""The log of a server on disk, and jobs for entries that are not there: changes one by one, and a state beside them."""

from __future__ import annotations

import math
from typing import Final, Protocol

from chappe.core import Effect, Persist, Report
from chappe.errors import StorageError
from chappe.limits import ChainLimits
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.events import WriteRefused
from chappe.replication.chain.log import ChainState, EntryLog, LogChange, SaveState

AGAIN_S: Final = 1.0  # what the disk has refused is tried again
TOLD_AGAIN_S: Final = 60.0  # what a disk refuses for long is told so often
LOG: Final = "the log"
STATE: Final = "the state that takes the place of the log"
VOTE: Final = "the vote on the next configuration"


class StoringServer(Protocol):
    number: int
    configuration: Configuration
    member: bool
    committed: int
    log: EntryLog


class Storing:
    """The part of a server that its disk sees. Its first log is on disk already."""

    def __init__(self, server: StoringServer, limits: ChainLimits) -> None:
        self._server = server
        self._limits = limits
        self.synced = server.log.end  # up to this entry all is on disk
        self._writing = False
        self._written = server.log.end  # handed to the disk, and not cut since
        self._cut: int | None = None  # what follows is to go
        self._state: ChainState | None = None  # to be written in place of everything, first: while joining
        self._saves: ChainState | None = None  # to be saved beside later changes: as a member, for which others wait
        self._saving: ChainState | None = None  # being saved
        self._write_at = self._save_at = -math.inf  # the disk has refused: not before
        self._refused: dict[str, tuple[float, WriteRefused]] = {}  # what it has refused, and when that was told

    @property
    def saves(self) -> bool:
        return self._saves is not None

    @property
    def why(self) -> str:
        return str(self._refused[LOG][1]) if LOG in self._refused else ""

    def replace_log(self, state: ChainState) -> None:
        if self._server.member and state.index <= self.synced:
            self._saves, self._state = state, None  # an older one that was refused is not needed any more
        else:
            self._state = state

    def begin_anew(self, state: ChainState) -> None:
        """Let a state take the place of everything."""
        self._written = self.synced = 0
        self._cut, self._state, self._saves = None, state, None

    def cut(self, base: int) -> None:
        self.synced = min(self.synced, base)
        if self._written > base:
            self._written = base
            self._cut = base if self._cut is None else min(self._cut, base)

    def done(self, job: LogChange | SaveState, outcome: StorageError | None, now: float) -> list[Effect]:
        """Note that a job is done, or that the disk has refused it."""
        if isinstance(job, LogChange):
            return self._wrote(job) if outcome is None else self._not_written(job, str(outcome), now)
        self._saving, saved = None, self._saving
        if outcome is not None:  # it still has the older files
            self._save_at = now + AGAIN_S
            return self.refused(STATE, str(outcome), now)
        if self._saves is saved:
            self._saves = None
        self._refused.pop(STATE, None)
        return []

    def _wrote(self, change: LogChange) -> list[Effect]:
        assert self._writing
        self._writing = False
        self.synced = min(change.keep + len(change.entries), self._written)
        self._refused.pop(LOG, None)
        return []

    def _not_written(self, change: LogChange, why: str, now: float) -> list[Effect]:
        """Write everything again that is not synced, as an unknown part of a change is there."""
        assert self._writing
        self._writing = False
        if change.state is not None and self._state is None and change.state.index >= self._server.log.base:
            self._state = change.state
        self._written = self._cut = self.synced
        self._write_at = now + AGAIN_S
        return self.refused(LOG, why, now)

    def refused(self, what: str, why: str, now: float) -> list[Effect]:
        """Report a refusal of the disk, unless it was reported."""
        told = self._refused.get(what)
        if told is not None and now - told[0] < TOLD_AGAIN_S:
            return []
        found = WriteRefused(what, why)
        self._refused[what] = (now, found)
        return [Report(found)]

    def flush(self, now: float) -> list[Effect]:
        """Save a state in place of the log, beside later changes; write entries that are not on disk."""
        jobs: list[Effect] = []
        server, state = self._server, self._saves
        if state is not None and self._saving is None and now >= self._save_at and self._cut is None:
            self._saving = state
            entries = server.log.after(state.index)[: self._written - state.index]
            jobs.append(Persist(SaveState(LogChange(state, state.index, entries, server.committed))))
        if server.number and server.configuration.durable and not self._writing and now >= self._write_at:
            change = self._change()
            if change is not None:
                self._writing = True
                jobs.append(Persist(change))
        return jobs

    def _change(self) -> LogChange | None:
        log, state, cut = self._server.log, self._state, self._cut
        self._state = None
        if state is not None:
            base = state.index
        elif cut is not None:
            base = cut
        else:
            base = self._written
        assert base >= log.base
        entries = log.after(base, None if state else self._limits.append_bytes)  # a state replaces all
        if state is None and cut is None and not entries:
            return None
        self._cut = None
        self._written = base + len(entries)
        return LogChange(state, base, entries, self._server.committed)
