"""The keys of a group, by epoch: a file that the authority makes and signs, and that everybody may read.

An epoch has one secret. The first epoch, and each one after somebody has left, is *fresh*: its secret comes out of the
authority's key and random bytes, and is wrapped for each member. Where somebody has only joined, the secret of the
next epoch is derived from the one before, which goes one way: those who were there find it themselves, and it is
wrapped for who is new. So a thousand joins cost a thousand entries, and not a million; and who is new reads nothing
earlier.

::

    {"group": "ward", "version": 3, "authority": "X25519 public key",
     "epochs": [{"number": 1, "made": "2026-11-23T20:00:00Z", "fresh": true, "salt": "...",
                 "keys": {"doctor": "secret, wrapped", ...}}, ...]}

    # signed: ecdsa-p256-sha256 MEUC...

Whoever has the authority's key can find every secret: nothing has to be remembered beside it. At the bound of the file
the oldest epochs go, up to the next fresh one; what was sealed in them can then no longer be opened with this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated, Final

import msgspec

from chappe.errors import ConfigError
from chappe.permissions.text import IDENTITIES_MAX, NAME_MAX, VERSION_MAX, Check, check_name, signed, split
from chappe.sealing.primitives import KEY_BYTES, TAG_BYTES, Cipher, derived, public_of, shared_secret

FILE_BYTES_MAX: Final = 16 << 20
KEPT_BYTES_MAX: Final = 12 << 20  # of a new file, before its form is made: the oldest epochs go beyond it
EPOCHS_MAX: Final = 20_000
EPOCH_MAX: Final = 2**32 - 1
WRAPPED_BYTES: Final = KEY_BYTES + TAG_BYTES
ENTRY_BYTES: Final = 80  # that an entry takes in the file beside its name
CONTEXT: Final = b"chappe sealed group 1\n"  # before what is signed

_Key = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
_Wrapped = Annotated[bytes, msgspec.Meta(min_length=WRAPPED_BYTES, max_length=WRAPPED_BYTES)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)]


class Epoch(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One epoch; ``keys`` has its secret wrapped for members by name, of an epoch that is not fresh for new ones."""

    number: Annotated[int, msgspec.Meta(ge=1, le=EPOCH_MAX)]
    made: Annotated[datetime, msgspec.Meta(tz=True)]
    fresh: bool
    salt: _Key
    keys: Annotated[dict[_Name, _Wrapped], msgspec.Meta(max_length=IDENTITIES_MAX)]


class GroupKeys(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a file says; of two the one with the higher version counts."""

    group: _Name
    version: Annotated[int, msgspec.Meta(ge=1, le=VERSION_MAX)]
    authority: _Key
    epochs: Annotated[tuple[Epoch, ...], msgspec.Meta(min_length=1, max_length=EPOCHS_MAX)]

    @property
    def newest(self) -> Epoch:
        """The one that records are sealed in now."""
        return self.epochs[-1]

    def epoch(self, number: int) -> Epoch | None:
        """The one with this number, if it is known."""
        at = number - self.epochs[0].number
        return self.epochs[at] if 0 <= at < len(self.epochs) else None

    def has(self, name: str, number: int) -> bool:
        """Whether somebody is a member in an epoch."""
        at = number - self.epochs[0].number
        while 0 <= at < len(self.epochs):
            if name in self.epochs[at].keys:
                return True
            if self.epochs[at].fresh:
                return False
            at -= 1
        return False

    def members(self) -> set[str]:
        """Those of the newest epoch."""
        found: set[str] = set()
        for each in reversed(self.epochs):
            found |= each.keys.keys()
            if each.fresh:
                break
        return found


def verified(raw: bytes, group: str, check: Check) -> GroupKeys:
    """What a file says, if the authority has signed it for this group.

    Raises:
        ConfigError: It has not, or the file is too large or malformed. The text lacks the file's name.
    """
    body, signature = split(raw, FILE_BYTES_MAX)
    if signature is None or not check(signature, CONTEXT + body):
        raise ConfigError("it is not as the authority signed it: `chappe keys rotate` makes it anew")
    try:
        found = msgspec.json.decode(body, type=GroupKeys)
        check_name(found.group, "a group")
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"it is malformed: {error}") from None
    if found.group != group:
        raise ConfigError(f"it is of the group {found.group}, and not of {group}")
    if not found.epochs[0].fresh or any(b.number != a.number + 1 or b.made < a.made for a, b in pairwise(found.epochs)):
        raise ConfigError("it is malformed: its epochs do not follow each other")
    return found


def written(keys: GroupKeys, sign: Callable[[bytes], bytes]) -> bytes:
    """The file."""
    return signed(msgspec.json.encode(keys), sign, CONTEXT)


def next_secret(secret: bytes, group: str, epoch: Epoch) -> bytes:
    """The secret of an epoch that is not fresh, from that of the one before."""
    return derived(secret, b"chappe sealed next 1", group.encode(), epoch.number.to_bytes(4), salt=epoch.salt)


def wrapping(private: bytes, public: bytes, group: str, number: int, salt: bytes, name: str) -> Cipher | None:
    """What a secret is wrapped with for one member, in one epoch; it serves for one text."""
    common = shared_secret(private, public)
    if common is None:
        return None
    parts = (group.encode(), number.to_bytes(4), name.encode())
    return Cipher(derived(common, b"chappe sealed wrap 1", *parts, salt=salt))


@dataclass(frozen=True, slots=True)
class Keeper:
    """The authority, which makes epochs.

    Args:
        key: A secret of the authority that it always has.
    """

    key: bytes

    def __repr__(self) -> str:
        return "<Keeper>"

    def first(self, group: str, members: Mapping[str, bytes], salt: bytes, now: datetime) -> GroupKeys:
        """A new group.

        Args:
            members: CURVE keys by name.
            salt: 32 random bytes, never used before.
        """
        return GroupKeys(group, 1, public_of(self._private), (self._fresh(group, 1, members, salt, now),))

    def changed(self, keys: GroupKeys, members: Mapping[str, bytes], salt: bytes, now: datetime) -> GroupKeys:
        """The keys for these members from now on; the same if they are those of the newest epoch."""
        former = keys.members()
        if former == members.keys():
            return keys
        if former - members.keys():
            return self.rotated(keys, members, salt, now)
        number, new = keys.newest.number + 1, {name: members[name] for name in members.keys() - former}
        made = Epoch(number, max(_moment(now), keys.newest.made), False, salt, {})
        secret = next_secret(self.secret(keys, keys.newest.number), keys.group, made)
        entries = self._wrapped(keys.group, number, salt, secret, new)
        return self._with(keys, msgspec.structs.replace(made, keys=entries))

    def rotated(self, keys: GroupKeys, members: Mapping[str, bytes], salt: bytes, now: datetime) -> GroupKeys:
        """As ``changed``, and a fresh epoch in any case."""
        made = self._fresh(keys.group, keys.newest.number + 1, members, salt, max(_moment(now), keys.newest.made))
        return self._with(keys, made)

    def given(self, keys: GroupKeys, name: str, curve: bytes, since: int) -> GroupKeys:
        """With what was sealed since an epoch for a member of the newest one."""
        epochs = []
        for each in keys.epochs:
            if each.number >= since and not keys.has(name, each.number) and (each.fresh or each.number == since):
                secret = self.secret(keys, each.number)
                entry = self._wrapped(keys.group, each.number, each.salt, secret, {name: curve})
                each = msgspec.structs.replace(each, keys=each.keys | entry)
            epochs.append(each)
        return _bounded(msgspec.structs.replace(keys, version=keys.version + 1, epochs=tuple(epochs)))

    def secret(self, keys: GroupKeys, number: int) -> bytes:
        """Of an epoch that is known."""
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

    def _fresh(self, group: str, number: int, members: Mapping[str, bytes], salt: bytes, now: datetime) -> Epoch:
        entries = self._wrapped(group, number, salt, self._secret(group, number, salt), members)
        return Epoch(number, _moment(now), True, salt, entries)

    def _wrapped(
        self, group: str, number: int, salt: bytes, secret: bytes, members: Mapping[str, bytes]
    ) -> dict[str, bytes]:
        private, found = self._private, {}
        for name, curve in sorted(members.items()):
            cipher = wrapping(private, curve, group, number, salt, name)
            if cipher is not None:  # else it is a key with which nobody can have anything in common
                found[name] = cipher.seal(0, secret, b"")
        return found

    def _with(self, keys: GroupKeys, epoch: Epoch) -> GroupKeys:
        return _bounded(msgspec.structs.replace(keys, version=keys.version + 1, epochs=(*keys.epochs, epoch)))


def _bounded(keys: GroupKeys) -> GroupKeys:
    """Without the oldest epochs that are beyond the bound; never without the newest fresh one and what follows it."""
    sizes = [ENTRY_BYTES * 2 + sum(ENTRY_BYTES + len(name) for name in each.keys) for each in keys.epochs]
    size, first = sum(sizes), 0
    starts = [at for at, each in enumerate(keys.epochs) if each.fresh]
    for begin, end in pairwise(starts):
        if size <= KEPT_BYTES_MAX and len(sizes) - first <= EPOCHS_MAX:
            break
        size -= sum(sizes[begin:end])
        first = end
    return keys if not first else msgspec.structs.replace(keys, epochs=keys.epochs[first:])


def _moment(now: datetime) -> datetime:
    return now.astimezone(UTC).replace(microsecond=0)
