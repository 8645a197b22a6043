"""What was truly sent in a world of the log, what disks hold of it, and the limits of its cores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.worlds.disk import SimDisk

from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, encode_sealed
from chappe.log.consumer import LogConsumer
from chappe.log.producer import LogProducer
from chappe.log.sources import Key
from chappe.log.store import LogStore
from chappe.sim.world import Settings, SimWorld, Violation

HOST: Final = "127.0.0.1"
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

LAST_CHOICES: Final[dict[str, tuple[int, ...]]] = {
    "last_bytes_max": (3_000, 1_000_000, 1_000_000),
    "last_piece_bytes": (100, 2_000, 100_000),
}
MORE_CHOICES: Final[dict[str, tuple[int, ...]]] = {"give_up_s": (1, 15), "staged_forget_s": (1, 86_400)}


def small_limits(rng: Random, sink_rng: Random, news_rng: Random, more_rng: Random | None = None) -> LogLimits:
    """Limits, drawn such that every bound of the cores is met within seconds; plain worlds have no ``more_rng``."""
    drawn = {name: rng.choice(choices) for name, choices in CHOICES.items()}
    drawn |= {name: sink_rng.choice(choices) for name, choices in SINK_CHOICES.items()}
    drawn |= {name: news_rng.choice(choices) for name, choices in NEWS_CHOICES.items()}
    drawn |= {name: more_rng.choice(choices) for name, choices in MORE_CHOICES.items() if more_rng}
    drawn["bulk_bytes"] = drawn["batch_bytes"]
    return LogLimits(**drawn, **FIXED, clock_pause_s=math.inf)  # worlds without ages are what they were before


LASTS = 0.15  # of the worlds have consumers that begin with the newest record of each key
STORED = 0.2  # of the worlds have consumers that take records from disks of stores alone
KEYED = 0.1
TOPICS: Final = ("a", "ab", "b.x")
FILTERS: Final = ("a", "ab", "b.x", "a*", "*")

Content = tuple[bytes | None, bytes | None]  # value, key


def opaque(raw: bytes) -> bytes:
    """A batch as a producer of a sealed topic publishes it; what it is sealed with is no affair of these worlds."""
    batch = Batch.parse(raw, check=False)
    return encode_sealed(batch.base, batch.count, batch.timestamp_min, batch.timestamp_max, raw)


def opened(batch: Batch) -> Batch:
    """What ``opaque`` was given, as far as the batch has it."""
    if batch.sealed is None:
        return batch
    whole = Batch.parse(batch.sealed, check=False)
    return whole if whole.count == batch.count else Batch.parse(whole.slice(batch.base, batch.next), check=False)


def contents(batch: Batch, start: int) -> list[Content]:
    """Values and keys of a batch from offset ``start`` on."""
    batch = opened(batch)
    values = batch.values()[start - batch.base :]
    keys = batch.keys()
    return [(value, None) for value in values] if keys is None else list(
        zip(values, keys[start - batch.base :], strict=True)
    )  # fmt: skip


@dataclass(slots=True)
class Sent:
    """One partition as its producer sent it."""

    records: list[Content] = field(default_factory=list)
    acknowledged: int = 0  # every offset before it was acknowledged by enough stores
    lost: set[int] = field(default_factory=set)  # offsets of which the faults took every copy
    gone: bool = False  # its producer is dead and will not come back
    original: bool = False


class Truth:
    """All partitions."""

    def __init__(self) -> None:
        self.parts: dict[Key, Sent] = {}

    def of(self, key: Key) -> Sent:
        """One partition."""
        found = self.parts.get(key)
        if found is None:
            found = self.parts[key] = Sent()
        return found

    def sent(self, key: Key, base: int, records: list[Content]) -> None:
        """A producer published records; raises Violation if it gives an offset twice, or leaves one out."""
        part = self.of(key)
        if base > len(part.records):
            raise Violation("identity", f"{key} goes on at {base}, it had come to {len(part.records)}")
        known = part.records[base : base + len(records)]
        if known != records[: len(known)]:
            raise Violation("identity", f"{key} uses offset {base} again, for something else")
        part.records += records[len(known) :]


@dataclass(frozen=True)
class Cores:
    """What is under test; broken ones are put here to see that the checkers notice."""

    store: type[LogStore] = LogStore
    producer: type[LogProducer] = LogProducer
    consumer: type[LogConsumer] = LogConsumer


class WatchedLog(SimWorld):
    """The truth about a log, and what disks hold of it: what checkers compare."""

    tick_s = 0.5
    large_answers = 1  # to READs of a store that may be under way at once
    settle_max_s = 200.0  # a few times the longest wait of a core

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        self.truth = Truth()
        self.limits = LOG_LIMITS  # the cores' limits in this world
        self.sending = True
        self.serial = 0
        self.disks: list[SimDisk] = []
        self.disk_of: dict[str, SimDisk] = {}  # by the address of a store, in whichever life
        self.retained: dict[str, int] = {}  # topic: records kept, if the world has retention
        self.trimmed: dict[Key, int] = {}  # where partitions began at a store after it was trimmed
        self.begun: dict[Key, int] = {}  # where stores began that knew no other which has what came before
        self.sealed = False  # whether producers seal what they send
        self.originals: dict[str, dict[Key, list[bytes]]] = {}  # what original stores have, by name

    def opened(self, batch: Batch) -> Batch:
        """What a batch was before ``seal``, as far as it has it."""
        return opened(batch)

    def contents(self, batch: Batch, start: int) -> list[Content]:
        """Values and keys of a batch from offset ``start`` on."""
        return contents(self.opened(batch), start)

    def count(self) -> int:
        """Records that were sent."""
        return sum(len(sent.records) for sent in self.truth.parts.values())

    # -- what disks hold --------------------------------------------------------------------------------------

    def holdings(self, key: Key, disks: Iterable[SimDisk] | None = None) -> list[tuple[int, int]]:
        """What any of the disks has of a partition, that of a store which is down included: sorted, without overlap.

        Those of original stores are always among them.
        """
        among = self.disks if disks is None else disks
        found = [span for disk in among if (part := disk.parts.get(key)) for span in part.sound()]
        found += [(0, len(kept)) for parts in self.originals.values() if (kept := parts.get(key))]
        joined: list[tuple[int, int]] = []
        for low, high in sorted(found):
            if joined and low <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
            else:
                joined.append((low, high))
        return joined

    def held_within(self, key: Key, first: int, end: int, disks: Iterable[SimDisk]) -> int | None:
        """The first of the offsets ``first`` <= n < ``end`` that any of the disks has."""
        if first >= end:
            return None
        return next((max(low, first) for low, high in self.holdings(key, disks) if low < end and high > first), None)

    def missing_within(self, key: Key, first: int, end: int) -> Iterator[int]:
        """Those of the offsets ``first`` <= n < ``end`` that no disk has."""
        at = first
        for low, high in [*self.holdings(key), (end, end)]:
            yield from range(at, min(low, end))
            at = max(at, high)

    def incomplete(self, key: Key) -> bool:
        """Whether nobody has all of a partition any more, so that those who know of it go on asking."""
        return any(True for _ in self.missing_within(key, 0, len(self.truth.of(key).records)))

    def retained_from(self, key: Key) -> int:
        """The first offset that every store must still have; later than 0 only where something is forgotten."""
        trimmed = self.trimmed.get(key, 0)
        if key[0] not in self.retained and not trimmed:
            return 0
        return max([trimmed, *(part.first for disk in self.disks if (part := disk.parts.get(key)) is not None)])
