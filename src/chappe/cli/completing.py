"""Names that a shell completes: of topics, partitions, groups and data stores that are there.

A shell waits for the answer at each press of Tab, and asking stores takes longer than people wait. So names come from
a file in the user's cache, one for each place and identity; where it is old, a process of its own brings it up to date
behind the answer, if anybody listens at the place. The first Tab at a place finds nothing yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal

from typer import Context

from chappe.cli import options
from chappe.cli.console import host_and_ports
from chappe.cli.options import source_of
from chappe.cli.units import address
from chappe.errors import ChappeError
from chappe.system import settings
from chappe.system.places import users

FRESH_S: Final = 5.0
STARTED_S: Final = 15.0  # a process that was started so lately may still bring news
LISTEN_S: Final = 0.05  # a machine that does not answer so soon is asked by that process, not by us


def known(context: Context, kind: str) -> list[str]:
    """Return the names of a kind, as far as they are known at the place that the command line so far says.

    Raises ChappeError, OSError or ValueError where that cannot be told.
    """

    def typed(name: str) -> Any:
        return context.params.get(name) if source_of(context, name) == "COMMANDLINE" else None

    if file := context.find_root().params.get("config_file"):
        os.environ[settings.CONFIG] = os.path.abspath(os.path.expanduser(file))
    options.be(typed("acting"), bool(typed("plain")))
    place: dict[str, Any]
    if kind == "stores":
        from chappe.cli.mesh import HERE

        place = {"peers": typed("peers") or os.environ.get("CHAPPE_MESH_PEERS", HERE).split(",")}
    else:
        forwarders = typed("forwarders") or (None if typed("tower") else settings.forwarders())
        place = {"forwarders": forwarders} if forwarders else {"tower": settings.tower(typed("tower"))}
        place["listen"] = settings.listen(typed("listen"))
    file = _file(place)
    found: dict[str, list[str]] = {}
    with suppress(OSError):
        if time.time() - file.stat().st_mtime > FRESH_S:
            _bring(place, file)
        found = json.loads(file.read_bytes())
        return found.get(kind, [])
    _bring(place, file)
    return []


def _file(place: dict[str, Any]) -> Path:
    said = repr((sorted(place.items()), settings.identity()))
    return users("cache") / "names" / f"{hashlib.sha256(said.encode('utf-8', 'replace')).hexdigest()[:24]}.json"


def _bring(place: dict[str, Any], file: Path) -> None:
    """Start the process that asks, unless one was started lately or nobody listens there."""
    started = file.with_suffix(".started")
    with suppress(OSError):
        if time.time() - started.stat().st_mtime < STARTED_S:
            return
    if not any(map(_may_listen, _addresses(place))):
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    started.touch()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("_CHAPPE", "_TYPER", "COMP_"))}
    command = [sys.executable, "-m", "chappe.cli.names_there", str(file), json.dumps(place)]
    none = subprocess.DEVNULL
    subprocess.Popen(command, env=env, stdin=none, stdout=none, stderr=none, start_new_session=True)


def _addresses(place: dict[str, Any]) -> Iterable[tuple[str, int]]:
    for each in place.get("peers", ()):
        yield address(each.rpartition("@")[2])
    for each in (place.get("tower") or place.get("forwarders") or "").split(","):
        if each:
            yield host_and_ports(each)[:2]


def _may_listen(where: tuple[str, int]) -> bool:
    """False if nobody listens; names of machines are not looked up here, as that may take long."""
    try:
        ip_address(where[0])
    except ValueError:
        if where[0] != "localhost":
            return True
    try:
        with socket.create_connection(where, LISTEN_S):
            return True
    except TimeoutError:
        return True
    except OSError:
        return False


def names_of(kind: Literal["topics", "partitions", "groups", "members", "stores"]) -> Callable[..., list[str]]:
    """Return what completes an argument or option by names that are there."""

    def complete(ctx: Context, incomplete: str) -> list[str]:
        with suppress(ChappeError, OSError, ValueError):
            return [each for each in known(ctx, kind) if each.startswith(incomplete)]
        return []

    return complete


TOPICS: Final = names_of("topics")
PARTITIONS: Final = names_of("partitions")
GROUPS: Final = names_of("groups")
