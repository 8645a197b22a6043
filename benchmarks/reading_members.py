"""Readers of whole topics and of Parquet: ``python -m benchmarks.reading_members ROLE OPTIONS``; see ``link``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.link import LIST_RECORDS, RECORD_BYTES, Meter, orders, say, tether
from benchmarks.members import TOPIC
from chappe import Producer, read_topic

MEMBERS = "benchmarks.reading_members"
Options = dict[str, Any]


def writer(options: Options) -> None:
    """Order ``count``: produce so many records, of bytes that nobody can compress or share, until they are stored."""
    with Producer(TOPIC, tower=options["tower"], min_acks=1) as found:
        say(ready=True)
        for order in orders():
            for begin in range(0, order["count"], LIST_RECORDS):
                count = min(LIST_RECORDS, order["count"] - begin)
                raw = os.urandom(count * RECORD_BYTES)
                found.send_many([raw[at : at + RECORD_BYTES] for at in range(0, len(raw), RECORD_BYTES)])
            found.flush(60)
            say(sent=True)


def topic_reader(options: Options) -> None:
    """Order ``columns``: read them of all that a store has, and write them to the file ``parquet`` if one is named."""
    say(ready=True)
    for order in orders():
        meter = Meter()
        table: pa.Table = read_topic(TOPIC, stores=options["store"], columns=order["columns"])
        facts = meter.facts()
        if "parquet" in order:
            pq.write_table(table, order["parquet"], compression=order["compression"])
        say(records=table.num_rows, **facts)


def parquet_reader(options: Options) -> None:
    """Order ``columns`` and ``threads``: read them from the file ``parquet``, with many threads or with one."""
    say(ready=True)
    for order in orders():
        meter = Meter()
        table = pq.read_table(options["parquet"], columns=order["columns"], use_threads=order["threads"])
        facts = meter.facts()
        say(records=table.num_rows, **facts)


ROLES: dict[str, Callable[[Options], None]] = {each.__name__: each for each in (writer, topic_reader, parquet_reader)}

if __name__ == "__main__":
    tether()
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
