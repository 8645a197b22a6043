"""What others with three servers do with the same commands, where they are installed: NATS JetStream and etcd."""

from __future__ import annotations

import base64
import http.client
import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import brokers
from benchmarks.children import Child, ChildFailed, Children
from benchmarks.link import RECORD_BYTES
from benchmarks.maps_rates import rate
from benchmarks.outcome import Rate
from benchmarks.rounds import Together
from benchmarks.settings import Settings

SERVERS = 3


@dataclass(frozen=True, slots=True)
class JetStream:
    """What NATS JetStream does; ``alone`` is a text for people, if there is one."""

    rate: tuple[str, Rate] | None
    alone: tuple[str, ...]


def nats_three(settings: Settings, work: Path, writers: int, window: int, count: int, lone: int) -> JetStream:
    """A stream of three replicas: records of many writers, and a lone one."""
    if settings.peer_python is None:
        return JetStream(None, ())
    peer_bin = str(Path(settings.peer_python).parent)
    try:
        with Children(work / "logs", settings.peer_python) as children:
            ports = brokers.nats_cluster(children, work, peer_bin, SERVERS)
            members = []
            for number in range(writers):
                options = {"port": ports[number % SERVERS], "window": window, "replicas": SERVERS}
                members.append(children.peer("jetstream", "producer", **options))
                members[-1].hear()
            found = rate(settings, partial(_together, members), count)
            p50 = members[0].ask(count=settings.count(lone) or 1, alone=True)["p50_ms"]
    except (brokers.Absent, ChildFailed) as error:
        return JetStream(None, (f"NATS JetStream skipped: {error}".replace("\n", " "),))
    return JetStream(("NATS JetStream, 3 replicas, not synced", found), (f"NATS JetStream, not synced: {p50:.2f} ms",))


def _together(members: list[Child], *, count: int) -> dict[str, Any]:
    together = Together(members)
    together.order(count=count // len(members))
    return together.hear()


def etcd_three(settings: Settings, work: Path, count: int) -> tuple[str, ...]:
    """A lone put to etcd over its HTTP gateway, as a text for people; nothing without ``--peer-python``."""
    if settings.peer_python is None:
        return ()
    try:
        with Children(work / "logs") as children:
            ports = brokers.etcd_cluster(children, work, SERVERS)
            return (f"etcd: {_put_alone(ports[0], settings.count(count) or 1):.2f} ms",)
    except (brokers.Absent, ChildFailed) as error:
        return (f"etcd skipped: {error}".replace("\n", " "),)


def _put_alone(port: int, count: int) -> float:
    """How long one put takes when there is no other, in the middle, in ms."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({key: base64.b64encode(bytes(RECORD_BYTES)).decode() for key in ("key", "value")})
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        connection.request("POST", "/v3/kv/put", body)
        answer = connection.getresponse()
        text = answer.read()
        took.append(1e3 * (time.perf_counter() - begun))
        if answer.status != http.client.OK:
            raise ChildFailed(f"etcd refuses a put: {text.decode(errors='replace')}")
    connection.close()
    return median(took)
