"""``--codec``: the codec of a command, which turns lines of JSON into records and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from typer import Option

from chappe.errors import UsageError

if TYPE_CHECKING:
    from chappe.schemas.codec import Codec

FORMS: Final = "json, avro:FILE, protobuf:FILE:MESSAGE, arrow, schema, or schema:SUBJECT"

Name: TypeAlias = Annotated[
    str | None,
    Option(
        "--codec",
        metavar="CODEC",
        help=f"{FORMS} (TOPIC-value by default). Values are JSON here.",
    ),
]


def parse_codec(text: str, topic: str | None) -> Codec:
    """Return the codec that an option names; ``topic`` gives a producer its subject.

    Raises UsageError, BadSchema, SchemasUnavailable.
    """
    from chappe.schemas.codec import as_codec

    kind, _, rest = text.partition(":")
    if kind in ("json", "arrow") and not rest:
        return as_codec(kind)
    if kind == "avro" and rest:
        from chappe.schemas.avro import Avro

        return Avro(read_file(rest).decode("utf-8", "replace"))
    if kind == "protobuf" and rest.partition(":")[2]:
        from chappe.schemas import protobuf

        file, _, message = rest.rpartition(":")
        found = protobuf.parse(protobuf.text_of(read_file(file)))
        return protobuf.ProtobufMessage(protobuf.message_class(found, protobuf.place_of(found, message)))
    if kind == "schema":
        from chappe.api.schemas import Schemas

        subject = rest or (None if topic is None else f"{topic}-value")
        codec = Schemas().codec(subject)
        if subject is not None:
            codec.ready()
        return codec
    raise UsageError(f"--codec is {FORMS}, not {text!r}")


def read_file(file: str) -> bytes:
    """Return the content of a file that holds a schema. Raises UsageError."""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
