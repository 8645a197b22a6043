"""Members of a group, each a process, that are killed and stopped while producers write; and a store that is killed.

In the end every record was done at least once, and each partition has one reader.
By hand: ``python -m tests.api.group_soak --kills 100``.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from tests.waiting import until

from chappe import Producer, Store, Tower
from chappe.api.log.discovery import discover
from chappe.data.topic import Filter
from chappe.reading.groups import ConsumerGroups, GroupStatus
from chappe.reading.selection import Selection
from chappe.reading.view import StoresView

MEMBER: Final = Path(__file__).with_name("group_member.py")
PRODUCERS: Final = 12
PAUSE_S: Final = 1.5  # between two faults


class Soak:
    """A tower, a store, producers, and processes that share the reading.

    Args:
        home: For all files.
        seed: What is killed when.
    """

    def __init__(self, home: Path, stack: ExitStack, seed: int) -> None:
        self._home, self._rng = home, random.Random(seed)
        self.tower = stack.enter_context(Tower("127.0.0.1:0")).address
        self.store = stack.enter_context(Store(home / "store", tower=self.tower))
        self._producers = [stack.enter_context(Producer("numbers", tower=self.tower)) for _ in range(PRODUCERS)]
        self._members: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self.sent = 0
        self.stopped: list[subprocess.Popen[bytes]] = []
        stack.callback(self._end)

    def member(self) -> None:
        """Start one more."""
        self._started += 1
        out = self._home / f"done{self._started}"
        self._members.append(subprocess.Popen([sys.executable, str(MEMBER), self.tower, str(out)]))

    def send(self, count: int) -> None:
        for number in range(count):
            self._producers[number % PRODUCERS].send(str(self.sent))
            self.sent += 1

    def kill(self) -> str:
        """Do something to one of the members, and have 3 to 8 of them."""
        victim = self._rng.choice(self._members)
        what = self._rng.choice(("kill", "kill", "term", "stop"))
        if what == "stop":
            victim.send_signal(signal.SIGSTOP)
            self.stopped.append(victim)
        else:
            victim.send_signal(signal.SIGKILL if what == "kill" else signal.SIGTERM)
            victim.send_signal(signal.SIGCONT)
            victim.wait()
            self._members.remove(victim)
            self.stopped = [each for each in self.stopped if each is not victim]
        while self.stopped and (len(self.stopped) > 1 or self._rng.random() < 0.2):
            self.stopped.pop(0).send_signal(signal.SIGCONT)
        while len(self._members) < self._rng.randint(3, 8):
            self.member()
        return what

    def go_on(self) -> None:
        """Have all go on that were stopped."""
        while self.stopped:
            self.stopped.pop().send_signal(signal.SIGCONT)

    def done(self) -> Counter[str]:
        """How often each record was done."""
        lines: Counter[str] = Counter()
        for each in self._home.glob("done*"):
            lines.update(line for line in each.read_text().splitlines(keepends=True) if line.endswith("\n"))
        return lines

    def status(self) -> GroupStatus:
        endpoints = [each.endpoint for each in discover(tower=self.tower)]
        with closing(StoresView(Selection((Filter("", prefix=True),)), endpoints)) as view:
            view.refresh()
            return ConsumerGroups(view).status("soak", ages=False)

    def _end(self) -> None:
        for each in self._members:
            each.kill()
            each.wait()


def run(home: Path, kills: int, seed: int = 0) -> tuple[int, int, Counter[str]]:
    """Play so many faults; returns the records, how many were done again, and what was done to members."""
    faults: Counter[str] = Counter()
    with ExitStack() as stack:
        soak = Soak(home, stack, seed)
        for _ in range(3):
            soak.member()

        def reads() -> bool:
            soak.send(PRODUCERS)
            return bool(soak.done())

        until(reads, "no member reads")
        for _ in range(kills):
            end = time.monotonic() + PAUSE_S
            while time.monotonic() < end:
                soak.send(PRODUCERS)
                time.sleep(0.01)
            faults[soak.kill()] += 1
        soak.go_on()
        until(lambda: len(soak.done()) >= soak.sent, lambda: f"{len(soak.done())} of {soak.sent} records are done")
        until(lambda: all(each.lag == 0 and each.member for each in soak.status().positions), "the lag stays")
        done = soak.done()
        return soak.sent, sum(done.values()) - len(done), faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        sent, again, faults = run(Path(home), options.kills, options.seed)
    print(f"{sent:,} records, each done; {again:,} done again ({again / sent:.1%}); {dict(faults)}")


if __name__ == "__main__":
    main()
