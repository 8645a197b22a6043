"""``chappe kv serve``: the master of a data store, on an endpoint of its own."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from chappe.cli import mesh, options
from chappe.cli.console import say, warn
from chappe.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from chappe import DataStore, Endpoint
    from chappe.cli.node_view import PeerRow

STEP_S: Final = 0.25
REPORT_S: Final = 5.0  # between two lines of JSON
_TOLD: Final = frozenset({"CloneAttached", "CloneDropped"})
_WRONG: Final = frozenset({"CommandRefused", "CommitFailed", "StoreNearsBound", "TwoMasters"})


class Backend(StrEnum):
    """Where the entries last."""

    MEMORY = "memory"
    SQLITE = "sqlite"
    ROCKSDB = "rocksdb"


def serve(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Name of the store.")],
    backend: Annotated[
        Backend, typer.Option(help="Where the entries last: in memory, no longer than the command.")
    ] = Backend.MEMORY,
    path: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Of sqlite a file, of rocksdb a directory; made if missing.")
    ] = None,
    listen: mesh.Listen = None,
    peers: mesh.LastingPeers = None,
    endpoint_id: mesh.EndpointId = None,
    tls: mesh.TlsFiles = None,
    anonymous: mesh.Anonymous = False,
    plain: mesh.Plain = False,
    as_json: options.Json = False,
) -> None:
    """Run the master of a data store, and show its clones and entries; others attach to it."""
    from chappe import Endpoint

    mesh.hear_warnings()
    security = mesh.security_of(tls, anonymous, plain)
    heard = [mesh.address(each) for each in listen or [mesh.HERE]]
    dialled = [mesh.address(each) for each in peers or []]
    for host, _ in (*heard, *dialled):
        mesh.check_host(security, host)
    if (path is None) is not (backend is Backend.MEMORY):
        raise UsageError(
            "memory has no path: give --backend sqlite or rocksdb with --path"
            if backend is Backend.MEMORY
            else f"the {backend} backend needs a path: give --path"
        )
    with ExitStack() as stack:
        endpoint = stack.enter_context(Endpoint(id=endpoint_id, security=security))
        teller = _Teller(quiet=as_json)
        statuses = endpoint.statuses()
        for host, port in dialled:
            endpoint.peer_nosync(host, port, retry_s=mesh.RETRY_S)
        where = {} if path is None else {"path": path}
        master = stack.enter_context(endpoint.attach_master(store, backend.value, **where))
        facts: dict[str, Any] = {"store": store, "backend": backend.value, "path": None if path is None else str(path)}
        facts |= {"id": endpoint.id, "entries": len(master)}
        facts["listen"] = [mesh.shown((host, endpoint.listen(host, port))) for host, port in heard]
        title = f"master of store {store} at {', '.join(facts['listen'])}"
        if as_json:
            print(json.dumps(facts), flush=True)
        else:
            say(f"{title}, {len(master):,} entries; Ctrl-C stops")
        try:
            _show(endpoint, master, statuses, teller, title, as_json)
        except KeyboardInterrupt:  # the proper end
            for event in statuses.poll():
                teller(event)
    if not as_json:
        say(f"store {store} stopped")


class _Teller:
    """Says what happens to peers and clones, and what is wrong with the store."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._peers = mesh.Teller(come_and_go=True, quiet=quiet)

    def __call__(self, event: Any) -> None:
        """Something happened: an event or an error of ``Endpoint.statuses``."""
        kind = type(event).__name__
        if kind in _WRONG:
            warn(str(event))
        elif kind not in _TOLD:
            self._peers(event)
        elif not self._quiet:
            say(str(event))


def _show(endpoint: Endpoint, master: DataStore, statuses: Any, teller: _Teller, title: str, as_json: bool) -> None:
    """Show what there is until Ctrl-C or SIGTERM. Raises Closed if the endpoint halts."""
    from rich.console import Console

    from chappe.cli.node_view import Watch
    from chappe.cli.screen import Screen

    watch = Watch(endpoint)
    report_at = time.monotonic() + REPORT_S
    with Screen(Console(stderr=True), quiet=as_json) as screen:
        while True:
            time.sleep(STEP_S)
            for event in statuses.poll():
                teller(event)
            rows = watch.look()
            state = _state(master)
            screen.show(
                lambda rows=rows, state=state: _table(title, rows, state),  # type: ignore[misc]
                lambda rows=rows, state=state: _lines(rows, state),  # type: ignore[misc]
            )
            if as_json and time.monotonic() >= report_at:
                report_at += REPORT_S
                print(json.dumps({**state, "peers": [row.facts() for row in rows]}), flush=True)


def _state(master: DataStore) -> dict[str, Any]:
    with master.endpoint.node.lock:
        master.endpoint.check()
        clones = [str(clone) for clone in master.attached.core.clones]  # type: ignore[union-attr]
    return {"store": master.name, "entries": len(master), "version": master.version, "clones": clones}


def _summary(state: dict[str, Any]) -> str:
    return f"{state['entries']:,} entries, {state['version']:,} changes, {len(state['clones']):,} clones"


def _table(title: str, rows: list[PeerRow], state: dict[str, Any]) -> RenderableType:
    """The picture for a terminal."""
    from rich.console import Group

    from chappe.cli.node_view import table

    return Group(table(title, rows, None), _summary(state))


def _lines(rows: list[PeerRow], state: dict[str, Any]) -> Iterator[str]:
    """The same without a terminal."""
    from chappe.cli.node_view import lines

    yield f"store {state['store']}: {_summary(state)}"
    yield from lines(rows, None)
