"""The configuration file and the environment: where options come from when the command line does not give them.

Precedence: command line, environment, file, default. The file is the first of: ``--config FILE`` or
``CHAPPE_CONFIG``, ``chappe.toml`` in the current directory, ``chappe.toml`` in the user's configuration directory.
Every setting ``section.name`` is the option ``--name`` of the command ``section`` and the variable
``CHAPPE_SECTION_NAME``; ``tower`` and ``listen`` belong to every command.

A file that cannot be read, or says something unknown, is an error that names the line; it is never half used.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec

from chappe.cli.options import InputFormat, OutputFormat
from chappe.cli.units import parse_age, parse_bytes, parse_start
from chappe.defaults import TOWER_HOST, TOWER_SUB_PORT
from chappe.errors import ConfigError, UsageError

FILE_NAME: Final = "chappe.toml"
FILE_BYTES_MAX: Final = 1 << 20  # a larger file is not a configuration

Acks = Annotated[int, msgspec.Meta(ge=0, le=100)]


class Section(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True):
    """A section of a file."""


class _Store(Section, frozen=True):
    directory: str | None = None


class _Produce(Section, frozen=True):
    format: InputFormat | None = None
    min_acks: Acks | None = None


class _Consume(Section, frozen=True):
    start: str | int | None = msgspec.field(default=None, name="from")
    output: OutputFormat | None = None


class _Demo(Section, frozen=True):
    directory: str | None = None


class _Retention(Section, frozen=True):
    age: str | None = None
    bytes: str | Annotated[int, msgspec.Meta(ge=0)] | None = None
    records: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _File(Section, frozen=True):
    tower: str | None = None
    listen: str | None = None
    store: _Store = _Store()
    produce: _Produce = _Produce()
    consume: _Consume = _Consume()
    demo: _Demo = _Demo()
    retention: dict[str, _Retention] = msgspec.field(default_factory=dict)


_S = TypeVar("_S", bound=Section)


@dataclass(frozen=True, slots=True)
class Setting:
    """One option that file and environment can set."""

    key: str
    default: str
    help: str

    @property
    def variable(self) -> str:
        """The environment variable: ``produce.min_acks`` is ``CHAPPE_PRODUCE_MIN_ACKS``."""
        return "CHAPPE_" + self.key.upper().replace(".", "_")


SETTINGS: Final = (
    Setting("tower", f"{TOWER_HOST}:{TOWER_SUB_PORT}", "where the tower is: HOST[:PORT[:SECOND-PORT]]"),
    Setting("listen", TOWER_HOST, "the interface that this program's own sockets listen on"),
    Setting("store.directory", "chappe-data/log", "where `store` and `up` keep records"),
    Setting("produce.format", "lines", "how `produce` splits its input: " + ", ".join(get_args(InputFormat))),
    Setting("produce.min_acks", "1", "how many stores must have a record before `produce` calls it stored"),
    Setting("consume.from", "earliest", "where `consume` begins: earliest, latest, an offset, an age or a time"),
    Setting("consume.output", "text", "how `consume` prints: " + ", ".join(get_args(OutputFormat))),
    Setting("demo.directory", "chappe-data/demo", "where `demo` keeps topic, checkpoint and Parquet"),
)


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """How much to keep of the topics that ``topics`` selects; None means without limit."""

    topics: str
    age_s: float | None
    bytes: int | None
    records: int | None


@dataclass(frozen=True, slots=True)
class Config:
    """What the configuration file says. ``path`` is None if there is none."""

    path: Path | None = None
    values: Mapping[str, str] = field(default_factory=dict)  # by Setting.key
    retention: tuple[RetentionRule, ...] = ()


def find_file(explicit: str | None) -> Path | None:
    """The configuration file to use, or None; raises ConfigError if the one asked for is missing."""
    if explicit:
        path = Path(explicit).expanduser()
        if not path.is_file():
            raise ConfigError(f"there is no configuration file {explicit}")
        return path
    here = Path(FILE_NAME)
    if here.is_file():
        return here
    import platformdirs  # only when it is needed: it costs milliseconds of every start

    users = platformdirs.user_config_path("chappe") / FILE_NAME
    return users if users.is_file() else None


def load(explicit: str | None = None) -> Config:
    """Read the configuration file, if there is one.

    Raises:
        ConfigError: It cannot be read or used; the text names the file, the line and what is wrong.
    """
    path = find_file(explicit)
    if path is None:
        return Config()
    text, tables = read_tables(path)
    return _of_tables(path, text, tables)


def read_tables(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a TOML file and what it says; raises ConfigError, as ``load``."""
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
        return text, tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}, {_toml_problem(str(error), text)}") from error


def _of_tables(path: Path, text: str, tables: dict[str, Any]) -> Config:
    for keys, value in _walk(tables):
        _check_known(path, text, keys, value)
    rules = tables.pop("retention", {})
    file = convert(path, text, tables, _File, ())
    if not isinstance(rules, dict):
        raise ConfigError(f"{path}, line {line_of(text, ('retention',))}: retention must be a section")
    file.retention.update(
        {topics: convert(path, text, rule, _Retention, ("retention", topics)) for topics, rule in rules.items()}
    )
    return Config(path, dict(_values(path, text, file)), tuple(_rules(path, text, file)))


def convert(path: Path, text: str, value: object, kind: type[_S], above: tuple[str, ...] = ()) -> _S:
    """What a file, or a section of it, says; raises ConfigError with the line."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        keys = (*above, *re.findall(r"[^.`]+", re.sub(r"\[[^]]*\]", "", where)))
        problem = re.sub(r"`([\w |]+)`", lambda names: _plain(names[1]), problem)
        raise ConfigError(f"{path}, line {line_of(text, keys)}: {'.'.join(keys)}: {problem}") from error


def _plain(types: str) -> str:
    """The names of msgspec's types in the words of TOML."""
    names = {
        "int": "whole number",
        "str": "text",
        "object": "section",
        "float": "decimal number",
        "bool": "true or false",
    }
    return " or ".join(names.get(each, each) for each in types.split(" | ") if each != "null")


def _toml_problem(problem: str, text: str) -> str:
    """``line 3: what is wrong`` from the message of tomllib."""
    match = re.search(r"\s*\((?:at line (\d+), column \d+|at end of document)\)", problem)
    if match is None:
        return f"line 1: {problem}"
    line = match[1] or str(len(text.splitlines()) or 1)
    return f"line {line}: {problem[: match.start()].strip()}"


def _walk(tables: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tables.items():
        keys = (*above, key)
        yield keys, value
        if isinstance(value, dict):
            yield from _walk(value, keys)


def _check_known(path: Path, text: str, keys: tuple[str, ...], value: object) -> None:
    """Raise ConfigError for a key that means nothing, naming the nearest that does."""
    if keys[0] == "retention":
        known = ["age", "bytes", "records"] if len(keys) == 3 else []
        if len(keys) < 3 or keys[-1] in known:
            return
    else:
        names = [setting.key.split(".") for setting in SETTINGS]
        known = sorted({n[len(keys) - 1] for n in names if len(n) >= len(keys) and n[: len(keys) - 1] == [*keys[:-1]]})
        known += ["retention"] if len(keys) == 1 else []
        if keys[-1] in known:
            return
    raise unknown(path, text, keys, value, known)


def unknown(path: Path, text: str, keys: tuple[str, ...], value: object, known: list[str]) -> ConfigError:
    """The error for a key that means nothing, with the nearest of those that are known."""
    near = difflib.get_close_matches(keys[-1], known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}" if known else "remove it"
    what = "section" if isinstance(value, dict) else "key"
    return ConfigError(f"{path}, line {line_of(text, keys)}: unknown {what} {'.'.join(keys)!r}; {hint}")


def line_of(text: str, keys: tuple[str, ...]) -> int:
    """The line that sets ``keys``, or the nearest above it; 1 if it cannot be told."""
    section: tuple[str, ...] = ()
    best, depth = 1, 0
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+([^\]]+)\]", line)
        if header:
            section = _dotted(header[1])
            found = section
        else:
            assignment = re.match(
                r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=", line
            )
            if assignment is None:
                continue
            found = (*section, *_dotted(assignment[1]))
        same = 0
        while same < min(len(found), len(keys)) and found[same] == keys[same]:
            same += 1
        if same > depth:
            best, depth = number, same
    return best


def _dotted(text: str) -> tuple[str, ...]:
    return tuple(part[0] or part[1] or part[2] for part in re.findall(r"\"([^\"]*)\"|'([^']*)'|([\w-]+)", text))


def _values(path: Path, text: str, file: _File) -> Iterator[tuple[str, str]]:
    raw = msgspec.to_builtins(file)
    for setting in SETTINGS:
        value = raw
        for part in setting.key.split("."):
            value = value.get(part, {})
        if value == {}:
            continue
        if setting.key == "consume.from":
            _usable(path, text, ("consume", "from"), parse_start, str(value))
        yield setting.key, str(value)


def _rules(path: Path, text: str, file: _File) -> Iterator[RetentionRule]:
    for topics, rule in file.retention.items():
        keys = ("retention", topics)
        yield RetentionRule(
            topics,
            None if rule.age is None else _usable(path, text, (*keys, "age"), parse_age, rule.age),
            None if rule.bytes is None else _usable(path, text, (*keys, "bytes"), parse_bytes, rule.bytes),
            rule.records,
        )


def _usable(path: Path, text: str, keys: tuple[str, ...], parse: Any, value: object) -> Any:
    try:
        return parse(value)
    except UsageError as error:
        raise ConfigError(f"{path}, line {line_of(text, keys)}: {'.'.join(keys)}: {error}") from error
