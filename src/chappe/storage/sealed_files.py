"""The keys of sealed topics in a directory of keys, as one identity has them; looked at again when files change.

Newer ones may come from other members, too: who hands them on need not be trusted, as the authority has signed each
line, and lines are only ever added.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from pathlib import Path
from typing import Final

from chappe.errors import ChappeError, ConfigError, UsageError
from chappe.permissions.in_force import USELESS_MAX
from chappe.permissions.rules import Group, Permissions
from chappe.permissions.text import Check
from chappe.sealing.chain import FILE_BYTES_MAX, Chain, read_chain
from chappe.sealing.epochs import GroupKeys
from chappe.sealing.frames import SALT_BYTES
from chappe.sealing.messages import MessageSealer
from chappe.sealing.primitives import signer
from chappe.sealing.records import Sealer
from chappe.sealing.ring import Ring
from chappe.security import Keys, authority_file, authority_key_file, sealed_file
from chappe.storage.key_files import (
    Stamp,
    authority_check,
    curve_keys,
    put_beside,
    signing_key,
    stamp_of,
    watched_permissions,
)

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # between two looks at the files
TOPICS_MAX: Final = 10_000  # of which it is remembered for whom they are sealed


def read_sealed(directory: Path, group: str, check: Check) -> Chain | None:
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
        return read_chain(raw, group, check)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


class WatchedGroups:
    """The keys of all groups of a directory, looked at again when files change, and newer ones from others.

    Versions only grow, as those of permissions do: an older file changes nothing. What somebody handed on is written
    into the directory, if we may write there and the authority's key is elsewhere. Any thread may call.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._check = authority_check(authority_file(directory).read_bytes())
        self._permissions = watched_permissions(directory)
        self._lock = threading.Lock()
        self._chains: dict[str, Chain] = {}
        self._stamps: dict[str, Stamp | None] = {}
        self._useless: set[int] = set()  # hashes of what was handed on and is nothing: it will come again

    def refresh(self) -> None:
        """Look whether there are other files, of the groups that the permissions have."""
        with self._lock:
            for group in self._permissions.permissions.sealed:
                stamp = stamp_of(sealed_file(self.directory, group.name))
                if stamp != self._stamps.get(group.name):
                    self._stamps[group.name] = stamp
                    self._read(group.name)

    def keys(self, group: str) -> GroupKeys | None:
        """The newest ones; None if there are none."""
        chain = self._chains.get(group)
        return None if chain is None else chain.keys

    def versions(self) -> dict[str, int]:
        """Of the groups that the permissions have; 0 where there are no keys."""
        found = {each.name: self.keys(each.name) for each in self._permissions.permissions.sealed}
        return {name: 0 if keys is None else keys.version for name, keys in found.items()}

    def wanted(self, group: str, name: str) -> bool:
        """Whether an identity is of a group, by the permissions."""
        permissions = self._permissions.permissions
        who = permissions.identities.get(name)
        return who is not None and any(each.name == group and each.has(who) for each in permissions.sealed)

    def after(self, group: str, version: int) -> bytes:
        """What has been added since, to be handed on; empty if there is nothing."""
        with self._lock:
            chain = self._chains.get(group)
            return b"" if chain is None else chain.after(version)

    def offer(self, group: str, raw: bytes) -> bool:
        """Take what another member hands on of a group that the permissions have; returns whether it is newer."""
        with self._lock:
            known, versions = hash((group, raw)), self.versions()
            if group not in versions or known in self._useless:
                return False
            try:
                if self._extend(group, raw):
                    newest = self._chains[group].keys.newest.number
                    logger.info("epoch %d of %s is in force: its keys were handed on", newest, group)
                    self._keep(group)
                    return True
            except ConfigError as error:
                path = sealed_file(self.directory, group)
                logger.warning("keys of %s that were handed on are not taken: %s; to copy %s helps", group, error, path)
            if len(self._useless) >= USELESS_MAX:
                self._useless.clear()
            self._useless.add(known)
            return False

    def _extend(self, group: str, raw: bytes) -> bool:
        chain = self._chains.get(group)
        if chain is not None:
            return chain.extend(raw, self._check)
        self._chains[group] = read_chain(raw, group, self._check, handed=True)
        return True

    def _read(self, group: str) -> None:
        try:
            found = read_sealed(self.directory, group, self._check)
        except ChappeError as error:
            logger.warning("%s; what was in force stays so", error)
            return
        former = self._chains.get(group)
        if found is None or (former is not None and found.version < former.version):
            if found is not None:
                logger.warning("%s is older than the keys in force: these stay so", sealed_file(self.directory, group))
            return
        self._useless.clear()
        self._chains[group] = found

    def _keep(self, group: str) -> None:
        """Have the file for the next start, too."""
        path = sealed_file(self.directory, group)
        if authority_key_file(self.directory).exists() or stamp_of(path) != self._stamps.get(group):
            return
        try:
            put_beside(path, self._chains[group].raw())
        except OSError as error:
            logger.info("keys of %s that were handed on are kept in memory alone: %s", group, error.strerror)
            return
        self._stamps[group] = stamp_of(path)


_guard = threading.Lock()
_watched: dict[Path, WatchedGroups] = {}  # as many as there are directories of keys


def watched_groups(directory: Path) -> WatchedGroups:
    """Those of a directory, one for the whole process. Raises as ``read_in_force``."""
    home = directory.resolve()
    with _guard:
        found = _watched.get(home)
        if found is None or found._permissions is not watched_permissions(directory):
            found = _watched[home] = WatchedGroups(directory)
        return found


def _forked() -> None:
    global _guard
    _guard = threading.Lock()  # another thread of the parent may have held it
    _watched.clear()


os.register_at_fork(after_in_child=_forked)


class SealedGroups:
    """What an identity has; for one thread at a time."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.name = keys.name
        self._private = curve_keys(keys).secret
        self._watched = watched_permissions(keys.directory)
        self._shared = watched_groups(keys.directory)
        self._seen = self._watched.changes
        self._rings: dict[str, Ring] = {}
        self._groups: dict[str, Group | None] = {}
        self._look_at = -math.inf
        self.changes = 0  # rises when something is other than it was

    @property
    def permissions(self) -> Permissions:
        """Those in force."""
        return self._watched.permissions

    def look(self, now: float) -> None:
        """Look whether there is something new, at most once a second."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        self._watched.refresh()
        if self._watched.changes != self._seen:
            self._seen = self._watched.changes
            self.changes += 1
            self._groups.clear()
        self._shared.refresh()
        for group in self.permissions.sealed:
            found, former = self._shared.keys(group.name), self._rings.get(group.name)
            if found is not None and (former is None or former.keys is not found):
                self.changes += 1
                self._rings[group.name] = Ring(found, self.name, self._private)

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
        return Sealer(self.name, os.urandom(SALT_BYTES), signer(signing_key(self.keys)))

    def message_sealer(self) -> MessageSealer:
        """As ``sealer``, for single messages."""
        return MessageSealer(self.name, os.urandom(SALT_BYTES), signer(signing_key(self.keys)))

    def belongs(self, group: Group) -> bool:
        """Whether the identity is of a group, and can sign."""
        who = self.permissions.identities.get(self.name)
        return who is not None and group.has(who) and bool(who.signs)

    def refusal(self, group: Group) -> str:
        """Why nothing can be sealed for a group now; empty if it can.

        An epoch in which somebody is who does not belong to the group any more seals nothing.
        """
        path, ring = sealed_file(self.keys.directory, group.name), self._rings.get(group.name)
        who = self.permissions.identities.get(self.name)
        if who is None or not group.has(who):
            return f"{self.name} is not of the group {group.name}"
        if not who.signs:
            return f"the permissions do not say by which key {who.name} signs: `chappe keys renew {who.name}` adds it"
        if ring is None:
            return f"{path} is not there, or not usable: it has not been handed on yet, or has to be copied"
        identities = self.permissions.identities
        gone = [each for each in ring.keys.members() if each in identities and not group.has(identities[each])]
        if gone:
            return f"{path} is older than the permissions, which do not have {gone[0]} in the group"
        if ring.newest is None:
            return f"{path} has no key for {who.name}: the newest has not been handed on yet, or has to be copied"
        return ""
