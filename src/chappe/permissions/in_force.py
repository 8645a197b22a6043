"""The permissions in force, and newer ones that others hand on. Pure; one thread at a time.

Members hand their permissions to each other, over the log and over the mesh, so that a change takes effect without
copying files. Who hands them on need not be trusted: the authority's signature counts, and versions only grow.
"""

from __future__ import annotations

from typing import Final

from chappe.errors import ConfigError
from chappe.permissions.rules import Permissions
from chappe.permissions.text import FILE_BYTES_MAX, Check, verified

USELESS_MAX: Final = 1_000  # texts that are remembered, as they will be handed on again


class InForce:
    """The permissions that count now.

    Attributes:
        permissions, raw: What the file says, and the file itself, which may be handed on.
        changes: Rises with each file that is taken.
    """

    def __init__(self, raw: bytes, check: Check) -> None:
        """Raises ConfigError: the authority has not signed ``raw`` so, or it is too large or malformed."""
        self.permissions: Permissions = verified(raw, check)
        self.raw = raw
        self.changes = 0
        self._check = check
        self._useless: set[int] = set()  # hashes of what was no newer file: a signature takes a tenth of a millisecond

    def replace(self, raw: bytes) -> Permissions:
        """Replace the permissions with those of our own machine unless they are older; return the ones in force.

        Raises ConfigError if they are not signed by the authority that this program started with.
        """
        found = verified(raw, self._check)
        if found.version >= self.permissions.version:
            self._take(raw, found)
            self._useless.clear()
        return found

    def offer(self, raw: bytes) -> bool:
        """Take a file that somebody hands on, if the authority has signed it and it is newer; returns whether it is.

        Before the signature nothing of it is parsed.

        Raises:
            ConfigError: It is too large, not signed so, or malformed. The same again is told no more.
        """
        if raw == self.raw:
            return False
        if len(raw) > FILE_BYTES_MAX:
            raise ConfigError(f"it is larger than {FILE_BYTES_MAX} bytes")
        known = hash(raw)
        if known in self._useless:
            return False
        if len(self._useless) >= USELESS_MAX:
            self._useless.clear()
        self._useless.add(known)
        found = verified(raw, self._check)
        if found.version <= self.permissions.version:
            return False
        self._useless.discard(known)
        self._take(raw, found)
        return True

    def _take(self, raw: bytes, permissions: Permissions) -> None:
        self.raw, self.permissions = raw, permissions
        self.changes += 1
