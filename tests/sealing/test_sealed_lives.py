"""Senders that crash, restart, are restored from backups and meet new epochs, from a seed.

No nonce may be used twice with a key, everybody opens what it may and nothing else, and all that is opened is what was
sealed for those offsets.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.sealing.people import Group

from chappe.sealing.epochs import GroupKeys
from chappe.sealing.primitives import Cipher
from chappe.sealing.records import OpenedRecords, Opener, RecordSpan, Sealer
from chappe.sealing.senders import KeysLacking, SealRefused

NAMES = ("ann", "bob", "cat", "dan")


class Watched(Cipher):
    """Raises when a number comes again with a key."""

    used: set[tuple[bytes, int]] = set()  # noqa: RUF012  (emptied for each world)
    crash: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self._key = key

    def seal(self, number: int, text: bytes | memoryview, beside: bytes) -> bytes:
        assert (self._key, number) not in Watched.used, "a nonce twice"
        Watched.used.add((self._key, number))
        Watched.crash()
        return super().seal(number, text, beside)


class Crash(Exception):
    pass


class Producer:
    """One partition with a journal: what was sealed and kept is told again after a restart, and never sealed again."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.kept: list[tuple[RecordSpan, bytes, bytes, int]] = []  # what, sealed, plain, epoch
        self.keys: GroupKeys = world.group.keys
        self.restart()

    def restart(self) -> None:
        self.sealer: Sealer = self.world.group.sealer(self.name, Watched)

    def send(self) -> None:
        secret = self.world.group.ring(self.name, self.keys).newest
        if secret is None:
            return
        base = self.kept[-1][0].next if self.kept else 0
        span = RecordSpan(base, self.world.rng.randint(1, 50), 0, 9)
        text = self.world.rng.randbytes(self.world.rng.randint(1, 40))
        raw = b"".join(self.sealer.seal(secret, "t", self.name, span, text, self.world.group.micros))
        if self.world.rng.random() < 0.1:
            raise Crash  # sealed, and not kept
        self.kept.append((span, raw, text, secret.number))


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.group = Group(seed)
        self.group.join(*NAMES)
        self.producers = {name: Producer(self, name) for name in NAMES}
        self.readers: dict[str, list[tuple[int, int]]] = {}  # member: from which to which epoch

    def step(self) -> None:
        rng, group = self.rng, self.group
        one = self.producers[rng.choice(NAMES)]
        kind = rng.choice(["send"] * 6 + ["restart", "backup", "rotate", "join", "leave", "hear", "time"])
        if kind == "send":
            Watched.crash = self.maybe
            try:
                one.send()
            except Crash:
                one.restart()
            Watched.crash = staticmethod(lambda: None)
        elif kind == "restart":
            one.restart()
        elif kind == "backup":  # the disk of a former day: what came after it is sealed again, otherwise
            del one.kept[len(one.kept) // 2 :]
            one.restart()
        elif kind == "rotate":
            group.rotate()
        elif kind == "join" and one.name not in group.members:
            group.join(one.name)
        elif kind == "leave" and one.name in group.members and len(group.members) > 1:
            group.leave(one.name)
        elif kind == "hear":
            one.keys = group.keys
        elif kind == "time":
            group.pass_time(rng.random() / 4)

    def maybe(self) -> None:
        if self.rng.random() < 0.1:
            raise Crash

    def read(self, name: str) -> tuple[int, int]:
        """Everything that is kept, by one member with all files; returns how much it opened, and how much not."""
        ring, opener, counts = self.group.ring(name), Opener(), [0, 0]
        for producer in self.producers.values():
            for span, raw, text, epoch in producer.kept:
                outcome = opener.open(raw, "t", producer.name, span, ring, self.group.identities)
                assert not isinstance(outcome, KeysLacking)
                assert isinstance(outcome, SealRefused) or outcome == OpenedRecords(text, producer.name, span)
                if not self.group.keys.has(name, epoch):
                    assert isinstance(outcome, SealRefused)
                counts[isinstance(outcome, SealRefused)] += 1
        return counts[0], counts[1]


@pytest.mark.parametrize("seed", range(40))
def test_no_nonce_is_used_twice_and_everybody_opens_what_it_may(seed: int) -> None:
    Watched.used = set()
    world = World(seed)
    for _ in range(150):
        world.step()
    opened = sum(world.read(name)[0] for name in NAMES)
    assert opened
    assert len(Watched.used) > sum(len(each.kept) for each in world.producers.values())


def test_a_salt_that_comes_again_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    Watched.used = set()
    world = World(0)
    world.rng = random.Random(5)  # which does not crash at once
    one = world.producers["ann"]
    monkeypatch.setattr(
        one, "restart", lambda: setattr(one, "sealer", Sealer("ann", bytes(16), lambda text: bytes(64), Watched))
    )
    one.restart()
    one.send()
    one.restart()
    with pytest.raises(AssertionError, match="a nonce twice"):
        one.send()
