"""The promise of exactly-once sinks."""

from __future__ import annotations

from collections import Counter

from tests.worlds.log.sinks import Query
from tests.worlds.log.subjects import StoreSubject
from tests.worlds.log.world import WatchedLog

from chappe.log.batch import Batch
from chappe.log.sources import Key
from chappe.sim.world import Checker


class ExactlyOnce(Checker[WatchedLog]):
    """Every row of a committed batch is in its topic once, at every store, and nothing of other attempts."""

    name = "exactly once"

    def __init__(self, world: WatchedLog, queries: list[Query]) -> None:
        super().__init__(world)
        self.queries = queries

    def on_tick(self) -> None:
        """Look at the homes: between two steps of a store no batch may be visible in part."""
        for query in self.queries:
            if any(store.disk is query.home for store in self.world.alive(StoreSubject)):
                self._whole_batches(query)

    def _whole_batches(self, query: Query) -> None:
        for batch, intent in query.intents.items():
            seen = set()
            for topic, partition, first, end in intent.ranges:
                part = query.home.parts.get((topic, partition))
                at = 0 if part is None or not part.version else part.next
                if first < at < end:
                    self.fail(
                        f"of batch {batch} of {query.sink} in {topic!r}, {first}..{end - 1}, {at - first} are seen"
                    )
                seen.add(at >= end)
            if len(seen) > 1:
                self.fail(f"batch {batch} of {query.sink} is seen in one topic and not in another")

    def unsettled(self) -> str | None:
        """Everything planned is committed, nothing stays staged, and every store has each row once."""
        for query in self.queries:
            if query.over:
                continue
            if not query.done:
                return f"{query.sink} has committed batch {query.committed}, {query.goal - 1} is the last"
            left = [key for key in query.home.staged.rows if key.sink == query.sink]
            if left or query.sink in query.home.staged.intents:
                return f"rows of {query.sink} are still staged: {left}"
            self._rows(query)
        return None

    def _rows(self, query: Query) -> None:
        planned = [row for batch in query.planned[: query.committed + 1] for row in batch]
        for topic in {topic for topic, _ in planned}:
            wanted = Counter(value for name, value in planned if name == topic)
            found: Counter[bytes] = Counter()
            for key in query.partitions():
                if key[0] == topic:
                    found += Counter(value.partition(b"@")[0] for value in self._truth(key))
            if found != wanted:
                self.fail(f"{query.sink} in {topic!r}: too many {found - wanted}, too few {wanted - found}")

    def _truth(self, key: Key) -> list[bytes]:
        """What was decided for a partition; every store's records are compared with it, one by one."""
        decided = [value or b"" for value, _ in self.world.truth.of(key).records]
        for store in self.world.alive(StoreSubject):
            part = store.disk.parts.get(key)
            for block in part.blocks if part is not None else ():
                values = Batch.parse(block.body, check=False).values()
                if values != decided[block.base : block.next]:
                    self.fail(f"{store.name} has {key} {block.base}..{block.next - 1} otherwise than committed")
        return decided
