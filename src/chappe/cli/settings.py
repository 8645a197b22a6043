"""``chappe config``: the settings in effect and where each comes from."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import typer

from chappe.cli.options import Json

if TYPE_CHECKING:
    from chappe.cli.config import Config

COMMANDS = ("tower", "store", "up", "produce", "consume", "topics", "demo", "doctor", "archive", "replay", "record")


def defaults_of_commands(found: Config) -> dict[str, Any]:
    """The file's values as defaults of each command's options, by the names of their parameters."""
    everywhere = {key: found.values[key] for key in ("tower", "listen") if key in found.values}
    commands: dict[str, dict[str, Any]] = {name: dict(everywhere) for name in COMMANDS}
    commands["pipeline"] = {name: dict(everywhere) for name in ("run", "check")}
    if "tower" in found.values:  # the tower listens where everybody else looks for it
        commands["tower"] = {"listen": found.values["tower"]}
    for key, value in found.values.items():
        section, _, name = key.partition(".")
        if not name:
            continue
        commands[section][name.replace("from", "start")] = value
        if section == "store":
            for other in ("up", "doctor"):
                commands[other][name] = value
    return commands


def config(context: typer.Context, as_json: Json = False) -> None:
    """Show the settings in effect and where each comes from: environment, file or default."""
    from chappe.cli.config import SETTINGS, Config

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
        rows.append({"key": setting.key, "value": value, "source": source, "help": setting.help})
    if as_json:
        retention = [
            {"topics": rule.topics, "age_s": rule.age_s, "bytes": rule.bytes, "records": rule.records}
            for rule in found.retention
        ]
        print(json.dumps({"file": str(found.path) if found.path else None, "settings": rows, "retention": retention}))
        return
    from rich.console import Console
    from rich.table import Table

    from chappe.cli.units import exact_bytes, human_age

    table = Table("setting", "value", "from", "meaning", box=None)
    for row in rows:
        table.add_row(row["key"], row["value"], row["source"], row["help"])
    Console().print(table)
    for rule in found.retention:
        kept = [
            human_age(rule.age_s) if rule.age_s is not None else "",
            exact_bytes(rule.bytes) if rule.bytes is not None else "",
            f"{rule.records:,} records" if rule.records is not None else "",
        ]
        print(f"retention of {rule.topics}: {', '.join(filter(None, kept)) or 'everything'}")
