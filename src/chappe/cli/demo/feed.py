"""The demo's producer: it sends measurements for ever, or the lines of its input once.

A second demo in the same directory has the same identity and goes on in the same partition; of an input file
it sends only the lines that are not in the topic yet, for each line is one record.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from chappe.cli.console import Terminated, warn
from chappe.cli.demo.measurements import INTERVAL_S, Machine
from chappe.cli.formats import Lines
from chappe.errors import TimedOut

if TYPE_CHECKING:
    from chappe import Producer

CHUNK_BYTES: Final = 1 << 18
TELL_S: Final = 0.25  # how often the parent hears how far the feed is
FLUSH_S: Final = 10.0
STOP_S: Final = 14  # from SIGTERM until the process is ended by force
METRICS, JSON, LINES = "metrics", "json", "lines"
LINE_METRIC: Final = "bytes per line"
TELL_METRICS: Final = 100  # of one JSON object

Tell = Callable[..., None]


def kind_of(line: bytes) -> str:
    """Whether a first line of input is a JSON object or plain text."""
    try:
        return JSON if isinstance(msgspec.json.decode(line), dict) else LINES
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return LINES


class Stop:
    """Hears SIGTERM, and raises Terminated only where this process waits: never in the middle of a write.

    A write that waits for a store which is gone does not end: then the process does, after a while.
    """

    def __init__(self) -> None:
        self._asked = self._waiting = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _signum: int, _frame: object) -> None:
        self._asked = True
        signal.alarm(STOP_S)
        if self._waiting:
            raise Terminated

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context in which the process may be stopped."""
        self._waiting = True
        try:
            if self._asked:
                raise Terminated
            yield
        finally:
            self._waiting = False


def feed_measurements(producer: Producer, tell: Tell, stop: Stop) -> None:
    """Send this machine's measurements several times a second, until Terminated."""
    machine = Machine()
    tell(kind=METRICS)
    due = time.monotonic()
    while True:
        began = time.monotonic()
        newest = {}
        for metric, value, unit, record in machine.measure():
            producer.send(record, key=metric)
            newest[metric] = (value, unit)
        _tell_progress(producer, tell, newest=newest, stored_s=_stored_s(producer, began, INTERVAL_S))
        due = max(due + INTERVAL_S, time.monotonic())  # a pause of the machine is not made up for
        with stop.waiting():
            time.sleep(max(0.0, due - time.monotonic()))


def feed_lines(producer: Producer, file: int, resume: bool, tell: Tell, stop: Stop) -> None:
    """Send the lines of ``file`` that are not in the topic yet, and wait until they are stored. Raises Terminated."""
    skip = producer.next_offset if resume else 0
    told_at = 0.0
    kind = ""
    last = b""
    for lines in _lines(file, stop):
        if not kind and lines:
            kind = kind_of(lines[0])
            tell(kind=kind)
        if skip:
            lines, skip = lines[skip:], max(0, skip - len(lines))
        began = time.monotonic()
        if lines:
            last = lines[-1]
            producer.send_many(lines)
        if began - told_at > TELL_S and lines:
            stored_s = _stored_s(producer, began, TELL_S)
            told_at = time.monotonic()
            _tell_progress(producer, tell, newest=values_of(last, kind), stored_s=stored_s)
    if not kind:
        tell(kind=LINES)
    elif last:
        tell(newest=values_of(last, kind))
    finish(producer, tell)


def finish(producer: Producer, tell: Tell) -> None:
    """Wait until everything sent is stored, and tell the parent that the feed has ended."""
    try:
        producer.flush(timeout=FLUSH_S)
    except TimedOut:
        warn(f"{producer.next_offset - producer.stored} records are not stored yet; a next demo sends them again")
    _tell_progress(producer, tell)
    tell(ended=True)


def _lines(file: int, stop: Stop) -> Iterator[list[bytes]]:
    splitter = Lines()
    while True:
        with stop.waiting():
            chunk = os.read(file, CHUNK_BYTES)
        if not chunk:
            break
        yield splitter.feed(chunk)
    yield splitter.end()


def values_of(line: bytes, kind: str) -> dict[str, tuple[float, str]]:
    """What the query makes of a line: the value and unit of its metrics, of the first few."""
    if kind != JSON:
        return {LINE_METRIC: (float(len(line)), "B")}
    try:
        members = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    found: dict[str, tuple[float, str]] = {}
    for metric, value in members.items() if isinstance(members, dict) else ():
        with suppress(ValueError, OverflowError):
            if isinstance(value, (int, float, str)) and not isinstance(value, bool) and len(found) < TELL_METRICS:
                number = float(value)
                if math.isfinite(number):
                    found[metric] = (number, "")
    return found


def _stored_s(producer: Producer, since: float, patience_s: float) -> float | None:
    """Wait until everything sent is stored, for a while; the seconds that it took, None if it is not yet."""
    try:
        producer.flush(timeout=patience_s)
    except TimedOut:
        return None
    return time.monotonic() - since


def _tell_progress(producer: Producer, tell: Tell, **more: Any) -> None:
    tell(sent=producer.next_offset, stored=producer.stored, **more)


def teller(out: TextIO) -> Tell:
    """Facts for the parent: one JSON object on one line each."""

    def tell(**facts: Any) -> None:
        out.write(msgspec.json.encode(facts).decode() + "\n")
        out.flush()

    return tell
