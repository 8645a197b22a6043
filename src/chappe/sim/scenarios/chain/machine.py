"""What the chain of a world replicates, and the model of it that histories are compared with."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec


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


class Keys:
    """The machine. It remembers which commands it has done, for the checkers."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.did: list[int] = []

    def apply(self, command: bytes) -> bytes:
        """Do a command."""
        number, key, *what = decode(command)
        self.did.append(number)
        state, outcome = step(self.state.get(key, begin(key)), tuple(what))
        self.state[key] = state
        return msgspec.msgpack.encode(outcome)

    def read(self, query: bytes) -> bytes:
        """Answer."""
        _, key, *what = decode(query)
        return msgspec.msgpack.encode(step(self.state.get(key, begin(key)), tuple(what))[1])

    def snapshot(self) -> bytes:
        """All of it."""
        return msgspec.msgpack.encode((sorted(self.state.items()), self.did))

    def restore(self, state: bytes) -> None:
        """Be as then."""
        items, did = msgspec.msgpack.decode(state)
        self.state = {key: tuple(value) if isinstance(value, list) else value for key, value in items}
        self.did = did
