"""One server of a chain in a process of its own, with a machine that keeps every line, and a short log."""

from __future__ import annotations

import functools
import hashlib
import signal
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from chappe import ChainConfiguration, ChainServer
from chappe.api.chain import server
from chappe.limits import CHAIN_LIMITS


class Lines:
    """Keeps all commands; answers with the number of each, and with what there is in pieces."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def apply(self, command: bytes) -> bytes:
        """One more."""
        self.lines.append(command)
        return b"%d" % len(self.lines)

    def read(self, query: bytes) -> bytes:
        """``digest``: how many there are, and a hash over the state; else the lines from a number on, some thousand."""
        if query == b"digest":
            return b"%d " % len(self.lines) + hashlib.sha256(self.snapshot()).hexdigest().encode()
        first = int(query)
        return msgspec.msgpack.encode(self.lines[first : first + 10_000])

    def snapshot(self) -> bytes:
        """All."""
        return msgspec.msgpack.encode(self.lines)

    def restore(self, state: bytes) -> None:
        """Be as then."""
        self.lines = msgspec.msgpack.decode(state, type=list[bytes])


def main(file: str, name: str, directory: str, log_bytes: str) -> None:
    """Serve until SIGTERM."""
    limits = replace(CHAIN_LIMITS, log_bytes=int(log_bytes))
    vars(server)["Core"] = functools.partial(vars(server)["Core"], limits=limits)
    with ChainServer(Lines(), ChainConfiguration.load(file), name, directory=Path(directory), security="plain") as made:
        print("serves", flush=True)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
        made.close()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(*sys.argv[1:])
