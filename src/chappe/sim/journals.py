"""The journal of a simulated producer: a disk that refuses now and then, and does not always forget what it refused."""

from __future__ import annotations

from random import Random
from typing import TypeAlias

from chappe.errors import StorageFull
from chappe.log.batch import Batch, Headers

Gathered: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]  # value, key, headers, timestamp


class Journal:
    """What is durable of one identity; it drops what is stored now or later, as the one on disk drops whole files.

    Args:
        rng: Its own: worlds without bad journals are what they were before there were any.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.batches: list[bytes] = []
        self.next_offset = 0
        self.pending: dict[int, Gathered] = {}  # what has an offset and is in no batch yet
        self.given: dict[int, bytes | None] = {}  # the value of each record that ever got an offset
        self.refusing = 0.0  # how many of the writes fail
        self._rest: bytes | None = None  # a refused batch that is on the disk nevertheless
        self.lives = 0
        self.rolled_back = False  # it was restored from a copy that is older than what was published

    def append(self, body: bytes) -> None:
        """Make a batch durable.

        Raises:
            StorageFull: It is not in the journal; but if its owner dies next, its next life may find it there.
        """
        if self.refusing and self._rng.random() < self.refusing:
            self._rest = self._rng.choice((None, self._rest, body))
            raise StorageFull("the disk of the simulation is full")
        self._rest = None
        self._take(body)

    def pend(self, offset: int, record: Gathered) -> None:
        """Keep a record over the end of the process, before its sender has the offset."""
        self._rest = None  # a file that begins after it says that it does not count
        self.pending[offset] = record
        self.given[offset] = record[0]

    def reopened(self) -> Journal:
        """What a further life finds."""
        self.lives += 1
        if self._rest is not None:
            self._take(self._rest)
            self._rest = None
        return self

    def copy(self) -> tuple[list[bytes], int]:
        """A backup."""
        return list(self.batches), self.next_offset

    def restore(self, backup: tuple[list[bytes], int]) -> None:
        """Have what was copied instead of what is there."""
        self.rolled_back = self.rolled_back or backup[1] < self.next_offset
        self.batches, self.next_offset = list(backup[0]), backup[1]
        for offset in self.pending:
            del self.given[offset]  # it went with the newer journal, and nobody has heard of it
        self.pending, self._rest = {}, None

    def trim(self, offset: int, keep: int) -> int:
        """Everything before ``offset`` is stored; up to ``keep`` such batches stay all the same. Returns how many."""
        stored = sum(Batch.parse(body, check=False).next <= offset for body in self.batches)
        del self.batches[: max(0, stored - keep)]
        return min(stored, keep)

    def _take(self, body: bytes) -> None:
        self.batches.append(body)
        self.next_offset = Batch.parse(body).next
        self.pending = {offset: record for offset, record in self.pending.items() if offset >= self.next_offset}
