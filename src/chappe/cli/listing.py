"""The frame of commands that list: a table for people, or JSON for a machine; and lines that pass as they are."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from chappe.cli.console import show_json
from chappe.data import terminal

PIPE_WIDTH: Final = 240  # where no terminal says how wide it is
ID: Final = re.compile(r"[0-9A-F]{32}")  # of a partition or a member
BEGINNING: Final = 8  # characters of an id, at least


def print_listing(
    as_json: bool,
    facts: dict[str, Any],
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
    ids: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Print a table, whose rows have as many cells as there are heads, or the facts."""
    if as_json:
        show_json(facts)
    else:
        print_table(heads, list(rows), right=right, ids=ids, spare=spare)


def print_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    ids: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Print a table of which no cell is cut; columns named in ``right`` are aligned so.

    Where a terminal is too narrow, ``ids`` are shortened to beginnings that tell them apart, which commands take for
    the whole; then columns of ``spare`` are left out, the first of them first; then text is folded.
    """
    from rich.table import Table

    from chappe.cli.screen import GAP, cell, wide_console, widths

    console = wide_console(PIPE_WIDTH)
    columns = {head: [terminal.line(row[n]) for row in rows] for n, head in enumerate(heads)}

    def fits() -> bool:
        return sum(widths(columns).values()) + GAP * (len(columns) - 1) <= console.width

    for head in () if fits() else ids:
        columns[head] = _beginnings(columns[head])
    for head in spare:
        if fits():
            break
        del columns[head]
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
    for head in columns:
        table.add_column(
            head, justify="right" if head in right else "left", no_wrap=head in ids or head in right, overflow="fold"
        )
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(cell, row))
    console.print(table)


def _beginnings(cells: Sequence[str]) -> list[str]:
    """Shorten the ids among these; those that differ still do."""
    whole = {each for each in cells if ID.fullmatch(each)}
    length = next((n for n in range(BEGINNING, 32) if len({each[:n] for each in whole}) == len(whole)), 32)
    return [each[:length] if each in whole else each for each in cells]


def print_lines(lines: Iterable[bytes]) -> None:
    sys.stdout.buffer.writelines(lines)
    sys.stdout.buffer.flush()
