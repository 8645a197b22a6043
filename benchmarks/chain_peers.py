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
BATCHES_AHEAD = 200_000  # records under way where they go in batches
GATHER_MS = 1  # Kafka's writers gather so long, as ours gather between two turns: with 0 it does a tenth


@dataclass(frozen=True, slots=True)
class Beside:
    """What somebody else does; of what was not measured there is nothing."""

    single: tuple[str, Rate] | None = None
    batched: tuple[str, Rate] | None = None
    alone: str = ""  # for people


def nats_three(settings: Settings, work: Path, writers: int, window: int, count: int, lone: int) -> Beside:
    """A stream of three replicas: records of many writers, and a lone one."""
    if settings.peer_python is None:
        return Beside()
    what = "NATS JetStream, 3 replicas, not synced"
    try:
        with Children(work / "logs", settings.peer_python) as children:
            ports = brokers.nats_cluster(children, work, str(Path(settings.peer_python).parent), SERVERS)
            members = []
            for number in range(writers):
                options = {"port": ports[number % SERVERS], "window": window, "replicas": SERVERS}
                members.append(children.peer("jetstream", "producer", **options))
                members[-1].hear()
            found = rate(settings, partial(_together, members), count)
            return Beside((what, found), None, f"{what}: {_alone(settings, members[0], lone)}")
    except (brokers.Absent, ChildFailed) as error:
        return Beside(alone=_skipped("NATS JetStream", error))


def kafka_three(
    settings: Settings, work: Path, writers: int, window: int, count: int, batched: int, lone: int
) -> Beside:
    """A topic of three replicas, all of which have a record before it is confirmed: as it comes, and in batches."""
    if settings.peer_python is None or settings.kafka is None:
        return Beside()
    what = "Kafka, 3 replicas, acks=all, not synced"
    try:
        with Children(work / "logs", settings.peer_python) as children:
            _, ports = brokers.kafka_cluster(children, work, settings.kafka, SERVERS)
            one = children.peer("kafka", "producer", ports=ports, window=BATCHES_AHEAD, linger_ms=5)
            one.hear()
            batches = rate(settings, one.ask, batched)
            options = {"ports": ports, "window": window}
            members = [children.peer("kafka", "producer", **options, linger_ms=GATHER_MS) for _ in range(writers)]
            single = children.peer("kafka", "producer", **options, linger_ms=0)
            for each in (*members, single):
                each.hear()
            found = rate(settings, partial(_together, members), count)
            return Beside((what, found), (what, batches), f"{what}: {_alone(settings, single, lone)}")
    except (brokers.Absent, ChildFailed) as error:
        return Beside(alone=_skipped("Kafka", error))


def _together(members: list[Child], *, count: int) -> dict[str, Any]:
    together = Together(members)
    together.order(count=count // len(members))
    return together.hear()


def _alone(settings: Settings, member: Child, count: int) -> str:
    return f"{member.ask(count=settings.count(count) or 1, alone=True)['p50_ms']:.2f} ms"


def _skipped(what: str, error: Exception) -> str:
    return f"{what} skipped: {error}".replace("\n", " ")


def etcd_three(settings: Settings, work: Path, count: int) -> Beside:
    """A lone put to etcd over its HTTP gateway; nothing without ``--peer-python``."""
    if settings.peer_python is None:
        return Beside()
    try:
        with Children(work / "logs") as children:
            ports = brokers.etcd_cluster(children, work, SERVERS)
            return Beside(alone=f"etcd, synced: {_put_alone(ports[0], settings.count(count) or 1):.2f} ms")
    except (brokers.Absent, ChildFailed) as error:
        return Beside(alone=_skipped("etcd", error))


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
