"""``chappe kv serve``: the master of a data store of the mesh, and its display."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Option

from chappe.cli import mesh, options, peering
from chappe.cli.console import hear_warnings, say, warn
from chappe.cli.serving import KeptEntries, Numbers, serves, show, stopped
from chappe.data.markup import many
from chappe.errors import UsageError
from chappe.system import started

if TYPE_CHECKING:
    from chappe import DataStore

_TOLD: Final = frozenset(
    {
        "CloneAttached", "CloneDropped", "Entered", "ServerJoins",
    }
)  # fmt: skip
# The server of the chain has warned of it.
_WARNED: Final = frozenset({"EntriesDiscarded", "ServerRemoved", "Waits", "WriteRefused"})
_WRONG: Final = frozenset(
    {
        "CommandRefused", "CommitFailed", "StoreNearsBound", "TwoMasters",
    }
)  # fmt: skip


_OfAPair = Annotated[str | None, Option(hidden=True)]  # were options, and are refused with what to do instead


@serves()
def serve(
    store: Annotated[str, Argument(metavar="STORE", help="Name of the store.")],
    trust: mesh.Trust,
    queues: mesh.Queues,
    dialling: mesh.DialOptions,
    kept: KeptEntries,
    numbers: Numbers,
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
    chained = _chained(chain, name, directory)
    with ExitStack() as stack:
        endpoint = stack.enter_context(queues.endpoint(security, id=endpoint_id, forwarding=forwarding))
        statuses = endpoint.statuses()
        dialling.keep(endpoint, dialled)
        where: dict[str, Any] = {} if kept.path is None else {"path": kept.path}
        master = stack.enter_context(endpoint.attach_master(store, kept.backend, history=history, **where, **chained))
        facts: dict[str, Any] = {"store": store, **kept.facts}
        entries = len(master.core.engine)
        facts |= {"id": endpoint.id, "entries": entries}
        facts["listen"] = mesh.listen(endpoint, heard)
        what = "master"
        if chained:
            what = f"master {name}"
            facts |= {"chain": chained["chain"].name, "name": name, "directory": str(chained["directory"])}
        title = f"{what} of store {store} at {', '.join(facts['listen'])}"
        started.note(f"data store {store}", *(f"endpoint {each}" for each in facts["listen"]))
        display = _MasterDisplay(endpoint, statuses, title, as_json)
        display.master = master
        served = numbers.of(security, endpoint, master)
        show(display, facts, f"{title}, {many(entries, 'entry', 'entries')}", served)
        display.tell_all()
    stopped(as_json, f"store {store}")


def _chained(chain: Path | None, name: str | None, directory: Path | None) -> dict[str, Any]:
    """Return the arguments of a master on a chain; empty without one. Raises UsageError or ConfigError."""
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


class _MasterDisplay(peering.PeersDisplay):
    master: DataStore

    def tell(self, event: Any) -> None:
        kind = type(event).__name__
        if kind in _WARNED:
            return
        if kind in _WRONG:
            warn(str(event))
        elif kind not in _TOLD:
            super().tell(event)
        elif not self.as_json:
            say(str(event))

    def more(self) -> tuple[str, dict[str, Any]]:
        master = self.master
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
