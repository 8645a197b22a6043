"""What an endpoint of the mesh has of the keys of groups, to be handed on; looked at with its permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.mesh.forwarding.group_keys import KeysHere

if TYPE_CHECKING:  # who has no identity needs no cryptography
    from chappe.storage.sealed_files import WatchedGroups


class KeysWatch:
    """Looks at the keys of a directory for one identity, ``own``."""

    def __init__(self, groups: WatchedGroups, own: str) -> None:
        self._groups = groups
        self._own = own
        self._here: KeysHere | None = None

    def look(self) -> KeysHere | None:
        """What is here, if it is other than at the last look."""
        groups = self._groups
        groups.refresh()
        versions = groups.versions()
        mine = frozenset(each for each in versions if groups.wanted(each, self._own))
        if self._here is not None and (self._here.versions, self._here.mine) == (versions, mine):
            return None
        self._here = KeysHere(versions, mine, groups.after)
        return self._here

    def take(self, group: str, raw: bytes) -> bool:
        """Take lines that somebody hands on, if they are new and the authority's; then ``look``.

        It writes a file, and any thread may call it.
        """
        return self._groups.offer(group, raw)
