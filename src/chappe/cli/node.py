"""``chappe node``: an endpoint of the mesh that passes on what others publish."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from chappe.cli import mesh, options
from chappe.cli.console import say
from chappe.errors import UsageError

if TYPE_CHECKING:
    from chappe import Endpoint
    from chappe.api.mesh.arguments import OnFull
    from chappe.cli.node_file import NodeFile
    from chappe.security import Security
    from chappe.web.server import WebSocketServer

STEP_S: Final = 0.5
REPORT_S: Final = 5.0  # between two lines of JSON
LOOPBACK: Final = "127.0.0.1"


class Policy(StrEnum):
    """What happens when a peer takes less than is sent to it."""

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    DISCONNECT = "disconnect"


def node(
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
    on_full: Annotated[Policy | None, typer.Option(help="When a peer takes less than is sent to it.")] = None,
    websocket: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="Serve web pages and other WebSocket clients there.")
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="ORIGIN", help="Web pages that may connect, besides those of this machine."),
    ] = None,
    tls: mesh.TlsFiles = None,
    anonymous: mesh.Anonymous = False,
    plain: mesh.Plain = False,
    as_json: options.Json = False,
) -> None:
    """Run an endpoint of the mesh: it listens, peers, passes on, and shows its peers and their rates."""
    from chappe import Endpoint
    from chappe.cli.node_file import NodeFile, load

    mesh.hear_warnings()
    said = load(file) if file is not None else NodeFile()
    plan = _Plan(
        endpoint_id or said.id,
        _security(said, tls, anonymous, plain),
        said.forwarding if forwarding is None else forwarding,
        on_full.value if on_full is not None else said.on_full,
        [mesh.address(each) for each in [*said.listen, *(listen or [])] or [mesh.HERE]],
        [mesh.address(each) for each in [*said.peers, *(peers or [])]],
        [*said.forward, *(forward or [])],
        _web(said, websocket, origins or []),
    )
    plan.check()
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
        if as_json:
            print(json.dumps(facts), flush=True)
        else:
            say(f"{title}; Ctrl-C stops")
        try:
            _show(endpoint, statuses, server, title, as_json)
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

    def check(self) -> None:
        """Raise UsageError for what would be less safe than was asked for."""
        hosts = [host for host, _ in (*self.listen, *self.peers)]
        for host in hosts if self.web is None else [*hosts, self.web.host]:
            mesh.check_host(self.security, host)

    def serve(self, endpoint: Endpoint) -> WebSocketServer | None:
        """The WebSocket face, if it is wanted."""
        if self.web is None:
            return None
        from chappe.web.server import WebSocketServer

        web = self.web
        return WebSocketServer(endpoint, web.host, web.port, origins=web.origins, on_full=web.on_full)


def _security(said: NodeFile, tls: tuple[Path, str] | None, anonymous: bool, plain: bool) -> Security:
    """What the options ask for; what the file says if they ask for nothing."""
    if tls is not None or anonymous or plain:
        return mesh.security_of(tls, anonymous, plain)
    from_file = None if said.tls is None else (Path(said.tls.directory), said.tls.name)
    return mesh.security_of(from_file, said.security == "anonymous", said.security == "plain")


def _web(said: NodeFile, websocket: str | None, origins: list[str]) -> _Web | None:
    section = said.websocket
    where = websocket if websocket is not None else None if section is None else str(section.listen)
    if where is None:
        if origins:
            raise UsageError("--origin is for web pages, which need --websocket PORT")
        return None
    host, port = mesh.address(f"{LOOPBACK}:{where}" if where.isdecimal() else where)
    named = () if section is None else section.origins
    return _Web(host, port, (*named, *origins), "disconnect" if section is None else section.on_full)


def _show(endpoint: Endpoint, statuses: Any, server: WebSocketServer | None, title: str, as_json: bool) -> None:
    """Show what there is until Ctrl-C or SIGTERM."""
    from rich.console import Console

    from chappe.cli import node_view
    from chappe.cli.screen import Screen

    watch = node_view.Watch(endpoint)
    teller = mesh.Teller(come_and_go=True, quiet=as_json)
    report_at = time.monotonic() + REPORT_S
    with Screen(Console(stderr=True), quiet=as_json) as screen:
        while True:
            time.sleep(STEP_S)  # waiting for an event would make this thread drive, in the way of the web's event loop
            for event in statuses.poll():
                teller(event)
            rows = watch.look()
            clients = None if server is None else server.clients
            screen.show(
                lambda rows=rows, clients=clients: node_view.table(title, rows, clients),  # type: ignore[misc]
                lambda rows=rows, clients=clients: node_view.lines(rows, clients),  # type: ignore[misc]
            )
            if as_json and time.monotonic() >= report_at:
                report_at += REPORT_S
                facts: dict[str, Any] = {"peers": [row.facts() for row in rows]}
                if clients is not None:
                    facts["websocket_clients"] = clients
                print(json.dumps(facts), flush=True)
