"""``chappe keys``: an authority, and the identities of programs."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from chappe.cli import options
from chappe.cli.console import show_json, tell
from chappe.cli.listing import print_listing
from chappe.cli.watching import watchable
from chappe.data.markup import many
from chappe.errors import UsageError
from chappe.security import (
    PASSPHRASE,
    Keys,
    authority_file,
    authority_key_file,
    certificate_file,
    key_file,
    permissions_file,
    sealed_file,
)

if TYPE_CHECKING:
    from chappe.permissions.rules import Identity
    from chappe.sealing.epochs import GroupKeys

DIRECTORY: Final = Path("keys")
TRAVEL: Final = (
    "if a program of the log runs on one that has them, its towers and forwarders hand them on, and endpoints of the "
    "mesh permissions"
)
SOON: Final = timedelta(days=30)  # before its end an identity is shown as one to renew

app = typer.Typer(
    name="keys",
    help="Make an authority and identities: only your own programs may take part.",
    no_args_is_help=True,
)

Place = Annotated[Path, Argument(envvar="CHAPPE_KEYS", metavar="DIRECTORY", help="Where the files are kept.")]
Directory = Annotated[
    Path, Option("--directory", envvar="CHAPPE_KEYS", metavar="DIRECTORY", help="Where the files are kept.")
]
Hosts = Annotated[
    list[str] | None,
    Option("--host", metavar="HOST", help="A name or address by which others dial it; this machine by default."),
]
Name = Annotated[str, Argument(metavar="NAME", help="Of the identity, and of its files.")]
Group = Annotated[str, Argument(metavar="GROUP", help="For whom topics are sealed.")]
Role = Annotated[str, Option(metavar="ROLE", help="What it may do: administrator, server, producer, consumer, member.")]
Days = Annotated[float, Option(min=1, help="How long it is valid.")]


@app.command()
def init(
    directory: Place = DIRECTORY,
    name: Annotated[str, Option(metavar="NAME", help="Of the first identity.")] = "admin",
    role: Role = "administrator",
    host: Hosts = None,
    days: Annotated[float, Option(min=1, help="How long the authority is valid.")] = 3650,
    as_json: options.Json = False,
) -> None:
    """Make an authority, the file of permissions, and a first identity."""
    from chappe.api import permissions

    made = permissions.init(directory, name, role, hosts=_hosts(host), days=days)
    facts: dict[str, Any] = {"authority": str(authority_file(directory)), "key": str(authority_key_file(directory))}
    facts |= {"permissions": str(permissions_file(directory)), "identity": _facts(made, directory)}
    text = f"made an authority in {directory}: authority.key signs, keep it here and safe\n"
    text += f"made {directory / made.name}, {made.role}; who may do what: {permissions_file(directory)}\n"
    tell(as_json, facts, text + f"now one for each program: chappe keys add NAME --role ROLE --directory {directory}")


@app.command()
def add(
    name: Name,
    role: Role,
    directory: Directory = DIRECTORY,
    host: Hosts = None,
    with_id: Annotated[
        bool, Option("--id/--no-id", help="Bind it to an endpoint id of its own; without one, several may share it.")
    ] = True,
    days: Days = 397,
    encrypt: Annotated[bool, Option("--encrypt", help=f"Encrypt the key; asks, or takes {PASSPHRASE}.")] = False,
    as_json: options.Json = False,
) -> None:
    """Make an identity: NAME.pem and NAME.key, and a place in the permissions."""
    from chappe.api import permissions

    passphrase = None
    if encrypt:
        passphrase = os.environ.get(PASSPHRASE) or typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True)
    endpoint = "new" if with_id else None
    hosts = _hosts(host)
    made = permissions.add(directory, name, role, hosts=hosts, endpoint=endpoint, days=days, passphrase=passphrase)
    text = f"made {directory / name}, {role}, for {', '.join(hosts)}; its machine needs:\n  "
    text += " ".join(str(each) for each in _needed(directory, name)) + also(directory)
    tell(as_json, {**_facts(made, directory), "hosts": list(hosts)}, text)


@app.command()
def renew(name: Name, directory: Directory = DIRECTORY, days: Days = 397, as_json: options.Json = False) -> None:
    """Extend the life of an identity, with the same keys and endpoint id."""
    from chappe.api import permissions

    made = permissions.renew(directory, name, days=days)
    text = f"{name} expires on {made.expires:%Y-%m-%d}; its machine needs the new {certificate_file(directory, name)}"
    tell(as_json, _facts(made, directory), f"{text}, and all machines the new {permissions_file(directory)}")


@app.command()
def revoke(name: Name, directory: Directory = DIRECTORY, as_json: options.Json = False) -> None:
    """Revoke an identity: nobody accepts it any more."""
    from chappe.api import permissions

    made = permissions.revoke(directory, name)
    text = f"revoked {name}; every machine needs the new {permissions_file(directory)}{also(directory)}; {TRAVEL}"
    tell(as_json, _facts(made, directory), text)


@app.command()
def seal(
    group: Group,
    topic: Annotated[list[str], Option("--topic", metavar="TOPIC", help="Or `prefix*`; may be repeated.")],
    role: Annotated[list[str] | None, Option("--role", metavar="ROLE", help="Who belongs to it; repeatable.")] = None,
    name: Annotated[list[str] | None, Option("--name", metavar="NAME", help="Likewise.")] = None,
    directory: Directory = DIRECTORY,
    as_json: options.Json = False,
) -> None:
    """Seal topics for a group: nobody else can read them, not even stores and forwarders."""
    from chappe.api import permissions

    made = permissions.seal(directory, group, topic, roles=role or (), names=name or ())
    _tell_group(
        made, directory, as_json, f"sealed {', '.join(topic)} for {group}, {many(len(made.members()), 'member')}"
    )


@app.command()
def rotate(
    group: Group,
    older_than: Annotated[
        float | None, Option(min=0, metavar="DAYS", help="Only if the newest keys are older than this.")
    ] = None,
    directory: Directory = DIRECTORY,
    as_json: options.Json = False,
) -> None:
    """Give a group new keys for what is sealed from now on."""
    from chappe.api import permissions

    older = None if older_than is None else timedelta(days=older_than)
    made = permissions.rotate(directory, group, older_than=older)
    if made is None:
        tell(as_json, {"group": group, "rotated": False}, f"the keys of {group} are not that old")
        return
    _tell_group(made, directory, as_json, f"{group} has new keys: epoch {made.newest.number}")


@app.command()
def give(
    name: Name,
    group: Group,
    since: Annotated[int, Option(min=1, metavar="EPOCH", help="The first of which it gets the key.")] = 1,
    directory: Directory = DIRECTORY,
    as_json: options.Json = False,
) -> None:
    """Let a member of a group read records sealed before it joined."""
    from chappe.api import permissions

    made = permissions.give(directory, name, group, since)
    _tell_group(made, directory, as_json, f"{name} can read what was sealed for {group} since epoch {since}")


@app.command()
def token(
    name: Name,
    hours: Annotated[float, Option(min=0.01, max=397 * 24, help="How long it counts.")] = 1.0,
    directory: Directory = DIRECTORY,
    as_json: options.Json = False,
) -> None:
    """Print a token that makes its holder, a web page or a program, this identity over HTTP."""
    from chappe.api.tokens import make_token

    now = datetime.now(UTC)
    made = make_token(Keys(directory / name, os.environ.get(PASSPHRASE)), hours * 3600, now)
    expires = now + timedelta(hours=hours)
    if as_json:
        show_json({"name": name, "token": made, "expires": expires.isoformat()})
    else:
        print(made)


@app.command(name="list")
@watchable
def list_(directory: Directory = DIRECTORY, as_json: options.Json = False) -> None:
    """Show all identities, and when they expire."""
    from chappe.api import permissions

    found = permissions.read(directory)
    rows = [_facts(each, directory) for each in found.identities.values()]
    facts = {"version": found.version, "expires": found.expires.isoformat(), "identities": rows}
    cells = ((row["name"], row["role"], row["state"], row["expires"][:10], row["endpoint"] or "any") for row in rows)
    print_listing(as_json, facts, ("name", "role", "state", "expires", "endpoint id"), cells)


def _tell_group(made: GroupKeys, directory: Path, as_json: bool, text: str) -> None:
    path = sealed_file(directory, made.group)
    facts = {"group": made.group, "rotated": True, "epoch": made.newest.number, "members": sorted(made.members())}
    text += f"; machines of its members need {path} and {permissions_file(directory)}; {TRAVEL}"
    tell(as_json, {**facts, "file": str(path)}, text)


def state(identity: Identity, now: datetime) -> str:
    if identity.revoked is not None:
        return "revoked"
    if now >= identity.expires:
        return "expired"
    return "expires soon" if now >= identity.expires - SOON else "valid"


def _facts(made: Identity, directory: Path) -> dict[str, Any]:
    from chappe.permissions.text import z85

    return {
        "name": made.name,
        "role": made.role,
        "state": state(made, datetime.now(UTC)),
        "expires": made.expires.isoformat(),
        "revoked": made.revoked.isoformat() if made.revoked is not None else None,
        "endpoint": str(made.endpoint) if made.endpoint is not None else None,
        "curve": z85(made.curve),
        "files": [str(each) for each in _needed(directory, made.name)],
    }


def _needed(directory: Path, name: str) -> tuple[Path, ...]:
    own = (certificate_file(directory, name), key_file(directory, name))
    return (authority_file(directory), permissions_file(directory), *own)


def also(directory: Path) -> str:
    """Name the files that members of groups need, if there are groups."""
    found = sorted(directory.glob(sealed_file(Path(), "*").name))
    return "".join(f"; and members of the group {each}" for each in found)


def _hosts(given: list[str] | None) -> tuple[str, ...]:
    if given is None:
        return ("localhost", "127.0.0.1", "::1")
    if not all(given):
        raise UsageError("a host is empty: --host HOST")
    return tuple(given)
