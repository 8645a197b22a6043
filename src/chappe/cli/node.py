"""``chappe node``: an endpoint of the mesh that passes on what others publish."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from chappe.cli import mesh, options
from chappe.cli.console import say, tell
from chappe.errors import UsageError

if TYPE_CHECKING:
    from chappe import Endpoint
    from chappe.api.mesh.arguments import OnFull
    from chappe.cli.node_file import NodeFile
    from chappe.security import Security
    from chappe.web.server import WebSocketServer

LOOPBACK: Final = "127.0.0.1"


@options.with_groups
def node(
    trust: mesh.Trust,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="A TOML file that says the same as the options.")
    ] = None,
    listen: mesh.Listen = None,
    peers: mesh.LastingPeers = None,
    forward: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Have originals send this prefix here too, to be passed on to others."),
    ] = None,
    forwarding: Annotated[
        bool | None, typer.Option("--forwarding/--no-forwarding", help="Whether to pass on what peers publish.")
    ] = None,
    endpoint_id: mesh.EndpointId = None,
    on_full: Annotated[options.OnFull | None, typer.Option(help="When a peer takes less than is sent to it.")] = None,
    websocket: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="Serve web pages and other WebSocket clients there.")
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="ORIGIN", help="Web pages that may connect, besides those of this machine."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Run an endpoint of the mesh: it listens, peers, passes on, and shows its peers and their rates."""
    from chappe import Endpoint
    from chappe.cli.node_file import NodeFile, load
    from chappe.cli.node_view import follow

    mesh.hear_warnings()
    said = load(file) if file is not None else NodeFile()
    security = _security(said, trust)
    plan = _Plan(
        endpoint_id or said.id,
        security,
        said.forwarding if forwarding is None else forwarding,
        on_full or said.on_full,
        mesh.addresses(security, [*said.listen, *(listen or [])] or [mesh.HERE]),
        mesh.addresses(security, [*said.peers, *(peers or [])]),
        [*said.forward, *(forward or [])],
        _web(said, security, websocket, origins or []),
    )
    with ExitStack() as stack:
        endpoint = stack.enter_context(
            Endpoint(id=plan.id, security=plan.security, forwarding=plan.forwarding, on_full=plan.on_full)
        )
        statuses = endpoint.statuses()
        facts: dict[str, Any] = {"id": endpoint.id}
        facts["listen"] = [mesh.shown((host, endpoint.listen(host, port))) for host, port in plan.listen]
        server = plan.serve(endpoint)
        if server is not None:
            stack.enter_context(server)
            facts["websocket"] = server.url
        endpoint.forward(*plan.forward)
        for host, port in plan.peers:
            endpoint.peer_nosync(host, port, retry_s=mesh.RETRY_S)
        title = f"node {endpoint.id} at {', '.join(facts['listen'])}"
        if server is not None:
            title += f", {server.url}"
        tell(as_json, facts, f"{title}; Ctrl-C stops")

        def more() -> tuple[str, dict[str, Any]]:
            clients = 0 if server is None else server.clients
            return ("", {}) if server is None else (f"{clients} WebSocket clients", {"websocket_clients": clients})

        try:
            follow(endpoint, statuses, mesh.Teller(come_and_go=True, quiet=as_json), title, as_json, more)
        except KeyboardInterrupt:
            pass  # the proper end
    if not as_json:
        say("node stopped")


@dataclass(frozen=True, slots=True)
class _Web:
    host: str
    port: int
    origins: tuple[str, ...]
    on_full: OnFull


@dataclass(frozen=True, slots=True)
class _Plan:
    """What file and options say together."""

    id: str | None
    security: Security
    forwarding: bool
    on_full: OnFull
    listen: list[tuple[str, int]]
    peers: list[tuple[str, int]]
    forward: list[str]
    web: _Web | None

    def serve(self, endpoint: Endpoint) -> WebSocketServer | None:
        """The WebSocket face, if it is wanted."""
        if self.web is None:
            return None
        from chappe.web.server import WebSocketServer

        web = self.web
        return WebSocketServer(endpoint, web.host, web.port, origins=web.origins, on_full=web.on_full)


def _security(said: NodeFile, trust: mesh.Trust) -> Security:
    """What the options ask for; what the file says if they ask for nothing."""
    if trust == mesh.Trust():
        certificates = None if said.tls is None else (Path(said.tls.directory), said.tls.name)
        trust = mesh.Trust(certificates, said.security == "anonymous", said.security == "plain")
    return trust.security()


def _web(said: NodeFile, security: Security, websocket: str | None, origins: list[str]) -> _Web | None:
    section = said.websocket
    where = websocket if websocket is not None else None if section is None else str(section.listen)
    if where is None:
        if origins:
            raise UsageError("--origin is for web pages, which need --websocket PORT")
        return None
    ((host, port),) = mesh.addresses(security, [f"{LOOPBACK}:{where}" if where.isdecimal() else where])
    named = () if section is None else section.origins
    return _Web(host, port, (*named, *origins), "disconnect" if section is None else section.on_full)
