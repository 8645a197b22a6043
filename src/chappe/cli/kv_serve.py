"""``chappe kv serve``: the master of a data store, on an endpoint of its own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from chappe.cli import mesh, options
from chappe.cli.console import say, tell, warn
from chappe.errors import UsageError

if TYPE_CHECKING:
    from chappe import DataStore

_TOLD: Final = frozenset({"CloneAttached", "CloneDropped"})
_WRONG: Final = frozenset({"CommandRefused", "CommitFailed", "StoreNearsBound", "TwoMasters"})


@options.with_groups
def serve(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Name of the store.")],
    trust: mesh.Trust,
    backend: Annotated[
        Literal["memory", "sqlite", "rocksdb"],
        typer.Option(help="Where the entries last: in memory, no longer than the command."),
    ] = "memory",
    path: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Of sqlite a file, of rocksdb a directory; made if missing.")
    ] = None,
    listen: mesh.Listen = None,
    peers: mesh.LastingPeers = None,
    endpoint_id: mesh.EndpointId = None,
    as_json: options.Json = False,
) -> None:
    """Run the master of a data store, and show its clones and entries; others attach to it."""
    from chappe import Endpoint
    from chappe.cli.node_view import follow

    mesh.hear_warnings()
    security = trust.security()
    heard = mesh.addresses(security, listen or [mesh.HERE])
    dialled = mesh.addresses(security, peers or [])
    if (path is None) is not (backend == "memory"):
        raise UsageError(
            "memory has no path: give --backend sqlite or rocksdb with --path"
            if backend == "memory"
            else f"the {backend} backend needs a path: give --path"
        )
    with ExitStack() as stack:
        endpoint = stack.enter_context(Endpoint(id=endpoint_id, security=security))
        teller = _Teller(quiet=as_json)
        statuses = endpoint.statuses()
        for host, port in dialled:
            endpoint.peer_nosync(host, port, retry_s=mesh.RETRY_S)
        where = {} if path is None else {"path": path}
        master = stack.enter_context(endpoint.attach_master(store, backend, **where))
        facts: dict[str, Any] = {"store": store, "backend": backend, "path": None if path is None else str(path)}
        facts |= {"id": endpoint.id, "entries": len(master)}
        facts["listen"] = [mesh.shown((host, endpoint.listen(host, port))) for host, port in heard]
        title = f"master of store {store} at {', '.join(facts['listen'])}"
        tell(as_json, facts, f"{title}, {len(master):,} entries; Ctrl-C stops")
        try:
            follow(endpoint, statuses, teller, title, as_json, lambda: _state(master))
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


def _state(master: DataStore) -> tuple[str, dict[str, Any]]:
    """The state of the store for people, and for a machine."""
    with master.endpoint.node.lock:
        master.endpoint.check()
        clones = [str(clone) for clone in master.attached.core.clones]  # type: ignore[union-attr]
    facts = {"store": master.name, "entries": len(master), "version": master.version, "clones": clones}
    text = f"store {master.name}: {len(master):,} entries, {master.version:,} changes, {len(clones):,} clones"
    return text, facts
