"""The parent's side of a child process: what it said, whether it lives, how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Any, Final

import msgspec

from chappe.errors import ChappeError

LAST_LINES: Final = 20
STOP_S: Final = 15.0  # a child that has not ended after this is killed
POLL_S: Final = 0.05


class ChildDied(ChappeError):
    """A child process ended although nobody asked it to; the text has its last words."""


class Child:
    """A process of the demo. ``facts`` is everything that it told, by name, the newest of each."""

    def __init__(self, name: str, role: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> None:
        self.name = name
        self.facts: dict[str, Any] = {}
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chappe.cli.demo.child", role, str(os.getpid()), *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._readers = [
            threading.Thread(target=target, args=(stream,), name=f"chappe demo {name}", daemon=True)
            for target, stream in ((self._hear, self._process.stdout), (self._remember, self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The last line that the process wrote to standard error."""
        return self._last[-1] if self._last else ""

    def wait_for(self, fact: str, timeout_s: float, meanwhile: Callable[[], None]) -> Any:
        """Wait until the child told ``fact``, and call ``meanwhile`` several times a second; raises ChildDied."""
        deadline = time.monotonic() + timeout_s
        while fact not in self.facts:
            self.check()
            if time.monotonic() > deadline:
                raise ChildDied(f"the {self.name} did not start within {timeout_s:g} s{self._said()}")
            meanwhile()
            time.sleep(POLL_S)
        return self.facts[fact]

    def check(self) -> None:
        """Raise ChildDied if the process has ended."""
        code = self._process.poll()
        if code is not None:
            self._join()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise ChildDied(f"the {self.name} (process {self.pid}) {how}{self._said()}")

    def stop(self) -> None:
        """Ask the process to end, and wait until it has."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._join()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()

    def _join(self) -> None:
        for reader in self._readers:
            reader.join(1.0)

    def _said(self) -> str:
        return f"; it said: {' / '.join(self._last)}" if self._last else "; it said nothing"

    def _hear(self, stream: IO[bytes]) -> None:
        for line in stream:
            try:
                self.facts.update(msgspec.json.decode(line, type=dict[str, Any]))
            except msgspec.DecodeError:
                self._last.append(line.decode("utf-8", "backslashreplace").rstrip())

    def _remember(self, stream: IO[bytes]) -> None:
        for line in stream:
            text = line.decode("utf-8", "backslashreplace").strip()
            if text:
                self._last.append(text)
