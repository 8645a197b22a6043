"""The layout of ``--help``: a line for each option, in at most a screen."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any, Final

import typer

WIDTH_MAX: Final = 110  # wider lines are hard to read
NAMES_MAX: Final = 24  # columns for an option and its value; the text of a longer one begins below
RUN_ON: Final = ("Identity", "Numbers", "Log")  # the same in many commands: a paragraph for each
HEADING: Final = re.compile(r"^\w+(?=:)", re.MULTILINE)
NAME: Final = re.compile(r"^  [^ ].*?(?=  |$)", re.MULTILINE)


def lay_out(command: Any) -> None:
    """Give the layout to a command, and to those of a group."""
    command.format_help = partial(write, command)
    for each in getattr(command, "commands", {}).values():
        lay_out(each)


def write(command: Any, context: Any, formatter: Any) -> None:
    """Print the help of a command, in colours on a terminal. Variables are left out: the configuration lists them."""
    command.format_usage(context, formatter)
    for text in filter(None, (command.help, command.epilog)):
        formatter.write_text(text)
    formatter.write_paragraph()
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for param in command.params:
        param.show_envvar = False
        if (record := param.get_help_record(context)) is not None:
            kind = "Arguments" if param.param_type_name == "argument" else "Options"
            rows.setdefault(param.rich_help_panel or kind, []).append(record)
    rows["Commands"] = [
        (name, each.help.partition("\n\n")[0]) for name, each in getattr(command, "commands", {}).items()
    ]
    rows |= {panel: rows.pop(panel) for panel in RUN_ON if panel in rows}
    for panel, records in rows.items():
        if panel in RUN_ON:
            listed = (f"{names} ({text[:1].lower()}{text[1:].rstrip('.')})" for names, text in records)
            formatter.write_text(f"{panel}: {', '.join(listed)}")
        elif records:
            if panel != "Arguments":
                formatter.write_heading(panel)
            with formatter.indentation():
                formatter.write_dl(records, NAMES_MAX)
    typer.echo(_coloured("".join(formatter.buffer)), nl=False)
    formatter.buffer.clear()


def _coloured(text: str) -> str:
    if "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    text = HEADING.sub(lambda found: typer.style(found[0], bold=True), text)
    return NAME.sub(lambda found: typer.style(found[0], fg="cyan"), text)
