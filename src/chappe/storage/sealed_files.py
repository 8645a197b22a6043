"""The keys of sealed topics in a directory of keys, as one identity has them; looked at again when files change.

Newer ones may come from other members, too: who hands them on need not be trusted, as the authority has signed each
line, and lines are only ever added.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from functools import partial
from pathlib import Path
from typing import Final

from chappe.errors import ChappeError, ConfigError, UsageError
from chappe.permissions.text import Check
from chappe.sealing.chain import FILE_BYTES_MAX, KeyChain, KeyShelf, read_chain
from chappe.sealing.epochs import GroupKeys
from chappe.sealing.messages import MessageSealer
from chappe.sealing.primitives import signer
from chappe.sealing.records import Sealer
from chappe.sealing.ring import HeldGroups
from chappe.sealing.senders import SALT_BYTES
from chappe.security import Keys, authority_key_file, sealed_file
from chappe.storage.key_files import (
    Stamp,
    curve_keys,
    put_beside,
    signing_key,
    stamp_of,
    watched_permissions,
)
from chappe.system import machine, time

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # between two looks at the files ...
DOUBT_S: Final = 0.05  # ... and while somebody waits for a word on them


def read_sealed(directory: Path, group: str, check: Check) -> KeyChain | None:
    """Return a group's keys; None without a file. Raises ConfigError: not signed so, too large or malformed."""
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
        self._permissions = watched_permissions(directory)
        self._check = self._permissions.check
        self._lock = threading.Lock()
        self._shelf = KeyShelf(self._check)
        self._stamps: dict[str, Stamp | None] = {}

    def refresh(self) -> None:
        with self._lock:
            for group in self._permissions.permissions.sealed:
                stamp = stamp_of(sealed_file(self.directory, group.name))
                if stamp != self._stamps.get(group.name):
                    self._stamps[group.name] = stamp
                    self._read(group.name)

    def keys(self, group: str) -> GroupKeys | None:
        return self._shelf.keys(group)

    def versions(self) -> dict[str, int]:
        return {each.name: self._shelf.version(each.name) for each in self._permissions.permissions.sealed}

    def wanted(self, group: str, name: str) -> bool:
        permissions = self._permissions.permissions
        who = permissions.identities.get(name)
        return who is not None and any(each.name == group and each.has(who) for each in permissions.sealed)

    def after(self, group: str, version: int) -> bytes:
        with self._lock:
            return self._shelf.after(group, version)

    def hear(self, group: str, version: int, now: float) -> None:
        """Note which version of a group's keys a tower or forwarder has."""
        with self._lock:
            self._shelf.hear(group, version, now)

    def doubts(self, waited_s: float, now: float) -> dict[str, str]:
        """By group, why nothing should be sealed with the keys that are here; see ``KeyShelf.doubt``."""
        if authority_key_file(self.directory).exists():  # they are made here
            return {}
        today, groups = time.utc_now(), self._permissions.permissions.sealed
        with self._lock:
            found = {each.name: self._shelf.doubt(each.name, waited_s, now, today) for each in groups}
        return {group: doubt for group, doubt in found.items() if doubt}

    def offer(self, group: str, raw: bytes) -> bool:
        """Take keys that another member hands on, of a group of the permissions; return whether they are newer."""
        with self._lock:
            if group not in self.versions():
                return False
            try:
                if not self._shelf.offer(group, raw):
                    return False
            except ConfigError as error:
                path = sealed_file(self.directory, group)
                logger.warning("keys of %s that were handed on are not taken: %s; to copy %s helps", group, error, path)
                return False
            keys = self._shelf.keys(group)
            assert keys is not None
            logger.info("epoch %d of %s is in force: its keys were handed on", keys.newest.number, group)
            self._keep(group)
            return True

    def _read(self, group: str) -> None:
        try:
            found = read_sealed(self.directory, group, self._check)
        except ChappeError as error:
            logger.warning("%s; what was in force stays so", error)
            return
        if found is not None and not self._shelf.put(group, found):
            logger.warning("%s is older than the keys in force: these stay so", sealed_file(self.directory, group))

    def _keep(self, group: str) -> None:
        path = sealed_file(self.directory, group)
        if authority_key_file(self.directory).exists() or stamp_of(path) != self._stamps.get(group):
            return
        try:
            put_beside(path, self._shelf.raw(group))
        except OSError as error:
            logger.info("keys of %s that were handed on are kept in memory alone: %s", group, error.strerror)
            return
        self._stamps[group] = stamp_of(path)


_guard = threading.Lock()


def watched_groups(directory: Path) -> WatchedGroups:
    """The groups of a directory, watched once for the whole process. Raises as ``read_in_force``."""
    home = directory.resolve()
    with _guard:
        watched: dict[Path, WatchedGroups] = machine.current().once.setdefault(WatchedGroups, {})
        found = watched.get(home)
        if found is None or found._permissions is not watched_permissions(directory):
            found = watched[home] = WatchedGroups(directory)
        return found


def _forked() -> None:
    global _guard
    _guard = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_forked)


class SealedGroups:
    """The files of an identity; for one thread at a time. ``asks``: whether towers or forwarders will say which keys
    there are: nothing is sealed with older ones then. ``held``: what they say for it, as of the last ``look``.
    """

    def __init__(self, keys: Keys, *, asks: bool = False) -> None:
        self.keys = keys
        self._asks = asks
        self._began: float | None = None  # the first look
        self._watched = watched_permissions(keys.directory)
        self._shared = watched_groups(keys.directory)
        self._look_at = -math.inf
        where = partial(sealed_file, keys.directory)
        self.held = HeldGroups(keys.name, curve_keys(keys).secret, self._watched.permissions, where)

    def look(self, now: float) -> None:
        """Look for newer keys, at most once a second; more often while they may come."""
        if now < self._look_at:
            return
        self._began = now if self._began is None else self._began
        self._watched.refresh()
        self._shared.refresh()
        doubts = self._shared.doubts(now - self._began, now) if self._asks else {}
        self._look_at = now + (DOUBT_S if doubts else LOOK_S)
        self.held.take(self._watched.permissions, self._shared.keys, doubts)

    def sealer(self) -> Sealer:
        """Begin a new life of a sender. Raises UsageError: the identity has no key to sign with."""
        return Sealer(self.keys.name, os.urandom(SALT_BYTES), signer(signing_key(self.keys)))

    def message_sealer(self) -> MessageSealer:
        return MessageSealer(self.keys.name, os.urandom(SALT_BYTES), signer(signing_key(self.keys)))
