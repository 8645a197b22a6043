"""Durable end to end, record by record, beside the best-known peers in the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import brokers
from benchmarks.children import Child, ChildFailed, Children
from benchmarks.outcome import Line, Rate, per_second, times
from benchmarks.rounds import Pair, tower
from benchmarks.settings import Settings
from benchmarks.stored import start_store

COUNT = 2_000_000
TARGET = 1e6
LEAD = 3.0
PEER_WARM_UP = 5_000
NO_SYNC = "acknowledges before fsync"


@dataclass(frozen=True, slots=True)
class Peer:
    """A system to compare with: how its server starts, the module of its clients, records of a round.

    ``options`` are of the clients: a peer with two ways to publish takes part with both.
    """

    name: str
    start: Callable[[Children, Path, str], tuple[Child, int]]
    module: str
    count: int
    sync: str
    options: Mapping[str, object] = field(default_factory=dict)


PEERS = (
    Peer("RabbitMQ streams", brokers.rabbitmq, "rabbitmq", 600_000, NO_SYNC, {"sub_entries": False}),
    Peer("RabbitMQ streams, sub-entries", brokers.rabbitmq, "rabbitmq", 1_200_000, NO_SYNC, {"sub_entries": True}),
    Peer("Redis Streams", brokers.redis, "redis_streams", 300_000, "fsync every second"),
    Peer("JetStream", brokers.nats, "jetstream", 60_000, NO_SYNC),
)


def _ours(settings: Settings) -> Rate:
    with Children(settings.work / "durable") as children:
        address = tower(children)
        store = start_store(children, settings, address, "durable")
        sender = children.member("producer", tower=address, single=True, acks=1)
        receiver = children.member("consumer", tower=address, single=True)
        sender.hear()
        receiver.hear()
        pair = Pair(sender, receiver, {"store": store}, durable=True)
        pair.warm_up()
        for _ in range(settings.repeats):
            pair.round(settings.count(COUNT))
        return pair.rate()


def _theirs(settings: Settings, python: str, peer: Peer) -> Rate:
    work = settings.work / peer.name.replace(" ", "-")
    with Children(work, python) as children:
        server, port = peer.start(children, work / "data", str(Path(python).parent))
        sender = children.peer(peer.module, "producer", port=port, **peer.options)
        sender.hear()
        receiver = children.peer(peer.module, "consumer", port=port, **peer.options)
        receiver.hear()
        pair = Pair(sender, receiver, {"server": server}, durable=True)
        pair.warm_up(PEER_WARM_UP)
        for _ in range(settings.repeats):
            pair.round(settings.count(peer.count))
        return pair.rate()


def _peers(settings: Settings) -> tuple[dict[str, Rate], list[Line]]:
    """Rates of the peers that are there, and a line for each."""
    rates: dict[str, Rate] = {}
    lines = []
    for peer in PEERS:
        title = f"peer: {peer.name}, end to end"
        if settings.peer_python is None:
            lines.append(Line(title, "skipped", note="no --peer-python given"))
            continue
        try:
            rate = rates[peer.name] = _theirs(settings, settings.peer_python, peer)
        except (brokers.Absent, ChildFailed) as error:
            lines.append(Line(title, "skipped", note=str(error).replace("\n", " ")))
            continue
        lines.append(Line(title, str(rate), note=f"{peer.sync}; {rate.note()}", numbers=rate.numbers("peer")))
    return rates, lines


def durable(settings: Settings) -> list[Line]:
    """Producer, store with fsync and consumer at once."""
    rate = _ours(settings)
    peers, lines = _peers(settings)
    beside, ratio, met = "no peer is installed", "", rate.median >= TARGET
    if peers:
        name = max(peers, key=lambda each: peers[each].median)
        lead = rate.median / peers[name].median
        beside, ratio, met = f"{name}: {peers[name]}", times(lead), met and lead >= LEAD
    target = f">= {per_second(TARGET)}, >= {LEAD:g}x the best peer"
    title = "durable end to end, a loop over records on both sides, fsync before acknowledgement"
    return [Line(title, str(rate), target, beside, ratio, met, rate.note(), rate.numbers("chappe")), *lines]
