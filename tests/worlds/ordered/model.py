"""What writers do to a partition, as operations on one copy; and a machine that remembers which of them it did."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from chappe.log.batch import Batch
from chappe.log.ordered.commands import (
    Answer,
    Append,
    Appended,
    CommitRows,
    Committed,
    Conflict,
    decode_answer,
    decode_command,
)
from chappe.log.ordered.machine import OrderedLog

TOPIC = b"t"
PARTITIONS = 2


def step(state: Any, what: tuple[Any, ...]) -> tuple[Hashable, Any]:
    """One operation on one partition, of which the state is how many records it has."""
    match what:
        case ("append", expected, count):
            if expected not in (-1, state):
                return state, ("conflict", state)
            return state + count, ("appended", state, state + count)
        case ("get",):
            return state, state
    raise AssertionError(what)


def begin(key: str) -> Hashable:
    """A partition is empty at first."""
    return 0


def outcome(answer: Answer) -> Any:
    """What ``step`` calls an answer to an ``Append``."""
    match answer:
        case Appended(first, end):
            return ("appended", first, end)
        case Conflict(end):
            return ("conflict", end)
    raise AssertionError(f"{answer} to an append")


def numbers(batch: Batch) -> list[int]:
    """Of the operations that its records are of."""
    return [int(value) for value in batch.values() if value is not None]


class Remembering(OrderedLog):
    """The machine, which remembers what it has done, for the checkers."""

    did: list[int]

    def apply(self, command: bytes) -> bytes:
        """Do a command."""
        answer = super().apply(command)
        wanted = decode_command(command)
        if isinstance(wanted, Append):
            self.did.append(numbers(Batch.parse(wanted.body))[0])
            outcome(decode_answer(answer))
        return answer

    def snapshot(self) -> bytes:
        """All of it."""
        return msgspec.msgpack.encode((super().snapshot(), self.did))

    def restore(self, state: bytes) -> None:
        """Be as then."""
        inner, self.did = msgspec.msgpack.decode(state, type=tuple[bytes, list[int]])
        super().restore(inner)


def commit_number(query: str, batch: int) -> int:
    """A number that no operation has."""
    return 1_000_000 + 1_000 * int(query.removeprefix("query")) + batch


class Committing(Remembering):
    """Also remembers which batches of queries it has committed."""

    def apply(self, command: bytes) -> bytes:
        """Do a command."""
        answer = super().apply(command)
        wanted = decode_command(command)
        if isinstance(wanted, CommitRows) and decode_answer(answer) == Committed(False):
            self.did.append(commit_number(wanted.sink, wanted.batch))
        return answer
