"""The store's directory: its identity, its lock, and one folder for each topic.

::

    chappe-store.json      {"format": 1, "store_id": "..."}
    lock                   locked (flock) by the one process that uses the directory; holds its process id
    topics/<folder>/       see ``folder_name``
        0000000000000001.seg  .idx     a segment and, once it is sealed, its index
        partitions                     where partitions start whose first records are gone
        name                           the topic, where the folder's name cannot hold it

A topic's folder is its bytes with everything but ``A-Z a-z 0-9 _ - .`` as ``%XX``; a leading dot too, and the
empty topic is ``%00``, which no topic contains. Longer than 200 characters it is ``%%`` and a hash, and the
file ``name`` has the topic.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from typing import Final

from chappe.data.topic import decode_topic
from chappe.drivers.segments.files import FileOps, read_file, replace_file, storage_error
from chappe.errors import StorageError, StorageFormat, StorageLocked

FORMAT: Final = 1
STORE_FILE: Final = "chappe-store.json"
LOCK_FILE: Final = "lock"
TOPICS: Final = "topics"
NAME_FILE: Final = "name"
FOLDER_MAX: Final = 200
_OURS: Final = frozenset({STORE_FILE, STORE_FILE + ".tmp", LOCK_FILE, TOPICS, "lost+found"})
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_ESCAPED: Final = re.compile(rb"%([0-9A-F]{2})")


def folder_name(topic: str) -> str:
    """The name of a topic's folder; at most ``FOLDER_MAX`` ASCII characters."""
    raw = topic.encode("utf-8", "surrogateescape")
    if not raw:
        return "%00"
    name = "".join(chr(b) if b in _PLAIN and not (b == 0x2E and i == 0) else f"%{b:02X}" for i, b in enumerate(raw))
    return name if len(name) <= FOLDER_MAX else "%%" + hashlib.blake2b(raw, digest_size=20).hexdigest()


def topic_of(ops: FileOps, path: str) -> str | None:
    """The topic of a folder; None if the folder is not one of ours or lost its name."""
    folder = os.path.basename(path)
    if folder.startswith("%%"):
        try:
            topic = decode_topic(read_file(ops, os.path.join(path, NAME_FILE)))
        except OSError:
            return None
    elif folder == "%00":
        topic = ""
    else:
        raw = folder.encode("utf-8", "surrogateescape")
        topic = decode_topic(_ESCAPED.sub(lambda m: bytes((int(m[1], 16),)), raw))
    return topic if folder_name(topic) == folder else None


class StoreDirectory:
    """A locked store directory.

    Args:
        path: Where it is.
        ops: The operating system.
        create: Make it if nothing is there; otherwise a missing store is a StorageError.

    Raises:
        StorageLocked: Another process, or another object of this one, uses it.
        StorageFormat: It was written by a newer chappe, or holds something else.
        StorageError: It is missing, read-only or unreadable.
    """

    def __init__(self, path: str, ops: FileOps, *, create: bool) -> None:
        self.path = os.path.abspath(path)
        self.topics = os.path.join(self.path, TOPICS)
        self._ops = ops
        self._lock_fd = -1
        store_file = os.path.join(self.path, STORE_FILE)
        if not create and not os.path.exists(store_file):
            raise StorageError(f"there is no store in {self.path}; give the directory of one, or let one be created")
        try:
            os.makedirs(self.path, exist_ok=True)
            entries = [each for each in os.listdir(self.path) if not each.startswith(".")]
            if STORE_FILE not in entries and not _OURS.issuperset(entries):
                raise StorageFormat(f"{self.path} holds other files and no store; choose an empty or new directory")
            self._lock()
        except OSError as error:
            raise storage_error(error, f"use {self.path} as a store") from error
        try:
            self.store_id = self._identify(store_file)
            os.makedirs(self.topics, exist_ok=True)
        except OSError as error:
            self.close()
            raise storage_error(error, f"use {self.path} as a store") from error
        except StorageError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _lock(self) -> None:
        fd = os.open(os.path.join(self.path, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise StorageLocked(
                f"the store in {self.path} is used by process {pid}; stop it or use another directory"
            ) from error
        except OSError:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = fd

    def _identify(self, store_file: str) -> str:
        if not os.path.exists(store_file):
            if os.path.isdir(self.topics) and os.listdir(self.topics):
                raise StorageFormat(f"{store_file} is missing; restore it, its store_id protects the topics beside it")
            store_id = os.urandom(16).hex()
            text = json.dumps({"format": FORMAT, "store_id": store_id}) + "\n"
            replace_file(self._ops, store_file, [text.encode()])
            return store_id
        try:
            found = json.loads(read_file(self._ops, store_file))
            format_, store_id = int(found["format"]), str(found["store_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise StorageFormat(f"{store_file} cannot be read as a store's identity; restore it") from error
        if format_ > FORMAT:
            raise StorageFormat(
                f"the store in {self.path} has format {format_}, written by a newer chappe; this one knows {FORMAT}"
            )
        return store_id
