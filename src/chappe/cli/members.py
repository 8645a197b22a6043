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
    from chappe import Store, Tower
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
    hear_warnings(tower)
    _keep(context.obj, directory, tower, listen, as_json)


def up(
    context: typer.Context,
    directory: Directory = DIRECTORY,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    as_json: options.Json = False,
) -> None:
    """Run a tower and a store in one process: all that a laptop needs."""
    from chappe import Tower

    hear_warnings(tower)
    with Tower(tower) as introducer:
        _keep(context.obj, directory, introducer.address, listen, as_json, introducer)


def _keep(config: Config | None, directory: Path, tower: str, listen: str, as_json: bool, *beside: Tower) -> None:
    """Run a store, and the tower ``beside`` it."""
    from chappe import Retention, Store

    rules = config.retention if config is not None else ()
    retention = [(rule.topics, Retention(age_s=rule.age_s, bytes=rule.bytes, records=rule.records)) for rule in rules]
    with Store(directory, tower=tower, listen=listen, retention=retention) as running:
        facts = {"tower": tower, "store": running.store_id, "endpoint": running.endpoint, "directory": str(directory)}
        text = f"store in {directory}, answering at {running.endpoint}, tower {tower}; Ctrl-C stops"
        if beside:
            text = f"tower at {tower}, store in {directory} answering at {running.endpoint}; Ctrl-C stops"
        tell(as_json, facts, text)
        _until_stopped(*beside, running)
        status = running.status()
        say(
            f"store stopped; since its start it wrote {status.written_records} records, "
            f"{human_bytes(status.written_bytes)}; it keeps {status.topics} topics"
        )


def _until_stopped(*members: Store | Tower) -> None:
    """Wait for Ctrl-C or SIGTERM, both of which are the proper end. Raises MemberStopped if a member meets a defect."""
    try:
        while True:
            for member in members:
                member.wait(LOOK_S / len(members))
    except KeyboardInterrupt:
        return
