"""JSON Schema: checking values with jsonschema, and the rules by which one schema takes all that another allows.

The comparison is of schemas, not of values, and errs on the safe side: it knows the keywords below, and any other must
be the same on both sides. An object without ``additionalProperties: false`` may have had any property, so one that the
reader describes anew is a problem there. ``oneOf`` counts as ``anyOf``. ``$ref`` may lead into the same schema only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from chappe.errors import BadSchema, ChappeError
from chappe.schemas.comparing import Comparison, parse_json, reason

_SAID: Final = {  # what says nothing of values
    *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"),
    *("deprecated", "readOnly", "writeOnly", "format"),
}
_LEAST: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_KNOWN: Final = {
    *_SAID,
    *_LEAST,
    *_MOST,
    *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf", "oneOf", "allOf"),
    "$ref",
}
_ANYTHING: Final[dict[str, Any]] = {}
_TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")


def checker(text: str) -> Callable[[Any], None]:
    """Return what raises ValueError for a value that does not fit the schema. Nothing is fetched for a ``$ref``.

    Raises:
        BadSchema: The text is not a schema.
        ChappeError: jsonschema is not installed.
    """
    schema = parse_json(text)
    try:
        from jsonschema.exceptions import SchemaError, best_match
        from jsonschema.validators import validator_for
        from referencing import Registry
    except ImportError:
        raise ChappeError("JSON Schema needs a further package: pip install 'chappe[schemas]'") from None
    if not isinstance(schema, dict | bool):
        raise BadSchema("a JSON Schema is an object, true or false")
    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise BadSchema(f"this is not a JSON Schema: {reason(error.message)}") from None
    except Exception as error:  # such as a pattern that is not one
        raise BadSchema(f"this is not a JSON Schema: {reason(error)}") from None
    validator = kind(schema, registry=Registry())

    def check(value: Any) -> None:
        error = best_match(validator.iter_errors(value))
        if error is not None:
            raise ValueError(f"{error.json_path}: {error.message}")

    return check


def problems(reader: str, writer: str) -> list[str]:
    """Return the reasons why the reader does not take all that the writer may write. Raises BadSchema."""
    return _Inclusion(parse_json(reader), parse_json(writer)).problems()


class _Inclusion(Comparison):
    def __init__(self, reader: Any, writer: Any) -> None:
        super().__init__()
        self._reader, self._writer = reader, writer
        self._open: set[tuple[object, object]] = set()  # pairs with a ``$ref`` that are compared, or were and fit
        self._kept: list[Any] = []  # whose ids are in these pairs

    def problems(self) -> list[str]:
        return self._compare(self._reader, self._writer, "$")

    def _compare(self, reader: Any, writer: Any, at: str) -> list[str]:
        self.step()
        if reader is True or writer is False or reader == {}:
            return []
        if reader is False:
            return [f"{at}: nothing is allowed here any more"]
        writer = _ANYTHING if writer is True else writer
        if not isinstance(reader, dict) or not isinstance(writer, dict):  # such as items of drafts before 2020-12
            return [] if reader == writer else [f"{at}: it differs, and is not compared"]
        refs = reader.get("$ref"), writer.get("$ref")
        if any(refs):
            return self._follow(reader, writer, refs, at)
        for name in ("anyOf", "oneOf"):
            if name in writer:
                beside = {key: value for key, value in writer.items() if key != name}
                branches = [self._joined(beside, each) for each in writer[name]]
                return [problem for each in branches for problem in self._compare(reader, each, at)]
        found = self._bounds(reader, writer, at)
        for each in reader.get("allOf", ()):
            found += self._compare(each, writer, at)
        for name in ("anyOf", "oneOf"):
            if name in reader and all(self._compare(each, writer, at) for each in reader[name]):
                found.append(f"{at}: no branch of {name} takes what was allowed")
        return found

    def _follow(self, reader: Any, writer: Any, refs: tuple[Any, Any], at: str) -> list[str]:
        pair = refs[0] or id(reader), refs[1] or id(writer)
        if pair in self._open:
            return []
        self._open.add(pair)
        self._kept.append((reader, writer))
        wrote = resolved(self._writer, writer)
        found = self._compare(resolved(self._reader, reader), wrote, at)
        beside = {name: value for name, value in reader.items() if name not in {"$ref", *_SAID}}
        if refs[0] and beside:
            found += self._compare(beside, wrote, at)
        if found:
            self._open.discard(pair)
        return found

    @staticmethod
    def _joined(beside: dict[str, Any], branch: Any) -> Any:
        """Return a schema of a writer that allows at least what both allow."""
        if branch is False or not isinstance(branch, dict):
            return branch if branch is False else beside
        return {**beside, **branch}

    def _bounds(self, reader: Any, writer: Any, at: str) -> list[str]:
        wrote, reads = _types(writer), _types(reader)
        left = [each for each in wrote if each not in reads and not (each == "integer" and "number" in reads)]
        found = [f"{at}: {', '.join(left)} is not allowed any more"] if left else []
        allowed = reader["enum"] if "enum" in reader else [reader["const"]] if "const" in reader else None
        had = writer["enum"] if "enum" in writer else [writer["const"]] if "const" in writer else None
        if allowed is not None and (had is None or not _texts(had) <= _texts(allowed)):
            found.append(f"{at}: fewer values are allowed")
        for names, tighter in ((_LEAST, float.__gt__), (_MOST, float.__lt__)):
            for name in names:
                if name in reader and (name not in writer or tighter(float(reader[name]), float(writer[name]))):
                    found.append(f"{at}: {name} is tighter")
        for name in sorted({*reader, *writer} - _KNOWN):
            if name in reader and reader[name] != writer.get(name):
                found.append(f"{at}: {name} differs, and this keyword is not compared")
        if "items" in reader and "array" in wrote:
            found += self._compare(reader["items"], writer.get("items", True), f"{at}[]")
        return found + (self._object(reader, writer, at) if "object" in wrote else [])

    def _object(self, reader: Any, writer: Any, at: str) -> list[str]:
        found = [
            f"{at}.{name}: it is required, and was not"
            for name in sorted({*reader.get("required", ())} - {*writer.get("required", ())})
        ]
        described, had = reader.get("properties", {}), writer.get("properties", {})
        others, were = reader.get("additionalProperties", True), writer.get("additionalProperties", True)
        for name in sorted({*described, *had}):
            wrote = had.get(name, were)
            problem = self._compare(described.get(name, others), wrote, f"{at}.{name}")
            if problem and name not in had and were is True:
                problem = [f"{at}.{name}: it is described anew, and may have been anything (additionalProperties)"]
            found += problem
        return found + self._compare(others, were, f"{at}.*")


def _types(schema: Any) -> list[str]:
    kind = schema.get("type")
    if kind is None:
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        return list(_TYPES) if values is None else sorted({_type(each) for each in values})
    return [kind] if isinstance(kind, str) else list(kind)


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((type(None), "null"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


def _texts(values: list[Any]) -> set[bytes]:
    """Return values as JSON, in which 1 and true differ."""
    return {msgspec.json.encode(each, order="sorted") for each in values}


def resolved(root: Any, schema: Any) -> Any:
    """Follow a ``$ref`` into the same schema. Raises BadSchema for another one, or one that leads nowhere."""
    for _ in range(100):
        ref = schema.get("$ref") if isinstance(schema, dict) else None
        if ref is None:
            return schema
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise BadSchema(f"$ref {str(ref)[:100]!r} leads out of the schema: only #/... can be compared")
        found = root
        for part in ref[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise BadSchema(f"$ref {ref[:100]!r} leads nowhere")
            found = found[key]
        schema = found
    raise BadSchema("a $ref leads to itself")
