"""``chappe chain``: serve one server of a chain, look at all of them, take one out and in again; and a demo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from typer import Argument, Option

from chappe.cli import dashboard, options
from chappe.cli.chain_demo import demo
from chappe.cli.console import hear_warnings, say, show_json
from chappe.cli.listing import PIPE_WIDTH
from chappe.cli.serving import STEP_S, Display, Numbers, ServerIdentity, serves, show, stopped
from chappe.cli.watching import watchable
from chappe.data.markup import many
from chappe.errors import NoChain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chappe import ChainConfiguration, ChainServerStatus

    Statuses: TypeAlias = Mapping[str, ChainServerStatus | None]

COLUMNS: Final = ("server", "is", "configuration", "commands", "behind", "clients", "waits for")
WAIT_S: Final = 2.0
CHANGE_S: Final = 30.0

app = typer.Typer(
    name="chain", help="Keep exactly the same state on several servers, any one of which can fail.",
    no_args_is_help=True,
)  # fmt: skip

File: TypeAlias = Annotated[Path, Argument(metavar="FILE", help="The chain's configuration: the same for all.")]
Timeout: TypeAlias = Annotated[float, Option(min=0.1, metavar="SECONDS", help="How long servers are waited for.")]
Server: TypeAlias = Annotated[str, Argument(metavar="NAME", help="One of the servers.")]


@app.command()
@serves()
def serve(
    who: ServerIdentity,
    numbers: Numbers,
    file: File,
    name: Annotated[str, Option("--name", metavar="NAME", help="Which of the file's servers this is.")],
    directory: Annotated[
        Path | None,
        Option(metavar="DIRECTORY", help="Where it keeps its votes, log and state; by default among the user's data."),
    ] = None,
    look: dashboard.Wanted = False,
    as_json: options.Json = False,
) -> None:
    """Serve one server of a chain, and show how the chain is."""
    from chappe import ChainConfiguration
    from chappe.api.chain.machines import start_configured
    from chappe.api.identity import state_directory

    hear_warnings()
    configuration = ChainConfiguration.load(file)
    configuration.place(name)
    where = directory or state_directory("chains", f"{configuration.name}-{name}", None)
    with closing(start_configured(configuration, name, where, who.security)) as server:
        title = f"{name} of the chain {configuration.name} at {server.address}"
        facts = {"name": name, "chain": configuration.name, "address": server.address, "directory": str(where)}
        with dashboard.beside(look, "--chain", str(file), *who.arguments) as url:
            if url is not None:
                facts["dashboard"] = url
            text = title if url is None else f"{title}, dashboard at {url}"
            display = _ChainServerDisplay(server, title, as_json)
            show(display, facts, text, numbers.of(who.security, server))
    stopped(as_json, title)


@app.command()
@watchable
def status(file: File, timeout: Timeout = WAIT_S, acting: options.Acting = None, as_json: options.Json = False) -> None:
    """Show who is in a chain, how far each server is, and what it waits for."""
    from chappe import Chain

    configuration = _configuration(file, acting)
    with Chain(configuration) as chain:
        found = chain.status(timeout=timeout)
    if as_json:
        show_json({name: None if each is None else _facts(each) for name, each in found.items()})
    else:
        from chappe.cli.screen import wide_console

        wide_console(PIPE_WIDTH).print(_table(configuration, found))
    if not any(found.values()):
        where = ", ".join(configuration.servers.values())
        raise NoChain(
            f"no server of the chain {configuration.name} answers at {where}: start them, or look at the file"
        )


@app.command()
def remove(file: File, name: Server, timeout: Timeout = CHANGE_S, acting: options.Acting = None) -> None:
    """Remove a server from the chain until `add`, before work on its machine."""
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


class _ChainServerDisplay(Display):
    NEWS = frozenset({"Entered", "ServerJoins"})

    def __init__(self, server: Any, title: str, as_json: bool) -> None:
        super().__init__(title, as_json)
        self._server = server

    def look(self) -> None:
        self._server.wait(STEP_S)
        self.say_news(self._server.events())
        self._status: ChainServerStatus = self._server.status()
        self._per_s = self.per_s("commands", self._status.committed)

    def picture(self) -> RenderableType:
        from chappe.cli.screen import Fitting, titled

        before, after = (
            _row(self._status.name, self._status, self._status.end)[n] for n in (slice(1, 4), slice(4, None))
        )
        columns = (*COLUMNS[1:4], "commands/s", *COLUMNS[4:])
        row = (*before, f"{self._per_s:,.0f}", *after)
        return titled(self.title, Fitting(columns, [row], left=("is", "waits for"), spare=("clients", "behind")))

    def lines(self) -> Iterator[str]:
        status = self._status
        chain = " > ".join(status.members) or "not founded"
        waits = f"; {status.why}" if status.why else ""
        yield f"{status.role}, {chain}, {many(status.committed, 'command')} ({self._per_s:,.0f}/s){waits}"

    def report(self) -> dict[str, Any]:
        return _facts(self._status) | {"commands_per_s": round(self._per_s, 1)}
