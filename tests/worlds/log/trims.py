"""Topics that are trimmed: all stores are asked to forget what was written before a moment, or everything.

What must hold: each store forgets whole batches from the beginning, and none that has something younger; offsets go
on; once it has confirmed, nothing of that comes back to it, whatever happens to it. Until then a death of the store may
bring it back, as what is forgotten is not on the disk yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.worlds.disk import Part, SimDisk
from tests.worlds.log.stores import StoreHost
from tests.worlds.log.world import LogWorld

from chappe.data.topic import encode_topic
from chappe.log.queries import ErrorAnswer, TrimAnswer, TrimRequest, decode_answer, encode_query
from chappe.log.sources import Key
from chappe.sim.pubsub import Dialogue
from chappe.sim.world import Checker

TRIMS: Final = 0.12  # of the worlds have some
EVERYTHING_US: Final = (1 << 62) - 1


@dataclass(slots=True)
class _Asked:
    """One question to one store, and from where on it keeps each partition since it took it."""

    topic: str
    disk: SimDisk
    firsts: dict[Key, int] | None = None


class _Administrator:
    """Asks stores."""

    name = "administrator"
    alive = True
    stalled_until = -math.inf

    def __init__(self, on_answer: Callable[[tuple[int, bytes, tuple[bytes, ...]]], None]) -> None:
        self.on_answer = on_answer


class Trims(Checker[LogWorld]):
    """Who trims, and what must hold of it."""

    name = "trims"

    def __init__(self, world: LogWorld) -> None:
        super().__init__(world)
        self.rng = Random(f"trims {world.seed}")  # of their own: a world without them is what it was before
        self._there = not world.settings.plain and self.rng.random() < TRIMS
        self._administrator = _Administrator(self._on_answer)
        self._asked: dict[tuple[int, int], _Asked] = {}  # by dialogue and number
        self._numbers = 0
        self._kept: dict[tuple[str, Key], int] = {}  # of a store, by its id: where it begins for good
        self.confirmed = 0

    def times(self, until: float) -> list[float]:
        """When there are some."""
        if not self._there:
            return []
        return [self.rng.uniform(0.3, until) for _ in range(self.rng.choice((1, 2, 4)))]

    def trim(self) -> None:
        """Ask all stores that run to forget something of one topic."""
        world, rng = self.world, self.rng
        topics = sorted({topic for topic, _ in world.truth.parts})
        if not topics:
            return
        topic = rng.choice(topics)
        age_us = int(rng.choice((0.0, 0.5, 2.0)) * 1e6)
        before = EVERYTHING_US if rng.random() < 0.3 else max(1, world.clock.wall_us - age_us)
        for store in world.alive(StoreHost):
            self._disturb(store)
            self._numbers += 1
            dialogue = Dialogue(world.net, self._administrator, store.core.endpoint)
            self._asked[dialogue.number, self._numbers] = _Asked(topic, store.disk)
            dialogue.ask(self._numbers, encode_query(TrimRequest(encode_topic(topic), before)))

    def _disturb(self, store: StoreHost) -> None:
        """Something may happen to a store just before what it forgets is on its disk."""
        world, rng = self.world, self.rng
        if rng.random() < 0.3:
            store.disk.refusing = 1.0
            world.clock.after(rng.choice((0.3, 2.0)), setattr, store.disk, "refusing", 0.0)
        if rng.random() < 0.4:
            (member,) = [each for each in world.members if each.host is store]
            world.clock.after(rng.choice((0.005, 0.05, 0.5)), member.crash)
            world.clock.after(rng.choice((1.0, 4.0)), member.restart)

    def on_trim(
        self, host: StoreHost, dialogue: int, number: int, request: TrimRequest, before: dict[Key, Part]
    ) -> None:
        """A store has taken the question; ``before`` is how its partitions were."""
        firsts: dict[Key, int] = {}
        for key, was in before.items():
            part = host.disk.parts[key]
            self.world.trace(host, "forgets %s/%s %d..%d", *key, was.first, part.first - 1)
            if part.next != was.next:
                self.fail(f"{host.name} went on with {key} at {was.next}, and at {part.next} after it was trimmed")
            younger = [block.base for block in was.blocks if block.timestamp_max >= request.before]
            if part.first > max(was.first, min(younger, default=was.next)):
                self.fail(f"{host.name} begins {key} at {part.first}; {min(younger)} is younger than {request.before}")
            older = [block.next for block in was.blocks if block.timestamp_max < request.before]
            if not younger and was.blocks and part.first < max(older):
                self.fail(f"{host.name} keeps {key} from {part.first} on; all before {max(older)} was to be forgotten")
            firsts[key] = part.first
            self.world.trimmed[key] = max(self.world.trimmed.get(key, 0), part.first)
        asked = self._asked[dialogue, number]
        asked.disk, asked.firsts = host.disk, firsts  # perhaps another one has the port by now

    def _on_answer(self, thing: tuple[int, bytes, tuple[bytes, ...]]) -> None:
        """A store answers."""
        number, raw, _ = thing
        (at,) = [each for each in self._asked if each[1] == number]
        asked = self._asked.pop(at)
        answer = decode_answer(raw)
        if isinstance(answer, ErrorAnswer):
            self.world.trace(None, "%s does not trim: %s", asked.disk.store_id, answer.text)
            return
        if not isinstance(answer, TrimAnswer) or asked.firsts is None:
            self.fail(f"{asked.disk.store_id} answers a question to trim with {answer}")
            return
        self.confirmed += 1
        for key, first in asked.firsts.items():
            place = (asked.disk.store_id, key)
            self._kept[place] = max(self._kept.get(place, 0), first)

    def on_tick(self) -> None:
        """What is confirmed does not come back."""
        for disk in self.world.disks:
            for key, part in disk.parts.items():
                first = self._kept.get((disk.store_id, key), 0)
                if part.first < first:
                    self.fail(f"{disk.store_id} has {key} from {part.first} on; it confirmed that {first} is the first")
