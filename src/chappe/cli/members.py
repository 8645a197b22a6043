"""``chappe tower``, ``chappe store`` and ``chappe up``: members that run until they are stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Argument, Option

from chappe.cli import options
from chappe.cli.console import hear_warnings, say, tell
from chappe.cli.units import human_bytes

if TYPE_CHECKING:
    from chappe import Retention, Store, Tower
    from chappe.cli.config import Config

LOOK_S: Final = 1.0  # the members work on threads of their own; this often it is seen that they still do
DIRECTORY: Final = Path("chappe-data/log")

Directory = Annotated[
    Path, Argument(envvar="CHAPPE_STORE_DIRECTORY", metavar="DIRECTORY", help="Where the records are kept.")
]


def tower(
    listen: Annotated[
        str, Option(envvar="CHAPPE_TOWER", metavar="ADDRESS", help="HOST[:PORT[:SECOND-PORT]]; port 0 takes any.")
    ] = options.TOWER,
    as_json: options.Json = False,
) -> None:
    """Run a tower: producers, consumers and stores find each other through it."""
    from chappe import Tower

    hear_warnings(listen)
    with Tower(listen) as running:
        tell(as_json, {"tower": running.address}, f"tower at {running.address}; Ctrl-C stops")
        _until_stopped(running)
        say(f"tower stopped; {running.nodes()} members were connected")


def store(
    context: typer.Context,
    directory: Directory = DIRECTORY,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    as_json: options.Json = False,
) -> None:
    """Run a store: it keeps every record of every topic in a directory."""
    from chappe import Store

    hear_warnings(tower)
    with Store(directory, tower=tower, listen=listen, retention=retention(context.obj)) as running:
        facts = {"store": running.store_id, "endpoint": running.endpoint, "directory": str(directory), "tower": tower}
        tell(as_json, facts, f"store in {directory}, answering at {running.endpoint}, tower {tower}; Ctrl-C stops")
        _until_stopped(running)
        _say_kept(running)


def up(
    context: typer.Context,
    directory: Directory = DIRECTORY,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    as_json: options.Json = False,
) -> None:
    """Run a tower and a store in one process: all that a laptop needs."""
    from chappe import Store, Tower

    hear_warnings(tower)
    with Tower(tower) as introducer:
        address = introducer.address
        with Store(directory, tower=address, listen=listen, retention=retention(context.obj)) as running:
            facts = {"tower": address, "store": running.store_id, "endpoint": running.endpoint}
            text = f"tower at {address}, store in {directory} answering at {running.endpoint}; Ctrl-C stops"
            tell(as_json, {**facts, "directory": str(directory)}, text)
            _until_stopped(introducer, running)
            _say_kept(running)


def retention(config: Config | None) -> list[tuple[str, Retention]]:
    """The retention rules of the configuration file, as stores take them."""
    from chappe import Retention

    rules = config.retention if config is not None else ()
    return [(rule.topics, Retention(age_s=rule.age_s, bytes=rule.bytes, records=rule.records)) for rule in rules]


def _until_stopped(*members: Store | Tower) -> None:
    """Wait for Ctrl-C or SIGTERM, both of which are the proper end. Raises MemberStopped if a member meets a defect."""
    try:
        while True:
            for member in members:
                member.wait(LOOK_S / len(members))
    except KeyboardInterrupt:
        return


def _say_kept(running: Store) -> None:
    status = running.status()
    say(
        f"store stopped; since its start it wrote {status.written_records} records, "
        f"{human_bytes(status.written_bytes)}; it keeps {status.topics} topics"
    )
