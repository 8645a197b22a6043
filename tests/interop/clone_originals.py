"""The ZeroMQ Guide's C programs of models 5 and 6.

Facts about the programs that shape this file: they are bound to the Guide's ports, whatever is configured, so tests of
several runs take turns; they print a line for each update, and stop when nobody reads it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.waiting import until

VARIABLE = "CHAPPE_GUIDE"  # the directory where the programs lie
PROGRAMS = ("clonesrv5", "clonecli5", "clonesrv6", "clonecli6")
FIRST, SECOND = "127.0.0.1:5556", "127.0.0.1:5566"
PORTS = (5556, 5557, 5558, 5566, 5567, 5568, 5003, 5004)
LOCK = Path(tempfile.gettempdir()) / "chappe-clone-ports"


def find_programs() -> Path | None:
    """The directory of the original programs, if it is given."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    missing = [each for each in PROGRAMS if not (Path(named) / each).is_file()]
    assert not missing, f"{VARIABLE} is set to {named!r}, where {', '.join(missing)} is missing"
    return Path(named)


@contextmanager
def ports() -> Iterator[None]:
    """The Guide's ports, for this process alone."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        until(lambda: all(map(_is_free, PORTS)), "the Guide's ports are free")
        yield


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


class CloneProgram:
    """One original program, and what it has printed; ends with its context."""

    def __init__(self, directory: Path, name: str, *arguments: str) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            ["stdbuf", "-oL", str(directory / name), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())

    def expect(self, text: str, count: int = 1) -> None:
        """Wait until so many lines had this in them."""
        until(
            lambda: sum(text in line for line in list(self.lines)) >= count,
            lambda: f"{count} lines with {text!r}; it printed {self.lines[-10:]}",
        )

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
