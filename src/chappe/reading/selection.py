r"""Selects topics and partitions by name, prefix or regular expression.

Of the last those that Java and Python have alike, matched by RE2, the library that Arrow brings. The whole name must
match, as in Java's ``matches()``. Taken is what Java and Python mean alike: characters, ``.`` (any
character), classes such as ``[a-z]`` and ``[^.]``, ``\d \w \s`` and their opposites (ASCII), ``\t \n \r \f \xHH`` and
``\uHHHH``, a backslash before anything but a letter or digit, ``\Q...\E``, groups, ``|``, ``* + ? {n} {n,}`` and
``{n,m}`` (lazy ones too), ``^ $ \A \z \Z``, and ``(?i)`` at the beginning. The rest, such as look-around and back
references, is refused.

So a pattern is a finite automaton, and a name costs a time that is linear in its length, whatever the pattern: names
come from others, and those that make a backtracking matcher run for years are short.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from chappe.arrow import pyarrow
from chappe.data.topic import Filter
from chappe.defaults import TOPIC_BYTES_MAX
from chappe.errors import UsageError

COMPILED_MAX: Final = 16
_CHAR: Final = r"""
      \\x(?P<x>[0-9a-fA-F]{2}) | \\u(?P<u>[0-9a-fA-F]{4}) | \\(?P<control>[tnrf])
    | \\(?P<named>[dDwWsS]) | \\(?P<plain>[^A-Za-z0-9])"""
_TOKEN: Final = re.compile(
    rf"""{_CHAR} | \\Q(?P<quoted>.*?)(?:\\E|\Z) | (?P<begin>\^|\\A) | (?P<end>\$|\\[zZ])
    | \[(?P<negated>\^?)(?P<members>(?:\\.|[^]\\])+)\] | (?P<open>\((?!\?)|\(\?:|\(\?P?<[^\W\d]\w*>) | (?P<close>\))
    | (?P<repeat>[*+?]) | \{{(?P<low>\d{{1,3}})(?P<comma>,(?P<high>\d{{0,3}}))?\}} | (?P<or>\|) | (?P<any>\.)
    | (?P<char>[^\\[({{])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_MEMBER: Final = re.compile(rf"{_CHAR} | (?P<dash>-) | (?P<char>(?!&&)[^\\[])", re.VERBOSE | re.DOTALL | re.ASCII)
_COUNT: Final = f"a {{ without a count up to {TOPIC_BYTES_MAX}, such as {{2}} or {{1,3}}; or write \\{{"
# What is wrong where no token begins, by the character there.
_REFUSED: Final = {
    "(": "a (? that is neither (?: nor (?<name>, nor (?i) at the beginning",
    "[": "a [ without its ], or with nothing in between",
    "{": _COUNT,
    "\\": "an escape that cannot be used here",
}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# RE2's own \s lacks the vertical tab.
_NAMED: Final = {"s": "[:space:]", "S": "[:^space:]", **{each: f"\\{each}" for each in "dDwW"}}
# Bytes that are not UTF-8 are surrogates in a name, which RE2 does not know; these stand for them.
_BYTES: Final = {0xDC80 + n: 0x10FF80 + n for n in range(128)}


@lru_cache(COMPILED_MAX)
def compiled(text: str) -> Pattern:
    return Pattern(text)


def escaped(text: str) -> str:
    return "".join(char if char.isalnum() or char == "_" or not char.isascii() else f"\\{char}" for char in text)


class Pattern:
    """A pattern, ready to be asked. ``beginning``: what every name that matches starts with, as far as that is plain to
    see. Raises UsageError: it is malformed, or pyarrow is not installed.
    """

    def __init__(self, text: str) -> None:
        self.beginning = ""
        self._text = text
        self._re2 = self._translated()
        try:
            self.matching([""])
        except pyarrow().ArrowInvalid as error:
            problem = str(error).partition("expression: ")[2].partition(": ")[0]
            hint = " (for a * of file names write .*)" if "no argument" in problem else ""
            raise self._wrong(problem + hint) from None

    def matches(self, name: str) -> bool:
        return bool(self.matching([name]))

    def matching(self, names: Iterable[str]) -> set[str]:
        from pyarrow import compute

        asked = list(names)
        array = pyarrow().array([name.translate(_BYTES) for name in asked], "string")
        found = compute.match_substring_regex(array, self._re2).to_pylist()
        return {name for name, fits in zip(asked, found, strict=True) if fits}

    def _translated(self) -> str:
        """Return the same for RE2. Finds ``beginning``, too."""
        any_case = self._text.startswith("(?i)")
        at = 4 if any_case else 0
        depth = 0
        known: list[str] | None = []  # the beginning so far; None once it has ended
        alternatives = False
        parts: list[str] = []
        while at < len(self._text):
            token = _TOKEN.match(self._text, at)
            if token is None:
                raise self._wrong(_REFUSED[self._text[at]], at)
            at = token.end()
            kind = token.lastgroup
            chars = token["quoted"] if kind == "quoted" else _char(token)
            if chars is not None:
                parts += [_literal(each) for each in chars]
                if known is not None:
                    certain = chars if not any_case else re.match(r"[^A-Za-z]*", chars)[0]  # type: ignore[index]
                    known += certain
                    if certain != chars:
                        self.beginning, known = "".join(known), None
                continue
            low, high = int(token["low"] or 0), int(token["high"] or token["low"] or 0)
            if max(low, high) > TOPIC_BYTES_MAX or low > high:
                raise self._wrong(_COUNT, token.start())
            depth += (kind == "open") - (kind == "close")
            if depth < 0:
                raise self._wrong("a ) without its (", token.start())
            alternatives = alternatives or (kind == "or" and depth == 0)
            if known is not None and kind != "begin":
                certain_last = token[0] == "+" or low > 0
                repeats = token["repeat"] is not None or token["low"] is not None
                self.beginning, known = "".join(known[:-1] if repeats and not certain_last else known), None
            parts.append(self._re2_of(token))
        if depth:
            raise self._wrong("a ( without its )")
        if known is not None:
            self.beginning = "".join(known)
        if alternatives:
            self.beginning = ""
        return f"(?{'i' if any_case else ''}s)\\A(?:{''.join(parts)})\\z"

    def _re2_of(self, token: re.Match[str]) -> str:
        if token["named"]:
            return _NAMED[token["named"]] if token["named"] not in "sS" else f"[{_NAMED[token['named']]}]"
        if token["members"]:
            return f"[{token['negated']}{self._members(token['members'], token.start('members'))}]"
        if token["begin"] or token["end"]:
            return "\\A" if token["begin"] else "\\z"
        return "(?:" if token["open"] else token[0]

    def _members(self, text: str, start: int) -> str:
        parts = []
        at = 0
        while at < len(text):
            member = _MEMBER.match(text, at)
            if member is None:
                raise self._wrong("what cannot be in a class; a backslash before it makes it a character", start + at)
            at = member.end()
            char = _char(member)
            parts.append(_NAMED[member["named"]] if member["named"] else "-" if char is None else _literal(char))
        return "".join(parts)

    def _wrong(self, what: str, at: int | None = None) -> UsageError:
        place = f"{self._text[:200]!r}" + ("" if at is None else f", at character {at + 1}")
        return UsageError(f"not a regular expression for topics: {what}, in {place}")


def _char(token: re.Match[str]) -> str | None:
    found = token.groupdict()
    code = found["x"] or found["u"]
    if code:
        return chr(int(code, 16))
    return _CONTROLS[found["control"]] if found["control"] else found["plain"] or found["char"]


def _literal(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char.translate(_BYTES)):X}}}"


_GLOB: Final = re.compile(r"([\w./:-]*[\w/:-])\*")  # what files are named by, and is hardly meant as an expression


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics by name, prefix or regular expression, or single partitions.

    ``filters`` are what stores are asked for; ``pattern`` and ``partitions`` narrow that down.
    """

    filters: tuple[Filter, ...]
    pattern: str | None = None
    partitions: frozenset[tuple[str, str]] | None = None

    @classmethod
    def of_topics(cls, names: Iterable[str]) -> Selection:
        """Select ``name``, or ``prefix*`` for all topics that start so. Raises UsageError."""
        return cls(tuple(dict.fromkeys(map(Filter.parse, names))))

    @classmethod
    def of_pattern(cls, text: str) -> Selection:
        """Select topics whose whole name matches a regular expression. Raises UsageError."""
        return cls((Filter.parse(compiled(text).beginning + "*"),), pattern=text)

    @classmethod
    def of_partitions(cls, partitions: Iterable[tuple[str, str]]) -> Selection:
        found = frozenset(partitions)
        return cls(tuple(Filter.parse(topic) for topic in sorted({topic for topic, _ in found})), partitions=found)

    def has_topic(self, topic: str) -> bool:
        return bool(self.topics_of([topic]))

    def topics_of(self, topics: Collection[str]) -> set[str]:
        """Return the names in ``topics`` of which anything may be read."""
        if self.pattern is not None:
            return compiled(self.pattern).matching(topics)
        return {topic for topic in topics if any(each.matches(topic) for each in self.filters)}

    def has(self, topic: str, partition: str) -> bool:
        return (topic, partition) in self.partitions if self.partitions is not None else self.has_topic(topic)

    def missing(self, topics: Collection[str]) -> str | None:
        """Name wanted topics, no prefixes, that ``topics`` lacks, as the end of a sentence; None if it lacks none."""
        lacking = [each.name for each in self.filters if not each.prefix and each.name not in topics]
        if lacking:
            return f"named {', '.join(lacking)}"
        if self.pattern is None or topics:
            return None
        glob = _GLOB.fullmatch(self.pattern)
        hint = f" (a regular expression: all that begin with {glob[1]} are {escaped(glob[1])}.*)" if glob else ""
        return f"that matches {self.pattern}{hint}"

    def __str__(self) -> str:
        return self.pattern or ", ".join(map(str, self.filters))
