"""The process of a command: signals, streams, and lines for people on standard error."""

from __future__ import annotations

import codecs
import errno
import io
import json
import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

from chappe.cli.logs import log
from chappe.data import terminal
from chappe.defaults import TOWER_SUB_PORT
from chappe.errors import ChappeError, UsageError
from chappe.system.log_file import JsonLines, event_of

if TYPE_CHECKING:
    from rich.progress import Progress

TERMINATED = 128 + signal.SIGTERM
INTERRUPTED = 128 + signal.SIGINT


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised in the main thread as Ctrl-C is, so that both end a command the same way."""


def _terminate(_signum: int, _frame: FrameType | None) -> None:
    raise Terminated


def obey_sigterm() -> None:
    """Turn SIGTERM into ``Terminated``; call once, in the main thread."""
    signal.signal(signal.SIGTERM, _terminate)


def exit_code(stop: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED


@contextmanager
def hand_signals(to: Callable[[KeyboardInterrupt], None]) -> Iterator[None]:
    """Pass Ctrl-C and SIGTERM to ``to`` instead of raising them, unless they are ignored."""

    def take(number: int, _frame: FrameType | None) -> None:
        to(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    heard = {each: handler for each, handler in before.items() if callable(handler)}
    for each in heard:
        signal.signal(each, take)
    try:
        yield
    finally:
        for each, handler in heard.items():
            signal.signal(each, handler)


def say(text: str) -> None:
    """Print escaped text on standard error, with ``--log-format json`` an object; ignore a closed standard error."""
    _print(_as_json(text, logging.INFO) if log.wanted.format == "json" else terminal.lines(text))


def warn(text: str, level: int = logging.WARNING) -> None:
    """Print a warning on one line, likewise."""
    _print(_as_json(text, level) if log.wanted.format == "json" else terminal.lines(f"chappe: {terminal.line(text)}"))


def _print(line: str) -> None:
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _as_json(text: str, level: int) -> str:
    return JsonLines().format(logging.LogRecord(__name__, level, "", 0, text, None, None))


def show(text: str) -> None:
    """Print one line of escaped text on standard output."""
    print(terminal.line(text))


class _ToPeople(logging.Handler):
    """Prints reports of members, each once in a row, good news only after bad; and lines that options ask for."""

    def __init__(self, tower: str | None, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tower = tower
        self._tell = tell
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        good = record.levelno == logging.INFO and self._last and event_of(record) is not None
        if not log.shows(record) and not good:
            return
        if log.wanted.format == "json":
            _print(JsonLines().format(record))
            return
        text = self._text(record)
        if record.levelno < logging.WARNING and not good:
            say(terminal.line(f"{record.levelname.lower()} {record.name}: {text}"))
        elif text != self._last:
            self._last = text
            self._tell(text)
        if record.exc_info and debugging():
            traceback.print_exception(*record.exc_info)

    def _text(self, record: logging.LogRecord) -> str:
        from chappe.log.events import TowerFound, TowerLost  # not imported for each command

        event = event_of(record)
        if isinstance(event, TowerLost):
            return f"no tower answers at {self._tower}; still trying (start one with: chappe up)"
        if isinstance(event, TowerFound):
            return f"the tower at {self._tower} answers now"
        return record.getMessage()


def hear_warnings(tower: str | None = None, tell: Callable[[str], None] = warn) -> None:
    """Print, or ``tell``, the warnings of members in this process, and the reports of members of the log.

    ``tower`` is the address to name when no tower answers; None for a command that uses only the mesh.
    """
    log.begin(_ToPeople(tower, tell), logging.WARNING if tower is None else logging.INFO)


def show_json(facts: dict[str, Any]) -> None:
    """Print a line of JSON on standard output, with control characters escaped."""
    print(terminal.json_line(json.dumps(facts).encode()).decode(), flush=True)


def debugging() -> bool:
    """True if errors come with their traceback (``CHAPPE_DEBUG=1``)."""
    return os.environ.get("CHAPPE_DEBUG", "") not in ("", "0")


def tell(as_json: bool, facts: dict[str, Any], text: str) -> None:
    """Print facts as JSON on standard output, or the text for people."""
    if as_json:
        show_json(facts)
    else:
        say(text)


def write_out(raw: bytes) -> None:
    """Write to standard output, past Python's buffer."""
    view = memoryview(raw)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


def drop_stdout() -> None:
    """Discard further output: its reader has gone, and the interpreter flushes at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_reader() -> None:
    """Raise BrokenPipeError if standard output is a pipe without a reader, before anything is written."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if any(found & select.POLLERR for _, found in poll.poll(0)):
            raise BrokenPipeError


class _Closed(io.TextIOBase):
    """Stands for a standard stream that was closed at the start; using it raises an error that says so."""

    def __init__(self, name: str) -> None:
        self._problem = OSError(errno.EBADF, f"{name} is closed")

    def fileno(self) -> int:
        raise self._problem

    def write(self, _text: Any) -> int:
        raise self._problem

    def isatty(self) -> bool:
        return False

    @property
    def buffer(self) -> Any:
        raise self._problem


# Characters of bars, curves and frames, and their substitutes in ASCII.
_LIKE: Final = str.maketrans("▁▂▃▄▅▆▇█▏▎▍▌▋▊▉…━─│╸╺→·", "_.-:=+*#---====~--|-->.")


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: replace unencodable characters with lookalikes, or escape them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_LIKE)
    return text.encode("ascii", "backslashreplace").decode(), error.end


def encode_all() -> None:
    """Make standard output and error accept every character, whatever the terminal's encoding."""
    codecs.register_error("chappe.plainly", _plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="chappe.plainly")


def replace_closed() -> None:
    """Replace closed standard streams.

    Python sets them to None, which discards output silently; and the next file or socket that is opened would get
    their number, and the data that is written to it.
    """
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    number = 0
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)  # the lowest one that is free
    os.close(number)
    if sys.stdin is None:
        sys.stdin = _Closed("standard input")
    if sys.stdout is None:
        sys.stdout = _Closed("standard output")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def allow_files(wanted: int) -> int:
    """Raise the limit on open files to ``wanted`` where the machine allows it; return the limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with suppress(OSError, ValueError):
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def need_files(processes: int, noun: str) -> None:
    """Allow the open files that pipes to so many processes need. Raises ChappeError."""
    wanted = 3 * processes + 64
    if allow_files(wanted) < wanted:
        raise ChappeError(f"this process may open too few files for {processes} {noun}: ulimit -n {wanted} allows it")


CONNECT_S: Final = 2.0


def host_and_ports(address: str) -> tuple[str, int, int]:
    """Return the host and both ports of a tower's address. Raises UsageError."""
    host, *ports = address.strip().removeprefix("tcp://").rpartition("@")[2].split(":")
    numbers = [int(each) if each.isdecimal() and len(each) <= 5 else 65536 for each in ports]
    if len(numbers) > 2 or not host.isprintable() or any(number > 65535 for number in numbers):
        raise UsageError(f"{address!a} is not the address of a tower: HOST:PORT or HOST:PORT:PORT is wanted")
    first = numbers[0] if numbers else TOWER_SUB_PORT
    return host, first, numbers[1] if len(numbers) > 1 else first + 1


def answers(address: str) -> bool:
    """True if anything accepts connections at one of the towers' addresses."""
    for each in address.split(","):
        try:
            with socket.create_connection(host_and_ports(each)[:2], CONNECT_S):
                return True
        except (OSError, OverflowError, UnicodeError):
            continue
    return False


LINE_EVERY_S: Final = 5.0  # without a terminal


class Bar:
    """A context that shows progress on standard error; ``quiet`` shows nothing."""

    def __init__(self, text: str, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Progress | None = None
        if quiet:
            return
        from rich.console import Console  # loaded only to show something: it takes a while
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(file=sys.stderr)
        self._quiet = log.wanted.format == "json"  # progress is no line of a log
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True, redirect_stdout=sys.stdout.isatty())
            self._task = self._bar.add_task(text, total=None)
        self._line_at = time.monotonic() + LINE_EVERY_S
        self._last = ""  # the line that was printed

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, text: str, done: int, total: int | None) -> None:
        """Show the progress; ``total`` is None if it is unknown."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=text)
        elif not self._quiet and time.monotonic() >= self._line_at and text != self._last:
            self._line_at, self._last = time.monotonic() + LINE_EVERY_S, text
            self._console.print(text, soft_wrap=True, highlight=False, markup=False)


def rate_of(count: int, seconds: float) -> float:
    """Return a rate per second; 0 before any time has passed."""
    return count / seconds if seconds > 0 else 0.0


def left_text(seconds: float | None) -> str:
    """``, 12 s left``, ``, 3:04 left``, ``, 3 days 2:03:04 left``; empty if the time is unknown."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f", {seconds:.0f} s left"
    days, rest = divmod(round(seconds), 86_400)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if days or hours else f"{rest // 60}:{rest % 60:02d}"
    return f", {f'{days} days ' if days else ''}{clock} left"
