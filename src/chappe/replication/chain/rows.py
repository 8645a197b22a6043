"""A dictionary with cheap snapshots: it consists of parts, each copied when it is changed.

A snapshot shares the parts. The first change of a part after it copies that part; there are so many parts that
this takes microseconds, so a state of gigabytes is made into pieces while it keeps changing, and nothing waits.
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
    """A dictionary of encoded values with copy-on-write snapshots."""

    def __init__(self, kind: type[Key]) -> None:
        self._kind: type[Key] = kind
        self._parts: list[dict[Key, bytes]]
        self._own: bytearray  # 0: a snapshot shares the part
        self._count: int
        self.clear()

    def __len__(self) -> int:
        return self._count

    def get(self, key: Key) -> bytes | None:
        return self._parts[_part(key)].get(key)

    def put(self, key: Key, value: bytes) -> None:
        rows = self._owned(_part(key))
        self._count += key not in rows
        rows[key] = value

    def erase(self, key: Key) -> bool:
        place = _part(key)
        if key not in self._parts[place]:
            return False
        del self._owned(place)[key]
        self._count -= 1
        return True

    def clear(self) -> None:
        self.replace([{} for _ in range(PARTS)])

    def values(self) -> Iterator[bytes]:
        """Iterate over all values; do not change rows meanwhile."""
        for rows in self._parts:
            yield from rows.values()

    def share(self) -> tuple[dict[Key, bytes], ...]:
        """Return all rows as they are now, in parts that do not change any more: later changes are made in copies."""
        self._own = bytearray(PARTS)
        return tuple(self._parts)

    def pieces(self) -> Iterator[bytes]:
        return _Pieces(list(self.share()))

    def taking(self) -> RowsTaken[Key]:
        return RowsTaken(self, self._kind)

    def replace(self, parts: list[dict[Key, bytes]]) -> None:
        self._parts = parts
        self._own = bytearray(b"\1" * PARTS)
        self._count = sum(map(len, parts))

    def _owned(self, place: int) -> dict[Key, bytes]:
        if not self._own[place]:
            self._own[place] = 1
            self._parts[place] = self._parts[place].copy()
        return self._parts[place]


class _Pieces(Iterator[bytes]):
    """Pieces of a snapshot: place and rows of each non-empty part, in msgpack."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts
        self._place = 0

    def __next__(self) -> bytes:
        while self._place < PARTS:
            place, rows = self._place, self._parts[self._place]
            self._parts[place] = {}  # frees its memory
            self._place += 1
            if rows:
                return msgspec.msgpack.encode((place, rows))
        raise StopIteration


class RowsTaken(Generic[Key]):
    """Rebuilds rows from pieces; they change in ``finish`` alone."""

    def __init__(self, rows: Rows[Key], kind: type[Key]) -> None:
        self._rows: Rows[Key] = rows
        self._decoder = msgspec.msgpack.Decoder(tuple[int, dict[kind, bytes]])  # type: ignore[valid-type]
        self._parts: list[dict[Key, bytes]] = [{} for _ in range(PARTS)]

    def add(self, piece: bytes) -> None:
        """Take the next piece. Raises ProtocolError."""
        try:
            place, rows = self._decoder.decode(piece)
            self._parts[place] = rows
        except (msgspec.DecodeError, UnicodeDecodeError, IndexError) as error:
            raise ProtocolError(f"a piece of the rows of a state does not decode: {error}") from None

    def finish(self) -> None:
        self._rows.replace(self._parts)


def _part(key: str | bytes) -> int:
    return crc32(key.encode() if isinstance(key, str) else key) % PARTS
