"""Members of a log that seal and open, as ``api.log.sealed`` does it, and the world in which they do."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from random import Random
from typing import Any, Final

from tests.worlds.journals import Backup, Journal
from tests.worlds.log.standin.members import ConsumerHost, ProducerHost
from tests.worlds.log.standin.scenario import StandInLog
from tests.worlds.sealing import LOOK_S, MARK, Authority, Machine, Nonces, sign_of

from chappe.errors import StorageError
from chappe.limits import LOG_LIMITS
from chappe.log.batch import Batch, encode_batch
from chappe.log.delivery import Records
from chappe.log.opened import OpenedRead, UnreadWhy
from chappe.log.sources import Key
from chappe.sealing.in_log import RecordOpening, RecordSealing
from chappe.sealing.records import Sealer, decode
from chappe.sealing.senders import SALT_BYTES

MANY: Final = 12  # of each kind; no world has more
PRODUCERS: Final = tuple(f"producer{number}" for number in range(MANY))
CONSUMERS: Final = tuple(f"consumer{number}" for number in range(MANY))
NAMES: Final = (*PRODUCERS, *CONSUMERS)
TRY_S: Final = 0.5  # how often a consumer looks whether it can open what waits
KEEPS: Final = 0.8  # of the machines may write what they are handed
LAB: Final = 0.5  # of the worlds have another group, for the other topic


class SealedWorld(StandInLog):
    """Who is of which group, and what was sealed."""

    large_answers = LOG_LIMITS.asks_max  # records that come one by one are far larger than plain ones

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.producer, self.consumer, self.journal = SealedProducer, SealedConsumer, SealedJournal
        self.seal_rng = Random(f"groups {self.seed}")
        self.authority = Authority(self.seed, NAMES, self._groups(), lambda: self.clock.wall_us)
        self.nonces = Nonces()
        self.plain: dict[bytes, bytes] = {}  # what each sealed batch was before
        self.told: dict[Any, dict[str, tuple[int, float]]] = {}  # by host and group: of which epoch it heard last, when
        self._machines: dict[str, Machine] = {}

    def _groups(self) -> Mapping[str, tuple[tuple[str, ...], set[str]]]:
        rng = self.seal_rng
        producers = {name for name in PRODUCERS if rng.random() < 0.8}
        groups = {"ward": (("a*",), producers | {name for name in CONSUMERS if rng.random() < 0.6})}
        if rng.random() < LAB:
            groups["lab"] = ("b.x",), producers | {name for name in CONSUMERS if rng.random() < 0.6}
        return groups

    def machine(self, name: str) -> Machine:
        """That of a member, which gets all files when it comes for the first time."""
        found = self._machines.get(name)
        if found is None:
            found = self._machines[name] = Machine(self.authority, name, keeps=self.seal_rng.random() < KEEPS)
        return found

    def known(self, name: str) -> Machine | None:
        """The same, if it has come."""
        return self._machines.get(name)

    def may_send(self, name: str, topic: str) -> bool:
        """See ``LogWorld.may_send``: whether it can seal."""
        host = self.hosts[name]
        assert isinstance(host, SealedProducer)
        return host.may_seal()

    def opened(self, batch: Batch) -> Batch:
        """See ``LogWorld.opened``."""
        if batch.sealed is None:
            return batch
        whole = Batch.parse(self.plain[bytes(batch.sealed)], check=False)
        return whole if whole.count == batch.count else Batch.parse(whole.slice(batch.base, batch.next), check=False)

    def sealed_from(self, host: SealedProducer, raw: bytes, sealed: bytes) -> None:
        """A producer has sealed a batch, whether it is published or not."""
        body = Batch.parse(sealed, check=False).sealed
        assert body is not None
        frame = decode(body)
        self.plain[bytes(body)] = raw
        self.see("on_sealed", host, frame)


class SealedJournal(Journal):
    """It keeps what was gathered as it was sealed."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._gathered: dict[int, bytes] = {}

    def pend_sealed(self, offset: int, body: bytes, value: bytes | None) -> None:
        """See ``pend``."""
        self._settle()
        self._gathered[offset] = body
        self.given[offset] = value

    def everything(self) -> list[bytes]:
        """All that is on the disk."""
        return [*self.batches, *self._gathered.values()]

    def reopened(self) -> Journal:
        """See ``Journal.reopened``; what was gathered is published as it is."""
        super().reopened()
        refusing, self.refusing = self.refusing, 0.0
        for offset, body in sorted(self._gathered.items()):
            if offset == self.next_offset:
                self.append(body)
        self.refusing = refusing
        self._gathered = {}
        return self

    def restore(self, backup: Backup) -> None:
        """See ``Journal.restore``."""
        for offset in self._gathered:
            self.given.pop(offset, None)
        self._gathered = {}
        super().restore(backup)

    def _appended(self) -> None:
        super()._appended()
        self._gathered = {offset: each for offset, each in self._gathered.items() if offset >= self.next_offset}


class SealedProducer(ProducerHost):
    """One that seals as ``api.log.sealed`` does."""

    world: SealedWorld
    mark = MARK

    def __init__(self, world: SealedWorld, name: str, topic: str, address: str, *arguments: Any) -> None:
        self.machine = world.machine(name)
        self.machine.restarted()
        self.held = self.machine.held()
        self.began = world.now
        self.taken_at, self.taken_us = world.now, 0  # when it took records last, also by the time of day
        self.taken_by = self.held.permissions  # the permissions by which it took records last ...
        self.sealed_for: set[str] = set()  # ... and who was in the epoch
        self._look_at = world.now
        rng, make = world.seal_rng, world.nonces.cipher
        self.sealing = RecordSealing(
            self.held, address, lambda: Sealer(name, rng.randbytes(SALT_BYTES), sign_of(name), make)
        )
        super().__init__(world, name, topic, address, *arguments)
        world.see("on_partition", self)

    def may_seal(self) -> bool:
        """Whether it can take records now."""
        if self.world.now >= self._look_at:
            self.look_again()
        return self._check()

    def look_again(self) -> None:
        """Look at the files, and seal by them from now on."""
        now = self.world.now
        self.machine.look_to_seal(self.held, now - self.began, now)
        self._check()
        self._look_at = now + LOOK_S

    def _check(self) -> bool:
        may = not self.sealing.check(self.core.topic)
        group = self.held.group(self.core.topic)
        ring = None if group is None else self.held.ring(group.name)
        if may and ring is not None:  # what is gathered now is sealed by these, even if others come before it leaves
            self.taken_at, self.taken_us = self.world.now, self.world.clock.wall_us
            self.taken_by, self.sealed_for = self.held.permissions, ring.keys.members()
        return may

    def seal(self, raw: bytes) -> bytes:
        """See ``ProducerHost.seal``."""
        sealed = self.sealing.seal(self.core.topic, raw, self.world.clock.wall_us)
        if sealed is not raw:
            self.world.sealed_from(self, raw, sealed)
        return sealed

    def _pend(self, offset: int, record: Any) -> None:
        if not isinstance(self.journal, SealedJournal) or not self.sealing.seals(self.core.topic):
            super()._pend(offset, record)
        elif self.core.pending:
            value, key, headers, stamp = record
            body = encode_batch(
                offset, [value], stamp, keys=None if key is None else [key], headers=[headers] if headers else None
            )
            try:
                self.journal.pend_sealed(offset, self.core.sealed(body), value)
            except StorageError:
                self.core.take_back(offset)


class SealedConsumer(ConsumerHost):
    """One that opens what is delivered, in the order of each partition, as soon as it has the keys."""

    world: SealedWorld

    def __init__(self, world: SealedWorld, name: str, *arguments: Any) -> None:
        self.machine = world.machine(name)
        self.machine.restarted()
        self.held = self.machine.held()
        self.opening = RecordOpening(self.held)
        super().__init__(world, name, *arguments)
        self.next = dict(self.positions)  # offsets behind what was opened or refused
        self.senders: dict[Key, str] = {}  # of partitions of which something was opened
        self.kept: dict[Key, deque[tuple[int, Batch]]] = {}  # what waits for keys, with the offsets that count

    def start(self) -> None:
        """See ``Host.start``."""
        super().start()
        self.world.clock.after(TRY_S, self._try)

    def taken(self) -> dict[Key, int]:
        """See ``ConsumerHost.taken``."""
        return {key: self.kept[key][0][0] if self.kept.get(key) else at for key, at in self.next.items()}

    def deliver(self, action: Records) -> None:
        """See ``ConsumerHost.deliver``."""
        super().deliver(action)
        key = action.topic, action.partition
        if not self.kept.get(key):
            self.world.see("on_coming", self, key, action.batch)
        self.kept.setdefault(key, deque()).append((action.start, action.batch))
        self._read_on(key)

    def _try(self) -> None:
        if not self.alive:
            return
        self.world.clock.after(TRY_S, self._try)
        if not self.frozen:
            self.machine.look(self.held)
            for topic, partition, offset in self.opening.again():
                self._go_back((topic, partition), offset)
            for key in list(self.kept):
                self._read_on(key)

    def _go_back(self, key: Key, offset: int) -> None:
        """It was not of the group by its own files, and is."""
        self.world.trace(self, "goes back to %s/%s %d", key[0], key[1][:6], offset)
        self.kept[key] = deque([each for each in self.kept.get(key, ()) if each[1].next <= offset])
        self.next[key] = self.positions[key] = offset
        self._carry(self.core.seek(*key, offset, self.world.now, strict=False))

    def _read_on(self, key: Key) -> None:
        waiting = self.kept[key]
        while waiting:
            start, batch = waiting[0]
            outcome = self.opening.open(*key, batch)
            if not isinstance(outcome, OpenedRead) and outcome.why is UnreadWhy.NO_KEYS_YET:
                return
            waiting.popleft()
            if not isinstance(outcome, OpenedRead) and outcome.why is UnreadWhy.NOT_OURS:
                self.opening.pass_over(*key, batch, start)
            self.world.see("on_outcome", self, key, start, batch, outcome)
            self.next[key] = batch.next
            if isinstance(outcome, OpenedRead) and outcome.sender is not None:
                self.senders[key] = outcome.sender
