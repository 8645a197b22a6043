"""``chappe subscribe``: what is published in the mesh, to standard output."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from chappe.cli import mesh, options, values
from chappe.cli.console import check_reader, exit_code, say, warn, write_out
from chappe.errors import InvalidData

if TYPE_CHECKING:
    from chappe import Received, Subscriber

CHUNK: Final = 256  # messages printed at once
POLL_S: Final = 0.25


@options.with_groups
def subscribe(
    trust: mesh.Trust,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Prefixes of topics; '' is all.")],
    peers: mesh.Peers = None,
    listen: Annotated[
        list[str] | None, typer.Option("--listen", metavar="HOST:PORT", help="Let others dial, too; port 0 takes any.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=0, metavar="N", help="End after N messages.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.0, metavar="S", help="End after so long.")] = None,
    output: Annotated[
        Literal["text", "json"],
        typer.Option(help="text: for people; json: data messages, which `chappe publish --format json` reads."),
    ] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    as_text: values.Text = False,
    on_full: Annotated[
        Literal["drop_oldest", "drop_newest", "block"],
        typer.Option(help="When the output is slow: drop messages and say so, or slow publishers down."),
    ] = "drop_oldest",
) -> None:
    """Print what is published to topics of the mesh; Zeek's events by name."""
    from chappe import Endpoint

    mesh.hear_warnings()
    security = trust.security()
    dialled = mesh.addresses(security, peers or ([] if listen else [mesh.HERE]))
    heard = mesh.addresses(security, listen or [])
    if count == 0:
        return
    printer = _Printer(as_json or output == "json", count, as_text)
    with Endpoint(security=security, forwarding=False) as endpoint:
        endpoint.statuses(callback=mesh.Teller(come_and_go=bool(heard)))
        subscriber = endpoint.subscribe(*topics, on_full=on_full)
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
    while printer.left != 0:
        left = POLL_S if end is None else min(POLL_S, end - time.monotonic())
        if left <= 0:
            return
        found = subscriber.get_many(CHUNK if printer.left is None else min(CHUNK, printer.left), left)
        printer.print(found)
        if not found:
            check_reader()


class _Printer:
    """Writes messages to standard output until there were as many as wanted."""

    def __init__(self, json: bool, count: int | None, broker: bool) -> None:
        from chappe.cli.events import as_json, as_text

        self.left = count
        self._render = as_json if json else partial(as_text, broker=broker)

    def print(self, messages: list[Received]) -> None:
        pieces = []
        for message in messages:
            try:
                pieces.append(self._render(message.topic, message.payload))
            except InvalidData as problem:
                warn(f"a message to {message.topic!a} cannot be read: {problem}")
        if self.left is not None:
            self.left -= len(messages)
        write_out(b"".join(pieces))
