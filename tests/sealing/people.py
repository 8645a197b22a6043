"""An authority, members of a group and their keys, all of them drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from chappe.permissions.rules import Identity
from chappe.sealing.epochs import Change, GroupAuthority, GroupKeys
from chappe.sealing.primitives import KEY_BYTES, Cipher, Sign, point_of, public_of, signer
from chappe.sealing.records import OpenedRecords, Opener, Outcome, RecordSpan, Sealer
from chappe.sealing.ring import Ring
from chappe.sealing.senders import SALT_BYTES

START: Final = datetime(2026, 11, 1, tzinfo=UTC)
FAR: Final = datetime(2100, 1, 1, tzinfo=UTC)
SPAN: Final = RecordSpan(40, 3, 1_000, 2_000)
TEXT: Final = b"what nobody else is to read"


@cache
def _signing(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass
class Group:
    """The group ``ward``, and everybody that ever was of it."""

    seed: int = 1
    now: datetime = START
    private: dict[str, bytes] = field(default_factory=dict)
    identities: dict[str, Identity] = field(default_factory=dict)
    members: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.keeper = GroupAuthority(self.rng.randbytes(KEY_BYTES))
        for name in ("ann", "bob"):
            self._enter(name)
        self.keys = GroupKeys("ward", self.keeper.public, 0, ())
        self._change()

    def _enter(self, name: str) -> None:
        if name not in self.private:
            self.private[name] = self.rng.randbytes(KEY_BYTES)
            public, point = public_of(self.private[name]), point_of(_signing(name).public_key())
            self.identities[name] = Identity(name, "doctor", public, None, FAR, signs=point)
        self.members[name] = self.identities[name].curve

    def _change(self) -> None:
        made = self.keeper.changed(self.keys, self.members, self.rng.randbytes(KEY_BYTES), self.now)
        if made is not None:
            self.take(made)

    def join(self, *names: str) -> None:
        for name in names:
            self._enter(name)
        self._change()

    def leave(self, name: str) -> None:
        del self.members[name]
        self._change()

    def rotate(self) -> None:
        self.take(self.keeper.rotated(self.keys, self.members, self.rng.randbytes(KEY_BYTES), self.now))

    def give(self, name: str, since: int) -> None:
        made = self.keeper.given(self.keys, name, self.members[name], since)
        assert made is not None
        self.take(made)

    def take(self, change: Change) -> None:
        self.keys = self.keys.after(change)

    def pass_time(self, days: float) -> None:
        self.now += timedelta(days=days)

    def ring(self, name: str, keys: GroupKeys | None = None) -> Ring:
        return Ring(self.keys if keys is None else keys, name, self.private[name])

    def sign(self, name: str) -> Sign:
        return signer(_signing(name))

    def sealer(self, name: str, cipher: type[Cipher] = Cipher) -> Sealer:
        return Sealer(name, self.rng.randbytes(SALT_BYTES), self.sign(name), cipher)

    def sealed(
        self,
        sender: str = "ann",
        *,
        by: Sealer | None = None,
        topic: str = "patients/1",
        partition: str = "P",
        span: RecordSpan = SPAN,
        text: bytes = TEXT,
        keys: GroupKeys | None = None,
        place: int | None = None,
    ) -> bytes:
        secret = self.ring(sender, keys).newest
        assert secret is not None
        by = self.sealer(sender) if by is None else by
        return b"".join(by.seal(secret, topic, partition, span, text, self.micros, place))

    @property
    def micros(self) -> int:
        return round(self.now.timestamp()) * 1_000_000

    def opened(
        self,
        raw: bytes,
        by: str = "bob",
        *,
        opener: Opener | None = None,
        topic: str = "patients/1",
        partition: str = "P",
        span: RecordSpan = SPAN,
        keys: GroupKeys | None = None,
    ) -> Outcome:
        opener = Opener() if opener is None else opener
        return opener.open(raw, topic, partition, span, self.ring(by, keys), self.identities)


def text_of(outcome: Outcome) -> bytes:
    assert isinstance(outcome, OpenedRecords), outcome
    return outcome.content
