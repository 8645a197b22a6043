"""``chappe map serve`` and ``witness``: the server of a shared map, and what it shows; the witness of pairs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from typer import Option

from chappe.cli import options
from chappe.cli.auditing import audited
from chappe.cli.console import allow_files, hear_warnings, say, tell
from chappe.cli.node import REPORT_S, STEP_S
from chappe.data.markup import many
from chappe.defaults import MAP_PORT, MAP_SERVER_FILES, TOWER_HOST, WITNESS_PORT
from chappe.errors import UsageError
from chappe.system import started

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chappe.api.kv.map_server import MapServer, MapServerStatus

MODEL: TypeAlias = Annotated[
    int | None,
    Option(
        min=5, max=6, help="How programs of the ZeroMQ Guide's write: 5, to one server, or 6, to a pair; by default 5 "
        "with one server."
    ),
]  # fmt: skip
NAME: TypeAlias = Annotated[str, Option(metavar="NAME", help="Of the map, if there are several.")]
_NEWS: Final = frozenset({"BecameActive", "BecamePassive", "MapCopied", "Paired", "PartnerFound"})
COLUMNS: Final = ("state", "keys", "updates", "updates/s", "clients", "malformed")


@audited()
def serve(
    at: Annotated[
        str,
        Option(
            "--at",
            envvar="CHAPPE_MAP_AT",
            metavar="ADDRESS",
            help="Where to listen: HOST[:PORT], `*` for any HOST, port 0 for any. The two next ports are taken, too.",
        ),
    ] = f"{TOWER_HOST}:{MAP_PORT}",
    backend: Annotated[
        Literal["memory", "sqlite", "rocksdb"],
        Option(help="Where the map is kept; in memory only while the command runs."),
    ] = "memory",
    path: Annotated[
        Path | None, Option(metavar="PATH", help="A file for sqlite, a directory for rocksdb; made if missing.")
    ] = None,
    model: MODEL = None,
    name: NAME = "",
    partner: Annotated[
        str | None,
        Option(metavar="ADDRESS", help="The other server of a pair, HOST[:PORT]: one takes over for the other."),
    ] = None,
    role: Annotated[Literal["primary", "backup"] | None, Option(help="Which server of the pair this is.")] = None,
    pair: Annotated[str, Option(metavar="NAME", help="The pair's name, where a witness has several.")] = "",
    witness: Annotated[
        str | None, Option(metavar="ADDRESS", help="The pair's witness, HOST:PORT (`chappe map witness`).")
    ] = None,
    link: Annotated[
        str | None,
        Option(
            metavar="OWN,PARTNER",
            help="Where the two tell each other of themselves, if not on the fourth port: two HOST:PORT with a comma.",
        ),
    ] = None,
    acting: options.Acting = None,
    plain: options.Plain = False,
    as_json: options.Json = False,
) -> None:
    """Serve a shared map, and show what is in it and who follows it."""
    from chappe import MapServer

    options.be(acting)
    hear_warnings()
    allow_files(MAP_SERVER_FILES)
    if (path is None) is not (backend == "memory"):
        raise UsageError(
            "memory has no path: give --backend sqlite or rocksdb with --path"
            if backend == "memory"
            else f"the {backend} backend needs a path: give --path"
        )
    as_model: Any = model
    links: Any = None if link is None else tuple(link.split(","))
    if links is not None and len(links) != 2:
        raise UsageError(f"{link!a} is not two addresses with a comma: this server's and its partner's")
    with MapServer(
        at,
        backend=backend,
        path=path,
        model=as_model,
        name=name,
        partner=partner,
        role=role,
        pair=pair,
        witness=witness,
        link=links,
        security="plain" if plain else None,
    ) as server:
        status = server.status()
        facts = {"address": server.address, "backend": backend, "path": None if path is None else str(path)}
        title = f"map server at {server.address}"
        started.note(f"map server {server.address}")
        with suppress(KeyboardInterrupt):  # the proper end
            tell(as_json, facts | {"keys": status.keys}, f"{title}, {many(status.keys, 'key')}; Ctrl-C stops")
            if partner is None:
                server.events()  # that it serves is nothing to be told of one alone
            _follow(server, status.sequence, title, as_json)
    if not as_json:
        say(f"{title} stopped")


@audited()
def witness(
    path: Annotated[Path, Option(metavar="PATH", help="A file for what it grants, which must not be lost.")],
    listen: Annotated[
        str, Option("--at", metavar="ADDRESS", help="Where to listen: HOST:PORT, `*` for any HOST, port 0 for any.")
    ] = f"{TOWER_HOST}:{WITNESS_PORT}",
    acting: options.Acting = None,
    plain: options.Plain = False,
    as_json: options.Json = False,
) -> None:
    """Decide which server of a pair goes on while the two do not see each other; for any number of pairs."""
    from chappe import Witness

    options.be(acting)
    hear_warnings()
    with (
        Witness(listen, path=path, security="plain" if plain else None) as made,
        suppress(KeyboardInterrupt),
    ):  # the proper end
        tell(as_json, {"address": made.address, "path": str(path)}, f"witness at {made.address}; Ctrl-C stops")
        made.wait()


def _follow(server: MapServer, first: int, title: str, as_json: bool) -> None:
    """Show how it fares until Ctrl-C. Raises MemberStopped if it met a defect."""
    from chappe.cli.screen import People, Screen

    looked_at, sequence = time.monotonic(), first
    report_at = looked_at + REPORT_S
    with Screen(People(stderr=True), quiet=as_json) as screen:
        while True:
            server.wait(STEP_S)
            for event in server.events():
                if not as_json and type(event).__name__ in _NEWS:  # what is wrong is told as it comes
                    say(str(event))
            status, now = server.status(), time.monotonic()
            if not status.active:  # what it orders itself is counted
                first = sequence = status.sequence
            rate = (status.sequence - sequence) / (now - looked_at)
            looked_at, sequence = now, status.sequence
            updates = max(0, sequence - first)
            screen.show(lambda: _table(title, status, updates, rate), lambda: _lines(status, updates, rate))  # noqa: B023
            if as_json and now >= report_at:
                report_at += REPORT_S
                facts = asdict(status) | {"updates": updates, "updates_per_s": round(rate, 1)}
                print(json.dumps(facts), flush=True)


def _table(title: str, status: MapServerStatus, updates: int, rate: float) -> RenderableType:
    from rich.console import Group
    from rich.markup import escape

    from chappe.cli.screen import Fitting

    state = _state(status)
    row = (state, *(f"{each:,}" for each in (status.keys, updates)), f"{rate:,.0f}", f"{status.clients:,}",
           f"{status.malformed:,}")  # fmt: skip
    return Group(escape(title), Fitting(COLUMNS, [row], left=COLUMNS[:1], spare=("malformed", "updates")))


def _state(status: MapServerStatus) -> str:
    """Whether it serves; of one of a pair also whether the other one has everything."""
    if not status.active:
        return "passive"
    return "active" if status.pair is None else f"active ({status.pair.confirms})"


def _lines(status: MapServerStatus, updates: int, rate: float) -> Iterator[str]:
    malformed = f", {status.malformed:,} malformed messages" if status.malformed else ""
    state = "" if status.active and status.pair is None else f"{_state(status)}, "
    clients = many(status.clients, "client")
    yield f"{state}{many(status.keys, 'key')}, {many(updates, 'update')} ({rate:,.0f}/s), {clients}{malformed}"
