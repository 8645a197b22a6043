"""What the chain of a world replicates, and the model of it that histories are compared with."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Any

import msgspec

from chappe.replication.chain.rows import Rows


def encode(*what: Any) -> bytes:
    """A command or a query: a number, a key, a verb and its operands."""
    return msgspec.msgpack.encode(what)


def decode(data: bytes) -> Any:
    """What was encoded, with tuples for lists."""
    return msgspec.msgpack.decode(data, type=tuple[Any, ...])


def result(data: bytes) -> Any:
    """What a command or a query answered."""
    return msgspec.msgpack.decode(data)


def step(state: Any, what: tuple[Any, ...]) -> tuple[Hashable, Any]:
    """One operation on one key: registers and counters are numbers, lists are tuples."""
    match what:
        case ("put", value):
            return value, None
        case ("cas", expected, value):
            return (value, True) if state == expected else (state, False)
        case ("add", value):
            return state + value, state + value
        case ("append", value):
            return (*state, value), len(state) + 1
        case ("get",):
            return state, list(state) if isinstance(state, tuple) else state
    raise AssertionError(what)


def begin(key: str) -> Hashable:
    """What a key is at first."""
    return () if key.startswith("l") else 0


class WholeKeys:
    """The machine. It remembers which commands it has done, for the checkers."""

    def __init__(self) -> None:
        self.rows = Rows(str)
        self.did: list[int] = []

    def apply(self, command: bytes) -> bytes:
        """Do a command."""
        number, key, *what = decode(command)
        self.did.append(number)
        state, outcome = step(self._find(key), tuple(what))
        self.rows.put(key, msgspec.msgpack.encode(state))
        return msgspec.msgpack.encode(outcome)

    def read(self, query: bytes) -> bytes:
        """Answer."""
        _, key, *what = decode(query)
        return msgspec.msgpack.encode(step(self._find(key), tuple(what))[1])

    def snapshot(self) -> bytes:
        """All of it."""
        return msgspec.msgpack.encode((list(self.rows.pieces()), self.did))

    def restore(self, state: bytes) -> None:
        """Be as then."""
        pieces, self.did = msgspec.msgpack.decode(state)
        taken = self.rows.taking()
        for piece in pieces:
            taken.add(piece)
        taken.finish()

    def _find(self, key: str) -> Any:
        raw = self.rows.get(key)
        state = begin(key) if raw is None else msgspec.msgpack.decode(raw)
        return tuple(state) if isinstance(state, list) else state


class Keys(WholeKeys):
    """The same machine with a state in pieces."""

    def pieces(self) -> Iterator[bytes]:
        """Return the applied commands and then the rows."""
        return chain((msgspec.msgpack.encode(self.did),), self.rows.pieces())

    def restoring(self) -> Taken:
        """Return an object that rebuilds the state from pieces."""
        return Taken(self)


class Taken:
    """Rebuilds the state from pieces."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._did: list[int] | None = None
        self._rows = keys.rows.taking()

    def add(self, piece: bytes) -> None:
        """Take the next piece."""
        if self._did is None:
            self._did = msgspec.msgpack.decode(piece)
        else:
            self._rows.add(piece)

    def finish(self) -> None:
        """Replace the machine's state."""
        assert self._did is not None
        self._keys.did = self._did
        self._rows.finish()
