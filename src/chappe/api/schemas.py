"""``Schemas``: the client of a server of schemas, and the codec whose records name their schema."""

from __future__ import annotations

import base64
import http.client
import ssl
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

import msgspec

from chappe.data.binary import pack_varbyte, parse_varbyte
from chappe.defaults import SCHEMAS_PATIENCE_S
from chappe.errors import (
    BadSchema,
    IncompatibleSchema,
    NotPermitted,
    ProtocolError,
    SchemasUnavailable,
    UnknownSchema,
    UsageError,
)
from chappe.schemas.avro import Avro
from chappe.schemas.codec import Codec, finite_json
from chappe.schemas.comparing import reason
from chappe.schemas.json_schema import checker
from chappe.schemas.registry import INCOMPATIBLE, Kind, Schema, SchemaVersion
from chappe.security import LogSecurity
from chappe.system import settings
from chappe.transports.gate import keys_of
from chappe.transports.tls import contexts

MAGIC: Final = b"\0"  # begins a record that names its schema, as Confluent's clients write it
_ID_BYTES: Final = 4
_ANSWER_BYTES_MAX: Final = 64 << 20
_KEPT_MAX: Final = 1_000  # schemas that a client remembers
_NO_INDEX: Final[tuple[int, ...]] = ()
_INDEXES_MAX: Final = 64  # of a message within messages of a Protobuf file
_JSON: Final = "application/vnd.schemaregistry.v1+json"


class Schemas:
    """Reads and writes the schemas of a server: ``chappe schemas serve``, or Confluent's Schema Registry.

    Schemas never change under their id, so a client asks for each once. Use from several threads is safe.

    Args:
        url: Of the server, such as ``http://127.0.0.1:8081``; ``https://NAME:PASSWORD@HOST`` gives a password. By
            default ``CHAPPE_SCHEMAS``, ``schemas`` in ``chappe.toml``, or a server on this machine.
        security: ``Keys("DIRECTORY/NAME")`` for a server with an identity, or None for the one of the settings, if
            any: it is shown to servers at ``https`` without a password.

    Every call may raise:
        SchemasUnavailable: The server does not answer within 10 s, or fails.
        NotPermitted: It does not let this identity do it.
        UnknownSchema: There is no such id, subject or version.
    """

    def __init__(self, url: str | None = None, *, security: LogSecurity = None) -> None:
        self.url = (url or settings.schemas()).rstrip("/")
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise UsageError(f"a server of schemas is http://HOST[:PORT] or https://..., not {self.url!r}")
        self._host, self._port, self._path = host, port, parts.path
        self._headers = {"Accept": _JSON}
        self._tls: ssl.SSLContext | None = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
            self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # as errors name it
        if parts.scheme == "https":
            keys = None if parts.username is not None else keys_of(security)
            made = None if keys is None else contexts(keys.tls())
            self._tls = ssl.create_default_context() if made is None else made.dialling
        self._kept: dict[int, Schema] = {}

    def __repr__(self) -> str:
        return f"<Schemas at {self.url}>"

    # -- looking ----------------------------------------------------------------------------------------------

    def subjects(self, prefix: str = "") -> list[str]:
        """Return the names of subjects that begin with ``prefix``, sorted."""
        found = self._ask("GET", "/subjects", {"subjectPrefix": prefix} if prefix else {})
        return [str(each) for each in found if str(each).startswith(prefix)]

    def versions(self, subject: str) -> list[int]:
        """Return the numbers of the versions of a subject."""
        return [int(each) for each in self._ask("GET", f"/subjects/{quote(subject, '')}/versions")]

    def version(self, subject: str, version: int | None = None) -> SchemaVersion:
        """Return a version of a subject; None: the latest."""
        found = self._ask("GET", f"/subjects/{quote(subject, '')}/versions/{version or 'latest'}")
        return _version(found)

    def schema(self, id: int) -> Schema:
        """Return the schema with this id."""
        kept = self._kept.get(id)
        if kept is None:
            found = self._ask("GET", f"/schemas/ids/{id}", {"format": "serialized"})
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            kept = self._kept[id] = _schema(id, found)
        return kept

    def compatibility(self, subject: str = "") -> str:
        """Return the compatibility of a subject, or of all that have none of their own."""
        found = self._ask("GET", f"/config/{quote(subject, '')}".rstrip("/"), {"defaultToGlobal": "true"})
        return str(found["compatibilityLevel"])

    def check(self, subject: str, schema: str, kind: Kind = "AVRO") -> list[str]:
        """Return the reasons why ``add`` would refuse a schema; empty if it would not.

        Raises:
            BadSchema: It is not a schema of this kind, or is beyond the bounds.
        """
        try:
            found = self._ask(
                "POST",
                f"/compatibility/subjects/{quote(subject, '')}/versions",
                {"verbose": "true"},
                {"schema": schema, "schemaType": kind},
            )
        except UnknownSchema:  # the first version of a subject
            return []
        return (
            [] if found["is_compatible"] else [str(each) for each in found.get("messages", ())] or ["it does not fit"]
        )

    # -- changing ---------------------------------------------------------------------------------------------

    def add(self, subject: str, schema: str, kind: Kind = "AVRO") -> int:
        """Add a schema as the next version of a subject, unless it is one already; return its id.

        Args:
            subject: The name, by convention the topic and ``-value``.
            schema: Its text: JSON, or a compiled Protobuf file in base64; 256 KiB at most.
            kind: ``AVRO``, ``JSON`` or ``PROTOBUF``.

        Raises:
            BadSchema: It is not a schema of this kind, or is beyond the bounds.
            IncompatibleSchema: The compatibility of the subject does not allow it; it was not added.
        """
        body = {"schema": schema, "schemaType": kind}
        return int(self._ask("POST", f"/subjects/{quote(subject, '')}/versions", {}, body)["id"])

    def delete(self, subject: str, version: int | None = None, *, permanent: bool = False) -> list[int]:
        """Delete a version of a subject, None: all; return their numbers. What was written stays readable by its id.

        ``permanent`` removes versions that are deleted already; their numbers may be given again.
        """
        path = f"/subjects/{quote(subject, '')}" + ("" if version is None else f"/versions/{version}")
        found = self._ask("DELETE", path, {"permanent": "true"} if permanent else {})
        return [int(each) for each in (found if isinstance(found, list) else [found])]

    def set_compatibility(self, level: str, subject: str = "") -> None:
        """Set the compatibility of a subject, or of all that have none of their own.

        Args:
            level: ``BACKWARD`` (a new schema reads what the version before it wrote), ``FORWARD`` (the other way
                round), ``FULL``, each with ``_TRANSITIVE`` for all versions, or ``NONE``.
            subject: Its name; empty for all.
        """
        self._ask("PUT", f"/config/{quote(subject, '')}".rstrip("/"), {}, {"compatibility": level})

    def codec(self, subject: str | None = None, version: int | None = None) -> SchemaCodec:
        """Return the codec of records that begin with the id of their schema, as Confluent's clients write them.

        Args:
            subject: The subject whose schema a producer writes. Values that are read in Avro are made to fit it;
                without a subject they are as they were written.
            version: Its version; None: the latest when the codec is first used.
        """
        return SchemaCodec(self, subject, version)

    # -- inside -----------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, query: dict[str, str] | None = None, body: Any = None) -> Any:
        target = self._path + path + (f"?{urlencode(query)}" if query else "")
        raw = None if body is None else msgspec.json.encode(body)
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=SCHEMAS_PATIENCE_S)
            if self._tls is None
            else http.client.HTTPSConnection(self._host, self._port, timeout=SCHEMAS_PATIENCE_S, context=self._tls)
        )
        try:
            connection.request(method, target, raw, self._headers | ({} if raw is None else {"Content-Type": _JSON}))
            response = connection.getresponse()
            answer = response.read(_ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            hint = "`chappe schemas serve` runs one"
            if isinstance(error, ssl.SSLError):
                hint = "an identity of its authority may be missing: --as, or CHAPPE_IDENTITY"
            raise SchemasUnavailable(
                f"the server of schemas at {self.url} does not answer: {reason(error)}; {hint}"
            ) from error
        finally:
            connection.close()
        try:
            found = msgspec.json.decode(answer or b"null")
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise SchemasUnavailable(
                f"what answers at {self.url} is not a server of schemas: it says {response.status} {response.reason}"
            ) from None
        if response.status < 300:
            return found
        raise _error(self.url, response.status, found if isinstance(found, dict) else {})


def _error(url: str, status: int, found: dict[str, Any]) -> Exception:
    text = reason(found.get("message") or f"status {status}")
    if status == INCOMPATIBLE:
        return IncompatibleSchema(text, tuple(str(each) for each in found.get("problems", ())))
    if status == 404:
        return UnknownSchema(f"{text} (at {url})")
    if status in (401, 403):
        return NotPermitted(f"the server of schemas at {url} refuses: {text}")
    if status in (400, 413, 415, 422):
        return BadSchema(text)
    return SchemasUnavailable(f"the server of schemas at {url} fails: {text}")


def _schema(id: int, found: dict[str, Any]) -> Schema:
    return Schema(id, found.get("schemaType", "AVRO"), found["schema"])


def _version(found: dict[str, Any]) -> SchemaVersion:
    return SchemaVersion(found["subject"], found["version"], _schema(found["id"], found))


@dataclass(frozen=True, slots=True)
class _Coder:
    """The codecs of one schema: of a Protobuf file by message, of others under no index."""

    schema: Schema
    by_message: dict[tuple[int, ...], Codec]

    def of(self, indexes: tuple[int, ...]) -> Codec:
        found = self.by_message.get(indexes)
        if found is None:
            from chappe.schemas import protobuf

            file = protobuf.parse(self.schema.text)
            found = self.by_message[indexes] = protobuf.ProtobufMessage(protobuf.message_class(file, indexes))
        return found


class _CheckedJson:
    def __init__(self, text: str) -> None:
        self.name = "JSON"
        self._check = checker(text)

    def encode(self, value: Any) -> bytes:
        raw = finite_json(value)
        self._check(msgspec.json.decode(raw))
        return raw

    def decode(self, data: bytes) -> Any:
        value = msgspec.json.decode(data)
        self._check(value)
        return value


class SchemaCodec:
    """Made by ``Schemas.codec``."""

    def __init__(self, schemas: Schemas, subject: str | None, version: int | None) -> None:
        self.name = "a value with a schema" if subject is None else f"schema {subject}"
        self._schemas, self._subject, self._version = schemas, subject, version
        self._own: SchemaVersion | None = None
        self._coders: dict[int, _Coder] = {}

    def encode(self, value: Any) -> bytes:
        own = self._ours()
        coder = self._coder(own.schema.id)
        header = MAGIC + own.schema.id.to_bytes(_ID_BYTES)
        if own.schema.kind != "PROTOBUF":
            return header + coder.of(()).encode(value)
        from chappe.schemas import protobuf

        indexes: tuple[int, ...] = (0,)
        if hasattr(value, "DESCRIPTOR"):
            indexes = protobuf.place_of(protobuf.parse(own.schema.text), value.DESCRIPTOR.full_name)
        return header + encode_indexes(indexes) + coder.of(indexes).encode(value)

    def decode(self, data: bytes) -> Any:
        if len(data) <= _ID_BYTES or data[:1] != MAGIC:
            raise ValueError("it does not begin with a zero and the four bytes of an id")
        if self._subject is not None:
            self._ours()
        coder = self._coder(int.from_bytes(data[1 : 1 + _ID_BYTES]))
        at, indexes = 1 + _ID_BYTES, _NO_INDEX
        if coder.schema.kind == "PROTOBUF":
            indexes, at = decode_indexes(data, at)
        return coder.of(indexes).decode(data[at:])

    def waits(self, data: bytes | None) -> bool:
        """True if the server has to be asked before a value can be decoded; None: before one can be encoded."""
        if self._own is None and (data is None or self._subject is not None):
            return True
        id = self._own.schema.id if data is None and self._own is not None else int.from_bytes((data or b"")[1:5])
        return id not in self._coders

    def ready(self) -> None:
        """Ask the server for what an encoder needs. Raises as ``Schemas`` does."""
        self._coder(self._ours().schema.id)

    def _ours(self) -> SchemaVersion:
        if self._own is None:
            if self._subject is None:
                raise UsageError("a producer names the subject of its schema: Schemas(...).codec('readings-value')")
            try:
                self._own = self._schemas.version(self._subject, self._version)
            except UnknownSchema as error:  # no fault of a record
                raise UsageError(f"{error}: add its schema first, with `chappe schemas add`") from None
        return self._own

    def _coder(self, id: int) -> _Coder:
        found = self._coders.get(id)
        if found is None:
            if len(self._coders) >= _KEPT_MAX:
                self._coders.clear()
            found = self._coders[id] = self._made(self._schemas.schema(id))
        return found

    def _made(self, schema: Schema) -> _Coder:
        reader = None if self._own is None else self._own.schema
        if reader is not None and reader.kind != schema.kind:
            raise ValueError(f"it is written in {schema.kind}, and subject {self._subject} is {reader.kind}")
        if schema.kind == "AVRO":
            resolved = None if reader is None or reader.id == schema.id else reader.text
            return _Coder(schema, {(): Avro(schema.text, resolved)})
        return _Coder(schema, {(): _CheckedJson(schema.text)} if schema.kind == "JSON" else {})


def encode_indexes(indexes: tuple[int, ...]) -> bytes:
    """Write the place of a message in its file: a count and indexes, zigzag; the first message is a single zero."""
    if indexes == (0,):
        return b"\0"
    return b"".join(pack_varbyte(2 * each) for each in (len(indexes), *indexes))


def decode_indexes(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the place of a message, and where its bytes begin. Raises ProtocolError."""
    count, at = _index(data, at)
    if count > _INDEXES_MAX:
        raise ProtocolError(f"its message is {count} levels deep in the file")
    found = []
    for _ in range(count):
        index, at = _index(data, at)
        found.append(index)
    return tuple(found) or (0,), at


def _index(data: bytes, at: int) -> tuple[int, int]:
    number, at = parse_varbyte(data, at)
    if number & 1:
        raise ProtocolError("the place of its message is negative")
    return number >> 1, at
