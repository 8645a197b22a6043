"""Small limits for small worlds of data stores."""

from __future__ import annotations

from random import Random

from chappe.limits import KvLimits


def small_limits(rng: Random) -> KvLimits:
    """Limits drawn from ``rng``, now and then those of programs."""
    return KvLimits(
        ack_events=rng.choice((1, 8, 256)),
        nack_max=rng.choice((2, 1_024)),
        window=rng.choice((5, 50, 8_192)),
        writes_max=rng.choice((30, 65_536)),
        staged_events_max=rng.choice((20, 262_144)),
        events_max=rng.choice((50, 65_536)),
        commit_operations=rng.choice((20, 8_192)),
        piece_bytes=rng.choice((1, 100, 262_144)),
        pieces_ahead=rng.choice((1, 4)),
        pieces_kept_bytes=rng.choice((0, 4_194_304)),
        snapshots_max=rng.choice((1, 4)),
        snapshot_shared_events=rng.choice((0, 1_024)),
    )
