"""Carrying out a commit: a redo log.

``StagedStorage.prepare`` looks at the named pieces, makes them durable, and writes an intent: that is the commit
point. ``Finishing`` then appends the pieces to the log storage, at the offsets that the intent names, and completes
the intent. After a crash ``recover`` does what was left of it before the store answers anything: what was
appended already is left out, so the batch is there exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from chappe.errors import Damaged, ProtocolError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, rebase
from chappe.log.exactly_once.staged import Intent, KeptSinks, PieceAt, StagedStorage
from chappe.log.storage import AppendRecords, LogStorage

logger: Final = logging.getLogger(__name__)


class Finishing:
    """What is to be done for an intent after the commit point, step by step.

    ``have``: the offset after the last record that the log has of each topic's partition; what is before is left out.
    """

    def __init__(
        self,
        staged: StagedStorage,
        storage: LogStorage,
        intent: Intent,
        have: Mapping[str, int] | None = None,
        limits: LogLimits = LOG_LIMITS,
    ) -> None:
        self._chunk_bytes = limits.commit_chunk_bytes
        self.intent = intent
        self.written: list[object] = []  # to be published in this order, in one go
        self.done = False
        self._staged = staged
        self._storage = storage
        self._have = have or {}
        self._places = staged.places(intent)
        self._at = 0
        self._offsets = {topic: first for topic, _, first, _ in intent.ranges}
        self._partitions = {topic: partition for topic, partition, _, _ in intent.ranges}
        self._chunk: list[AppendRecords] = []

    def step(self) -> None:
        """Append the next chunk or, behind the last one, complete the intent.

        Raises StorageError: this step did not happen, and is to be tried again until it does.
        """
        chunk = self.next_chunk()
        if chunk:
            self.written.append(self._storage.write(chunk))
            self._chunk = []
            return
        self._staged.complete(self.intent)
        self.done = True

    def next_chunk(self) -> Sequence[AppendRecords]:
        """What the next step appends; nothing if all is appended."""
        if self._chunk:
            return self._chunk  # it was refused
        size = 0
        while self._at < len(self._places):
            piece = self._places[self._at]
            base = self._offsets[piece.topic]
            if base + piece.count > self._have.get(piece.topic, 0):
                if self._chunk and size + piece.size > self._chunk_bytes:
                    break
                self._add(piece, base)
                size += piece.size
            self._offsets[piece.topic] = base + piece.count
            self._at += 1
        return self._chunk

    def _add(self, piece: PieceAt, base: int) -> None:
        try:
            body = rebase(self._staged.read(piece), base)
        except (Damaged, ProtocolError) as error:
            # Decided is decided: what comes behind keeps its offsets, and the hole is found as any other damage is.
            logger.error("offsets %d to %d of topic %r are lost: %s", base, base + piece.count - 1, piece.topic, error)
            return
        batch = Batch.parse(body, check=False)
        partition = self._partitions[piece.topic]
        self._chunk.append(
            AppendRecords(piece.topic, partition, base, batch.count, batch.timestamp_min, batch.timestamp_max, body)
        )


def recover(staged: StagedStorage, storage: LogStorage, limits: LogLimits = LOG_LIMITS) -> KeptSinks:
    """Finish what a crash interrupted, before the store answers anything; returns what is there then.

    Raises StorageError: the disk refuses; to be tried again.
    """
    finished: list[Intent] = []
    for intent in staged.pending():
        have: dict[str, int] = {}
        for topic, partition, _, _ in intent.ranges:
            info = storage.partition(topic, partition)
            have[topic] = 0 if info is None else info.next
        finishing = Finishing(staged, storage, intent, have, limits)
        try:
            while not finishing.done:
                finishing.step()
        finally:
            for written in finishing.written:
                storage.publish(written)
        finished.append(intent)
    return replace(staged.kept(), finished=tuple(finished))
