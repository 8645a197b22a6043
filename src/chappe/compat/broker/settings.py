"""``broker.conf`` and the environment variables ``BROKER_*`` of the original, as far as they mean something here.

The environment counts more than the file. The file has CAF's syntax, of which names, sections, numbers, texts, lists
and comments are read; a line that cannot be read is an error, and nothing of the file is used.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from chappe.errors import ConfigError
from chappe.system.log_file import LogFile, TextLines
from chappe.system.settings import check_planted

logger = logging.getLogger(__name__)

FILE: Final = "broker.conf"  # in the working directory
FILE_BYTES_MAX: Final = 64 << 10
DEPTH_MAX: Final = 8  # of sections and lists
NAMED_MAX: Final = 20  # settings without a meaning here that are listed
LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "quiet": logging.CRITICAL + 1,
}
LOG_PATH: Final = "broker_[PID]_[TIMESTAMP].log"
POLICIES: Final = ("disconnect", "drop_newest", "drop_oldest")
# By environment variable: the name in the file, or "" for a variable of the original without a meaning here.
_VARIABLES: Final = {
    "BROKER_CONSOLE_VERBOSITY": "caf.logger.console.verbosity",
    "BROKER_FILE_VERBOSITY": "caf.logger.file.verbosity",
    "BROKER_RECORDING_DIRECTORY": "broker.recording-directory",
    "BROKER_OUTPUT_GENERATOR_FILE_CAP": "broker.output-generator-file-cap",
    "BROKER_METRICS_PORT": "",
    "BROKER_METRICS_ENDPOINT_NAME": "",
    "BROKER_METRICS_EXPORT_TOPIC": "",
    "BROKER_METRICS_EXPORT_INTERVAL": "",
    "BROKER_METRICS_EXPORT_PREFIXES": "",
    "BROKER_METRICS_IMPORT_TOPICS": "",
}
# Names of earlier versions, which the original's documentation still has.
_FORMER: Final = {
    "logger.console-verbosity": "caf.logger.console.verbosity",
    "logger.file-verbosity": "caf.logger.file.verbosity",
    "logger.file-name": "caf.logger.file.path",
}

_TOKEN: Final = re.compile(
    r"""[ \t\r]+|(?P<end>\n)|[#;][^\n]*|(?P<text>"(?:[^"\\\n]|\\["\\nrt])*"|'[^'\n]*')|(?P<sign>[{}\[\]=,])"""
    r"""|(?P<word>[A-Za-z0-9_.+/:-]+)"""
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*")
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"[+-]?[0-9][0-9a-fA-FxX.]*([eE][+-]?[0-9]+)?(ns|us|ms|s|min|h)?(/(tcp|udp|icmp))?")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}


class _SettingToken(NamedTuple):
    kind: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings of file and environment, by names of the original, each with where it stands."""

    values: Mapping[str, object] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    def text(self, name: str) -> str | None:
        found: str | None = self._get(name, lambda value: isinstance(value, str), "a text")
        return found or None

    def switch(self, name: str) -> bool | None:
        found: bool | None = self._get(name, lambda value: isinstance(value, bool), "true or false")
        return found

    def number(self, name: str) -> int | None:
        number: int | None = self._get(
            name, lambda value: type(value) is int and value > 0, "a number of messages, at least 1"
        )
        return number

    def choice(self, name: str, known: tuple[str, ...]) -> str | None:
        found: str | None = self._get(name, lambda value: value in known, f"one of {', '.join(known)}")
        return found

    def _get(self, name: str, fits: Callable[[Any], bool], wanted: str) -> Any:
        value = self.values.get(name)
        if value is not None and not fits(value):
            raise ConfigError(f"{self.places[name]}: {value!a} is not {wanted}")
        return value

    def console_level(self) -> int | None:
        return self._level("caf.logger.console.verbosity")

    def file_level(self) -> int | None:
        return self._level("caf.logger.file.verbosity")

    def _level(self, name: str) -> int | None:
        found = self.choice(name, tuple(LEVELS))
        return None if found is None else LEVELS[found]

    @property
    def log_path(self) -> str:
        named = self.text("caf.logger.file.path") or LOG_PATH
        return named.replace("[PID]", str(os.getpid())).replace("[TIMESTAMP]", str(time.time_ns()))


KNOWN: Final = {
    *(each for each in _VARIABLES.values() if each), *_FORMER.values(),
    "broker.disable-ssl", "broker.disable-forwarding", "broker.peer-buffer-size", "broker.peer-overflow-policy",
    *(f"broker.ssl.{each}" for each in ("cafile", "capath", "certificate", "key", "passphrase")),
}  # fmt: skip


def load(*, file: bool) -> BrokerSettings:
    """Read the environment, and ``broker.conf`` in the working directory if wanted. Raises ConfigError."""
    values: dict[str, object] = {}
    places: dict[str, str] = {}
    unknown: list[str] = []
    path = Path(FILE)
    if file and path.is_file():
        check_planted(path, "set ignore_broker_conf of BrokerOptions")
        for name, (value, line) in parse(_read(path), FILE).items():
            known = _FORMER.get(name, name)
            if known in KNOWN:
                values[known], places[known] = value, f"{FILE}, line {line}: {name}"
            else:
                unknown.append(name)
    for variable, name in _VARIABLES.items():
        text = os.environ.get(variable, "")
        if text and name:
            values[name], places[name] = (int(text) if _WHOLE.fullmatch(text) else text), variable
            if name == "broker.recording-directory":
                values[name] = text  # a number may be its name
        elif text:
            unknown.append(variable)
    return BrokerSettings(values, places, tuple(unknown))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            raw = opened.read(FILE_BYTES_MAX + 1)
        text = raw.decode()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8 text") from error
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes, this is not a configuration file")
    return text


def parse(text: str, name: str = FILE) -> dict[str, tuple[object, int]]:
    """Return values and lines by the full names of settings. Raises ConfigError."""
    return _Parser(text, name).parse()


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._tokens = self._split(text)
        self._at = 0
        self._found: dict[str, tuple[object, int]] = {}

    def parse(self) -> dict[str, tuple[object, int]]:
        self._fields("", 0)
        if self._next.kind != "end":
            raise self._wrong(f"a setting is wanted, not {self._next.text!a}")
        return self._found

    def _split(self, text: str) -> list[_SettingToken]:
        tokens, at, line = [], 0, 1
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ConfigError(f"{self._name}, line {line}: {text[at : at + 20].split(chr(10))[0]!a} cannot be read")
            if match.lastgroup == "end":
                line += 1
            elif match.lastgroup is not None:
                tokens.append(_SettingToken(match.lastgroup, match[0], line))
            at = match.end()
        return [*tokens, _SettingToken("end", "the end", tokens[-1].line if tokens else 1)]

    @property
    def _next(self) -> _SettingToken:
        return self._tokens[self._at]

    def _take(self) -> _SettingToken:
        self._at += 1
        return self._tokens[self._at - 1]

    def _take_if(self, sign: str) -> bool:
        if self._next.kind == "sign" and self._next.text == sign:
            self._at += 1
            return True
        return False

    def _wrong(self, problem: str) -> ConfigError:
        return ConfigError(f"{self._name}, line {self._next.line}: {problem}")

    def _fields(self, above: str, depth: int) -> None:
        """Take settings and sections up to the end of the section."""
        if depth > DEPTH_MAX:
            raise self._wrong(f"more than {DEPTH_MAX} sections within each other")
        while self._next.kind == "word":
            if _NAME.fullmatch(self._next.text) is None:
                raise self._wrong(f"{self._next.text!a} is not the name of a setting")
            token = self._take()
            name = f"{above}{token.text}"
            equals = self._take_if("=")
            if self._take_if("{"):
                self._fields(f"{name}.", depth + 1)
                if not self._take_if("}"):
                    raise self._wrong(f"the section {name} is not closed by }}, but there is {self._next.text!a}")
            elif not equals:
                raise self._wrong(f"= or {{ is wanted after {name}, not {self._next.text!a}")
            elif name in self._found:
                raise self._wrong(f"{name} was set in line {self._found[name][1]} already")
            else:
                self._found[name] = self._value(depth), token.line
            self._take_if(",")

    def _value(self, depth: int) -> object:
        if self._take_if("["):
            if depth >= DEPTH_MAX:
                raise self._wrong(f"more than {DEPTH_MAX} lists within each other")
            found = []
            while not self._take_if("]"):
                found.append(self._value(depth + 1))
                if not self._take_if(",") and self._next.text != "]":
                    raise self._wrong(f", or ] is wanted, not {self._next.text!a}")
            return found
        kind, text = self._next.kind, self._next.text
        if kind == "text":
            self._at += 1
            inner = text[1:-1]
            return inner if text[0] == "'" else re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), inner)
        if kind == "word" and text in ("true", "false"):
            self._at += 1
            return text == "true"
        if kind == "word" and _NUMBER.fullmatch(text):
            self._at += 1
            return int(text) if _WHOLE.fullmatch(text) else text
        raise self._wrong(f"a value is wanted, not {text!a}: texts stand between quotation marks")


def tell_unknown(settings: BrokerSettings) -> None:
    """Log in one line what the original would heed and this does not."""
    if settings.unknown:
        more = len(settings.unknown) - NAMED_MAX
        names = ", ".join(settings.unknown[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        logger.warning("settings of the original without a meaning here: %s", names)


_begun: Final[list[object]] = []  # the settings of the log in effect, then its handlers


def begin_log(settings: BrokerSettings) -> None:
    """Let the log of this process have the verbosity that is set; nothing changes if none is. Raises ConfigError."""
    console, file = settings.console_level(), settings.file_level()
    wanted = (console, file, settings.text("caf.logger.file.path"))
    if (console is None and file is None) or _begun[:1] == [wanted]:
        return
    made: list[logging.Handler] = []
    if console is not None:
        people = logging.StreamHandler()
        people.setFormatter(TextLines())
        people.setLevel(console)
        made.append(people)
    if file is not None and file <= logging.CRITICAL:
        made.append(_log_file(settings.log_path, file))
    root = logging.getLogger("chappe")
    for former in _begun[1:]:
        assert isinstance(former, logging.Handler)
        root.removeHandler(former)
        former.close()
    _begun[:] = [wanted, *made]
    for each in made:
        root.addHandler(each)
        if each.level < root.getEffectiveLevel():
            root.setLevel(each.level)


def _log_file(path: str, level: int) -> logging.Handler:
    try:
        opened = LogFile(path, lambda text: print(text, file=sys.stderr))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the log file {path!a} cannot be opened: {getattr(error, 'strerror', error)}") from error
    opened.setLevel(level)
    return opened
