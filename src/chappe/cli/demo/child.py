"""What runs in a child process of the demo: ``python -m chappe.cli.demo.child ROLE PARENT ...``.

Roles: ``log DIRECTORY ADDRESS`` is a store and a tower, at the address if it is free; ``feed TOWER TOPIC DIRECTORY
[FILE|-]`` is the producer. Facts for the parent go to standard output, one JSON object a line; what goes wrong goes to
standard error. A child ends on SIGTERM, and when its parent is gone; Ctrl-C is for the parent alone to obey.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from chappe.cli.console import Terminated, hear_warnings, obey_sigterm, say, warn
from chappe.cli.formats import split_lines
from chappe.errors import ChappeError, TimedOut, UsageError

if TYPE_CHECKING:
    from chappe import Producer, Tower

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
    for lines in split_lines(_chunks(file, stop)):
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


def _chunks(file: int, stop: Stop) -> Iterator[bytes]:
    while True:
        with stop.waiting():
            chunk = os.read(file, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


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


INTERVAL_S: Final = 0.2


class Measurement(msgspec.Struct, frozen=True):
    """One value of one metric."""

    metric: str
    value: float
    unit: str


class Machine:
    """Measures processors, memory, disk and network; rates are since the measurement before."""

    def __init__(self) -> None:
        try:
            import psutil  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise UsageError("the demo measures this machine with psutil; run: pip install 'chappe[demo]'") from error
        self._psutil: Any = psutil
        self._counters: dict[str, tuple[float, float]] = {}
        psutil.cpu_percent(percpu=True)  # the first answer only starts the measurement

    def measure(self) -> list[tuple[str, float, str, bytes]]:
        """Name, value, unit and the JSON of all that, for every metric of this machine."""
        return [(each.metric, each.value, each.unit, msgspec.json.encode(each)) for each in self._all()]

    def _all(self) -> Iterator[Measurement]:
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
    """Counters that a container may not have."""
    try:
        return counters()
    except (OSError, RuntimeError):
        return None


LOOK_S: Final = 0.5
PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> int:
    """Play one role until told to stop; returns the exit code."""
    role, parent, rest = arguments[0], int(arguments[1]), arguments[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    obey_sigterm()
    _end_with(parent)
    try:
        if role == "log":
            _log(*rest)
        else:
            _feed(*rest)
    except KeyboardInterrupt:
        return 0
    except (ChappeError, OSError) as error:
        say(str(error))
        return 1
    return 0


def _end_with(parent: int) -> None:
    """End this process when its parent does, even by kill -9."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    def watch() -> None:  # elsewhere, and for a parent that died before prctl
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="chappe parent watch", daemon=True).start()


def _log(directory: str, address: str) -> None:
    from chappe import Store

    tell = teller(sys.stdout)
    hear_warnings("127.0.0.1")
    with _tower(address) as tower, Store(directory, tower=tower.address) as store:
        tell(tower=tower.address, endpoint=store.endpoint, store=store.store_id)
        while True:
            time.sleep(LOOK_S)


def _tower(address: str) -> Tower:
    """A tower where other commands look for one, if that is free and on this machine; else at any port."""
    from chappe import Tower

    if address.startswith(("127.", "localhost:")):
        with suppress(ChappeError):
            return Tower(address)
    return Tower("127.0.0.1:0")


def _feed(tower: str, topic: str, directory: str, file: str | None = None) -> None:
    from chappe import Producer

    tell = teller(sys.stdout)
    hear_warnings(tower)
    stop = Stop()
    with Producer(topic, tower=tower, identity=f"{topic}-feed", directory=directory) as producer:
        tell(partition=producer.partition, first=producer.next_offset)
        try:
            if file is None:
                feed_measurements(producer, tell, stop)
            elif file == "-":
                feed_lines(producer, sys.stdin.fileno(), False, tell, stop)
            else:
                with open(file, "rb", buffering=0) as source:
                    feed_lines(producer, source.fileno(), True, tell, stop)
            while True:  # the producer stays, for those who have not everything yet
                with stop.waiting():
                    time.sleep(LOOK_S)
        except KeyboardInterrupt:
            finish(producer, tell)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
