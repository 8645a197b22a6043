"""Producer to one consumer without a store: batches to Arrow, and a loop over single records."""

from __future__ import annotations

from benchmarks.children import Children
from benchmarks.outcome import Line, per_second, times
from benchmarks.rounds import Pair, raw_pair, tower
from benchmarks.settings import Settings

BATCHES = 5_000_000
SINGLES = 2_000_000
RAW_SINGLES = 1_000_000
BATCHES_TARGET = 5e6
SINGLES_TARGET = 1e6
TABLES_SHARE = 0.6
RAW_SHARE = 1 / 3


def members(children: Children, *, single: bool, arrow: bool = False) -> Pair:
    """A producer, perhaps of Arrow tables, and a consumer that have met."""
    address = tower(children)
    sender = children.member("producer", tower=address, single=single, arrow=arrow, acks=0)
    receiver = children.member("consumer", tower=address, single=single)
    sender.hear()
    receiver.hear()
    return Pair(sender, receiver)


def measure(settings: Settings, pairs: list[tuple[Pair, int]]) -> None:
    """Rounds of all pairs in turn, so that a busy moment of the machine meets all of them."""
    for pair, _ in pairs:
        pair.warm_up()
    for _ in range(settings.repeats):
        for pair, count in pairs:
            pair.round(settings.count(count))


def batches(settings: Settings) -> list[Line]:
    """Tables and lists to Arrow, beside raw frames of the same bytes and raw single messages."""
    with Children(settings.work / "batches") as children:
        tables = members(children, single=False, arrow=True)
        ours = members(children, single=False)
        frames = raw_pair(children, single=False)
        singles = raw_pair(children, single=True)
        measure(settings, [(tables, BATCHES), (ours, BATCHES), (frames, BATCHES), (singles, RAW_SINGLES)])
    raw, single = frames.rate(), singles.rate()
    lines = []
    for rate, what, share in (
        (tables.rate(), "Arrow to Arrow", TABLES_SHARE),
        (ours.rate(), "lists to Arrow", RAW_SHARE),
    ):
        ratio = rate.median / raw.median
        lines.append(
            Line(
                f"produce to one consumer, {what}",
                str(rate),
                f">= {per_second(BATCHES_TARGET)}, >= {share:.2g}x of raw frames",
                f"raw pyzmq, 64 KiB frames: {raw}",
                times(ratio),
                rate.median >= BATCHES_TARGET and ratio >= share,
                rate.note(),
                {**rate.numbers("chappe"), **raw.numbers("raw_frames")},
            )
        )
    rate = ours.rate()
    return [
        *lines,
        Line(
            "the same, beside single messages",
            str(rate),
            "",
            f"raw pyzmq, 100-byte messages: {single}",
            times(rate.median / single.median),
            None,
            f"raw: {single.note()}",
            single.numbers("raw_singles"),
        ),
    ]


def records(settings: Settings) -> list[Line]:
    """A Python loop over single records on both sides, beside pyzmq's own."""
    with Children(settings.work / "records") as children:
        ours = members(children, single=True)
        singles = raw_pair(children, single=True)
        measure(settings, [(ours, SINGLES), (singles, RAW_SINGLES)])
    rate, single = ours.rate(), singles.rate()
    return [
        Line(
            "produce to one consumer, a loop over records on both sides",
            str(rate),
            f">= {per_second(SINGLES_TARGET)}",
            f"raw pyzmq, 100-byte messages: {single}",
            times(rate.median / single.median),
            rate.median >= SINGLES_TARGET,
            rate.note(),
            {**rate.numbers("chappe"), **single.numbers("raw_singles")},
        )
    ]
