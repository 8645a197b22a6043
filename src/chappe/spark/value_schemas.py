"""``valueFormat=schema``: values with a schema as a typed column, in batches and in streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pyspark.sql import types as t

from chappe.errors import BadValue, UsageError
from chappe.schemas.codec import Codec, decoded

if TYPE_CHECKING:
    import pyarrow as pa

    from chappe.schemas.registry import Schema

_SIMPLE: Final[dict[str, t.DataType]] = {
    "null": t.NullType(),
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "bytes": t.BinaryType(),
    "enum": t.StringType(),
    "fixed": t.BinaryType(),
}
_LOGICAL: Final[dict[str, t.DataType]] = {
    "date": t.DateType(),
    "timestamp-millis": t.TimestampType(),
    "timestamp-micros": t.TimestampType(),
    "local-timestamp-millis": t.TimestampNTZType(),
    "local-timestamp-micros": t.TimestampNTZType(),
    "uuid": t.StringType(),
}
_DIGITS_MAX: Final = 38  # of Spark's decimals
_JSON: Final[dict[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "integer": t.LongType(),
    "number": t.DoubleType(),
    "string": t.StringType(),
}


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """The subject whose latest schema the values of a read are to have, and its server; None: that of the settings."""

    subject: str
    server: str | None = None

    def codec(self) -> Codec:
        from chappe.api.schemas import Schemas

        return Schemas(self.server).codec(self.subject)

    def type(self) -> t.DataType:
        """Return the type of the column. Raises UsageError for a schema that no column has, and as ``Schemas`` does."""
        from chappe.api.schemas import Schemas

        return type_of(Schemas(self.server).version(self.subject).schema)


def type_of(schema: Schema) -> t.DataType:
    """Return the type of values with a schema. Raises UsageError."""
    if schema.kind == "AVRO":
        from chappe.schemas.avro import named_schemas, parse

        parsed = parse(schema.text)
        return _avro(parsed, named_schemas(parsed), ())
    if schema.kind == "JSON":
        from chappe.schemas.comparing import parse_json

        root = parse_json(schema.text)
        return _json(root, root, "$", 0)
    raise UsageError("`valueFormat` is for Avro and JSON: take Spark's own from_protobuf for Protobuf")


def _avro(schema: Any, names: dict[str, Any], above: tuple[str, ...]) -> t.DataType:
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        left = [each for each in schema if each != "null"]
        if len(left) == 1:
            return _avro(left[0], names, above)
        if left and set(map(str, left)) <= {"int", "long"}:
            return t.LongType()
        raise UsageError("a union of several types has no column: give it a record of its own")
    if not isinstance(schema, dict):
        return _SIMPLE[schema]
    kind, logical = schema["type"], schema.get("logicalType", "")
    if kind in ("record", "error"):
        if schema["name"] in above:
            raise UsageError(f"the record {schema['name']} is within itself, so it has no column")
        inner = (*above, schema["name"])
        return t.StructType(
            [t.StructField(each["name"], _avro(each["type"], names, inner)) for each in schema["fields"]]
        )
    if kind == "array":
        return t.ArrayType(_avro(schema["items"], names, above))
    if kind == "map":
        return t.MapType(t.StringType(), _avro(schema["values"], names, above))
    if logical == "decimal":
        if schema["precision"] > _DIGITS_MAX:
            raise UsageError(f"a decimal of {schema['precision']} digits has no column: Spark has {_DIGITS_MAX}")
        return t.DecimalType(schema["precision"], schema.get("scale", 0))
    if logical in ("time-millis", "time-micros"):
        raise UsageError(f"{logical} has no column: take timestamp-micros")
    return _LOGICAL.get(logical, _SIMPLE[kind])


def _json(root: Any, schema: Any, at: str, depth: int) -> t.DataType:
    from chappe.schemas.json_schema import resolved

    schema = resolved(root, schema)
    if not isinstance(schema, dict) or depth > 64:
        raise UsageError(f"{at} has no column: its schema says no type, or is within itself")
    kinds = schema.get("type", [])
    kinds = [each for each in ([kinds] if isinstance(kinds, str) else kinds) if each != "null"]
    if not kinds and all(isinstance(each, str) for each in schema.get("enum", [0])):
        kinds = ["string"]
    if sorted(kinds) == ["integer", "number"]:
        kinds = ["number"]
    kind = kinds[0] if len(kinds) == 1 else ""
    if kind in _JSON:
        return _JSON[kind]
    if kind == "array" and "items" in schema:
        return t.ArrayType(_json(root, schema["items"], f"{at}[]", depth + 1))
    if kind == "object" and schema.get("properties"):
        fields = [
            t.StructField(name, _json(root, each, f"{at}.{name}", depth + 1))
            for name, each in schema["properties"].items()
        ]
        return t.StructType(fields)
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return t.MapType(t.StringType(), _json(root, schema["additionalProperties"], f"{at}.*", depth + 1))
    raise UsageError(f"{at} has no column: its schema says no type, or several")


def decode_values(batches: Iterator[pa.RecordBatch], schema: ValueSchema, kind: t.DataType) -> Iterator[pa.RecordBatch]:
    """Yield batches whose ``value`` has the type ``kind``; one that does not decode is null.

    Raises SchemasUnavailable, and UsageError if the subject has gone.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    codec, arrow = schema.codec(), to_arrow_type(kind, timezone="UTC")
    for batch in batches:
        at = batch.schema.get_field_index("value")
        if at < 0:
            yield batch
            continue
        values = [_value(codec, raw) for raw in batch.column(at).to_pylist()]
        try:
            column = pa.array(values, arrow)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            column = pa.concat_arrays([_alone(each, arrow) for each in values])
        columns = [column if index == at else each for index, each in enumerate(batch.columns)]
        yield pa.RecordBatch.from_arrays(columns, schema=batch.schema.set(at, pa.field("value", arrow)))


def _value(codec: Codec, raw: bytes | None) -> Any:
    if raw is None:
        return None
    try:
        return _plain(decoded(codec, raw, "", "", 0))
    except BadValue:
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def _alone(value: Any, arrow: pa.DataType) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array([value], arrow)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.nulls(1, arrow)
