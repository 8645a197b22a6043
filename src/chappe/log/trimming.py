"""Records that a store is asked to forget: at once for readers, and confirmed once the disk has it.

Offsets are never used again: a partition of which nothing is left goes on where it was.
"""

from __future__ import annotations

from typing import Final

from chappe.core import Effect, Persist, Reply
from chappe.data.topic import decode_topic
from chappe.log.queries import Answer, ErrorAnswer, QueryReply, TrimAnswer, TrimRequest
from chappe.log.storage import LogStorage, PartitionInfo, RunRetention

TRIMS_MAX: Final = 100  # that wait for the disk at once; further ones are refused
PARTITIONS_ALL: Final = 1_000_000


class Trims:
    """Of one store; every run of retention is begun here, as those who wait are answered after the next one."""

    def __init__(self, storage: LogStorage) -> None:
        self._storage = storage
        self._begun = self._ended = 0  # runs of retention
        self._waiting: list[tuple[int, bytes, bytes, TrimAnswer]] = []  # the run that makes it durable; who asked

    def trim(self, client: bytes, request_id: bytes, request: TrimRequest) -> list[Effect]:
        """Forget what somebody wants to be forgotten."""
        if len(self._waiting) >= TRIMS_MAX:
            return [
                Reply(
                    client, QueryReply(request_id, ErrorAnswer(f"{TRIMS_MAX} others trim topics just now: ask again"))
                )
            ]
        topic = decode_topic(request.topic)
        forgotten = 0
        for info in self._storage.changed(topic, 0, PARTITIONS_ALL):
            if info.topic == topic:
                first = self._first(info, request.before)
                if first > info.first:
                    forgotten += first - info.first
                    self._storage.reset(topic, info.partition, first)
        retaining = self.retain()
        self._waiting.append((self._begun, client, request_id, TrimAnswer(request.topic, forgotten)))
        return retaining

    def _first(self, info: PartitionInfo, before: int) -> int:
        """Where a partition begins then."""
        if info.next == info.first or before <= info.timestamp_min:
            return info.first
        if before > info.timestamp_max:
            return info.next
        return self._storage.offset_at(info.topic, info.partition, before)

    def retain(self) -> list[Effect]:
        """A run of retention begins."""
        self._begun += 1
        return [Persist(RunRetention())]

    def retained(self, problem: str) -> list[Effect]:
        """The oldest run has ended, or could not do its work: answer who waits for it."""
        self._ended += 1
        done = [each for each in self._waiting if each[0] <= self._ended]
        self._waiting = [each for each in self._waiting if each[0] > self._ended]
        return [Reply(client, QueryReply(raw_id, _answer(answer, problem))) for _, client, raw_id, answer in done]


def _answer(answer: TrimAnswer, problem: str) -> Answer:
    if not problem:
        return answer
    return ErrorAnswer(f"its disk refuses, so that what is forgotten may come back when it starts anew: {problem}")
