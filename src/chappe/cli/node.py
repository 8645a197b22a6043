"""``chappe node``: an endpoint of the mesh that passes on what others publish."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from typer import Argument, Context

from chappe.cli import dashboard, declared, mesh, network, options, tap
from chappe.cli.auditing import audited
from chappe.cli.console import hear_warnings, say, tell
from chappe.data.markup import many
from chappe.errors import ConfigError, UsageError
from chappe.system import started
from chappe.system.toml import TomlFile, TomlSection

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chappe import Endpoint
    from chappe.security import Keys, Security

LOOPBACK: Final = "127.0.0.1"
FOUND: Final = "chappe.node"  # in the context's ``meta``: the file's own keys
STEP_S: Final = 0.5
REPORT_S: Final = 5.0  # between two lines of JSON
SMOOTH_S: Final = 2.0  # rates are of about the last seconds
COLUMNS: Final = ("peer", "address", "", "status", "in/s", "out/s", "waiting", "dropped")


def _heed_file(context: Context, value: str | None) -> str | None:
    """Read the file before the options: its settings count more than those of ``chappe.toml``."""
    if value is not None and not context.resilient_parsing:
        own, said = load(value)
        context.meta[FOUND] = own
        if own.websocket is not None:
            said |= {"websocket": str(own.websocket.listen), "origins": list(own.websocket.origins)}
        if own.tap is not None:
            said["at_tap"] = str(own.tap)
        context.meta[declared.FILE] = (value, said)
        context.default_map = {**(context.default_map or {}), **said}
    return value


def _is_typed(context: Context, parameter: str) -> bool:
    return declared.source_of(context, parameter) == "COMMANDLINE"


def _lasting(context: Context) -> dict[str, Any]:
    """The options on the command line that are for a node that stays."""
    looking = {"file", "peers", "endpoint_id", "as_json"}
    looking |= {each.name for group in (mesh.Trust, mesh.Life, network.Map) for each in fields(group)}
    given = [each for each in context.command.params if each.expose_value and each.name not in looking]
    names = {each.name: "--[no-]forwarding" if each.name == "forwarding" else each.opts[0] for each in given}
    return {name: True for parameter, name in names.items() if parameter and _is_typed(context, parameter)}


@audited()
@options.with_groups
def node(
    trust: mesh.Trust,
    picture: network.Map,
    queues: mesh.Queues,
    dialling: mesh.DialOptions,
    context: Context,
    file: Annotated[
        str | None,
        Argument(
            metavar="[FILE]", help="A TOML file that says the same as the options.", is_eager=True, callback=_heed_file
        ),
    ] = None,
    listen: mesh.Listen = None,
    peers: mesh.LastingPeers = None,
    forward: Annotated[
        list[str] | None,
        declared.of("mesh.forward").option(help="Have originals send this prefix here too, to be passed on to others."),
    ] = None,
    forwarding: mesh.Forwarding = True,
    last_values: Annotated[
        int,
        declared.of("mesh.last_values").option(
            help="Keep the newest message of N topics, for subscribers that come later with --last."
        ),
    ] = 0,
    endpoint_id: mesh.EndpointId = None,
    websocket: Annotated[
        str | None,
        declared.of("node.websocket").option(help="Serve web pages and other WebSocket clients there."),
    ] = None,
    origins: Annotated[
        list[str] | None,
        declared.of("node.origins").option(
            "--origin", help="Web pages that may connect, besides those of this machine."
        ),
    ] = None,
    recording_directory: Annotated[
        str | None,
        declared.of("mesh.recording_directory").option(
            help="Record the shapes of what is published here, for `chappe mesh generate`."
        ),
    ] = None,
    output_generator_file_cap: Annotated[
        int | None,
        declared.of("mesh.output_generator_file_cap").option(help="How many messages to record at most."),
    ] = None,
    at_tap: Annotated[
        str | None,
        declared.of("node.tap").option("--tap", help="Let `chappe tap` see there what passes; HOST: 127.0.0.1."),
    ] = None,
    look: dashboard.Wanted = False,
    as_json: options.Json = False,
) -> None:
    """Run an endpoint of the mesh: it listens, peers, passes on, and shows its peers and their rates.

    With --map it shows the network instead, and ends.
    """
    hear_warnings()
    picture.check(as_json, _lasting(context))
    said: NodeFile = context.meta.get(FOUND, NodeFile())
    of_file = context.meta.get(declared.FILE, (None, {}))[1]
    security = _trust(said, trust).security()
    joined = {
        name: [*of_file.get(name, ()), *(given or ())] if _is_typed(context, name) else given or []
        for name, given in (("listen", listen), ("peers", peers), ("forward", forward), ("origins", origins))
    }
    if picture.wanted:
        network.show(picture, queues, security, endpoint_id, joined["peers"], as_json)
        return
    heard = mesh.addresses(security, joined["listen"] or [mesh.HERE])
    dialled = mesh.addresses(security, joined["peers"])
    if websocket is None and _is_typed(context, "origins"):
        raise UsageError("--origin is for web pages, which need --websocket PORT")
    web = _web(said.websocket, security, websocket, joined["origins"])
    server = None
    with ExitStack() as stack:
        recording: dict[str, Any] = {"recording_directory": recording_directory}
        if recording_directory is not None or _is_typed(context, "output_generator_file_cap"):
            recording["output_generator_file_cap"] = output_generator_file_cap
        endpoint = queues.endpoint(
            security, id=endpoint_id or said.id, forwarding=forwarding, last_values=last_values, **recording
        )
        stack.enter_context(endpoint)
        statuses = endpoint.statuses()
        facts: dict[str, Any] = {"id": endpoint.id, "listen": mesh.listen(endpoint, heard)}
        if web is not None:
            from chappe.web.server import WebSocketServer

            server = stack.enter_context(WebSocketServer(endpoint, **web))
            facts["websocket"] = server.url
        if at_tap is not None:
            host, port = tap.place(at_tap)
            facts["tap"] = mesh.shown((host, endpoint.tap(host, port)))
        endpoint.forward(*joined["forward"])
        dialling.keep(endpoint, dialled)
        if look:
            peer = ["--peer", facts["listen"][0]]
            facts["dashboard"] = stack.enter_context(dashboard.beside(look, *peer, *_trust(said, trust).arguments))
        title = f"node {endpoint.id} at {', '.join(facts['listen'])}"
        if server is not None:
            title += f", {server.url}"
        if look:
            title += f", dashboard at {facts['dashboard']}"

        def more() -> tuple[str, dict[str, Any]]:
            clients = 0 if server is None else server.clients
            return ("", {}) if server is None else (many(clients, "WebSocket client"), {"websocket_clients": clients})

        started.note(*(f"endpoint {each}" for each in facts["listen"]))
        with suppress(KeyboardInterrupt):  # the proper end, as soon as somebody knows that it runs
            tell(as_json, facts, f"{title}; Ctrl-C stops")
            follow(endpoint, statuses, mesh.PeerNotices(come_and_go=True, quiet=as_json), title, as_json, more)
    if not as_json:
        say("node stopped")


def _trust(said: NodeFile, trust: mesh.Trust) -> mesh.Trust:
    """What the options ask for; what the file says if they ask for nothing."""
    if trust != mesh.Trust():
        return trust
    certificates = None if said.tls is None else (Path(said.tls.directory), said.tls.name)
    return mesh.Trust(certificates, said.security == "anonymous", said.security == "plain")


def _web(
    said: WebSocketSection | None, security: Security | Keys, websocket: str | None, origins: list[str]
) -> dict[str, Any] | None:
    """The arguments of the WebSocket face, if it is wanted."""
    if websocket is None:
        return None
    ((host, port),) = mesh.addresses(security, [f":{websocket}" if websocket.isdecimal() else websocket])
    policy = "disconnect" if said is None else said.on_full
    return {"host": host, "port": port, "origins": origins, "on_full": policy}


class TlsSection(TomlSection, frozen=True):
    """Certificates: their directory, seen from the file's own, and the name of ours."""

    directory: str
    name: str


class WebSocketSection(TomlSection, frozen=True):
    """The WebSocket face; see ``chappe.web.server.WebSocketServer``."""

    listen: str | int
    origins: tuple[str, ...] = ()
    on_full: Literal["disconnect", "drop_oldest", "drop_newest"] = "disconnect"


class NodeFile(TomlSection, frozen=True):
    """The keys of a file beside those of ``[mesh]``; everything may be left out."""

    id: str | None = None
    security: Literal["plain", "anonymous"] | None = None
    tls: TlsSection | None = None
    websocket: WebSocketSection | None = None
    tap: str | int | None = None  # [HOST:]PORT


def load(file: str) -> tuple[NodeFile, dict[str, Any]]:
    """Read a file: its own keys, and the settings of the mesh. Raises ConfigError, whose text names the line."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"there is no file {file}")
    source = TomlFile.read(path)
    found = source.convert(source.tables, declared.schema("mesh", NodeFile))
    said = declared.taken(source, found, "mesh", ())
    if "recording_directory" in said:  # seen from the file's own
        said["recording_directory"] = str(path.parent / Path(said["recording_directory"]).expanduser())
    if found.tls is not None:
        directory = path.parent / Path(found.tls.directory).expanduser()
        found = msgspec.structs.replace(found, tls=TlsSection(directory=str(directory), name=found.tls.name))
    return found, said


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A peer, or what is being dialled, at one moment. Rates are frames a second."""

    id: str | None
    address: str
    dialled: bool
    original: bool
    status: str
    in_per_s: float
    out_per_s: float
    received: int
    sent: int
    waiting: int
    dropped: int


class PeerRates:
    """Looks at the peers of an endpoint again and again."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._before: dict[str, tuple[float, int, int, float, float]] = {}  # time, counters, rates

    def look(self) -> list[PeerRow]:
        """How things are now."""
        now = time.monotonic()
        rows = []
        after = {}
        for info in self._endpoint.peers():
            address = mesh.shown(info.address)
            key = f"{info.id} {address}"
            counters = (info.received, info.sent)
            rates = self._rates(key, now, counters)
            after[key] = (now, *counters, *rates)
            rate_in, rate_out = (round(each, 1) for each in rates)
            place = (info.id, address, info.dialled, info.original, info.status.name.lower())
            rows.append(PeerRow(*place, rate_in, rate_out, *counters, info.buffered, info.dropped))
        self._before = after
        return rows

    def _rates(self, key: str, now: float, counters: tuple[int, int]) -> tuple[float, float]:
        if key not in self._before:
            return 0.0, 0.0
        then, received, sent, rate_in, rate_out = self._before[key]
        passed = max(now - then, 1e-6)
        weight = min(1.0, passed / SMOOTH_S)
        return (
            rate_in + weight * ((counters[0] - received) / passed - rate_in),
            rate_out + weight * ((counters[1] - sent) / passed - rate_out),
        )


def follow(
    endpoint: Endpoint,
    statuses: Any,
    teller: Callable[[Any], None],
    title: str,
    as_json: bool,
    more: Callable[[], tuple[str, dict[str, Any]]],
) -> None:
    """Show peers until Ctrl-C or SIGTERM, and what there is more, for people and for a machine; tell events.

    Raises Closed if the endpoint halts.
    """
    from chappe.cli.screen import People, Screen

    watch = PeerRates(endpoint)
    report_at = time.monotonic() + REPORT_S
    with Screen(People(stderr=True), quiet=as_json) as screen:
        while True:
            time.sleep(STEP_S)  # waiting for an event would make this thread drive, in the way of the web's event loop
            for event in statuses.poll():
                teller(event)
            rows = watch.look()
            note, facts = more()
            screen.show(partial(table, title, rows, note), partial(lines, rows, note))
            if as_json and time.monotonic() >= report_at:
                report_at += REPORT_S
                print(json.dumps({**facts, "peers": [asdict(row) for row in rows]}), flush=True)


def table(title: str, rows: Sequence[PeerRow], note: str = "") -> RenderableType:
    """The picture for a terminal."""
    from rich.console import Group
    from rich.markup import escape

    from chappe.cli.screen import Fitting

    cells = [
        (
            (row.id or "")[:8],
            row.address,
            ("original, " if row.original else "") + ("dialled" if row.dialled else "dialled in"),
            row.status,
            f"{row.in_per_s:,.0f}",
            f"{row.out_per_s:,.0f}",
            f"{row.waiting:,}",
            f"{row.dropped:,}",
        )
        for row in rows
    ]
    made = Fitting(COLUMNS, cells, left=COLUMNS[:4], spare=("", "peer", "dropped", "waiting", "out/s"))
    return Group(escape(title), made if rows else "no peers yet", *([note] if note else []))


def lines(rows: Sequence[PeerRow], note: str = "") -> Iterator[str]:
    """The same without a terminal."""
    peered = [row for row in rows if row.id is not None]
    rates = f"{sum(row.in_per_s for row in peered):,.0f} in/s, {sum(row.out_per_s for row in peered):,.0f} out/s"
    waiting = sum(row.waiting for row in rows)
    dropped = sum(row.dropped for row in rows)
    yield f"{many(len(peered), 'peer')}, {rates}, {waiting} waiting, {dropped} dropped{', ' if note else ''}{note}"
    for row in rows:
        if row.id is None:
            yield f"no peering with {row.address} yet: {row.status}"
