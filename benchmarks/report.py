"""The outcome as a table in the terminal, a Markdown file and JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow
import zmq
from rich.console import Console
from rich.table import Table

from benchmarks.outcome import Line

COLUMNS = ("path", "result", "CPU us/record", "target", "met", "beside it in the same run", "ratio")


def machine() -> str:
    """What the figures depend on, without naming the machine."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}, "
        f"{platform.python_implementation()} {platform.python_version()}, pyzmq {zmq.__version__} "
        f"(libzmq {zmq.zmq_version()}), pyarrow {pyarrow.__version__}; loopback, one disk"
    )


@dataclass(frozen=True, slots=True)
class Conditions:
    """How quiet the machine was: load before the run, and the share of time that its host took away during it."""

    load: float
    stolen: float

    def __str__(self) -> str:
        return f"load {self.load:.1f} before the run, {self.stolen:.0%} of the time taken by the host"


class Watch:
    """Observes the conditions of a run; begins when it is made. Stolen time is known on Linux only."""

    def __init__(self) -> None:
        self.load = os.getloadavg()[0]
        self._before = self._ticks()

    def conditions(self) -> Conditions:
        """From the beginning until now."""
        stolen, total = (now - before for now, before in zip(self._ticks(), self._before, strict=True))
        return Conditions(self.load, stolen / total if total else 0.0)

    @staticmethod
    def _ticks() -> tuple[int, int]:
        path = Path("/proc/stat")
        if not path.exists():
            return 0, 0
        fields = [int(each) for each in path.read_text().splitlines()[0].split()[1:9]]
        return fields[7], sum(fields)


def _cells(line: Line) -> tuple[str, ...]:
    met = {True: "yes", False: "no", None: ""}[line.met]
    return (line.path, line.result, line.cpu_us, line.target, met, line.beside, line.ratio)


def show(console: Console, lines: Sequence[Line], conditions: Conditions) -> None:
    """Print the table."""
    table = Table(title="chappe, records of 100 bytes", show_lines=True)
    for name in COLUMNS:
        table.add_column(name)
    for line in lines:
        style = {True: "green", False: "red", None: ""}[line.met]
        table.add_row(*_cells(line), style=style)
    console.print(table)
    for line in lines:
        if line.note:
            console.print(f"{line.path}: {line.note}", highlight=False, style="dim")
    console.print(f"{machine()}; {conditions}", highlight=False)


def markdown(lines: Sequence[Line], conditions: Conditions, command: str) -> str:
    """The text of RESULTS.md."""
    rows = [" | ".join(_cells(line)) for line in lines]
    notes = [f"- {line.path}: {line.note}." for line in lines if line.note]
    return "\n".join(
        [
            "# Results",
            "",
            f"Records of 100 bytes; each process on its own; the median of three rounds. Made by `{command}`.",
            "",
            f"Machine: {machine()}; {conditions}.",
            "",
            f"| {' | '.join(COLUMNS)} |",
            "|" + "---|" * len(COLUMNS),
            *(f"| {row} |" for row in rows),
            "",
            *notes,
            "",
        ]
    )


def write_json(path: Path, lines: Sequence[Line], conditions: Conditions) -> None:
    """Everything measured, for machines."""
    path.write_text(
        json.dumps({"machine": machine(), **asdict(conditions), "lines": [asdict(line) for line in lines]}, indent=2)
        + "\n"
    )
