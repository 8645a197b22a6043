"""The keys of a group, by epoch, as the authority makes them.

An epoch has one secret. The first epoch, and each one after somebody has left, is *fresh*: its secret comes out of the
authority's key and random bytes, and is wrapped for each member. Where somebody has only joined, the secret of the
next epoch is derived from the one before, which goes one way: those who were there find it themselves, and it is
wrapped for who is new. So a thousand joins cost a thousand entries, and not a million; and who is new reads nothing
earlier.

The authority's key is enough to find every secret: nothing has to be remembered beside it. What the authority does are
changes, an epoch or what was given of former ones, and only the newest is ever added: see ``chain``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, TypeAlias

import msgspec

from chappe.errors import ConfigError
from chappe.permissions.text import IDENTITIES_MAX, NAME_MAX
from chappe.sealing.primitives import KEY_BYTES, TAG_BYTES, Cipher, derived, public_of, shared_secret

EPOCHS_MAX: Final = 20_000
EPOCH_MAX: Final = 2**32 - 1
WRAPPED_BYTES: Final = KEY_BYTES + TAG_BYTES

Key = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)]
_Number = Annotated[int, msgspec.Meta(ge=1, le=EPOCH_MAX)]
_Wrapped = Annotated[bytes, msgspec.Meta(min_length=WRAPPED_BYTES, max_length=WRAPPED_BYTES)]


class Epoch(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag="epoch"):
    """One epoch; ``keys`` has its secret wrapped for members by name, of an epoch that is not fresh for new ones.

    ``lasting`` is the group's secret that never changes, wrapped with that of the epoch; empty in older files.
    """

    number: _Number
    made: Annotated[datetime, msgspec.Meta(tz=True)]
    fresh: bool
    salt: Key
    keys: Annotated[dict[Name, _Wrapped], msgspec.Meta(max_length=IDENTITIES_MAX)]
    lasting: Annotated[bytes, msgspec.Meta(max_length=WRAPPED_BYTES)] = b""


class Given(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag="given"):
    """Secrets of former epochs, by number, wrapped for one member that had not been there."""

    name: Name
    keys: Annotated[dict[_Number, _Wrapped], msgspec.Meta(max_length=EPOCHS_MAX)]


Change: TypeAlias = Epoch | Given


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """The keys of a group after all changes; of two states the one with the higher version counts."""

    group: str
    authority: bytes
    version: int
    epochs: tuple[Epoch, ...]

    @property
    def newest(self) -> Epoch:
        return self.epochs[-1]

    def epoch(self, number: int) -> Epoch | None:
        at = number - self.epochs[0].number
        return self.epochs[at] if 0 <= at < len(self.epochs) else None

    def has(self, name: str, number: int) -> bool:
        at = number - self.epochs[0].number
        while 0 <= at < len(self.epochs):
            if name in self.epochs[at].keys:
                return True
            if self.epochs[at].fresh:
                return False
            at -= 1
        return False

    def members(self) -> set[str]:
        found: set[str] = set()
        for each in reversed(self.epochs):
            found |= each.keys.keys()
            if each.fresh:
                break
        return found

    def after(self, *changes: Change) -> GroupKeys:
        """Add these changes. Raises ConfigError if they do not follow."""
        epochs = list(self.epochs)
        for each in changes:
            if isinstance(each, Epoch):
                last = epochs[-1] if epochs else None
                if not each.fresh if last is None else each.number != last.number + 1 or each.made < last.made:
                    raise ConfigError("it is malformed: its epochs do not follow each other")
                epochs.append(each)
                continue
            for number, wrapped in each.keys.items():
                at = number - epochs[0].number if epochs else -1
                if 0 <= at < len(epochs):  # else it went at the bound
                    entries = epochs[at].keys | {each.name: wrapped}
                    epochs[at] = msgspec.structs.replace(epochs[at], keys=entries)
        return GroupKeys(self.group, self.authority, self.version + len(changes), tuple(epochs))

    def since(self, number: int) -> GroupKeys:
        """Leave out the epochs before this one, which is fresh."""
        return GroupKeys(self.group, self.authority, self.version, self.epochs[number - self.epochs[0].number :])


def next_secret(secret: bytes, group: str, epoch: Epoch) -> bytes:
    """The secret of an epoch that is not fresh, from that of the one before."""
    return derived(secret, b"chappe sealed next 1", group.encode(), epoch.number.to_bytes(4), salt=epoch.salt)


def wrapping(private: bytes, public: bytes, group: str, number: int, salt: bytes, name: str) -> Cipher | None:
    """Return the cipher that wraps a secret for one member, in one epoch; it serves for one text."""
    common = shared_secret(private, public)
    if common is None:
        return None
    parts = (group.encode(), number.to_bytes(4), name.encode())
    return Cipher(derived(common, b"chappe sealed wrap 1", *parts, salt=salt))


def lasting_wrapping(secret: bytes, group: str, number: int) -> Cipher:
    """Return the cipher that wraps the group's lasting secret in one epoch; it serves for one text."""
    return Cipher(derived(secret, b"chappe sealed lasting wrap 1", group.encode(), number.to_bytes(4)))


@dataclass(frozen=True, slots=True)
class GroupAuthority:
    """The authority, which makes epochs. ``key``: a secret of the authority that it always has."""

    key: bytes

    def __repr__(self) -> str:
        return "<Keeper>"

    @property
    def public(self) -> bytes:
        return public_of(self._private)

    def changed(self, keys: GroupKeys, members: Mapping[str, bytes], salt: bytes, now: datetime) -> Epoch | None:
        """The next epoch if ``members``, CURVE keys by name, have changed; ``salt``: 32 random bytes, never used."""
        former = keys.members()
        if former == members.keys() and keys.epochs:
            return None
        if former - members.keys() or not keys.epochs:
            return self.rotated(keys, members, salt, now)
        number, new = keys.newest.number + 1, {name: members[name] for name in members.keys() - former}
        made = Epoch(number, max(_moment(now), keys.newest.made), False, salt, {})
        secret = next_secret(self.secret(keys, keys.newest.number), keys.group, made)
        return self._whole(keys.group, made, secret, new)

    def rotated(self, keys: GroupKeys, members: Mapping[str, bytes], salt: bytes, now: datetime) -> Epoch:
        """Make the next epoch like ``changed``, and a fresh one in any case."""
        made, number = _moment(now), 1
        if keys.epochs:
            made, number = max(made, keys.newest.made), keys.newest.number + 1
        secret = self._secret(keys.group, number, salt)
        return self._whole(keys.group, Epoch(number, made, True, salt, {}), secret, members)

    def given(self, keys: GroupKeys, name: str, curve: bytes, since: int) -> Given | None:
        """Wrap the secrets since an epoch for a member of the newest one; None if it has all of them."""
        found: dict[int, bytes] = {}
        for each in keys.epochs:
            if each.number >= since and not keys.has(name, each.number) and (each.fresh or each.number == since):
                secret = self.secret(keys, each.number)
                for wrapped in self._wrapped(keys.group, each.number, each.salt, secret, {name: curve}).values():
                    found[each.number] = wrapped
        return Given(name, found) if found else None

    def secret(self, keys: GroupKeys, number: int) -> bytes:
        passed = []
        epoch = keys.epoch(number)
        while epoch is not None and not epoch.fresh:
            passed.append(epoch)
            epoch = keys.epoch(epoch.number - 1)
        assert epoch is not None
        secret = self._secret(keys.group, epoch.number, epoch.salt)
        for each in reversed(passed):
            secret = next_secret(secret, keys.group, each)
        return secret

    @property
    def _private(self) -> bytes:
        return derived(self.key, b"chappe sealed authority 1")

    def _secret(self, group: str, number: int, salt: bytes) -> bytes:
        return derived(self.key, b"chappe sealed epoch 1", group.encode(), number.to_bytes(4), salt=salt)

    def _whole(self, group: str, epoch: Epoch, secret: bytes, members: Mapping[str, bytes]) -> Epoch:
        entries = self._wrapped(group, epoch.number, epoch.salt, secret, members)
        lasting = derived(self.key, b"chappe sealed lasting 1", group.encode())
        sealed = lasting_wrapping(secret, group, epoch.number).seal(0, lasting, b"")
        return msgspec.structs.replace(epoch, keys=entries, lasting=sealed)

    def _wrapped(
        self, group: str, number: int, salt: bytes, secret: bytes, members: Mapping[str, bytes]
    ) -> dict[str, bytes]:
        private, found = self._private, {}
        for name, curve in sorted(members.items()):
            cipher = wrapping(private, curve, group, number, salt, name)
            if cipher is not None:  # else it is a key with which nobody can have anything in common
                found[name] = cipher.seal(0, secret, b"")
        return found


def _moment(now: datetime) -> datetime:
    return now.astimezone(UTC).replace(microsecond=0)
