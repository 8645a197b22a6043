"""How servers of this user were started on this machine: their command lines, for whoever has to start one again.

A command that serves notes its own; a dashboard that misses the server names it instead of a form to fill in. A note is
a convenience: where it cannot be written or read there is none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from chappe.errors import UsageError
from chappe.system.places import users

NOTES_MAX: Final = 256  # servers; the ones that were started first are forgotten
NOTE_BYTES_MAX: Final = 64 * 1024


def note(*servers: str) -> None:
    """Remember the command line of this process as the one that starts ``servers``."""
    text = json.dumps({"directory": os.getcwd(), "command": shlex.join(["chappe", *sys.argv[1:]])})
    with suppress(OSError, UsageError, ValueError):
        home = _home()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for server in servers:
            place = home / _name(server)
            new = place.with_suffix(f".{os.getpid()}")
            new.write_text(text)
            new.replace(place)
        _forget(home.iterdir())


def command(server: str, otherwise: str) -> str:
    """What starts ``server``, to be typed into a shell; ``otherwise`` where nobody noted it."""
    with suppress(OSError, UsageError, ValueError, KeyError, TypeError):
        place = _home() / _name(server)
        if place.stat().st_size <= NOTE_BYTES_MAX:
            found = json.loads(place.read_text())
            directory, line = str(found["directory"]), str(found["command"])
            here = Path(directory) == Path.cwd()
            return line if here else f"cd {shlex.quote(directory)} && {line}"
    return otherwise


def _home() -> Path:
    return users("state") / "started"


def _name(server: str) -> str:
    return f"{hashlib.sha256(server.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.json"


def _forget(places: Iterable[Path]) -> None:
    """Remove the oldest notes beyond the bound."""
    by_age = sorted(places, key=lambda place: place.stat().st_mtime, reverse=True)
    for place in by_age[NOTES_MAX:]:
        place.unlink(missing_ok=True)
