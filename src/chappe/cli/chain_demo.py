"""``chappe chain demo``: three servers on this machine, writers, and a kill now and then: nothing is lost."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from chappe.cli.console import say
from chappe.defaults import TOWER_HOST
from chappe.errors import ChappeError
from chappe.system.ports import free_ports

if TYPE_CHECKING:
    from chappe import Chain

NAMES: Final = ("a", "b", "c")
WRITERS: Final = 4
KILL_EVERY_S: Final = 4.0
DEAD_S: Final = 1.5  # from a kill to the restart
BEGIN_S: Final = 30.0  # the longest wait for the servers, in the beginning and in the end
STEP_S: Final = 0.05


def demo(
    seconds: Annotated[
        float | None, Option(min=1, help="End this long after the chain has begun; by default on Ctrl-C.")
    ] = None,
) -> None:
    """Start three servers, write to them, kill them one after the other, and see that nothing is lost."""
    with tempfile.TemporaryDirectory(prefix="chappe-chain-") as home:
        run = _ChainDemo(Path(home))
        try:
            run.begin()
            try:
                run.disturb(seconds)
            except KeyboardInterrupt:
                say("stopping")
            run.end()
        finally:
            run.close()


class _CountingWriter(threading.Thread):
    """Adds one to a key, again and again; ``confirmed`` counts the answers."""

    def __init__(self, chain: Chain, key: str) -> None:
        super().__init__(daemon=True)
        self.key = key
        self.confirmed = 0
        self._pause_s = 0.0  # the longest between two answers, since ``forget_pause``
        self._answered_at = time.monotonic()
        self.ends = False
        self.failure: Exception | None = None
        self._chain = chain

    def run(self) -> None:
        command = json.dumps(["add", self.key, 1]).encode()
        self._answered_at = time.monotonic()
        while not self.ends:
            try:
                self._chain.call(command, timeout=None)
            except ChappeError as error:
                self.failure = error
                return
            now = time.monotonic()
            self.confirmed += 1
            self._pause_s, self._answered_at = max(self._pause_s, now - self._answered_at), now

    def forget_pause(self) -> None:
        self._pause_s = 0.0

    def pause_s(self) -> float:
        """Return the longest time without an answer, including the current one."""
        return max(self._pause_s, time.monotonic() - self._answered_at)


class _ChainDemo:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._file = home / "chain.toml"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = ExitStack()
        self._writers: list[_CountingWriter] = []
        self._kills = 0

    def begin(self) -> None:
        from chappe import Chain

        addresses = "".join(
            f'{name} = "{TOWER_HOST}:{port}"\n' for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True)
        )
        self._file.write_text(f'name = "demo"\nmachine = "map"\n\n[servers]\n{addresses}')
        for name in NAMES:
            self._start(name)
        say(f"three servers, {', '.join(NAMES)}, by {self._file}")
        chain = self._stack.enter_context(Chain(self._file))
        chain.call(b'["put","begun",true]', timeout=BEGIN_S)
        self._chain = chain
        for number in range(WRITERS):
            writer = _CountingWriter(self._stack.enter_context(Chain(self._file)), f"writer {number + 1}")
            writer.start()
            self._writers.append(writer)
        say(f"the chain is founded: {self._members()}; {WRITERS} programs write, each one command after the other")

    def disturb(self, seconds: float | None) -> None:
        """Kill head, middle and tail in turn until the time is over."""
        end = None if seconds is None else time.monotonic() + seconds
        for role in itertools.cycle(("head", "middle", "tail")):
            if not self._sleep(KILL_EVERY_S - DEAD_S, end) or not self._wait_for_all(end):
                return
            name = self._chain_of()[("head", "middle", "tail").index(role)]
            for writer in self._writers:
                writer.forget_pause()
            self._processes[name].kill()
            self._processes[name].wait()
            self._kills += 1
            before = self._confirmed()
            going = self._sleep(DEAD_S, end)
            pause = max(writer.pause_s() for writer in self._writers)
            say(
                f"killed {name}, the {role}, with -9: {self._members()}; {self._confirmed() - before:,} commands since,"
                f" longest pause {pause:.2f} s"
            )
            self._start(name)
            if not going:
                return

    def _wait_for_all(self, end: float | None) -> bool:
        """Wait until all servers are members; return False if the time is over before."""
        while len(self._chain_of()) < len(NAMES):
            if not self._sleep(STEP_S, end):
                return False
        return True

    def end(self) -> None:
        """Compare the confirmed commands with the state of each server. Raises ChappeError if they differ."""
        for writer in self._writers:
            writer.ends = True
        for writer in self._writers:
            writer.join(BEGIN_S)
            if writer.failure is not None:
                raise writer.failure
        deadline = time.monotonic() + BEGIN_S
        while len(self._chain_of()) < len(NAMES):
            if time.monotonic() > deadline:
                raise ChappeError(f"not all servers are back after {BEGIN_S:g} s: {self._members()}")
            time.sleep(STEP_S)
        wanted = {writer.key: writer.confirmed for writer in self._writers}
        for name in NAMES:
            found = {
                key: json.loads(self._chain.read(json.dumps(["get", key]).encode(), server=name)) or 0 for key in wanted
            }
            if found != wanted:
                raise ChappeError(f"{name} has {found}, and {wanted} were confirmed")
        total = sum(wanted.values())
        say(
            f"{total:,} commands were confirmed, {self._kills} servers killed: each server, {self._members()}, "
            "has every one of them once"
        )

    def close(self) -> None:
        for writer in self._writers:
            writer.ends = True
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._stack.close()

    def _start(self, name: str) -> None:
        command = [sys.executable, "-m", "chappe", "chain", "serve", str(self._file), "--name", name, "--json"]
        with open(self._home / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [*command, "--directory", str(self._home / name)], stdout=log, stderr=log
            )

    def _sleep(self, seconds: float, end: float | None) -> bool:
        """Wait; return False if the time is over. Raises ChappeError if a server or a writer has failed."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            if end is not None and now >= end:
                return False
            for name, process in self._processes.items():
                if process.poll() not in (None, -9):
                    last = (self._home / f"{name}.log").read_text(errors="replace").strip().rpartition("\n")[2]
                    raise ChappeError(f"the server {name} has ended: {last}")
            for writer in self._writers:
                if writer.failure is not None:
                    raise writer.failure
            time.sleep(STEP_S)
        return True

    def _confirmed(self) -> int:
        return sum(writer.confirmed for writer in self._writers)

    def _chain_of(self) -> tuple[str, ...]:
        known = [each for each in self._chain.status().values() if each is not None]
        return max(known, key=lambda each: each.number).members if known else ()

    def _members(self) -> str:
        return " > ".join(self._chain_of())
