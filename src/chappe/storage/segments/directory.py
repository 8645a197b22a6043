"""The store's directory: its identity, its lock, and one folder for each topic.

::

    chappe-store.json      {"format": 2, "store_id": "...", "checksum": "..."}
    chappe-store.copy.json     the same
    lock                   locked (flock) by the one process that uses the directory; holds its process id
    topics/<folder>/       see ``folder_name``
        0000000000000001.seg  .idx     a segment and, once it is sealed, its index
        partitions                     where partitions start whose first records are gone
        name                           the topic, where the folder's name cannot hold it
    indexes/<folder>/      a copy of each index
    begun/<folder>/        an empty file for the segment that has none
    manifest               which segments there are and what was acknowledged, see ``manifest``
    versions               {"next": ..., "checksum": "..."}: where the versions of changes go on
    aside/                 what was cut off or taken away, see ``aside``
    left-alone/            folders that had the name of a topic and hold something else

A topic's folder is its bytes with everything but ``A-Z a-z 0-9 _ - .`` as ``%XX``; a leading dot too, and the
empty topic is ``%00``, which no topic contains. Longer than 200 characters it is ``%%`` and a hash, and the
file ``name`` has the topic.

The checksums of all blocks start from the store's id. With a wrong one every block would look damaged, so there are two
files with a checksum: the sound one counts, and mends the other.

A reader asks what changed since the version it remembers, so versions only grow, whatever the clock does. They are kept
in memory; the file has one that no life before this has reached. A clean end writes the exact one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from dataclasses import dataclass
from typing import Final

from chappe.data.topic import decode_topic
from chappe.errors import StorageFormat, StorageLocked
from chappe.storage.segments.files import FileOps, checksum, encode_name, logged, trying
from chappe.system.disk import FileLock, held_by, keep_private

logger: Final = logging.getLogger(__name__)
FORMAT: Final = 2
STORE_FILE: Final = "chappe-store.json"
COPY_FILE: Final = "chappe-store.copy.json"
VERSIONS: Final = "versions"
# Changes that one life can make: three years at 10,000 a second. A killed store's next life begins so much later.
LIFE_MAX: Final = 10**12
VERSION_MAX: Final = 1 << 62  # more cannot be meant
LOCK_FILE: Final = "lock"
TOPICS: Final = "topics"
COPIES: Final = "indexes"
ASIDE: Final = "aside"
LEFT_ALONE: Final = "left-alone"
BEGUN: Final = "begun"
SEGMENT: Final = ".seg"
MANIFEST: Final = "manifest"
NAME_FILE: Final = "name"
FOLDER_MAX: Final = 200
_OURS: Final = frozenset(
    {
        *(STORE_FILE + ".tmp", COPY_FILE + ".tmp", LOCK_FILE, TOPICS, COPIES, BEGUN, MANIFEST, VERSIONS, ASIDE),
        *(LEFT_ALONE, "lost+found"),
    }
)
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_ESCAPED: Final = re.compile(rb"%([0-9A-F]{2})")


def folder_name(topic: str) -> str:
    """The name of a topic's folder; at most ``FOLDER_MAX`` ASCII characters."""
    raw = encode_name(topic)
    if not raw:
        return "%00"
    name = "".join(chr(b) if b in _PLAIN and not (b == 0x2E and i == 0) else f"%{b:02X}" for i, b in enumerate(raw))
    return name if len(name) <= FOLDER_MAX else "%%" + hashlib.blake2b(raw, digest_size=20).hexdigest()


@dataclass(frozen=True, slots=True)
class TopicFolder:
    ops: FileOps
    path: str
    topic: str
    store_id: str

    def segment(self, number: int) -> str:
        return os.path.join(self.path, f"{number:016d}{SEGMENT}")

    def index(self, number: int) -> str:
        return os.path.join(self.path, f"{number:016d}.idx")

    @property
    def copies(self) -> str:
        store = os.path.dirname(os.path.dirname(self.path))
        return os.path.join(store, COPIES, os.path.basename(self.path))

    @property
    def beginnings(self) -> str:
        store = os.path.dirname(os.path.dirname(self.path))
        return os.path.join(store, BEGUN, os.path.basename(self.path))

    def copy(self, number: int) -> str:
        return os.path.join(self.copies, f"{number:016d}.idx")

    def begun(self, number: int) -> str:
        """Return the path of the empty file that marks a segment without an index as existing."""
        return os.path.join(self.beginnings, f"{number:016d}{SEGMENT}")

    def seed(self, number: int) -> int:
        """The value from which the checksums of a segment's headers start."""
        text = b"\0".join((self.store_id.encode(), encode_name(self.topic), str(number).encode()))
        return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")

    def keep_name(self) -> None:
        """Note the topic in the folder, where its name cannot tell; raises OSError."""
        if os.path.basename(self.path).startswith("%%"):
            self.ops.replace_file(os.path.join(self.path, NAME_FILE), [encode_name(self.topic)])


def segment_numbers(path: str) -> tuple[set[int], set[int]]:
    return numbers_of(path, SEGMENT), numbers_of(path, ".idx")


def numbers_of(path: str, kind: str) -> set[int]:
    """Return the numbers of segments with a file of this ending; empty if there is no folder."""
    found: set[int] = set()
    for name in os.listdir(path) if os.path.isdir(path) else ():
        stem, ending = os.path.splitext(name)
        if len(stem) == 16 and stem.isascii() and stem.isdigit() and ending == kind:
            found.add(int(stem))
    return found


def topic_of(ops: FileOps, path: str) -> str | None:
    """The topic of a folder; None if the folder is not one of ours or lost its name."""
    folder = os.path.basename(path)
    if folder.startswith("%%"):
        try:
            topic = decode_topic(ops.read_file(os.path.join(path, NAME_FILE)))
        except OSError:
            return None
    elif folder == "%00":
        topic = ""
    else:
        topic = decode_topic(_ESCAPED.sub(lambda m: bytes((int(m[1], 16),)), encode_name(folder)))
    return topic if folder_name(topic) == folder else None


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The content of one file; ``checked`` if its checksum is right."""

    format: int
    store_id: str
    checked: bool


def exists(path: str) -> bool:
    return any(os.path.exists(os.path.join(path, name)) for name in (STORE_FILE, COPY_FILE))


def load_identity(ops: FileOps, path: str) -> StoreIdentity:
    """Return the store's identity. Raises StorageFormat: damaged, or a newer chappe's; OSError: unreadable."""
    found = {name: _parse(ops, os.path.join(path, name)) for name in (STORE_FILE, COPY_FILE)}
    sound = [each for each in found.values() if each is not None and each.checked]
    newest = max((each.format for each in sound or found.values() if each is not None), default=0)
    if newest > FORMAT:
        raise StorageFormat(
            f"the store in {path} has format {newest}, written by a newer chappe; this one knows {FORMAT}"
        )
    if not sound:
        raise StorageFormat(f"{path}: {STORE_FILE} cannot be read as a store's identity; restore it from a backup")
    if len({each.store_id for each in sound}) > 1:
        raise StorageFormat(f"{path}: {STORE_FILE} and {COPY_FILE} are of two stores; keep the one that belongs here")
    for name, each in found.items():
        if each != sound[0]:
            ops.mend(os.path.join(path, name), _encode(sound[0].store_id))
    return sound[0]


def _encode(store_id: str) -> bytes:
    fields = {"format": FORMAT, "store_id": store_id, "checksum": checksum(f"{FORMAT} {store_id}")}
    return json.dumps(fields).encode() + b"\n"


def _parse(ops: FileOps, path: str) -> StoreIdentity | None:
    try:
        found = json.loads(ops.read_file(path))
        format_, store_id = int(found["format"]), str(found["store_id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        logger.error("%s cannot be read as a store's identity", path)
        return None
    return StoreIdentity(format_, store_id, found.get("checksum") == checksum(f"{format_} {store_id}"))


class StoreDirectory:
    """A locked store directory, made if it is not there.

    Raises:
        StorageLocked: Another process, or another object of this one, uses it.
        StorageFormat: It was written by a newer chappe, or holds something else.
        StorageError: It is read-only or unreadable.
    """

    def __init__(self, path: str, ops: FileOps) -> None:
        self.path = os.path.abspath(path)
        self.topics = os.path.join(self.path, TOPICS)
        self._ops = ops
        self._held: FileLock | None = None
        with trying(f"use {self.path} as a store"):
            ops.make_directories(self.path)
            entries = [each for each in os.listdir(self.path) if not each.startswith(".")]
            if not exists(self.path) and not _OURS.issuperset(entries):
                raise StorageFormat(f"{self.path} holds other files and no store; choose an empty or new directory")
            self._lock()
            keep_private(self.path)
        with trying(f"use {self.path} as a store", self.close):
            self.store_id = self._identify()
            ops.make_directories(self.topics)
            ops.sync_directory(self.topics)  # a process may have been killed after it made a folder

    def folder(self, topic: str, path: str = "") -> TopicFolder:
        return TopicFolder(self._ops, path or os.path.join(self.topics, folder_name(topic)), topic, self.store_id)

    def put_away(self, path: str) -> str:
        """Move an entry that is named like a topic's folder, but is not one, to ``left-alone``; return its new path.

        After an OSError it may be in either place.
        """
        above = os.path.join(self.path, LEFT_ALONE)
        self._ops.make_directory(above)
        name = os.path.basename(path)
        taken = set(os.listdir(above))
        free = next(each for each in (name, *(f"{name}.{n}" for n in range(2, len(taken) + 3))) if each not in taken)
        target = os.path.join(above, free)
        self._ops.replace(path, target)
        self._ops.sync_directory(above)
        self._ops.sync_directory(self.topics)
        return target

    def left_alone(self) -> list[str]:
        above = os.path.join(self.path, LEFT_ALONE)
        names = sorted(os.listdir(above)) if os.path.isdir(above) else []
        return [path for name in names if os.path.isdir(path := os.path.join(above, name))]

    def close(self) -> None:
        if self._held is not None:
            self._held.close()

    def _lock(self) -> None:
        path = os.path.join(self.path, LOCK_FILE)
        try:
            self._held = FileLock(path)
        except BlockingIOError as error:
            raise StorageLocked(
                f"the store in {self.path} is used by {held_by(path)}; stop it or use another directory"
            ) from error
        os.ftruncate(self._held.fd, 0)
        os.pwrite(self._held.fd, f"{os.getpid()}\n".encode(), 0)

    def _identify(self) -> str:
        if not exists(self.path):
            if os.path.isdir(self.topics) and os.listdir(self.topics):
                raise StorageFormat(
                    f"{os.path.join(self.path, STORE_FILE)} is missing; restore it, its store_id protects the topics "
                    "beside it"
                )
            store_id = os.urandom(16).hex()
            for name in (STORE_FILE, COPY_FILE):
                self._ops.replace_file(os.path.join(self.path, name), [_encode(store_id)])
            return store_id
        return load_identity(self._ops, self.path).store_id

    # -- the versions of changes ------------------------------------------------------------------------

    def begin_versions(self, at_least: int) -> int:
        """Return the version to go on from, at least this one; this life's versions are reserved on disk before."""
        version = max(at_least, self._load_version())
        self.save_version(version + LIFE_MAX)
        return version

    def save_version(self, following: int) -> None:
        """Note the version that the next life goes on from, after a clean end."""
        content = json.dumps({"next": following, "checksum": checksum(repr(following))}).encode()
        path = os.path.join(self.path, VERSIONS)
        with logged("cannot write %s", path):  # no reason not to start: what was promised before still holds
            self._ops.replace_file(path, [content])

    def _load_version(self) -> int:
        path = os.path.join(self.path, VERSIONS)
        try:
            found = json.loads(self._ops.read_file(path))
            following = found["next"]
            if found["checksum"] == checksum(repr(following)) and 0 <= following <= VERSION_MAX:
                return int(following)
            logger.warning("%s is damaged: versions go on from the clock", path)
        except FileNotFoundError:
            pass  # a new store, or one of a chappe that had only the clock
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("%s cannot be read (%s): versions go on from the clock", path, error)
        return 0
