"""What stores and forwarders that lie, members and former members could put in the place of a sealed batch."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from random import Random
from typing import Any, Final

from tests.worlds.sealed.members import WatchedOpening
from tests.worlds.sealing import MARK, private_of, sign_of

from chappe.log.batch import Batch, encode_batch, encode_sealed
from chappe.log.opened import OpenedRead
from chappe.log.sources import Key
from chappe.permissions.rules import Group
from chappe.sealing.records import RecordSpan, Sealer, decode
from chappe.sealing.ring import CHANGE, Ring
from chappe.sealing.senders import SALT_BYTES
from chappe.sim.world import Checker

FORGED: Final = 0.25  # of what is delivered comes after something that somebody has made up
SEEN_MAX: Final = 50  # batches that can be put elsewhere


class Forgeries(Checker[Any]):
    """No reader takes any of it; with chance of their own."""

    name = "forgeries"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._rng = Random(f"forgeries {world.seed}")
        self._seen: deque[Batch] = deque(maxlen=SEEN_MAX)
        self.refused = 0

    def on_coming(self, host: WatchedOpening, key: Key, batch: Batch) -> None:
        """A reader is about to open something, and gets something else first."""
        if batch.sealed is None or self._rng.random() >= FORGED:
            return
        kinds = [self._changed, self._elsewhere, self._in_the_name_of_another, self._by_another, self._by_who_left,
                 self._by_an_accomplice, self._other_contents, self._plain]  # fmt: skip
        self._rng.shuffle(kinds)
        if self._rng.random() < 0.5:  # else few worlds would have it: somebody has to have left
            kinds.insert(0, self._by_who_left)
        forge, forged = next((forge, found) for forge in kinds if (found := forge(host, key, batch)) is not None)
        self._seen.append(batch)
        where, made = forged
        if isinstance(host.opening.open(*where, made), OpenedRead):
            self.fail(f"{host.name} reads what was {forge.__name__[1:]} as {where} {made.base}")
        self.refused += 1

    def _with(self, batch: Batch, *body: bytes) -> Batch:
        """With the header of a batch."""
        raw = encode_sealed(batch.base, batch.count, batch.timestamp_min, batch.timestamp_max, *body)
        return Batch.parse(raw, check=False)

    def _changed(self, host: WatchedOpening, key: Key, batch: Batch) -> tuple[Key, Batch] | None:
        assert batch.sealed is not None
        body = bytearray(batch.sealed)
        body[self._rng.randrange(len(body))] ^= 1 << self._rng.randrange(8)
        return key, self._with(batch, bytes(body))

    def _plain(self, host: WatchedOpening, key: Key, batch: Batch) -> tuple[Key, Batch] | None:
        raw = encode_batch(batch.base, [MARK + b"forged"] * batch.count, batch.timestamp_min)
        return key, Batch.parse(raw, check=False)

    def _elsewhere(self, host: WatchedOpening, key: Key, batch: Batch) -> tuple[Key, Batch] | None:
        """What was sealed for other records, or these ones for another place."""
        assert batch.sealed is not None
        other = self._rng.choice(self._seen) if self._seen else None
        if other is None or other.sealed is None or other.sealed == batch.sealed or self._rng.random() < 0.3:
            topic, partition = key
            return self._rng.choice(((topic, partition[::-1]), ("ab" if topic == "a" else "a", partition))), batch
        return key, self._with(batch, other.sealed.tobytes())

    def _in_the_name_of_another(self, host: WatchedOpening, key: Key, batch: Batch) -> tuple[Key, Batch] | None:
        """A member seals as if it were somebody else: it has the same secret."""
        members = sorted(self.world.authority.members[self._group(key)])
        if len(members) < 2:
            return None
        member, other = self._rng.sample(members, 2)
        return self._sealed(key, batch, member, other)

    def _by_another(self, host: WatchedOpening, key: Key, batch: Batch) -> tuple[Key, Batch] | None:
        """A member writes into the partition of somebody else, of which the reader knows."""
        members = sorted(self.world.authority.members[self._group(key)] - {host.senders.get(key, "")})
        if key not in host.senders or not members:
            return None
        member = self._rng.choice(members)
        return self._sealed(key, batch, member, member)

    def _by_an_accomplice(self, host: WatchedOpening, key: Key, batch: Batch) -> tuple[Key, Batch] | None:
        """A member has given the newest key to somebody who is known, and is not of the group."""
        authority, group = self.world.authority, self._group(key)
        newest = authority.keys(group).newest.number
        others = [
            each
            for each in authority.names
            if newest not in authority.entitled[group, each] and not authority.revoked(each)
        ]
        if not others or not host.held.ring(group):
            return None
        member, other = self._rng.choice(sorted(authority.members[group])), self._rng.choice(others)
        return self._sealed((key[0], f"of {other}"), batch, member, other, other)

    def _other_contents(self, host: WatchedOpening, key: Key, batch: Batch) -> tuple[Key, Batch] | None:
        """A member puts other contents under the signature of who sealed these."""
        assert batch.sealed is not None
        frame = decode(batch.sealed)
        member = min(self.world.authority.members[frame.group])
        secret = Ring(self.world.authority.keys(frame.group), member, private_of(member)).secret(frame.epoch)
        if secret is None:
            return None
        raw = bytearray(self.world.plain[bytes(batch.sealed)])
        raw[-1] ^= 1
        sealer = Sealer(frame.sender, frame.salt, lambda text: frame.signature)
        sealer._number = frame.number  # with the same number: who means harm does not mind
        body = sealer.seal(secret, *key, frame.span, bytes(raw), frame.sealed_at)
        return key, self._with(batch, *body)

    def _by_who_left(self, host: WatchedOpening, key: Key, batch: Batch) -> tuple[Key, Batch] | None:
        """One that is no member any more begins a partition, with the newest key that it has."""
        world, group = self.world, self._group(key)
        identities, keys = host.held.permissions.identities, host.held.ring(group)
        if keys is None:
            return None
        gone = [
            name for name, who in sorted(identities.items())
            if name not in world.authority.members[group] and world.authority.entitled[group, name]
            and (who.revoked is not None or self._late(keys, max(world.authority.entitled[group, name])))
        ]  # fmt: skip
        if not gone:
            return None
        name = self._rng.choice(gone)
        return self._sealed((key[0], f"of {name}"), batch, name, name)

    def _late(self, ring: Ring, epoch: int) -> bool:
        """Whether an epoch is over for longer than a day, as the reader knows."""
        following = ring.keys.epoch(epoch + 1)
        return following is not None and self.world.authority.now > following.made + CHANGE + timedelta(minutes=1)

    def _sealed(self, key: Key, batch: Batch, member: str, sender: str, signer: str = "") -> tuple[Key, Batch] | None:
        """With the keys of a member, in the name of a sender, signed by the member if nobody else does."""
        authority, group = self.world.authority, self._group(key)
        ring = Ring(authority.keys(group), member, private_of(member))
        secret = ring.secret(max(authority.entitled[group, member], default=0))
        if secret is None:
            return None
        raw = encode_batch(batch.base, [MARK + b"forged"] * batch.count, batch.timestamp_min)
        span = RecordSpan(batch.base, batch.count, batch.timestamp_min, batch.timestamp_min)
        sealer = Sealer(sender, self._rng.randbytes(SALT_BYTES), sign_of(signer or member))
        body = sealer.seal(secret, *key, span, raw, self.world.clock.wall_us)
        made = encode_sealed(span.base, span.count, span.low, span.high, *body)
        return key, Batch.parse(made, check=False)

    def _group(self, key: Key) -> str:
        found: Group | None = self.world.authority.versions[0].group(key[0])
        assert found is not None
        return found.name
