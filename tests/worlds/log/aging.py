"""Consumers that take nothing too old, while clocks differ and are set: what is fresh is not called old, the old is.

Only the world knows when a record was made. What nobody could know is left out: records of producers that go on with
an identity, whose stamps are of another life, and those with a stamp of their own; what was made before its clock was
set, for those who came later; and the time from when a clock was set until somebody has read it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tests.worlds.log.members import ConsumerHost, ProducerHost
from tests.worlds.log.node import NodeHost
from tests.worlds.log.world import LogWorld

from chappe.data.topic import Filter
from chappe.log.batch import Batch
from chappe.log.clocks import SLACK_S, ClockEstimate
from chappe.log.delivery import Records
from chappe.log.messages import BatchMessage, Message
from chappe.log.sources import Key
from chappe.sim.world import Checker

FILTERS = ("a", "b.x", "*")
EXACT_S = 0.1  # what a clock that is known may be wrong by, apart from the way of a question


def begin_snails(world: LogWorld) -> None:
    """Have some consumers begin that take nothing too old, and clocks be set now and then."""
    rng = world.age_rng
    for number in range(world.few(rng.choice((1, 2)))):
        world.clock.after(rng.choice((0.0, 0.5, 3.0)), _begin, world, f"snail{number}")
    world.clock.after(rng.uniform(1.0, 8.0), _set, world)


def _begin(world: LogWorld, name: str) -> None:
    rng = world.age_rng
    filters = [Filter.parse(rng.choice(FILTERS))]
    Snail(world, name, filters, rng.choice((0.3, 1.0, 5.0))).start()


def _set(world: LogWorld) -> None:
    """Set the clock of somebody."""
    if world.sending:
        alive = sorted(host.name for host in world.alive(NodeHost))
        world.set_clock(world.age_rng.choice(alive))
        world.clock.after(world.age_rng.uniform(1.0, 8.0), _set, world)


class Snail(ConsumerHost):
    """A consumer that takes what comes one by one, slowly, and looks how old it is."""

    def __init__(self, world: LogWorld, name: str, filters: Sequence[Filter], max_age_s: float) -> None:
        super().__init__(world, name, filters, {}, ages=True)
        self.max_age_s = max_age_s
        self.judged = 0
        self._queue: deque[tuple[Records, float]] = deque()
        self._rest_s = world.age_rng.choice((0.0, 0.05, 0.5))

    def deliver(self, action: Records) -> None:
        self.world.see("on_deliver", self, action)
        self._queue.append((action, self.world.now))
        self._later(self._rest_s * self.world.age_rng.random())

    def clock_read(self) -> None:
        self._later(0.0)

    def _later(self, seconds: float) -> None:
        if not self._taking and self._queue:
            self._taking = True
            self.world.clock.after(seconds, self._take)

    def _take(self) -> None:
        self._taking = False
        if not self.alive or not self._queue:
            return
        if self.home.stalled_until > self.world.now:
            self._taking = True
            self.world.clock.at(self.home.stalled_until, self._take)
            return
        now = self.world.now
        action, arrived = self._queue[0]
        key, batch = (action.topic, action.partition), action.batch
        clock, actions = self.core.judge(key, batch, arrived, self.max_age_s, now)
        if clock is not None:
            self._queue.popleft()
            old = (lambda timestamp: True) if now - arrived > self.max_age_s else clock.olds(self.max_age_s, now)
            known = self.core.clocks is not None and self.core.clocks.knows(key[1])
            self.world.see("on_judged", self, action, arrived, clock if known else None, old)
            self.judged += 1
            self.carry_taken(len(batch.raw))
            self._later(self._rest_s * self.world.age_rng.random() if self.world.sending else 0.0)
        self._carry(actions)


class Ages(Checker[LogWorld]):
    """What a consumer calls too old is, and what it takes is not."""

    name = "ages"

    def __init__(self, world: LogWorld) -> None:
        super().__init__(world)
        self._made: dict[tuple[Key, int], tuple[float, int]] = {}  # when, and what its producer's clock showed
        self._host: dict[Key, str] = {}  # where
        self._set: list[tuple[float, str | None]] = []  # when which clock was set; None: all

    def on_clock_set(self, name: str | None) -> None:
        """A clock shows something else from now on."""
        self._set.append((self.world.now, name))

    def on_published(self, host: NodeHost, message: Message) -> None:
        """A producer has made records."""
        if not self.world.ages or not isinstance(host, ProducerHost) or host.journal is not None:
            return
        if isinstance(message, BatchMessage) and not message.direct:
            batch = Batch.parse(message.body, check=False)
            self._host[host.key] = host.name
            for offset, timestamp in enumerate(batch.timestamps(), batch.base):
                if timestamp == host.wall_us:
                    self._made[host.key, offset] = self.world.now, timestamp

    def on_judged(self, host: Snail, action: Records, arrived: float, clock: ClockEstimate | None, old: Any) -> None:
        """A consumer has made up its mind."""
        key, now = (action.topic, action.partition), self.world.now
        sets = [0.0, *(at for at, name in self._set if name in (None, self._host.get(key)))]
        for offset, timestamp in enumerate(action.batch.timestamps(), action.batch.base):
            made, stamp = self._made.get((key, offset), (0.0, -1))
            if stamp != timestamp or offset < action.start:  # it came by an original, which has no times
                continue
            is_old, age_s = bool(old(timestamp)), now - made
            if clock is None or (sets[-1] >= clock.seen and clock.seen < arrived):
                continue
            if is_old and now - arrived <= host.max_age_s and age_s <= host.max_age_s:
                if sum(at > made for at in sets) < clock.runs:
                    self.fail(f"{host.name} calls {key} {offset} too old, which is {age_s:.3f} s old")
            elif not is_old and sets[-1] < min(made, clock.seen):
                error_s = clock.now(now)[1] + EXACT_S + SLACK_S
                if age_s > host.max_age_s + 2 * error_s:
                    self.fail(f"{host.name} takes {key} {offset}, which is {age_s:.3f} s old, wrong by {error_s:.3f} s")
