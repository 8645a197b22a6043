"""Through a forwarder: a producer, the forwarder, which stores all of it on the way, and a consumer.

Beside it, in the same run: ZeroMQ's own proxy between a publisher and a subscriber of frames, which keeps nothing; and
the direct way from a producer to a consumer, where nobody stores either.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.children import Children
from benchmarks.live import measure, members
from benchmarks.outcome import Line, per_second, times
from benchmarks.rounds import Pair, raw_proxied
from benchmarks.settings import Settings

RECORDS = 3_000_000
TARGET = 1e6


def _through(children: Children, directory: Path, *, acks: int) -> Pair:
    forwarder = children.member("forwarder", directory=str(directory))
    at = forwarder.hear()["forwarder"]
    sender = children.member("producer", forwarders=at, single=False, acks=acks)
    receiver = children.member("consumer", forwarders=at, single=False)
    sender.hear()
    receiver.hear()
    return Pair(sender, receiver, {"forwarder": forwarder}, durable=acks > 0)


def forwarding(settings: Settings) -> list[Line]:
    """Batches to Arrow: passed on, and passed on and stored."""
    with Children(settings.work / "forward") as children:
        passed = _through(children, settings.work / "passed", acks=0)
        stored = _through(children, settings.work / "stored", acks=1)
        direct = members(children, single=False)
        raw = raw_proxied(children)
        measure(settings, [(each, RECORDS) for each in (passed, stored, direct, raw)])
    frames = raw.rate()
    lines = []
    for pair, path in (
        (passed, "through a forwarder, batches to Arrow, until the consumer has all"),
        (stored, "the same, until all is on the forwarder's disk and acknowledged, too"),
        (direct, "the same without a forwarder, which stores nothing"),
    ):
        rate = pair.rate()
        target = None if pair is direct else TARGET
        lines.append(
            Line(
                path,
                str(rate),
                "" if target is None else f">= {per_second(target)}",
                f"ZeroMQ's proxy, 64 KiB frames: {frames}",
                times(rate.median / frames.median),
                None if target is None else rate.median >= target,
                rate.note(),
                {**rate.numbers("chappe"), **frames.numbers("raw_proxy")},
            )
        )
    return lines
