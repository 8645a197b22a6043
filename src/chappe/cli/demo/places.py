"""Where the demo's topic and results are, and which commands show them, as one would type them here."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from chappe.cli import options
from chappe.cli.presence import host_and_ports


def look(topic: str, tower: str, expected: str) -> list[str]:
    """Commands that show the topic while the demo runs.

    Args:
        topic: Its name.
        tower: The address of the demo's tower.
        expected: Where commands look for a tower in the demo's own environment.
    """
    host, port, second = host_and_ports(tower)
    where = ""
    if expected != options.TOWER or host_and_ports(options.TOWER) != (host, port, second):
        where = f" --tower {host}:{port}" + (f":{second}" if second != port + 1 else "")
    chappe = shown(program())
    return [f"{chappe} topics{where}", f"{chappe} consume {topic}{where}"]


def results(directory: Path, topic: str, log: Path) -> list[str]:
    """Lines that say what a demo left, and how to look at it."""
    records, windows = directory / "log", directory / "windows"
    read = f"import pandas; print(pandas.read_parquet('{windows}').tail(20).to_string())"
    chappe = shown(program())
    return [
        f"topic {topic}: {records}",
        f"checkpoint:  {directory / 'checkpoint'}",
        f"Parquet:     {windows}",
        f"Spark's log: {log}",
        "",
        f"To look at the topic, serve it in another terminal with `{chappe} up {shlex.quote(str(records))}`, then:",
        f"  {chappe} topics {topic}",
        f"  {chappe} consume {topic} --from 1h --until-end",
        "To look at the Parquet:",
        f"  {shlex.quote(shown(sys.executable))} -c {_quoted(read)}",
    ]


def program() -> str:
    """How this program is called from here."""
    beside = Path(sys.executable).with_name("chappe")
    if not beside.exists():
        return f"{sys.executable} -m chappe"
    found = shutil.which("chappe")
    return "chappe" if found is not None and Path(found).samefile(beside) else str(beside)


def shown(path: str) -> str:
    """A path as one would type it here: relative where that is shorter."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


def _quoted(code: str) -> str:
    return shlex.quote(code) if set(code) & set('"$`\\!') else f'"{code}"'
