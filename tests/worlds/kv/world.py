"""A world of data stores: what was asked of them, and what their members were told became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, Final

from tests.worlds.backends import SimBackend

from chappe.kv.clone import KvClone
from chappe.kv.master import KvMaster
from chappe.limits import KV_LIMITS, KvLimits
from chappe.sim.world import SimWorld

LISTS: Final = ("list a", "list b")  # serial numbers are pushed to them, and nothing else happens to them
UNIQUE: Final = tuple(f"unique {n}" for n in range(40))  # put_unique alone
TEMPORARY: Final = ("temporary a", "temporary b")  # always with an expiry, every value once
LIVING: Final = ("living a", "living b")  # with an expiry or without one, every value once
COUNTERS: Final = ("counter",)
MIXED: Final = ("mixed a", "mixed b", "mixed c")  # anything, so that much of it does not fit
PENDING: Final = object()


def small_limits(rng: Random, more: Random, later: Random) -> KvLimits:
    """Limits drawn from ``rng``, and later ones from ``more`` and ``later``; now and then those of programs."""
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
        held_max=more.choice((2, 8_192)),
        outcomes_max=more.choice((1, 4_096)),
        told_together=later.choice((2, 64, 64)),
        told_bytes=later.choice((60, 65_536, 65_536)),
        history_bytes=later.choice((2_000, 1_000_000)),
        history_erased=later.choice((1, 1_000)),
    )


@dataclass(slots=True)
class Operation:
    """One operation."""

    member: str
    what: str
    key: Any = None
    value: Any = None
    wall_ns: int = 0  # the time of day
    expiry_ns: int | None = None
    until: float = inf  # of one that waits, or asks
    outcome: object = PENDING  # None, True, False or an exception


@dataclass(slots=True)
class KvTruth:
    """All operations by their serial number."""

    asked: dict[int, Operation] = field(default_factory=dict)
    answered: int = 0  # of them, how many have an outcome
    _waits: dict[int, Operation] = field(default_factory=dict)  # of them, those that wait still
    _unique: dict[Any, list[int]] = field(default_factory=dict)  # what put a key unless it was there

    def ask(self, serial: int, asked: Operation) -> None:
        """An operation is asked for."""
        self.asked[serial] = asked
        if asked.until < inf:
            self._waits[serial] = asked
        if asked.what == "put_unique":
            self._unique.setdefault(asked.key, []).append(serial)

    def answer(self, serial: int, outcome: object) -> None:
        """It has its outcome."""
        self.asked[serial].outcome = outcome
        self.answered += 1
        self._waits.pop(serial, None)

    def waiting(self, member: str) -> list[tuple[int, Operation]]:
        """What a member waits for, by the serial numbers."""
        return [(serial, asked) for serial, asked in self._waits.items() if asked.member == member]

    def unique(self, key: Any) -> list[int]:
        """What has put ``key`` unless it was there, by the serial numbers."""
        return self._unique.get(key, [])

    def told(self, serial: int) -> object:
        """The outcome of an operation; ``PENDING`` while there is none."""
        return self.asked[serial].outcome


@dataclass(frozen=True)
class KvCores:
    """What is under test; broken ones are put here to see that the checkers notice."""

    master: type[KvMaster] = KvMaster
    clone: type[KvClone] = KvClone


class KvWorld(SimWorld):
    """Everything that one seed decides."""

    lengths_s = (5.0, 15.0, 40.0)
    settle_max_s = 100.0
    events_max = 2_000_000
    lossy = False  # whether much of what is sent is lost

    def __init__(self, *arguments: Any, cores: KvCores | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cores = cores or KvCores()
        self.truth = KvTruth()
        self._serial = 0
        self.limits = KV_LIMITS
        self.working = True
        self.clears = self.rng.random() < 0.2
        self.backend: Any = SimBackend() if self.rng.random() < 0.6 else None
        self.master_lives = 0
        self.second = False  # whether there was a second master
        self.dies_after_commit = 0.0
        self._commit_s = self.rng.choice((0.001, 0.02, 0.3))
        self.history_rng = Random(f"history {self.seed}")
        self.history_size = self.history_rng.choice((0, 0, 1, 3, 64))  # changes of each key that masters keep

    def masters(self) -> list[Any]:
        """The masters that run."""
        return [each for each in self.hosts.values() if each.alive and getattr(each, "kind", "") == "master"]

    def clones(self) -> list[Any]:
        """The clones that run."""
        return [each for each in self.hosts.values() if each.alive and getattr(each, "kind", "") == "clone"]

    @property
    def lasting(self) -> bool:
        """Whether what was confirmed is never lost: the master never lost its memory, and nobody cleared it."""
        return not self.clears and not self.second and (self.backend is not None or self.master_lives <= 1)

    def in_reach(self, one: Any, two: Any) -> bool:
        """Whether two members reach each other."""
        raise NotImplementedError

    def next_serial(self) -> int:
        """A fresh number of an operation."""
        self._serial += 1
        return self._serial

    def progress(self) -> int:
        """What many wait for may take its time, as long as it goes on."""
        return self.truth.answered

    def count(self) -> int:
        """Operations that were asked for."""
        return len(self.truth.asked)

    def commit_s(self) -> float:
        """How long the next commit takes."""
        return self._commit_s * self.rng.expovariate(1.0)

    def killed(self, host: Any) -> None:
        """A member dies between a commit and hearing of it."""
        raise NotImplementedError

    def began(self, host: Any, asked: Operation, serial: int) -> None:
        """An operation is asked for."""
        self.truth.ask(serial, asked)
        self.see("on_began", host, serial, asked)
        self.trace(host, "asks %d: %s %r %r", serial, asked.what, asked.key, asked.value)

    def ended(self, host: Any, serial: int, outcome: object) -> None:
        """Its outcome."""
        asked = self.truth.asked[serial]
        self.trace(host, "is told of %d: %r", serial, outcome)
        if asked.member != str(host.entity) or asked.outcome is not PENDING:
            self.fail("exactly once", f"{host.name} is told twice of {serial}: {outcome}")
        self.truth.answer(serial, outcome)
        self.see("on_ended", host, serial, asked)
