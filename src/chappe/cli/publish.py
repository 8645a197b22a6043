"""``chappe publish`` and ``chappe subscribe``: values into the mesh, and messages out of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer
from typer import Argument, Option

from chappe.cli import declared, mesh, options, values
from chappe.cli.console import hear_warnings, say, tell, warn, write_out
from chappe.cli.following import Seconds, UntilInterrupted, batches
from chappe.cli.formats import split_lines
from chappe.cli.units import parse_age
from chappe.data.markup import many
from chappe.data.order import TYPE_NAMES
from chappe.errors import ChappeError, InvalidData, Sealed, UsageError

if TYPE_CHECKING:
    from chappe import Received

Messages: TypeAlias = list[tuple[str, object]]  # topics and values

CHUNK_BYTES: Final = 1 << 18
ANY: Final = "-"  # the topic stands in each line

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class Form:
    """The options that say how values are written."""

    event: Annotated[
        str | None, Option(metavar="NAME", help="Publish one Zeek event, whose arguments are the values.")
    ] = None
    kind: Annotated[
        str | None, Option("--type", metavar="TYPE", help="Type of all values: count, string, address, ...")
    ] = None
    input_format: Annotated[
        Literal["text", "json"],
        Option("--format", help="text: values, as `chappe subscribe` prints them; json: only Broker's typed JSON."),
    ] = "text"
    as_text: values.Text = False

    def check(self, topic: str) -> None:
        """Raise UsageError for options that contradict each other."""
        if self.kind is not None and self.kind not in TYPE_NAMES:
            raise UsageError(f"there is no type {self.kind!r}, only {', '.join(TYPE_NAMES)}")
        if self.input_format == "json" and (self.kind is not None or self.event is not None or self.as_text):
            raise UsageError("typed JSON says itself what it is: leave out --type, --text and --event")
        if topic == ANY and self.input_format != "json":
            raise UsageError("a topic in each line needs --format json")

    def given(self, topic: str, texts: list[str]) -> Messages:
        """Return the messages on the command line. Raises UsageError."""
        from chappe.data.zeek import Event

        try:
            if self.input_format == "json":
                return [self.line(topic, os.fsencode(each)) for each in texts]
            read = [values.read_argument(each, self.kind, as_text=self.as_text) for each in texts]
        except InvalidData as problem:
            raise UsageError(str(problem)) from None
        return [(topic, each) for each in (read if self.event is None else [Event(self.event, *read)])]

    def line(self, topic: str, line: bytes) -> tuple[str, object]:
        """Return the message in a line of standard input. Raises InvalidData."""
        if self.input_format == "json":
            return values.read_message(None if topic == ANY else topic, line)
        return topic, values.read(line.decode("utf-8", "surrogateescape"), self.kind, as_text=self.as_text)

    def lines(self, topic: str, source: int) -> Iterator[Messages]:
        """Yield the messages that come. Raises UsageError for a malformed line, after the messages before it."""
        number = 0
        for lines in split_lines(iter(lambda: os.read(source, CHUNK_BYTES), b"")):
            batch: Messages = []
            for line in lines:
                number += 1
                if self.input_format == "json" and not line.strip():
                    continue
                try:
                    batch.append(self.line(topic, line))
                except InvalidData as problem:
                    yield batch
                    raise UsageError(f"line {number} of the input: {problem}") from None
            if batch:
                yield batch


@app.command(cls=values.Command)
@options.with_groups
def publish(
    trust: mesh.Trust,
    form: Form,
    queues: mesh.Queues,
    topic: Annotated[str, Argument(metavar="TOPIC", help="Topic to publish to; `-`: the one in each JSON line.")],
    texts: Annotated[
        list[str] | None,
        Argument(
            metavar="VALUE", help=f"Each is a message; without any, the lines of standard input are. {values.HELP}"
        ),
    ] = None,
    peers: mesh.Peers = None,
    as_json: options.Json = False,
) -> None:
    """Publish values or Zeek events to a topic of the mesh.

    A value is what its JSON says: `5`, `true` or `{"a": 1}`; of a type that it names: `count:5`; else a string.
    """
    hear_warnings()
    form.check(topic)
    security = trust.security()
    dialled = mesh.addresses(security, peers or [mesh.HERE])
    if texts or form.event is not None:  # all of them are read before anything is sent
        batches: Iterable[Messages] = [form.given(topic, texts or [])]
    else:
        batches = form.lines(topic, sys.stdin.fileno())
    teller = mesh.PeerNotices()
    count = wanted = 0  # published, and of these what somebody in reach has subscribed to
    problem: ChappeError | None = None
    with queues.endpoint(security, forwarding=False) as endpoint:
        mesh.dial(endpoint, dialled)
        statuses = endpoint.statuses(callback=teller)
        heard = mesh.await_subscribers(endpoint, None if topic == ANY else topic)
        try:
            for batch in batches:
                wanted += endpoint.publish_batch(batch)
                count += len(batch)
        except ChappeError as error:
            if isinstance(batches, list):
                raise
            problem = error
        mesh.until(endpoint, lambda: endpoint.core.buffered() == 0)
        statuses.close()  # a peer that leaves now has what it wanted
    unwanted = ""
    if wanted < count:
        unwanted = (
            f"; to {count - wanted} of them nobody has subscribed" if wanted else ", to which nobody has subscribed"
        )
    facts = {"topic": None if topic == ANY else topic, "published": count, "wanted": wanted, "subscribers": heard}
    tell(as_json, facts, f"published {many(count, 'message')}{unwanted}")
    if problem is not None:
        warn(f"{problem}; what came before it is published")
    if teller.lost:
        warn("a peer was lost meanwhile: it may have missed some")
    if problem is not None or teller.lost:
        raise typer.Exit(1)


@options.with_groups
def subscribe(
    trust: mesh.Trust,
    life: mesh.Life,
    dialling: mesh.DialOptions,
    topics: Annotated[list[str], Argument(metavar="TOPIC", help="Prefixes of topics; '' is all.")],
    peers: mesh.Peers = None,
    listen: Annotated[
        list[str] | None, Option("--listen", metavar="HOST:PORT", help="Let others dial, too; port 0 takes any.")
    ] = None,
    count: Annotated[int | None, Option(min=0, metavar="N", help="End after N messages.")] = None,
    seconds: Seconds = None,
    output: Annotated[
        Literal["text", "json"],
        Option(help="text: for people; json: data messages, which `chappe publish --format json` reads."),
    ] = "text",
    as_json: Annotated[bool, Option("--json", help="The same as --output json.")] = False,
    as_text: values.Text = False,
    on_full: Annotated[
        Literal["drop_oldest", "drop_newest", "block"],
        declared.of("subscribe.on_full").option(
            help="When the output is slow: drop messages and say so, or slow publishers down."
        ),
    ] = "drop_oldest",
    messages_max: Annotated[int, declared.of("subscribe.messages_max").option()] = declared.of(
        "subscribe.messages_max"
    ).default,
    bytes_max: Annotated[int, declared.of("subscribe.bytes_max").option()] = declared.of("subscribe.bytes_max").default,
    max_age: Annotated[
        str | None,
        declared.of("subscribe.max_age").option(
            help="Greatest age of a message when it is taken, such as 10s or 0.5s; unlimited by default."
        ),
    ] = None,
    on_stale: Annotated[
        declared.OnStale,
        declared.of("subscribe.on_stale").option(
            help="A message older than --max-age ends the command with a failure, or is left out and counted."
        ),
    ] = "end",
    queue: Annotated[
        str | None, Option(metavar="NAME", help="Of all subscribers with this name each message goes to one.")
    ] = None,
    last: Annotated[
        bool, Option("--last", help="First the newest message of each topic, from endpoints that keep last values.")
    ] = False,
) -> None:
    """Print what is published to topics of the mesh; Zeek's events by name."""
    hear_warnings()
    security = trust.security()
    dialled = mesh.addresses(security, peers or ([] if listen else [mesh.HERE]))
    heard = mesh.addresses(security, listen or [])
    if count == 0:
        return
    json = as_json or output == "json"
    render = values.message_as_json if json else partial(values.message_as_text, broker=as_text)
    with life.endpoint(security, forwarding=False) as endpoint:
        teller = mesh.PeerNotices(come_and_go=bool(heard))
        endpoint.statuses(callback=teller)
        age_s = None if max_age is None else parse_age(max_age)
        bounds: dict[str, Any] = {"messages_max": messages_max, "bytes_max": bytes_max}
        subscriber = endpoint.subscribe(
            *topics,
            on_full=on_full,
            max_age_s=age_s,
            on_stale=on_stale,
            on_gap=None if queue is not None else lambda gap: warn(str(gap)),
            last=last,
            queue=queue,
            **bounds,
        )
        try:
            with UntilInterrupted(count, seconds):
                for each in mesh.listen(endpoint, heard):
                    say(f"listening at {each}")
                dialling.keep(endpoint, dialled)
                for found in batches(subscriber.get_many, count, seconds):
                    write_out(b"".join(_rendered(found, render)))
            mesh.check_met(endpoint, teller, dialled)
        finally:
            if subscriber.dropped:
                hint = " (--on-full block waits instead)" if max_age is None else ""
                were = "was" if subscriber.dropped == 1 else "were"
                warn(f"{many(subscriber.dropped, 'message')} {were} dropped: this was too slow{hint}")


def _rendered(messages: Iterable[Received], render: Callable[[str, bytes], bytes]) -> Iterator[bytes]:
    for message in messages:
        try:
            message.check_opened()
            yield render(message.topic, message.payload)
        except Sealed as problem:
            warn(str(problem))
        except InvalidData as problem:
            warn(f"a message to {message.topic!a} cannot be read: {problem}")
