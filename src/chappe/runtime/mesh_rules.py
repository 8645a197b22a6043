"""When an endpoint of the mesh takes other rules: once another file is in force, or somebody in it has expired."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from chappe.defaults import RULES_LOOK_S
from chappe.mesh.forwarding.group_keys import KeysHere
from chappe.mesh.rules import MeshRules
from chappe.permissions.rules import CLOCK_SKEW
from chappe.storage.key_files import WatchedPermissions
from chappe.system import time

if TYPE_CHECKING:  # who has no identity needs no cryptography
    from chappe.storage.sealed_files import WatchedGroups


class KeysWatch:
    """Looks at the keys of a directory for one identity, ``own``."""

    def __init__(self, groups: WatchedGroups, own: str) -> None:
        self._groups = groups
        self._own = own
        self._here: KeysHere | None = None

    def look(self) -> KeysHere | None:
        groups = self._groups
        groups.refresh()
        versions = groups.versions()
        mine = frozenset(each for each in versions if groups.wanted(each, self._own))
        if self._here is not None and (self._here.versions, self._here.mine) == (versions, mine):
            return None
        self._here = KeysHere(versions, mine, groups.after)
        return self._here

    def take(self, group: str, raw: bytes) -> bool:
        """Write lines handed on to their file, if new and the authority's; then ``look``. Any thread may call it."""
        return self._groups.offer(group, raw)


class RulesWatch:
    """Looks at the permissions of a directory now and then, for ``own``; ``due`` is the time of the next look.

    ``keys`` looks at the keys of groups there, which are handed on with the permissions; None if they are not.
    """

    def __init__(self, permissions: WatchedPermissions, own: str = "", keys: KeysWatch | None = None) -> None:
        self.keys = keys
        self._permissions = permissions
        self._own = own
        self._seen = permissions.changes  # others of this process may have taken another file first
        self.due = time.monotonic()
        self._end: datetime | None = None  # of what the rules say now; None if nothing ends any more
        self.rules = self._made()

    def look(self) -> MeshRules | None:
        self.due = time.monotonic() + RULES_LOOK_S
        self._permissions.refresh()
        if self._permissions.changes == self._seen and (self._end is None or _utc() < self._end):
            return None
        self._seen = self._permissions.changes
        self.rules = self._made()
        return self.rules

    def take(self, raw: bytes) -> bool:
        """Write permissions handed on to their file, if newer and signed; then ``look``. Any thread may call it."""
        return self._permissions.offer(raw)

    def _made(self) -> MeshRules:
        now, found, raw = _utc(), self._permissions.permissions, self._permissions.raw
        begin = found.issued - CLOCK_SKEW
        end = begin if now < begin else found.next_expiry(now)
        self._end = end if end > now else None
        return MeshRules(found, now, raw, self._own)


def _utc() -> datetime:
    return datetime.fromtimestamp(time.time_ns() / 1e9, UTC)
