"""Sends entries and states to one neighbour: the successor, or at the tail a joiner.

Entries go out as they come, up to a bound that the neighbour has not acknowledged: so a slow one costs no more
than that. Lost entries are sent again from the last one that is known to be there, one message first and the others
when that is acknowledged: so little is sent to a neighbour that stands still.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from crc32c import crc32c

from chappe.errors import ProtocolError
from chappe.limits import ChainLimits
from chappe.replication.chain.log import ChainState, EntryLog
from chappe.replication.chain.messages import Ack, Append, Entry, Piece, Want
from chappe.replication.chain.replica import ChainReplica


class Giver:
    """Sends one joiner a state in chunks of ``piece_bytes``, but for the last one; ``check`` is the CRC-32C of all."""

    def __init__(self, state: ChainState, check: int, number: int, limits: ChainLimits) -> None:
        self.index = state.index
        self.size = state.size
        self._state = state
        self._number = number
        self._limits = limits
        self._check = check
        self._sent = 0
        self._wanted = -1

    def first(self) -> Piece:
        """Return the first piece, which says what there is; the others are asked for."""
        self._sent, self._wanted = max(self._sent, self._limits.piece_bytes), -1
        return self._piece(0)

    def more(self, want: Want) -> list[Piece]:
        """Return pieces that there is room for. A joiner that asks for the same again did not get them."""
        if want.index != self.index:
            return []
        if want.offset <= self._wanted:
            self._sent = want.offset // self._limits.piece_bytes * self._limits.piece_bytes
        self._wanted = want.offset
        found = []
        while self._sent < min(self.size, want.credit):
            found.append(self._piece(self._sent))
            self._sent += self._limits.piece_bytes
        return found

    def _piece(self, offset: int) -> Piece:
        state = self._state
        data = state.chunks[offset // self._limits.piece_bytes]
        return Piece(self._number, state.index, state.term, self.size, self._check, offset, bytes(data))


class Taker:
    """Receives a state: asks again for missing pieces, and restores each on arrival, so the last costs no more."""

    def __init__(self, replica: ChainReplica, limits: ChainLimits) -> None:
        self._replica = replica
        self._limits = limits
        self._first: Piece | None = None
        self._have: list[bytes] = []
        self._check = 0
        self.restored = replica.restoring()
        self.size = 0

    def take(self, piece: Piece) -> ChainState | None:
        """Take a piece; return the state once it is complete and correct: then ``restored`` has it.

        A piece of a newer state starts over. Raises ProtocolError.
        """
        assert piece.size <= self._limits.state_bytes_max
        first = self._first
        if first is None or (first.index, first.term, first.check, first.size) != (
            piece.index, piece.term, piece.check, piece.size,
        ):  # fmt: skip
            if piece.offset:
                return None
            self._begin(piece)
        if piece.offset != self.size:
            return None
        self._have.append(piece.data)
        self._check = crc32c(piece.data, self._check)
        self.size += len(piece.data)
        try:
            self.restored.add(piece.data)
        except ProtocolError:
            self._begin(None)  # damaged in transit
            raise
        if self.size < piece.size:
            return None
        state = ChainState(piece.index, piece.term, tuple(self._have)) if self._check == piece.check else None
        restored = self.restored
        self._begin(None)
        if state is not None:
            self.restored = restored
        return state

    def want(self) -> Want | None:
        """Return what to ask for next; None: nothing has come yet."""
        first, limits = self._first, self._limits
        if first is None:
            return None
        return Want(first.number, first.index, self.size, self.size + limits.pieces_ahead * limits.piece_bytes)

    def _begin(self, first: Piece | None) -> None:
        self._first, self._have, self._check, self.size = first, [], 0, 0
        self.restored = self._replica.restoring()


@dataclass(slots=True)
class Downstream:
    """The sending to one life of another server.

    Args:
        moved_at: When it last had more than before, or was sent something while nothing was under way.
    """

    place: int
    life: int
    limits: ChainLimits = field(repr=False)
    moved_at: float = 0.0
    sent: int = 0  # up to this entry
    acked: int = 0
    synced: int = 0
    known: bool = False  # it has said where its log ends
    common: int = 0  # up to there their logs are the same: found when it was asked
    giver: Giver | None = None  # it gets a state first ...
    waits: bool = False  # ... which is being made
    full_at: float = math.inf  # since when it takes no entries
    _told: tuple[int, int] = (-1, -1)
    _under_way: deque[tuple[int, int]] = field(default_factory=deque)  # of each message its last entry and its bytes
    _bytes: int = 0  # of these
    _careful: bool = False  # something was lost: one message after the other until more is acknowledged

    def begin(self, base: int, now: float) -> None:
        """Note that it has the same log up to there, and gets the entries behind."""
        self.known, self.giver, self.waits = True, None, False
        self.common = self.acked = self.sent = base
        self.synced, self.moved_at, self.full_at = 0, now, math.inf
        self._back()

    def lost(self) -> None:
        self.known = False

    def acknowledge(self, message: Ack, end: int, now: float) -> bool:
        """Note how far it is, of a log that ends here; return whether that can be."""
        if not self.known or message.end > end:
            return False
        if message.end > self.acked:
            self.acked, self.moved_at, self._careful = message.end, now, False
            while self._under_way and self._under_way[0][0] <= message.end:
                self._bytes -= self._under_way.popleft()[1]
            self.sent = max(self.sent, message.end)
        self.synced = max(self.synced, message.synced)
        if not message.full:
            self.full_at = math.inf
        elif self.full_at == math.inf:
            self.full_at = now
            self._back()  # it has left what was under way
        return True

    def feed(
        self, log: EntryLog, number: int, synced: int, committed: int, now: float, *, joins: bool = False
    ) -> list[Append]:
        """Return entries that it does not have yet, as many as may be under way, and how far those before are.

        A successor has heard of committed entries first; a joiner (``joins``) is told of them, too.

        If the log lacks the entries the neighbour is no longer ``known``: it asks again, and gets a state.
        """
        if not self.known or self.giver is not None:
            return []
        if self.sent < log.base:
            self.lost()
            return []
        found: list[Append] = []
        news = synced, committed if joins else 0
        while True:
            entries = self._next(log)
            if not entries and self._told == news:
                return found
            found.append(Append(number, self.sent, entries, synced, committed, self.sent == self.common))
            if self.sent == self.acked:
                self.moved_at = now
            self._told = news
            if entries:
                size = log.size(entries)
                self.sent += len(entries)
                self._under_way.append((self.sent, size))
                self._bytes += size

    def repeat(self, now: float) -> None:
        if self.known:
            self._told = (-1, -1)
            if self.sent > self.acked and now - self.moved_at >= self.limits.again_s:
                self.moved_at = now
                self._back()

    def _next(self, log: EntryLog) -> tuple[Entry, ...]:
        waits = self.full_at < math.inf or self._bytes >= self.limits.ahead_bytes
        if waits or (self._careful and self._under_way):
            return ()
        return log.after(self.sent, self.limits.append_bytes)

    def _back(self) -> None:
        self._careful = self.sent > self.acked
        self.sent = self.acked
        self._under_way.clear()
        self._bytes = 0
