"""The latest changes of each key, as a master keeps them: the same rows in memory, on its disk and on a chain.

A row is a ``HistoryRow``: key, revision and a body of ``u8 kind`` (0 put, 1 erase, 2 expire; 128 more if changes are
left out before this one), ``i64`` nanoseconds since 1970, the publisher's entity and, of a put, the value. A change is
added when it is durable, so nothing is shown that a disk may still refuse; its row is part of the commit that makes it
durable.

Bounds: ``size`` changes of a key; ``history_erased`` keys that are not there any more; ``history_bytes`` of all rows.
Beyond a bound the oldest are forgotten: here at once, on the disk with the next commit (``leaving``). What one commit
brings beyond ``history_bytes`` is left out, and with it all that is older of the same key: there are no gaps.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from struct import Struct, error
from typing import Final, Literal

from chappe.compiled import Frozen
from chappe.data.binary import decode, encode
from chappe.data.values import Value
from chappe.errors import InvalidData
from chappe.kv.backend import ClearHistory, ForgetHistory, HistoryRow, Operation
from chappe.kv.engine import Engine, Entry
from chappe.kv.entity import NOBODY, Entity
from chappe.kv.group_commit import DoneOperation
from chappe.limits import KvLimits

PastKind = Literal["put", "erase", "expire"]
_KINDS: Final[tuple[PastKind, ...]] = ("put", "erase", "expire")
_PUT: Final = 0
_BEGINS: Final = 0x80  # with the kind of a change before which others are left out
_CODES: Final = {"insert": 0, "update": 0, "erase": 1, "expire": 2}
_HEAD: Final = Struct(">Bq16sQ")
_ROW_BYTES: Final = 256  # about what a row takes besides its key and body


class PastChange(Frozen, frozen=True):
    """One change of a key. ``at_ns`` is nanoseconds since 1970; None where the change is older than the history."""

    revision: int
    kind: PastKind
    value: Value
    at_ns: int | None
    publisher: Entity | None


def body_of(kind: int, at_ns: int, publisher: Entity, value: Value) -> bytes:
    return _HEAD.pack(kind, at_ns, *publisher) + (encode(value) if kind == _PUT else b"")


def past_change(row: HistoryRow) -> PastChange:
    """Decode a row. Raises ProtocolError."""
    try:
        kind, at_ns, endpoint, number = _HEAD.unpack_from(row.body)
        kind &= ~_BEGINS
        name = _KINDS[kind]
    except (error, IndexError):
        raise InvalidData(f"a change in a key's history has {len(row.body)} bytes, or is of no kind") from None
    if kind == _PUT:
        value = decode(row.body[_HEAD.size :])
    elif len(row.body) == _HEAD.size:
        value = None
    else:
        raise InvalidData("a key that was removed has a value in its history")
    publisher = Entity(endpoint, number)
    return PastChange(row.revision, name, value, at_ns or None, None if publisher == NOBODY else publisher)


class KeyHistory:
    """The latest ``size`` changes of each key, 0: none. ``kept``: rows are elsewhere, too, to be removed there."""

    def __init__(self, size: int, limits: KvLimits, *, kept: bool) -> None:
        self.size = size
        self._limits = limits
        self._kept = kept
        self._serial = 0
        self._order: OrderedDict[int, HistoryRow] = OrderedDict()  # all rows, the oldest first
        self._of: dict[bytes, deque[int]] = {}  # the serial numbers of a key's rows
        self._erased: OrderedDict[bytes, None] = OrderedDict()  # keys whose last change removed them, the first first
        self._bytes = 0
        self._leaving: dict[tuple[bytes, int], None] = {}  # forgotten here, and kept elsewhere
        self._unwanted = False  # whether there are rows elsewhere of which none is wanted

    def invariants(self) -> list[str]:
        found: list[str] = []
        limits = self._limits
        if sum([_size(row) for row in self._order.values()]) != self._bytes or self._bytes > limits.history_bytes:
            found.append(f"the history has {self._bytes} bytes, as it counts")
        if len(self._erased) > limits.history_erased:
            found.append(f"the history of {len(self._erased)} erased keys is kept")
        for key, serials in self._of.items():
            revisions = [self._order[each].revision for each in serials]
            if not revisions or len(revisions) > self.size or revisions != sorted(set(revisions)):
                found.append(f"the history of {decode(key)!r} has the revisions {revisions}")
            elif (key in self._erased) is _is_put(self._order[serials[-1]]):
                found.append(f"{decode(key)!r} is among the erased keys: {key in self._erased}")
        return found

    # -- looks --------------------------------------------------------------------------------------------------

    def rows_of(self, key: Value, entry: Entry | None, revision: int) -> list[HistoryRow]:
        """Return the changes of a key, the oldest first.

        ``entry`` is what is there, with its revision; of a value from before the history nothing else is known.
        """
        raw = encode(key)
        serials = self._of.get(raw)
        if serials is not None:
            return [self._order[each] for each in serials]
        return [] if entry is None else [HistoryRow(raw, revision, body_of(_PUT, 0, NOBODY, entry.value))]

    def rows(self, dones: Sequence[DoneOperation]) -> list[HistoryRow]:
        """Return the changes that operations add, in order, without those that would be forgotten at once."""
        found: list[HistoryRow] = []  # the newest first
        places: dict[bytes, list[int]] = {}  # by key: where its rows are in that
        full: set[bytes] = set()  # keys that take no more
        size = erased = 0
        for done in reversed(dones):
            for change in reversed(done.changes):
                raw = encode(change.key)
                if raw in full:
                    continue
                those = places.setdefault(raw, [])
                code = _CODES[change.kind]
                if code != _PUT and not those:
                    erased += 1
                    if erased > self._limits.history_erased and raw not in self._of:
                        full.add(raw)
                        continue
                if size > self._limits.history_bytes and (those or raw not in self._of):
                    full.add(raw)
                    if those:
                        found[those[-1]] = _beginning(found[those[-1]])
                    continue
                value = None if change.entry is None else change.entry.value
                row = HistoryRow(raw, done.revision, body_of(code, done.at_ns, done.command.publisher, value))
                those.append(len(found))
                found.append(row)
                size += _size(row)
                if len(those) == self.size:
                    full.add(raw)
        found.reverse()
        return found

    # -- changes ------------------------------------------------------------------------------------------------

    def add(self, rows: Iterable[HistoryRow]) -> None:
        for row in rows:
            if self.size:
                self._append(row)
            else:
                self._unwanted = True

    def load(self, rows: Iterable[HistoryRow]) -> None:
        """Load these rows alone, in any order."""
        self.clear()
        self.add(sorted(rows, key=lambda row: (row.revision, row.key)))

    def check(self, engine: Engine) -> None:
        """Forget the history of keys that somebody else has changed since: it lacks those changes."""
        for raw in list(self._of):
            last = self._order[self._of[raw][-1]]
            entry = engine.find(decode(raw))
            present = None if entry is None else encode(entry.value)
            if present != (last.body[_HEAD.size :] if _is_put(last) else None):
                self._forget_key(raw)

    def clear(self) -> None:
        self._order.clear()
        self._of.clear()
        self._erased.clear()
        self._leaving.clear()
        self._bytes = 0
        self._unwanted = False

    def leaving(self) -> list[Operation]:
        """Return the rows that the next commit removes from disk or chain."""
        if self._unwanted:
            return [ClearHistory()]
        return [ForgetHistory(*each) for each in islice(self._leaving, self._limits.commit_operations)]

    def left(self, operations: Iterable[Operation]) -> None:
        """Note rows that a commit has removed; a former master's may have more than was forgotten here."""
        for each in operations:
            if isinstance(each, ClearHistory):
                self.clear()
            elif isinstance(each, ForgetHistory):
                if (each.key, each.revision) not in self._leaving:
                    self._remove(each)
                self._leaving.pop((each.key, each.revision), None)

    # -- inside -------------------------------------------------------------------------------------------------

    def _append(self, row: HistoryRow) -> None:
        self._serial += 1
        if row.body[0] & _BEGINS:
            self._forget_key(row.key)
        serials = self._of.get(row.key)
        if serials is None:
            serials = self._of[row.key] = deque()
        serials.append(self._serial)
        self._order[self._serial] = row
        self._bytes += _size(row)
        if len(serials) > self.size:
            self._forget(row.key)
        self._erased.pop(row.key, None)
        if not _is_put(row):
            self._erased[row.key] = None
            if len(self._erased) > self._limits.history_erased:
                self._forget_key(next(iter(self._erased)))
        while self._bytes > self._limits.history_bytes:
            self._forget(next(iter(self._order.values())).key)

    def _forget(self, key: bytes) -> None:
        serials = self._of[key]
        row = self._order.pop(serials.popleft())
        self._bytes -= _size(row)
        if self._kept:
            self._leaving[(row.key, row.revision)] = None
        if not serials:
            del self._of[key]
            self._erased.pop(key, None)

    def _forget_key(self, key: bytes) -> None:
        while key in self._of:
            self._forget(key)

    def _remove(self, gone: ForgetHistory) -> None:
        while gone.key in self._of and self._order[self._of[gone.key][0]].revision <= gone.revision:
            self._forget(gone.key)


def _is_put(row: HistoryRow) -> bool:
    return row.body[0] & ~_BEGINS == _PUT


def _beginning(row: HistoryRow) -> HistoryRow:
    return HistoryRow(row.key, row.revision, bytes((row.body[0] | _BEGINS,)) + row.body[1:])


def _size(row: HistoryRow) -> int:
    return len(row.key) + len(row.body) + _ROW_BYTES


def no_history(name: str) -> str:
    return f"the master of store {name!r} keeps no history of keys: attach it with history=N"


def of_an_original(name: str) -> str:
    return (
        f"the master of store {name!r} is not one of chappe: it tells clones neither revisions, history nor when "
        "entries expire"
    )
