"""The producer of the demo, on a thread of its own: this machine's measurements, or lines of a file or a pipe."""

from __future__ import annotations

import math
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chappe.cli.console import Terminated
from chappe.cli.formats import split_lines
from chappe.errors import TimedOut

if TYPE_CHECKING:
    from chappe import Producer

CHUNK_BYTES: Final = 1 << 18
LOOK_S: Final = 0.25  # between two looks for an end
TELL_S: Final = 0.25  # between two reports of progress
INTERVAL_S: Final = 0.2  # between two measurements
FLUSH_S: Final = 10.0
STOP_S: Final = 14.0  # a write that waits for a store with no room is given up after this
METRICS, JSON, LINES = "metrics", "json", "lines"
LINE_METRIC: Final = "bytes per line"
TELL_METRICS: Final = 100  # of one JSON object


def kind_of(line: bytes) -> str:
    """Tell JSON objects from plain text by the first line."""
    try:
        return JSON if isinstance(msgspec.json.decode(line), dict) else LINES
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return LINES


class DemoFeed:
    """Sends measurements, or the lines of ``source`` that are not in the topic yet; ``-`` is standard input.

    ``facts`` has the progress by name: ``kind`` of the records, once known; records ``sent`` and ``stored``, including
    the ``first`` ones of earlier runs; the ``newest`` values, and the seconds until they were stored (``stored_s``);
    ``ended`` once the input has ended.
    """

    def __init__(self, producer: Producer, source: str | None) -> None:
        self.facts: dict[str, Any] = {"first": producer.next_offset}
        self._producer = producer
        self._source = source
        self._stopping = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="chappe demo feed", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error that has ended the feed, if any."""
        if self._problem is not None:
            raise self._problem

    def stop(self) -> None:
        """Send no more, and wait up to ``STOP_S`` until everything sent is stored. Safe to call twice."""
        self._stopping.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            with suppress(Terminated):
                if self._source is None:
                    self._measure()
                elif self._source == "-":
                    self._send_lines(sys.stdin.fileno(), 0)
                else:
                    with open(self._source, "rb", buffering=0) as file:
                        self._send_lines(file.fileno(), self._producer.next_offset)
            self._stored_s(time.monotonic(), FLUSH_S)
            self._tell(ended=True)
        except BaseException as error:
            self._problem = error

    def _measure(self) -> None:
        machine = MachineMetrics()
        self.facts["kind"] = METRICS
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            began = time.monotonic()
            newest = {}
            for each in machine.measure():
                self._producer.send(msgspec.json.encode(each), key=each.metric)
                newest[each.metric] = (each.value, each.unit)
            self._tell(newest=newest, stored_s=self._stored_s(began, INTERVAL_S))
            due = max(due + INTERVAL_S, time.monotonic())  # a pause of the machine is not made up for

    def _send_lines(self, file: int, skip: int) -> None:
        told_at, kind, last = 0.0, "", b""
        for lines in split_lines(self._chunks(file)):
            if not kind and lines:
                kind = self.facts["kind"] = kind_of(lines[0])
            if skip:
                lines, skip = lines[skip:], max(0, skip - len(lines))
            if not lines:
                continue
            began = time.monotonic()
            last = lines[-1]
            self._producer.send_many(lines)
            if began - told_at > TELL_S:
                self._tell(newest=values_of(last, kind), stored_s=self._stored_s(began, TELL_S))
                told_at = time.monotonic()
        self.facts.setdefault("kind", LINES)
        if last:
            self._tell(newest=values_of(last, kind))

    def _chunks(self, file: int) -> Iterator[bytes]:
        """Read the input. Raises Terminated when the feed stops: an incomplete line is not a record then."""
        while not self._stopping.is_set():
            if select.select([file], [], [], LOOK_S)[0]:
                chunk = os.read(file, CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk
        raise Terminated

    def _stored_s(self, since: float, patience_s: float) -> float | None:
        """Wait until everything sent is stored; return the seconds since then, None after ``patience_s``."""
        try:
            self._producer.flush(timeout=patience_s)
        except TimedOut:
            return None
        return time.monotonic() - since

    def _tell(self, **more: Any) -> None:
        self.facts |= {"sent": self._producer.next_offset, "stored": self._producer.stored, **more}


def values_of(line: bytes, kind: str) -> dict[str, tuple[float, str]]:
    """Return value and unit of the metrics that the query finds in a line, ``TELL_METRICS`` at most."""
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


class Measurement(msgspec.Struct, frozen=True):
    metric: str
    value: float
    unit: str


class MachineMetrics:
    """Measures processors, memory, disk and network; rates are since the measurement before."""

    def __init__(self) -> None:
        import psutil  # type: ignore[import-untyped, unused-ignore]

        self._psutil: Any = psutil
        self._counters: dict[str, tuple[float, float]] = {}
        psutil.cpu_percent(percpu=True)  # the first answer only starts the measurement

    def measure(self) -> Iterator[Measurement]:
        for number, percent in enumerate(self._psutil.cpu_percent(percpu=True)):
            yield Measurement(f"cpu.{number}", percent, "%")
        memory = self._psutil.virtual_memory()
        yield Measurement("memory.used", memory.percent, "%")
        yield Measurement("memory.available", memory.available / 2**20, "MiB")
        yield Measurement("processes", float(len(self._psutil.pids())), "")
        disk = _have(self._psutil.disk_io_counters)
        if disk is not None:
            yield self._rate("disk.read", disk.read_bytes)
            yield self._rate("disk.written", disk.write_bytes)
        network = _have(self._psutil.net_io_counters)
        if network is not None:
            yield self._rate("network.received", network.bytes_recv)
            yield self._rate("network.sent", network.bytes_sent)

    def _rate(self, metric: str, count: float) -> Measurement:
        now = time.monotonic()
        before, at = self._counters.get(metric, (count, now))
        self._counters[metric] = (count, now)
        rate = max(0.0, count - before) / (now - at) if now > at else 0.0  # a counter may have been reset
        return Measurement(metric, rate / 1024, "KiB/s")


def _have(counters: Callable[[], Any]) -> Any:
    """Return counters, or None: containers may lack them."""
    try:
        return counters()
    except (OSError, RuntimeError):
        return None
