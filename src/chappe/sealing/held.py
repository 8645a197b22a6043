"""What one member has of groups: the permissions in force for it, and what it can do with the keys that it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from chappe.permissions.rules import Group, Permissions
from chappe.sealing.epochs import GroupKeys
from chappe.sealing.ring import Ring

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
        """Go by these permissions from now on, and by the keys of their groups.

        Args:
            doubts: By group, why the newest ones should not be used to seal: what is said of their file.
        """
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
        """Return the identity's keys of a group; None if it knows none."""
        return self._rings.get(group)

    def within(self, group: Group) -> bool:
        """True if the identity is of a group."""
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
