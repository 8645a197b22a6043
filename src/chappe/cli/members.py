"""``chappe tower``, ``chappe store``, ``chappe up`` and ``chappe forward``: members that run until they are stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Argument, Option

from chappe.cli import dashboard, options
from chappe.cli.auditing import audited
from chappe.cli.console import hear_warnings, say, tell
from chappe.cli.mesh import shown
from chappe.cli.tap import place
from chappe.cli.units import human_bytes
from chappe.data.markup import many
from chappe.defaults import FORWARDER_PORT, TOWER_HOST
from chappe.errors import UsageError
from chappe.system import program, started
from chappe.system.priority import give_way

if TYPE_CHECKING:
    from chappe import Retention, Store, Tower
    from chappe.cli.config import Config

LOOK_S: Final = 1.0  # the members work on threads of their own; this often it is seen that they still do
DIRECTORY: Final = Path("chappe-data/log")
FORWARDER: Final = f"{TOWER_HOST}:{FORWARDER_PORT}"

Directory = Annotated[
    Path, Argument(envvar="CHAPPE_STORE_DIRECTORY", metavar="DIRECTORY", help="Where the records are kept.")
]


@audited("listen")
def tower(
    listen: Annotated[
        str, Option(envvar="CHAPPE_TOWER", metavar="ADDRESS", help="HOST[:PORT[:SECOND-PORT]]; port 0 takes any.")
    ] = options.TOWER,
    name: options.Name = None,
    acting: options.Acting = None,
    plain: options.Plain = False,
    as_json: options.Json = False,
) -> None:
    """Run a tower: producers, consumers and stores find each other through it."""
    from chappe import Tower

    options.be(acting)
    program.call_members(name)
    hear_warnings(listen)
    with Tower(listen, security="plain" if plain else None) as running:
        started.note(_of_tower(running.address))
        tell(as_json, {"tower": running.address}, f"tower at {running.address}; Ctrl-C stops")
        _until_stopped(running)
        say(f"tower stopped; {many(running.nodes(), 'member')} connected until then")


@audited()
def store(
    context: typer.Context,
    directory: Directory = DIRECTORY,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    chain: options.Chain = None,
    name: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Its name for people, in lists and pictures; with --chain which of its servers this is, and it keeps "
            "ordered topics, too.",
        ),
    ] = None,
    acting: options.Acting = None,
    plain: options.Plain = False,
    as_json: options.Json = False,
) -> None:
    """Run a store: it keeps every record of every topic in a directory."""
    options.be(acting)
    hear_warnings(tower)
    if chain is not None and name is None:
        raise UsageError("--chain FILE, which names the stores of a chain, needs --name NAME, which of them this is")
    if chain is None or name is None:
        program.call_members(name)
        _keep(context.obj, directory, tower, listen, plain, as_json)
    else:
        _keep_ordered(context.obj, directory, chain, name, tower, listen, plain, as_json)


@audited("tower")
def up(
    context: typer.Context,
    directory: Directory = DIRECTORY,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    name: options.Name = None,
    acting: options.Acting = None,
    plain: options.Plain = False,
    look: dashboard.Wanted = False,
    as_json: options.Json = False,
) -> None:
    """Run a tower and a store in one process: all that a laptop needs."""
    from chappe import Tower

    options.be(acting)
    program.call_members(name)
    hear_warnings(tower)
    with Tower(tower, security="plain" if plain else None) as introducer:
        reach = ["--tower", introducer.address, "--listen", listen, *(["--plain"] if plain else [])]
        with dashboard.beside(look, *reach) as url:
            _keep(context.obj, directory, introducer.address, listen, plain, as_json, introducer, url=url)


@audited("at")
def forward(
    context: typer.Context,
    directory: Annotated[
        Path, Argument(envvar="CHAPPE_FORWARD_DIRECTORY", metavar="DIRECTORY", help="Where the records are kept.")
    ] = DIRECTORY,
    at: Annotated[
        str,
        Option(
            "--at",
            envvar="CHAPPE_FORWARD_AT",
            metavar="ADDRESS",
            help="Where to listen: HOST[:PORT], or `*` for HOST. The two ports that follow are taken, too.",
        ),
    ] = FORWARDER,
    peers: Annotated[
        str,
        Option(
            "--peers",
            envvar="CHAPPE_FORWARD_PEERS",
            metavar="ADDRESSES",
            help="The other forwarders, to read from what this one has missed: HOST[:PORT], separated by commas.",
        ),
    ] = "",
    originals: Annotated[
        str | None,
        Option(
            envvar="CHAPPE_FORWARD_ORIGINALS",
            metavar="ADDRESS",
            help="Where programs of the original find it, as they would a tower: HOST[:PORT[:SECOND-PORT]].",
        ),
    ] = None,
    tap: Annotated[
        str | None,
        Option(
            envvar="CHAPPE_FORWARD_TAP",
            metavar="[HOST:]PORT",
            help="Let `chappe tap` see there what passes; HOST: 127.0.0.1.",
        ),
    ] = None,
    name: options.Name = None,
    acting: options.Acting = None,
    plain: options.Plain = False,
    as_json: options.Json = False,
) -> None:
    """Run a forwarder: a store that passes on what it takes, so that nobody needs to know anybody else."""
    from chappe import Forwarder

    options.be(acting)
    program.call_members(name)
    hear_warnings(at)
    others = peers.split(",") if peers else []
    tapped = None if tap is None else place(tap)
    kept = _retention(context.obj)
    with Forwarder(
        directory,
        listen=at,
        peers=others,
        retention=kept,
        originals=originals,
        security="plain" if plain else None,
    ) as running:
        facts = {
            "forwarder": running.address,
            "store": running.store_id,
            "endpoint": running.endpoint,
            "directory": str(directory),
        }
        if running.originals is not None:
            facts["originals"] = running.originals
        if tapped is not None:
            facts["tap"] = shown((tapped[0], running.tap(*tapped)))
        started.note(f"forwarder {running.address}", *_of_store(running))
        tell(as_json, facts, f"forwarder at {running.address}, keeping records in {directory}; Ctrl-C stops")
        _until_stopped(running)
        _account("forwarder", running)


def _retention(config: Config | None) -> list[tuple[str, Retention]]:
    from chappe import Retention

    rules = config.retention if config is not None else ()
    return [(rule.topics, Retention(age_s=rule.age_s, bytes=rule.bytes, records=rule.records)) for rule in rules]


def _of_tower(address: str) -> str:
    """Return the dashboard's name of a tower: its address without the second port."""
    return f"tower {':'.join(address.split(':')[:2])}"


def _of_store(running: Store) -> tuple[str, str]:
    return f"store {running.store_id}", f"store {running.endpoint}"


def _account(what: str, store: Store) -> None:
    """Say what a store has done."""
    status = store.status()
    say(
        f"{what} stopped; since its start it wrote {many(status.written_records, 'record')}, "
        f"{human_bytes(status.written_bytes)}; it keeps {many(status.topics, 'topic')}"
    )


def _keep(
    config: Config | None,
    directory: Path,
    tower: str,
    listen: str,
    plain: bool,
    as_json: bool,
    *beside: Tower,
    url: str | None = None,
) -> None:
    """Run a store, and the tower ``beside`` it; ``url`` is where its dashboard is."""
    from chappe import Store

    kept = _retention(config)
    with Store(directory, tower=tower, listen=listen, retention=kept, security="plain" if plain else None) as running:
        facts = {"tower": tower, "store": running.store_id, "endpoint": running.endpoint, "directory": str(directory)}
        text = f"store in {directory}, answering at {running.endpoint}, tower {tower}; Ctrl-C stops"
        if beside:
            text = f"tower at {tower}, store in {directory} answering at {running.endpoint}; Ctrl-C stops"
        if url is not None:
            facts["dashboard"] = url
            text = f"dashboard at {url}\n{text}"
        started.note(*_of_store(running), *(_of_tower(each.address) for each in beside))
        give_way()
        tell(as_json, facts, text)
        _until_stopped(*beside, running)
        _account("store", running)


def _keep_ordered(
    config: Config | None,
    directory: Path,
    chain: Path,
    name: str,
    tower: str,
    listen: str,
    plain: bool,
    as_json: bool,
) -> None:
    """Run a store that is a member of a chain."""
    from chappe import OrderedStore

    with OrderedStore(
        directory,
        chain=chain,
        name=name,
        tower=tower,
        listen=listen,
        retention=_retention(config),
        security="plain" if plain else None,
    ) as running:
        facts = {
            "tower": tower,
            "store": running.store_id,
            "endpoint": running.endpoint,
            "directory": str(directory),
            "name": name,
            "server": running.chain_address,
        }
        text = f"store {name} of the chain in {chain}, at {running.chain_address}, keeping records in {directory}"
        started.note(*_of_store(running))
        tell(as_json, facts, f"{text}, answering at {running.endpoint}, tower {tower}; Ctrl-C stops")
        _until_stopped(running)
        _account("store", running)


def _until_stopped(*members: Store | Tower) -> None:
    """Wait for Ctrl-C or SIGTERM, both of which are the proper end. Raises MemberStopped if a member meets a defect."""
    try:
        while True:
            for member in members:
                member.wait(LOOK_S / len(members))
    except KeyboardInterrupt:
        return
