"""The keys that one member has of a group: the secrets of the epochs in which it is a member.

``HeldGroups`` combines the permissions in force with the keys of all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from chappe.permissions.rules import Group, Permissions
from chappe.sealing.epochs import Epoch, GroupKeys, lasting_wrapping, next_secret, wrapping

CHANGE: Final = timedelta(days=1)  # files take time to reach everybody: so long two epochs are accepted
EARLY: Final = timedelta(hours=1)  # not all clocks agree


@dataclass(frozen=True, slots=True)
class EpochSecret:
    group: str
    number: int
    secret: bytes = field(repr=False)


class Ring:
    """The secrets of one member, its ``name`` and ``private`` X25519 key of 32 bytes."""

    def __init__(self, keys: GroupKeys, name: str, private: bytes) -> None:
        self.keys = keys
        self._name = name
        self._private = private
        self._secrets: dict[int, EpochSecret | None] = {}

    def __repr__(self) -> str:
        return f"<Ring of {self._name} for {self.keys.group}>"

    @property
    def newest(self) -> EpochSecret | None:
        """The secret to seal with now; None if the member is none any more, or not yet."""
        return self.secret(self.keys.newest.number)

    def secret(self, number: int) -> EpochSecret | None:
        """Find the secret of one epoch; None if it was not given to the member."""
        if number not in self._secrets:
            epoch = self.keys.epoch(number)
            raw = None if epoch is None else self._find(epoch)
            self._secrets[number] = None if raw is None else EpochSecret(self.keys.group, number, raw)
        return self._secrets[number]

    @property
    def lasting(self) -> bytes | None:
        """The group's secret that never changes; None if the file has none, or the member is in no epoch."""
        for epoch in reversed(self.keys.epochs):
            secret = self.secret(epoch.number) if epoch.lasting else None
            if secret is not None:
                return lasting_wrapping(secret.secret, self.keys.group, epoch.number).open(0, epoch.lasting, b"")
        return None

    def accepts(self, number: int, sealed_at: datetime, sender: str) -> bool:
        """True if somebody may have sealed then in this epoch: since it was made, and until all had the next.

        Who is a member still may also be late: nobody had to hand newer keys to its machine. Whoever had to leave may
        not, though it has the keys.
        """
        keys = self.keys
        epoch, following = keys.epoch(number), keys.epoch(number + 1)
        if epoch is None or sealed_at < epoch.made - EARLY:
            return False
        in_time = following is None or sealed_at <= following.made + CHANGE
        return in_time or keys.has(sender, keys.newest.number)

    def _find(self, epoch: Epoch) -> bytes | None:
        if self._name not in epoch.keys:
            before = None if epoch.fresh else self.secret_before(epoch.number)
            return None if before is None else next_secret(before, self.keys.group, epoch)
        keys = self.keys
        cipher = wrapping(self._private, keys.authority, keys.group, epoch.number, epoch.salt, self._name)
        return None if cipher is None else cipher.open(0, epoch.keys[self._name], b"")

    def secret_before(self, number: int) -> bytes | None:
        """The secret of the epoch before, found forwards: a thousand joins are no thousand calls in each other."""
        start = number - 1
        while (epoch := self.keys.epoch(start)) is not None and start not in self._secrets:
            if epoch.fresh or self._name in epoch.keys:
                break
            start -= 1
        for each in range(start, number - 1):
            self.secret(each)
        found = self.secret(number - 1)
        return None if found is None else found.secret


TOPICS_MAX: Final = 10_000  # of which it is remembered for whom they are sealed


class HeldGroups:
    """The groups of one identity; for one thread at a time.

    Args:
        name: The identity's.
        private: Its X25519 key, 32 bytes.
        permissions: Those in force.
        where: Where the keys of a group belong, for people.

    Attributes:
        changes: Rises when something is other than it was.
    """

    def __init__(self, name: str, private: bytes, permissions: Permissions, where: Callable[[str], object]) -> None:
        self.name = name
        self.permissions = permissions
        self.where = where
        self.changes = 0
        self._doubts: Mapping[str, str] = {}
        self._private = private
        self._rings: dict[str, Ring] = {}
        self._groups: dict[str, Group | None] = {}

    def __repr__(self) -> str:
        return f"<HeldGroups of {self.name}>"

    def take(
        self, permissions: Permissions, keys: Callable[[str], GroupKeys | None], doubts: Mapping[str, str] | None = None
    ) -> None:
        """Go by these permissions and their groups' keys; ``doubts``: by group, why not to seal with the newest."""
        if (doubts or {}) != self._doubts:
            self._doubts = doubts or {}
            self.changes += 1
        if permissions is not self.permissions:
            self.permissions = permissions
            self.changes += 1
            self._groups.clear()
        for group in permissions.sealed:
            found, former = keys(group.name), self._rings.get(group.name)
            if found is not None and (former is None or former.keys is not found):
                self.changes += 1
                self._rings[group.name] = Ring(found, self.name, self._private)

    def group(self, topic: str) -> Group | None:
        """The group for which a topic is sealed; None if it is plain."""
        if topic not in self._groups:
            if len(self._groups) >= TOPICS_MAX:
                self._groups.clear()
            self._groups[topic] = self.permissions.group(topic)
        return self._groups[topic]

    def ring(self, group: str) -> Ring | None:
        return self._rings.get(group)

    def within(self, group: Group) -> bool:
        who = self.permissions.identities.get(self.name)
        return who is not None and group.has(who)

    def refusal(self, group: Group) -> str:
        """The reason why nothing can be sealed for a group now; empty if something can.

        An epoch in which somebody is who does not belong to the group any more seals nothing.
        """
        path, ring = self.where(group.name), self._rings.get(group.name)
        if not self.within(group):
            return f"{self.name} is not of the group {group.name}"
        if ring is None:
            return f"{path} is not there, or not usable: it has not been handed on yet, or has to be copied"
        identities = self.permissions.identities
        gone = [each for each in ring.keys.members() if each in identities and not group.has(identities[each])]
        if gone:
            return f"{path} is older than the permissions, which do not have {gone[0]} in the group"
        if ring.newest is None:
            return f"{path} has no key for {self.name}: the newest has not been handed on yet, or has to be copied"
        doubt = self._doubts.get(group.name, "")
        return f"{path} {doubt}" if doubt else ""
