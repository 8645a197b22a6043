"""Lines of a log with all details, and a private file for them."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
from collections.abc import Callable
from dataclasses import is_dataclass
from datetime import UTC, datetime
from io import TextIOWrapper

from chappe.data import terminal
from chappe.system import program
from chappe.system.disk import open_private


class LogFile(logging.handlers.WatchedFileHandler):
    """Appends to a file that only its owner may read, opened anew when somebody has moved it away.

    ``warn`` is told once that lines cannot be written. Raises OSError if the file cannot be opened.
    """

    def __init__(self, path: str, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._complained = False
        super().__init__(os.path.expanduser(path), encoding="utf-8")
        self.setFormatter(TextLines())

    def emit(self, record: logging.LogRecord) -> None:
        """Append the line; a failure never reaches the code that logs."""
        try:
            super().emit(record)
        except OSError:  # it was moved away, and no file can be made in its place
            self.handleError(record)

    def _open(self) -> TextIOWrapper:
        return open(open_private(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a", encoding="utf-8")

    def handleError(self, _record: logging.LogRecord) -> None:
        """Say once that lines are missing; the program goes on, and tries it again with the next line."""
        if not self._complained:
            self._complained = True
            self._warn(f"the log file {self.baseFilename} cannot be written; lines are missing there")


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the line; those of a traceback follow indented, as a value in it may imitate a line."""
        start = f"{_time(record)} {record.levelname.lower()} {record.name} [{record.process} {record.threadName}]"
        traceback = map(terminal.line, _traceback(record).splitlines())
        return "\n    ".join([terminal.line(f"{start} {record.getMessage()}"), *traceback])


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return a JSON object, with the class of a reported event; ``member`` is the process's default name."""
        facts: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "thread": record.threadName,
            "member": program.label(),
            "message": record.getMessage(),
        }
        event = event_of(record)
        if event is not None:
            facts["event"] = type(event).__name__
        if record.exc_info:
            facts["traceback"] = _traceback(record)
        return terminal.json_line(json.dumps(facts).encode()).decode()


def event_of(record: logging.LogRecord) -> object | None:
    """Return the event that a line reports, if it is one."""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return first if is_dataclass(first) else None


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
