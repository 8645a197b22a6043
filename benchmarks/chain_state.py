"""A chain with a large state: how long writers wait while servers join it empty, leave it and start again."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.ports import free_ports

from benchmarks.chain_members import MEMBERS
from benchmarks.children import Child, ChildFailed, Children
from benchmarks.outcome import Line
from benchmarks.settings import Settings

NAMES = ("a", "b", "c")
STATE_MIB = 2_048
QUICK_MIB = 32
PART_MIB = 16  # filled by one order
TARGET_S = 2.0
WHOLE_S = 600.0
POLL_S = 0.1
MIB = 1 << 20


class _Servers:
    """Three servers of keys and values, as processes, and one client that fills them and another one that goes on."""

    def __init__(self, children: Children, work: Path) -> None:
        self._children = children
        self._work = work
        first = free_ports(len(NAMES))
        self._addresses = {name: f"127.0.0.1:{first + place}" for place, name in enumerate(NAMES)}
        self.running = {name: self.start(name) for name in NAMES}
        self.writer = children.start(MEMBERS, "putter", servers=self._addresses)
        self.writer.hear()

    def start(self, name: str) -> Child:
        found = self._children.start(
            MEMBERS, "map_server", servers=self._addresses, name=name, directory=str(self._work / name)
        )
        found.hear(WHOLE_S)
        return found

    def begin(self, name: str) -> None:
        self.running[name] = self.start(name)

    def wait(self) -> None:
        """Until all are members."""
        until = time.monotonic() + WHOLE_S
        while True:
            found = [each.ask()["members"] for each in self.running.values()]
            if all(len(each) == len(NAMES) for each in found):
                return
            if time.monotonic() > until:
                raise ChildFailed(f"not all servers are members of the chain: {found}")
            time.sleep(POLL_S)

    def longest(self) -> float:
        """The longest time without a confirmed write since the last call, in seconds."""
        return float(self.writer.ask(do="longest")["longest_s"])

    def most_mib(self) -> float:
        return max(each.rss_mib("VmHWM") for each in self.running.values())


def _fill(servers: _Servers, mib: int) -> None:
    """Have a state of so many MiB."""
    for part in range(0, mib, PART_MIB):
        servers.writer.order(do="fill", first=part, mib=min(PART_MIB, mib - part))
        servers.writer.hear(WHOLE_S)


def measured(work: Path, mib: int) -> Iterator[Line]:
    """A state of so many MiB."""
    with Children(work / "logs") as children:
        servers = _Servers(children, work)
        servers.wait()
        begun = time.monotonic()
        _fill(servers, mib)
        servers.wait()
        yield _line(mib, "filled", servers.longest(), time.monotonic() - begun)

        for what, name in (("a server joins with an empty disk", "c"), ("the head is killed and starts again", "a")):
            begun = time.monotonic()
            servers.running[name].signal(signal.SIGKILL)
            servers.running[name].kill()
            if name == "c":
                shutil.rmtree(work / name)
            servers.begin(name)
            servers.wait()
            yield _line(mib, what, servers.longest(), time.monotonic() - begun)
        begun = time.monotonic()
        servers.running["b"].finish(WHOLE_S)
        servers.begin("b")
        servers.wait()
        yield _line(mib, "a server leaves and starts again", servers.longest(), time.monotonic() - begun)
        yield Line(
            f"chain of three, {mib:,} MiB of state: memory of a server",
            f"{servers.most_mib():,.0f} MiB at most",
            numbers={"most_mib": servers.most_mib()},
        )


def _line(mib: int, what: str, longest_s: float, took_s: float) -> Line:
    return Line(
        f"chain of three, {mib:,} MiB of state: {what}",
        f"writes wait {longest_s:.2f} s at most",
        f"< {TARGET_S:g} s",
        met=longest_s < TARGET_S,
        note=f"{took_s:.1f} s until all three are members; one writer, one command after the other",
        numbers={"longest_s": longest_s, "took_s": took_s},
    )


def chain_state(settings: Settings) -> list[Line]:
    """With the state that the documentation promises, or a small one."""
    return list(measured(settings.work / "chain-state", QUICK_MIB if settings.quick else STATE_MIB))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chain_state", description=__doc__)
    parser.add_argument("--mib", type=int, default=STATE_MIB, help="of state (%(default)s)")
    parser.add_argument("--directory", default="/var/tmp", help="a real disk (%(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chappe-benchmarks-", dir=arguments.directory) as work:
        for each in measured(Path(work), arguments.mib):
            print(f"{each.path}: {each.result} (target {each.target or 'none'}); {each.note}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
