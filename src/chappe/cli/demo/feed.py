"""The demo's producer: it sends measurements for ever, or the lines of its input once.

A second demo in the same directory has the same identity and goes on in the same partition; of an input file
it sends only the lines that are not in the topic yet, for each line is one record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from chappe.cli.console import warn
from chappe.cli.demo.measurements import INTERVAL_S, Machine
from chappe.cli.formats import Lines
from chappe.errors import TimedOut

if TYPE_CHECKING:
    from chappe import Producer

CHUNK_BYTES: Final = 1 << 18
TELL_S: Final = 0.25  # how often the parent hears how far the feed is
FLUSH_S: Final = 10.0
METRICS, JSON, LINES = "metrics", "json", "lines"

Tell = Callable[..., None]


def kind_of(line: bytes) -> str:
    """Whether a first line of input is a JSON object or plain text."""
    try:
        return JSON if isinstance(msgspec.json.decode(line), dict) else LINES
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return LINES


def feed_measurements(producer: Producer, tell: Tell) -> None:
    """Send this machine's measurements several times a second, until KeyboardInterrupt."""
    machine = Machine()
    tell(kind=METRICS)
    due = time.monotonic()
    while True:
        for metric, value in machine.measure():
            producer.send(value, key=metric)
        _tell_progress(producer, tell)
        due = max(due + INTERVAL_S, time.monotonic())  # a pause of the machine is not made up for
        time.sleep(max(0.0, due - time.monotonic()))


def feed_lines(producer: Producer, file: int, resume: bool, tell: Tell) -> None:
    """Send the lines of ``file`` that are not in the topic yet, and wait until they are stored."""
    skip = producer.next_offset if resume else 0
    told_at = 0.0
    kind = ""
    for lines in _lines(file):
        if not kind and lines:
            kind = kind_of(lines[0])
            tell(kind=kind)
        if skip:
            lines, skip = lines[skip:], max(0, skip - len(lines))
        if lines:
            producer.send_many(lines)
        if time.monotonic() - told_at > TELL_S:
            told_at = time.monotonic()
            _tell_progress(producer, tell)
    if not kind:
        tell(kind=LINES)
    finish(producer, tell)


def finish(producer: Producer, tell: Tell) -> None:
    """Wait until everything sent is stored, and tell the parent that the feed has ended."""
    try:
        producer.flush(timeout=FLUSH_S)
    except TimedOut:
        warn(f"{producer.next_offset - producer.stored} records are not stored yet; a next demo sends them again")
    _tell_progress(producer, tell)
    tell(ended=True)


def _lines(file: int) -> Iterator[list[bytes]]:
    splitter = Lines()
    while chunk := os.read(file, CHUNK_BYTES):
        yield splitter.feed(chunk)
    yield splitter.end()


def _tell_progress(producer: Producer, tell: Tell) -> None:
    tell(sent=producer.next_offset, stored=producer.stored)


def teller(out: TextIO) -> Tell:
    """Facts for the parent: one JSON object on one line each."""

    def tell(**facts: Any) -> None:
        out.write(msgspec.json.encode(facts).decode() + "\n")
        out.flush()

    return tell
