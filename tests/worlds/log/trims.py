"""Topics that are trimmed and deleted: one store is asked to forget what was written before a moment, or everything.

What must hold: each store forgets whole batches from the beginning, and none that has something younger, unless the
catalogue says so; once a store has confirmed, nothing of that comes back to it, whatever happens to it. Until then a
death of the store may bring it back, as what is forgotten is not on the disk yet. In quiet all stores have the same
catalogue, and none has what was confirmed to be deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

from tests.worlds.log.disks import StoreDisk
from tests.worlds.log.questions import Questions
from tests.worlds.log.residents import StoreLife

from chappe.data.topic import decode_topic, encode_topic
from chappe.defaults import CLOCK_AHEAD_S
from chappe.log.catalogue import EVER, CatalogueJob
from chappe.log.queries import Answer, ErrorAnswer, TopicAnswer, TopicChange
from chappe.log.sources import Key
from chappe.sim.world import Checker

TRIMS: Final = 0.12  # of the worlds have some


@dataclass(slots=True)
class _Asked:
    """One question to one store, and from where on it keeps each partition once it has confirmed."""

    disk: StoreDisk
    firsts: dict[Key, int]
    everything: bool


class Trims(Checker[Any]):
    """Who trims and deletes, and what must hold of it."""

    name = "trims"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.rng = Random(f"trims {world.seed}")  # of their own: a world without them is what it was before
        self.there = self.rng.random() < TRIMS
        self._asked: dict[int, _Asked] = {}  # by number
        self._numbers = 0
        self._before: dict[tuple[StoreDisk, str], int] = {}  # all before was to be forgotten of a topic
        self._catalogue: dict[str, int] = {}  # ... as some catalogue says
        self._floors: dict[Key, int] = {}  # where partitions go on, as some catalogue says
        self._kept: dict[tuple[StoreDisk, Key], int] = {}  # where a store begins for good
        self._deleted: dict[Key, int] = {}  # where all stores do, in quiet
        self.confirmed = 0

    def trim(self) -> None:
        """Ask one store that runs to forget something of one topic, or to set something; or two different stores."""
        world, rng = self.world, self.rng
        topics = sorted({topic for topic, _ in world.truth.parts})
        stores = world.alive(StoreLife)
        if not topics or not stores:
            return
        topic = rng.choice(topics)
        for store in rng.sample(stores, min(len(stores), rng.choice((1, 1, 2)))):
            what = rng.random()
            age_us = int(rng.choice((0.0, 0.5, 2.0)) * 1e6)
            before = EVER if what < 0.5 else max(1, world.clock.wall_us - age_us)
            if what < 0.3:
                request = TopicChange(encode_topic(topic), delete=True)
            elif what < 0.8:
                request = TopicChange(encode_topic(topic), before=before)
            else:
                before, request = (
                    0,
                    TopicChange(encode_topic(topic), {"note": rng.randrange(9)}),
                )
            self._disturb(store)
            self._numbers += 1
            firsts = {key: _kept_from(part, before) for key, part in store.disk.parts.items() if key[0] == topic}
            self._asked[self._numbers] = _Asked(store.disk, firsts, before == EVER)
            place = store.disk, topic
            self._before[place] = max(before, self._before.get(place, 0))
            questions = Questions(world, "administrator", store.core.endpoint, self._answered)
            questions.ask(self._numbers, request)

    def _disturb(self, store: StoreLife) -> None:
        """Something may happen to a store just before what it forgets is on its disk."""
        world, rng, place = self.world, self.rng, store.resident.place
        if rng.random() < 0.3:
            disk = world.stage.disk(place.name)
            disk.refuse(1.0)
            world.clock.after(rng.choice((0.3, 2.0)), disk.refuse, 0.0)
        if rng.random() < 0.4:
            world.clock.after(rng.choice((0.005, 0.05, 0.5)), partial(place.kill, power_cut=rng.random() < 0.4))
            world.clock.after(rng.choice((1.0, 4.0)), place.restart)

    def on_catalogue(self, job: CatalogueJob) -> None:
        """A store keeps entries, which others may take from now on."""
        for entry in job.entries:
            topic = decode_topic(entry.topic)
            self._catalogue[topic] = max(entry.before, self._catalogue.get(topic, 0))
            for partition, first in entry.floors:
                key = topic, decode_topic(partition)
                self._floors[key] = max(first, self._floors.get(key, 0))

    def on_reset(self, disk: StoreDisk, key: Key, first: int) -> None:
        """A store begins a partition later: it forgets what retention or a trim lets it, or what others have not."""
        part, before = disk.parts.get(key), max(self._before.get((disk, key[0]), 0), self._catalogue.get(key[0], 0))
        if part is None or not before or first <= part.first:
            return
        self.world.trace(None, "%s forgets %s/%s %d..%d", disk.store_id, *key, part.first, first - 1)
        if first > max(_kept_from(part, before), self._floors.get(key, 0), self.world.retained_from(key)):
            self.fail(f"{disk.store_id} begins {key} at {first}; something before is younger than {before}")
        self.world.trimmed[key] = max(self.world.trimmed.get(key, 0), first)

    def _answered(self, number: int, answer: Answer) -> None:
        """A store answers."""
        asked = self._asked.pop(number, None)
        if asked is None:
            return  # it was answered before
        if isinstance(answer, ErrorAnswer):
            self.world.trace(None, "%s does not trim: %s", asked.disk.store_id, answer.text)
            return
        if not isinstance(answer, TopicAnswer):
            self.fail(f"{asked.disk.store_id} answers a change of a topic with {answer}")
        self.confirmed += 1
        for key, first in asked.firsts.items():
            place = asked.disk, key
            self._kept[place] = max(self._kept.get(place, 0), first)
            if asked.everything:
                self._deleted[key] = max(self._deleted.get(key, 0), first)

    def on_tick(self) -> None:
        """What is confirmed does not come back."""
        for (disk, key), first in self._kept.items():
            part = disk.parts.get(key)
            if part is not None and part.first < first:
                self.fail(f"{disk.store_id} has {key} from {part.first} on; it confirmed that {first} is the first")

    def _wall_us(self, store: StoreLife) -> int:
        with self.world.stage.on(store.name):
            return store.core.clock.wall_ns() // 1000

    def unsettled(self) -> str | None:
        """Say which stores do not agree yet, or have something that was deleted; None if all do."""
        stores = self.world.alive(StoreLife)
        entries = [each for store in stores for each in store.core.catalogue.entries.values()]
        newest = max((max(each.stamp, each.trimmed, each.before) for each in entries), default=0)
        slowest = min(map(self._wall_us, stores), default=newest)
        if newest > slowest + CLOCK_AHEAD_S * 1e6:
            return None  # a store whose clock is so far behind does not take it, and says so
        for store in stores:
            if store.core.catalogue.entries != stores[0].core.catalogue.entries:
                return f"{store.name} has another catalogue than {stores[0].name}"
            for key, first in self._deleted.items():
                part = store.disk.parts.get(key)
                if part is not None and any(max(part.first, each.base) < min(first, each.next) for each in part.blocks):
                    return f"{store.name} has {key} from {part.first} on; all before {first} was deleted"
        return None


def _kept_from(part: Any, before: int) -> int:
    """The first offset of a partition that must not be forgotten: its batch has something as young as ``before``."""
    younger = (block.base for block in part.blocks if block.timestamp_max >= before)
    return int(max(part.first, next(younger, part.next)))
