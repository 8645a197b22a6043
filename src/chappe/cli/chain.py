"""``chappe chain``: serve one server of a chain, look at all of them, take one out and in again; and a demo."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from typer import Argument, Option

from chappe.cli import dashboard, options
from chappe.cli.auditing import audited
from chappe.cli.chain_demo import demo
from chappe.cli.console import hear_warnings, say, tell
from chappe.cli.node import REPORT_S, STEP_S
from chappe.data.markup import many
from chappe.errors import NoChain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chappe import ChainConfiguration, ChainServerStatus

    Statuses: TypeAlias = Mapping[str, ChainServerStatus | None]

COLUMNS: Final = ("server", "is", "configuration", "commands", "behind", "clients", "waits for")
_NEWS: Final = frozenset({"Entered", "Joins"})  # what is wrong is told as it comes
WAIT_S: Final = 2.0
CHANGE_S: Final = 30.0

app = typer.Typer(
    name="chain", help="Servers that hold exactly the same state, so that none of them can be missed.",
    no_args_is_help=True,
)  # fmt: skip

File: TypeAlias = Annotated[Path, Argument(metavar="FILE", help="The chain's configuration: the same for all.")]
Timeout: TypeAlias = Annotated[float, Option(min=0.1, metavar="SECONDS", help="How long servers are waited for.")]
Server: TypeAlias = Annotated[str, Argument(metavar="NAME", help="One of the servers.")]


@app.command()
@audited()
def serve(
    file: File,
    name: Annotated[str, Option("--name", metavar="NAME", help="Which of the file's servers this is.")],
    directory: Annotated[
        Path | None,
        Option(metavar="DIRECTORY", help="Where it keeps its votes, log and state; by default among the user's data."),
    ] = None,
    acting: options.Acting = None,
    plain: options.Plain = False,
    look: dashboard.Wanted = False,
    as_json: options.Json = False,
) -> None:
    """Serve one server of a chain, and show how the chain is."""
    from chappe import ChainConfiguration
    from chappe.api.chain.machines import start_configured
    from chappe.api.identity import state_directory

    options.be(acting)
    hear_warnings()
    configuration = ChainConfiguration.load(file)
    configuration.place(name)
    where = directory or state_directory("chains", f"{configuration.name}-{name}", None)
    with closing(start_configured(configuration, name, where, "plain" if plain else None)) as server:
        title = f"{name} of the chain {configuration.name} at {server.address}"
        facts = {"name": name, "chain": configuration.name, "address": server.address, "directory": str(where)}
        reach = ["--chain", str(file), *(["--plain"] if plain else [])]
        with suppress(KeyboardInterrupt), dashboard.beside(look, *reach) as url:  # the proper end
            if url is not None:
                facts["dashboard"] = url
            tell(as_json, facts, f"{title}{'' if url is None else f', dashboard at {url}'}; Ctrl-C stops")
            _follow(server, title, as_json)
    if not as_json:
        say(f"{title} stopped")


@app.command()
def status(file: File, timeout: Timeout = WAIT_S, acting: options.Acting = None, as_json: options.Json = False) -> None:
    """Show who is in a chain, how far each server is, and what it waits for."""
    from chappe import Chain

    configuration = _configuration(file, acting)
    with Chain(configuration) as chain:
        found = chain.status(timeout=timeout)
    if as_json:
        print(json.dumps({name: None if each is None else _facts(each) for name, each in found.items()}))
    else:
        from chappe.cli.screen import People

        People().print(_table(configuration, found))
    if not any(found.values()):
        where = ", ".join(configuration.servers.values())
        raise NoChain(
            f"no server of the chain {configuration.name} answers at {where}: start them, or look at the file"
        )


@app.command()
def remove(file: File, name: Server, timeout: Timeout = CHANGE_S, acting: options.Acting = None) -> None:
    """Have a server leave the chain, and stay out of it: before its machine is worked on."""
    from chappe import Chain

    with Chain(_configuration(file, acting)) as chain:
        chain.remove(name, timeout=timeout)
    say(f"{name} is out of the chain; `chappe chain add {file} {name}` has it come back")


@app.command()
def add(file: File, name: Server, timeout: Timeout = CHANGE_S, acting: options.Acting = None) -> None:
    """Let a server that was removed come back; it is in the chain when it has everything."""
    from chappe import Chain

    with Chain(_configuration(file, acting)) as chain:
        chain.add(name, timeout=timeout)
    say(f"{name} is in the chain")


app.command()(demo)


def _configuration(file: Path, acting: str | None) -> ChainConfiguration:
    from chappe import ChainConfiguration

    options.be(acting)
    hear_warnings()
    return ChainConfiguration.load(file)


def _follow(server: Any, title: str, as_json: bool) -> None:
    """Show how it fares until Ctrl-C. Raises MemberStopped if it met a defect."""
    from chappe.cli.screen import People, Screen

    looked_at = time.monotonic()
    report_at = looked_at + REPORT_S
    committed = server.status().committed
    with Screen(People(stderr=True), quiet=as_json) as screen:
        while True:
            server.wait(STEP_S)
            for event in server.events():
                if not as_json and type(event).__name__ in _NEWS:
                    say(str(event))
            found, now = server.status(), time.monotonic()
            rate = (found.committed - committed) / (now - looked_at)
            looked_at, committed = now, found.committed
            screen.show(lambda: _one(title, found, rate), lambda: _lines(found, rate))  # noqa: B023
            if as_json and now >= report_at:
                report_at += REPORT_S
                print(json.dumps(_facts(found) | {"commands_per_s": round(rate, 1)}), flush=True)


def _facts(status: ChainServerStatus) -> dict[str, Any]:
    return {"role": status.role, **asdict(status)}


def _table(configuration: ChainConfiguration, found: Statuses) -> RenderableType:
    from chappe.cli.screen import Fitting

    newest = max((each.end for each in found.values() if each is not None), default=0)
    rows = [
        _row(name, each, newest) if each is not None else (name, "silent", "", "", "", "", configuration.servers[name])
        for name, each in found.items()
    ]
    return Fitting(COLUMNS, rows, left=("server", "is", "waits for"), spare=("clients", "configuration"))


def _row(name: str, status: ChainServerStatus, newest: int) -> tuple[str, ...]:
    role = "removed" if name in status.out else status.role
    figures = (status.number, status.committed, newest - status.committed, status.sessions)
    return (name, role, *(f"{each:,}" for each in figures), status.why)


def _one(title: str, status: ChainServerStatus, rate: float) -> RenderableType:
    from rich.console import Group
    from rich.markup import escape

    from chappe.cli.screen import Fitting

    row = (*_row(status.name, status, status.end)[1:4], f"{rate:,.0f}", *_row(status.name, status, status.end)[4:])
    columns = (*COLUMNS[1:4], "commands/s", *COLUMNS[4:])
    return Group(escape(title), Fitting(columns, [row], left=("is", "waits for"), spare=("clients", "behind")))


def _lines(status: ChainServerStatus, rate: float) -> Iterator[str]:
    chain = " > ".join(status.members) or "not founded"
    waits = f"; {status.why}" if status.why else ""
    yield f"{status.role}, {chain}, {many(status.committed, 'command')} ({rate:,.0f}/s){waits}"
