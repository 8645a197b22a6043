"""A sink as a test drives it: stages rows at its home over the query socket, and commits them."""

from __future__ import annotations

from collections.abc import Sequence

from chappe.data.topic import encode_topic
from chappe.log.batch import encode_batch
from chappe.log.queries import CommitAnswer, SinkAnswer, Stage
from chappe.transports.queries import StoreClient

WALL = 1_700_000_000_000_000
Attempt = tuple[int, int, int, int]


class TestSink:
    """One run of a sink."""

    __test__ = False

    def __init__(self, client: StoreClient, home: str, sink: str = "query", run: str = "run") -> None:
        self.client = client
        self.sink = sink
        self.run = run
        self.home = home

    def attach(self, lasting: bool = True) -> SinkAnswer:
        return self.client.attach_sink(self.sink, self.run, self.home, lasting)

    def stage(
        self, batch: int, task: int, pieces: Sequence[tuple[str, Sequence[bytes | None]]], attempt: int = 0
    ) -> Attempt:
        """Stage pieces, each a topic and its values; returns what a commit names."""
        asked = []
        for number, (topic, values) in enumerate(pieces):
            stage = Stage(self.sink, self.run, batch, task, attempt, number, encode_topic(topic))
            asked.append(self.client.send(stage, encode_batch(0, values, WALL)))
        for raw_id in asked:
            self.client.receive(raw_id)
        return (task, attempt, len(pieces), sum(len(values) for _, values in pieces))

    def commit(self, batch: int, attempts: Sequence[Attempt]) -> CommitAnswer:
        return self.client.commit(self.sink, self.run, batch, attempts)
