"""The original C programs as the tests use them.

Facts about the programs that shape this file: nodes publish on all interfaces from port 49152 up, whatever is
configured; they hang without a tower; they cannot be trusted to end when asked to; the console consumer waits a
second before it subscribes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.waiting import until

VARIABLE = "CHAPPE_DAFKA"
PROGRAMS = ("dafka_towerd", "dafka_stored", "dafka_console_producer", "dafka_console_consumer")
SETTLE_S = 0.3  # originals do not tell when a connection is up; on loopback it is long before this
Line = tuple[str, str, str]  # subject, address, content
eventually = until


def find_programs() -> Path | None:
    """The directory of the original programs: ``CHAPPE_DAFKA``, else where the PATH has them."""
    named = os.environ.get(VARIABLE)
    if named:
        missing = [each for each in PROGRAMS if not (Path(named) / each).is_file()]
        assert not missing, f"{VARIABLE} is set to {named!r}, where {', '.join(missing)} is missing"
        return Path(named)
    found = shutil.which(PROGRAMS[0])
    if found is None or any(shutil.which(each, path=str(Path(found).parent)) is None for each in PROGRAMS):
        return None
    return Path(found).parent


def settle() -> None:
    """Give connections between originals, which nobody can see, the time that they need."""
    time.sleep(SETTLE_S)


class Program:
    """One original program, its input and what it printed so far."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._process = subprocess.Popen(
            ["stdbuf", "-oL", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=directory,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: IO[bytes] = self._process.stdin
        self._output: IO[bytes] = self._process.stdout
        self._printed: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._output:
            self._printed.append(line.rstrip(b"\n"))

    def send(self, lines: Iterable[str]) -> None:
        """Write lines to its input."""
        self._input.write("".join(f"{line}\n" for line in lines).encode())
        self._input.flush()

    def finish(self, timeout: float = PATIENCE_S) -> int:
        """Close its input, which makes a producer wait for acknowledgements and end; returns the exit code."""
        self._input.close()
        return self._process.wait(timeout)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def printed(self) -> int:
        """Number of lines printed so far."""
        return len(self._printed)

    @property
    def lines(self) -> list[Line]:
        """What a console consumer printed so far."""
        found = []
        for raw in list(self._printed):
            subject, address, content = raw.decode("utf-8", "surrogateescape").split(" ", 2)
            found.append((subject, address, content))
        return found

    def contents(self, subject: str) -> list[str]:
        """The contents that a console consumer printed for one topic, in order."""
        return [content for found, _, content in self.lines if found == subject]

    def expect(self, count: int, timeout: float = PATIENCE_S) -> None:
        """Wait until it printed so many lines."""
        eventually(
            lambda: self.printed >= count, lambda: f"{count} lines of a consumer; it printed {self.printed}", timeout
        )

    def kill(self) -> None:
        """End it as nothing else ends it reliably."""
        self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE_S)
        self._output.close()
        if not self._input.closed:
            try:
                self._input.close()
            except BrokenPipeError:
                pass
