"""A table that leaves out columns rather than cut what is in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

GAP = 2  # characters between two columns


@dataclass(frozen=True, slots=True)
class Fitting:
    """Rows of one line each, in the columns that there is room for.

    Args:
        columns: Their heads.
        rows: As many cells each as there are columns.
        left: Names of the columns that begin at the left; the others are numbers.
        spare: Names of the columns that a narrow terminal does without, the first of them first.
        style: Of the heads.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[str]
    spare: Sequence[str]
    style: str = field(default="bold")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        cells = [self.columns, *self.rows]
        widths = {name: max(cell_len(row[n]) for row in cells) for n, name in enumerate(self.columns)}
        for name in self.spare:
            if sum(widths.values()) + GAP * (len(widths) - 1) <= options.max_width:
                break
            del widths[name]
        made = Table(box=None, header_style=self.style, pad_edge=False, padding=(0, GAP, 0, 0))
        for name in widths:
            made.add_column(name, justify="left" if name in self.left else "right", no_wrap=True)
        for row in self.rows:
            shown = zip(self.columns, row, strict=True)
            made.add_row(*(Text(cell) for name, cell in shown if name in widths))
        yield made
