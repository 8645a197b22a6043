"""``chappe publish``: values into the mesh, from the command line or standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from chappe.cli import mesh, options
from chappe.cli import values as typed_values
from chappe.cli.console import tell, warn
from chappe.errors import ChappeError, InvalidData, UsageError

if TYPE_CHECKING:
    from chappe import Endpoint

Format = Literal["text", "json"]  # what values look like

WAIT_S: Final = 1.0  # peers get this long to say who subscribes
CHUNK_BYTES: Final = 1 << 18
ANY: Final = "-"  # the topic stands in each line


@options.with_groups
def publish(
    trust: mesh.Trust,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to publish to; `-`: the one in each JSON line.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VALUE",
            help=f"Each is a message; without any, the lines of standard input are. {typed_values.HELP}",
        ),
    ] = None,
    event: Annotated[
        str | None, typer.Option(metavar="NAME", help="Publish one Zeek event, whose arguments are the values.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", help="Of all values: count, string, address, ..."),
    ] = None,
    input_format: Annotated[
        Format,
        typer.Option(
            "--format", help="text: values, as `chappe subscribe` prints them; json: only Broker's typed JSON."
        ),
    ] = "text",
    as_text: typed_values.Text = False,
    peers: mesh.Peers = None,
    as_json: options.Json = False,
) -> None:
    """Publish values or Zeek events to a topic of the mesh.

    A value is what its JSON says: `5`, `true` or `{"a": 1}`; of a type that it names: `count:5`; else a string.
    """
    from chappe import Endpoint

    mesh.hear_warnings()
    _check(topic, event, kind, input_format, as_text)
    security = trust.security()
    dialled = mesh.addresses(security, peers or [mesh.HERE])
    given = _given(topic, values or [], event, kind, input_format, as_text)
    teller = mesh.Teller()
    with Endpoint(security=security, forwarding=False) as endpoint:
        mesh.dial(endpoint, dialled)
        statuses = endpoint.statuses(callback=teller)
        heard = _await_subscribers(endpoint, None if topic == ANY else topic)
        run = _Run(endpoint, None if topic == ANY else topic, kind, input_format, as_text)
        problem = run.all_of(given)
        mesh.until(endpoint, lambda: endpoint.core.buffered() == 0)
        statuses.close()  # a peer that leaves now has what it wanted
    facts = {"topic": None if topic == ANY else topic, "published": run.count, "wanted": run.wanted}
    tell(as_json, {**facts, "subscribers": heard}, f"published {run.count} messages" + _unwanted(run))
    if problem is not None:
        warn(f"{problem}; what came before it is published")
    if teller.lost:
        warn("a peer was lost meanwhile: it may have missed some")
    if problem is not None or teller.lost:
        raise typer.Exit(1)


def _unwanted(run: _Run) -> str:
    if run.wanted == run.count:
        return ""
    if not run.wanted:
        return ", to which nobody has subscribed"
    return f"; to {run.count - run.wanted} of them nobody has subscribed"


def _check(topic: str, event: str | None, kind: str | None, form: Format, as_text: bool) -> None:
    from chappe.data.order import TYPE_NAMES

    if kind is not None and kind not in TYPE_NAMES:
        raise UsageError(f"there is no type {kind!r}, only {', '.join(TYPE_NAMES)}")
    if form == "json" and (kind is not None or event is not None or as_text):
        raise UsageError("typed JSON says itself what it is: leave out --type, --text and --event")
    if topic == ANY and form != "json":
        raise UsageError("a topic of each line needs --format json")


def _given(
    topic: str, values: list[str], event: str | None, kind: str | None, form: Format, as_text: bool
) -> list[tuple[str, object]] | None:
    """The messages on the command line, all of them read before anything is sent; None: they are on standard input."""
    from chappe.cli.events import read_json
    from chappe.data.zeek import Event

    if event is None and not values:
        return None
    try:
        if form == "json":
            return [read_json(None if topic == ANY else topic, os.fsencode(each)) for each in values]
        read = [typed_values.read_argument(each, kind, as_text=as_text) for each in values]
    except InvalidData as problem:
        raise UsageError(str(problem)) from None
    if event is not None:
        return [(topic, Event(event, *read))]
    return [(topic, each) for each in read]


def _await_subscribers(endpoint: Endpoint, topic: str | None) -> bool:
    """Wait until somebody in reach is known to want the topic, a little at most; an original tells only its own."""
    wanted = b"" if topic is None else topic.encode("utf-8", "surrogateescape")

    def known() -> bool:
        found = endpoint.core.peer_subscriptions()
        return bool(found) if topic is None else wanted.startswith(tuple(found))

    return mesh.until(endpoint, known, WAIT_S)


class _Run:
    """Publishes, and counts."""

    def __init__(self, endpoint: Endpoint, topic: str | None, kind: str | None, form: Format, as_text: bool) -> None:
        self.count = 0
        self.wanted = 0  # those that somebody in reach has subscribed to
        self._endpoint = endpoint
        self._topic = topic
        self._kind = kind
        self._form = form
        self._as_text = as_text

    def all_of(self, given: list[tuple[str, object]] | None) -> ChappeError | None:
        """Publish what is given, or standard input; returns what was wrong with its last line."""
        if given is not None:
            self.wanted = self._endpoint.publish_batch(given)
            self.count = len(given)
            return None
        try:
            for batch in self._batches(sys.stdin.fileno()):
                self.wanted += self._endpoint.publish_batch(batch)
                self.count += len(batch)
        except ChappeError as error:
            return error
        return None

    def _batches(self, source: int) -> Iterator[list[tuple[str, object]]]:
        from chappe.cli.formats import Lines

        splitter = Lines()
        lines = 0
        ended = False
        while not ended:
            chunk = os.read(source, CHUNK_BYTES)
            ended = not chunk
            batch: list[tuple[str, object]] = []
            for line in splitter.end() if ended else splitter.feed(chunk):
                lines += 1
                try:
                    batch += self._read(line)
                except InvalidData as problem:
                    yield batch
                    raise UsageError(f"line {lines} of the input: {problem}") from None
            if batch:
                yield batch

    def _read(self, line: bytes) -> list[tuple[str, object]]:
        from chappe.cli.events import read_json, read_line

        if self._form == "text":
            assert self._topic is not None
            return [(self._topic, read_line(line, self._kind, broker=self._as_text))]
        return [read_json(self._topic, line)] if line.strip() else []
