"""On which line of a TOML text a key stands: ``tomllib`` does not tell, and a complaint without it helps little.

Lines inside multi-line strings are passed over, since SQL has lines that look like keys and sections.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

Keys: TypeAlias = tuple[str | int, ...]

_NAME: Final = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_HEADER: Final = re.compile(rf"\s*(\[\[?)\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*\]")
_ASSIGNMENT: Final = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=\s*(.*)")
_PART: Final = re.compile(r""""([^"]*)"|'([^']*)'|([\w-]+)""")


class Lines:
    """The lines of a valid TOML text's keys. An element of an array of tables is named by its number, from 0."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Keys, int] = {}
        self._texts: dict[Keys, int] = {}
        self._counts: dict[Keys, int] = {}
        self._scan(text)

    def of(self, keys: Keys) -> int:
        """The line that sets ``keys``, or what they lie in; 1 if it cannot be told."""
        for length in range(len(keys), 0, -1):
            if keys[:length] in self._lines:
                return self._lines[keys[:length]]
        return 1

    def of_text(self, keys: Keys) -> int:
        """The line on which the text begins that ``keys`` is set to: the next one if it begins with a line break."""
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
    """Line and sentence of what ``tomllib`` complains about."""
    match = re.search(r"\s*\((?:at line (\d+), column \d+|at end of document)\)", message)
    if match is None:
        return 1, message
    return int(match[1] or len(text.splitlines()) or 1), f"not TOML: {message[: match.start()].strip()}"
