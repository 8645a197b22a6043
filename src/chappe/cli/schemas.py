"""``chappe schemas``: the schemas of topics, at a server that numbers them, or that server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from typer import Argument, Option

from chappe.cli import options
from chappe.cli.codecs import read_file
from chappe.cli.console import hear_warnings, show_json, tell
from chappe.cli.listing import print_listing
from chappe.cli.serving import Served, ServerIdentity, serves, stopped, wait
from chappe.cli.units import place
from chappe.data import terminal
from chappe.data.markup import many
from chappe.defaults import SCHEMAS_PORT
from chappe.errors import UsageError
from chappe.schemas.registry import KINDS, LEVELS, Kind

if TYPE_CHECKING:
    from chappe.api.schemas import Schemas

app = typer.Typer(
    name="schemas", help="Show, check and add the schemas of topics, or serve them.", no_args_is_help=True
)

Subject: TypeAlias = Annotated[str, Argument(metavar="SUBJECT", help="Its name; of a topic's values TOPIC-value.")]
File: TypeAlias = Annotated[
    str, Argument(metavar="FILE", help="The schema: JSON, or what protoc --descriptor_set_out made of one file.")
]
Type: TypeAlias = Annotated[
    str | None, Option("--type", metavar="TYPE", help=f"{', '.join(KINDS)}; by the name of the file if not given.")
]
ENDINGS: Final[dict[str, Kind]] = {".avsc": "AVRO", ".json": "JSON", ".pb": "PROTOBUF", ".desc": "PROTOBUF"}


@dataclass(frozen=True, slots=True)
class AtServer:
    """The options that name the server, and who asks it."""

    server: Annotated[
        str | None,
        Option(envvar="CHAPPE_SCHEMAS", metavar="URL", help="The server of schemas.", show_default="this machine's"),
    ] = None
    acting: options.Acting = None

    def client(self) -> Schemas:
        from chappe.api.schemas import Schemas

        options.be(self.acting)
        return Schemas(self.server)


def _read(file: str, given: str | None) -> tuple[str, Kind]:
    """Return the text of a schema, and its kind. Raises UsageError, BadSchema."""
    found = ENDINGS.get(Path(file).suffix.lower()) if given is None else given.upper()
    kind = next((each for each in KINDS if each == found), None)
    if kind is None:
        raise UsageError(f"say what {file} is: --type avro, json or protobuf")
    raw = read_file(file)
    if kind == "PROTOBUF":
        from chappe.schemas.protobuf import text_of

        return text_of(raw), kind
    try:
        return raw.decode(), kind
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not text in UTF-8") from None


@app.command("list")
@options.with_groups
def list_(at: AtServer, as_json: options.Json = False) -> None:
    """List subjects: their versions, the latest schema and the compatibility."""
    client = at.client()
    facts: list[dict[str, Any]] = []
    for subject in client.subjects():
        latest = client.version(subject)
        facts.append(
            {
                "subject": subject,
                "versions": client.versions(subject),
                "id": latest.schema.id,
                "type": latest.schema.kind,
                "compatibility": client.compatibility(subject),
            }
        )
    if not facts and not as_json:
        print("no schemas yet; add one with: chappe schemas add SUBJECT FILE")
        return
    rows = [
        [*(str(each[name]) for name in ("subject", "id", "type", "compatibility")), _spans(each["versions"])]
        for each in facts
    ]
    print_listing(as_json, {"subjects": facts}, ("subject", "id", "type", "compatibility", "versions"), rows)


def _spans(versions: list[int]) -> str:
    return f"{versions[0]}" if len(versions) == 1 else f"{versions[0]} to {versions[-1]} ({len(versions)})"


@app.command()
@options.with_groups
def show(
    subject: Subject,
    at: AtServer,
    version: Annotated[int | None, Option(min=1, metavar="N", help="Its version; the latest if not given.")] = None,
    as_json: options.Json = False,
) -> None:
    """Print a schema of a subject."""
    found = at.client().version(subject, version)
    if as_json:
        facts = {"subject": subject, "version": found.version, "id": found.schema.id, "type": found.schema.kind}
        show_json({**facts, "schema": found.schema.text})
    else:
        print(terminal.json_line(found.schema.text.encode()).decode())


@app.command()
@options.with_groups
def add(
    subject: Subject,
    file: File,
    at: AtServer,
    kind: Type = None,
    as_json: options.Json = False,
) -> None:
    """Add a schema as the next version of a subject, if its compatibility allows it."""
    id = at.client().add(subject, *_read(file, kind))
    tell(as_json, {"subject": subject, "id": id}, f"the schema of {subject} has the id {id}")


@app.command()
@options.with_groups
def check(
    subject: Subject,
    file: File,
    at: AtServer,
    kind: Type = None,
    as_json: options.Json = False,
) -> None:
    """Tell whether a schema could be added; print each reason why not, and fail."""
    problems = at.client().check(subject, *_read(file, kind))
    if as_json:
        show_json({"subject": subject, "compatible": not problems, "problems": problems})
    else:
        print("\n".join(map(terminal.line, problems)) or "it can be added")
    if problems:
        raise typer.Exit(1)


@app.command()
@options.with_groups
def delete(
    subject: Subject,
    at: AtServer,
    version: Annotated[int | None, Option(min=1, metavar="N", help="One version; all if not given.")] = None,
    permanent: Annotated[bool, Option("--permanent", help="Remove what is deleted already.")] = False,
    as_json: options.Json = False,
) -> None:
    """Delete a subject, or a version of it. Records stay readable: an id keeps its schema."""
    gone = at.client().delete(subject, version, permanent=permanent)
    tell(as_json, {"subject": subject, "deleted": gone}, f"{many(len(gone), 'version')} of {subject} deleted")


@app.command()
@options.with_groups
def compatibility(
    at: AtServer,
    level: Annotated[str | None, Argument(metavar="LEVEL", help=f"{', '.join(LEVELS)}; printed if not given.")] = None,
    subject: Annotated[str, Option(metavar="SUBJECT", help="Of this one; of all others if not given.")] = "",
) -> None:
    """Print or set which schemas a subject may get."""
    client = at.client()
    if level is not None:
        client.set_compatibility(level.upper(), subject)
    print(client.compatibility(subject))


@app.command()
@serves()
def serve(
    who: ServerIdentity,
    directory: Annotated[Path, Argument(metavar="DIRECTORY", help="Where schemas are kept; made if missing.")] = Path(
        "chappe-data/schemas"
    ),
    listen: Annotated[
        str, Option(metavar="[HOST:]PORT", help="Where clients find it, such as 127.0.0.1:8081.")
    ] = f"127.0.0.1:{SCHEMAS_PORT}",
    as_json: options.Json = False,
) -> None:
    """Serve schemas, to chappe and to clients of Confluent's Schema Registry."""
    from chappe.web.schemas import SchemaServer

    hear_warnings()
    host, port = place(listen)
    with SchemaServer(directory, host, port, security=who.security) as server:
        facts = {"url": server.url, "directory": str(directory)}
        wait(as_json, facts, f"schemas in {directory} at {server.url}", Served(None, who.security, ()), server)
    stopped(as_json, "server of schemas")
