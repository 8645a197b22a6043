"""Who a store is: the id from which the checksums of all its blocks start, kept twice.

::

    chappe-store.json          {"format": 2, "store_id": "...", "checksum": "..."}
    chappe-store.copy.json     the same

With a wrong id every block would look damaged, so one that cannot be proved is not used: of two files the sound one
counts, and mends the other. Stores of format 1 have one file without a checksum; its id is believed if it fits a block.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from chappe.errors import StorageFormat
from chappe.storage.segments.files import FileOps, read_file, replace_file

logger: Final = logging.getLogger(__name__)
FORMAT: Final = 2
STORE_FILE: Final = "chappe-store.json"
COPY_FILE: Final = "chappe-store.copy.json"


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
    names = (STORE_FILE, COPY_FILE)
    found = {name: _parse(ops, os.path.join(path, name)) for name in names}
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
            _mend(ops, os.path.join(path, name), sound[0].store_id)
    return sound[0]


def save_identity(ops: FileOps, path: str, store_id: str) -> None:
    """Make an identity durable, twice; raises OSError."""
    for name in (STORE_FILE, COPY_FILE):
        replace_file(ops, os.path.join(path, name), [_encode(store_id)])


def _encode(store_id: str) -> bytes:
    fields = {"format": FORMAT, "store_id": store_id, "checksum": _checksum(FORMAT, store_id)}
    return json.dumps(fields).encode() + b"\n"


def _checksum(format_: int, store_id: str) -> str:
    return f"{crc32c(f'{format_} {store_id}'.encode()):08x}"


def _parse(ops: FileOps, path: str) -> Identity | None:
    try:
        found = json.loads(read_file(ops, path))
        format_, store_id = int(found["format"]), str(found["store_id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        logger.error("%s cannot be read as a store's identity", path)
        return None
    return Identity(format_, store_id, found.get("checksum") == _checksum(format_, store_id))


def _mend(ops: FileOps, path: str, store_id: str) -> None:
    try:
        replace_file(ops, path, [_encode(store_id)])
    except OSError as error:
        logger.warning("%s is damaged or missing and cannot be written again: %s", path, error)
    else:
        logger.warning("%s was damaged or missing and is written again from its other copy", path)
