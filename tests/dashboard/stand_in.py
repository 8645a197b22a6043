"""A dashboard over stand-ins: a thousand members and a hundred thousand topics, which nobody has to start.

``python -m tests.dashboard.stand_in`` prints its address and goes on until its standard input ends. With ``slow`` it
has one source alone, whose first look ends with the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Final

from chappe.dashboard.entries import Entries
from chappe.dashboard.leases import Leases
from chappe.dashboard.looks import Looks
from chappe.dashboard.server import serve, url
from chappe.dashboard.sources import DashboardSource
from chappe.dashboard.watching import SourceRunner
from chappe.observing.snapshot import (
    ObservedLag,
    ObservedLink,
    ObservedMember,
    ObservedPart,
    ObservedPipeline,
    ObservedQuery,
    ObservedReader,
    ObservedStore,
    ObservedTopic,
)
from chappe.web.connections import listening

MEMBERS: Final = 1_000
TOPICS: Final = 100_000
ENDED: Final = threading.Event()


class Crowd:
    """A source."""

    name = "crowd"
    mend = ""

    def __init__(self) -> None:
        self._looks = 0

    def look(self) -> ObservedPart:
        self._looks += 1
        endpoints = [ObservedMember(f"e{n}", "endpoint", f"e{n}", f"10.0.0.{n % 5}:9999") for n in range(MEMBERS - 7)]
        others = [
            ObservedMember("t", "tower", "tower"),
            ObservedMember(f"v{self._looks}", "producers", "produce"),  # another one at each look
            *(ObservedMember(f"s{n}", "store", f"s{n}") for n in range(3)),
            ObservedMember("chain ledger a", "chain server", "a", "10.0.1.1:1", "head", facts=(("chain", "ledger"),)),
            ObservedMember(
                "chain ledger b", "chain server", "b", "10.0.1.2:1", "tail", facts=(("commands behind", "7"),)
            ),
        ]
        links = [
            ObservedLink((f"e{n}", f"s{n % 3}"), "mesh", 100 * self._looks, 50 * self._looks)
            for n in range(MEMBERS - 7)
        ]
        everything = range(TOPICS) if self._looks == 1 else range(100)
        topics = [
            ObservedTopic(
                f"topic-{n:06}", 1, 9, 10 * self._looks + n, 900, readers=(ObservedReader("team", "group", n),)
            )
            for n in everything
        ]
        query = ObservedQuery(
            "windows",
            7,
            batch_rows=500,
            batch_s=1.5,
            rows_in_s=250.0,
            rows_processed_s=240.0,
            late_rows=3,
            state_rows=1_000,
            state_bytes=65_536,
            lag=(ObservedLag("windows", 1_234, 2.5),),
        )
        pipeline = ObservedPipeline(
            "<i>flow</i>", "running", 1, "2026-01-01T00:00:00Z", "now", "/p.toml", queries=(query,)
        )
        chain = ObservedStore("chain", "ledger", ("chain ledger a",), ("chain ledger b",), note="a > b")
        return ObservedPart(
            (*others, *endpoints), tuple(links), tuple(topics), keepings=(chain,), pipelines=(pipeline,)
        )

    def close(self) -> None:
        """Nothing to close."""


class Slow:
    """A source that sees nothing for long."""

    name = "log"
    mend = ""

    def look(self) -> ObservedPart:
        ENDED.wait()
        return ObservedPart()

    def close(self) -> None:
        """Nothing to close."""


def main(*, slow: bool) -> None:
    """Serve it."""
    leases = Leases()
    source: DashboardSource = Slow() if slow else Crowd()
    with SourceRunner([source]) as watching, listening("127.0.0.1", 0) as listener:
        looks = Looks(watching, None, None, Entries(None, {}, leases), leases)
        port = listener.getsockname()[1]
        with suppress(KeyboardInterrupt):
            serve(looks, listener, None, lambda: print(url("127.0.0.1", port, None), flush=True))
    leases.close()


def end_with_input() -> None:
    sys.stdin.buffer.read()
    ENDED.set()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_with_input, daemon=True).start()
    main(slow="slow" in sys.argv[1:])
