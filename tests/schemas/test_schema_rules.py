"""Which schema reads what another wrote: the rules, their bounds, and values of schemas within themselves."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import pytest

from chappe import Avro
from chappe.errors import BadSchema, BadValue
from chappe.schemas import avro, json_schema
from chappe.schemas.codec import decoded, encoded

fastavro = pytest.importorskip("fastavro")


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


A = field("a", "int")
B = field("b", "string", default="")
LIST = record(field("next", ["null", "R"]))
READS: Any = [  # what reads, what was written
    ("long", "int"),
    ("double", "long"),
    ("bytes", "string"),
    ("string", "bytes"),
    (["null", "int"], "int"),
    (["null", "long"], ["int", "null"]),
    (record(A, B), record(A)),
    (record(A), record(A, B)),
    (record(field("z", "int", aliases=["a"])), record(A)),
    (record(A, name="S", aliases=["R"]), record(A)),
    (record(A, namespace="new"), record(A, namespace="old")),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
    ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}),
    (enum("a", "b"), enum("a")),
    (enum("a", default="a"), enum("a", "b")),
    (LIST, LIST),
]
DOES_NOT_READ: Any = [
    ("int", "long"),
    ("float", "double"),
    ("int", "string"),
    ("int", ["null", "int"]),
    (["null", "string"], "int"),
    (record(A, field("b", "string")), record(A)),
    (record(field("a", "string")), record(A)),
    (record(A, name="S"), record(A)),
    (enum("a"), enum("a", "b")),
    ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}),
    (record(field("next", ["null", "R"]), field("b", "int")), LIST),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
    ),
]


@pytest.mark.parametrize(("reader", "writer"), READS)
def test_avro_reads(reader: Any, writer: Any) -> None:
    assert avro.problems(json.dumps(reader), json.dumps(writer)) == []


@pytest.mark.parametrize(("reader", "writer"), DOES_NOT_READ)
def test_avro_does_not_read(reader: Any, writer: Any) -> None:
    assert avro.problems(json.dumps(reader), json.dumps(writer)) != []


@pytest.mark.parametrize(
    ("reader", "writer", "value", "read"),
    [
        (record(A, B), record(A), {"a": 1}, {"a": 1, "b": ""}),
        (record(A), record(A, B), {"a": 1, "b": "x"}, {"a": 1}),
        (["null", "long"], ["int", "null"], 5, 5),
        (enum("a", default="a"), enum("a", "b"), "b", "a"),
        (record(field("z", "int", aliases=["a"])), record(A), {"a": 1}, {"z": 1}),
    ],
)
def test_fastavro_reads_what_the_rules_allow(reader: Any, writer: Any, value: Any, read: Any) -> None:
    codec = Avro(json.dumps(writer), json.dumps(reader))
    assert codec.decode(codec.encode(value)) == read


OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CLOSED = {**OBJECT, "additionalProperties": False}
TREE = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"of": {"$ref": "#/$defs/n"}}}}}


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (True, OBJECT),
        (OBJECT, OBJECT),
        ({"type": ["string", "null"]}, {"type": "string"}),
        ({"type": "number"}, {"type": "integer"}),
        ({"enum": ["a", "b"]}, {"const": "a"}),
        ({"type": "string", "maxLength": 9}, {"type": "string", "maxLength": 8}),
        (closed(a={"type": "number"}, b={"type": "string"}), closed(a={"type": "integer"})),
        ({"type": "array", "items": {"type": "number"}}, {"type": "array", "items": {"type": "integer"}}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"oneOf": [{"type": "null"}, {"type": "string"}]}),
        (TREE, TREE),
    ],
)
def test_json_schema_takes_all(reader: Any, writer: Any) -> None:
    assert json_schema.problems(json.dumps(reader), json.dumps(writer)) == []


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (False, OBJECT),
        ({"type": "string"}, True),
        ({"type": "integer"}, {"type": "number"}),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}),
        ({"enum": [1]}, {"enum": [True]}),
        ({"type": "string", "maxLength": 7}, {"type": "string", "maxLength": 8}),
        ({"type": "string", "pattern": "^a"}, {"type": "string"}),
        ({**OBJECT, "required": ["a", "b"]}, OBJECT),
        ({**OBJECT, "properties": {**OBJECT["properties"], "b": {"type": "string"}}}, OBJECT),  # type: ignore[dict-item]
        (CLOSED, OBJECT),
        (closed(a={"type": "integer"}), closed(a={"type": "integer"}, b={})),
        ({"anyOf": [{"type": "string"}]}, {"anyOf": [{"type": "null"}, {"type": "string"}]}),
        (TREE, {}),
        ({"$ref": "#/$defs/s", "minLength": 3, "$defs": {"s": {"type": "string"}}}, {"type": "string"}),
    ],
)
def test_json_schema_does_not_take_all(reader: Any, writer: Any) -> None:
    assert json_schema.problems(json.dumps(reader), json.dumps(writer)) != []


def test_a_ref_that_leads_out_is_not_followed() -> None:
    for ref in ("http://127.0.0.1:1/schema", "#/nowhere"):
        with pytest.raises(BadSchema, match="leads"):
            json_schema.problems(json.dumps({"$ref": ref}), "{}")
    pytest.importorskip("jsonschema")
    with pytest.raises(Exception, match="Unresolvable"):
        json_schema.checker(json.dumps({"$ref": "http://127.0.0.1:1/schema"}))({})


def _file(*fields: tuple[str, int, int], label: int = 1, name: str = "R", oneof: int = 0) -> str:
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="p", syntax="proto2")
    message = file.message_type.add(name=name)
    if oneof:
        message.oneof_decl.add(name="one")
    for at, (field_name, number, kind) in enumerate(fields):
        made = message.field.add(name=field_name, number=number, type=kind, label=label)
        if at < oneof:
            made.oneof_index = 0
    return base64.b64encode(file.SerializeToString()).decode()


INT32, INT64, STRING, BYTES, DOUBLE = 5, 3, 9, 12, 1
REQUIRED, REPEATED = 2, 3


@pytest.mark.parametrize(
    ("reader", "writer", "fits"),
    [
        (_file(("a", 1, INT32), ("b", 2, STRING)), _file(("a", 1, INT32)), True),
        (_file(), _file(("a", 1, INT32)), True),
        (_file(("z", 1, INT64)), _file(("a", 1, INT32)), True),
        (_file(("a", 1, BYTES)), _file(("a", 1, STRING)), True),
        (_file(("a", 1, STRING)), _file(("a", 1, INT32)), False),
        (_file(("a", 1, DOUBLE)), _file(("a", 1, INT64)), False),
        (_file(name="Other"), _file(), False),
        (_file(("a", 1, INT32), label=REQUIRED), _file(), False),
        (_file(("a", 1, INT32), label=REPEATED), _file(("a", 1, INT32)), False),
        (_file(("a", 1, INT32), ("b", 2, INT32), oneof=2), _file(("a", 1, INT32), ("b", 2, INT32)), False),
        (_file(("a", 1, INT32), ("b", 2, INT32), oneof=1), _file(("a", 1, INT32), ("b", 2, INT32)), True),
    ],
)
def test_protobuf_reads(reader: str, writer: str, *, fits: bool) -> None:
    from chappe.schemas import protobuf

    assert (protobuf.problems(reader, writer) == []) is fits


def test_a_protobuf_file_imports_googles_alone() -> None:
    from chappe.schemas import protobuf

    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    for name in ("os.proto", "google/protobuf/../../os.proto", "google/protobuf/pyext.proto"):
        file = descriptor_pb2.FileDescriptorProto(name="r.proto", dependency=[name])
        with pytest.raises(BadSchema, match="only files of google/protobuf"):
            protobuf.parse(base64.b64encode(file.SerializeToString()).decode())
    for text in ("message R {}", "", "////"):
        with pytest.raises(BadSchema):
            protobuf.parse(text) and protobuf.message_class(protobuf.parse(text), (0,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[" * 70 + "]" * 70,
        "[" * 200_000,
        '"' + "x" * 300_000 + '"',
        "5",
        "{}",
        '{"type": "foo"}',
        "\ud800",
    ],
)
def test_what_is_no_schema_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(BadSchema):
        avro.parse(text)


def test_a_comparison_has_an_end() -> None:
    """Each branch of one union is compared with each of the other."""
    one, other = ([{"type": "fixed", "name": f"{name}{at}", "size": 1} for at in range(400)] for name in "fg")
    with pytest.raises(BadSchema, match="too large to compare"):
        avro.problems(json.dumps(one), json.dumps(other))


def test_values_of_an_enum_are_not_compared_one_with_the_other() -> None:
    """As many as a schema may have would hold up everybody for seconds."""
    values = [f"s{at}" for at in range(1_000)]
    calls: list[str] = []
    sys.setprofile(lambda frame, event, arg: calls.append(event))
    try:
        assert json_schema.problems(json.dumps({"enum": values}), json.dumps({"enum": values[::-1]})) == []
    finally:
        sys.setprofile(None)
    assert len(calls) < 100_000


def test_bytes_that_nest_deep_or_multiply_do_no_harm() -> None:
    """fastavro reads them on the process's stack, and into all its memory."""
    for schema, data in (
        (json.dumps(LIST), b"\x02" * 1_000_000 + b"\0"),
        ('{"type": "array", "items": "null"}', b"\xfe" + b"\xff" * 7 + b"\x01\0"),
    ):
        with pytest.raises(BadValue):
            decoded(Avro(schema), data, "t", "P", 0)
    loop: dict[str, Any] = {}
    loop["next"] = loop
    with pytest.raises(BadValue, match="nested deeper"):
        encoded(Avro(json.dumps(LIST)), loop, "t")
    deep: dict[str, Any] = {"next": None}
    for _ in range(100):
        deep = {"next": deep}
    codec = Avro(json.dumps(LIST))
    assert codec.decode(codec.encode(deep)) == deep


def test_avro_is_whole_or_refused() -> None:
    codec = Avro(json.dumps(record(A, B)))
    whole = codec.encode({"a": 1, "b": "abc"})
    for data in (whole[:-1], whole + b"\0", b"", b"\xff" * 20):
        with pytest.raises(BadValue, match="offset 7"):
            decoded(codec, data, "t", "P", 7)
