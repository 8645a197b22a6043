"""``chappe node``: an endpoint of the mesh that passes on what others publish."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from typer import Argument, Context

from chappe.cli import dashboard, declared, mesh, network, options, peering
from chappe.cli.console import hear_warnings
from chappe.cli.serving import Numbers, serves, show, stopped
from chappe.cli.units import place
from chappe.data.markup import many
from chappe.errors import ConfigError, UsageError
from chappe.system import started
from chappe.system.toml import TomlFile, TomlSection

if TYPE_CHECKING:
    from chappe.security import Keys, Security
    from chappe.web.server import WebSocketServer

FOUND: Final = "chappe.node"  # in the context's ``meta``: the file's own keys


def _heed_file(context: Context, value: str | None) -> str | None:
    """Read the file before the options: its settings override those of ``chappe.toml``."""
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
    return options.source_of(context, parameter) == "COMMANDLINE"


def _lasting(context: Context) -> dict[str, Any]:
    looking = {"file", "peers", "endpoint_id", "as_json"}
    looking |= {each.name for group in (mesh.Trust, mesh.Life, network.Map) for each in fields(group)}
    given = [each for each in context.command.params if each.expose_value and each.name not in looking]
    names = {each.name: "--[no-]forwarding" if each.name == "forwarding" else each.opts[0] for each in given}
    return {name: True for parameter, name in names.items() if parameter and _is_typed(context, parameter)}


@serves()
def node(
    trust: mesh.Trust,
    picture: network.Map,
    queues: mesh.Queues,
    dialling: mesh.DialOptions,
    numbers: Numbers,
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
        declared.of("mesh.forward").option(help="Ask originals to send this prefix here too, to be forwarded."),
    ] = None,
    forwarding: mesh.Forwarding = True,
    last_values: Annotated[
        int,
        declared.of("mesh.last_values").option(
            help="Keep the newest message of N topics, for subscribers with --last."
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
            "--origin", help="Web pages that may connect, in addition to those of this machine."
        ),
    ] = None,
    recording_directory: Annotated[
        str | None,
        declared.of("mesh.recording_directory").option(
            help="Record the shapes of messages, for `chappe mesh generate`."
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
    """Run an endpoint of the mesh, and show its peers and rates; or map the mesh."""
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
        title = f"node {endpoint.id} at {', '.join(facts['listen'])}"
        server = None
        if web is not None:
            from chappe.web.server import WebSocketServer

            server = stack.enter_context(WebSocketServer(endpoint, **web))
            facts["websocket"] = server.url
            title += f", {server.url}"
        if at_tap is not None:
            host, port = place(at_tap)
            facts["tap"] = mesh.shown((host, endpoint.tap(host, port)))
        endpoint.forward(*joined["forward"])
        dialling.keep(endpoint, dialled)
        if look:
            peer = ["--peer", facts["listen"][0]]
            facts["dashboard"] = stack.enter_context(dashboard.beside(look, *peer, *_trust(said, trust).arguments))
            title += f", dashboard at {facts['dashboard']}"
        started.note(*(f"endpoint {each}" for each in facts["listen"]))
        display = _NodeDisplay(endpoint, statuses, title, as_json)
        display.server = server
        show(display, facts, title, numbers.of(security, endpoint))
    stopped(as_json, "node")


def _trust(said: NodeFile, trust: mesh.Trust) -> mesh.Trust:
    """Use the file's certificates and security where the options name none."""
    if trust != mesh.Trust():
        return trust
    certificates = None if said.tls is None else (Path(said.tls.directory), said.tls.name)
    return mesh.Trust(certificates, said.security == "anonymous", said.security == "plain")


def _web(
    said: WebSocketSection | None, security: Security | Keys, websocket: str | None, origins: list[str]
) -> dict[str, Any] | None:
    if websocket is None:
        return None
    ((host, port),) = mesh.addresses(security, [mesh.shown(place(websocket))])
    policy = "disconnect" if said is None else said.on_full
    return {"host": host, "port": port, "origins": origins, "on_full": policy}


class TlsSection(TomlSection, frozen=True):
    """Certificates: their directory, relative to the file's own, and the name of ours."""

    directory: str
    name: str


class WebSocketSection(TomlSection, frozen=True):
    listen: str | int
    origins: tuple[str, ...] = ()
    on_full: Literal["disconnect", "drop_oldest", "drop_newest"] = "disconnect"


class NodeFile(TomlSection, frozen=True):
    """The keys of a file beside those of ``[mesh]``; all are optional."""

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


class _NodeDisplay(peering.PeersDisplay):
    server: WebSocketServer | None = None

    def more(self) -> tuple[str, dict[str, Any]]:
        if self.server is None:
            return "", {}
        return many(self.server.clients, "WebSocket client"), {"websocket_clients": self.server.clients}
