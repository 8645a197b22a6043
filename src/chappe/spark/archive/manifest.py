"""The manifest, the one truth about an archive, and the steps in which it changes.

Every version is a file of its own that holds everything; the highest number counts. See the package's text for why
the order of steps here leaves every reader with each record once, wherever a job is killed.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote

import msgspec

from chappe.arrow import COLUMNS, schema
from chappe.data.topic import Filter
from chappe.defaults import MIB
from chappe.errors import StorageError, StorageFormat, StorageFull, StorageLocked, UnknownTopic, UsageError
from chappe.system.disk import FULL, FileLock, sync_directory, sync_file

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = 1
SMALL_BYTES: Final = 32 * MIB  # a file below this is written anew together with what comes next
KEEP: Final = 2  # manifests: a reader may have listed the one before the newest
_NAME: Final = re.compile(r"manifest-(\d{8,})\.json")
META: Final = "_chappe"
STAGING: Final = "staging"
LOCK: Final = "lock"
DAY_US: Final = 86_400_000_000
NAME_BYTES_MAX: Final = 255  # of one directory, on every usual file system
FILE_COLUMNS: Final = COLUMNS[1:]  # the topic is in the path
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()


class OffsetSpan(msgspec.Struct, array_like=True, frozen=True):
    """The archived offsets ``first`` <= n < ``next`` of one partition: ``rows`` of them, fewer if some were lost."""

    first: int
    next: int
    rows: int

    def joined(self, other: OffsetSpan | None) -> OffsetSpan:
        if other is None:
            return self
        return OffsetSpan(min(self.first, other.first), max(self.next, other.next), self.rows + other.rows)


class ArchivedFile(msgspec.Struct, frozen=True):
    """A Parquet file: its place below the archive, and what is in it; timestamps in microseconds since 1970."""

    path: str
    topic: str
    rows: int
    bytes: int
    timestamp_min: int
    timestamp_max: int

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0]


class Move(msgspec.Struct, array_like=True, frozen=True):
    """A staged file that is to be renamed; both below the archive."""

    staged: str
    place: str


class ArchiveManifest(msgspec.Struct, frozen=True):
    archive: str
    format: int = FORMAT
    version: int = 0
    files: tuple[ArchivedFile, ...] = ()
    positions: dict[str, dict[str, OffsetSpan]] = {}  # msgspec copies it
    moves: tuple[Move, ...] = ()

    def next_of(self, topic: str, partition: str) -> int | None:
        """Return the offset at which a partition goes on; None if nothing of it is archived."""
        span = self.positions.get(topic, {}).get(partition)
        return None if span is None else span.next

    @property
    def topics(self) -> list[str]:
        return sorted(self.positions)

    def select(self, topic: str | None) -> list[str]:
        """Return the topics that ``name`` or ``prefix*`` stands for; None: all. Raises UnknownTopic for none."""
        wanted = None if topic is None else Filter.parse(topic)
        found = [each for each in self.topics if wanted is None or wanted.matches(each)]
        if not found:
            has = ", ".join(self.topics) or "none yet"
            raise UnknownTopic(f"the archive has no topic {topic or ''}".rstrip() + f"; it has {has}")
        return found


class _Format(msgspec.Struct):
    format: int = FORMAT


def load(directory: Path) -> ArchiveManifest:
    """Return the newest version. Raises UsageError: no archive; StorageFormat: damaged, or a newer chappe's."""
    while True:
        found = _versions(directory)
        if not found:
            raise UsageError(f"{directory} is not an archive; make one with: chappe archive TOPIC --to {directory}")
        version = max(found)
        try:
            raw = found[version].read_bytes()
        except FileNotFoundError:  # a job has gone on by more than one version meanwhile
            if _versions(directory).keys() == found.keys():
                raise
            continue
        try:
            if msgspec.json.decode(raw, type=_Format).format > FORMAT:  # before all else, which may be other then
                raise StorageFormat(f"the archive {directory} was written by a newer chappe; install that version")
            return msgspec.json.decode(raw, type=ArchiveManifest)
        except msgspec.MsgspecError as error:
            raise StorageFormat(f"{found[version]} is not the manifest of an archive: {error}") from None


def path_of(directory: Path, manifest: ArchiveManifest, file: ArchivedFile) -> Path:
    """Return the present path of a file: a job may have been killed before it renamed the last staged files."""
    for move in manifest.moves:
        if move.place == file.path and (directory / move.staged).exists():
            return directory / move.staged
    return directory / file.path


def _versions(directory: Path) -> dict[int, Path]:
    try:
        entries = list((directory / META).iterdir())
    except FileNotFoundError:
        return {}
    return {int(match[1]): each for each in entries if (match := _NAME.fullmatch(each.name))}


class ArchiveWriter:
    """An archive that this process writes to; made if it is not there.

    Opening it finishes what a killed job had committed, and removes what it had not.

    Raises:
        StorageLocked: Another job writes to it.
        StorageFormat: As ``load``, or the directory holds something else.
        StorageFull, StorageError: The disk.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with _writing(directory):
            meta = directory / META
            if directory.exists() and not meta.exists() and any(directory.iterdir()):
                raise StorageFormat(f"{directory} holds something else; choose an empty directory for the archive")
            meta.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = FileLock(meta / LOCK)
            except BlockingIOError:
                raise StorageLocked(f"another job archives to {directory}; wait for it or stop it") from None
        try:
            self.manifest = load(directory) if _versions(directory) else ArchiveManifest(uuid.uuid4().hex)
            with _writing(directory):
                self._settle()
                shutil.rmtree(meta / STAGING, ignore_errors=True)
                self.run = f"{META}/{STAGING}/{uuid.uuid4().hex}"
                (directory / self.run).mkdir(parents=True)
                for each in (meta / STAGING, meta, directory):
                    sync_directory(each)
        except BaseException:
            self._lock.close()
            raise

    def commit(self, following: ArchiveManifest) -> None:
        """Make the next version the one that counts, then rename its files.

        Raises:
            StorageLocked: Somebody else has written a version; nothing of ours is visible.
            StorageFull, StorageError: The disk. If the version does not count yet, nothing is visible.
        """
        assert following.version == self.manifest.version + 1
        with _writing(self.directory):
            meta = self.directory / META
            name = f"manifest-{following.version:08d}.json"
            temporary = meta / f"{name}.{uuid.uuid4().hex}"
            sync_directory(self.directory / self.run)  # the staged files have their names for good
            try:
                with open(temporary, "wb") as file:
                    file.write(msgspec.json.encode(following))
                    file.flush()
                    sync_file(file.fileno())
                try:
                    os.link(temporary, meta / name)  # unlike a rename, it fails if somebody was faster
                except FileExistsError:
                    raise StorageLocked(f"another job archives to {self.directory}; stop one of them") from None
            finally:
                temporary.unlink(missing_ok=True)
            sync_directory(meta)
            self.manifest = following
            self._settle()
            for version, path in _versions(self.directory).items():
                if version <= following.version - KEEP:
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove what was staged and not committed, and let others write."""
        shutil.rmtree(self.directory / self.run, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settle(self) -> None:
        """Do the renames of the newest version; those that are done are passed over."""
        touched = set()
        for move in self.manifest.moves:
            staged, place = self.directory / move.staged, self.directory / move.place
            if staged.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(staged, place)
                touched |= {place.parent, place.parent.parent, self.directory}
            elif not place.exists():
                raise StorageError(f"the archive {self.directory} is damaged: {move.place} is missing")
        for each in touched:
            sync_directory(each)


def followed_by(
    manifest: ArchiveManifest,
    files: Iterable[ArchivedFile],
    spans: dict[str, dict[str, OffsetSpan]],
    moves: Iterable[Move],
) -> ArchiveManifest:
    """Return the next version: files of the same path are replaced, and positions go on."""
    kept = {each.path: each for each in manifest.files} | {each.path: each for each in files}
    positions = dict(manifest.positions)
    for topic, partitions in spans.items():
        known = dict(positions.get(topic, {}))
        for partition, span in partitions.items():
            before = known.get(partition)
            known[partition] = span if before is None else OffsetSpan(before.first, span.next, before.rows + span.rows)
        positions[topic] = known
    return ArchiveManifest(
        manifest.archive,
        version=manifest.version + 1,
        files=tuple(kept[path] for path in sorted(kept)),
        positions=positions,
        moves=tuple(moves),
    )


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"{error.filename or directory}: {error.strerror}"
        raise (StorageFull if error.errno in FULL else StorageError)(f"cannot write the archive: {reason}") from error


def file_schema() -> pa.Schema:
    """Return the columns of every file, for ever: partition, offset, timestamp, key, value, headers."""
    return schema(FILE_COLUMNS)


def directory_of(topic: str, day: int) -> str:
    """Return a topic's directory of a day since 1970, in the archive. Raises UsageError: the name does not fit."""
    return f"{_topic_directory(topic)}/date={day_text(day)}"


def file_name(version: int, number: int) -> str:
    return f"{version:08d}-{number:03d}.parquet"


@cache
def _topic_directory(topic: str) -> str:
    try:
        name = f"topic={quote(topic, safe='')}"
    except UnicodeEncodeError:
        raise UsageError(f"topic {topic!r} cannot be archived: its name is not UTF-8") from None
    if len(name) > NAME_BYTES_MAX:
        raise UsageError(f"topic {topic} cannot be archived: its name is too long for a directory")
    return name


def day_text(day: int) -> str:
    """Return a day as ``2026-01-31``; what is before year 1 or after year 9999 is counted to the first or last day."""
    return date.fromordinal(min(max(day + _EPOCH_ORDINAL, 1), date.max.toordinal())).isoformat()
