"""The keys of sealed topics in a directory of keys, as one identity has them; looked at again when files change."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import Final

from chappe.errors import ChappeError, ConfigError, UsageError
from chappe.permissions.rules import Group, Permissions
from chappe.permissions.text import Check
from chappe.sealing.epochs import FILE_BYTES_MAX, GroupKeys, verified
from chappe.sealing.frames import SALT_BYTES
from chappe.sealing.primitives import signer
from chappe.sealing.records import Sealer
from chappe.sealing.ring import Ring
from chappe.security import Keys, authority_file, sealed_file
from chappe.storage.key_files import Stamp, authority_check, curve_keys, signing_key, stamp_of, watched_permissions

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # between two looks at the files
TOPICS_MAX: Final = 10_000  # of which it is remembered for whom they are sealed


def read_sealed(directory: Path, group: str, check: Check) -> GroupKeys | None:
    """The keys of a group, if the authority has signed them; None if there is no file.

    Raises:
        ConfigError: They are not signed so, too large or malformed.
    """
    path = sealed_file(directory, group)
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return verified(raw, group, check)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


class SealedGroups:
    """What an identity has; for one thread at a time.

    Versions only grow, as those of permissions do: an older file changes nothing.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._private = curve_keys(keys).secret
        self._check = authority_check(authority_file(keys.directory).read_bytes())
        self._watched = watched_permissions(keys.directory)
        self._seen = self._watched.changes
        self._rings: dict[str, Ring] = {}
        self._stamps: dict[str, Stamp | None] = {}
        self._groups: dict[str, Group | None] = {}
        self._look_at = -math.inf
        self.changes = 0  # rises when something is other than it was

    @property
    def permissions(self) -> Permissions:
        """Those in force."""
        return self._watched.permissions

    def look(self, now: float) -> None:
        """Look whether files have changed, at most once a second."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        self._watched.refresh()
        if self._watched.changes != self._seen:
            self._seen = self._watched.changes
            self.changes += 1
            self._groups.clear()
        for group in self.permissions.sealed:
            stamp = stamp_of(sealed_file(self.keys.directory, group.name))
            if stamp != self._stamps.get(group.name):
                self._stamps[group.name] = stamp
                self._take(group.name)

    def group(self, topic: str) -> Group | None:
        """For whom a topic is sealed; None if it is plain."""
        if topic not in self._groups:
            if len(self._groups) >= TOPICS_MAX:
                self._groups.clear()
            self._groups[topic] = self.permissions.group(topic)
        return self._groups[topic]

    def ring(self, group: str) -> Ring | None:
        """What the identity has of a group; None if there is no file of its keys."""
        return self._rings.get(group)

    def sealer(self) -> Sealer:
        """A new life of a sender.

        Raises:
            UsageError: The identity has no key to sign with.
        """
        return Sealer(self.keys.name, os.urandom(SALT_BYTES), signer(signing_key(self.keys)))

    def refusal(self, group: Group) -> str:
        """Why nothing can be sealed for a group now; empty if it can.

        An epoch in which somebody is who does not belong to the group any more seals nothing.
        """
        path, ring = sealed_file(self.keys.directory, group.name), self._rings.get(group.name)
        who = self.permissions.identities.get(self.keys.name)
        if who is None or not group.has(who):
            return f"{self.keys.name} is not of the group {group.name}"
        if not who.signs:
            return f"the permissions do not say by which key {who.name} signs: `chappe keys renew {who.name}` adds it"
        if ring is None:
            return f"{path} is not there, or not usable: copy it from where the authority is"
        identities = self.permissions.identities
        gone = [each for each in ring.keys.members() if each in identities and not group.has(identities[each])]
        if gone:
            return f"{path} is older than the permissions, which do not have {gone[0]} in the group: copy the new one"
        if ring.newest is None:
            return f"{path} has no key for {who.name}: copy the new one from where the authority is"
        return ""

    def _take(self, group: str) -> None:
        try:
            found = read_sealed(self.keys.directory, group, self._check)
        except ChappeError as error:
            logger.warning("%s; what was in force stays so", error)
            return
        former = self._rings.get(group)
        if found is None or (former is not None and found.version < former.keys.version):
            if found is not None:
                logger.warning("%s is older than the keys in force: these stay so", sealed_file(Path(), group))
            return
        self.changes += 1
        self._rings[group] = Ring(found, self.keys.name, self._private)
