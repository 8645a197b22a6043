"""Small limits for small worlds: every bound of the cores is met within seconds."""

from __future__ import annotations

from random import Random
from typing import Final

from chappe.limits import LogLimits

CHOICES: Final[dict[str, tuple[int, ...]]] = {
    "batch_bytes": (300, 2_000, 64 * 1024),
    "consumer_queue_bytes": (1_000, 20_000, 1_000_000),
    "fetch_records_max": (3, 50, 100_000),
    "give_up_s": (15,),  # longer than anybody is away
    "heads_page": (1, 3, 10_000),
    "held_bytes_max": (500, 5_000, 1_000_000),
    "look_max": (1, 4, 256),
    "maintain_s": (1, 10),
    "pass_over_s": (30,),
    "answer_records": (20, 1_000),
    "reads_max": (1, 3, 32),
    "read_bytes": (200, 3_000, 100_000),
    "read_bytes_max": (1_000, 10_000, 1_000_000),
    "small_batch_bytes": (0, 100, 8 * 1024),
    "staged_bytes_max": (2_000, 20_000, 1_000_000),
}
FIXED: Final[dict[str, int]] = {"settled_s": 2, "resume_wait_s": 20}  # longer than a store is away or out of reach
# Drawn from a source of their own: a world without sinks is what it was before there were any.
SINK_CHOICES: Final[dict[str, tuple[int, ...]]] = {"commit_chunk_bytes": (100, 500, 1_000_000)}

NEWS_CHOICES: Final[dict[str, tuple[int, ...]]] = {"apart_max": (0, 15)}  # likewise: worlds of before nodes asked


def small_limits(rng: Random, sink_rng: Random, news_rng: Random) -> LogLimits:
    """Limits drawn from these."""
    drawn = {name: rng.choice(choices) for name, choices in CHOICES.items()}
    drawn |= {name: sink_rng.choice(choices) for name, choices in SINK_CHOICES.items()}
    drawn |= {name: news_rng.choice(choices) for name, choices in NEWS_CHOICES.items()}
    return LogLimits(**drawn, **FIXED)
