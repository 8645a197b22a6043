"""Codecs: what turns values of a program into the bytes of records, and back."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, Protocol, cast, runtime_checkable

import msgspec

from chappe.errors import BadSchema, BadValue, ChappeError, ProtocolError, UnknownSchema, UnsupportedValue, UsageError
from chappe.schemas.comparing import reason

_to_json: Final = msgspec.json.Encoder().encode


@runtime_checkable
class Codec(Protocol):
    """Encodes the values of a producer, and decodes them for consumers.

    Both methods may raise any exception for a value that does not fit; its text says what is wrong. They are called
    without locks, by several threads if the program has several, and with any bytes that a topic may hold.

    Attributes:
        name: Names the codec in errors, such as ``json``.
    """

    name: str

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value."""

    def decode(self, data: bytes) -> Any:
        """Return the value of bytes."""


class _Json:
    """JSON by msgspec, of any value or of a type; with a type what is encoded is decoded once to see that it fits."""

    def __init__(self, kind: Any = None) -> None:
        self.name = "json" if kind is None else f"json of {getattr(kind, '__name__', kind)}"
        try:
            self._decode = msgspec.json.Decoder(Any if kind is None else kind).decode
        except (TypeError, NotImplementedError, RecursionError) as error:
            raise UsageError(f"no codec for {kind!r:.100}: {reason(error)}") from None
        self._typed = kind is not None

    def encode(self, value: Any) -> bytes:
        raw = finite_json(value)
        if self._typed:
            self._decode(raw)
        return raw

    def decode(self, data: bytes) -> Any:
        return self._decode(data)


class _Arrow:
    """Streams of Arrow IPC; a value is a table, or what ``pyarrow.table`` makes one of."""

    def __init__(self) -> None:
        self.name = "arrow"
        try:
            import pyarrow
        except ImportError:
            raise ChappeError("Arrow needs a further package: pip install 'chappe[arrow]'") from None
        self._pa = pyarrow

    def encode(self, value: Any) -> bytes:
        table = self._pa.table(value)
        out = self._pa.BufferOutputStream()
        with self._pa.ipc.new_stream(out, table.schema) as stream:
            stream.write_table(table)
        return cast(bytes, out.getvalue().to_pybytes())

    def decode(self, data: bytes) -> Any:
        table = self._pa.ipc.open_stream(data).read_all()
        table.validate(full=True)  # offsets of garbage would lead anywhere
        return table


def as_codec(given: object) -> Codec:
    """Return the codec that an argument names: ``json``, ``arrow``, a type, or a codec itself. Raises UsageError."""
    if given == "json":
        return _Json()
    if given == "arrow":
        return _Arrow()
    if isinstance(given, type) and hasattr(given, "DESCRIPTOR") and hasattr(given, "FromString"):
        from chappe.schemas.protobuf import ProtobufMessage

        return ProtobufMessage(given)
    if not isinstance(given, type | str) and isinstance(given, Codec):
        return given
    if given is None or isinstance(given, str):
        raise UsageError(f"codec is 'json', 'arrow', a type, Avro(schema) or Schemas(...).codec(), not {given!r}")
    return _Json(given)


def encoded(codec: Codec, value: Any, topic: str) -> bytes | None:
    """Return the bytes of a value for a topic; None, a tombstone, stays. Raises BadValue."""
    if value is None:
        return None
    try:
        return codec.encode(value)
    except ChappeError:
        raise
    except Exception as error:  # of whatever library
        raise BadValue(
            f"a value does not fit topic {topic!r}, written as {codec.name}: {reason(error)}; nothing was sent",
            topic,
        ) from error


def decoded(codec: Codec, data: bytes, topic: str, partition: str, offset: int) -> Any:
    """Return the value of a record. Raises BadValue, and other errors of ours where a schema is not to be had."""
    try:
        return codec.decode(data)
    except (BadSchema, ProtocolError, UnknownSchema) as error:
        why: Exception = error
    except ChappeError:
        raise
    except Exception as error:  # of whatever library
        why = error
    raise BadValue(
        f"the record at offset {offset} of topic {topic!r}, partition {partition}, is not {codec.name}: {reason(why)}",
        topic,
        partition,
        offset,
    ) from why


def json_of(value: Any) -> bytes:
    """Return a decoded value as JSON, for people and other programs. Raises UnsupportedValue."""
    if type(value).__module__.startswith("pyarrow"):
        value = value.to_pylist()
    elif hasattr(value, "DESCRIPTOR"):
        from chappe.schemas.protobuf import plain

        value = plain(value)
    try:
        return msgspec.json.encode(value)
    except Exception as error:
        raise UnsupportedValue(f"the value has no form in JSON: {reason(error)}") from None


def finite_json(value: Any) -> bytes:
    """Encode as JSON. Raises ValueError for NaN and infinities, which msgspec would encode as null."""
    raw = _to_json(value)
    if b"null" in raw and not _is_finite(msgspec.to_builtins(value)):
        raise ValueError("JSON has neither NaN nor an infinity")
    return raw


def _is_finite(value: Any) -> bool:
    """True if every number in a value of built-in types is finite."""
    if type(value) is float:
        return isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple | set | frozenset) or all(map(_is_finite, value))
