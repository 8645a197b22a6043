r"""Regular expressions over names of topics, as users of Kafka's connector write them.

The whole name must match, as in Java's ``matches()``. Taken is what Java and Python mean alike: characters, ``.`` (any
character), classes such as ``[a-z]`` and ``[^.]``, ``\d \w \s`` and their opposites (ASCII), ``\t \n \r \f \xHH`` and
``\uHHHH``, a backslash before anything that is no letter or digit, ``\Q...\E``, groups, ``|``, ``* + ? {n} {n,}`` and
``{n,m}`` (lazy ones too), ``^ $ \A \z \Z``, and ``(?i)`` at the beginning. The rest, such as look-around and back
references, is refused.

So a pattern is a finite automaton, and a name costs a time that is linear in its length, whatever the pattern: names
come from others, and those that make a backtracking matcher run for years are short.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from chappe.defaults import TOPIC_BYTES_MAX
from chappe.errors import UsageError

NODES_MAX: Final = 100_000  # of the automaton; what repeats a part so many times is refused
DEPTH_MAX: Final = 100  # of groups in groups
MOVES_MAX: Final = 100_000  # that are kept, each for a set of nodes and a character; then they are found anew
COMPILED_MAX: Final = 16

_WORD: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_DIGIT: Final = frozenset("0123456789")
_SPACE: Final = frozenset(" \t\n\x0b\f\r")
_NAMED: Final = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX: Final = {"x": 2, "u": 4}
_SPECIAL: Final = frozenset("*+?{")  # what repeats


@dataclass(frozen=True, slots=True)
class _Class:
    """A set of characters: those in ``chars`` and ``ranges``, and those not in each of ``without``; or all others."""

    chars: frozenset[str] = frozenset()
    ranges: tuple[tuple[str, str], ...] = ()
    without: tuple[frozenset[str], ...] = ()
    negated: bool = False
    any_case: bool = False

    def has(self, char: str) -> bool:
        forms = {char, char.lower(), char.upper()} if self.any_case and char.isascii() else {char}
        return any(map(self._lists, forms)) != self.negated

    def _lists(self, char: str) -> bool:
        return (
            char in self.chars
            or any(low <= char <= high for low, high in self.ranges)
            or any(char not in each for each in self.without)
        )


@dataclass(frozen=True, slots=True)
class _Begin:
    pass


@dataclass(frozen=True, slots=True)
class _End:
    pass


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Part
    least: int
    most: int | None


_Part: TypeAlias = "str | _Class | _Begin | _End | _Sequence | _Choice | _Repeat"
_ANY: Final = _Class(negated=True)


@lru_cache(COMPILED_MAX)
def compiled(text: str) -> Pattern:
    """The pattern of a text. Raises UsageError."""
    return Pattern(text)


def escaped(text: str) -> str:
    """A pattern that matches this text alone."""
    return "".join(char if char in _WORD or not char.isascii() else f"\\{char}" for char in text)


class Pattern:
    """A pattern, ready to be asked. Raises UsageError for a malformed one."""

    def __init__(self, text: str) -> None:
        tree = _Parser(text).whole()
        self.beginning = _beginning(tree)[0]
        """What every name that matches starts with, as far as that is plain to see."""
        self._chars: list[str | _Class | _Begin | _End | None] = []  # None: goes on without a character
        self._next: list[tuple[int, ...]] = []
        self._text = text
        self._accept = self._add(None, ())
        start = self._build(tree, self._accept)
        self._start = self._closure([start], at_begin=True)
        self._moves: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        state = self._start
        for char in name:
            state = self._moved(state, char)
            if not state:
                return False
        return self._accept in self._closure(state, at_begin=not name, at_end=True)

    def _moved(self, state: frozenset[int], char: str) -> frozenset[int]:
        found = self._moves.get((state, char))
        if found is None:
            if len(self._moves) >= MOVES_MAX:
                self._moves.clear()
            ahead = {following for node in state if self._takes(node, char) for following in self._next[node]}
            found = self._moves[state, char] = self._closure(ahead)
        return found

    def _takes(self, node: int, char: str) -> bool:
        wanted = self._chars[node]
        return wanted.has(char) if isinstance(wanted, _Class) else wanted == char

    def _closure(self, nodes: Iterable[int], *, at_begin: bool = False, at_end: bool = False) -> frozenset[int]:
        """The nodes that are reached without a character."""
        found: set[int] = set()
        left = list(nodes)
        while left:
            node = left.pop()
            if node in found:
                continue
            found.add(node)
            kind = self._chars[node]
            if kind is None or (at_begin and isinstance(kind, _Begin)) or (at_end and isinstance(kind, _End)):
                left += self._next[node]
        return frozenset(found)

    def _add(self, kind: str | _Class | _Begin | _End | None, following: tuple[int, ...]) -> int:
        if len(self._chars) >= NODES_MAX:
            raise UsageError(f"{self._text[:100]!r} repeats so much that it becomes too large; repeat less")
        self._chars.append(kind)
        self._next.append(following)
        return len(self._chars) - 1

    def _build(self, part: _Part, following: int) -> int:
        """The node at which a part begins that goes on to ``following``."""
        match part:
            case _Sequence(parts):
                for each in reversed(parts):
                    following = self._build(each, following)
                return following
            case _Choice(parts):
                return self._add(None, tuple([self._build(each, following) for each in parts]))
            case _Repeat(repeated, least, most):
                first = following
                if most is None:
                    first = self._add(None, ())
                    self._next[first] = (self._build(repeated, first), following)
                for _ in range((most or least) - least):
                    first = self._add(None, (self._build(repeated, first), following))
                for _ in range(least):
                    first = self._build(repeated, first)
                return first
            case _:
                return self._add(part, (following,))


def _beginning(part: _Part) -> tuple[str, bool]:
    """The characters that a part surely begins with, and whether these are all of it."""
    if isinstance(part, str):
        return part, True
    if isinstance(part, _Begin | _End):
        return "", True
    if isinstance(part, _Choice) and len(part.parts) == 1:
        return _beginning(part.parts[0])
    if not isinstance(part, _Sequence):
        return "", False
    text = ""
    for each in part.parts:
        more, whole = _beginning(each)
        text += more
        if not whole:
            return text, False
    return text, True


class _Parser:
    """Reads a pattern from its text, by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._any_case = False

    def whole(self) -> _Part:
        self._any_case = self._take("(?i)")
        found = self._choice(0)
        if self._pos < len(self._text):
            raise self._wrong("a ) without its (")
        return found

    def _choice(self, depth: int) -> _Part:
        if depth > DEPTH_MAX:
            raise self._wrong(f"more than {DEPTH_MAX} groups in groups")
        parts = [self._sequence(depth)]
        while self._take("|"):
            parts.append(self._sequence(depth))
        return _Choice(tuple(parts))

    def _sequence(self, depth: int) -> _Part:
        parts: list[_Part] = []
        while self._pos < len(self._text) and self._peek() not in "|)":
            if self._take("\\Q"):
                end = self._text.find("\\E", self._pos)
                quoted = self._text[self._pos : end if end >= 0 else None]
                self._pos = end + 2 if end >= 0 else len(self._text)
                parts += [self._char(each) for each in quoted]
            else:
                parts.append(self._repeated(self._atom(depth)))
        return _Sequence(tuple(parts))

    def _repeated(self, part: _Part) -> _Part:
        if self._peek() not in _SPECIAL:
            return part
        least, most = self._counts()
        if self._peek() == "+":
            raise self._wrong("a possessive repetition; leave out the second +")
        self._take("?")  # as few as possible, or as many: the whole name has to match all the same
        if self._peek() in _SPECIAL:
            raise self._wrong("a repetition of a repetition; put the first one into a group")
        return _Repeat(part, least, most)

    def _counts(self) -> tuple[int, int | None]:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return counts
        end = self._text.find("}", self._pos)
        low, comma, high = self._text[self._pos + 1 : end if end >= 0 else None].partition(",")
        numbers = [each for each in (low, high) if each]
        if end < 0 or not low or not all(_is_count(each) for each in numbers) or int(low) > int(high or low):
            raise self._wrong(f"a {{ without a count up to {TOPIC_BYTES_MAX}, such as {{2}} or {{1,3}}; or write \\{{")
        self._pos = end + 1
        return int(low), None if comma and not high else int(high or low)

    def _atom(self, depth: int) -> _Part:
        char = self._peek()
        if char in _SPECIAL:
            raise self._wrong("nothing to repeat (a regular expression: for a * of file names write .*)")
        self._pos += 1
        match char:
            case "(":
                return self._group(depth)
            case "[":
                return self._class()
            case ".":
                return _ANY
            case "^":
                return _Begin()
            case "$":
                return _End()
            case "\\":
                return self._escape()
            case _:
                return self._char(char)

    def _group(self, depth: int) -> _Part:
        if self._take("?"):
            named = self._take("P<") or self._take("<")
            end = self._text.find(">", self._pos)
            if named and end > 0 and self._text[self._pos : end].isidentifier():
                self._pos = end + 1
            elif named or not self._take(":"):
                raise self._wrong("a (? that is neither (?: nor (?<name>, nor (?i) at the beginning")
        found = self._choice(depth + 1)
        if not self._take(")"):
            raise self._wrong("a ( without its )")
        return found

    def _escape(self) -> _Part:
        char = self._peek()
        if char and char in "AzZ":
            self._pos += 1
            return _Begin() if char == "A" else _End()
        if char.lower() in _NAMED:
            self._pos += 1
            return self._named(char)
        return self._char(self._escaped())

    def _named(self, char: str) -> _Class:
        chars = _NAMED[char.lower()]
        return _Class(chars) if char.islower() else _Class(without=(chars,))

    def _escaped(self) -> str:
        """The character after a backslash."""
        char = self._peek()
        self._pos += 1
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _HEX:
            digits = self._text[self._pos : self._pos + _HEX[char]]
            if len(digits) == _HEX[char] and all(each in "0123456789abcdefABCDEF" for each in digits):
                self._pos += len(digits)
                return chr(int(digits, 16))
        if not char or char.isalnum():
            raise self._wrong(f"\\{char}, which is none of the escapes that can be used here")
        return char

    def _class(self) -> _Part:
        negated = self._take("^")
        chars: set[str] = set()
        ranges: list[tuple[str, str]] = []
        without: list[frozenset[str]] = []
        while not self._take("]"):
            if self._peek() == "\\" and self._text[self._pos + 1 : self._pos + 2].lower() in _NAMED:
                found = self._named(self._text[self._pos + 1])
                self._pos += 2
                chars |= found.chars
                without += found.without
                continue
            low = self._member()
            if self._peek() == "-" and self._text[self._pos + 1 : self._pos + 2] not in ("]", ""):
                self._pos += 1
                high = self._member()
                if high < low:
                    raise self._wrong(f"a range that goes back, {low}-{high}")
                ranges.append((low, high))
            else:
                chars.add(low)
        if not chars and not ranges and not without:
            raise self._wrong("an empty class; write \\] for the character")
        return _Class(frozenset(chars), tuple(ranges), tuple(without), negated, self._any_case)

    def _member(self) -> str:
        """One character of a class."""
        char = self._peek()
        if not char:
            raise self._wrong("a [ without its ]")
        if char == "[" or self._text.startswith("&&", self._pos):
            raise self._wrong(f"{char} in a class; write \\{char} for the character")
        self._pos += 1
        return self._escaped() if char == "\\" else char

    def _char(self, char: str) -> _Part:
        if self._any_case and char.isascii() and char.isalpha():
            return _Class(frozenset((char.lower(), char.upper())))
        return char

    def _peek(self) -> str:
        return self._text[self._pos : self._pos + 1]

    def _take(self, what: str) -> bool:
        if not self._text.startswith(what, self._pos):
            return False
        self._pos += len(what)
        return True

    def _wrong(self, what: str) -> UsageError:
        place = f"{self._text[:200]!r}, at character {self._pos + 1}"
        return UsageError(f"no regular expression for topics: {what}, in {place}")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 3 and int(text) <= TOPIC_BYTES_MAX
