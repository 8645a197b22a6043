"""Records the command lines of this user's servers on this machine, for restarting them.

Each serving command notes its own. A dashboard that misses a server shows that command line. Notes are
a convenience: failures to read or write them are ignored.
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

NOTES_MAX: Final = 256  # servers; notes of those started first are deleted
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
    """Return the shell command that starts ``server``, or ``otherwise`` without a note."""
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
    by_age = sorted(places, key=lambda place: place.stat().st_mtime, reverse=True)
    for place in by_age[NOTES_MAX:]:
        place.unlink(missing_ok=True)
