"""Batches that a producer keeps: not stored by enough stores yet, or the newest ones where nobody is waited for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.actions import Action, Publish
from chappe.log.batch import Batch
from chappe.log.messages import BatchMessage, Fetch, RecordMessage


@dataclass(frozen=True, slots=True)
class _Kept:
    base: int
    next: int
    body: bytes


class KeptBytes:
    """Bytes that several partitions keep together."""

    def __init__(self) -> None:
        self.total = 0


class KeptBatches:
    """Of one partition, in order and without gaps; answers those who missed some.

    Args:
        topic: The subject of every answer.
        address: Name of the partition.
        shared: Counts what it keeps, too.
        limits: How much is answered at once.
    """

    def __init__(
        self, topic: str, address: str, shared: KeptBytes | None = None, limits: LogLimits = LOG_LIMITS
    ) -> None:
        self._limits = limits
        self._topic = topic
        self._address = address
        self._batches: deque[_Kept] = deque()
        self.bytes = 0
        self._shared = KeptBytes() if shared is None else shared

    @property
    def first(self) -> int | None:
        """The first offset that is kept, or None."""
        return self._batches[0].base if self._batches else None

    def add(self, base: int, next_: int, body: bytes) -> None:
        """Keep a batch behind the others."""
        self._batches.append(_Kept(base, next_, body))
        self.bytes += len(body)
        self._shared.total += len(body)

    def drop_before(self, offset: int) -> bool:
        """Let go of whole batches before ``offset``; returns whether there were any."""
        before = len(self._batches)
        while self._batches and self._batches[0].next <= offset:
            self._drop_oldest()
        return len(self._batches) < before

    def shrink(self, bytes_max: int) -> None:
        """Let go of the oldest beyond a bound, never of the newest."""
        while self.bytes > bytes_max and len(self._batches) > 1:
            self._drop_oldest()

    def answer(self, requester: str, first: int, count: int, end: int) -> list[Action]:
        """What is kept of the wanted range, at most ``read_bytes_max`` and at least one batch, of those before ``end``.

        If the wanted offset is no longer kept the answer starts at the first one that is: the requester then
        knows that the rest is to be had from stores only.
        """
        actions: list[Action] = []
        size = 0
        if not self._batches:
            return []
        first = max(first, self._batches[0].base)
        last = min(first + count, end)
        for kept in self._batches:
            if kept.next <= first:
                continue
            if kept.base >= last or size >= self._limits.read_bytes_max:
                break
            size += len(kept.body)
            actions.append(Publish(BatchMessage(requester, self._address, self._topic, kept.body, direct=True)))
        return actions

    def piece(self, wanted: Fetch, limit: int) -> tuple[list[Action], int]:
        """Single records for an original, and the offset to go on from.

        What is no longer kept is not answered at all: an original would take what follows for a gap and ask again.
        """
        actions: list[Action] = []
        offset = wanted.sequence
        last = offset + limit
        if not self._batches or offset < self._batches[0].base:
            return actions, offset
        for kept in self._batches:
            if kept.next <= offset:
                continue
            if kept.base >= last:
                break
            for record in Batch.parse(kept.body, check=False).records(self._topic, self._address, offset):
                if record.offset >= last:
                    break
                value = record.value or b""
                actions.append(
                    Publish(RecordMessage(wanted.address, self._address, self._topic, record.offset, value, True))
                )
                offset = record.offset + 1
        return actions, offset

    def _drop_oldest(self) -> None:
        size = len(self._batches.popleft().body)
        self.bytes -= size
        self._shared.total -= size
