"""``SinkDatabase``: what a store remembers of sinks, and the commits that it has decided on, in SQLite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from chappe.data.topic import decode_topic, encode_topic
from chappe.log.exactly_once.staged import Intent, SinkState
from chappe.storage.small_database import SmallDatabase
from chappe.system import time

_Plan = tuple[str, int, list[tuple[int, int, int]], list[tuple[bytes, str, int, int]]]  # an intent as it is kept


class SinkDatabase(SmallDatabase):
    """The database in a folder; it is made with the folder when the first sink is remembered."""

    NAME = "sinks.sqlite"
    FORMAT = 1
    SCHEMA = """
CREATE TABLE sinks (sink TEXT PRIMARY KEY, home TEXT, run TEXT, batch INTEGER, lasting INTEGER, touched_us INTEGER);
CREATE TABLE fenced (sink TEXT, place INTEGER, run TEXT, PRIMARY KEY (sink, place));
CREATE TABLE ends (sink TEXT, topic BLOB, next INTEGER, PRIMARY KEY (sink, topic));
CREATE TABLE intents (sink TEXT PRIMARY KEY, plan BLOB);
"""

    def states(self) -> list[SinkState]:
        if self._database is None:
            return []
        now_us = time.time_ns() // 1000
        fenced: defaultdict[str, list[str]] = defaultdict(list)
        ends: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for sink, run in self._query("SELECT sink, run FROM fenced ORDER BY sink, place"):
            fenced[sink].append(run)
        for sink, topic, next_ in self._query("SELECT sink, topic, next FROM ends ORDER BY sink, topic"):
            ends[sink].append((decode_topic(topic), next_))
        return [
            SinkState(sink, home, run, tuple(fenced[sink]), batch, bool(lasting), tuple(ends[sink]), age_us / 1_000_000)
            for sink, home, run, batch, lasting, age_us in self._query(
                "SELECT sink, home, run, batch, lasting, max(0, ? - touched_us) FROM sinks ORDER BY sink", now_us
            )
        ]

    def remember(self, state: SinkState) -> None:
        """Make the state of a sink durable, except its batch and ends."""
        values = (state.sink, state.home, state.run, -1, state.lasting, time.time_ns() // 1000)
        self._execute(
            "remember a sink",
            [
                (
                    "INSERT INTO sinks VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (sink) DO UPDATE SET "
                    "home = excluded.home, run = excluded.run, lasting = excluded.lasting, "
                    "touched_us = excluded.touched_us",
                    values,
                ),
                ("DELETE FROM fenced WHERE sink = ?", (state.sink,)),
                *(
                    ("INSERT INTO fenced VALUES (?, ?, ?)", (state.sink, place, run))
                    for place, run in enumerate(state.fenced)
                ),
            ],
        )

    def forget(self, sinks: Sequence[str]) -> None:
        tables = ("sinks", "fenced", "ends", "intents")
        self._execute(
            "forget sinks", [(f"DELETE FROM {table} WHERE sink = ?", (sink,)) for sink in sinks for table in tables]
        )

    def intend(self, intent: Intent) -> None:
        ranges = [(encode_topic(topic), partition, first, end) for topic, partition, first, end in intent.ranges]
        plan: _Plan = intent.run, intent.batch, list(intent.attempts), ranges
        row = (intent.sink, msgspec.msgpack.encode(plan))
        self._execute("write what is committed", [("INSERT OR REPLACE INTO intents VALUES (?, ?)", row)])

    def take_back(self, sink: str) -> None:
        self._execute("take a commit back", [("DELETE FROM intents WHERE sink = ?", (sink,))])

    def intents(self) -> list[Intent]:
        if self._database is None:
            return []
        found: list[Intent] = []
        for sink, raw in self._query("SELECT sink, plan FROM intents ORDER BY sink"):
            run, batch, attempts, raw_ranges = msgspec.msgpack.decode(raw, type=_Plan)
            ranges = tuple((decode_topic(topic), partition, first, end) for topic, partition, first, end in raw_ranges)
            found.append(Intent(sink, run, batch, tuple(attempts), ranges))
        return found

    def complete(self, intent: Intent) -> None:
        now_us = time.time_ns() // 1000
        self._execute(
            "write what is committed",
            [
                ("UPDATE sinks SET batch = ?, touched_us = ? WHERE sink = ?", (intent.batch, now_us, intent.sink)),
                *(
                    ("INSERT OR REPLACE INTO ends VALUES (?, ?, ?)", (intent.sink, encode_topic(topic), end))
                    for topic, _, _, end in intent.ranges
                ),
                ("DELETE FROM intents WHERE sink = ?", (intent.sink,)),
            ],
        )
