"""Typed access to the tables of a TOML file that gathers every complaint instead of stopping at the first."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from chappe.errors import UsageError
from chappe.spark.pipeline.model import Problem
from chappe.system.toml import Keys, TomlLines

T = TypeVar("T")

_TYPES: Final = {
    bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"
}  # fmt: skip


class FileComplaints:
    def __init__(self, file: Path, lines: TomlLines) -> None:
        self.found: list[Problem] = []
        self.file = file
        self.lines = lines

    def add(self, keys: Keys, text: str) -> None:
        self.found.append(Problem(self.file, self.lines.of(keys), text))


class TomlTable:
    """One table of the file. A getter returns None, or nothing, for what is missing or wrong; the latter is noted."""

    def __init__(self, values: Mapping[str, Any], keys: Keys, complaints: FileComplaints) -> None:
        self.values = values
        self.keys = keys
        self.complaints = complaints

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def complain(self, name: str, text: str) -> None:
        self.complaints.add((*self.keys, name) if name else self.keys, text)

    def path(self, name: str = "") -> str:
        """Return a key as it is written: ``inputs.readings.schema``."""
        return ".".join(str(each) for each in (*self.keys, name) if isinstance(each, str) and each)

    def allow(self, known: Sequence[str]) -> None:
        """Complain about every key that is not known, naming the nearest that is."""
        for name in self.values:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}"
                self.complain(name, f"unknown key `{self.path(name)}`: {hint}")

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            self._expected(name, "text", value)
            return None
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts; one text is a list of one, or of several separated by commas."""
        value = self.values.get(name)
        given = value.split(",") if isinstance(value, str) else value
        if given is None:
            return ()
        if not isinstance(given, list) or not all(isinstance(each, str) and each.strip() for each in given):
            self._expected(name, "text, or a list of texts", value)
            return ()
        return tuple(dict.fromkeys(each.strip() for each in given))

    def choice(self, name: str, known: Sequence[str], default: str | None = None) -> str | None:
        """Return one of a few words; any other counts as missing, with a complaint."""
        value = self.text(name)
        if value is None:
            return default
        if value not in known:
            near = difflib.get_close_matches(value, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.complain(name, f"`{self.path(name)}` is {_or(known)}, not {value!r}{hint}")
            return default
        return value

    def settings(self, name: str) -> dict[str, str]:
        """Return a table of texts, numbers and booleans as Spark's texts; lists of texts are joined by commas."""
        found: dict[str, str] = {}
        table = self.table(name)
        for key, value in table.values.items() if table else ():
            if isinstance(value, bool):
                found[key] = str(value).lower()
            elif isinstance(value, str | int | float):
                found[key] = str(value)
            elif isinstance(value, list) and value and all(isinstance(each, str) for each in value):
                found[key] = ",".join(value)
            else:
                assert table is not None
                hint = ' (a name with dots in it needs quotes: "spark.a.b" = 1)' if isinstance(value, dict) else ""
                table.complain(key, f"`{table.path(key)}` is text, a number, true or false{hint}")
        return found

    def table(self, name: str) -> TomlTable | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self._expected(name, "a table", value)
            return None
        return TomlTable(value, (*self.keys, name), self.complaints)

    def tables(self, name: str) -> Iterator[tuple[str, TomlTable]]:
        outer = self.table(name)
        for key in outer.values if outer else ():
            assert outer is not None
            inner = outer.table(key)
            if inner is not None:
                yield key, inner

    def array(self, name: str) -> list[TomlTable]:
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
            self.complain(name, f"`{self.path(name)}` is made of sections [[{self.path(name)}]]")
            return []
        return [TomlTable(each, (*self.keys, name, n), self.complaints) for n, each in enumerate(value)]

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        """Return a text that ``parse`` understands; its UsageError becomes a complaint."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return parse(value)
        except UsageError as error:
            self.complain(name, f"`{self.path(name)}`: {error}")
            return None

    def _expected(self, name: str, wanted: str, value: object) -> None:
        got = "empty" if value in ("", []) or (isinstance(value, str) and not value.strip()) else ""
        got = got or _TYPES.get(type(value), "a time")
        self.complain(name, f"`{self.path(name)}` is {got}; it has to be {wanted}")


def _or(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
