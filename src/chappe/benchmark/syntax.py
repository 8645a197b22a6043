"""The text of Broker's configuration files, which is that of the C++ Actor Framework.

A file is keys with values, and sections, which hold the same::

    ; a comment, as is what follows #
    nodes {
      earth {
        id = <tcp://127.0.0.1:8000>   ; an address
        topics = ["/a", '/b', ]       ; a list; text is written in quotes
        num-inputs = 5                ; a number; also true, false, and times such as 10ms
      }
    }

A file that cannot be read is an error that names the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from chappe.errors import ConfigError

DEPTH_MAX: Final = 16  # sections in sections, and lists in lists
_TOKEN: Final = re.compile(
    r"""(?P<space>[\ \t\r,]+ | [;\#][^\n]*)
      | (?P<newline>\n)
      | (?P<text>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
      | (?P<address><[^<>\s]*>)
      | (?P<word>[\w.+-]+)
      | (?P<mark>[{}\[\]=:])""",
    re.VERBOSE | re.ASCII,
)
_TIME: Final = re.compile(r"\d+(ns|us|ms|s|min|h)", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}


class ConfigAddress(str):
    __slots__ = ()


@dataclass(slots=True)
class ConfigSection:
    """Keys with their values, and the lines where they stand."""

    line: int
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


class _ConfigToken(NamedTuple):
    kind: str
    text: str
    line: int


def parse(text: str, name: str) -> ConfigSection:
    """Parse a file; ``name`` is the file, for errors. Raises ConfigError."""
    return _SectionReader(text, name).read_section(1, 0)


def show(text: str) -> str:
    """Return a text as ``parse`` reads it."""
    for plain, shown in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, shown)
    return f'"{text}"'


def show_key(key: str) -> str:
    """Return a key as ``parse`` reads it."""
    return key if _NAME.fullmatch(key) else show(key)


class _SectionReader:
    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._tokens = self._split(text)
        self._next = next(self._tokens)

    def read_section(self, line: int, depth: int) -> ConfigSection:
        """Read up to the end, or the brace that closes an inner section."""
        made = ConfigSection(line)
        while True:
            token = self._take()
            if token.kind == "end" and depth:
                raise self._wrong(token.line, f"the section that begins in line {line} is not closed")
            if token.kind == "end" or (token.text == "}" and token.kind == "mark" and depth):
                return made
            if token.kind not in ("word", "text"):
                raise self._wrong(token.line, f"a key is wanted here, not {token.text!r}")
            key = _unquoted(token.text) if token.kind == "text" else token.text
            if key in made.values:
                raise self._wrong(token.line, f"{key!r} is there twice, first in line {made.lines[key]}")
            made.lines[key] = token.line
            if self._next.kind == "mark" and self._next.text in "=:":
                self._take()
            elif self._next.text != "{":
                raise self._wrong(self._next.line, f"{key!r} needs a value: = or {{ is wanted behind it")
            made.values[key] = self._read_value(depth)

    def _read_value(self, depth: int) -> Any:
        token = self._take()
        if token.kind == "mark" and token.text in "{[":
            if depth >= DEPTH_MAX:
                raise self._wrong(token.line, f"more than {DEPTH_MAX} sections and lists in each other")
            return self.read_section(token.line, depth + 1) if token.text == "{" else self._read_list(token, depth + 1)
        if token.kind == "text":
            return _unquoted(token.text)
        if token.kind == "address":
            return ConfigAddress(token.text[1:-1])
        if token.kind == "word":
            return self._read_word(token)
        raise self._wrong(token.line, "a value is wanted here" + (f", not {token.text!r}" if token.text else ""))

    def _read_list(self, opening: _ConfigToken, depth: int) -> list[Any]:
        found = []
        while not (self._next.kind == "mark" and self._next.text == "]"):
            if self._next.kind == "end":
                raise self._wrong(self._next.line, f"the list that begins in line {opening.line} is not closed")
            found.append(self._read_value(depth))
        self._take()
        return found

    def _read_word(self, token: _ConfigToken) -> bool | int | float | str:
        word = token.text
        if word in ("true", "false"):
            return word == "true"
        for kind in (int, float):
            try:
                return kind(word)
            except ValueError:
                pass
        if _TIME.fullmatch(word):
            return word
        raise self._wrong(token.line, f"{word!r} is not a number; text is written in quotes")

    def _take(self) -> _ConfigToken:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _split(self, text: str) -> Iterator[_ConfigToken]:
        at, line = 0, 1
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                rest = text[at : at + 20].split("\n")[0]
                quote = "; a quote is not closed" if rest[0] in "\"'<" else ""
                raise self._wrong(line, f"{rest!r} is not understood{quote}")
            at = found.end()
            kind = str(found.lastgroup)
            if kind == "newline":
                line += 1
            elif kind != "space":
                yield _ConfigToken(kind, found[0], line)
        yield _ConfigToken("end", "", line)

    def _wrong(self, line: int, problem: str) -> ConfigError:
        return ConfigError(f"{self._name}, line {line}: {problem}")


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1])
