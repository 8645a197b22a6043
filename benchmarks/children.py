"""Processes of a benchmark: started, spoken to, and killed at the end whatever happens."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

ROOT = Path(__file__).resolve().parent.parent
ORIGINAL = "CHAPPE_BROKER"  # names the directory of the original Broker's Python bindings
MEMBERS = "CHAPPE_BROKER_MEMBERS"  # names the program that ``peers/broker_members.cc`` makes
HEAR_S = 120.0  # no single order of the suite takes longer
TAIL_LINES = 5


def has_original() -> bool:
    """Whether the original Broker can be measured beside chappe."""
    return ORIGINAL in os.environ


def has_original_members() -> bool:
    """Whether it can be measured without its Python bindings."""
    return MEMBERS in os.environ


class ChildFailed(Exception):
    """A process of the benchmark ended or fell silent; the text has the end of what it wrote."""


class Child:
    """One process; ``order`` and ``hear`` talk to it as ``link`` describes."""

    def __init__(self, name: str, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = log
        self._rest = b""
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def order(self, **what: object) -> None:
        """Send an order."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("ended") from None

    def hear(self, timeout_s: float = HEAR_S) -> dict[str, Any]:
        """The next fact.

        Raises:
            ChildFailed: The process ended, or said nothing for ``timeout_s``.
        """
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._failure(f"said nothing for {timeout_s:g} s")
            piece = os.read(descriptor, 65536)
            if not piece:
                raise self._failure("ended")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        fact: dict[str, Any] = json.loads(line)
        return fact

    def ask(self, **what: object) -> dict[str, Any]:
        """Send an order and wait for its fact."""
        self.order(**what)
        return self.hear()

    def rss_mib(self, which: Literal["VmRSS", "VmHWM"] = "VmRSS") -> float:
        """Resident memory, now or at most so far; Linux only."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(which):
                return int(line.split()[1]) / 1024
        return 0.0

    def cpu_s(self) -> float:
        """Processor seconds so far of the process and its own children, such as a script's server; Linux only."""
        ticks = 0
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended just now
            if int(fields[2]) == self.pid:  # its process group
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its own children."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass

    def finish(self, timeout_s: float = 30.0) -> None:
        """Close its input, which ends it in good order, and wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not end within {timeout_s:g} s") from None

    def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def _failure(self, what: str) -> ChildFailed:
        tail = self._log.read_text(errors="replace").strip().splitlines()[-TAIL_LINES:]
        return ChildFailed("\n  ".join([f"the process {self.name!r} {what}", *tail]))


class Children:
    """All processes of one benchmark; leaving the ``with`` kills them."""

    def __init__(self, logs: Path, peer_python: str = sys.executable) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._peer_python = peer_python
        self._children: list[Child] = []

    def member(self, role: str, **options: object) -> Child:
        """One of chappe's processes (``members``)."""
        return self._role(sys.executable, "benchmarks.members", role, options)

    def start(self, module: str, role: str, **options: object) -> Child:
        """A process of another module of roles."""
        return self._role(sys.executable, module, role, options)

    def raw(self, role: str, **options: object) -> Child:
        """A process of ``raw``."""
        return self._role(sys.executable, "benchmarks.raw", role, options)

    def peer(self, module: str, role: str, **options: object) -> Child:
        """A client of a peer, in the peers' interpreter."""
        return self._role(self._peer_python, f"benchmarks.peers.{module}", role, options)

    def original(self, role: str, **options: object) -> Child:
        """A process of the original Broker's Python bindings, which lie in the directory ``CHAPPE_BROKER``."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
        command = [sys.executable, "-m", "benchmarks.peers.broker_bindings", role, json.dumps(options)]
        path = os.pathsep.join([os.environ[ORIGINAL], str(ROOT)])
        return self._start(f"original {role}", command, {**kept, "PYTHONPATH": path})

    def bindings(self, role: str, **options: object) -> Child:
        """A process of the same program as ``original`` on ``chappe.compat.broker``."""
        command = [sys.executable, "-m", "benchmarks.peers.broker_bindings", role, json.dumps(options)]
        return self._start(f"bindings {role}", command, {"BENCHMARK_BINDINGS": "chappe.compat.broker"})

    def original_member(self, role: str, **options: object) -> Child:
        """A process of the original Broker from C++: the program that ``CHAPPE_BROKER_MEMBERS`` names."""
        return self.program(f"original C++ {role}", [os.environ[MEMBERS], role, json.dumps(options)])

    def program(self, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> Child:
        """Any other program, for example a server."""
        return self._start(name, [sys.executable, "-m", "benchmarks.link", *command], environment or {})

    def _role(self, python: str, module: str, role: str, options: Mapping[str, object]) -> Child:
        return self._start(f"{module} {role}", [python, "-m", module, role, json.dumps(options)], {})

    def _start(self, name: str, command: list[str], environment: Mapping[str, str]) -> Child:
        log = self._logs / f"{len(self._children)}.log"
        child = Child(name, command, log, environment)
        self._children.append(child)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            child.kill()
