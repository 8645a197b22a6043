"""The keys of groups for which topics are sealed, made where the authority's key is; see ``chappe.sealing``."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from chappe.api.keys import load_authority, replace
from chappe.errors import ConfigError, UsageError
from chappe.permissions.rules import Group, Permissions
from chappe.sealing.epochs import GroupKeys, Keeper, written
from chappe.sealing.primitives import KEY_BYTES
from chappe.security import sealed_file
from chappe.storage.key_files import authority_check
from chappe.storage.sealed_files import read_sealed

logger = logging.getLogger(__name__)


class Keepers:
    """The groups of one directory of keys; whoever calls holds its lock."""

    def __init__(self, home: Path, found: Permissions) -> None:
        self._home = home
        self._found = found
        certificate, self._key = load_authority(home)
        self._check = authority_check(certificate.public_bytes(serialization.Encoding.PEM))
        private = self._key.private_numbers().private_value.to_bytes(KEY_BYTES)
        self._keeper = Keeper(private)

    def follow(self) -> None:
        """Give each group a new epoch of which the members are others now."""
        for group in self._found.sealed:
            try:
                former = self.read(group.name)
            except ConfigError as error:
                logger.warning("%s; the group has no new keys: remove the file, then `chappe keys rotate`", error)
                continue
            self._write(self._first(group) if former is None else self._changed(group, former, self._keeper.changed))

    def rotate(self, name: str, older_than: timedelta | None = None) -> GroupKeys | None:
        """A fresh epoch; None if the newest one is not older than that."""
        group = self._group(name)
        former = self.read(name)
        if former is None:
            return self._write(self._first(group))
        if older_than is not None and datetime.now(UTC) - former.newest.made < older_than:
            return None
        return self._write(self._changed(group, former, self._keeper.rotated))

    def give(self, name: str, member: str, since: int) -> GroupKeys:
        """Have a member read what was sealed since an epoch."""
        group, former = self._group(name), self.read(name)
        curves = self._curves(group)
        if former is None or member not in curves:
            raise UsageError(f"{member} is not of the group {name}: there are {', '.join(sorted(curves)) or 'none'}")
        since = max(since, former.epochs[0].number)
        if former.epoch(since) is None:
            raise UsageError(f"the group {name} has no epoch {since}: the newest is {former.newest.number}")
        return self._write(self._keeper.given(former, member, curves[member], since))

    def read(self, name: str) -> GroupKeys | None:
        """The keys of a group; None if there are none. Raises ConfigError."""
        return read_sealed(self._home, name, self._check)

    def _group(self, name: str) -> Group:
        for each in self._found.sealed:
            if each.name == name:
                return each
        known = ", ".join(each.name for each in self._found.sealed) or "none"
        raise UsageError(f"there is no group {name[:100]!a}: there are {known}; `chappe keys seal` makes one")

    def _first(self, group: Group) -> GroupKeys:
        return self._keeper.first(group.name, self._curves(group), os.urandom(KEY_BYTES), datetime.now(UTC))

    def _changed(self, group: Group, former: GroupKeys, change: Callable[..., GroupKeys]) -> GroupKeys:
        return change(former, self._curves(group), os.urandom(KEY_BYTES), datetime.now(UTC))

    def _curves(self, group: Group) -> dict[str, bytes]:
        """The members, who must not have expired either."""
        now = datetime.now(UTC)
        found = self._found.identities.values()
        return {each.name: each.curve for each in found if group.has(each) and not each.refusal(now)}

    def _write(self, keys: GroupKeys) -> GroupKeys:
        raw = written(keys, lambda what: self._key.sign(what, ec.ECDSA(hashes.SHA256())))
        replace(sealed_file(self._home, keys.group), raw)
        return keys
