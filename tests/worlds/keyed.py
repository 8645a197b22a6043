"""Directories of keys in a staged world, as ``chappe keys`` makes them; each host has its own, over all its lives."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from tests.worlds.certificates import write_identity
from tests.worlds.sealing import AUTHORITY, check_of
from tests.worlds.stage import Replaced

from chappe.permissions import text
from chappe.permissions.text import Check
from chappe.security import Keys
from chappe.storage import key_files


@cache
def _check_by(certificates: bytes) -> Check:
    return cache(check_of(certificates.decode()))


def replaced() -> list[Replaced]:
    """What takes certificates for names of authorities, and parses a text once for all hosts."""
    return [(key_files, "authority_check", _check_by), (text, "parse", cache(text.parse))]


class KeyDirectories:
    """Of the hosts of a world.

    Args:
        home: Where they are.
        files: Returns the newest files of the authority, by name.
    """

    def __init__(self, home: Path, files: Callable[[], Mapping[str, bytes]]) -> None:
        self._home = home
        self._files = files

    def keys(self, host: str) -> Keys:
        """Return the identity of a host, which has the host's name; it gets all files when it comes first."""
        if not (self._home / host).exists():
            self.make(host, self._files())
        return Keys(self._home / host / host)

    def make(self, host: str, files: Mapping[str, bytes], authority: str = AUTHORITY) -> None:
        write_identity(self._home / host, host, authority=authority)
        self._put(host, files)

    def copy(self, host: str, *names: str) -> None:
        """Put the newest files on a host, or only those of these names."""
        self.keys(host)
        files = self._files()
        self._put(host, {name: files[name] for name in names or files})

    def _put(self, host: str, files: Mapping[str, bytes]) -> None:
        for name, raw in files.items():
            passing = self._home / host / f".{name}"
            passing.write_bytes(raw)
            os.replace(passing, self._home / host / name)
