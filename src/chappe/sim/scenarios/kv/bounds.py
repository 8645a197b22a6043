"""Small bounds for small worlds of data stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from chappe.channel import consumer
from chappe.kv import clone_writes, followers, group_commit, receiving, snapshots

_PLACES: Final = (consumer, clone_writes, group_commit, followers, receiving, snapshots)
_CHOICES: Final[dict[str, tuple[int, ...]]] = {
    "CHANNEL_ACK_EVENTS": (1, 8, 256),
    "CHANNEL_NACK_MAX": (2, 1_024),
    "CLONE_WINDOW": (5, 50, 8_192),
    "CLONE_WRITES_MAX": (30, 65_536),
    "CLONE_STAGED_EVENTS_MAX": (20, 262_144),
    "CHANNEL_EVENTS_MAX": (50, 65_536),
    "STORE_COMMIT_OPERATIONS": (20, 8_192),
    "STORE_PIECE_BYTES": (1, 100, 262_144),
    "STORE_PIECES_AHEAD": (1, 4),
    "STORE_PIECES_KEPT_BYTES": (0, 4_194_304),
    "STORE_SNAPSHOTS_MAX": (1, 4),
    "STORE_SNAPSHOT_SHARED_EVENTS": (0, 1_024),
}


@contextmanager
def small_bounds(rng: Random) -> Iterator[dict[str, int]]:
    """Bounds drawn from ``rng`` in the cores while the context lasts."""
    drawn = {name: rng.choice(choices) for name, choices in _CHOICES.items()}
    places = [(place, name) for place in _PLACES for name in drawn if hasattr(place, name)]
    before = [getattr(place, name) for place, name in places]
    for place, name in places:
        setattr(place, name, drawn[name])
    try:
        yield drawn
    finally:
        for (place, name), value in zip(places, before, strict=True):
            setattr(place, name, value)
