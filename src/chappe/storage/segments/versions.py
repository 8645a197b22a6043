"""Where the versions of changes go on at the next start: never behind one that a reader may remember.

A reader asks what changed since the version it remembers, so versions only grow, whatever the clock does. They are kept
in memory; the file ``versions`` has one that no life before this has reached. A clean end writes the exact one.

::

    versions    {"next": ..., "checksum": "..."}
"""

from __future__ import annotations

import json
import logging
import os
from typing import Final

from crc32c import crc32c

from chappe.storage.segments.directory import VERSIONS
from chappe.storage.segments.files import FileOps, read_file, replace_file

logger: Final = logging.getLogger(__name__)
# Changes that one life can make: three years at 10,000 a second. A killed store's next life begins so much later.
LIFE_MAX: Final = 10**12
VERSION_MAX: Final = 1 << 62  # more cannot be meant


class Versions:
    """The file of one store.

    Args:
        path: The store's directory.
    """

    def __init__(self, ops: FileOps, path: str) -> None:
        self._ops = ops
        self._path = os.path.join(path, VERSIONS)

    def begin(self, at_least: int) -> int:
        """The version to go on from, at least this one; what this life reaches is durable before it returns."""
        version = max(at_least, self._load())
        self._save(version + LIFE_MAX)
        return version

    def end(self, version: int) -> None:
        """A clean end came to this version."""
        self._save(version)

    def _load(self) -> int:
        try:
            found = json.loads(read_file(self._ops, self._path))
            following = found["next"]
            if found["checksum"] == _checksum(following) and 0 <= following <= VERSION_MAX:
                return int(following)
        except FileNotFoundError:
            return 0  # a new store, or one of a chappe that had only the clock
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("%s cannot be read (%s): versions go on from the clock", self._path, error)
            return 0
        logger.warning("%s is damaged: versions go on from the clock", self._path)
        return 0

    def _save(self, following: int) -> None:
        content = json.dumps({"next": following, "checksum": _checksum(following)}).encode()
        try:
            replace_file(self._ops, self._path, [content])
        except OSError as error:  # no reason not to start: what was promised before still holds
            logger.warning("cannot write %s: %s", self._path, error.strerror)


def _checksum(following: object) -> str:
    return f"{crc32c(repr(following).encode()):08x}"
