"""``chappe consume``: records of topics to standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from typer import Argument, Option

from chappe.api.log.lines import as_json
from chappe.cli import codecs, completing, options
from chappe.cli.console import check_reader, hear_warnings, warn, write_out
from chappe.cli.consume_choice import Choice, Key, Match, Span
from chappe.cli.consume_workers import Working, work_off
from chappe.cli.following import POLL_S, UntilInterrupted
from chappe.cli.formats import MESSAGE_RENDERERS, RENDERERS, with_headers
from chappe.cli.record_format import ALLOWED, parse_format
from chappe.cli.units import parse_age, parse_start
from chappe.data.markup import are
from chappe.data.topic import Filter
from chappe.errors import BadValue, OffsetOutOfRange, ProtocolError, UnsupportedValue, UsageError
from chappe.log.events import OutOfRange, RecordsLost
from chappe.schemas.codec import json_of
from chappe.system import program

if TYPE_CHECKING:
    from chappe import Consumer
    from chappe.api.log.consumed_batch import ConsumedBatch
    from chappe.log.batch import Record

STORE_S: Final = 1.0  # stores get this long to be found, then it is said that there are none
OUTPUT_BYTES: Final = 1 << 18  # written to standard output at once


@options.with_groups
def consume(
    reach: options.Reach,
    working: Working,
    choice: Choice,
    topics: Annotated[
        list[str], Argument(metavar="TOPIC", help="Topics; `name*` is a prefix.", autocompletion=completing.TOPICS)
    ],
    start: Annotated[
        str,
        Option(
            "--from",
            envvar="CHAPPE_CONSUME_FROM",
            metavar="WHERE",
            show_default=False,
            help="earliest (default), latest, last-value (newest of each key, then all), an offset, an age "
            "(10m), or a time (2026-01-31T12:00).",
        ),
    ] = "earliest",
    count: Annotated[int | None, Option(min=0, metavar="N", help="End after N records.")] = None,
    until_end: Annotated[
        bool,
        Option(
            "--until-end/--follow",
            show_default=False,
            help="End when all that is stored now is read, by the group if any; or follow.",
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        Option(
            min=0.1,
            metavar="SECONDS",
            help="End when nothing has come for this long; a failure if the end or N was not reached.",
        ),
    ] = None,
    output: Annotated[
        options.OutputFormat,
        Option(
            envvar="CHAPPE_CONSUME_OUTPUT",
            metavar="FORM",
            help="text: for people; raw: values in lines; json: all metadata; "
            "length: values, each after its length in 4 bytes.",
        ),
    ] = "text",
    as_json: Annotated[bool, Option("--json", help="The same as --output json.")] = False,
    form: Annotated[
        str | None,
        Option(
            "--format",
            metavar="FORMAT",
            help=rf"Print this instead, such as '%t %o %k %s\n'. Letters: {ALLOWED}.",
        ),
    ] = None,
    headers: Annotated[bool, Option("--headers", help="With --output text: headers, too, after the value.")] = False,
    max_age: options.MaxAge = None,
    on_stale: options.OnStale = "end",
    name: options.Name = None,
    group: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Join this group: members share partitions, and go on where it was.",
            autocompletion=completing.GROUPS,
        ),
    ] = None,
    member: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="With --group: a restart under this name keeps its partitions.",
            autocompletion=completing.names_of("members"),
        ),
    ] = None,
    codec: codecs.Name = None,
    dead_letter: Annotated[
        str | None,
        Option("--dead-letter", metavar="TOPIC", help="With --codec: write records that it cannot decode there."),
    ] = None,
    stored: Annotated[bool, Option("--stored", help="Print only records that stores have on their disks.")] = False,
    min_acks: Annotated[
        int, Option(min=1, max=100, metavar="N", help="With --stored: stores that must have each.")
    ] = 1,
) -> None:
    """Print the records of topics, or hand them to workers; once, or following."""
    working.check(count=count, timeout=timeout, until_end=until_end)
    if group is not None and working.program is not None:
        raise UsageError("--group is for consumers that print: workers of --exec go on by --identity")
    if group is not None and (choice.last is not None or choice.partition is not None):
        raise UsageError("--last and --partition do not go with --group, whose members share what it has not read")
    output = "json" if as_json else output
    if working.program is not None:
        choice.check_no_workers()
        if codec is not None:
            raise UsageError("--codec is for records that are printed: workers of --exec get them as they are")
        if form is not None or headers:
            raise UsageError("--format and --headers do not go with --exec: workers get what --output says")
    if dead_letter is not None and codec is None:
        raise UsageError("--dead-letter is for records that a codec cannot decode: give --codec")
    decode = None if codec is None else codecs.parse_codec(codec, None)
    rendering = Rendering.of(output, form, headers=headers)
    program.call_members(name)
    hear_warnings(reach.tower)
    filters = [Filter.parse(topic) for topic in topics]
    where: Any = "earliest" if choice.last is not None else parse_start(start)
    if isinstance(where, datetime) and where > datetime.now(UTC):
        raise UsageError(f"--from {start} is in the future")
    age_s = None if max_age is None else parse_age(max_age)
    with choice.matching() as match:
        span = choice.span(filters, reach, where, until_end=until_end)
        if count == 0 or span.ends == {}:
            return
        more: dict[str, Any] = {"max_age_s": age_s, "on_stale": on_stale, "stored": stored, "min_acks": min_acks}
        if working.program is not None:
            more |= {"timeout": timeout, "form": "json" if output == "text" else output}  # text is for people
            work_off(working, topics, until_end, _missing, reset=where, **reach.arguments, **more)
            return
        more |= {"group": group, "member": member, "codec": decode, "dead_letter": dead_letter}
        printer = _Printer(rendering, count, match)
        if not _print_all(printer, reach, topics, choice, span, timeout, reset=where, **more):
            raise typer.Exit(1)


def _print_all(
    printer: _Printer,
    reach: options.Reach,
    topics: list[str],
    choice: Choice,
    span: Span,
    timeout: float | None,
    **more: Any,
) -> bool:
    """Print until the end, the count or the time-out; return False if anything is missing in it then."""
    from chappe import Consumer

    ends, group = span.ends, more["group"]
    with Consumer(*topics, **reach.arguments, **more) as consumer:
        if more["codec"] is not None:
            printer.decode = consumer.decoded
        if ends is not None and group is not None:
            consumer.wait_ready(timeout)
        for key, offset in span.begins.items():
            consumer.seek(*key, offset)
        gaps: list[tuple[Key, int, int]] = []
        interrupted = True
        with UntilInterrupted(ends, printer.count):
            quiet = _Quiet(consumer, reach, topics, timeout)
            while not printer.full and not (ends is not None and _reached(consumer, ends, group)):
                batch = None
                try:
                    batch = consumer.poll(quiet.poll_s)
                except OffsetOutOfRange as error:
                    warn(f"{error}; skipped")  # other partitions have the offset, this one goes on where it can
                gaps += _gaps(consumer.events())
                if batch is not None and not choice.takes(batch.partition):
                    batch = None
                if batch is not None:
                    printer.print(batch, None if ends is None else ends.get((batch.topic, batch.partition), 0))
                if quiet.over(came=batch is not None):
                    break
            interrupted = False
        if group is not None:
            printer.go_back(consumer)
        if interrupted:
            return True  # the proper end of following
        gaps += _gaps(consumer.events())
        at_end = ends is not None and _reached(consumer, ends, group)
        short = "" if printer.full or at_end else _short(printer, ends is not None)
    # records that were read ahead do not count
    wanted = printer.reached if printer.full or ends is None else ends
    missed = sum(max(0, min(after, wanted.get(key, 0)) - first) for key, first, after in gaps)
    if missed:
        warn(f"{are(missed, 'record')} missing in what was printed: nobody has more than that")
    if short:
        warn(f"{short}: nothing came for {timeout:g} s")
    return not (short or missed or printer.unreadable)


def _gaps(events: list[object]) -> Iterator[tuple[Key, int, int]]:
    """Yield partition, first offset and end of every gap."""
    for event in events:
        if isinstance(event, RecordsLost):
            yield (event.topic, event.partition), event.first, event.last + 1
        elif isinstance(event, OutOfRange) and not event.strict:  # retention was faster than we
            yield (event.topic, event.partition), event.offset, event.first


def _missing(events: list[object]) -> int:
    return sum(after - first for _, first, after in _gaps(events))


def _short(printer: _Printer, ends: bool) -> str:
    """Say how much was printed by a command that ended as nothing came; empty if nothing is lacking."""
    if printer.count is not None:
        return f"{printer.printed:,} of {printer.count:,} records are printed"
    return "the end is not reached" if ends else ""


class _Quiet:
    """Measures the time without records: warns once of missing stores, and applies ``--timeout``."""

    def __init__(self, consumer: Consumer, reach: options.Reach, topics: list[str], timeout: float | None) -> None:
        self._consumer = consumer
        self._reach = reach
        self._topics = topics
        self._timeout = timeout
        self._began = self._since = time.monotonic()
        self._quiet = True
        self.poll_s = POLL_S if timeout is None else min(POLL_S, timeout)

    def over(self, *, came: bool) -> bool:
        now = time.monotonic()
        if not came:
            check_reader()
        if came:
            self._since, self._quiet = now, False
        elif self._quiet and now - self._began > STORE_S and self._consumer.tower:
            self._quiet = False
            if not self._consumer.synced:
                warn(
                    f"{self._reach.named} knows no store (chappe store runs one); waiting for what is "
                    f"produced to {', '.join(map(repr, self._topics))} from now on"
                )
        return self._timeout is not None and now - self._since >= self._timeout


def _reached(consumer: Consumer, ends: dict[Key, int], group: str | None) -> bool:
    """True if all is read; by the whole group, as a member that dies leaves its part to the others."""
    position = consumer.position() if group is None else consumer.group_position()
    return all(position.get(key, 0) >= end for key, end in ends.items())


@dataclass(slots=True)
class Rendering:
    """How records are printed: ``message`` those that were recorded from the mesh, ``headless`` those whose headers
    cannot be read; ``headers`` says whether any of it needs headers.
    """

    record: Callable[[Record], bytes]
    message: Callable[[Record], bytes] | None
    headless: Callable[[Record], bytes]
    headers: bool

    @classmethod
    def of(cls, output: options.OutputFormat, form: str | None, *, headers: bool) -> Rendering:
        """Raise UsageError for a bad format, or for headers where they cannot be shown."""
        if form is not None:
            found = parse_format(form, escaped=sys.stdout.isatty())
            return cls(found.render, None, found.render, found.headers)
        if headers and output in ("raw", "length"):
            raise UsageError(f"--output {output} is values alone; take --output json, or --format with %h")
        render, message = RENDERERS[output], MESSAGE_RENDERERS.get(output)
        if output == "json":
            return cls(render, message, partial(as_json, with_headers=False), headers=True)
        if headers and message is not None:
            return cls(with_headers(render), with_headers(message), render, headers=True)
        return cls(render, message, render, headers=False)


class _Printer:
    def __init__(self, rendering: Rendering, count: int | None, match: Match | None) -> None:
        self._rendering = rendering
        self._match = match
        self.count = count
        self.printed = 0
        self.unreadable = False  # whether headers or the value of any record were
        self.decode: Callable[[Record], Record | None] | None = None
        self.reached: dict[Key, int] = {}  # the offset after the last one printed, or passed over
        self._last: ConsumedBatch | None = None

    @property
    def full(self) -> bool:
        return self.count is not None and self.printed >= self.count

    def print(self, batch: ConsumedBatch, end: int | None) -> None:
        """Print the records of a batch before offset ``end``, as many as are still wanted."""
        self._last = batch
        pieces: list[bytes] = []
        size = 0
        for record, render in self._rendered(batch):
            if self.full or (end is not None and record.offset >= end):
                break
            self.reached[batch.topic, batch.partition] = record.offset + 1
            shown = record if self.decode is None else self._decoded(record, self.decode)
            if shown is None or (self._match is not None and not self._match(shown)):
                continue
            pieces.append(render(shown))
            size += len(pieces[-1])
            self.printed += 1
            if size > OUTPUT_BYTES:
                write_out(b"".join(pieces))
                pieces, size = [], 0
        write_out(b"".join(pieces))

    def go_back(self, consumer: Consumer) -> None:
        """Have the position be behind what was printed of the last batch, as the group is to go on there."""
        batch = self._last
        if batch is not None and (key := (batch.topic, batch.partition)) in consumer.position():
            at = self.reached.get(key, batch.first)
            if at < batch.next:
                consumer.seek(*key, at)

    def _rendered(self, batch: ConsumedBatch) -> Iterator[tuple[Record, Callable[[Record], bytes]]]:
        """Yield the records of a batch with what renders them; malformed headers do not stop it."""
        where = (batch.topic, batch.partition, batch.first)
        how = self._rendering
        try:
            records = batch.batch.records(*where, with_headers=how.headers)
        except ProtocolError:
            for record in batch.batch.records(*where, with_headers=False):
                try:
                    headers = batch.batch.headers_at(record.offset)
                except ProtocolError as error:
                    yield record, partial(self._without_headers, str(error))
                else:
                    yield msgspec.structs.replace(record, headers=headers), how.record
            return
        for record, is_message in zip(records, self._messages(batch) or repeat(False), strict=False):
            yield record, how.message if is_message and how.message is not None else how.record

    def _decoded(self, record: Record, decode: Callable[[Record], Record | None]) -> Record | None:
        """Return a record whose value is JSON; None, with a warning, if it cannot be decoded or shown."""
        try:
            found = decode(record)
            if found is None or found.value is None:
                return found
            return msgspec.structs.replace(found, value=json_of(found.value))
        except (BadValue, UnsupportedValue) as error:
            self.unreadable = True
            warn(f"{error}; it is left out")
            return None

    def _without_headers(self, problem: str, record: Record) -> bytes:
        self.unreadable = True
        warn(f"{problem}, in topic {record.topic!r}, partition {record.partition}; the record is printed without them")
        return self._rendering.headless(record)

    def _messages(self, batch: ConsumedBatch) -> list[bool]:
        """Flag the records of mesh messages; empty if the batch has none."""
        if self._rendering.message is None or batch.batch.column("headers") is None:
            return []
        from chappe.bridges.form import recorded

        return recorded(batch.batch)[batch.first - batch.batch.base :]
