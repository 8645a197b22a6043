"""The processes of a benchmark on this machine: orders to them, and what they say.

They end when this process does, however it ends: each reads orders from a pipe, and the end of the pipe is the end.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Final, Self

from chappe.errors import ChappeError

ERROR_BYTES_MAX: Final = 4096  # of standard error, the last
FAREWELL_S: Final = 5.0  # for them to close their endpoints


class BenchmarkProcess:
    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self.said: dict[str, dict[str, Any]] = {}
        self.ended: str | None = None  # the way in which it ended, once it is over
        self._line = b""
        self._errors = b""
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", "-m", module]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), True)

    def order(self, kind: str, **facts: object) -> None:
        """Give it an order; nothing happens if it has ended."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(json.dumps({"order": kind, **facts}).encode() + b"\n")
            self.process.stdin.flush()

    def heard(self, data: bytes) -> bool:
        """Take what came from its standard output; whether there were whole lines."""
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            fact = json.loads(line)
            self.said[fact.pop("event")] = fact
        return bool(lines)

    def complained(self, data: bytes) -> None:
        self._errors = (self._errors + data)[-ERROR_BYTES_MAX:]

    def over(self) -> None:
        """Find out why its standard output has ended."""
        code = self.process.wait()
        if "result" in self.said:
            self.ended = "done"
        elif "failed" in self.said:
            self.ended = str(self.said["failed"]["reason"])
        elif code < 0:
            self.ended = f"ended by {signal.Signals(-code).name}"
        else:
            last = self._errors.decode(errors="replace").strip().split("\n")[-1]
            self.ended = f"ended with exit code {code}" + (f": {last}" if last else "")


class Processes:
    """Named processes of one module; a context that leaves none of them behind.

    Args:
        module: What each of them runs, with ``orders.process``.
        kind: Stands before a name in errors.
    """

    def __init__(self, module: str, kind: str = "") -> None:
        self.children: dict[str, BenchmarkProcess] = {}
        self._module = module
        self._kind = kind
        self._selector = selectors.DefaultSelector()

    def start(self, name: str) -> BenchmarkProcess:
        try:
            child = self.children[name] = BenchmarkProcess(name, self._module)
        except OSError as error:
            raise ChappeError(f"process {len(self.children) + 1} cannot be started: {error.strerror}") from error
        for stream, take in ((child.process.stdout, child.heard), (child.process.stderr, child.complained)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (child, take))
        return child

    def listen(self, timeout_s: float) -> None:
        """Take answers; waits at most ``timeout_s`` for them."""
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            child, take = key.data
            data = os.read(key.fd, 1 << 16)
            if data:
                take(data)
                continue
            self._selector.unregister(key.fileobj)
            if take == child.heard:
                child.over()

    def await_some(self, event: str, until: float) -> None:
        """Take what is said while some have not said something. Raises ChappeError: some of those have ended, or the
        time is up.
        """
        missing = [each for each in self.children.values() if event not in each.said]
        for each in missing:
            if each.ended is not None:
                raise ChappeError(f"{self._kind}{each.name}: {each.ended}")
        if missing and time.monotonic() >= until:
            names = ", ".join(each.name for each in missing[:10]) + (" and others" if len(missing) > 10 else "")
            raise ChappeError(f"the time is up, and these are not {event} yet: {names}")
        self.listen(min(0.2, until - time.monotonic()))

    def close(self) -> None:
        """End all of them; they get a moment to close their endpoints if they have told their results."""
        until = time.monotonic() + FAREWELL_S
        alive = [each for each in self.children.values() if each.process.poll() is None]
        while time.monotonic() < until and any("result" in each.said for each in alive):
            alive = [each for each in alive if each.process.poll() is None]
            time.sleep(0.01)
        for each in alive:
            each.process.kill()
        for each in self.children.values():
            each.process.wait()
            for stream in (each.process.stdin, each.process.stdout, each.process.stderr):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
