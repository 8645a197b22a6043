"""What a server of a chain asks of whoever runs it, besides ``core.Report`` and the agreement's; done in order."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from chappe.core import Report
from chappe.replication.agreement.core import Keep
from chappe.replication.chain.messages import Answer, Between, Entry


@dataclass(frozen=True, slots=True)
class State:
    """The whole state after an entry of the log, in chunks, as ``Replica.make`` makes it."""

    index: int
    term: int  # of that entry
    chunks: tuple[bytes | memoryview, ...]

    @property
    def size(self) -> int:
        """The size in bytes."""
        return sum(map(len, self.chunks))


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be on disk, done in this order.

    Args:
        state: Instead of everything that is there.
        keep: Entries behind this one go first.
        entries: Appended, the first of them is ``keep + 1``.
        committed: Everything up to there is committed: a hint for the next life, which may be late.
    """

    state: State | None
    keep: int
    entries: tuple[Entry, ...]
    committed: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is on a disk: every change that was written, and of the last one perhaps only the beginning."""

    state: State | None = None
    entries: tuple[Entry, ...] = ()
    committed: int = 0


@dataclass(frozen=True, slots=True)
class Applied:
    """A command that was committed and done.

    Args:
        index: Of its entry in the log; commands of one step share it.
        at_us: When the head numbered it, by the time of day.
        command: For the machine.
        outcome: 0, or 1 if the machine has raised something.
        result: What the machine returned, or the text of what it raised.
    """

    index: int
    at_us: int
    command: bytes
    outcome: int
    result: bytes


@dataclass(frozen=True, slots=True)
class Write:
    """Have this on disk, beside what else there is to do; then call ``handle_written``. One is under way at a time."""

    change: Change


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this to another server, by its place; it may be lost."""

    server: int
    message: Between


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this to a client; it may be lost."""

    client: Hashable
    message: Answer


@dataclass(frozen=True, slots=True)
class Save:
    """Save this change, which has a state, to disk in place of everything written so far.

    This may take long. ``Write`` continues behind it: until the state is complete, the older files count. Then
    call ``handle_saved``. One is under way at a time.
    """

    change: Change


Action: TypeAlias = Keep | Write | Save | Tell | Reply | Report
