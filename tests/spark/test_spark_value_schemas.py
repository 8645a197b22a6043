"""Values with a schema as a typed column."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.spark.fake_store import FakeStore
from tests.waiting import SPARK_S

from chappe import Schemas
from chappe.errors import UsageError

pytest.importorskip("pyspark")
pytest.importorskip("fastavro")
pytest.importorskip("jsonschema")

import pyarrow as pa

from chappe.schemas.registry import Kind, Schema
from chappe.spark.options import Options
from chappe.spark.value_schemas import ValueSchema, decode_values, type_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READING: Any = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "room", "type": "string"}, {"name": "celsius", "type": ["null", "double"], "default": None}],
}
NEWER: Any = {**READING, "fields": [*READING["fields"], {"name": "note", "type": "string", "default": ""}]}
WIDE: Any = {
    "type": "record",
    "name": "Wide",
    "fields": [
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": ["int", "long"]}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a"]}},
        {"name": "inner", "type": READING},
        {"name": "again", "type": "Reading"},
    ],
}
VALUE: Any = {
    "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, tzinfo=UTC),
    "price": Decimal("1.50"),
    "id": UUID(int=5),
    "tags": ["x"],
    "more": {"a": 1},
    "kind": "a",
    "inner": {"room": "a", "celsius": None},
    "again": {"room": "b", "celsius": 1.0},
}
OBJECT: Any = {
    "type": "object",
    "properties": {"a": {"type": ["integer", "null"]}, "b": {"type": "array", "items": {"$ref": "#/$defs/s"}}},
    "$defs": {"s": {"enum": ["x", "y"]}},
}


@pytest.fixture
def schemas(tmp_path: Path) -> Iterator[Schemas]:
    from chappe.web.schemas import SchemaServer

    with SchemaServer(tmp_path / "schemas", port=0) as server:
        yield Schemas(server.url)


@pytest.mark.parametrize(
    ("kind", "schema", "type_"),
    [
        ("AVRO", READING, "struct<room:string,celsius:double>"),
        (
            "AVRO",
            WIDE,
            "struct<day:date,at:timestamp,price:decimal(9,2),id:string,tags:array<string>,more:map<string,bigint>,"
            "kind:string,inner:struct<room:string,celsius:double>,again:struct<room:string,celsius:double>>",
        ),
        ("AVRO", "bytes", "binary"),
        ("JSON", OBJECT, "struct<a:bigint,b:array<string>>"),
        ("JSON", {"type": "object", "additionalProperties": {"type": "number"}}, "map<string,double>"),
    ],
)
def test_types(kind: Kind, schema: Any, type_: str) -> None:
    assert type_of(Schema(1, kind, json.dumps(schema))).simpleString() == type_


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        ("AVRO", ["int", "string"]),
        ("AVRO", {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}),
        ("AVRO", {"type": "long", "logicalType": "time-micros"}),
        ("JSON", {}),
        ("JSON", {"type": ["integer", "string"]}),
        ("JSON", {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}),
        ("PROTOBUF", ""),
    ],
)
def test_a_schema_without_a_column_is_refused(kind: Kind, schema: Any) -> None:
    with pytest.raises(UsageError):
        type_of(Schema(1, kind, json.dumps(schema)))


def test_values_become_a_column_and_bad_ones_null(schemas: Schemas) -> None:
    schemas.add("t-value", json.dumps(WIDE))
    raw = schemas.codec("t-value").encode(VALUE)
    subject = ValueSchema("t-value", schemas.url)
    batch = pa.record_batch({"offset": [0, 1, 2, 3], "value": pa.array([raw, None, b"garbage", raw[:-3]])})
    (found,) = decode_values(iter([batch]), subject, subject.type())
    assert found.column("offset").to_pylist() == [0, 1, 2, 3]
    value, *bad = found.column("value").to_pylist()
    assert bad == [None] * 3
    assert value | {"id": UUID(value["id"]), "more": dict(value["more"])} == VALUE


def test_options() -> None:
    given = {"stores": "tcp://127.0.0.1:1", "subscribe": "t"}
    assert Options.parse(given).value is None
    assert Options.parse({**given, "valueFormat": "schema"}).value == ValueSchema("t-value")
    assert Options.parse({**given, "valueFormat": "schema", "subject": "s", "subscribe": "a,b"}).value == ValueSchema(
        "s"
    )
    for wrong in ({"valueFormat": "avro"}, {"subject": "s"}, {"valueFormat": "schema", "subscribe": "a,b"}):
        with pytest.raises(UsageError, match=r"valueFormat|subject"):
            Options.parse(given | wrong)


@pytest.mark.spark
def test_a_topic_with_a_schema_has_columns(
    spark: SparkSession, store: FakeStore, schemas: Schemas, tmp_path: Path
) -> None:
    schemas.add("t-value", json.dumps(READING))
    old = schemas.codec("t-value").encode({"room": "a", "celsius": 20.5})
    store.put("t", "p", [old, b"garbage", None])
    options = {"stores": store.endpoint, "subscribe": "t", "valueFormat": "schema", "schemas": schemas.url}
    frame = spark.read.format("chappe").options(**options).load()
    assert frame.schema["value"].dataType.simpleString() == "struct<room:string,celsius:double>"
    schemas.add("t-value", json.dumps(NEWER))
    store.put("t", "p", [schemas.codec("t-value").encode({"room": "b", "celsius": None, "note": "new"})])
    assert [tuple(row) for row in frame.select("value.room", "value.celsius").orderBy("offset").collect()] == [
        ("a", 20.5),
        (None, None),
        (None, None),
        ("b", None),
    ]
    stream = spark.readStream.format("chappe").options(**options, startingOffsets="earliest").load()
    query = stream.select("value.*").writeStream.format("memory").queryName("values_with_schema")
    query.trigger(availableNow=True).start().awaitTermination(SPARK_S)
    assert spark.table("values_with_schema").where("note = 'new'").first() == ("b", None, "new")


@pytest.mark.spark
def test_a_pipeline_reads_values_with_a_schema(
    spark: SparkSession, store: FakeStore, schemas: Schemas, tmp_path: Path
) -> None:
    from chappe.spark.pipeline.frames import prepare
    from chappe.spark.pipeline.model import PipelineInvalid
    from chappe.spark.pipeline.reading import read_pipeline

    schemas.add("t-value", json.dumps(READING))
    store.put("t", "p", [b"garbage"])
    text = f"""
stores = "{store.endpoint}"
sql = "SELECT room, celsius, offset FROM t WHERE celsius > 30"
[inputs.t]
topic = "t"
options = {{ valueFormat = "schema", schemas = "{schemas.url}" }}
SCHEMA
[output]
kind = "console"
"""
    file = tmp_path / "warm.toml"
    file.write_text(text.replace("SCHEMA", ""))
    (query,) = prepare(spark, read_pipeline(file), "")
    assert query.rows.schema.simpleString() == "struct<room:string,celsius:double,offset:bigint>"
    file.write_text(text.replace("SCHEMA", 'schema = "room STRING"'))
    with pytest.raises(PipelineInvalid, match="leave one out"):
        prepare(spark, read_pipeline(file), "")
