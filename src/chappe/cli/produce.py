"""``chappe produce``: records from a file or standard input into a topic, stored before it ends."""

from __future__ import annotations

import _thread
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import msgspec
import typer
from typer import Argument, Option

from chappe.api.times import as_micros
from chappe.cli import codecs, completing, options
from chappe.cli.console import Bar, Terminated, exit_code, hear_warnings, rate_of, say, tell, warn
from chappe.cli.formats import BadInput, FullRecord, Item, looks_consumed
from chappe.cli.lazy_producer import CountedWriter, LazyProducer
from chappe.cli.produce_input import ProduceInput
from chappe.cli.rates import Throttle
from chappe.cli.units import human_bytes, parse_moment
from chappe.data.markup import many
from chappe.errors import BadValue, ChappeError, TimedOut, UsageError
from chappe.log.compression import Compression
from chappe.system import program

if TYPE_CHECKING:
    from chappe import Producer
    from chappe.schemas.codec import Codec

FLUSH_STEP_S: Final = 0.25  # between two looks at the progress while waiting for stores
PATIENCE_S: Final = 5.0  # then the wait is explained
INTERRUPTED_FLUSH_S: Final = 2.0  # after Ctrl-C stores get this long to acknowledge the rest


@options.with_groups
def produce(
    reach: options.Reach,
    topic: Annotated[
        str, Argument(metavar="TOPIC", help="Topic to write to; made if it is new.", autocompletion=completing.TOPICS)
    ],
    source: ProduceInput,
    key: Annotated[str | None, Option(metavar="KEY", help="Key for records that have none.")] = None,
    header: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE", help="Header for records that have none; may be repeated.")
    ] = None,
    timestamp: Annotated[
        str | None,
        Option(
            metavar="TIME", help="Timestamp for records that have none: 2026-01-31T12:00, or 2h (ago); now by default."
        ),
    ] = None,
    rate: Annotated[
        float | None, Option(min=0.001, metavar="N", help="How many records a second at most; 0.1 is one in 10 s.")
    ] = None,
    identity: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Go on in the partition of this name, and first send records that an earlier run could not store.",
        ),
    ] = None,
    min_acks: Annotated[
        int, Option(envvar="CHAPPE_PRODUCE_MIN_ACKS", min=0, max=100, help="Stores that must have each record.")
    ] = 1,
    compression: Annotated[
        Compression | None, Option(help="Compress batches: smaller on disk and on the network.")
    ] = None,
    timeout: Annotated[
        float | None, Option(min=0.1, metavar="SECONDS", help="Fail if not everything is stored after this long.")
    ] = None,
    chain: options.Chain = None,
    partitions: Annotated[
        int | None, Option(min=1, max=1_024, metavar="N", help="With --chain: how many the topic gets if it is new.")
    ] = None,
    codec: codecs.Name = None,
    name: options.Name = None,
    as_json: options.Json = False,
) -> None:
    """Write records to a topic, from arguments, a file or standard input."""
    if chain is None and partitions is not None:
        raise UsageError("--partitions is for ordered topics: name their chain with --chain FILE")
    if chain is not None and (identity is not None or min_acks != 1 or reach.forwarders or compression is not None):
        raise UsageError(
            "--chain, the order of many writers, goes with none of --identity, --min-acks, --forwarders, --compression"
        )
    # Mistakes in the options are told before there is any input.
    source.check()
    encode = None if codec is None else codecs.parse_codec(codec, topic)
    program.call_members(name)
    if chain is not None:
        from chappe.api.chain.configuration import ChainConfiguration

        ChainConfiguration.load(chain)
    writer = LazyProducer(options.written_topic(topic), reach, identity, min_acks, chain, partitions, compression)
    hear_warnings(reach.tower)
    extras = _extras(key, header, timestamp)
    throttle = None if rate is None else Throttle(rate)
    lasting = identity is not None
    with source.chunks() as (chunks, size), writer, Bar("connecting", quiet=not sys.stderr.isatty()) as bar:
        if lasting:
            writer.open()  # an earlier run may have left something to be stored
        run = _ProduceRun(writer, source, extras, as_json, min_acks, bar, size, lasting, throttle, encode)
        with _StallWatch(run, timeout):
            code = run.all_of(chunks)
    if code:
        raise typer.Exit(code)


def _extras(key: str | None, headers: list[str] | None, timestamp: str | None) -> FullRecord:
    """Return the options that apply to every record. Raises UsageError."""
    pairs = []
    for each in headers or []:
        name, equals, value = each.partition("=")
        if not equals or not name.isprintable():
            raise UsageError(f"--header is NAME=VALUE, not {each!a}")
        pairs.append((name, os.fsencode(value)))
    stamp = None if timestamp is None else as_micros(parse_moment(timestamp, "--timestamp"))
    return FullRecord(None, None if key is None else os.fsencode(key), key is not None, tuple(pairs), stamp)


@dataclass
class _ProduceRun:
    writer: LazyProducer
    source: ProduceInput
    extras: FullRecord
    as_json: bool
    min_acks: int
    bar: Bar
    size: int
    lasting: bool
    throttle: Throttle | None
    codec: Codec | None
    read: int = 0
    sent_bytes: int = 0
    began: float = field(default_factory=time.monotonic)
    opening: bool = False  # the producer is being made, ...
    opened_s: float = 0.0  # ... the seconds that this took
    too_late: float | None = None  # the seconds of ``--timeout``, once they are over

    def __post_init__(self) -> None:
        self._look = self.source.form == "json"  # whether the first line is one of ``consume``
        self._plain = not self.extras.has_key and not self.extras.headers
        self._end = threading.Lock()  # taken by whatever ends the run

    @property
    def _sent(self) -> int:
        return self.writer.next_offset - self.writer.began_at

    @property
    def _stored(self) -> int:
        return self._sent if self.min_acks == 0 else max(0, self.writer.stored - self.writer.began_at)

    def unstored(self) -> tuple[int, int]:
        """Count stored records, including those of earlier runs, and those that wait for it."""
        stored, ahead = self.writer.stored, self.writer.next_offset
        return stored, 0 if self.min_acks == 0 else max(0, ahead - stored)

    def stalled(self, waiting: int) -> str:
        if isinstance(self.writer.producer, CountedWriter):
            return f"the chain has not confirmed the last {many(waiting, 'record')}; still trying"
        stores = "no store has" if self.min_acks == 1 else f"fewer than {self.min_acks} stores have"
        return (
            f"{stores} acknowledged the last {many(waiting, 'record')}; still trying (start a store with: "
            "chappe store; one that is there may have no space left, which it says itself)"
        )

    def all_of(self, chunks: Iterable[bytes]) -> int:
        """Send everything and wait for it; return the exit code."""
        problem: ChappeError | None = None
        try:
            try:
                self._send_all(chunks)
            except ChappeError as error:
                problem = error  # what came before the bad record is still to be stored
            self._wait()
            while not self.end():
                time.sleep(FLUSH_STEP_S)  # the time is over as well, and its interrupt is on its way
        except KeyboardInterrupt as stop:
            return self._interrupted(stop)
        if problem is not None and self.writer.producer is None:
            if isinstance(problem, UsageError) and not isinstance(problem, BadInput):
                raise problem  # of the options, not of the input
            warn(str(problem))
            return 1
        self._account("stored" if self.min_acks else "sent")
        if problem is not None:
            warn(f"{problem}; the {many(self._sent, 'record')} before it {_are(self._sent)} stored")
            return 1
        return 0

    def _send_all(self, chunks: Iterable[bytes]) -> None:
        try:
            for records in self.source.records(self._counted(chunks)):
                self._send(records)
        except BadInput as bad:
            self._send(bad.records)
            raise

    def _counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.read += len(chunk)
            yield chunk

    def _send(self, records: Sequence[Item]) -> None:
        if records:
            producer = self.writer.producer
            if producer is None:
                producer = self._open()
            if self._look and looks_consumed(records[0]):
                warn("these lines are what `consume --output json` prints: --format records makes them records again")
            self._look = False
            records, bad = self._encoded(records)
            for part in self._in_time(records):
                self._send_now(producer, part)
            if bad is not None:
                raise bad
        self._show()

    def _encoded(self, records: Sequence[Item]) -> tuple[Sequence[Item], BadInput | None]:
        """Encode values with the codec; the first that does not fit ends the run, after those before it."""
        if self.codec is None:
            return records, None
        from chappe.schemas.codec import encoded

        found: list[Item] = []
        for each in records:
            line = each if isinstance(each, bytes) else each.value
            try:
                value = None if line is None else encoded(self.codec, msgspec.json.decode(line), self.writer.topic)
            except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
                number = self._sent + len(found) + 1
                return found, BadInput(
                    f"--codec takes a line of JSON for each record, and record {number} is not: {error}", []
                )
            except BadValue as error:
                return found, BadInput(f"record {self._sent + len(found) + 1} of the input: {error}", [])
            found.append(replace(each, value=value) if isinstance(each, FullRecord) else value or FullRecord(value))
        return found, None

    def _in_time(self, records: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """Yield the records as --rate lets them go."""
        if self.throttle is None:
            yield records
            return
        at = 0
        while at < len(records):
            if count := self.throttle.wait(len(records) - at):
                yield records[at : at + count]
                at += count
            self._show()

    def _send_now(self, producer: Producer | CountedWriter, records: Sequence[Item]) -> None:
        if self._plain and all(type(each) is bytes for each in records):
            producer.send_many(cast("Sequence[bytes]", records), timestamp=self.extras.timestamp)
            self.sent_bytes += sum(map(len, cast("Sequence[bytes]", records)))
        else:
            for each in records:
                self._send_one(producer, each)

    def _open(self) -> Producer | CountedWriter:
        """Create the producer; this time counts neither for rates nor for ``--timeout``."""
        began, self.opening = time.monotonic(), True
        try:
            return self.writer.open()
        finally:
            self.began = time.monotonic()
            self.opened_s, self.opening = self.began - began, False

    def _show(self) -> None:
        rate = self._sent / max(time.monotonic() - self.began, 1e-3)
        text = f"{self._sent:,} sent, {self._stored:,} stored, {rate:,.0f} records/s"
        self.bar.update(text, self.read, self.size or None)

    def _send_one(self, producer: Producer | CountedWriter, record: Item) -> None:
        extras = self.extras
        if isinstance(record, bytes):
            producer.send(record, extras.key, extras.headers, extras.timestamp)
            self.sent_bytes += len(record)
            return
        producer.send(
            record.value,
            record.key if record.has_key else extras.key,
            extras.headers if record.headers is None else record.headers,
            extras.timestamp if record.timestamp is None else record.timestamp,
        )
        self.sent_bytes += len(record.value or b"")

    def _wait(self) -> None:
        stored = False
        while not stored:
            with suppress(TimedOut):
                self.writer.flush(timeout=FLUSH_STEP_S)
                stored = True
            self._show()

    def end(self) -> bool:
        """End the run, because all is stored or because its time is over; True for the first caller."""
        return self._end.acquire(blocking=False)

    def _interrupted(self, stop: KeyboardInterrupt) -> int:
        if self.too_late is None:
            with suppress(ChappeError, KeyboardInterrupt):
                self.writer.flush(timeout=INTERRUPTED_FLUSH_S)
        lost = self._sent - self._stored
        self._account("stored" if self.min_acks else "sent")
        how = "terminated" if isinstance(stop, Terminated) else "interrupted"
        if self.too_late is not None:
            how = f"{self.too_late:g} s have passed" + ("" if lost else ", and the input has not ended")
        if lost and self.lasting:
            of = many(self._sent, "record")
            warn(f"{how}: {lost:,} of {of} {_are(self._sent)} not stored yet; the same --identity sends them again")
        elif lost:
            warn(f"{how}: {lost:,} of {many(self._sent, 'record')} {_are(self._sent)} not stored")
        else:
            which = "the 1 record" if self._sent == 1 else f"all {self._sent:,} records"
            until = "read" if self.throttle is None else "sent"  # of what is read some may wait for its time
            done = "stored" if self.min_acks else "sent"
            warn(f"{how}: {which} {until} until then {_are(self._sent)} {done}")
        with suppress(ChappeError):
            self.writer.close()
        return exit_code(stop) if self.too_late is None else 1

    def _account(self, done: str) -> None:
        seconds = time.monotonic() - self.began
        facts: dict[str, Any] = {
            "topic": self.writer.topic,
            "partition": self.writer.partition,
            "first": self.writer.began_at,
            "records": self._sent,
            "stored": self._stored,
            "bytes": self.sent_bytes,
            "seconds": round(seconds, 6),
        }
        text = f"{done} {many(self._stored, 'record')}"
        if self._stored < self._sent:
            text += f" of {self._sent:,}"
        else:
            text += f", {human_bytes(self.sent_bytes)},"
        text += f" in {seconds:.2f} s ({rate_of(self._stored, seconds):,.0f} records/s)"
        where = "" if self.writer.partition is None else f" in partition {self.writer.partition}"
        tell(self.as_json, facts, text + where)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


class _StallWatch:
    """Warns when nothing is stored for a while, also while the producer waits for room, and says when it goes on.

    After ``timeout`` seconds it interrupts the main thread, whatever that waits for.
    """

    def __init__(self, run: _ProduceRun, timeout: float | None) -> None:
        self._run = run
        self._timeout = timeout
        self._deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True, name="produce-watch")

    def __enter__(self) -> None:
        if self._timeout is not None and hasattr(signal, "SIGALRM"):
            signal.signal(signal.SIGALRM, signal.default_int_handler)  # SIGINT itself may be ignored
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        before, since, told = -1, time.monotonic(), False
        while not self._ended.wait(FLUSH_STEP_S if self._run.opening else max(0.0, min(FLUSH_STEP_S, self._left()))):
            if self._left() <= 0 and not self._run.opening:
                self._interrupt()
                return
            stored, waiting = self._run.unstored()
            if stored != before or not waiting:
                if told and stored > before:
                    say("stores acknowledge again")
                before, since, told = stored, time.monotonic(), False
            elif not told and time.monotonic() - since > PATIENCE_S:
                told = True
                warn(self._run.stalled(waiting))

    def _left(self) -> float:
        return self._deadline + self._run.opened_s - time.monotonic()

    def _interrupt(self) -> None:
        if not self._run.end():
            return
        self._run.too_late = self._timeout
        if hasattr(signal, "SIGALRM"):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        else:
            _thread.interrupt_main()
