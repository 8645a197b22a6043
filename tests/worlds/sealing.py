"""Groups in a world: the authority that changes them, and the files that each machine has of it.

Identities' keys are the same in all worlds, what is random comes from the seed, and the cryptography is the real one;
so of a world that is played again signatures alone look different. Permissions are signed by nobody: a file of them is
its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from random import Random
from typing import Final
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from chappe.permissions.rules import Group, Identity, Permissions, Rule
from chappe.permissions.text import Check, moment, signed, with_group, with_identity, with_line
from chappe.sealing.chain import KeyChain
from chappe.sealing.epochs import Change, GroupAuthority, GroupKeys
from chappe.sealing.primitives import KEY_BYTES, Cipher, Sign, point_of, public_of, signer, verifier
from chappe.sealing.ring import Ring
from chappe.sim.world import Violation

BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
FAR: Final = datetime(2100, 1, 1, tzinfo=UTC)
MARK: Final = b"plain text "  # in all that is to be sealed
AUTHORITY: Final = "the authority"
LOOK_S: Final = 1.0  # between two looks of a program at its files


@cache
def private_of(name: str) -> bytes:
    """Somebody's X25519 key."""
    return sha256(b"curve " + name.encode()).digest()


@cache
def signing_key_of(name: str) -> ec.EllipticCurvePrivateKey:
    """Somebody's key to sign with."""
    return ec.derive_private_key(int.from_bytes(sha256(b"signs " + name.encode()).digest()), ec.SECP256R1())


@cache
def sign_of(name: str) -> Sign:
    """What signs as somebody."""
    return signer(signing_key_of(name))


@cache
def pem_of(name: str) -> bytes:
    """The file of somebody's keys, as ``chappe keys`` writes it."""
    keys = signing_key_of(name), X25519PrivateKey.from_private_bytes(private_of(name))
    form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    return b"".join([each.private_bytes(*form) for each in keys])


@cache
def points_of(name: str) -> tuple[bytes, bytes]:
    """Somebody's public keys: of X25519, and to check what is signed."""
    return public_of(private_of(name)), point_of(signing_key_of(name).public_key())


@cache
def check_of(name: str) -> Check:
    """What checks somebody's signatures."""
    return verifier(point_of(signing_key_of(name).public_key()))


def identity_of(
    name: str, *, role: str = "member", endpoint: UUID | None = None, revoked: datetime | None = None
) -> Identity:
    """Somebody as permissions name him."""
    curve, signs = points_of(name)
    return Identity(name, role, curve, endpoint, FAR, signs, revoked)


def signed_file(permissions: Permissions, authority: str = AUTHORITY) -> bytes:
    """The file of these permissions, as an authority has signed it."""
    lines = [
        f"version = {permissions.version}",
        f"issued = {moment(permissions.issued)}",
        f"expires = {moment(permissions.expires)}",
    ]
    for rule in permissions.rules:
        lines += ["[[rules]]", f"{'allow' if rule.allow else 'deny'} = {sorted(rule.verbs)}"]
        lines += [f"{key} = {sorted(some)}" for key, some in (("roles", rule.roles), ("names", rule.names)) if some]
        lines.append(f"topics = {list(rule.topics)}")
    text = "\n".join(lines)
    for each in permissions.identities.values():
        text = with_identity(text, each)
        if each.revoked is not None:
            text = with_line(text, each.name, "revoked", each.revoked)
    for group in permissions.sealed:
        text = with_group(text, group)
    return signed(text.encode(), sign_of(authority))


class Authority:
    """Says who is of which group, and makes their epochs.

    Args:
        names: Whom it knows.
        groups: For whom which topics are sealed at first, by the name of the group.
        now_us: The time of day, in microseconds since 1970 UTC.
        endpoint_of: The endpoint id that somebody's certificate names; None if it names none.
        rules: What the permissions allow beside.
        others: Whom it knows beside, who are of no group.

    Attributes:
        versions: All permissions so far.
        chains: The keys of each group.
        entitled: The epochs of each group that somebody may open, as decided here and by nothing that is tested.
    """

    def __init__(
        self,
        seed: int,
        names: Iterable[str],
        groups: Mapping[str, tuple[tuple[str, ...], Iterable[str]]],
        now_us: Callable[[], int],
        endpoint_of: Callable[[str], UUID | None] = lambda name: None,
        rules: tuple[Rule, ...] = (),
        others: Iterable[str] = (),
    ) -> None:
        self._rng = Random(f"authority {seed}")
        self._now_us = now_us
        self._keeper = GroupAuthority(self._rng.randbytes(KEY_BYTES))
        self._rules = rules
        self._identities: dict[str, Identity] = {}
        self.names = tuple(names)
        for name in (*self.names, *others):
            self._identities[name] = identity_of(name, endpoint=endpoint_of(name))
        self._topics = {name: topics for name, (topics, _) in groups.items()}
        self.members = {name: set(members) for name, (_, members) in groups.items()}
        self.versions: list[Permissions] = []
        self._secrets: dict[bytes, tuple[str, int]] = {}  # whose they are: group and epoch
        self.chains = {name: KeyChain(name, self._keeper.public) for name in groups}
        self.entitled: dict[tuple[str, str], set[int]] = {
            (group, name): set() for group in groups for name in self._identities
        }
        self._follow()

    @property
    def now(self) -> datetime:
        """The time of day."""
        return BEGINNING + timedelta(microseconds=self._now_us())

    @property
    def identities(self) -> Mapping[str, Identity]:
        """Everybody, as the newest permissions say."""
        return self._identities

    def keys(self, group: str) -> GroupKeys:
        """The newest keys of a group."""
        return self.chains[group].keys

    def revoked(self, name: str) -> bool:
        """Whether somebody was revoked."""
        return self._identities[name].revoked is not None

    # -- what it does -----------------------------------------------------------------------------------------

    def join(self, group: str, name: str) -> bool:
        """Have somebody in a group; False if nothing changes by that."""
        if name in self.members[group] or self.revoked(name):
            return False
        self.members[group].add(name)
        self._follow()
        return True

    def leave(self, group: str, name: str) -> bool:
        """Have somebody in a group no more, who is not the last one."""
        if name not in self.members[group] or len(self.members[group]) < 2:
            return False
        self.members[group].discard(name)
        self._follow()
        return True

    def revoke(self, name: str) -> bool:
        """Have somebody be nobody any more."""
        if self.revoked(name) or any(each == {name} for each in self.members.values()):
            return False
        self._identities[name] = replace(self._identities[name], revoked=self.now)
        for each in self.members.values():
            each.discard(name)
        self._follow()
        return True

    def rotate(self, group: str) -> None:
        """Begin a fresh epoch."""
        self._add(group, self._keeper.rotated(self.keys(group), self._curves(group), self._salt(), self.now))

    def give(self, group: str, name: str, since: int) -> bool:
        """Have a member read what was sealed since an epoch."""
        keys = self.keys(group)
        found = self._keeper.given(keys, name, self._identities[name].curve, since)
        if found is None:
            return False
        self.entitled[group, name].update(range(since, keys.newest.number + 1))
        self._add(group, found)
        return True

    # -- inside -----------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Sign other permissions, and give each group a new epoch of which the members are others."""
        sealed = tuple(
            [Group(name, self._topics[name], frozenset(), frozenset(who)) for name, who in self.members.items()]
        )
        by_curve = {each.curve: each for each in self._identities.values()}
        number = len(self.versions) + 1
        self.versions.append(Permissions(number, BEGINNING, FAR, dict(self._identities), self._rules, by_curve, sealed))
        for group in self.members:
            change = self._keeper.changed(self.keys(group), self._curves(group), self._salt(), self.now)
            if change is not None:
                self._add(group, change)

    def _curves(self, group: str) -> dict[str, bytes]:
        return {name: self._identities[name].curve for name in sorted(self.members[group])}

    def _salt(self) -> bytes:
        return self._rng.randbytes(KEY_BYTES)

    def _add(self, group: str, change: Change) -> None:
        before = self.keys(group).version and self.keys(group).newest.number
        self.chains[group].add(change, sign_of(AUTHORITY))
        newest = self.keys(group).newest.number
        for name in self.members[group] if newest != before else ():
            self.entitled[group, name].add(newest)
        for name in self.names:
            self._look(group, name, range(1 if newest == before else newest, newest + 1))

    def _look(self, group: str, name: str, epochs: range) -> None:
        """Somebody finds the secrets of those epochs that he is to have, with all that was ever made."""
        ring = Ring(self.keys(group), name, private_of(name))
        for number in epochs:
            entitled = number in self.entitled[group, name]
            secret = ring.secret(number)
            if secret is not None and self._secrets.setdefault(secret.secret, (group, number)) != (group, number):
                raise Violation("epochs", f"epoch {number} of {group} has a secret that another one has, too")
            if (secret is not None) != entitled:
                what = "has no key of" if entitled else "can find the key of"
                raise Violation("epochs", f"{name} {what} epoch {number} of {group}")


class Nonces:
    """All keys that were ever used to seal in a world, and all numbers with each of them, by all lives of everybody."""

    def __init__(self) -> None:
        self._used: set[tuple[bytes, int]] = set()

    def cipher(self, key: bytes) -> Cipher:
        """What a sender encrypts with; raises Violation when a number serves for the second time."""
        return _WatchedCipher(key, self._used)

    def __len__(self) -> int:
        return len(self._used)


class _WatchedCipher(Cipher):
    __slots__ = ("_key", "_used")

    def __init__(self, key: bytes, used: set[tuple[bytes, int]]) -> None:
        super().__init__(key)
        self._key = key
        self._used = used

    def seal(self, number: int, text: bytes | memoryview, beside: bytes) -> bytes:
        if (self._key, number) in self._used:
            raise Violation("nonces", f"a key is used with the number {number} for the second time")
        self._used.add((self._key, number))
        return super().seal(number, text, beside)
