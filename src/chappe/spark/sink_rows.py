"""Rows of one task on their way to the sink's home, where they wait, visible to nobody, for the commit.

Several pieces are under way at once. A home that falls silent is looked for, and gets again what it has not
acknowledged; to stage a piece twice is to stage it once.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from chappe.data.topic import encode_topic
from chappe.errors import ChappeError, TimedOut
from chappe.log.queries import Stage
from chappe.spark.encode import Piece
from chappe.spark.home import Home, Sink, Stores, client_of, found_again
from chappe.transports.queries import StoreClient

logger = logging.getLogger(__name__)

UNANSWERED_MAX: Final = 8  # pieces under way


class Staging:
    """Stages the pieces of one attempt of one task, in order.

    Every method raises TimedOut if the home stays away, Fenced if another run took over, StorageFull.

    Args:
        stores: Where the home is looked for if it moves.
        home: Where it is.
        sink: Who writes.
        batch: The number of the batch.
        task: Of the batch's tasks.
        attempt: Of all attempts of the run.
    """

    def __init__(self, stores: Stores, home: Home, sink: Sink, batch: int, task: int, attempt: int) -> None:
        self.home = home
        self.pieces = 0
        self.rows = 0
        self.topics: dict[str, None] = {}
        self._stores = stores
        self._sink = sink
        self._place = (batch, task, attempt)
        self._unanswered: deque[tuple[bytes, Stage, bytes]] = deque()

    def put(self, piece: Piece) -> None:
        """Send a piece; waits for the oldest one if too many are under way."""
        while len(self._unanswered) >= UNANSWERED_MAX:
            self._settle_oldest()
        stage = Stage(self._sink.name, self._sink.run, *self._place, self.pieces, encode_topic(piece.topic))
        self._send(stage, piece.raw)
        self.pieces += 1
        self.rows += piece.rows
        self.topics[piece.topic] = None

    def finish(self) -> None:
        """Wait until everything is staged."""
        while self._unanswered:
            self._settle_oldest()

    def give_up(self) -> None:
        """Let the home forget what was staged; if it cannot be told, it forgets by itself later."""
        client = self._client
        client.forget([raw_id for raw_id, _, _ in self._unanswered])
        self._unanswered.clear()
        batch, task, attempt = self._place
        try:
            client.drop(self._sink.name, self._sink.run, batch, [(task, attempt)])
        except ChappeError as error:
            logger.warning("%s", error)

    @property
    def _client(self) -> StoreClient:
        return client_of(self.home.endpoint)

    def _send(self, stage: Stage, raw: bytes) -> None:
        self._unanswered.append((self._client.send(stage, raw), stage, raw))

    def _settle_oldest(self) -> None:
        try:
            self._client.receive(self._unanswered[0][0])
        except TimedOut:
            self._send_again()
        else:
            self._unanswered.popleft()

    def _send_again(self) -> None:
        self.home = found_again(self._stores, self.home, self._sink.name)
        again, self._unanswered = self._unanswered, deque()
        for _, stage, raw in again:
            self._send(stage, raw)
