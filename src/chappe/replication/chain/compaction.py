"""When a state takes the place of a server's log, and how it is made: a piece at a time, as for one who joins.

A snapshot is of the state at one entry. The log goes on meanwhile, and is shortened once the snapshot is complete and
all that it means is on disk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

from chappe.limits import ChainLimits
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.downstream import Downstream, Giver
from chappe.replication.chain.log import ChainState, EntryLog
from chappe.replication.chain.replica import ChainReplica, ExternalState
from chappe.replication.chain.snapshots import Making

JOINER_TIMES: Final = 4  # the log may be so many times as long while somebody joins; then it begins anew
STEP_S: Final = 0.002  # between two pieces of a state, for other work


class CompactionServer(Protocol):
    place: int
    number: int
    configuration: Configuration
    committed: int
    log: EntryLog
    replica: ChainReplica
    next: Downstream | None

    @property
    def external(self) -> ExternalState | None:
        """The part of its machine's state that lies elsewhere, if there is one."""
        ...

    @property
    def gives(self) -> bool:
        """True if a joiner gets its state from here."""
        ...

    @property
    def saves(self) -> bool:
        """True if a state is to be saved, or is being saved."""
        ...

    def replace_log(self, state: ChainState) -> None:
        """Let a state take the place of the log up to it."""
        ...


@dataclass(slots=True)
class _StateMaking:
    making: Making
    index: int
    term: int
    log_bytes: int  # of the log when it was begun
    mark: int | None  # position of the machine's own disk, if it is for the chain's disk; None: it is for a joiner
    step_at: float


class Compaction:
    """The compaction of one server's log. ``size``: of the state that the server begins with."""

    def __init__(self, server: CompactionServer, limits: ChainLimits, size: int) -> None:
        self._server = server
        self._limits = limits
        self.log_bytes = limits.log_bytes  # so long is the log before a state takes its place
        self._making: _StateMaking | None = None  # a snapshot in the making
        self._made: Giver | None = None  # a complete one, for a joiner
        self._unsettled: tuple[int, ChainState] | None = None  # written once all up to that mark is elsewhere
        self.owed = 0  # up to this mark a joiner has to have elsewhere what its log has no more
        self.begin(size)

    @property
    def log_most(self) -> int:
        """The bytes that the log may have before a state takes its place.

        While a state is being made, the log may grow by as much as is made: a head slows down then, and never stops.
        """
        made = self._making
        if made is None and not self._server.saves and not self._server.gives:
            return self.log_bytes
        most = JOINER_TIMES * self.log_bytes
        return most if made is None else max(most, made.log_bytes + made.making.size)

    def next_timeout(self) -> float:
        return math.inf if self._making is None else self._making.step_at

    def handle_timeout(self, now: float) -> None:
        if self._making is not None and now >= self._making.step_at:
            self._make(self._making, now)

    def begin(self, size: int) -> None:
        self._making = self._made = self._unsettled = None
        self._mind_size(size)

    def forget(self) -> None:
        self._made = None

    def give(self, now: float) -> Giver | None:
        """Return a state for a joiner; None while it is being made."""
        if self._made is None and self._making is None:
            self._begin(None, now)
        made, self._made = self._made, None
        return made if made is not None and made.index >= self._server.log.base else None

    def shorten(self, now: float) -> None:
        server = self._server
        log = server.log
        upto = server.committed if server.next is None else min(server.committed, server.next.acked)
        if server.gives and log.bytes <= self.log_most:
            return  # who joins is to find what follows the state that it gets
        if self._unsettled is not None:
            self._settle(upto)
        if (
            log.bytes <= self.log_bytes
            or upto < server.committed
            or upto <= log.base
            or self._unsettled is not None
            or self._making is not None
            or server.saves
        ):
            return
        if not server.configuration.durable:
            log.shorten(upto)
            return
        self._begin(0 if server.external is None else server.external.mark(), now)
        if self._unsettled is not None:
            self._settle(upto)

    def _settle(self, upto: int) -> None:
        """Replace the log by a state as soon as all its external parts are on disk."""
        assert self._unsettled is not None
        mark, state = self._unsettled
        server = self._server
        external = server.external
        if external is not None and server.place not in server.configuration.places and not external.complete:
            self.owed = mark  # nobody relies on a joiner: its log is not to hold all that comes while it reads the rest
            mark = 0
        if state.index <= upto and (external is None or external.settled >= mark):
            self._unsettled = None
            server.replace_log(state)

    def _begin(self, mark: int | None, now: float) -> None:
        server = self._server
        making = server.replica.make(transfer=mark is None)
        index = server.committed
        self._making = _StateMaking(making, index, server.log.term(index), server.log.bytes, mark, now)
        self._make(self._making, now)

    def _make(self, made: _StateMaking, now: float) -> None:
        making, gives = made.making, self._server.gives
        if made.mark is None and not gives:
            self._making = None  # the joiner is gone
            return
        made.step_at = now + STEP_S
        if not making.step(self._limits.made_bytes):
            return
        self._making = None
        state = ChainState(made.index, made.term, tuple(making.chunks))
        self._mind_size(making.size)
        if made.mark is not None:
            self._unsettled = (made.mark, state)
        if gives and (made.mark is None or self._server.replica.one_state):
            self._made = Giver(state, making.check, self._server.number, self._limits)

    def _mind_size(self, size: int) -> None:
        """Let the log grow as long as a large state: states would otherwise cost more than they save."""
        self.log_bytes = max(self._limits.log_bytes, size)
