"""Redis Streams through redis-py with hiredis: pipelines of XADD, XREAD of many entries."""

from __future__ import annotations

import json
import sys
from typing import Any

import redis  # type: ignore[import-not-found,unused-ignore]

from benchmarks.link import Meter, lists, orders, say, tether

STREAM = "benchmark"
PIPELINE = 1_000  # XADDs of one round trip
READ = 5_000  # entries of one XREAD at most
WAIT_MS = 1_000


def producer(client: Any) -> None:
    say(ready=True)
    for order in orders():
        meter = Meter()
        for values in lists(order["count"]):
            for start in range(0, len(values), PIPELINE):
                pipeline = client.pipeline(transaction=False)
                for value in values[start : start + PIPELINE]:
                    pipeline.execute_command("XADD", STREAM, "*", "v", value)
                pipeline.execute()
        say(**meter.facts())


def consumer(client: Any) -> None:
    last: bytes | str = "0"
    size = ahead = 0
    say(ready=True)
    for order in orders():
        meter = Meter()
        got = ahead
        while got < order["count"]:
            for _, entries in _entries(client.xread({STREAM: last}, count=READ, block=WAIT_MS)):
                for _, fields in entries:
                    size += len(fields[b"v"])
                    got += 1
                last = entries[-1][0]
        ahead = got - order["count"]
        say(bytes=size, **meter.facts())


def _entries(answer: Any) -> Any:
    """Streams and their entries, from either form of the protocol."""
    return answer.items() if isinstance(answer, dict) else answer


if __name__ == "__main__":
    tether()
    options: dict[str, Any] = json.loads(sys.argv[2])
    role = {"producer": producer, "consumer": consumer}[sys.argv[1]]
    role(redis.Redis("127.0.0.1", options["port"]))
