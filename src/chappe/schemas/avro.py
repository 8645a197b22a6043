"""Avro: values to and from bytes with fastavro, and the rules by which one schema reads what another wrote.

Source: Avro 1.12, "Schema Resolution". Names of records, enums and fixed are compared without their namespace, as that
says; aliases are the reader's. A writer's enum symbol that the reader lacks needs the reader's default.
"""

from __future__ import annotations

import io
from typing import Any, Final

from chappe.defaults import AVRO_DEPTH_MAX
from chappe.errors import BadSchema, ChappeError
from chappe.schemas.comparing import Comparison, parse_json, reason

_PROMOTED: Final = {  # the writer's type -> the types that read it
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_NAMED: Final = {"record", "error", "enum", "fixed"}
EMPTY_MAX: Final = 1 << 16  # items of arrays that take no bytes, of one value


def parse(text: str) -> Any:
    """Return the schema as fastavro knows it. Raises BadSchema; ChappeError if fastavro is not installed."""
    given = parse_json(text)
    try:
        from fastavro.schema import parse_schema
    except ImportError:
        raise ChappeError("Avro needs a further package: pip install 'chappe[avro]'") from None
    try:
        return parse_schema(given)
    except Exception as error:  # of whatever kind: the text is anybody's
        raise BadSchema(f"this is not an Avro schema: {reason(error)}") from None


class Avro:
    """Codec of Avro: a value is what the schema says, a record as a dictionary; bytes have no header.

    Args:
        schema: Its text, JSON; 256 KiB and 64 levels at most.
        reader: The schema that decoded values are to have, as a text; by default that of the writer.

    Raises:
        BadSchema: It is not a schema.
        ChappeError: fastavro is not installed: ``pip install 'chappe[avro]'``.
    """

    def __init__(self, schema: str, reader: str | None = None) -> None:
        self._schema = parse(schema)
        self._reader = None if reader is None else parse(reader)
        from fastavro import schemaless_reader, schemaless_writer
        from fastavro.validation import ValidationError, validate

        self._read, self._write, self._validate = schemaless_reader, schemaless_writer, validate
        self._invalid = ValidationError
        self._names = named_schemas(self._schema)
        self._skims = _is_unbounded(self._schema, self._names)
        named = self._schema.get("name", "") if isinstance(self._schema, dict) else ""
        self.name = f"Avro {named}".rstrip()

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value, which is checked against the schema first."""
        if self._skims:
            _check_depth(value)
        try:
            self._validate(value, self._schema, raise_errors=True)
        except self._invalid as error:
            first = error.errors[0]
            where = first.field or "the value"
            raise ValueError(f"{where} is {first.datum!r:.80}, not {_shown(first.schema)}") from None
        out = io.BytesIO()
        self._write(out, self._schema, value, strict_allow_default=True)
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        """Return the value of bytes. A schema within itself nests 256 levels deep at most."""
        if self._skims:
            _Skim(data, self._names).over(self._schema, 0)
        source = io.BytesIO(data)
        try:
            value = self._read(source, self._schema, self._reader)
        except EOFError:
            raise ValueError("the value ends too early") from None
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell()} bytes follow the value")
        return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(AVRO_DEPTH_MAX):
        level = [
            inner
            for each in level
            if isinstance(each, list | tuple | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {AVRO_DEPTH_MAX} levels")


def named_schemas(schema: Any) -> dict[str, Any]:
    """Return the schemas of a parsed schema that have names, by full name."""
    found: dict[str, Any] = {}
    left = [schema]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            if each["type"] in _NAMED:
                found[each["name"]] = each
            left += [field["type"] for field in each.get("fields", ())]
            left += [each[inner] for inner in ("items", "values") if inner in each]
    return found


def _inner(schema: Any) -> list[Any]:
    if isinstance(schema, list):
        return schema
    if isinstance(schema, dict):
        inner = [field["type"] for field in schema.get("fields", ())]
        return inner + [schema[name] for name in ("items", "values") if name in schema]
    return []


def _is_unbounded(schema: Any, names: dict[str, Any]) -> bool:
    """True if few bytes of a value may nest deep or have many items: the schema is within itself, or has such arrays.

    fastavro reads both without bounds, and the first on the stack of the process, which overflows.
    """
    states: dict[str, bool] = {}  # by name: True while it is open

    def look(each: Any) -> bool:
        each = names.get(each, each) if isinstance(each, str) else each
        kind = each["type"] if isinstance(each, dict) else each
        if kind == "array" and _is_empty(each["items"], names, 0):
            return True
        if kind not in ("record", "error"):
            return any(look(inner) for inner in _inner(each))
        if each["name"] in states:
            return states[each["name"]]
        states[each["name"]] = True
        if any(look(inner) for inner in _inner(each)):
            return True
        states[each["name"]] = False
        return False

    return look(schema)


def _is_empty(schema: Any, names: dict[str, Any], depth: int) -> bool:
    """True if a value takes no bytes."""
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "null":
        return True
    if kind == "fixed":
        return not schema["size"]
    if kind in ("record", "error"):
        return depth < AVRO_DEPTH_MAX and all(_is_empty(each, names, depth + 1) for each in _inner(schema))
    return False


class _Skim:
    """Goes over a value without making it, and raises ValueError beyond the bounds of depth and items."""

    _FIXED: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}

    def __init__(self, data: bytes, names: dict[str, Any]) -> None:
        self._data, self._names, self._at, self._empty = data, names, 0, EMPTY_MAX

    def over(self, schema: Any, depth: int) -> None:
        if depth > AVRO_DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {AVRO_DEPTH_MAX} levels")
        schema = self._names.get(schema, schema) if isinstance(schema, str) else schema
        if isinstance(schema, list):
            chosen = self._long()
            if not 0 <= chosen < len(schema):
                raise ValueError(f"a union has no branch {chosen}")
            self.over(schema[chosen], depth + 1)
            return
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in ("record", "error"):
            for field in schema["fields"]:
                self.over(field["type"], depth + 1)
        elif kind in ("array", "map"):
            self._blocks(schema, kind == "map", depth)
        elif kind in ("int", "long", "enum"):
            self._long()
        elif kind in ("string", "bytes"):
            self._skip(self._long())
        elif kind == "fixed":
            self._skip(schema["size"])
        else:
            self._skip(self._FIXED[kind])

    def _blocks(self, schema: Any, keyed: bool, depth: int) -> None:
        while count := self._long():
            if count < 0:
                self._long()
            for _ in range(abs(count)):
                before = self._at
                if keyed:
                    self._skip(self._long())
                self.over(schema["values" if keyed else "items"], depth + 1)
                if self._at == before:
                    self._empty -= 1
                    if not self._empty:
                        raise ValueError(f"an array has more than {EMPTY_MAX:,} items that take no bytes")

    def _skip(self, size: int) -> None:
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError("the value ends too early")
        self._at += size

    def _long(self) -> int:
        found = shift = 0
        while True:
            if self._at >= len(self._data) or shift > 63:
                raise ValueError("a number is too long, or the value ends too early")
            byte = self._data[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)


# -- compatibility ------------------------------------------------------------------------------------------------


def problems(reader: str, writer: str) -> list[str]:
    """Return the reasons why values of ``writer`` cannot be read as ``reader``; empty if all can. Raises BadSchema."""
    return _Resolution(parse(reader), parse(writer)).problems()


class _Resolution(Comparison):
    def __init__(self, reader: Any, writer: Any) -> None:
        super().__init__()
        self._roots = reader, writer
        self._readers, self._writers = named_schemas(reader), named_schemas(writer)
        self._open: set[tuple[str, str]] = set()  # records that are compared, or were and fit

    def problems(self) -> list[str]:
        return self._compare(*self._roots, "the value")

    def _compare(self, reader: Any, writer: Any, at: str) -> list[str]:
        self.step()
        reader = self._readers.get(reader, reader) if isinstance(reader, str) else reader
        writer = self._writers.get(writer, writer) if isinstance(writer, str) else writer
        if isinstance(writer, list):
            return [each for branch in writer for each in self._compare(reader, branch, at)]
        if isinstance(reader, list):
            found = [self._compare(branch, writer, at) for branch in reader]
            if any(not each for each in found):
                return []
            close = [each for each, branch in zip(found, reader, strict=True) if _kind(branch) == _kind(writer)]
            return close[0] if len(close) == 1 else [f"{at}: {_shown(writer)} is not in the reader's union"]
        wrote, reads = _kind(writer), _kind(reader)
        if wrote != reads:
            if reads in _PROMOTED.get(wrote, ()):
                return []
            return [f"{at}: {_shown(writer)} cannot be read as {_shown(reader)}"]
        if wrote == "array":
            return self._compare(reader["items"], writer["items"], f"items of {at}")
        if wrote == "map":
            return self._compare(reader["values"], writer["values"], f"values of {at}")
        if wrote in _NAMED and not _same_name(reader, writer):
            return [f"{at}: {_shown(writer)} cannot be read as {_shown(reader)}"]
        if wrote == "record":
            return self._fields(reader, writer, at)
        if wrote == "enum":
            known_symbols = set(reader["symbols"])
            lost = [each for each in writer["symbols"] if each not in known_symbols]
            known = "default" in reader or not lost
            return [] if known else [f"{at}: enum {reader['name']} lacks {', '.join(lost[:5])}, and has no default"]
        if wrote == "fixed" and reader["size"] != writer["size"]:
            return [f"{at}: fixed {reader['name']} has {reader['size']} bytes, and had {writer['size']}"]
        return _decimals(reader, writer, at)

    def _fields(self, reader: Any, writer: Any, at: str) -> list[str]:
        pair = reader["name"], writer["name"]
        if pair in self._open:
            return []
        self._open.add(pair)
        written = {field["name"]: field for field in writer["fields"]}
        found: list[str] = []
        for field in reader["fields"]:
            named = next((name for name in (field["name"], *field.get("aliases", ())) if name in written), None)
            here = f"field {field['name']} of {reader['name']}"
            if named is not None:
                found += self._compare(field["type"], written[named]["type"], here)
            elif "default" not in field:
                found.append(f"{here} has no default, and is not in what was written")
        if found:
            self._open.discard(pair)
        return found


def _kind(schema: Any) -> str:
    kind = schema["type"] if isinstance(schema, dict) else "union" if isinstance(schema, list) else schema
    return "record" if kind == "error" else str(kind)


def _same_name(reader: Any, writer: Any) -> bool:
    wanted = writer["name"]
    names = {reader["name"], *reader.get("aliases", ())}
    return wanted in names or wanted.rpartition(".")[2] in {each.rpartition(".")[2] for each in names}


def _decimals(reader: Any, writer: Any, at: str) -> list[str]:
    def of(schema: Any) -> tuple[Any, Any] | None:
        decimal = isinstance(schema, dict) and schema.get("logicalType") == "decimal"
        return (schema.get("precision"), schema.get("scale", 0)) if decimal else None

    old, new = of(writer), of(reader)
    both = old is not None and new is not None
    return [f"{at}: a decimal has another precision or scale"] if both and old != new else []


def _shown(schema: Any) -> str:
    kind = _kind(schema)
    return f"{kind} {schema['name']}" if kind in _NAMED else kind
