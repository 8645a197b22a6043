"""``chappe subscribe``: what is published in the mesh, to standard output."""

from __future__ import annotations

import os
import sys
import time
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chappe.cli import mesh, values
from chappe.cli.console import check_reader, exit_code, say, warn
from chappe.errors import InvalidData

if TYPE_CHECKING:
    from chappe import Received, Subscriber

CHUNK: Final = 256  # messages printed at once
POLL_S: Final = 0.25


class Output(StrEnum):
    """How messages are printed."""

    TEXT = "text"
    JSON = "json"


class OnFull(StrEnum):
    """What happens when this is read more slowly than others publish."""

    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    BLOCK = "block"


def subscribe(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Prefixes of topics; '' is all.")],
    peers: mesh.Peers = None,
    listen: Annotated[
        list[str] | None, typer.Option("--listen", metavar="HOST:PORT", help="Let others dial, too; port 0 takes any.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=0, metavar="N", help="End after N messages.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.0, metavar="S", help="End after so long.")] = None,
    output: Annotated[
        Output, typer.Option(help="text: for people; json: data messages, which `chappe publish --format json` reads.")
    ] = Output.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    as_text: values.Text = False,
    on_full: Annotated[
        OnFull, typer.Option(help="When the output is slow: drop messages and say so, or slow publishers down.")
    ] = OnFull.DROP_OLDEST,
    tls: mesh.TlsFiles = None,
    anonymous: mesh.Anonymous = False,
    plain: mesh.Plain = False,
) -> None:
    """Print what is published to topics of the mesh; Zeek's events by name."""
    from chappe import Endpoint

    mesh.hear_warnings()
    security = mesh.security_of(tls, anonymous, plain)
    dialled = [mesh.address(each) for each in peers or ([] if listen else [mesh.HERE])]
    heard = [mesh.address(each) for each in listen or []]
    for host, _ in (*dialled, *heard):
        mesh.check_host(security, host)
    if count == 0:
        return
    printer = _Printer(Output.JSON if as_json else output, count, as_text)
    with Endpoint(security=security, forwarding=False) as endpoint:
        endpoint.statuses(callback=mesh.Teller(come_and_go=bool(heard)))
        subscriber = endpoint.subscribe(*topics, on_full=on_full.value)
        try:
            for host, port in heard:
                found = endpoint.listen(host, port)
                say(f"listening at {mesh.shown((host, found))}")
            for host, port in dialled:
                endpoint.peer_nosync(host, port, retry_s=mesh.RETRY_S)
            _follow(subscriber, printer, None if seconds is None else time.monotonic() + seconds)
        except KeyboardInterrupt as stop:
            if count is not None or seconds is not None:
                raise typer.Exit(exit_code(stop)) from None
        finally:
            if subscriber.dropped:
                warn(f"{subscriber.dropped} messages were dropped: this was too slow (--on-full block waits instead)")


def _follow(subscriber: Subscriber, printer: _Printer, end: float | None) -> None:
    while not printer.full:
        left = POLL_S if end is None else min(POLL_S, end - time.monotonic())
        if left <= 0:
            return
        found = subscriber.get_many(CHUNK if printer.left is None else min(CHUNK, printer.left), left)
        printer.print(found)
        if not found:
            check_reader()


class _Printer:
    """Writes messages to standard output until there were as many as wanted."""

    def __init__(self, output: Output, count: int | None, broker: bool) -> None:
        from chappe.cli.events import as_json, as_text

        self.left = count
        self._render = as_json if output is Output.JSON else partial(as_text, broker=broker)
        self._out = sys.stdout.fileno()

    @property
    def full(self) -> bool:
        return self.left == 0

    def print(self, messages: list[Received]) -> None:
        pieces = []
        for message in messages:
            try:
                pieces.append(self._render(message.topic, message.payload))
            except InvalidData as problem:
                warn(f"a message to {message.topic!a} cannot be read: {problem}")
        if self.left is not None:
            self.left -= len(messages)
        view = memoryview(b"".join(pieces))
        while view:
            view = view[os.write(self._out, view) :]
