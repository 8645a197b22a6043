"""The frame of commands that list: a table for people, or JSON for a machine; and lines that pass as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from chappe.cli.console import show_json


def print_listing(as_json: bool, facts: dict[str, Any], heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, whose rows have as many cells as there are heads, or the facts."""
    if as_json:
        show_json(facts)
        return
    from rich.table import Table

    from chappe.cli.screen import People, cell

    table = Table(*heads, box=None)
    for row in rows:
        table.add_row(*map(cell, row))
    People().print(table)


def print_lines(lines: Iterable[bytes]) -> None:
    sys.stdout.buffer.writelines(lines)
    sys.stdout.buffer.flush()
