"""The configuration file and the environment: where options come from when the command line does not give them.

Precedence: command line, environment, file, default; ``system/settings.py`` finds the file, and reads for the library
the settings that belong to everybody. Every setting ``section.name`` is the variable ``CHAPPE_SECTION_NAME``, and an
option of the commands whose parameter has that variable: the file's value becomes the option's default.
``cli/declared.py`` declares those of the mesh.

A file that cannot be read, or says something unknown, is an error that names the line; it is never half used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import msgspec
import typer

from chappe.cli.console import show
from chappe.cli.declared import DECLARED, SECTIONS, schema, taken, text_of
from chappe.cli.listing import print_listing
from chappe.cli.logs import FORMATS, LogFormat, parse_levels
from chappe.cli.options import InputFormat, Json, OutputFormat
from chappe.cli.units import exact_bytes, human_age, parse_age, parse_bytes, parse_start
from chappe.data.markup import many
from chappe.defaults import FORWARDER_PORT, MAP_PORT, SCHEMAS_PORT, TOWER_HOST, TOWER_SUB_PORT
from chappe.system.settings import find_file
from chappe.system.toml import Common, TomlFile, TomlSection


class _Retention(TomlSection, frozen=True):
    age: str | None = None
    bytes: str | Annotated[int, msgspec.Meta(ge=0)] | None = None
    records: Annotated[int, msgspec.Meta(ge=0)] | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """An option that the file and the environment can set."""

    key: str
    default: str
    help: str
    kind: Any = str  # the type that the file has

    @property
    def variable(self) -> str:
        return "CHAPPE_" + self.key.upper().replace(".", "_")


SETTINGS: Final = (
    Setting("tower", f"{TOWER_HOST}:{TOWER_SUB_PORT}", "where the tower is: HOST[:PORT[:SECOND-PORT]]"),
    Setting("listen", TOWER_HOST, "the interface that this program's own sockets listen on"),
    Setting("forwarders", "none", "forwarders for `produce`, `consume`, `topics`, instead of a tower: HOST[:PORT],..."),
    Setting("identity", "none", "who a program is: DIRECTORY/NAME, as `chappe keys` made it"),
    Setting("audit", "none", "the topic into which commands that serve write what they refuse to whom"),
    Setting("schemas", f"http://{TOWER_HOST}:{SCHEMAS_PORT}", "the server of schemas, for `schemas` and codecs"),
    Setting("store.directory", "chappe-data/log", "where `store` and `up` keep records"),
    Setting("forward.at", f"{TOWER_HOST}:{FORWARDER_PORT}", "where `forward` listens: HOST[:PORT]"),
    Setting("forward.peers", "none", "the other forwarders: HOST[:PORT], several separated by commas"),
    Setting("forward.directory", "chappe-data/log", "where `forward` keeps records"),
    Setting("forward.originals", "none", "where programs of the original find it: HOST[:PORT[:SECOND-PORT]]"),
    Setting("forward.tap", "none", "where `chappe tap` sees what passes it: [HOST:]PORT", str | int),
    Setting("map.servers", f"{TOWER_HOST}:{MAP_PORT}", "where a map is served: HOST[:PORT], several with commas"),
    Setting("map.at", f"{TOWER_HOST}:{MAP_PORT}", "where `map serve` listens: HOST[:PORT]"),
    Setting(
        "produce.format", "lines", "how `produce` splits its input: " + ", ".join(get_args(InputFormat)), InputFormat
    ),
    Setting(
        "produce.min_acks",
        "1",
        "how many stores must have a record before `produce` calls it stored",
        Annotated[int, msgspec.Meta(ge=0, le=100)],
    ),
    Setting(
        "consume.from",
        "earliest",
        "where `consume` begins: earliest, latest, last-value, an offset, an age or a time",
        str | int,
    ),
    Setting("consume.output", "text", "how `consume` prints: " + ", ".join(get_args(OutputFormat)), OutputFormat),
    Setting("demo.directory", "chappe-data/demo", "where `demo` keeps topic, checkpoint and Parquet"),
    Setting("log.verbose", "false", "whether commands print what goes on: peers, peerings, members", bool),
    Setting("log.file", "none", "the file to which commands append what happens, in more detail"),
    Setting("log.level", "none", "from which level on a logger's lines are printed: NAME=LEVEL, several with commas"),
    Setting("log.format", "text", "how lines of the log look: " + ", ".join(FORMATS), LogFormat),
    *(Setting(each.key, each.default_text, each.help) for each in DECLARED.values()),
)
KEYS: Final = {setting.variable: setting.key for setting in SETTINGS}


def _schema() -> type[Common]:
    """The whole file: the settings in their sections. ``taken`` checks ``[mesh]`` and the other declared sections."""
    sections: dict[str, list[tuple[str, Any, None]]] = {}
    for each in SETTINGS:
        section, point, name = each.key.partition(".")
        if point and section not in SECTIONS:
            sections.setdefault(section, []).append((name, each.kind | None, None))
    made: list[tuple[str, Any, Any]] = [
        (name, kind := msgspec.defstruct(f"_{name}", settings, bases=(TomlSection,), frozen=True, kw_only=True), kind())
        for name, settings in sections.items()
    ]
    made += [(name, dict[str, Any], msgspec.field(default_factory=dict)) for name in (*SECTIONS, "retention")]
    return msgspec.defstruct("SettingsFile", made, bases=(Common,), frozen=True, kw_only=True)  # type: ignore[return-value]


SCHEMA: Final[Any] = _schema()


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """The retention of the topics that ``topics`` selects; None is no limit."""

    topics: str
    age_s: float | None
    bytes: int | None
    records: int | None


@dataclass(frozen=True, slots=True)
class Config:
    """The content of the configuration file; ``path`` is None without one."""

    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)  # by Setting.key
    retention: tuple[RetentionRule, ...] = ()


def load(explicit: str | None = None) -> Config:
    """Read the configuration file, if there is one.

    Raises:
        ConfigError: The file cannot be read or used; the text names the file, the line and the problem.
    """
    path = find_file(explicit)
    if path is None:
        return Config()
    source = TomlFile.read(path)
    file = source.convert(source.tables, SCHEMA)
    rules = []
    for topics, table in file.retention.items():
        keys = ("retention", topics)
        rule = source.convert(table, _Retention, keys)
        age_s = source.parsed((*keys, "age"), parse_age, rule.age)
        rules.append(
            RetentionRule(topics, age_s, source.parsed((*keys, "bytes"), parse_bytes, rule.bytes), rule.records)
        )
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        if setting.key in DECLARED:
            continue
        value = msgspec.to_builtins(file)
        for part in setting.key.split("."):
            value = value.get(part, {})
        if value != {}:
            values[setting.key] = str(value)
    for section in SECTIONS:
        found = source.convert(getattr(file, section), schema(section, TomlSection), (section,))
        values |= {f"{section}.{name}": value for name, value in taken(source, found, section, (section,)).items()}
    source.parsed(("consume", "from"), parse_start, values.get("consume.from"))
    source.parsed(("log", "level"), parse_levels, values.get("log.level"))
    return Config(path, values, tuple(rules))


def defaults_of_commands(found: Config, commands: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file's values as defaults of each command's options, by the names of their parameters.

    The options of the log, which every command has, look up the file on their own.
    """
    made: dict[str, Any] = {}
    for name, command in commands.items():
        if hasattr(command, "commands"):
            made[name] = defaults_of_commands(found, command.commands)
            continue
        keys = {each.name: KEYS[each.envvar] for each in command.params if each.envvar in KEYS}
        made[name] = {
            parameter: found.values[key]
            for parameter, key in keys.items()
            if key in found.values and not key.startswith("log.")
        }
    return made


def config(context: typer.Context, as_json: Json = False) -> None:
    """Show the settings in effect, and where each comes from."""
    found = context.obj
    assert isinstance(found, Config)
    rows = []
    for setting in SETTINGS:
        if os.environ.get(setting.variable):
            value, source = os.environ[setting.variable], setting.variable
        elif setting.key in found.values:
            value, source = found.values[setting.key], str(found.path)
        else:
            value, source = setting.default, "default"
        rows.append({"key": setting.key, "value": text_of(value), "source": source, "help": setting.help})
    retention = [asdict(rule) for rule in found.retention]
    facts = {"file": str(found.path) if found.path else None, "settings": rows, "retention": retention}
    print_listing(as_json, facts, ("setting", "value", "from", "meaning"), (tuple(row.values()) for row in rows))
    for rule in () if as_json else found.retention:
        kept = [
            human_age(rule.age_s) if rule.age_s is not None else "",
            exact_bytes(rule.bytes) if rule.bytes is not None else "",
            f"{many(rule.records, 'record')}" if rule.records is not None else "",
        ]
        show(f"retention of {rule.topics}: {', '.join(filter(None, kept)) or 'everything'}")
