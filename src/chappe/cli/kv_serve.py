"""What goes on in a data store of the mesh: ``chappe kv serve``, its master, and ``chappe kv watch``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from typer import Argument, Option

from chappe.cli import mesh, node, options
from chappe.cli.auditing import audited
from chappe.cli.console import exit_code, hear_warnings, say, tell, warn, write_out
from chappe.cli.values import shown, typed
from chappe.data import terminal
from chappe.data.markup import are, many
from chappe.errors import UsageError
from chappe.system import started

if TYPE_CHECKING:
    from chappe import DataStore, DataStoreEvent

_TOLD: Final = frozenset(
    {
        "CloneAttached", "CloneDropped", "Entered", "Joins",
    }
)  # fmt: skip
_WARNED: Final = frozenset({"NotKept", "ThrewAway", "TookOut", "Waits"})  # the server of the chain has warned of it
_WRONG: Final = frozenset(
    {
        "CommandRefused", "CommitFailed", "StoreNearsBound", "TwoMasters",
    }
)  # fmt: skip


_OfAPair = Annotated[str | None, Option(hidden=True)]  # were options, and are refused with what to do instead


class StoreNotices:
    """Says what happens to peers and to the master of the store."""

    def __init__(self) -> None:
        self._peers = mesh.PeerNotices()
        self._lost = False

    def __call__(self, event: Any) -> None:
        """Something happened: an event or an error of ``Endpoint.statuses``."""
        match type(event).__name__:
            case "MasterLost":
                self._lost = True
                warn(f"the master of store {event.store} is lost: {event.reason}; still trying")
            case "MasterFound" if self._lost:
                self._lost = False
                say(f"store {event.store} has a master again")
            case "TwoMasters":
                warn(str(event))
            case _:
                self._peers(event)


def follow(
    store: DataStore, wanted: dict[str, Any], count: int | None, seconds: float | None, as_json: bool, as_text: bool
) -> None:
    """Print changes as they come; Ctrl-C ends it well unless a count or time was asked for."""
    render = _as_json if as_json else partial(_as_text, as_text=as_text)
    try:
        with store.watch(**wanted) as watching:
            say(f"watching store {store.name}")
            try:
                for found in mesh.batches(watching.get_many, count, seconds):
                    write_out(b"".join(map(render, found)))
            finally:
                if watching.dropped:
                    warn(f"{are(watching.dropped, 'change')} not shown: this was too slow")
    except KeyboardInterrupt as stop:
        if count is not None or seconds is not None:
            raise typer.Exit(exit_code(stop)) from None


def _as_text(event: DataStoreEvent, *, as_text: bool) -> bytes:
    change: Any = event.typed  # with all types
    shows = "" if event.kind in ("erase", "expire") else f" -> {shown(change.value, as_text=as_text)}"
    return f"{event.kind} {terminal.line(shown(change.key, as_text=as_text) + shows)}\n".encode()


def _as_json(event: DataStoreEvent) -> bytes:
    change: Any = event.typed
    parts = [f'"event":"{event.kind}"', f'"key":{typed(change.key)}']
    if event.kind in ("insert", "update"):
        parts.append(f'"value":{typed(change.value)}')
    if event.kind != "insert":
        parts.append(f'"before":{typed(change.before)}')
    if event.expiry_s is not None:
        parts.append(f'"expiry_s":{event.expiry_s}')
    if event.publisher is not None:
        parts.append(f'"publisher":"{event.publisher}"')
    return terminal.json_line(f"{{{','.join(parts)}}}\n".encode("utf-8", "surrogateescape"))


@audited()
@options.with_groups
def serve(
    store: Annotated[str, Argument(metavar="STORE", help="Name of the store.")],
    trust: mesh.Trust,
    queues: mesh.Queues,
    dialling: mesh.DialOptions,
    backend: Annotated[
        Literal["memory", "sqlite", "rocksdb"],
        Option(help="Where entries are kept; in memory only while the command runs."),
    ] = "memory",
    path: Annotated[
        Path | None, Option(metavar="PATH", help="A file for sqlite, a directory for rocksdb; made if missing.")
    ] = None,
    listen: mesh.Listen = None,
    peers: mesh.LastingPeers = None,
    forwarding: mesh.Forwarding = True,
    partner: _OfAPair = None,
    role: _OfAPair = None,
    witness: _OfAPair = None,
    chain: Annotated[
        Path | None,
        Option(metavar="FILE", help="The configuration of a chain whose servers are all masters of the store."),
    ] = None,
    name: Annotated[str | None, Option(metavar="NAME", help="Which of the chain's servers this is.")] = None,
    directory: Annotated[
        Path | None,
        Option(metavar="DIRECTORY", help="Where the chain's server keeps it all; by default among the user's data."),
    ] = None,
    history: Annotated[
        int,
        Option(
            min=0, max=64, metavar="N", help="Changes of each key that are kept for `chappe kv history`; 0 for none."
        ),
    ] = 0,
    endpoint_id: mesh.EndpointId = None,
    as_json: options.Json = False,
) -> None:
    """Run the master of a data store, and show its clones and entries; others attach to it."""
    hear_warnings()
    if partner is not None or role is not None or witness is not None:
        raise UsageError(
            "a data store has no pair of masters: start three on a chain, each with --chain FILE and --name NAME"
        )
    security = trust.security()
    heard = mesh.addresses(security, listen or [mesh.HERE])
    dialled = mesh.addresses(security, peers or [])
    if (path is None) is not (backend == "memory"):
        raise UsageError(
            "memory has no path: give --backend sqlite or rocksdb with --path"
            if backend == "memory"
            else f"the {backend} backend needs a path: give --path"
        )
    chained = _chained(chain, name, directory)
    with ExitStack() as stack:
        endpoint = stack.enter_context(queues.endpoint(security, id=endpoint_id, forwarding=forwarding))
        statuses = endpoint.statuses()
        dialling.keep(endpoint, dialled)
        where: dict[str, Any] = {} if path is None else {"path": path}
        master = stack.enter_context(endpoint.attach_master(store, backend, history=history, **where, **chained))
        facts: dict[str, Any] = {"store": store, "backend": backend, "path": None if path is None else str(path)}
        entries = len(master.core.engine)
        facts |= {"id": endpoint.id, "entries": entries}
        facts["listen"] = mesh.listen(endpoint, heard)
        what = "master"
        if chained:
            what = f"master {name}"
            facts |= {"chain": chained["chain"].name, "name": name, "directory": str(chained["directory"])}
        title = f"{what} of store {store} at {', '.join(facts['listen'])}"
        started.note(f"data store {store}", *(f"endpoint {each}" for each in facts["listen"]))
        tell(as_json, facts, f"{title}, {many(entries, 'entry', 'entries')}; Ctrl-C stops")
        teller = _master_teller(as_json)
        try:
            node.follow(endpoint, statuses, teller, title, as_json, lambda: _state(master))
        except KeyboardInterrupt:  # the proper end
            for event in statuses.poll():
                teller(event)
    if not as_json:
        say(f"store {store} stopped")


def _chained(chain: Path | None, name: str | None, directory: Path | None) -> dict[str, Any]:
    """What a master on a chain is attached with; nothing for another one. Raises UsageError or ConfigError."""
    if chain is None:
        if name is not None or directory is not None:
            raise UsageError("--name and --directory are for a master on a chain: give --chain, too")
        return {}
    from chappe import ChainConfiguration
    from chappe.api.identity import state_directory

    configuration = ChainConfiguration.load(chain)
    if name is None:
        raise UsageError(f"say which server of the chain this is: --name, one of {', '.join(configuration.names)}")
    configuration.place(name)
    where = directory or state_directory("chains", f"{configuration.name}-{name}", None)
    return {"chain": configuration, "server": name, "directory": where if configuration.durable else None}


def _master_teller(quiet: bool) -> Callable[[Any], None]:
    """What says what happens to peers and clones, and what is wrong with the store."""
    tell_of_peer = mesh.PeerNotices(come_and_go=True, quiet=quiet)

    def teller(event: Any) -> None:
        kind = type(event).__name__
        if kind in _WARNED:
            return
        if kind in _WRONG:
            warn(str(event))
        elif kind not in _TOLD:
            tell_of_peer(event)
        elif not quiet:
            say(str(event))

    return teller


def _state(master: DataStore) -> tuple[str, dict[str, Any]]:
    with master.endpoint.node.lock:
        master.endpoint.check()
        core = master.attached.core
        clones = [str(clone) for clone in getattr(core, "clones", ())]
        entries = len(core.engine)
    facts: dict[str, Any] = {"store": master.name, "entries": entries, "version": master.version, "clones": clones}
    text = f"store {master.name}: {many(entries, 'entry', 'entries')}, {many(master.version, 'change')}"
    text += f", {many(len(clones), 'clone')}"
    chain = master.chain()
    if chain is not None:
        facts["chain"] = {"role": chain.role, **asdict(chain)}
        text += f", {chain.role} of {' > '.join(chain.members) or 'a chain that is not founded'}"
    return text, facts
