"""The keys of groups for which topics are sealed (``chappe.sealing``), made where the authority's key is."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from chappe.api.keys import load_authority, replace
from chappe.errors import ConfigError, UsageError
from chappe.permissions.rules import Group, Permissions
from chappe.sealing.chain import KeyChain
from chappe.sealing.epochs import Change, GroupAuthority, GroupKeys
from chappe.sealing.primitives import KEY_BYTES
from chappe.security import sealed_file
from chappe.storage.key_files import authority_check
from chappe.storage.sealed_files import read_sealed

logger = logging.getLogger(__name__)


class Keepers:
    """The groups of one directory of keys; the caller holds its lock."""

    def __init__(self, home: Path, found: Permissions) -> None:
        self._home = home
        self._found = found
        certificate, self._key = load_authority(home)
        self._check = authority_check(certificate.public_bytes(serialization.Encoding.PEM))
        private = self._key.private_numbers().private_value.to_bytes(KEY_BYTES)
        self._keeper = GroupAuthority(private)

    def follow(self) -> None:
        """Give each group whose members have changed a new epoch."""
        for group in self._found.sealed:
            try:
                chain = self._chain(group.name)
            except ConfigError as error:
                logger.warning("%s; the group has no new keys: copy the file from a member, or remove it", error)
                continue
            self._add(chain, self._keeper.changed(chain.keys, *self._now(group)))

    def rotate(self, name: str, older_than: timedelta | None = None) -> GroupKeys | None:
        """Begin a fresh epoch; return None if the newest one is not older than ``older_than``."""
        group, chain = self._group(name), self._chain(name)
        if chain.keys.epochs and older_than is not None and datetime.now(UTC) - chain.keys.newest.made < older_than:
            return None
        return self._add(chain, self._keeper.rotated(chain.keys, *self._now(group)))

    def give(self, name: str, member: str, since: int) -> GroupKeys:
        """Let a member read records sealed since an epoch."""
        group, chain = self._group(name), self._chain(name)
        curves, keys = self._curves(group), chain.keys
        if not chain.keys.epochs or member not in curves:
            raise UsageError(f"{member} is not of the group {name}: there are {', '.join(sorted(curves)) or 'none'}")
        since = max(since, keys.epochs[0].number)
        if keys.epoch(since) is None:
            raise UsageError(f"the group {name} has no epoch {since}: the newest is {keys.newest.number}")
        return self._add(chain, self._keeper.given(keys, member, curves[member], since))

    def read(self, name: str) -> GroupKeys | None:
        """Return the keys of a group; None if there are none. Raises ConfigError."""
        chain = self._chain(name)
        return chain.keys if chain.keys.epochs else None

    def _chain(self, name: str) -> KeyChain:
        """Return the group's key chain, an empty one without a file."""
        found = read_sealed(self._home, name, self._check)
        if found is None:  # one that was lost had fewer lines than seconds have passed, so members take the new one
            found = KeyChain(name, self._keeper.public, int(datetime.now(UTC).timestamp()))
        return found

    def _group(self, name: str) -> Group:
        for each in self._found.sealed:
            if each.name == name:
                return each
        known = ", ".join(each.name for each in self._found.sealed) or "none"
        raise UsageError(f"there is no group {name[:100]!a}: there are {known}; `chappe keys seal` makes one")

    def _now(self, group: Group) -> tuple[dict[str, bytes], bytes, datetime]:
        return self._curves(group), os.urandom(KEY_BYTES), datetime.now(UTC)

    def _curves(self, group: Group) -> dict[str, bytes]:
        """Return the keys of members that have not expired."""
        now = datetime.now(UTC)
        found = self._found.identities.values()
        return {each.name: each.curve for each in found if group.has(each) and not each.refusal(now)}

    def _add(self, chain: KeyChain, change: Change | None) -> GroupKeys:
        if change is not None:
            chain.add(change, lambda what: self._key.sign(what, ec.ECDSA(hashes.SHA256())))
            replace(sealed_file(self._home, chain.keys.group), chain.raw())
        return chain.keys
