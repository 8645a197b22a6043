"""Chains of servers in one process, with a machine that remembers everything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from tests.ports import free_ports

from chappe import ChainConfiguration, ChainServer


class Ledger:
    """Keeps all commands, in order; answers with how many there are."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def apply(self, command: bytes) -> bytes:
        """Keep it."""
        if command == b"refuse":
            raise ValueError("that is refused")
        self.lines.append(command)
        return b"%d" % len(self.lines)

    def read(self, query: bytes) -> bytes:
        """How many there are, or all."""
        return self.snapshot() if query == b"all" else b"%d" % len(self.lines)

    def snapshot(self) -> bytes:
        """All."""
        return msgspec.msgpack.encode(self.lines)

    def restore(self, state: bytes) -> None:
        """Be as then."""
        self.lines = msgspec.msgpack.decode(state, type=list[bytes])


def new_configuration(names: str = "abc", **options: Any) -> ChainConfiguration:
    """With addresses of this process's own."""
    first = free_ports(len(names))
    return ChainConfiguration(
        {name: f"127.0.0.1:{port}" for port, name in enumerate(names, first)}, name="orders", **options
    )


class Servers:
    """Those of one chain, by name."""

    def __init__(self, configuration: ChainConfiguration, home: Path | None, **options: Any) -> None:
        self.configuration = configuration
        self.home = home
        self.options = options
        self.machines: dict[str, Ledger] = {}
        self.running: dict[str, ChainServer] = {}

    def start(self, name: str) -> ChainServer:
        """Begin a life of a server."""
        self.machines[name] = Ledger()
        directory = None if self.home is None else self.home / name
        made = ChainServer(self.machines[name], self.configuration, name, directory=directory, **self.options)
        self.running[name] = made
        return made

    def stop(self, name: str) -> None:
        """End it in good order."""
        self.running.pop(name).close()

    def stop_all(self) -> None:
        """End all that run."""
        for each in list(self.running):
            self.stop(each)

    def members(self) -> set[tuple[str, ...]]:
        """Who is a member, by each server."""
        return {each.status().members for each in self.running.values()}

    def whole(self) -> bool:
        """Whether all are members, and all have the same."""
        statuses = [each.status() for each in self.running.values()]
        return (
            {frozenset(each.members) for each in statuses} == {frozenset(self.configuration.names)}
            and len({each.committed for each in statuses}) == 1
            and all(each.committed == each.end for each in statuses)
        )

    def states(self) -> set[bytes]:
        """Of all machines; one, if they are the same."""
        return {self.machines[name].snapshot() for name in self.running}


@contextmanager
def serving(configuration: ChainConfiguration, home: Path | None, **options: Any) -> Iterator[Servers]:
    """All servers of a chain."""
    made = Servers(configuration, home, **options)
    with ExitStack() as stack:
        for name in configuration.names:
            made.start(name)
        stack.callback(made.stop_all)
        yield made
