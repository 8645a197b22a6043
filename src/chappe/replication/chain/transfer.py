"""The state on its way from the tail to a joiner: in pieces, each when there is room for it, checked as a whole."""

from __future__ import annotations

from crc32c import crc32c

from chappe.errors import ProtocolError
from chappe.limits import ChainLimits
from chappe.replication.chain.disk import ChainState
from chappe.replication.chain.messages import Piece, Want
from chappe.replication.chain.replica import ChainReplica


class Giver:
    """Sends one state to one joiner.

    Args:
        state: Its chunks have ``piece_bytes`` each, except the last one.
        check: CRC-32C of all chunks.
        number: The number of the configuration.
    """

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
        """The first piece tells what there is; the others are asked for."""
        self._sent, self._wanted = max(self._sent, self._limits.piece_bytes), -1
        return self._piece(0)

    def more(self, want: Want) -> list[Piece]:
        """What there is room for. Who asks for the same again did not get it."""
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
    """Receives a state. Pieces may be lost or reordered: it asks again for missing ones.

    Each piece is restored on arrival, so the last one costs no more than the others.
    """

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
        """What to ask for next; None: nothing has come yet."""
        first, limits = self._first, self._limits
        if first is None:
            return None
        return Want(first.number, first.index, self.size, self.size + limits.pieces_ahead * limits.piece_bytes)

    def _begin(self, first: Piece | None) -> None:
        self._first, self._have, self._check, self.size = first, [], 0, 0
        self.restored = self._replica.restoring()
