"""``chappe keys``: an authority, and certificates for endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from typer import Argument, Option

from chappe.cli import options
from chappe.cli.console import tell
from chappe.security import authority_file, authority_key_file, key_file

DIRECTORY: Final = Path("keys")
PASSPHRASE: Final = "CHAPPE_KEY_PASSPHRASE"

app = typer.Typer(
    name="keys",
    help="Make an authority and certificates, so that only your own endpoints may peer.",
    no_args_is_help=True,
)

Directory = Annotated[
    Path, Option("--directory", envvar="CHAPPE_KEYS", metavar="DIRECTORY", help="Where the files are kept.")
]


@app.command()
def authority(
    directory: Annotated[Path, Argument(envvar="CHAPPE_KEYS", metavar="DIRECTORY")] = DIRECTORY,
    days: Annotated[float, Option(min=1, help="How long it is valid.")] = 3650,
    as_json: options.Json = False,
) -> None:
    """Make an authority: authority.pem for every endpoint, and authority.key, which signs: keep it safe."""
    from chappe.api.keys import make_authority

    made = make_authority(directory, days=days)
    key = str(authority_key_file(directory))
    following = f"now make a certificate for each endpoint: chappe keys make NAME --host HOST --directory {directory}"
    tell(as_json, {"authority": str(made), "key": key}, f"made {made} and {key}\n{following}")


@app.command()
def make(
    name: Annotated[str, Argument(metavar="NAME", help="Name of the endpoint, and of its files.")],
    directory: Directory = DIRECTORY,
    host: Annotated[
        list[str] | None,
        Option(metavar="HOST", help="A name or address by which others dial it; this machine by default."),
    ] = None,
    with_id: Annotated[
        bool, Option("--id/--no-id", help="Bind it to an endpoint id of its own; without one, several may share it.")
    ] = True,
    days: Annotated[float, Option(min=1, help="How long it is valid.")] = 397,
    encrypt: Annotated[bool, Option("--encrypt", help=f"Encrypt the key; asks, or takes {PASSPHRASE}.")] = False,
    as_json: options.Json = False,
) -> None:
    """Make the certificate and key of an endpoint: NAME.pem and NAME.key."""
    import os
    from uuid import uuid4

    from chappe.api.keys import make_certificate

    passphrase = None
    if encrypt:
        passphrase = os.environ.get(PASSPHRASE) or typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True)
    hosts = host if host is not None else ["localhost", "127.0.0.1", "::1"]
    endpoint_id = str(uuid4()) if with_id else None
    made = make_certificate(directory, name, hosts=hosts, id=endpoint_id, days=days, passphrase=passphrase)
    key = str(key_file(directory, name))
    facts = {"certificate": str(made), "key": key, "id": endpoint_id, "hosts": hosts}
    text = f"made {made} and {key} for {', '.join(hosts)}{f', id {endpoint_id}' if with_id else ''}\n"
    text += f"in Python: Endpoint(security=Tls.of({str(directory)!r}, {name!r}))"
    tell(as_json, {**facts, "authority": str(authority_file(directory))}, text)
