"""The state of a data store as a chain replicates it: the rows that a backend would have, and who is master.

Only the part of it at the head changes it (``core``), by commits. So all that is decided by a clock, by who asks or by
what is there is decided once, before it is committed; here rows come and go. A commit counts only if its master is
still the master at that place of the log, and has left out none: of a head that was replaced nothing comes through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from struct import Struct
from typing import Final

import msgspec

from chappe.errors import ProtocolError, UsageError
from chappe.kv.backend import (
    ClearHistory,
    ClearRows,
    EraseRow,
    ForgetHistory,
    ForgetWriter,
    HistoryRow,
    PutRow,
    WriterRow,
)
from chappe.kv.chained.fed import Did, Fed, Led, Stood, WholeState
from chappe.kv.chained.messages import Lead, Part, Row, Still, decode, decode_commit, decode_rows, encode_operation
from chappe.kv.entity import NOBODY, Entity
from chappe.replication.chain.rows import Rows, RowsTaken

_ASK_CLONES = "this chain holds a data store of the mesh: it is read and written through its masters and clones"


_HISTORY_ROW: Final = encode_operation(HistoryRow(b"", 0, b""))[:1]
_PLACE: Final = Struct(">BQ")


def _place(key: bytes, revision: int) -> bytes:
    """Return the row of a change in the history of a key: no encoded key begins so."""
    return _PLACE.pack(0xFF, revision) + key


class _Kept(msgspec.Struct, array_like=True):
    master: tuple[bytes, int]
    event: int
    commit: int
    parts: list[bytes]
    writers: bytes


_DECODER = msgspec.msgpack.Decoder(_Kept)


class StoreMachine:
    """A data store as the state of a chain (``replication.chain.replica.HeadMachine``)."""

    def __init__(self) -> None:
        self._told: Callable[[Fed | WholeState], None] | None = None
        self._rows = Rows(bytes)  # by key, or place in the history: the encoded operation that puts it
        self._begin()

    def _begin(self) -> None:
        self._rows.clear()
        self._writers: dict[Entity, WriterRow] = {}
        self._master = NOBODY
        self._event = 0
        self._commit = 0  # the master's last
        self._parts: list[bytes] = []  # of the next one

    def hear(self, told: Callable[[Fed | WholeState], None] | None) -> None:
        """Tell ``told`` of all commits from now on, first of the present state; None: of nothing more."""
        self._told = told
        self._tell(self.whole())

    def whole(self) -> WholeState:
        """Return the whole state; takes no longer where that is large."""
        return WholeState(self._rows.share(), tuple(self._writers.values()), self._master, self._event)

    # -- the chain's ------------------------------------------------------------------------------------------

    def apply(self, command: bytes) -> bytes:
        """Raise UsageError: clients of the chain change nothing."""
        raise UsageError(_ASK_CLONES)

    def read(self, query: bytes) -> bytes:
        """Raise UsageError: clients of the chain are told nothing."""
        raise UsageError(_ASK_CLONES)

    def apply_own(self, command: bytes) -> bytes:
        """Carry out a command of the head. Raises ProtocolError, and then nothing was done."""
        found = decode(command)
        if isinstance(found, Lead):
            self._master, self._event, self._commit, self._parts = found.master, found.event, 0, []
            self._tell(Led(*found))
        elif found.master == self._master:
            if isinstance(found, Still):
                self._tell(Stood(*found))
            else:
                self._take(found)
        return b""

    def pieces(self) -> Iterator[bytes]:
        """Return an iterator over a view of the present state, rows last, for ``PiecedMachine``."""
        writers = b"".join([encode_operation(each) for each in self._writers.values()])
        master = tuple(self._master)
        head = _Kept(master, self._event, self._commit, list(self._parts), writers)  # type: ignore[arg-type]
        return chain((msgspec.msgpack.encode(head),), self._rows.pieces())

    def restoring(self) -> _Restoring:
        return _Restoring(self)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(list(self.pieces()))

    def restore(self, state: bytes) -> None:
        """Replace the state with a snapshot, or of no bytes with the first one. Raises ProtocolError."""
        if not state:
            self._begin()
            self._tell(self.whole())
            return
        restoring = self.restoring()
        for piece in msgspec.msgpack.decode(state, type=list[bytes]):
            restoring.add(piece)
        restoring.finish()

    def become(self, kept: _Kept, rows: RowsTaken[bytes]) -> None:
        self._begin()
        rows.finish()
        self._do(decode_rows(kept.writers))
        self._master, self._event = Entity(*kept.master), kept.event
        self._commit, self._parts = kept.commit, kept.parts
        self._tell(self.whole())

    def new_rows(self) -> RowsTaken[bytes]:
        return self._rows.taking()

    # -- inside -----------------------------------------------------------------------------------------------

    def _take(self, part: Part) -> None:
        """Take a piece of the next commit. Pieces that do not follow each other are of a head that lost its place."""
        if part.commit != self._commit + 1 or part.place != len(self._parts):
            self._parts = []
            return
        self._parts.append(part.piece)
        if not part.last:
            return
        body, self._parts = b"".join(self._parts), []
        event, rows = decode_commit(body)
        self._do(rows)
        self._commit, self._event = part.commit, event
        self._tell(Did(part.master, part.commit, event, tuple([row for row, _ in rows]), len(body)))

    def _do(self, rows: list[tuple[Row, bytes]]) -> None:
        for (row, _, _), raw in rows:
            if isinstance(row, PutRow):
                self._rows.put(row.key, raw)
            elif isinstance(row, EraseRow):
                self._rows.erase(row.key)
            elif isinstance(row, ClearRows):
                self._keep([each for each in self._rows.values() if each[:1] == _HISTORY_ROW])
            elif isinstance(row, WriterRow):
                self._writers[row.entity] = row
            elif isinstance(row, ForgetWriter):
                self._writers.pop(row.entity, None)
            elif isinstance(row, HistoryRow):
                self._rows.put(_place(row.key, row.revision), raw)
            elif isinstance(row, ForgetHistory):
                self._rows.erase(_place(row.key, row.revision))
            else:
                assert isinstance(row, ClearHistory)
                self._keep([each for each in self._rows.values() if each[:1] != _HISTORY_ROW])

    def _keep(self, rows: list[bytes]) -> None:
        self._rows.clear()
        self._do(decode_rows(b"".join(rows)))

    def _tell(self, fed: Fed | WholeState) -> None:
        if self._told is not None:
            self._told(fed)


class _Restoring:
    """Rebuilds a state from pieces; the machine changes in ``finish`` alone."""

    def __init__(self, machine: StoreMachine) -> None:
        self._machine = machine
        self._kept: _Kept | None = None
        self._rows = machine.new_rows()

    def add(self, piece: bytes) -> None:
        """Take the next piece. Raises ProtocolError."""
        if self._kept is None:
            self._kept = _decoded(piece)
        else:
            self._rows.add(piece)

    def finish(self) -> None:
        """Replace the machine's state. Raises ProtocolError if there were no pieces."""
        if self._kept is None:
            raise ProtocolError("the state of a data store is empty")
        self._machine.become(self._kept, self._rows)


def _decoded(state: bytes) -> _Kept:
    try:
        return _DECODER.decode(state)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the state of a data store does not decode: {error}") from None
