"""How old a record is when the consumer's loop gets it, at a steady pace; from when it was due at its sender.

A store does not stand in a record's way: it and the consumer get it at the same time, so consumers see records before
they are on disk. What a store costs the others is the processors and the disk that all of them share.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import brokers
from benchmarks.children import Child, ChildFailed, Children
from benchmarks.outcome import CPU, Line, times
from benchmarks.rounds import tower
from benchmarks.settings import Settings
from benchmarks.stored import start_store

RATE = 10_000  # records a second
SLOW_RATES = (1_000, 20)  # at the latter every record finds everybody asleep
SECONDS = 5.0
WARM_UP_S = 1.0
P50_US = 200.0
P99_US = 1_000.0
RAW_TIMES = 2.0  # p50 at slow rates, of what raw ZeroMQ takes
STORE_TIMES = 1.2, 1.5  # p50 and p99 with a store, of those without one
MEMORY = Path("/dev/shm")  # a file system in memory
SYNC_S = 0.05  # how much longer each sync of a slow disk takes
NUMBERS = ("p50_us", "p99_us", "p999_us", "max_us", "rate")
KEPT_RATE = 0.99  # of the rate wanted; a sender that falls behind measures something else
RAW = "raw pyzmq"
WITHOUT = "without a store"
STORED = "records that a store has on its disk (stored=True)"
STORED_TIMES = 10.0, math.inf  # p50, of the same with records as they are published: a sync and two hops more
EARLY = "a consumer sees records before they are on disk"


@dataclass(slots=True)
class Contestant:
    """A paced sender and its receiver, and what else takes processor time for their records."""

    name: str
    sender: Child
    receiver: Child
    servers: dict[str, Child] = field(default_factory=dict)
    found: list[dict[str, Any]] = field(default_factory=list)

    def round(self, rate: int, seconds: float) -> dict[str, Any]:
        """One round at a steady pace."""
        count = int(rate * seconds)
        before = {name: child.cpu_s() for name, child in self.servers.items()}
        self.receiver.order(count=count)
        sent = self.sender.ask(count=count, rate=rate)
        received = self.receiver.hear()
        cpu_s = {"sender": sent["cpu_s"], "receiver": received["cpu_s"]}
        cpu_s |= {name: child.cpu_s() - before[name] for name, child in self.servers.items()}
        return {**received, "cpu_us": {name: 1e6 * seconds / count for name, seconds in cpu_s.items()}}

    def middle(self, name: str) -> float:
        """The median of a number over the rounds."""
        return float(median(each[name] for each in self.found))

    def __str__(self) -> str:
        return f"{self.middle('p50_us'):.0f} / {self.middle('p99_us'):.0f} us"

    def cpu_us(self) -> dict[str, float]:
        """Processor time of each process for a record, the median over the rounds."""
        return {name: median(each["cpu_us"][name] for each in self.found) for name in self.found[0]["cpu_us"]}

    def cpu(self) -> str:
        """The same for people."""
        return ", ".join(f"{name} {us:.0f}" for name, us in self.cpu_us().items())

    def numbers(self, whose: str = "chappe") -> dict[str, float]:
        """All medians, for ``Line.numbers``."""
        prefix = "" if whose == "chappe" else f"{whose}_"
        medians = {f"{prefix}{name}": self.middle(name) for name in NUMBERS}
        return medians | {f"{whose}{CPU}{name}": us for name, us in self.cpu_us().items()}


def chappe_paced(
    children: Children,
    settings: Settings,
    *,
    stored: bool,
    where: Path | None = None,
    sync_s: float = 0.0,
    awaits: bool = False,
) -> Contestant:
    """A producer and a consumer that have met, perhaps with a new store, whose syncs may be slow.

    Args:
        where: The store lies in there; in the run's directory by default.
        awaits: Whether the consumer takes only what the store has on its disk.
    """
    address = tower(children)
    servers = {}
    if stored:
        directory = tempfile.mkdtemp(prefix="store-", dir=where or settings.work)
        servers["store"] = start_store(children, settings, address, "latency", directory=directory, sync_s=sync_s)
    sender = children.member("paced_producer", tower=address, acks=int(stored))
    receiver = children.member("timing_consumer", tower=address, stored=awaits)
    sender.hear()
    receiver.hear()
    return Contestant("chappe with a store" if stored else "chappe", sender, receiver, servers)


def _raw(children: Children) -> Contestant:
    sender = children.raw("paced_publisher", single=True)
    receiver = children.raw("timing_subscriber", single=True, endpoint=sender.hear()["endpoint"])
    receiver.hear()
    sender.hear()
    return Contestant(RAW, sender, receiver)


def _nats(children: Children, settings: Settings) -> Contestant:
    assert settings.peer_python is not None
    _, port = brokers.nats(children, settings.work / "nats-latency", str(Path(settings.peer_python).parent))
    receiver = children.peer("nats_core", "consumer", port=port)
    receiver.hear()
    sender = children.peer("nats_core", "producer", port=port)
    sender.hear()
    return Contestant("NATS core", sender, receiver)


Start = Callable[[Children], Contestant]


def measure_alone(
    settings: Settings, start: Start, name: str, rate: int = RATE, rounds: int | None = None
) -> Contestant:
    """One contestant alone: a second one's idle timers would be in the way."""
    python = settings.peer_python or ""
    with Children(settings.work / f"latency-{name}-{rate}", python) as children:
        contestant = start(children)
        contestant.round(rate, WARM_UP_S)
        for _ in range(settings.repeats if rounds is None else rounds):
            contestant.found.append(contestant.round(rate, settings.seconds(SECONDS)))
        return contestant


def measure_in_turn(settings: Settings, starts: Mapping[str, Start], rate: int) -> dict[str, Contestant]:
    """Several, each alone, one round of each after the other: so a busy moment of the machine meets all of them."""
    measured: dict[str, Contestant] = {}
    for turn in range(settings.repeats):
        for name, start in starts.items():
            each = measure_alone(settings, start, f"{name.replace(' ', '-')}-{turn}", rate, rounds=1)
            if name in measured:
                measured[name].found += each.found
            else:
                measured[name] = each
    return measured


@dataclass(frozen=True, slots=True)
class Beside:
    """What a contestant is compared with, and how many times as long p50 and p99 may take; infinity for no bound."""

    name: str
    contestant: Contestant
    times: tuple[float, float] = (math.inf, math.inf)

    def target(self) -> str:
        """The bounds for people."""
        bounds = zip(("p50", "p99"), self.times, strict=True)
        return ", ".join(f"{name} <= {most:g}x of {self.name}" for name, most in bounds if most < math.inf)


def _line(rate: int, what: str, ours: Contestant, beside: Beside, also: str = "", note: str = "") -> Line:
    p50, p99 = ours.middle("p50_us"), ours.middle("p99_us")
    other = beside.contestant
    ratios = p50 / other.middle("p50_us"), p99 / other.middle("p99_us")
    kept = ours.middle("rate") >= KEPT_RATE * rate
    within = kept and all(ratio <= most for ratio, most in zip(ratios, beside.times, strict=True))
    target = beside.target()
    if not target:
        target, within = f"< {P50_US:.0f} / {P99_US:.0f} us", p50 < P50_US and p99 < P99_US and kept
    notes = [
        f"p99.9 {ours.middle('p999_us'):.0f} us, largest {ours.middle('max_us') / 1000:.1f} ms",
        f"CPU us/record: {ours.cpu()}; {beside.name}: {other.cpu()}",
        "" if kept else f"only {ours.middle('rate'):.0f} records/s were reached",
        note,
    ]
    return Line(
        f"latency p50 / p99 at {rate:,} records/s, {what}",
        str(ours),
        target,
        f"{beside.name}: {other}{also}",
        f"{times(ratios[0])} / {times(ratios[1])}",
        within,
        "; ".join(each for each in notes if each),
        {**ours.numbers(), **other.numbers("beside")},
    )


def _nats_beside(settings: Settings) -> tuple[str, str]:
    """NATS core for the column of peers, and a note if it is not there."""
    if settings.peer_python is None:
        return "", ""
    try:
        return f"; NATS core: {measure_alone(settings, partial(_nats, settings=settings), 'nats')}", ""
    except (brokers.Absent, ChildFailed) as error:
        return "", f"NATS core skipped: {error}".replace("\n", " ")


def latency(settings: Settings) -> list[Line]:
    """chappe beside raw pyzmq and NATS; with stores beside without; and at paces that let everybody sleep."""
    also, note = _nats_beside(settings)
    plain = partial(chappe_paced, settings=settings, stored=False)
    starts: dict[str, Start] = {RAW: _raw, WITHOUT: plain, "with a store": partial(plain, stored=True)}
    with ExitStack() as stack:
        if MEMORY.is_dir():
            where = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chappe-benchmarks-", dir=MEMORY)))
            starts["with a store in memory"] = partial(plain, stored=True, where=where)
        slow = f"with a store whose syncs take {SYNC_S * 1000:.0f} ms longer"
        starts[slow] = partial(plain, stored=True, sync_s=SYNC_S)
        found = measure_in_turn(settings, starts, RATE)
    lines = [_line(RATE, WITHOUT, found[WITHOUT], Beside(RAW, found[RAW]), also, note)]
    beside = Beside(WITHOUT, found[WITHOUT], STORE_TIMES)
    lines += [_line(RATE, what, found[what], beside, note=EARLY) for what in list(starts)[2:]]
    for rate in SLOW_RATES:
        found = measure_in_turn(settings, {RAW: _raw, WITHOUT: plain}, rate)
        lines.append(_line(rate, WITHOUT, found[WITHOUT], Beside(RAW, found[RAW], (RAW_TIMES, math.inf))))
    return [*lines, _stored_line(settings)]


def _stored_line(settings: Settings) -> Line:
    """A consumer that waits for the store's disk beside one that does not, both with a store."""
    rate, published = SLOW_RATES[0], "with a store"
    plain = partial(chappe_paced, settings=settings, stored=True)
    found = measure_in_turn(settings, {published: plain, "stored": partial(plain, awaits=True)}, rate)
    return _line(rate, STORED, found["stored"], Beside(published, found[published], STORED_TIMES))
