"""The log of a command: the choice and the format of lines for standard error and a file."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Final, Literal, get_args

from chappe.errors import UsageError
from chappe.system.log_file import JsonLines, LogFile, TextLines

ROOT: Final = "chappe"
LogFormat = Literal["text", "json"]
FORMATS: Final = get_args(LogFormat)
LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
NAMES_MAX: Final = 100  # loggers with a level of their own
_NAME: Final = re.compile(r"chappe(\.[a-z_][a-z0-9_]*){0,8}")
_YES: Final = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class LogChoices:
    """The options in effect; ``levels`` are by logger."""

    verbose: bool = False
    levels: Mapping[str, int] = field(default_factory=dict)
    format: LogFormat = "text"

    def threshold(self, name: str, otherwise: int) -> int:
        """Return the lowest level that is printed for a logger: that of its nearest parent with one."""
        while name:
            if name in self.levels:
                return self.levels[name]
            name = name.rpartition(".")[0]
        return otherwise

    @property
    def lowest(self) -> int:
        return min((logging.INFO if self.verbose else logging.WARNING, *self.levels.values()))


class CommandLog:
    def __init__(self) -> None:
        self.wanted = LogChoices()
        self._file: LogFile | None = None

    def ask(self, *, verbose: bool | None = None, levels: str | None = None, form: str | None = None) -> None:
        """Change options; None leaves one as it is. Raises UsageError."""
        if verbose is not None:
            self.wanted = replace(self.wanted, verbose=verbose)
        if levels is not None:
            self.wanted = replace(self.wanted, levels=parse_levels(levels))
        if form is not None:
            self.wanted = replace(self.wanted, format=parse_format(form))

    def open(self, path: str, warn: Callable[[str], None]) -> None:
        """Append the lines to a file from now on. Raises OSError."""
        self._file = LogFile(path, warn)
        self._file.addFilter(lambda record: record.levelno >= self.wanted.threshold(record.name, logging.DEBUG))

    def begin(self, people: logging.Handler, level: int = logging.WARNING) -> None:
        """Send the lines of this process to ``people``, from ``level`` on, and to the file."""
        root = logging.getLogger(ROOT)
        kept = logging.CRITICAL if self._file is None else logging.DEBUG
        root.setLevel(min(level, self.wanted.lowest, root.level or logging.CRITICAL, kept))
        root.propagate = False
        root.handlers = [people]
        if self._file is not None:
            self._file.setFormatter(JsonLines() if self.wanted.format == "json" else TextLines())
            root.handlers.append(self._file)

    def shows(self, record: logging.LogRecord) -> bool:
        usual = logging.INFO if self.wanted.verbose else logging.WARNING
        return record.levelno >= self.wanted.threshold(record.name, usual)


log: Final = CommandLog()


def parse_levels(text: str) -> dict[str, int]:
    """Parse ``NAME=LEVEL``, several separated by commas. Raises UsageError."""
    found = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, equals, level = each.partition("=")
        if not equals:
            raise UsageError(f"{each!a} is not a level of the log: NAME=LEVEL is wanted, such as chappe.mesh=debug")
        if level.lower() not in LEVELS:
            raise UsageError(f"{level!a} is not a level of the log: {', '.join(LEVELS)} are")
        if not _is_logger(name):
            raise UsageError(f"there is no logger {name!a}; chappe, chappe.mesh, chappe.log and chappe.kv are some")
        found[name] = LEVELS[level.lower()]
        if len(found) > NAMES_MAX:
            raise UsageError(f"at most {NAMES_MAX} loggers may have a level of their own")
    return found


def _is_logger(name: str) -> bool:
    """True for the name of a package or module: loggers are named after these."""
    try:
        return _NAME.fullmatch(name) is not None and find_spec(name) is not None
    except ImportError:  # a module has none below it
        return False


def parse_format(text: str) -> LogFormat:
    if text == "json":
        return "json"
    if text == "text":
        return "text"
    raise UsageError(f"{text!a} is not a format of the log: {' and '.join(FORMATS)} are")


def parse_switch(text: str) -> bool:
    if text.lower() not in _YES:
        raise UsageError(f"{text!a} is neither true nor false")
    return _YES[text.lower()]
