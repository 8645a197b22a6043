"""Stores of a chain, in processes that can be killed, and what they have."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until

from chappe import Chain, ChainConfiguration, read_topic
from chappe.errors import TimedOut, UnknownTopic

PROGRAM = Path(__file__).with_name("ordered_store_process.py")
NAMES = "abc"


class StoreProcess:
    """One life after the other of a store, in one directory."""

    def __init__(self, directory: Path, configuration: ChainConfiguration, name: str, tower: str) -> None:
        self.name = name
        self.directory = directory
        self._command = [
            sys.executable, str(PROGRAM), str(directory), json.dumps(dict(configuration.servers)), name, tower,
        ]  # fmt: skip
        self.endpoint = ""

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def started(self) -> None:
        """Wait until it runs."""
        assert self.process.stdout is not None
        self.endpoint = self.process.stdout.readline().strip()
        assert self.endpoint, f"the store {self.name} did not start: see what it wrote"

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def ended(self) -> None:
        """End it, if it has not ended."""
        if self.process.poll() is None:
            self.kill()

    def signal(self, what: signal.Signals) -> None:
        self.process.send_signal(what)

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()


class Stores:
    """All stores of a chain."""

    def __init__(self, home: Path, tower: str) -> None:
        first = free_ports(len(NAMES))
        self.configuration = ChainConfiguration(
            {name: f"127.0.0.1:{port}" for port, name in enumerate(NAMES, first)}, name="orders"
        )
        self.tower = tower
        self.of = {name: StoreProcess(home / name, self.configuration, name, tower) for name in NAMES}

    def members(self, chain: Chain) -> tuple[str, ...]:
        """Who is in the chain, head first, as the newest configuration says that anybody knows."""
        found = [each for each in chain.status().values() if each is not None]
        return max(found, key=lambda each: each.number).members if found else ()

    def whole(self, chain: Chain) -> bool:
        return set(self.members(chain)) == set(NAMES)

    def contents(self, name: str, topic: str, records: int) -> dict[str, list[bytes | None]]:
        """All values that one store has of a topic, by partition, once it has so many."""
        found: dict[str, list[bytes | None]] = {}

        def read() -> bool:
            found.clear()
            try:
                table = read_topic(topic, stores=self.of[name].endpoint, columns=["partition", "offset", "value"])
            except (UnknownTopic, TimedOut):
                return False
            for record in table.to_pylist():
                part = found.setdefault(record["partition"], [])
                assert record["offset"] == len(part)
                part.append(record["value"])
            return sum(map(len, found.values())) >= records

        until(read, lambda: f"{sum(map(len, found.values()))} of {records} records at {name}")
        return found


@contextmanager
def serving(home: Path, tower: str) -> Iterator[Stores]:
    """A chain of three stores that is whole."""
    made = Stores(home, tower)
    with ExitStack() as stack:
        for each in made.of.values():
            each.start()
            stack.callback(each.ended)
        for each in made.of.values():
            each.started()
        with Chain(made.configuration) as chain:
            until(lambda: made.whole(chain))
        yield made
