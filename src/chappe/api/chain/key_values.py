"""A ready-made machine: keys and values, with commands and answers in JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from chappe.data import binary
from chappe.data.json import dumps_plain, loads_plain
from chappe.data.order import same
from chappe.data.values import Value
from chappe.errors import InvalidData, UsageError
from chappe.kv import operations
from chappe.replication.chain.replica import Restoring
from chappe.replication.chain.rows import Rows

_PIECES: Final = msgspec.msgpack.Decoder(list[bytes])


class KeyValues:
    """Keys and values; additions have the rules of data stores.

    Each value is kept as bytes, and the state is transferred in pieces, so a server goes on however large it is.

    =================================== ============================================= =================
    command                             effect                                        answer
    =================================== ============================================= =================
    ``["put", KEY, VALUE]``             sets a value                                  ``null``
    ``["erase", KEY]``                  removes a key                                 true if it was there
    ``["add", KEY, NUMBER]``            adds to a number, which begins at 0           the sum
    ``["compare", KEY, OLD, NEW]``      sets a value if the present one is ``OLD``;   true if it was set
                                        ``null`` is no value
    query ``["get", KEY]``              --                                            the value, or ``null``
    query ``["size"]``                  --                                            the number of keys
    =================================== ============================================= =================

    Keys are strings, values any JSON except ``null``.
    """

    def __init__(self) -> None:
        self._rows = Rows(str)

    def apply(self, command: bytes) -> bytes:
        """Apply a command. Raises UsageError for an invalid one, TypeClash, InvalidOperation, UnsupportedValue."""
        match _words(command):
            case ("put", str(key), value) if value is not None:
                self._rows.put(key, binary.encode(value))
                return b"null"
            case ("erase", str(key)):
                return _text(self._rows.erase(key))
            case ("add", str(key), int(number) | float(number)) if not isinstance(number, bool):
                stored = self._find(key)
                total = number if stored is None else operations.add(stored, number)
                self._rows.put(key, binary.encode(total))
                return _text(total)
            case ("compare", str(key), old, new):
                return _text(self._compare(key, old, new))
        raise UsageError(f"{command[:100]!r} is no command for keys and values")

    def read(self, query: bytes) -> bytes:
        """Answer a query. Raises UsageError for an invalid one."""
        match _words(query):
            case ("get", str(key)):
                return _text(self._find(key))
            case ("size",):
                return _text(len(self._rows))
        raise UsageError(f"{query[:100]!r} is no query for keys and values")

    def pieces(self) -> Iterator[bytes]:
        """Return an iterator over a view of the present state, for ``PiecedMachine``."""
        return self._rows.pieces()

    def restoring(self) -> Restoring:
        """Return an object that rebuilds the state from pieces."""
        return self._rows.taking()

    def snapshot(self) -> bytes:
        """Return the whole state as one value."""
        return msgspec.msgpack.encode(list(self.pieces()))

    def restore(self, state: bytes) -> None:
        """Replace the state with a snapshot."""
        taken = self.restoring()
        for piece in _PIECES.decode(state) if state else ():
            taken.add(piece)
        taken.finish()

    def _find(self, key: str) -> Value:
        raw = self._rows.get(key)
        return None if raw is None else binary.decode(raw)

    def _compare(self, key: str, old: Value, new: Value) -> bool:
        stored = self._find(key)
        if not (old is None if stored is None else same(stored, old)):
            return False
        if new is None:
            self._rows.erase(key)
        else:
            self._rows.put(key, binary.encode(new))
        return True


def _words(text: bytes) -> Value:
    try:
        return loads_plain(text)
    except InvalidData as error:
        raise UsageError(f"a command is a list in JSON: {error}") from None


def _text(value: Value) -> bytes:
    return dumps_plain(value).encode()
