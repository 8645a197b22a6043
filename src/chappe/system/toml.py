"""Reads and checks TOML files written by people, with the schema of ``chappe.toml``; errors name file and line."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, get_args

import msgspec

from chappe.errors import ConfigError, UsageError

FILE_BYTES_MAX: Final = 1 << 20  # a larger file is not a configuration
_PLAIN: Final = {
    "int": "whole number",
    "str": "text",
    "object": "section",
    "float": "decimal number",
    "bool": "true or false",
}

_NAME: Final = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_HEADER: Final = re.compile(rf"\s*(\[\[?)\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*\]")
_ASSIGNMENT: Final = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=\s*(.*)")
_PART: Final = re.compile(r""""([^"]*)"|'([^']*)'|([\w-]+)""")

Keys: TypeAlias = tuple[str | int, ...]


class TomlSection(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True):
    """A section of a file."""


_S = TypeVar("_S", bound=TomlSection)
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A parsed TOML file with its text. Its errors name the line."""

    path: Path
    text: str
    tables: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> TomlFile:
        """Read a file; raises ConfigError."""
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes, this is not a configuration file")
            text = path.read_bytes().decode()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise ConfigError(f"{path}, line {line}: not UTF-8 text") from error
        try:
            return cls(path, text, tomllib.loads(text))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            line, problem = toml_problem(str(error), text)
            raise ConfigError(f"{path}, line {line}: {problem}") from error

    def wrong(self, keys: tuple[str, ...], problem: object) -> ConfigError:
        """Return the error to raise about ``keys``."""
        return ConfigError(f"{self.path}, line {TomlLines(self.text).of(keys)}: {problem}")

    def convert(self, value: object, kind: type[_S], above: tuple[str, ...] = ()) -> _S:
        """Convert the file or a section; raises ConfigError, also for unknown keys."""
        if isinstance(value, dict):
            self._check_known(value, kind, above)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            problem, _, where = str(error).partition(" - at `$")
            keys = (*above, *re.findall(r"[^.`]+", re.sub(r"\[[^]]*\]", "", where)))
            problem = re.sub(r"`([\w |]+)`", lambda names: _plain(names[1]), problem)
            raise self.wrong(keys, f"{'.'.join(keys)}: {problem}") from error

    def parsed(self, keys: tuple[str, ...], parse: Callable[[Any], _V], value: object) -> _V | None:
        """Parse a value further; None stays None. Raises ConfigError for values that ``parse`` refuses."""
        try:
            return None if value is None else parse(value)
        except UsageError as error:
            raise self.wrong(keys, f"{'.'.join(keys)}: {error}") from error

    def _check_known(self, table: dict[str, Any], kind: type[TomlSection], above: tuple[str, ...]) -> None:
        known = {each.encode_name: each.type for each in msgspec.structs.fields(kind)}
        for key, value in table.items():
            keys = (*above, key)
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(sorted(known))}"
                what = "section" if isinstance(value, dict) else "key"
                raise self.wrong(keys, f"unknown {what} {'.'.join(keys)!r}; {hint}")
            section = next((each for each in (known[key], *get_args(known[key])) if _is_section(each)), None)
            if section is not None and isinstance(value, dict):
                self._check_known(value, section, keys)


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, TomlSection)


def _plain(types: str) -> str:
    """Translate names of msgspec's types to TOML's terms."""
    return " or ".join(_PLAIN.get(each, each) for each in types.split(" | ") if each != "null")


class TomlLines:
    """The line numbers of keys in a valid TOML text, which ``tomllib`` does not provide.

    An element of an array of tables is named by its number, from 0. Lines inside multi-line strings are passed over,
    since SQL has lines that look like keys and sections.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[Keys, int] = {}
        self._texts: dict[Keys, int] = {}
        self._counts: dict[Keys, int] = {}
        self._scan(text)

    def of(self, keys: Keys) -> int:
        """Return the line that sets ``keys``, or their nearest table; 1 if unknown."""
        for length in range(len(keys), 0, -1):
            if keys[:length] in self._lines:
                return self._lines[keys[:length]]
        return 1

    def of_text(self, keys: Keys) -> int:
        """Return the first line of the text set to ``keys``: the next one if the text starts with a line break."""
        return self._texts.get(keys, self.of(keys))

    def _scan(self, text: str) -> None:
        section: Keys = ()
        closing = ""
        for number, line in enumerate(text.splitlines(), 1):
            if closing:
                closing = "" if closing in line else closing
                continue
            header = _HEADER.match(line)
            if header:
                section = self._section(header[2], array=header[1] == "[[")
                self._note(section, number)
                continue
            assignment = _ASSIGNMENT.match(line)
            if assignment is None:
                continue
            keys = (*section, *_parts(assignment[1]))
            self._note(keys, number)
            value = assignment[2]
            for quotes in ('"""', "'''"):
                if value.startswith(quotes):
                    rest = value[3:]
                    closing = "" if quotes in rest else quotes
                    self._texts[keys] = number + (not rest.strip())

    def _note(self, keys: Keys, number: int) -> None:
        for length in range(1, len(keys) + 1):
            self._lines.setdefault(keys[:length], number)

    def _section(self, text: str, *, array: bool) -> Keys:
        found: Keys = ()
        parts = _parts(text)
        for index, part in enumerate(parts):
            found = (*found, part)
            if array and index == len(parts) - 1:
                self._counts[found] = self._counts.get(found, -1) + 1
            if found in self._counts:
                found = (*found, self._counts[found])
        return found


def _parts(text: str) -> list[str]:
    return [part[0] or part[1] or part[2] for part in _PART.findall(text)]


def toml_problem(message: str, text: str) -> tuple[int, str]:
    """Return line and description of an error of ``tomllib``."""
    match = re.search(r"\s*\((?:at line (\d+), column \d+|at end of document)\)", message)
    if match is None:
        return 1, message
    return int(match[1] or len(text.splitlines()) or 1), message[: match.start()].strip()


class Common(TomlSection, frozen=True):
    """Settings outside of sections: they apply to commands, the library and Spark."""

    tower: str | None = None
    listen: str | None = None
    forwarders: str | None = None
    identity: str | None = None
    audit: str | None = None
    schemas: str | None = None


class Everything(Common, frozen=True):
    """The whole file. The command line checks its sections."""

    store: dict[str, Any] = msgspec.field(default_factory=dict)
    forward: dict[str, Any] = msgspec.field(default_factory=dict)
    map: dict[str, Any] = msgspec.field(default_factory=dict)
    produce: dict[str, Any] = msgspec.field(default_factory=dict)
    consume: dict[str, Any] = msgspec.field(default_factory=dict)
    demo: dict[str, Any] = msgspec.field(default_factory=dict)
    log: dict[str, Any] = msgspec.field(default_factory=dict)
    mesh: dict[str, Any] = msgspec.field(default_factory=dict)
    node: dict[str, Any] = msgspec.field(default_factory=dict)
    subscribe: dict[str, Any] = msgspec.field(default_factory=dict)
    retention: dict[str, Any] = msgspec.field(default_factory=dict)
