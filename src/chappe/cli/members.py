"""``chappe tower``, ``chappe store``, ``chappe up`` and ``chappe forward``: members that run until they are stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from chappe.cli import dashboard, options
from chappe.cli.console import hear_warnings, say
from chappe.cli.mesh import shown
from chappe.cli.serving import Numbers, Served, ServerIdentity, serves, wait
from chappe.cli.units import human_bytes, parse_age, place
from chappe.data.markup import many
from chappe.defaults import FORWARDER_PORT, TOWER_HOST
from chappe.errors import UsageError
from chappe.system import program, started
from chappe.system.cpus import give_way

if TYPE_CHECKING:
    from chappe import Retention, Store, Tower

DIRECTORY: Final = Path("chappe-data/log")
FORWARDER: Final = f"{TOWER_HOST}:{FORWARDER_PORT}"

Directory = Annotated[
    Path, Argument(envvar="CHAPPE_STORE_DIRECTORY", metavar="DIRECTORY", help="Where the records are kept.")
]
KeepDeletions = Annotated[
    str,
    Option(
        "--keep-deletions",
        metavar="AGE",
        help="Remember deleted and trimmed topics so long: another store may be away for that time. The same at all.",
    ),
]
MONTH: Final = "30d"


@serves("listen")
def tower(
    who: ServerIdentity,
    numbers: Numbers,
    listen: Annotated[
        str, Option(envvar="CHAPPE_TOWER", metavar="ADDRESS", help="HOST[:PORT[:SECOND-PORT]]; port 0 takes any.")
    ] = options.TOWER,
    name: options.Name = None,
    as_json: options.Json = False,
) -> None:
    """Run a tower: producers, consumers and stores find each other through it."""
    from chappe import Tower

    program.call_members(name)
    hear_warnings(listen)
    with Tower(listen, security=who.security) as member:
        started.note(_of_tower(member.address))
        served = numbers.of(who.security, member)
        wait(as_json, {"tower": member.address}, f"tower at {member.address}", served, member)
        say(f"tower stopped; {many(member.nodes(), 'member')} connected until then")


@serves()
def store(
    who: ServerIdentity,
    numbers: Numbers,
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
    keep_deletions: KeepDeletions = MONTH,
    as_json: options.Json = False,
) -> None:
    """Run a store: it keeps every record of every topic in a directory."""
    hear_warnings(tower)
    if chain is not None and name is None:
        raise UsageError("--chain FILE, which names the stores of a chain, needs --name NAME, which of them this is")
    kept: dict[str, Any] = {
        "tower": tower,
        "listen": listen,
        "security": who.security,
        "retention": _retention(context),
        "keep_deletions": parse_age(keep_deletions),
    }
    if chain is None or name is None:
        program.call_members(name)
        _keep(directory, kept, numbers, as_json)
        return
    from chappe import OrderedStore

    with OrderedStore(directory, chain=chain, name=name, **kept) as member:
        facts = _facts(tower, member, directory) | {"name": name, "server": member.chain_address}
        text = f"store {name} of the chain in {chain}, at {member.chain_address}, keeping records in {directory}"
        served = numbers.of(who.security, member)
        _serve("store", member, as_json, facts, f"{text}, answering at {member.endpoint}, tower {tower}", served)


@serves("tower")
def up(
    who: ServerIdentity,
    numbers: Numbers,
    context: typer.Context,
    directory: Directory = DIRECTORY,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    name: options.Name = None,
    look: dashboard.Wanted = False,
    keep_deletions: KeepDeletions = MONTH,
    as_json: options.Json = False,
) -> None:
    """Run a tower and a store in one process: all that a laptop needs."""
    from chappe import Tower

    program.call_members(name)
    hear_warnings(tower)
    with Tower(tower, security=who.security) as introducer:
        at = introducer.address
        reach = ["--tower", at, "--listen", listen, *who.arguments]
        kept = {
            "tower": at,
            "listen": listen,
            "security": who.security,
            "retention": _retention(context),
            "keep_deletions": parse_age(keep_deletions),
        }
        with dashboard.beside(look, *reach) as url:
            _keep(directory, kept, numbers, as_json, introducer, url=url)


@serves("at")
def forward(
    who: ServerIdentity,
    numbers: Numbers,
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
    keep_deletions: KeepDeletions = MONTH,
    as_json: options.Json = False,
) -> None:
    """Run a forwarder: a store that passes on what it takes."""
    from chappe import Forwarder

    program.call_members(name)
    hear_warnings(at)
    tapped = None if tap is None else place(tap)
    with Forwarder(
        directory,
        listen=at,
        peers=peers.split(",") if peers else [],
        retention=_retention(context),
        keep_deletions=parse_age(keep_deletions),
        originals=originals,
        security=who.security,
    ) as member:
        facts = {
            "forwarder": member.address,
            "store": member.store_id,
            "endpoint": member.endpoint,
            "directory": str(directory),
        }
        if member.originals is not None:
            facts["originals"] = member.originals
        if tapped is not None:
            facts["tap"] = shown((tapped[0], member.tap(*tapped)))
        started.note(f"forwarder {member.address}")
        text = f"forwarder at {member.address}, keeping records in {directory}"
        _serve("forwarder", member, as_json, facts, text, numbers.of(who.security, member))


def _retention(context: typer.Context) -> list[tuple[str, Retention]]:
    from chappe import Retention

    rules = context.obj.retention if context.obj is not None else ()
    return [(rule.topics, Retention(age_s=rule.age_s, bytes=rule.bytes, records=rule.records)) for rule in rules]


def _of_tower(address: str) -> str:
    """Return the dashboard's name of a tower: its address without the second port."""
    return f"tower {':'.join(address.split(':')[:2])}"


def _facts(tower: str, member: Store, directory: Path) -> dict[str, str]:
    return {"tower": tower, "store": member.store_id, "endpoint": member.endpoint, "directory": str(directory)}


def _keep(
    directory: Path, kept: dict[str, Any], numbers: Numbers, as_json: bool, *beside: Tower, url: str | None = None
) -> None:
    from chappe import Store

    tower = kept["tower"]
    with Store(directory, **kept) as member:
        facts = _facts(tower, member, directory)
        text = f"store in {directory}, answering at {member.endpoint}, tower {tower}"
        if beside:
            text = f"tower at {tower}, store in {directory} answering at {member.endpoint}"
        if url is not None:
            facts["dashboard"] = url
            text = f"dashboard at {url}\n{text}"
        started.note(*(_of_tower(each.address) for each in beside))
        give_way()
        _serve("store", member, as_json, facts, text, numbers.of(kept["security"], *beside, member), *beside)


def _serve(
    what: str, store: Store, as_json: bool, facts: dict[str, Any], text: str, served: Served, *beside: Tower
) -> None:
    started.note(f"store {store.store_id}", f"store {store.endpoint}")
    wait(as_json, facts, text, served, *beside, store)
    status = store.status()
    say(
        f"{what} stopped; since its start it wrote {many(status.written_records, 'record')}, "
        f"{human_bytes(status.written_bytes)}; it keeps {many(status.topics, 'topic')}"
    )
