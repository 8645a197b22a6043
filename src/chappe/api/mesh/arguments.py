"""Arguments of users of the mesh, checked and converted for the core."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final, Literal
from uuid import UUID, uuid4, uuid5

from chappe.data import zeek
from chappe.data.binary import encode
from chappe.data.given import as_text, several
from chappe.defaults import MESH_TOPIC_BYTES_MAX
from chappe.errors import UsageError
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.links.dialling import Retry
from chappe.runtime.recorder import RecordingOptions
from chappe.transports.tls import Contexts

OnFull = Literal["block", "drop_oldest", "drop_newest", "disconnect"]  # what happens when a queue is full

MISSING: Final = object()  # what was left out, where None is a value
_NS: Final = 1_000_000_000
_NS_MAX: Final = 2**63 - 1


class Encoded:
    """A value in its encoded bytes, for forwarders. The bytes are not checked."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def encode(self) -> bytes:
        return self._raw


_ENCODE: Final = frozenset({zeek.Event, zeek.Batch, zeek.LogCreate, zeek.LogWrite, zeek.IdentifierUpdate, Encoded})


def encode_topic(topic: str) -> bytes:
    try:
        raw = as_text(topic, "a topic").encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"{topic!a} is not a topic: it holds half of a surrogate pair") from None
    if len(raw) > MESH_TOPIC_BYTES_MAX:
        raise UsageError(f"a topic has at most {MESH_TOPIC_BYTES_MAX} bytes, not {len(raw)}")
    return raw


def encode_value(value: object) -> bytes:
    return value.encode() if type(value) in _ENCODE else encode(value)  # type: ignore[attr-defined]


def chunks(
    messages: Iterable[tuple[str, object]], messages_max: int, bytes_max: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Encode messages in lists of at most ``messages_max`` and about ``bytes_max`` bytes."""
    chunk: list[tuple[bytes, bytes]] = []
    size = 0
    topic, raw = "", b""
    for each in several(messages, "messages"):
        try:
            wanted, value = each
        except (TypeError, ValueError):
            raise UsageError(f"a message is a topic and a value, not {each!r:.100}") from None
        if wanted is not topic:
            topic, raw = wanted, encode_topic(wanted)
        payload = encode_value(value)
        chunk.append((raw, payload))
        size += len(payload)
        if len(chunk) >= messages_max or size >= bytes_max:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def topics_of(chunk: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Return the topics of encoded messages, once for each run of equal ones."""
    return (topic for topic, _ in groupby(chunk, itemgetter(0)))


def own_id(wanted: str | UUID | None, security: Contexts | None) -> bytes:
    """Return the id of an endpoint: the user's, its certificate's, or a random one."""
    named = security.ids if security is not None else frozenset()
    if wanted is not None:
        own = as_id(wanted).bytes
        if named and own not in named:
            raise UsageError(f"the certificate names another endpoint id than {wanted}: leave out id")
        return own
    if named:
        return min(named)
    return uuid5(uuid4(), "chappe").bytes  # random, of the version that the original's ids have


def as_id(text: str | UUID) -> UUID:
    try:
        found = text if isinstance(text, UUID) else UUID(text)
    except (ValueError, AttributeError, TypeError):
        raise UsageError(f"{text!r} is not an endpoint id: it looks like {uuid5(uuid4(), 'chappe')}") from None
    if not found.int:
        raise UsageError("an endpoint id is not all zero")
    return found


def as_policy(on_full: str) -> Policy:
    try:
        return Policy(on_full)
    except ValueError:
        raise UsageError(f"on_full is 'block', 'drop_oldest', 'drop_newest' or 'disconnect', not {on_full!r}") from None


def as_recording(directory: str | Path | None, messages_max: int | None) -> RecordingOptions | None:
    if messages_max is not None and messages_max < 1:
        raise UsageError(f"output_generator_file_cap is a number of messages, at least 1, not {messages_max!r}")
    if directory is None:
        if messages_max is not None:
            raise UsageError("output_generator_file_cap is for a recording: give recording_directory too")
        return None
    if not str(directory):
        raise UsageError("recording_directory is the path of a folder, not empty")
    return RecordingOptions(directory, messages_max)


def check_bounds(messages_max: int, bytes_max: int) -> None:
    """Raise UsageError for wrong bounds of a queue."""
    if messages_max < 1 or bytes_max < 1:
        raise UsageError("bounds of a queue are at least 1")


def check_port(port: int) -> int:
    if not 0 < port < 65536:
        raise UsageError(f"{port} is not a port to dial: 1 to 65535")
    return port


def check_retry(retry_s: float, retry_max_s: float | None, attempts: int | None) -> Retry:
    if not 0 <= retry_s < math.inf:
        raise UsageError(f"retry_s is a number of seconds, 0 for a single attempt, not {retry_s!r}")
    if retry_max_s is not None and not 0 < retry_s <= retry_max_s < math.inf:
        raise UsageError(f"retry_max_s is a number of seconds, not below retry_s ({retry_s:g}), not {retry_max_s!r}")
    if attempts is not None and attempts < 1:
        raise UsageError(f"attempts is a number above 0, or None for no bound, not {attempts!r}")
    return Retry(retry_s, retry_max_s or 0.0, attempts)


def expiry_ns(expiry_s: float) -> int:
    if not 0 < expiry_s < math.inf:
        raise UsageError(f"expiry_s is a number of seconds above 0, not {expiry_s!r}")
    return min(int(expiry_s * _NS), _NS_MAX)
