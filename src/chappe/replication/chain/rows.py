"""Rows of which a snapshot costs next to nothing: a dictionary in parts, each of which is copied when it is changed.

A snapshot has the parts as they are. The first change of a part after it copies that part, of which there are so many
that this takes microseconds; so a state of gigabytes is made into pieces while it goes on changing, and nobody waits.
Order and pieces depend on the rows' history alone, so they are the same at all members.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar
from zlib import crc32

import msgspec

from chappe.errors import ProtocolError

PARTS: Final = 1_024  # a part of the snapshots' format: a row's part is the CRC-32 of its key, modulo this

Key = TypeVar("Key", str, bytes)


class Rows(Generic[Key]):
    """Values by key."""

    def __init__(self, kind: type[Key]) -> None:
        self._kind: type[Key] = kind
        self._parts: list[dict[Key, bytes]]
        self._own: bytearray  # 0: a snapshot has the part, too
        self._count: int
        self.clear()

    def __len__(self) -> int:
        return self._count

    def get(self, key: Key) -> bytes | None:
        """The value of a key, or None."""
        return self._parts[_part(key)].get(key)

    def put(self, key: Key, value: bytes) -> None:
        """Set a value."""
        rows = self._owned(_part(key))
        self._count += key not in rows
        rows[key] = value

    def erase(self, key: Key) -> bool:
        """Remove a key; returns whether it was there."""
        place = _part(key)
        if key not in self._parts[place]:
            return False
        del self._owned(place)[key]
        self._count -= 1
        return True

    def clear(self) -> None:
        """Remove all keys."""
        self.replace([{} for _ in range(PARTS)])

    def values(self) -> Iterator[bytes]:
        """All values; nothing may change meanwhile."""
        for rows in self._parts:
            yield from rows.values()

    def pieces(self) -> Iterator[bytes]:
        """All rows as they are now, however they change later: for ``RowsTaken`` to make them anew."""
        self._own = bytearray(PARTS)
        return _Pieces(list(self._parts))

    def taking(self) -> RowsTaken[Key]:
        """What takes pieces, and has these rows replaced by them when all are there."""
        return RowsTaken(self, self._kind)

    def replace(self, parts: list[dict[Key, bytes]]) -> None:
        """Have other rows."""
        self._parts = parts
        self._own = bytearray(b"\1" * PARTS)
        self._count = sum(map(len, parts))

    def _owned(self, place: int) -> dict[Key, bytes]:
        if not self._own[place]:
            self._own[place] = 1
            self._parts[place] = self._parts[place].copy()
        return self._parts[place]


class _Pieces(Iterator[bytes]):
    """A piece for each part that has rows: its place and its rows, in msgpack."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts
        self._place = 0

    def __next__(self) -> bytes:
        while self._place < PARTS:
            place, rows = self._place, self._parts[self._place]
            self._parts[place] = {}  # its memory is given back
            self._place += 1
            if rows:
                return msgspec.msgpack.encode((place, rows))
        raise StopIteration


class RowsTaken(Generic[Key]):
    """Rows that come in pieces."""

    def __init__(self, rows: Rows[Key], kind: type[Key]) -> None:
        self._rows: Rows[Key] = rows
        self._decoder = msgspec.msgpack.Decoder(tuple[int, dict[kind, bytes]])  # type: ignore[valid-type]
        self._parts: list[dict[Key, bytes]] = [{} for _ in range(PARTS)]

    def add(self, piece: bytes) -> None:
        """One more. Raises ProtocolError."""
        try:
            place, rows = self._decoder.decode(piece)
            self._parts[place] = rows
        except (msgspec.DecodeError, UnicodeDecodeError, IndexError) as error:
            raise ProtocolError(f"a piece of the rows of a state does not decode: {error}") from None

    def finish(self) -> None:
        """All are there."""
        self._rows.replace(self._parts)


def _part(key: str | bytes) -> int:
    return crc32(key.encode() if isinstance(key, str) else key) % PARTS
