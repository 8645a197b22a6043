"""The entries of a sealed data store on disk: any backend, which gets neither keys nor values; see ``sealing.rows``.

To the backend each entry is a string with a string, and one more says with which key they are sealed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from chappe.data.binary import decode, encode
from chappe.data.values import Value
from chappe.errors import Damaged, InvalidData, ProtocolError, Sealed
from chappe.kv.backend import (
    Backend,
    ClearHistory,
    ClearRows,
    EraseRow,
    ForgetHistory,
    HistoryRow,
    Loaded,
    Operation,
    PutRow,
)
from chappe.sealing.primitives import KEY_BYTES
from chappe.sealing.ring import Ring
from chappe.sealing.rows import NONCE_BYTES, SALT_BYTES, RowCipher, unwrapped, wrapped
from chappe.storage.kv_backends import SEALED_KEY

_SEALED_ROW = encode(SEALED_KEY)


class SealedBackend:
    """A ``Backend`` that seals everything that it hands to another one.

    Args:
        inner: Where the entries are.
        store: The name of the data store.
        ring: Of those for whom it is sealed; we are in its newest epoch.
    """

    def __init__(self, inner: Backend, store: bytes, ring: Ring) -> None:
        self._inner = inner
        self._store = store
        self._ring = ring
        self._header = PutRow(_SEALED_ROW, b"", None)
        self._cipher: RowCipher | None = None

    def load(self) -> Loaded:
        """Open all entries; those of an earlier epoch are sealed anew, with a key that nobody has had before. Raises
        Sealed: the file is of a plain data store, or its key was not given to us.
        """
        loaded = self._inner.load()
        header = [value for key, value, _ in loaded.entries if key == SEALED_KEY]
        if not header:
            if loaded.entries or loaded.history:
                raise Sealed(f"data store {self._name} is sealed, and the file has plain entries: begin another file")
            self._begin(())
            return loaded
        try:
            number, key = unwrapped(_raw(header[0]), self._store, self._ring)
        except ProtocolError as error:
            raise Damaged(f"the file of data store {self._name} cannot be opened: {error}") from None
        if key is None:
            group = self._ring.keys.group
            raise Sealed(f"the file of data store {self._name} is sealed in epoch {number} of {group}, without us")
        self._header, self._cipher = PutRow(_SEALED_ROW, encode(header[0]), None), RowCipher(key)
        entries = [self._opened(*each) for each in loaded.entries if each[0] != SEALED_KEY]
        history = [self._opened_past(each) for each in loaded.history]
        if number != self._ring.keys.newest.number:
            rows = [PutRow(encode(key), encode(value), expires_ns) for key, value, expires_ns in entries]
            self._begin([ClearHistory(), *rows, *history] if history else rows)
        return Loaded(tuple(entries), loaded.writers, tuple(history))

    def commit(self, operations: Sequence[Operation]) -> None:
        self._inner.commit([each for operation in operations for each in self._sealed(operation)])

    def close(self) -> None:
        self._inner.close()

    def _begin(self, rows: Sequence[Operation]) -> None:
        secret = self._ring.newest
        assert secret is not None
        key = os.urandom(KEY_BYTES)
        header = wrapped(key, self._store, secret, os.urandom(SALT_BYTES))
        self._cipher, self._header = RowCipher(key), PutRow(_SEALED_ROW, encode(header), None)
        self.commit([ClearRows(), *rows])

    def _sealed(self, operation: Operation) -> list[Operation]:
        assert self._cipher is not None
        match operation:
            case PutRow(key, value, expires_ns):
                name = self._cipher.seal_key(key)
                sealed = self._cipher.seal_value(name, value, expires_ns, os.urandom(NONCE_BYTES))
                return [PutRow(encode(name), encode(sealed), expires_ns)]
            case EraseRow(key):
                return [EraseRow(encode(self._cipher.seal_key(key)))]
            case HistoryRow(key, revision, body):
                name = self._cipher.seal_key(key)
                return [
                    HistoryRow(name, revision, self._cipher.seal_past(name, body, revision, os.urandom(NONCE_BYTES)))
                ]
            case ForgetHistory(key, revision):
                return [ForgetHistory(self._cipher.seal_key(key), revision)]
            case ClearRows():
                return [operation, self._header]
            case _:
                return [operation]

    def _opened_past(self, row: HistoryRow) -> HistoryRow:
        assert self._cipher is not None
        try:
            key, body = self._cipher.open_past(row.key, row.body, row.revision)
        except ProtocolError as error:
            raise self._damaged(error) from None
        return HistoryRow(key, row.revision, body)

    def _opened(self, key: Value, value: Value, expires_ns: int | None) -> tuple[Value, Value, int | None]:
        assert self._cipher is not None
        try:
            plain = self._cipher.open(_raw(key), _raw(value), expires_ns)
            return decode(plain[0]), decode(plain[1]), expires_ns
        except (ProtocolError, InvalidData) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> Damaged:
        return Damaged(f"the file of data store {self._name} is damaged: {error}; restore it from a copy")

    @property
    def _name(self) -> str:
        return repr(self._store.decode(errors="replace"))


def _raw(value: Value) -> bytes:
    return value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else b""
