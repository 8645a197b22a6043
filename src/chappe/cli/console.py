"""What the command line says to people, on standard error, one line each."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from types import FrameType
from typing import Any

from chappe.log.events import TowerFound, TowerLost

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
    """The exit code of a command that was stopped before it was done."""
    return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED


def say(text: str) -> None:
    """Print one line for people; a closed standard error is no reason to fail."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Say what is wrong or needs attention."""
    say(f"chappe: {text}")


class _ToPeople(logging.Handler):
    """Prints what members report, each sentence once in a row; good news only after bad."""

    def __init__(self, tower: str) -> None:
        super().__init__(logging.INFO)
        self._tower = tower
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING and not self._last:
            return
        text = self._text(record)
        if text != self._last:
            self._last = text
            warn(text)
        if record.exc_info and debugging():
            traceback.print_exception(*record.exc_info)

    def _text(self, record: logging.LogRecord) -> str:
        event = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if isinstance(event, TowerLost):
            return f"no tower answers at {self._tower}; still trying (start one with: chappe up)"
        if isinstance(event, TowerFound):
            return f"the tower at {self._tower} answers now"
        return record.getMessage()


def hear_warnings(tower: str) -> None:
    """Print what the members of this process report; ``tower`` is the address to name when none answers."""
    root = logging.getLogger("chappe")
    root.setLevel(logging.INFO)
    root.propagate = False
    root.handlers = [_ToPeople(tower)]


def debugging() -> bool:
    """Whether errors come with their traceback (``CHAPPE_DEBUG=1``)."""
    return os.environ.get("CHAPPE_DEBUG", "") not in ("", "0")


def tell(as_json: bool, facts: dict[str, Any], text: str) -> None:
    """Print what was done or has begun: the facts for a machine on standard output, or the text for people."""
    if as_json:
        print(json.dumps(facts), flush=True)
    else:
        say(text)


def write_out(raw: bytes) -> None:
    """Write all of it to standard output, past Python's buffer."""
    view = memoryview(raw)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


def drop_stdout() -> None:
    """Send further output nowhere: its reader has gone, and the interpreter flushes at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_reader() -> None:
    """Raise BrokenPipeError if standard output is a pipe that nobody reads any more, before anything is written."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if any(found & select.POLLERR for _, found in poll.poll(0)):
            raise BrokenPipeError
