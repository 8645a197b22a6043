"""What became of a clone's write, as one byte in ``WriterState``: 0 is "done", and never travels."""

from __future__ import annotations

from typing import Final

from chappe.errors import BackendFailure, InvalidOperation, NoMaster, NoSuchKey, StoreError, TypeClash

DONE: Final = 0
NOT_INSERTED: Final = 255  # put_unique: the key had a value

_ERRORS: Final[dict[int, type[StoreError]]] = {
    each.code: each for each in (NoSuchKey, TypeClash, InvalidOperation, BackendFailure, NoMaster)
}
_TEXTS: Final[dict[type[StoreError], str]] = {
    NoSuchKey: "nothing is stored under the key",
    TypeClash: "the operation does not fit the type of the stored value",
    InvalidOperation: "the operation's value is not what it needs, or the result would be out of bounds",
    BackendFailure: "its backend could not write; look at the master's disk",
    NoMaster: "it remembers too many clones already",
}


def code_of(error: StoreError) -> int:
    """The byte for a failure."""
    return error.code


def error_of(code: int, what: str) -> StoreError:
    """The failure that a byte names; ``what`` says which write it was."""
    kind = _ERRORS.get(code, StoreError)
    return kind(f"the master refused {what}: {_TEXTS.get(kind, f'error {code}')}")
