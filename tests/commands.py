"""The commands of the command line, loaded: the program imports each when it is called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer import Context
from typer.main import get_command

from chappe.cli.app import app


def whole_program() -> Any:
    """The program with every command's options."""
    program: Any = get_command(app)
    for name in list(program.commands):
        program.resolve_command(Context(program), [name])
    return program


def commands_of(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every command and its name, those in groups too."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{above}{name} ")
        else:
            yield above + name, command
