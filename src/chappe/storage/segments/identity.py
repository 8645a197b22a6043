"""Who a store is, and where the versions of its changes go on.

::

    chappe-store.json          {"format": 2, "store_id": "...", "checksum": "..."}
    chappe-store.copy.json     the same
    versions                   {"next": ..., "checksum": "..."}

From the id the checksums of all blocks start. With a wrong one every block would look damaged, so one that cannot be
proved is not used: of two files the sound one counts, and mends the other. Stores of format 1 have one file without a
checksum; its id is believed if it fits a block.

A reader asks what changed since the version it remembers, so versions only grow, whatever the clock does. They are kept
in memory; the file has one that no life before this has reached. A clean end writes the exact one.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import Final

from chappe.errors import StorageFormat
from chappe.storage.segments.files import FileOps, checksum

logger: Final = logging.getLogger(__name__)
FORMAT: Final = 2
STORE_FILE: Final = "chappe-store.json"
COPY_FILE: Final = "chappe-store.copy.json"
VERSIONS: Final = "versions"
# Changes that one life can make: three years at 10,000 a second. A killed store's next life begins so much later.
LIFE_MAX: Final = 10**12
VERSION_MAX: Final = 1 << 62  # more cannot be meant


@dataclass(frozen=True, slots=True)
class Identity:
    """What one file says; ``checked`` if its checksum is right."""

    format: int
    store_id: str
    checked: bool

    @property
    def old(self) -> bool:
        """Whether a chappe wrote it that knew no checksum."""
        return self.format == 1 and not self.checked


def exists(path: str) -> bool:
    """Whether there is a store in the directory ``path``."""
    return any(os.path.exists(os.path.join(path, name)) for name in (STORE_FILE, COPY_FILE))


def load_identity(ops: FileOps, path: str) -> Identity:
    """The identity of the store in ``path``; one that is ``old`` is still to be proved.

    Raises:
        StorageFormat: It is damaged, or was written by a newer chappe. Nothing was changed.
        OSError: It cannot be read.
    """
    found = {name: _parse(ops, os.path.join(path, name)) for name in (STORE_FILE, COPY_FILE)}
    sound = [each for each in found.values() if each is not None and each.checked]
    newest = max((each.format for each in sound or found.values() if each is not None), default=0)
    if newest > FORMAT:
        raise StorageFormat(
            f"the store in {path} has format {newest}, written by a newer chappe; this one knows {FORMAT}"
        )
    if not sound:
        first = found[STORE_FILE]
        if first is not None and first.old and not os.path.exists(os.path.join(path, COPY_FILE)):
            return first
        raise StorageFormat(f"{path}: {STORE_FILE} cannot be read as a store's identity; restore it from a backup")
    if len({each.store_id for each in sound}) > 1:
        raise StorageFormat(f"{path}: {STORE_FILE} and {COPY_FILE} are of two stores; keep the one that belongs here")
    for name, each in found.items():
        if each != sound[0]:
            ops.mend(os.path.join(path, name), _encode(sound[0].store_id))
    return sound[0]


def save_identity(ops: FileOps, path: str, store_id: str) -> None:
    """Make an identity durable, twice; raises OSError."""
    for name in (STORE_FILE, COPY_FILE):
        ops.replace_file(os.path.join(path, name), [_encode(store_id)])


def _encode(store_id: str) -> bytes:
    fields = {"format": FORMAT, "store_id": store_id, "checksum": checksum(f"{FORMAT} {store_id}")}
    return json.dumps(fields).encode() + b"\n"


def _parse(ops: FileOps, path: str) -> Identity | None:
    try:
        found = json.loads(ops.read_file(path))
        format_, store_id = int(found["format"]), str(found["store_id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        logger.error("%s cannot be read as a store's identity", path)
        return None
    return Identity(format_, store_id, found.get("checksum") == checksum(f"{format_} {store_id}"))


class Versions:
    """The versions of the store in the directory ``path``."""

    def __init__(self, ops: FileOps, path: str) -> None:
        self._ops = ops
        self._path = os.path.join(path, VERSIONS)

    def begin(self, at_least: int) -> int:
        """The version to go on from, at least this one; what this life reaches is durable before it returns."""
        version = max(at_least, self._load())
        self.save(version + LIFE_MAX)
        return version

    def save(self, following: int) -> None:
        """The next life goes on from this version; a clean end came to it."""
        content = json.dumps({"next": following, "checksum": checksum(repr(following))}).encode()
        try:
            self._ops.replace_file(self._path, [content])
        except OSError as error:  # no reason not to start: what was promised before still holds
            logger.warning("cannot write %s: %s", self._path, error.strerror)

    def _load(self) -> int:
        try:
            found = json.loads(self._ops.read_file(self._path))
            following = found["next"]
            if found["checksum"] == checksum(repr(following)) and 0 <= following <= VERSION_MAX:
                return int(following)
        except FileNotFoundError:
            return 0  # a new store, or one of a chappe that had only the clock
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("%s cannot be read (%s): versions go on from the clock", self._path, error)
            return 0
        logger.warning("%s is damaged: versions go on from the clock", self._path)
        return 0
