"""A chain of three processes under load from several writers, while they are killed, stopped and cut off.

In the end every confirmed command is there once, at the number that its writer was told, in the order of its writer,
and all servers have the same state byte for byte. By hand: ``python -m tests.api.chain_soak --kills 200``.
With ``--net`` it runs within network namespaces of its own: ``unshare --user --map-root-user --net --mount``.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until

from chappe import Chain
from chappe.api.chain.status import ChainServerStatus

NAMES: Final = ("a", "b", "c")
WRITERS: Final = 3
BATCH: Final = 20  # commands of one writer under way
PAUSE_S: Final = 0.02  # of a writer between two batches: what a long run leaves is to be restored within moments
LOG_BYTES: Final = 300_000  # of each server: so that states are written and sent
NET: Final = "10.77.0."


def ip(*words: object) -> None:
    """Change the network."""
    subprocess.run(["ip", *map(str, words)], check=True)


class Servers:
    """The three processes, on loopback or each in a network namespace of its own."""

    def __init__(self, home: Path, *, net: bool = False) -> None:
        self.home = home
        self.net = net
        self.file = home / "chain.toml"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        if net:
            self._make_net()
            hosts = [f"{NET}{place}:7001" for place in range(1, len(NAMES) + 1)]
        else:
            first = free_ports(len(NAMES))
            hosts = [f"127.0.0.1:{first + place}" for place in range(len(NAMES))]
        lines = "".join(f'{name} = "{host}"\n' for name, host in zip(NAMES, hosts, strict=True))
        self.file.write_text(f'name = "soak"\n[servers]\n{lines}')

    def _make_net(self) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
        ip("link", "set", "lo", "up")
        ip("link", "add", "bridge", "type", "bridge")
        ip("link", "set", "bridge", "up")
        ip("addr", "add", f"{NET}99/24", "dev", "bridge")
        for place, name in enumerate(NAMES, 1):
            ip("netns", "add", name)
            ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"to-{name}", "master", "bridge", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "addr", "add", f"{NET}{place}/24", "dev", "eth0")

    def start(self, name: str) -> None:
        """Begin a life."""
        inside = ["ip", "netns", "exec", name] if self.net else []
        command = [*inside, sys.executable, "-m", "tests.api.chain_process", str(self.file), name]
        process = subprocess.Popen([*command, str(self.home / name), str(LOG_BYTES)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"serves\n", f"{name} does not start: see what it wrote"
        self.processes[name] = process

    def kill(self, name: str) -> None:
        """As a power cut would."""
        self.processes[name].kill()
        self.processes[name].wait()

    def cut(self, name: str, other: str, on: bool) -> None:
        """Nothing that one sends reaches another one, or it does again."""
        place = NAMES.index(other) + 1
        ip("-n", name, "route", "add" if on else "del", "blackhole", f"{NET}{place}/32")

    def close(self) -> None:
        """End them."""
        for each in self.processes.values():
            each.send_signal(signal.SIGCONT)
            each.kill()
            each.wait()


class Writer(threading.Thread):
    """Has commands done, some at a time; ``confirmed`` are those that were answered, with the number of each."""

    def __init__(self, file: Path, who: int) -> None:
        super().__init__(daemon=True)
        self.who = who
        self.confirmed: list[tuple[bytes, int]] = []
        self.failure: BaseException | None = None
        self.ends = False
        self._file = file

    def run(self) -> None:
        """Until the end."""
        try:
            with Chain(self._file, security="plain") as chain:
                number = 0
                while not self.ends:
                    commands = [b"%d-%d" % (self.who, number + each) for each in range(BATCH)]
                    answers = chain.call_many(commands, timeout=PATIENCE_S)
                    self.confirmed += [(c, int(a.result)) for c, a in zip(commands, answers, strict=True)]
                    number += BATCH
                    time.sleep(PAUSE_S)
        except BaseException as error:  # is told where the test waits
            self.failure = error


class Soak:
    """One run."""

    def __init__(self, servers: Servers, seed: int) -> None:
        self.servers = servers
        self.rng = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.pauses: list[tuple[str, float]] = []
        for name in NAMES:
            servers.start(name)
        self.chain = Chain(servers.file, security="plain")
        self.writers = [Writer(servers.file, who) for who in range(WRITERS)]
        for each in self.writers:
            each.start()
        self.go_on()

    # -- looks -------------------------------------------------------------------------------------------------------

    def confirmed(self) -> int:
        """Commands that were answered. Raises what a writer has met."""
        for each in self.writers:
            if each.failure is not None:
                raise each.failure
        return sum(len(each.confirmed) for each in self.writers)

    def newest(self) -> ChainServerStatus | None:
        """What the server says that knows the newest configuration."""
        known = [each for each in self.chain.status(timeout=1.0).values() if each is not None]
        return max(known, key=lambda each: each.number, default=None)

    def members(self) -> tuple[str, ...]:
        """Head first."""
        newest = self.newest()
        return () if newest is None else newest.members

    def go_on(self) -> None:
        """Wait until all writers are answered once more."""
        before = [len(each.confirmed) for each in self.writers]
        until(
            lambda: self.confirmed() and all(len(w.confirmed) > n for w, n in zip(self.writers, before, strict=True)),
            lambda: f"the chain does not go on: {self.chain.status()}",
        )

    def whole(self) -> None:
        """Wait until all are members."""
        until(lambda: len(self.members()) == len(NAMES), lambda: f"not whole: {self.chain.status()}")

    # -- what goes wrong ---------------------------------------------------------------------------------------------

    def kill_role(self, place: int) -> None:
        """Kill head, middle or tail; see that it goes on; start it again."""
        self.whole()
        name, role = self.members()[place], ("head", "middle", "tail")[place]
        at = time.monotonic()
        self.servers.kill(name)
        self.done["kills"] += 1
        self.go_on()
        self.pauses.append((role, time.monotonic() - at))
        self.servers.start(name)

    def kill_any(self) -> None:
        """Kill one, in whichever state the chain is, and start it again at once or later."""
        name = self.rng.choice(NAMES)
        self.servers.kill(name)
        self.done["kills"] += 1
        if self.rng.random() < 0.5:
            time.sleep(self.rng.random())
        self.servers.start(name)

    def kill_all(self) -> None:
        """A power failure."""
        for name in NAMES:
            self.servers.kill(name)
        self.done["kills"] += len(NAMES)
        for name in self.rng.sample(NAMES, len(NAMES)):
            self.servers.start(name)
        self.go_on()

    def stop(self, seconds: float) -> None:
        """One stands still for a while, and then goes on as if nothing had been."""
        process = self.servers.processes[self.rng.choice(NAMES)]
        process.send_signal(signal.SIGSTOP)
        self.done["stops"] += 1
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        self.go_on()

    def lose_disk(self) -> None:
        """One comes back with nothing."""
        self.whole()
        name = self.rng.choice(NAMES)
        self.servers.kill(name)
        self.go_on()
        shutil.rmtree(self.servers.home / name)
        self.servers.start(name)
        self.done["lost disks"] += 1
        self.whole()

    def garbage(self) -> None:
        """Somebody sends nonsense to all ports."""
        for line in self.servers.file.read_text().splitlines():
            if " = " in line and ":" in line:
                host, _, port = line.partition('"')[2].rstrip('"').partition(":")
                try:
                    with socket.create_connection((host, int(port)), 5.0) as raw:
                        raw.sendall(self.rng.randbytes(5_000))
                except OSError:
                    pass  # that one does not run, or has hung up
        self.done["garbage"] += 1

    def cut_one_way(self, seconds: float) -> None:
        """What one sends to another one does not arrive."""
        name, other = self.rng.sample(NAMES, 2)
        self.servers.cut(name, other, True)
        self.done["cuts"] += 1
        time.sleep(seconds)
        self.go_on()
        self.servers.cut(name, other, False)

    # -- the end -----------------------------------------------------------------------------------------------------

    def check(self) -> int:
        """Everybody has every confirmed command, once, where its writer was told; returns how many there are."""
        for each in self.writers:
            each.ends = True
        for each in self.writers:
            each.join(PATIENCE_S)
        total = self.confirmed()
        self.whole()
        digests = {name: self.chain.read(b"digest", server=name, timeout=PATIENCE_S) for name in NAMES}
        assert len(set(digests.values())) == 1, f"servers differ: {digests}"
        lines: list[bytes] = []
        while piece := msgspec.msgpack.decode(
            self.chain.read(b"%d" % len(lines), timeout=PATIENCE_S), type=list[bytes]
        ):
            lines += piece
        assert len(lines) == len(set(lines)) == total, f"{len(lines)} lines, {len(set(lines))} different ones, {total}"
        for writer in self.writers:
            for command, number in writer.confirmed:
                assert lines[number - 1] == command, (
                    f"{command!r} was confirmed as {number}, where {lines[number - 1]!r} is"
                )
            mine = [each for each in lines if each.startswith(b"%d-" % writer.who)]
            assert mine == [command for command, _ in writer.confirmed]
        return total

    def close(self) -> None:
        """End all."""
        for each in self.writers:
            each.ends = True
        self.chain.close()
        self.servers.close()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--net", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        soak = Soak(Servers(Path(home), net=given.net), given.seed)
        try:
            play(soak, given.kills)
        finally:
            soak.close()


def play(soak: Soak, kills: int) -> None:
    """Disturb it until so many servers were killed, and compare everything."""
    rng, begun = soak.rng, time.monotonic()
    others: list[Callable[[], None]] = [
        soak.kill_any, soak.kill_any, soak.kill_all, lambda: soak.stop(rng.random() * 5), lambda: soak.stop(5.0),
        soak.garbage, soak.lose_disk,
    ]  # fmt: skip
    if soak.servers.net:
        others.append(lambda: soak.cut_one_way(rng.random() * 3))
    turn = 0
    while soak.done["kills"] < kills:
        if rng.random() < 0.6:
            soak.kill_role(turn % len(NAMES))
            turn += 1
        else:
            rng.choice(others)()
        print(f"{dict(soak.done)}, {soak.confirmed():,} confirmed, {time.monotonic() - begun:.0f} s", flush=True)
    total = soak.check()
    print(f"{dict(soak.done)}: {total:,} commands confirmed, every one once at every server, byte for byte")
    for role in ("head", "middle", "tail"):
        found = sorted(pause for each, pause in soak.pauses if each == role) or [0.0]
        middle = found[len(found) // 2]
        print(f"pause after the death of the {role}: median {middle:.2f} s, worst {found[-1]:.2f} s")


if __name__ == "__main__":
    main()
