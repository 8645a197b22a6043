"""The state on its way from the tail to a joiner: in pieces, each when there is room for it, checked as a whole."""

from __future__ import annotations

from crc32c import crc32c

from chappe.limits import ChainLimits
from chappe.replication.chain.actions import State
from chappe.replication.chain.messages import Piece, Want


class Giver:
    """One state, on its way to one joiner."""

    def __init__(self, state: State, number: int, limits: ChainLimits) -> None:
        self.index = state.index
        self._state = state
        self._number = number
        self._limits = limits
        self._check = crc32c(state.data)
        self._sent = 0
        self._wanted = -1

    def first(self) -> Piece:
        """The first piece tells what there is; the others are asked for."""
        self._sent, self._wanted = max(self._sent, self._limits.piece_bytes), -1
        return self._piece(0)

    def more(self, want: Want) -> list[Piece]:
        """What there is room for. Who asks for the same again did not get it."""
        if want.index != self.index:
            return []
        if want.offset <= self._wanted:
            self._sent = want.offset
        self._wanted = want.offset
        found = []
        while self._sent < min(len(self._state.data), want.credit):
            found.append(self._piece(self._sent))
            self._sent += self._limits.piece_bytes
        return found

    def _piece(self, offset: int) -> Piece:
        state = self._state
        data = state.data[offset : offset + self._limits.piece_bytes]
        return Piece(self._number, state.index, state.term, len(state.data), self._check, offset, data)


class Taker:
    """What has come of a state. Pieces may be lost and come out of order: those that are missing are asked for."""

    def __init__(self, limits: ChainLimits) -> None:
        self._limits = limits
        self._first: Piece | None = None
        self._have: list[bytes] = []
        self.size = 0

    def take(self, piece: Piece) -> State | None:
        """One more piece; the state if it is whole and right. A newer state begins anew."""
        assert piece.size <= self._limits.state_bytes_max
        first = self._first
        if first is None or (first.index, first.term, first.check, first.size) != (
            piece.index, piece.term, piece.check, piece.size,
        ):  # fmt: skip
            if piece.offset:
                return None
            self._first, self._have, self.size = piece, [], 0
        if piece.offset != self.size:
            return None
        self._have.append(piece.data)
        self.size += len(piece.data)
        if self.size < piece.size:
            return None
        data = b"".join(self._have)
        self._first, self._have, self.size = None, [], 0
        return State(piece.index, piece.term, data) if crc32c(data) == piece.check else None

    def want(self) -> Want | None:
        """What to ask for next; None: nothing has come yet."""
        first, limits = self._first, self._limits
        if first is None:
            return None
        return Want(first.number, first.index, self.size, self.size + limits.pieces_ahead * limits.piece_bytes)
