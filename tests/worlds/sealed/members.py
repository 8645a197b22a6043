"""Members of a log that seal and open, as their programs run them, and what is looked at of it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, Final

from tests.worlds.log.residents import ConsumerLife

from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.api.log.sealed import KeyWait, Opening, Sealing
from chappe.errors import Sealed
from chappe.log.batch import Batch
from chappe.log.delivery import Records
from chappe.log.opened import OpenedRead, Unread
from chappe.log.sources import Key
from chappe.sealing.in_log import RecordOpening
from chappe.sealing.records import decode
from chappe.sealing.ring import HeldGroups
from chappe.security import Keys
from chappe.system import machine, time

TRY_S: Final = 0.5  # how often a consumer looks whether it can open what waits


class WatchedSealing(Sealing):
    """It shows what it seals, and by which permissions it took that."""

    world: ClassVar[Any] = None  # that is played

    def __init__(self, keys: Keys, partition: str, *, asks: bool = False) -> None:
        super().__init__(keys, partition, asks=asks)
        self.name = keys.name
        self.host = machine.current()
        self.partition, self.topic = partition, ""
        self.began = self.taken_at = self.world.now  # when it took records last, ...
        self.taken_us = 0  # ... also by the time of day, ...
        self.taken_by = self._files.held.permissions  # ... by which permissions, ...
        self.sealed_for: set[str] = set()  # ... and who was in the epoch
        self.world.sealings[partition] = self

    def check(self, topic: str) -> None:
        super().check(topic)
        held = self._files.held
        group = held.group(topic)
        ring = None if group is None else held.ring(group.name)
        if ring is not None:  # what is gathered now is sealed by these, even if others come before it leaves
            self.taken_at, self.taken_us = self.world.now, time.time_ns() // 1000
            self.taken_by, self.sealed_for = held.permissions, ring.keys.members()

    def seal(self, topic: str, body: bytes, partition: str = "", place: int | None = None) -> bytes:
        sealed = body
        with self.world.seeing():  # a number that serves again
            sealed = super().seal(topic, body, partition, place)
        if sealed is not body:
            inner = Batch.parse(sealed, check=False).sealed
            assert inner is not None
            self.world.plain[bytes(inner)] = body
            self.topic = topic
            self.world.show("on_sealed", self, decode(inner))
        return sealed

    def look_again(self) -> None:
        """Look at the files, and seal by them from now on."""
        self._files._look_at = -1.0
        if self.topic:
            with suppress(Sealed):
                self.check(self.topic)


class WatchedOpening(Opening):
    """It shows what comes to be opened, and what became of it.

    Attributes:
        next: Offsets behind what was opened or refused.
        senders: Of partitions of which something was opened.
    """

    life: ConsumerLife

    def __init__(self, keys: Keys, *arguments: Any) -> None:
        super().__init__(keys, *arguments)
        self.name = keys.name
        self.next: dict[Key, int] = {}
        self.senders: dict[Key, str] = {}
        self._came: dict[Key, int] = {}  # where the last batch that was shown begins
        self._outcome: OpenedRead | Unread
        read, again = self._reader.open, self.again

        def keep(*batch: Any) -> OpenedRead | Unread:
            self._outcome = read(*batch)
            return self._outcome

        def go_back() -> list[tuple[str, str, int]]:
            found = again()
            for topic, partition, offset in found:
                self.next[topic, partition] = self.life.positions[topic, partition] = offset
                self._came.pop((topic, partition), None)
            return found

        self._reader.open = keep  # type: ignore[method-assign, assignment]
        self.again = go_back

    @property
    def held(self) -> HeldGroups:
        """What its files say."""
        assert self._reader._files is not None
        return self._reader._files.held

    @property
    def opening(self) -> RecordOpening:
        """The core."""
        return self._reader._core

    @property
    def core(self) -> Any:
        """The consumer's."""
        return self.life.core

    def open(self, found: ConsumedBatch) -> Any:
        if found.sender is not None:  # it was opened before
            return super().open(found)
        key, world = (found.topic, found.partition), self.life.world
        if self._came.get(key) != found.first:
            self._came[key] = found.first
            world.show("on_coming", self, key, found.batch)
        opened = super().open(found)
        if opened is not KeyWait.FOR_KEYS:
            outcome = self._outcome
            world.show("on_outcome", self, key, found.first, found.batch, outcome)
            self.next[key] = found.next
            if isinstance(outcome, OpenedRead) and outcome.sender is not None:
                self.senders[key] = outcome.sender
            world.show("on_deliver", self.life, Records(*key, found.batch, found.first))
        return opened


class SealedConsumer(ConsumerLife):
    """A consumer whose program looks for keys now and then."""

    def __init__(self, world: Any, resident: Any) -> None:
        super().__init__(world, resident)
        self.opened: WatchedOpening = self.face._opening
        self.opened.life = self
        self.opened.next = dict(self.positions)

    def got(self, batch: ConsumedBatch) -> None:
        """What came was shown when it was opened."""

    def _take_all(self) -> None:
        super()._take_all()
        if self.face.look_s < TRY_S:
            self.soon(TRY_S, self._ready)

    @property
    def waits(self) -> bool:
        """Whether something waits for keys."""
        inbox = self.face._inbox
        return bool(0 < inbox._stalled <= len(inbox.queue))
