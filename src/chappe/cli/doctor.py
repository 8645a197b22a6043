"""``chappe doctor``: is this machine fit for chappe, and if not, what mends it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from chappe.cli import options
from chappe.cli.members import DIRECTORY

_STYLES: Final = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def doctor(
    directory: Annotated[
        Path, typer.Argument(envvar="CHAPPE_STORE_DIRECTORY", metavar="DIRECTORY", help="Directory of the records.")
    ] = DIRECTORY,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    as_json: options.Json = False,
) -> None:
    """Check versions, ports, Java, disk and clock, and say how to mend what is wrong."""
    from chappe.cli.checks import all_checks

    failed = False
    for check in all_checks(directory, tower, listen):
        failed = failed or check.status == "failed"
        if as_json:
            print(json.dumps(asdict(check)), flush=True)
        else:
            _print(check.status, check.name, check.found, check.mend)
    if failed:
        raise typer.Exit(1)


def _print(status: str, name: str, found: str, mend: str) -> None:
    from rich.console import Console
    from rich.text import Text

    line = Text.assemble((f"{status:8}", _STYLES[status]), f" {name:10} {found}")
    console = Console(soft_wrap=True)
    console.print(line)
    if mend:
        console.print(Text(f"{'':8} {'':10} to mend: {mend}"))
