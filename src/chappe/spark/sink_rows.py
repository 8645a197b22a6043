"""Rows of one task on their way to the sink's home, where they wait, visible to nobody, for the commit.

Several pieces are under way at once. A home that falls silent is looked for, and gets again what it has not
acknowledged; to stage a piece twice is to stage it once. Then the driver makes what the tasks have staged visible in
one step, or lets it be forgotten.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import WriterCommitMessage

from chappe.data.topic import encode_topic
from chappe.errors import ChappeError, ProtocolError, TimedOut
from chappe.log.exactly_once.transactions import sink_address
from chappe.log.queries import Stage
from chappe.spark.encode import Piece
from chappe.spark.home import FIND_S, Home, Sink, Stores, client_of, found_again
from chappe.transports.queries import StoreClient

logger = logging.getLogger(__name__)

UNANSWERED_MAX: Final = 8  # pieces under way
POLL_S: Final = 0.02  # between two questions how far the other stores are, doubled up to ...
POLL_MAX_S: Final = 0.5
_BEHIND_ALL: Final = (1 << 63) - 1  # no record has this offset


class Staging:
    """Stages the pieces of one attempt of one task, in order.

    Every method raises TimedOut if the home stays away, Fenced if another run took over, StorageFull. If the home moves
    it is looked for among the stores. ``attempt`` is unique among all attempts of the run.
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


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What one attempt of a task has staged."""

    sink: Sink
    home: Home
    batch: int
    task: int
    attempt: int
    pieces: int
    rows: int
    topics: tuple[str, ...]


def commit(stores: Stores, staged: Sequence[Staged], min_acks: int) -> None:
    """Make one batch visible; a batch that was committed before stays as it is.

    Raises:
        StagedRowsMissing: The home lost rows in a crash; the batch must be run again.
        TimedOut: The home stays away, or too few stores have the batch. It may be committed: run it again.
        Fenced: Another run took over.
    """
    if not staged:
        return
    first = staged[0]
    if any(each.home.store_id != first.home.store_id for each in staged):
        raise ChappeError("tasks chose different stores for this query's commits; run it again")
    attempts = [(each.task, each.attempt, each.pieces, each.rows) for each in staged]
    home = first.home
    while True:
        try:
            client_of(home.endpoint).commit(first.sink.name, first.sink.run, first.batch, attempts)
            break
        except TimedOut as error:
            # it may be busy with this very commit: as long as it answers to anything, it is asked again
            logger.warning("%s", error)
            home = found_again(stores, home, first.sink.name)
    if min_acks > 1:
        _await_copies(stores, home, first.sink.name, {topic for each in staged for topic in each.topics}, min_acks)


def abort(staged: Iterable[Staged]) -> None:
    """Let the home forget what was staged; if it cannot be told, it forgets by itself later."""
    for each in staged:
        client = StoreClient(each.home.endpoint, FIND_S)
        try:
            client.drop(each.sink.name, each.sink.run, each.batch, [(each.task, each.attempt)])
        except ChappeError as error:
            logger.warning("%s", error)
            return
        finally:
            client.close()


def _await_copies(stores: Stores, home: Home, sink: str, topics: Iterable[str], min_acks: int) -> None:
    """Wait until so many stores, the home among them, have all of the sink's records."""
    heads = _heads(home.endpoint, [(topic, sink_address(sink, topic)) for topic in topics])
    deadline = time.monotonic() + stores.patience_s
    pause_s = POLL_S
    while True:
        holding = 1 + sum(_has(endpoint, heads) for endpoint in stores.endpoints if endpoint != home.endpoint)
        if holding >= min_acks:
            return
        if time.monotonic() >= deadline:
            raise TimedOut(
                f"the batch is committed, but only {holding} of {min_acks} stores have it; start the others and run "
                "again, which repeats nothing"
            )
        time.sleep(pause_s)
        if pause_s == POLL_MAX_S:
            stores = stores.looked_up()
        pause_s = min(pause_s * 2, POLL_MAX_S)


def _heads(endpoint: str, partitions: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """How far a store has each partition: asked for what is behind every end, it only tells the end."""
    client = client_of(endpoint)
    return {(topic, name): client.read(topic, name, _BEHIND_ALL, 1)[0].next for topic, name in partitions}


def _has(endpoint: str, heads: dict[tuple[str, str], int]) -> bool:
    try:
        found = _heads(endpoint, heads)
    except (TimedOut, ProtocolError) as error:
        logger.warning("%s", error)
        return False
    return all(found[key] >= head for key, head in heads.items())
