"""Entries of a sealed data store as they lie on a disk.

A file has a key of its own, random, which is wrapped with the secret of an epoch. Keys of entries are enciphered so
that equal ones look alike (AES-SIV), and so are found again; nothing else can be told of them but their sizes. Values
have random bytes with them and tell nothing by being equal. What an entry is, and when it expires, is bound to it, and
to a change in a key's history its revision; so none can be put in the place of another. That an older one was put back
is not noticed.
"""

from __future__ import annotations

from typing import Final

from chappe.errors import ProtocolError
from chappe.sealing.primitives import KEY_BYTES, TAG_BYTES, Cipher, SteadyCipher, derived
from chappe.sealing.ring import EpochSecret, Ring

VERSION: Final = 1
SALT_BYTES: Final = 32
NONCE_BYTES: Final = 16
_EPOCH_AT: Final = 1
_SALT_AT: Final = 5
_HEADER_BYTES: Final = _SALT_AT + SALT_BYTES + KEY_BYTES + TAG_BYTES


def wrapped(key: bytes, store: bytes, secret: EpochSecret, salt: bytes) -> bytes:
    """The key of a file, for the members of an epoch; ``salt`` is ``SALT_BYTES`` random bytes, new for each call."""
    sealed = _wrapping(store, secret, salt).seal(0, key, store)
    return VERSION.to_bytes(1) + secret.number.to_bytes(4) + salt + sealed


def unwrapped(header: bytes, store: bytes, ring: Ring) -> tuple[int, bytes | None]:
    """Return epoch and file key; None: not given to us. Raises ProtocolError: not ``wrapped`` for this store."""
    if len(header) != _HEADER_BYTES or header[0] != VERSION:
        raise ProtocolError("its key is of a newer version, or malformed")
    number = int.from_bytes(header[_EPOCH_AT:_SALT_AT])
    secret = ring.secret(number)
    if secret is None:
        return number, None
    salt = header[_SALT_AT : _SALT_AT + SALT_BYTES]
    key = _wrapping(store, secret, salt).open(0, header[_SALT_AT + SALT_BYTES :], store)
    if key is None:
        raise ProtocolError(f"its key is not wrapped for {ring.keys.group}, or for another store")
    return number, key


def _wrapping(store: bytes, secret: EpochSecret, salt: bytes) -> Cipher:
    parts = (secret.group.encode(), secret.number.to_bytes(4), store)
    return Cipher(derived(secret.secret, b"chappe sealed store 1", *parts, salt=salt))


class RowCipher:
    def __init__(self, key: bytes) -> None:
        self._keys = SteadyCipher.of(key, b"chappe sealed store keys 1")
        self._values = SteadyCipher.of(key, b"chappe sealed store values 1")

    def seal_key(self, key: bytes) -> bytes:
        """Return the sealed form of a key: the same each time."""
        return self._keys.seal(key)

    def seal_value(self, sealed_key: bytes, value: bytes, expires_ns: int | None, nonce: bytes) -> bytes:
        """Return the sealed form of its value; ``nonce`` is ``NONCE_BYTES`` random bytes."""
        return nonce + self._values.seal(value, sealed_key, _expiry(expires_ns), nonce)

    def seal_past(self, sealed_key: bytes, body: bytes, revision: int, nonce: bytes) -> bytes:
        return nonce + self._values.seal(body, sealed_key, _past(revision), nonce)

    def open_past(self, sealed_key: bytes, sealed_body: bytes, revision: int) -> tuple[bytes, bytes]:
        """Key and change. Raises ProtocolError."""
        return self._open(sealed_key, sealed_body, _past(revision))

    def open(self, sealed_key: bytes, sealed_value: bytes, expires_ns: int | None) -> tuple[bytes, bytes]:
        """Key and value. Raises ProtocolError."""
        return self._open(sealed_key, sealed_value, _expiry(expires_ns))

    def _open(self, sealed_key: bytes, sealed_value: bytes, what: bytes) -> tuple[bytes, bytes]:
        nonce, sealed = sealed_value[:NONCE_BYTES], sealed_value[NONCE_BYTES:]
        key = self._keys.open(sealed_key)
        value = self._values.open(sealed, sealed_key, what, nonce)
        if key is None or value is None:
            raise ProtocolError("it has an entry that is not as it was sealed")
        return key, value


def _past(revision: int) -> bytes:
    return b"history" + revision.to_bytes(8)


def _expiry(expires_ns: int | None) -> bytes:
    return b"" if expires_ns is None else expires_ns.to_bytes(8, signed=True)
