"""Clients of Confluent's Schema Registry at our server: their records are ours, and ours theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chappe import Schemas

pytestmark = pytest.mark.interop
pytest.importorskip("fastavro")
pytest.importorskip("jsonschema")
theirs: Any = pytest.importorskip("confluent_kafka.schema_registry")
serialization: Any = pytest.importorskip("confluent_kafka.serialization")

ONE = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
OTHER = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}'
OBJECT = {"title": "R", "type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    from chappe.web.schemas import SchemaServer

    with SchemaServer(tmp_path, port=0) as server:
        yield server.url


def _context(topic: str) -> Any:
    return serialization.SerializationContext(topic, serialization.MessageField.VALUE)


def test_their_client_asks_our_server(url: str) -> None:
    client = theirs.SchemaRegistryClient({"url": url})
    one, other = theirs.Schema(ONE, "AVRO"), theirs.Schema(OTHER, "AVRO")
    assert client.register_schema("r", one) == client.lookup_schema("r", one).schema_id == 1
    assert (client.get_subjects(), client.get_versions("r")) == (["r"], [1])
    assert client.get_latest_version("r").version == client.get_version("r", 1).version == 1
    assert json.loads(client.get_schema(1).schema_str) == json.loads(ONE)
    assert (client.test_compatibility("r", one), client.test_compatibility("r", other)) == (True, False)
    calls: Any = (
        (lambda: client.register_schema("r", other), 409, 409),
        (lambda: client.get_schema(7), 404, 40403),
        (lambda: client.get_latest_version("q"), 404, 40401),
        (lambda: client.register_schema("q", theirs.Schema("{", "AVRO")), 422, 42201),
        (lambda: client.get_compatibility("q"), 404, 40408),
    )
    for call, status, number in calls:
        with pytest.raises(theirs.SchemaRegistryError) as found:
            call()
        assert (found.value.http_status_code, found.value.error_code) == (status, number)
    client.set_compatibility("r", "NONE")
    assert (client.get_compatibility(), client.get_compatibility("r")) == ("BACKWARD", "NONE")
    assert client.register_schema("r", other) == 2
    assert client.delete_version("r", 1) == 1
    assert client.delete_subject("r") == [2]
    assert client.delete_subject("r", permanent=True) == [1, 2]


def test_avro_both_ways(url: str) -> None:
    avro: Any = pytest.importorskip("confluent_kafka.schema_registry.avro")
    client, ours = theirs.SchemaRegistryClient({"url": url}), Schemas(url)
    raw = avro.AvroSerializer(client, ONE)({"a": 5}, _context("r"))
    assert ours.codec().decode(raw) == {"a": 5}
    assert ours.codec("r-value").encode({"a": 5}) == raw
    assert avro.AvroDeserializer(client)(raw, _context("r")) == {"a": 5}


def test_json_both_ways(url: str) -> None:
    found: Any = pytest.importorskip("confluent_kafka.schema_registry.json_schema")
    client, ours = theirs.SchemaRegistryClient({"url": url}), Schemas(url)
    raw = found.JSONSerializer(json.dumps(OBJECT), client)({"a": 5}, _context("r"))
    assert ours.codec().decode(raw) == {"a": 5}
    written = ours.codec("r-value").encode({"a": 6})
    assert found.JSONDeserializer(None, schema_registry_client=client)(written, _context("r")) == {"a": 6}


def test_protobuf_both_ways(url: str) -> None:
    found: Any = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
    stamps: Any = pytest.importorskip("google.protobuf.timestamp_pb2")
    client, ours = theirs.SchemaRegistryClient({"url": url}), Schemas(url)
    value, options = stamps.Timestamp(seconds=5), {"use.deprecated.format": False}
    raw = found.ProtobufSerializer(stamps.Timestamp, client, options)(value, _context("r"))
    assert ours.codec().decode(raw).seconds == 5
    assert ours.codec("r-value").encode(value) == raw
    assert found.ProtobufDeserializer(stamps.Timestamp, options)(raw, _context("r")) == value
