"""``chappe map serve`` and ``witness``: the server of a shared map, and its display; the witness of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from typer import Option

from chappe.cli import options
from chappe.cli.console import allow_files, hear_warnings
from chappe.cli.serving import STEP_S, Display, KeptEntries, Numbers, ServerIdentity, serves, show, stopped, wait
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
COLUMNS: Final = ("state", "keys", "updates", "updates/s", "clients", "malformed")


@serves()
def serve(
    who: ServerIdentity,
    kept: KeptEntries,
    numbers: Numbers,
    at: Annotated[
        str,
        Option(
            "--at",
            envvar="CHAPPE_MAP_AT",
            metavar="ADDRESS",
            help="Where to listen: HOST[:PORT], `*` for any HOST, port 0 for any. The two next ports are taken, too.",
        ),
    ] = f"{TOWER_HOST}:{MAP_PORT}",
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
            help="Where the two exchange their states, if not on the fourth port: two HOST:PORT with a comma.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Serve a shared map, and show what is in it and who follows it."""
    from chappe import MapServer

    hear_warnings()
    allow_files(MAP_SERVER_FILES)
    as_model: Any = model
    links: Any = None if link is None else tuple(link.split(","))
    if links is not None and len(links) != 2:
        raise UsageError(f"{link!a} is not two addresses with a comma: this server's and its partner's")
    with MapServer(
        at,
        backend=kept.backend,
        path=kept.path,
        model=as_model,
        name=name,
        partner=partner,
        role=role,
        pair=pair,
        witness=witness,
        link=links,
        security=who.security,
    ) as server:
        status = server.status()
        facts = {"address": server.address, **kept.facts}
        title = f"map server at {server.address}"
        started.note(f"map server {server.address}")
        display = _MapServerDisplay(server, status.sequence, title, as_json)
        display.alone = partner is None
        served = numbers.of(who.security, server)
        show(display, facts | {"keys": status.keys}, f"{title}, {many(status.keys, 'key')}", served)
    stopped(as_json, title)


@serves()
def witness(
    who: ServerIdentity,
    numbers: Numbers,
    path: Annotated[Path, Option(metavar="PATH", help="A file for what it grants, which must not be lost.")],
    listen: Annotated[
        str, Option("--at", metavar="ADDRESS", help="Where to listen: HOST:PORT, `*` for any HOST, port 0 for any.")
    ] = f"{TOWER_HOST}:{WITNESS_PORT}",
    as_json: options.Json = False,
) -> None:
    """Decide which server of a pair goes on while the two do not see each other; for any number of pairs."""
    from chappe import Witness

    hear_warnings()
    with Witness(listen, path=path, security=who.security) as made:
        facts = {"address": made.address, "path": str(path)}
        wait(as_json, facts, f"witness at {made.address}", numbers.of(who.security, made), made)


class _MapServerDisplay(Display):
    NEWS = frozenset({"BecameActive", "BecamePassive", "MapCopied", "Paired", "PartnerFound"})
    alone = False  # one that has no partner is active, which is no news

    def __init__(self, server: MapServer, first: int, title: str, as_json: bool) -> None:
        super().__init__(title, as_json)
        self._server = server
        self._first = first

    def look(self) -> None:
        self._server.wait(STEP_S)
        events = self._server.events()
        self.say_news(() if self.alone else events)
        self._status = status = self._server.status()
        if not status.active:  # what it orders itself is counted
            self._first = status.sequence
            self.counters.forget("updates")
        self._per_s = self.per_s("updates", status.sequence)
        self._updates = max(0, status.sequence - self._first)

    def picture(self) -> RenderableType:
        from chappe.cli.screen import Fitting, titled

        status = self._status
        row = (_state(status), f"{status.keys:,}", f"{self._updates:,}", f"{self._per_s:,.0f}",
               f"{status.clients:,}", f"{status.malformed:,}")  # fmt: skip
        return titled(self.title, Fitting(COLUMNS, [row], left=COLUMNS[:1], spare=("malformed", "updates")))

    def lines(self) -> Iterator[str]:
        status = self._status
        malformed = f", {status.malformed:,} malformed messages" if status.malformed else ""
        state = "" if status.active and status.pair is None else f"{_state(status)}, "
        updates = f"{many(self._updates, 'update')} ({self._per_s:,.0f}/s)"
        yield f"{state}{many(status.keys, 'key')}, {updates}, {many(status.clients, 'client')}{malformed}"

    def report(self) -> dict[str, Any]:
        return asdict(self._status) | {"updates": self._updates, "updates_per_s": round(self._per_s, 1)}


def _state(status: MapServerStatus) -> str:
    if not status.active:
        return "passive"
    return "active" if status.pair is None else f"active ({status.pair.confirms})"
