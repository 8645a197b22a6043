"""Small bounds for small worlds: every limit of the cores is met within seconds.

The cores take their numbers from ``defaults`` by name, so the numbers are changed in every core that has the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from chappe.log import (
    answering,
    catch_up,
    consumer,
    delivery,
    healing,
    kept,
    producer,
    recovery,
    resuming,
    serving,
    sources,
    streams,
    unfilled,
    writing,
)
from chappe.log.exactly_once import redo, transactions

CORES: Final = (
    answering,
    catch_up,
    redo,
    consumer,
    delivery,
    healing,
    kept,
    producer,
    recovery,
    resuming,
    serving,
    sources,
    streams,
    transactions,
    unfilled,
    writing,
)
CHOICES: Final[dict[str, tuple[int, ...]]] = {
    "BATCH_BYTES": (300, 2_000, 64 * 1024),
    "CONSUMER_QUEUE_BYTES": (1_000, 20_000, 1_000_000),
    "FETCH_RECORDS_MAX": (3, 50, 100_000),
    "GIVE_UP_S": (15,),  # longer than anybody is away
    "HEADS_PAGE": (1, 3, 10_000),
    "HELD_BYTES_MAX": (500, 5_000, 1_000_000),
    "LOOK_MAX": (1, 4, 256),
    "MAINTAIN_S": (1, 10),
    "PASS_OVER_S": (30,),
    "PIECE_RECORDS": (20, 1_000),
    "READS_MAX": (1, 3, 32),
    "READ_BYTES": (200, 3_000, 100_000),
    "READ_BYTES_MAX": (1_000, 10_000, 1_000_000),
    "SMALL_BATCH_BYTES": (0, 100, 8 * 1024),
    "STAGED_BYTES_MAX": (2_000, 20_000, 1_000_000),
}
FIXED: Final[dict[str, int]] = {"SETTLED_S": 2, "RESUME_WAIT_S": 20}  # longer than a store is away or out of reach
# Drawn from a source of their own: a world without sinks is what it was before there were any.
SINK_CHOICES: Final[dict[str, tuple[int, ...]]] = {"COMMIT_CHUNK_BYTES": (100, 500, 1_000_000)}


@contextmanager
def small_bounds(rng: Random, sink_rng: Random) -> Iterator[dict[str, int]]:
    """Bounds drawn from ``rng`` and ``sink_rng`` while the context lasts; yields them by name."""
    choices_of = CHOICES | SINK_CHOICES | {name: (value,) for name, value in FIXED.items()}
    places = [(core, name) for name in choices_of for core in CORES if hasattr(core, name)]
    unknown = choices_of.keys() - {name for _, name in places}
    assert not unknown, f"no core has {sorted(unknown)} any more"
    before = [getattr(core, name) for core, name in places]
    drawn = {name: rng.choice(choices) for name, choices in CHOICES.items()}
    drawn |= FIXED
    drawn |= {name: sink_rng.choice(choices) for name, choices in SINK_CHOICES.items()}
    for core, name in places:
        setattr(core, name, drawn[name])
    try:
        yield drawn
    finally:
        for (core, name), value in zip(places, before, strict=True):
            setattr(core, name, value)
