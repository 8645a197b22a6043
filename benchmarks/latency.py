"""How old a record is when the consumer's loop gets it, at a steady pace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import brokers
from benchmarks.children import Child, ChildFailed, Children
from benchmarks.outcome import Line, times
from benchmarks.rounds import tower
from benchmarks.settings import Settings
from benchmarks.stored import start_store

RATE = 10_000  # records a second
SLOW_RATE = 20  # every record finds everybody asleep
SECONDS = 5.0
WARM_UP_S = 1.0
P50_US = 200.0
P99_US = 1_000.0
NUMBERS = ("p50_us", "p99_us", "p999_us", "max_us", "rate", "sender_cpu_us", "receiver_cpu_us")
KEPT_RATE = 0.99  # of the rate wanted; a sender that falls behind measures something else


@dataclass(slots=True)
class Contestant:
    """A paced sender and its receiver."""

    name: str
    sender: Child
    receiver: Child
    found: list[dict[str, Any]] = field(default_factory=list)

    def round(self, rate: int, seconds: float) -> dict[str, Any]:
        """One round at a steady pace."""
        count = int(rate * seconds)
        self.receiver.order(count=count)
        sent = self.sender.ask(count=count, rate=rate)
        received = self.receiver.hear()
        cpu_us = {"sender_cpu_us": sent["cpu_s"] * 1e6 / count, "receiver_cpu_us": received["cpu_s"] * 1e6 / count}
        return {**received, **cpu_us}

    def middle(self, name: str) -> float:
        """The median of a number over the rounds."""
        return float(median(each[name] for each in self.found))

    def __str__(self) -> str:
        return f"{self.middle('p50_us'):.0f} / {self.middle('p99_us'):.0f} us"

    def cpu_us(self) -> str:
        """Processor time of both for a record."""
        return f"{self.middle('sender_cpu_us'):.0f} and {self.middle('receiver_cpu_us'):.0f}"

    def numbers(self) -> dict[str, float]:
        """All medians."""
        return {name: self.middle(name) for name in NUMBERS}


def chappe_paced(children: Children, settings: Settings, *, stored: bool) -> Contestant:
    """A producer and a consumer that have met, perhaps with a store."""
    address = tower(children)
    if stored:
        start_store(children, settings, address, "latency")
    sender = children.member("paced_producer", tower=address, acks=int(stored))
    receiver = children.member("timing_consumer", tower=address)
    sender.hear()
    receiver.hear()
    return Contestant("chappe with a store" if stored else "chappe", sender, receiver)


def _raw(children: Children) -> Contestant:
    sender = children.raw("paced_publisher", single=True)
    receiver = children.raw("timing_subscriber", single=True, endpoint=sender.hear()["endpoint"])
    receiver.hear()
    sender.hear()
    return Contestant("raw pyzmq", sender, receiver)


def _nats(children: Children, settings: Settings) -> Contestant:
    assert settings.peer_python is not None
    _, port = brokers.nats(children, settings.work / "nats-latency", str(Path(settings.peer_python).parent))
    receiver = children.peer("nats_core", "consumer", port=port)
    receiver.hear()
    sender = children.peer("nats_core", "producer", port=port)
    sender.hear()
    return Contestant("NATS core", sender, receiver)


def measure_alone(
    settings: Settings, start: Callable[[Children], Contestant], name: str, rate: int = RATE
) -> Contestant:
    """One contestant alone: a second one's idle timers would be in the way."""
    python = settings.peer_python or ""
    with Children(settings.work / f"latency-{name}-{rate}", python) as children:
        contestant = start(children)
        contestant.round(rate, WARM_UP_S)
        for _ in range(settings.repeats):
            contestant.found.append(contestant.round(rate, settings.seconds(SECONDS)))
        return contestant


def _line(rate: int, stored: bool, ours: Contestant, raw: Contestant, beside: str, note: str) -> Line:
    p50, p99 = ours.middle("p50_us"), ours.middle("p99_us")
    kept = ours.middle("rate") >= KEPT_RATE * rate
    notes = [
        f"p99.9 {ours.middle('p999_us'):.0f} us, largest {ours.middle('max_us') / 1000:.1f} ms",
        f"CPU us/record: sender and receiver {ours.cpu_us()}, raw {raw.cpu_us()}",
        "" if kept else f"only {ours.middle('rate'):.0f} records/s were reached",
        note,
    ]
    return Line(
        f"latency p50 / p99 at {rate:,} records/s, {'with' if stored else 'without'} a store",
        str(ours),
        f"< {P50_US:.0f} / {P99_US:.0f} us" if rate == RATE else "",
        beside,
        f"{times(p50 / raw.middle('p50_us'))} / {times(p99 / raw.middle('p99_us'))} of raw",
        (p50 < P50_US and p99 < P99_US and kept) if rate == RATE else None,
        "; ".join(each for each in notes if each),
        {**ours.numbers(), **{f"raw_{name}": value for name, value in raw.numbers().items()}},
    )


def _beside(settings: Settings) -> tuple[str, str]:
    """NATS core for the column of peers, and a note if it is not there."""
    if settings.peer_python is None:
        return "", ""
    try:
        return f"; NATS core: {measure_alone(settings, partial(_nats, settings=settings), 'nats')}", ""
    except (brokers.Absent, ChildFailed) as error:
        return "", f"NATS core skipped: {error}".replace("\n", " ")


def latency(settings: Settings) -> list[Line]:
    """chappe without and with a store, beside raw pyzmq and NATS; and at a pace that lets everybody sleep."""
    nats, skipped = _beside(settings)
    lines = []
    for rate, stores in ((RATE, (False, True)), (SLOW_RATE, (False,))):
        raw = measure_alone(settings, _raw, "raw", rate)
        for stored in stores:
            start = partial(chappe_paced, settings=settings, stored=stored)
            ours = measure_alone(settings, start, f"chappe-{int(stored)}", rate)
            beside = f"raw pyzmq: {raw}{nats if rate == RATE else ''}"
            lines.append(_line(rate, stored, ours, raw, beside, skipped if rate == RATE else ""))
    return lines
