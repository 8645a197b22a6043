"""A store reduced to its query socket, for reading tests: what it holds is what the test puts in."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec
from tests.spark.answering import Answering

from chappe.data.topic import decode_topic
from chappe.log.batch import Batch, encode_batch
from chappe.log.queries import (
    Answer,
    HeadsRequest,
    ReadAnswer,
    ReadRequest,
    Request,
    SeekAnswer,
    SeekRequest,
    heads_answer,
)
from chappe.log.storage import PartitionInfo

Key = tuple[str, str]


class FakeStore(Answering):
    """Answers READ, HEADS and SEEK from memory, on a thread, until closed.

    ``reads_max`` makes it fall silent after so many READs, as a store does that is killed. With a ``foresight`` it says
    where the next answer will end, by so many offsets wrongly.
    """

    def __init__(self, *, reads_max: int | None = None, endpoint: str = "tcp://127.0.0.1:*") -> None:
        self.batches: dict[Key, list[bytes]] = {}
        self.first: dict[Key, int] = {}
        self.next: dict[Key, int] = {}
        self.holes: dict[Key, tuple[int, int]] = {}
        self.versions: dict[Key, int] = {}
        self.reads: list[ReadRequest] = []
        self.heads: list[HeadsRequest] = []
        self.foresight: int | None = None
        self._version = 0
        self._reads_max = reads_max
        self._lock = threading.Lock()
        super().__init__(endpoint)

    def is_silent(self) -> bool:
        return self._reads_max is not None and len(self.reads) >= self._reads_max

    def put(self, topic: str, partition: str, values: Sequence[bytes | None], *, timestamp: int = 1_000_000) -> None:
        """Append one batch."""
        self.put_raw(topic, partition, encode_batch(self.next.get((topic, partition), 0), values, timestamp))

    def put_raw(self, topic: str, partition: str, raw: bytes) -> None:
        """Append an encoded batch; its base is where the partition goes on."""
        batch = Batch.parse(raw)
        key = (topic, partition)
        with self._lock:
            self.batches.setdefault(key, []).append(raw)
            self.first.setdefault(key, batch.base)
            self.next[key] = batch.next
            self._touch(key)

    def retire(self, topic: str, partition: str, first: int) -> None:
        """Forget what lies before ``first``."""
        key = (topic, partition)
        with self._lock:
            self.batches[key] = [raw for raw in self.batches[key] if Batch.parse(raw).base >= first]
            self.first[key] = first
            self._touch(key)

    def _touch(self, key: Key) -> None:
        self._version += 1
        self.versions[key] = self._version

    def answered(self, request: Request, payload: list[bytes]) -> tuple[Answer, list[bytes]] | None:
        with self._lock:
            return self._answer(request)

    def _answer(self, request: Request) -> tuple[Answer, list[bytes]] | None:
        if isinstance(request, HeadsRequest):
            self.heads.append(request)
            return self._heads(request), []
        assert isinstance(request, (ReadRequest, SeekRequest))
        key = (decode_topic(request.topic), decode_topic(request.partition))
        if not isinstance(request, ReadRequest):
            return SeekAnswer(request.topic, request.partition, self._seek(key, request.timestamp)), []
        self.reads.append(request)
        if self._reads_max is not None and len(self.reads) > self._reads_max:
            return None
        return self._read(key, request)

    def _heads(self, request: HeadsRequest) -> Answer:
        prefix = decode_topic(request.topic_prefix)
        found = sorted((v, k) for k, v in self.versions.items() if v > request.since and k[0].startswith(prefix))
        infos = [
            PartitionInfo(
                *key, self.first[key], self.next[key], sum(map(len, self.batches[key])), *self._times(key), version
            )
            for version, key in found[: request.limit]
        ]
        return heads_answer(infos, request.since, request.limit, self._version)

    def _times(self, key: Key) -> tuple[int, int]:
        found = [Batch.parse(raw, check=False) for raw in self.batches[key]]
        low = min((each.timestamp_min for each in found), default=0)
        return low, max((each.timestamp_max for each in found), default=0)

    def _seek(self, key: Key, timestamp: int) -> int:
        if key not in self.batches:
            return -1
        found = (Batch.parse(raw, check=False) for raw in self.batches[key])
        late = (max(each.base, self.first[key]) for each in found if each.timestamp_max >= timestamp)
        return next(late, self.next[key])

    def _read(self, key: Key, request: ReadRequest) -> tuple[Answer, list[bytes]]:
        if key not in self.batches:
            return ReadAnswer(request.topic, request.partition, 0, 0, False), []
        first, last = self.holes.get(key, (0, -1))
        hole = last if first <= request.offset <= last else -1
        found = self._batches(key, request) if hole < 0 else []
        ahead = 0
        if found and self.foresight is not None:
            follows = msgspec.structs.replace(request, offset=Batch.parse(found[-1], check=False).next)
            behind = self._batches(key, follows)
            ahead = max(0, Batch.parse(behind[-1], check=False).next + self.foresight) if behind else 0
        return ReadAnswer(request.topic, request.partition, self.first[key], self.next[key], True, hole, ahead), found

    def _batches(self, key: Key, request: ReadRequest) -> list[bytes]:
        found: list[bytes] = []
        if self.first[key] <= request.offset < self.next[key]:
            for raw in self.batches[key]:
                if Batch.parse(raw, check=False).next <= request.offset:
                    continue
                if found and sum(map(len, found)) + len(raw) > request.bytes_max:
                    break
                found.append(raw)
        return found
