"""The server of schemas: ids, versions, compatibility, its interface, and what it refuses."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastavro")
pytest.importorskip("jsonschema")

from chappe import Schemas
from chappe.errors import (
    BadSchema,
    BadValue,
    IncompatibleSchema,
    NotPermitted,
    SchemasUnavailable,
    StorageFormat,
    StorageLocked,
    UnknownSchema,
    UsageError,
)
from chappe.schemas import registry
from chappe.schemas.codec import decoded
from chappe.web.schemas import SchemaServer

ONE = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
TWO = ONE.replace("]}", ', {"name": "b", "type": "int", "default": 0}]}')
OTHER = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}'
OBJECT = '{"type": "object", "properties": {"a": {"type": "integer"}}}'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SchemaServer]:
    with SchemaServer(tmp_path, port=0) as made:
        yield made


@pytest.fixture
def schemas(server: SchemaServer) -> Schemas:
    return Schemas(server.url)


def test_a_schema_has_one_id_and_a_subject_has_versions(schemas: Schemas) -> None:
    assert schemas.add("r", ONE) == schemas.add("r", ONE.replace(" ", "")) == schemas.add("q", ONE) == 1
    assert schemas.add("r", TWO) == 2
    assert (schemas.subjects(), schemas.subjects("r"), schemas.versions("r")) == (["q", "r"], ["r"], [1, 2])
    assert schemas.version("r").schema == schemas.schema(2)
    assert json.loads(schemas.version("r", 1).schema.text) == json.loads(ONE)


def test_a_subject_is_named_as_its_topic(server: SchemaServer, schemas: Schemas) -> None:
    for subject in ("zeek/a b-value", "a/versions-value", "ü%2F?#-value"):
        id = schemas.add(subject, ONE)
        assert (schemas.versions(subject), schemas.version(subject).schema.id) == ([1], id)
        assert (schemas.check(subject, OTHER) != [], schemas.compatibility(subject)) == (True, "BACKWARD")
    assert len(schemas.subjects()) == 3
    assert schemas.delete("zeek/a b-value", 1) == [1]
    assert _ask(server, "GET", "/schemas/ids/1/schema") == (200, json.loads(ONE))
    assert _ask(server, "GET", "/subjects/a%2Fversions-value/versions/1/schema") == (200, json.loads(ONE))


def test_a_schema_that_is_not_compatible_is_refused(schemas: Schemas) -> None:
    assert schemas.check("r", OTHER) == []
    schemas.add("r", TWO)
    (problem,) = schemas.check("r", OTHER)
    with pytest.raises(IncompatibleSchema, match="BACKWARD") as found:
        schemas.add("r", OTHER)
    assert found.value.problems == (problem,)
    assert schemas.versions("r") == [1]
    with pytest.raises(IncompatibleSchema, match="version 1 is AVRO, and this is JSON"):
        schemas.add("r", OBJECT, "JSON")


@pytest.mark.parametrize(
    ("level", "old", "new", "fits"),
    [
        ("BACKWARD", '"int"', '"long"', True),
        ("BACKWARD", '"long"', '"int"', False),
        ("FORWARD", '"int"', '"long"', False),
        ("FORWARD", '"long"', '"int"', True),
        ("FULL", '"int"', '"long"', False),
        ("FULL", '"string"', '"bytes"', True),
        ("NONE", '"int"', '"string"', True),
    ],
)
def test_levels(schemas: Schemas, level: str, old: str, new: str, *, fits: bool) -> None:
    schemas.set_compatibility(level)
    schemas.add("r", old)
    assert (schemas.check("r", new) == []) is fits


def test_transitive_levels_look_at_all_versions(schemas: Schemas) -> None:
    schemas.set_compatibility("NONE", "r")
    schemas.add("r", '"string"')
    schemas.add("r", '"int"')
    schemas.set_compatibility("BACKWARD", "r")
    assert (schemas.compatibility("r"), schemas.compatibility()) == ("BACKWARD", "BACKWARD")
    assert schemas.check("r", '"long"') == []
    schemas.set_compatibility("BACKWARD_TRANSITIVE", "r")
    assert schemas.check("r", '"long"') == ["it cannot read version 1: the value: string cannot be read as long"]
    with pytest.raises(BadSchema, match="a compatibility is"):
        schemas.set_compatibility("SOME")


def test_what_is_deleted_stays_readable(schemas: Schemas) -> None:
    schemas.add("r", ONE)
    raw = schemas.codec("r").encode({"a": 1})
    assert schemas.delete("r") == [1]
    assert schemas.subjects() == []
    with pytest.raises(UnknownSchema):
        schemas.version("r")
    assert Schemas(schemas.url).codec().decode(raw) == {"a": 1}
    assert schemas.add("r", TWO) == 2
    assert schemas.versions("r") == [2]
    with pytest.raises(UnknownSchema):
        schemas.delete("r", 2, permanent=True)
    assert schemas.delete("r", 1, permanent=True) == [1]


def test_ids_outlive_the_server_and_are_not_given_again(tmp_path: Path) -> None:
    with SchemaServer(tmp_path, port=0) as server:
        assert Schemas(server.url).add("r", ONE) == 1
        Schemas(server.url).delete("r")
        Schemas(server.url).delete("r", permanent=True)
    with SchemaServer(tmp_path, port=0) as server:
        assert Schemas(server.url).add("q", OTHER) == 2
        assert Schemas(server.url).add("r", ONE) == 1


def test_two_who_add_at_once_get_one_order(schemas: Schemas) -> None:
    texts = [json.dumps({"type": "fixed", "name": "F", "size": size}) for size in range(20)]
    found: list[dict[str, int]] = [{}, {}]
    start = threading.Barrier(2)

    def add(into: dict[str, int], mine: list[str]) -> None:
        start.wait()
        for each in mine:
            into[each] = schemas.add(each, each)

    schemas.set_compatibility("NONE")
    with pytest.raises(BadSchema):
        schemas.add("x" * 301, ONE)
    texts = [each[:300] for each in texts]
    threads = [threading.Thread(target=add, args=each) for each in zip(found, (texts, texts[::-1]), strict=True)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found[0] == found[1]
    assert sorted(found[0].values()) == list(range(1, 21))


def test_a_record_names_its_schema(schemas: Schemas) -> None:
    schemas.add("r", ONE)
    raw = schemas.codec("r").encode({"a": 1})
    assert raw == b"\0\0\0\0\1\2"
    schemas.add("r", TWO)
    assert schemas.codec("r").decode(raw) == {"a": 1, "b": 0}
    assert schemas.codec("r", 1).decode(schemas.codec("r", 2).encode({"a": 1, "b": 5})) == {"a": 1}
    schemas.add("j", OBJECT, "JSON")
    codec = schemas.codec("j")
    assert codec.encode({"a": 1}) == b'\0\0\0\0\3{"a":1}'
    for wrong in ({"a": "x"}, {"a": float("nan")}):
        with pytest.raises(ValueError, match=r"\$\.a|NaN"):
            codec.encode(wrong)
    for bad in (b"", b"\0\0\0\0", b'\0\0\0\0\3{"a":"x"}', b"\1\0\0\0\1\2", b"\0\0\0\0\1", b"\0\0\0\0\x09\2"):
        with pytest.raises(BadValue):
            decoded(schemas.codec(), bad, "t", "P", 0)
    with pytest.raises(UsageError, match="names the subject"):
        schemas.codec().encode(1)


def test_protobuf_records_name_their_message(schemas: Schemas) -> None:
    import base64

    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="p", syntax="proto3")
    for name in ("A", "B"):
        message = file.message_type.add(name=name)
        message.field.add(name="x", number=1, type=5, label=1)
    file.message_type[1].nested_type.add(name="C").field.add(name="y", number=1, type=9, label=1)
    schemas.add("p", base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF")
    codec = schemas.codec("p")
    assert codec.encode({"x": 3}) == b"\0\0\0\0\1\0\x08\3"
    inner = codec.decode(b"\0\0\0\0\1\4\2\0\x0a\1z")  # the first message within the second one
    assert (inner.DESCRIPTOR.full_name, inner.y) == ("p.B.C", "z")
    assert codec.encode(inner) == b"\0\0\0\0\1\4\2\0\x0a\1z"
    for bad in (b"\0\0\0\0\1", b"\0\0\0\0\1\1", b"\0\0\0\0\1\2\x12", b"\0\0\0\0\1\xff\xff\xff\xff\xff\xff\1"):
        with pytest.raises(BadValue):
            decoded(codec, bad, "t", "P", 0)


def test_bounds(schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SCHEMA_VERSIONS_MAX", 2)
    monkeypatch.setattr(registry, "SCHEMAS_MAX", 3)
    for subject, text in (("a", '"int"'), ("a", '"long"'), ("b", '"int"')):
        schemas.add(subject, text)
    with pytest.raises(BadSchema, match="a subject has 2 versions at most"):
        schemas.add("a", '"double"')
    with pytest.raises(BadSchema, match="3 versions at most"):
        schemas.add("c", '"int"')
    for text in ('"' + "x" * 300_000 + '"', "[" * 70 + "]" * 70, "nonsense"):
        with pytest.raises(BadSchema):
            schemas.add("d", text)


def _ask(server: SchemaServer, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    try:
        return answer.status, json.loads(raw)
    except ValueError:
        return answer.status, raw


def test_a_page_of_the_web_changes_nothing(server: SchemaServer) -> None:
    body = json.dumps({"schema": ONE}).encode()
    assert _ask(server, "POST", "/subjects/r/versions", body, Content_Type="text/plain")[0] == 415
    assert _ask(server, "POST", "/subjects/r/versions", body)[0] == 415
    assert _ask(server, "GET", "/subjects", Host="evil.example")[0] == 401
    assert _ask(server, "POST", "/subjects/r/versions", body, Content_Type="application/json")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/schemas/ids/7", None, 404),
        ("GET", "/schemas/ids/99999999999999999999", None, 422),
        ("GET", "/subjects/r/versions/0", None, 422),
        ("GET", "/subjects/r/versions/latest", None, 404),
        ("GET", "/config/r", None, 404),
        ("GET", "/nothing", None, 404),
        ("PATCH", "/subjects", None, 405),
        ("POST", "/subjects/r/versions", b"{", 422),
        ("POST", "/subjects/r/versions", b"[" * 100_000, 422),
        ("POST", "/subjects/r/versions", b'{"schema": 5}', 422),
        ("POST", "/subjects/r/versions", b"{}", 422),
        ("POST", "/subjects/r/versions", b'{"schema": "5", "schemaType": "XML"}', 422),
        ("POST", "/subjects/r/versions", b'{"schema": "5", "references": [{}]}', 422),
        ("POST", "/subjects/r/versions", b" " * 2_000_000, 413),
        ("PUT", "/config", b'{"compatibility": "SOME"}', 422),
    ],
)
def test_what_is_wrong_is_answered(
    server: SchemaServer, method: str, path: str, body: bytes | None, status: int
) -> None:
    found, answer = _ask(server, method, path, body, Content_Type="application/json")
    assert found == status
    if status not in (405,) and path != "/nothing":
        assert isinstance(answer["message"], str)
    assert _ask(server, "GET", "/subjects") == (200, [])


def test_one_server_has_a_directory(server: SchemaServer, tmp_path: Path) -> None:
    with pytest.raises(StorageLocked, match="another process serves the schemas"):
        SchemaServer(tmp_path, port=0)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    import sqlite3

    SchemaServer(tmp_path, port=0).close()
    with sqlite3.connect(tmp_path / "schemas.sqlite") as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(StorageFormat, match="format 99"):
        SchemaServer(tmp_path, port=0)


def test_who_does_not_answer_is_named(tmp_path: Path) -> None:
    with SchemaServer(tmp_path, port=0) as server:
        url = server.url
    with pytest.raises(SchemasUnavailable, match=f"{url} does not answer.*chappe schemas serve"):
        Schemas(url).subjects()
    for wrong in ("127.0.0.1:8081", "ftp://x", "http://", "http://x:99999"):
        with pytest.raises(UsageError, match="http://HOST"):
            Schemas(wrong)
    with pytest.raises(UsageError, match="not this machine"):
        SchemaServer(tmp_path, "0.0.0.0", 0)


def test_identities_read_and_administrators_change(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from chappe import Keys
    from chappe.api import permissions

    keys = tmp_path / "keys"
    permissions.init(keys, "hub", "server")
    for name, role in (("reader", "consumer"), ("boss", "administrator")):
        permissions.add(keys, name, role)
    with SchemaServer(tmp_path / "schemas", port=0, security=Keys(keys / "hub")) as server:
        assert server.url.startswith("https://")
        boss, reader = (Schemas(server.url, security=Keys(keys / name)) for name in ("boss", "reader"))
        assert boss.add("r", ONE) == 1
        assert reader.schema(1) == boss.schema(1)
        assert reader.check("r", OTHER) != []
        for call in (
            lambda: reader.add("r", TWO),
            lambda: reader.delete("r"),
            lambda: reader.set_compatibility("NONE"),
        ):
            with pytest.raises(NotPermitted, match="administer"):
                call()
        for stranger in (Schemas(server.url, security="plain"), Schemas(server.url.replace("https", "http"))):
            with pytest.raises(SchemasUnavailable):
                stranger.subjects()
