"""Keys, values and changes of shared maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar

import msgspec

from chappe.defaults import MAP_BODY_BYTES_MAX, MAP_KEY_BYTES_MAX, MAP_NAME_CHARACTERS_MAX
from chappe.errors import InvalidData, RecordTooLarge, UsageError
from chappe.kv.chp import messages as chp
from chappe.kv.chp.sessions import SESSION_NAME
from chappe.schemas.codec import finite_json
from chappe.security import LogSecurity

V = TypeVar("V")
TTL_S_MAX: Final = chp.TTL_MS_MAX / 1000


class MapOptions(TypedDict, total=False):
    subtree: str | Iterable[str]
    model: Literal[5, 6] | None
    name: str
    security: LogSecurity


@dataclass(frozen=True, slots=True)
class MapChange(Generic[V]):
    """A change of one key: its value now and before; None where it has none, or had one of another type."""

    kind: Literal["insert", "update", "erase"]
    key: str
    value: V | None
    before: V | None


class MapCodec(Generic[V]):
    """Converts values to bytes: ``bytes``, ``str``, any JSON for ``json``, else a type of msgspec as JSON."""

    def __init__(self, values: Any) -> None:
        self._encode: Callable[[Any], bytes]
        self._decode: Callable[[bytes], Any]
        self.is_text = values is bytes or values is str
        if values is bytes:
            self._encode, self._decode = _as_bytes, bytes
        elif values is str:
            self._encode, self._decode = _as_text, lambda raw: raw.decode("utf-8", "surrogateescape")
        else:
            if isinstance(values, str) and values != "json":
                raise UsageError(f"values are bytes, str, 'json' or a type that msgspec knows, not {values!r}")
            try:
                decoder = msgspec.json.Decoder(Any if values == "json" else values)
            except TypeError as error:
                raise UsageError(f"msgspec cannot decode {values!r}: {error}") from None
            self._decode = decoder.decode

            def checked(value: Any) -> bytes:
                raw = finite_json(value)
                decoder.decode(raw)  # else who follows the map as this type could not read it
                return raw

            self._encode = finite_json if values == "json" else checked

    def encode(self, value: V) -> bytes:
        """Raise UsageError for a value of another type, or an empty one."""
        try:
            raw = self._encode(value)
        except (TypeError, ValueError, UnicodeError, msgspec.MsgspecError) as error:
            raise UsageError(f"{value!r:.80} is not a value of this map: {error}") from None
        if not raw:
            raise UsageError("an empty value means in the protocol that the key is deleted: use delete")
        if len(raw) > MAP_BODY_BYTES_MAX:
            raise RecordTooLarge(f"a value has at most {MAP_BODY_BYTES_MAX:,} bytes, not {len(raw):,}")
        return raw

    def decode(self, raw: bytes) -> V:
        """Raise InvalidData if others have written something that is not such a value."""
        try:
            found: V = self._decode(raw)
        except (msgspec.MsgspecError, ValueError) as error:
            raise InvalidData(f"a value in the map is not of the map's type: {error}") from None
        return found


def check_name(name: str) -> str:
    if not isinstance(name, str) or not name.isprintable() or len(name) > MAP_NAME_CHARACTERS_MAX:
        raise UsageError(f"the name of a map has up to {MAP_NAME_CHARACTERS_MAX} characters that can be printed")
    return name


def encode_key(key: str) -> bytes:
    if not isinstance(key, str):
        raise UsageError(f"a key is a str, not {key!r}")
    try:
        raw = key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"{key!a} is not a key: it holds half of a surrogate pair") from None
    if len(raw) > MAP_KEY_BYTES_MAX:
        raise UsageError(f"a key has at most {MAP_KEY_BYTES_MAX:,} bytes, not {len(raw):,}")
    if raw in chp.RESERVED:
        raise UsageError(f"{key!r} is a word of the protocol, and cannot be a key")
    return raw


def decode_key(key: object) -> str:
    """Convert an engine's key for users; bytes that are not UTF-8 are escaped with surrogates."""
    return key if type(key) is str else key.decode("utf-8", "surrogateescape")  # type: ignore[attr-defined]


def encode_ttl(ttl_s: float | None) -> int:
    """Convert a time to live to milliseconds; 0 is for ever. Raises UsageError."""
    if ttl_s is None:
        return 0
    if not 0 < ttl_s <= TTL_S_MAX:
        raise UsageError(f"a ttl is a time in seconds up to {TTL_S_MAX:,.0f}, not {ttl_s!r}")
    return max(1, round(ttl_s * 1000))


def encode_properties(properties: Mapping[str, str] | None) -> bytes:
    if not properties:
        return b""
    raw = "".join([f"{name}={value}\n" for name, value in properties.items()]).encode("utf-8", "surrogateescape")
    for name, value in properties.items():
        if not name or "=" in name or any(each in f"{name}{value}" for each in "\n\0") or name == "ttl":
            raise UsageError(f"{name!r}={value!r} is not a property: no newline, no zero, no '=' in its name, not ttl")
        if f"{name}=".encode() == SESSION_NAME:
            raise UsageError(f"{name!r} is the server's own property: write session=True")
    if not chp.are_properties(raw):
        raise UsageError("the properties are too long")
    return raw


def _as_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes are wanted")
    return bytes(value)


def _as_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("a str is wanted")
    return value.encode("utf-8", "surrogateescape")
