"""JSON lines through a store with fsync, compressed and not, in the same run."""

from __future__ import annotations

from benchmarks.children import Children
from benchmarks.outcome import Line, per_second, times
from benchmarks.rounds import Pair, tower
from benchmarks.settings import Settings
from benchmarks.stored import start_store

COUNT = 2_000_000
CODECS = (None, "zstd", "lz4")


def compressed(settings: Settings) -> list[Line]:
    """Lists to Arrow, until the store has them on disk and the consumer all of them; each codec in turn."""
    with Children(settings.work / "compressed") as children:
        pairs = {}
        for codec in CODECS:
            address = tower(children)
            store = start_store(children, settings, address, f"compressed-{codec}")
            sender = children.member("producer", tower=address, single=False, acks=1, compression=codec, lines=True)
            receiver = children.member("consumer", tower=address, single=False)
            sender.hear()
            receiver.hear()
            pairs[codec] = Pair(sender, receiver, {"store": store}, durable=True)
            pairs[codec].warm_up()
        for _ in range(settings.repeats):
            for pair in pairs.values():
                pair.round(settings.count(COUNT))
    plain = pairs[None].rate()
    lines = [Line("JSON lines, stored and read, not compressed", str(plain), note=plain.note())]
    for codec in CODECS[1:]:
        rate = pairs[codec].rate()
        ratio = rate.median / plain.median
        lines.append(
            Line(
                f"JSON lines, stored and read, {codec}",
                str(rate),
                ">= 1x of not compressed",
                f"not compressed: {per_second(plain.median)}",
                times(ratio),
                ratio >= 1,
                rate.note(),
                rate.numbers("chappe"),
            )
        )
    return lines
