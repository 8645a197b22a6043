"""Index files on disk: each is kept twice, beside its segment and below ``indexes``; and segments open for reading.

The copy tells what a segment had whose files are gone, or whose whole folder is. Both must go before anything is
appended to a segment again.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from chappe.errors import Damaged
from chappe.storage.segments.blocks import SEGMENT_HEADER, scan_segment
from chappe.storage.segments.directory import TopicFolder
from chappe.storage.segments.files import FileOps, descriptors, logged
from chappe.storage.segments.index import Index, encode_index

logger: Final = logging.getLogger(__name__)
OPEN_MAX: Final = 256  # segments; each needs one descriptor and, if sealed, one mapping


def save_index(folder: TopicFolder, number: int, raw: bytes, *, durable: bool = True) -> None:
    """Write the index of a segment, and its copy. Raises OSError: one of them may be there."""
    folder.ops.replace_file(folder.index(number), [raw], durable=durable)
    save_copy(folder, number, raw, durable=durable)


def try_to_save_index(folder: TopicFolder, number: int, raw: bytes) -> None:
    """Try ``save_index``; an index that cannot be written is made again at the next start."""
    with logged("the index of %s cannot be written", folder.segment(number)):
        save_index(folder, number, raw)


def save_copy(folder: TopicFolder, number: int, raw: bytes, *, durable: bool = True) -> None:
    copies = TopicFolder(folder.ops, folder.copies, folder.topic, folder.store_id)
    if not os.path.isdir(copies.path):
        above = os.path.dirname(copies.path)
        folder.ops.make_directory(above)
        folder.ops.mkdir(copies.path)
        copies.keep_name()
        folder.ops.sync_directory(above)
    folder.ops.replace_file(copies.index(number), [raw], durable=durable)
    folder.ops.discard(folder.begun(number))


def note_begun(folder: TopicFolder, number: int) -> None:
    """Note outside its folder, unsynced, that a segment is begun: its only trace without a manifest. Never raises."""
    with logged("cannot note that %s is begun", folder.segment(number)):
        for path in (os.path.dirname(folder.beginnings), folder.beginnings):
            if not os.path.isdir(path):
                folder.ops.mkdir(path)
        folder.ops.close(folder.ops.open(folder.begun(number), os.O_WRONLY | os.O_CREAT))


def find_index(folder: TopicFolder, number: int) -> tuple[Index | None, bool]:
    """The index of a segment, from whichever of its files is sound; the other one is written again.

    And whether the disk refused to give a file, so that no other may replace it.
    """
    unreadable = False
    wrong: list[str] = []
    for path in (folder.index(number), folder.copy(number)):
        try:
            raw = folder.ops.read_file(path)
            index = Index(raw, number)
        except FileNotFoundError:
            wrong.append(path)
        except Damaged as error:
            logger.error("%s cannot be used: %s", path, error)
            wrong.append(path)
        except OSError as error:
            logger.error("%s cannot be used: %s", path, error)
            unreadable = True
        else:
            if wrong:
                folder.ops.mend(wrong[0], raw)
            return index, unreadable
    return None, unreadable


def load_index(folder: TopicFolder, number: int) -> Index:
    """Return a sealed segment's index, made again if need be. Raises OSError: unreadable; Damaged: both are gone."""
    index, unreadable = find_index(folder, number)
    if index is not None:
        return index
    try:
        scanned = scan_segment(folder, number, acknowledged=None)
    except FileNotFoundError as error:
        raise Damaged(f"{folder.segment(number)} is missing, and so is its index") from error
    table = scanned.table
    table.length = max(table.length, len(SEGMENT_HEADER))
    raw = encode_index(table)
    if scanned.readable and not unreadable and len(table):
        logger.warning("the index of %s is made again", folder.segment(number))
        try_to_save_index(folder, number, raw)
    return Index(raw, number)


def forget_index(folder: TopicFolder, number: int) -> None:
    """Remove an index and its copy; the copy durably, the index when the folder is synced. Raises OSError."""
    if os.path.isdir(folder.copies):
        with suppress(FileNotFoundError):
            folder.ops.unlink(folder.copy(number))
        folder.ops.sync_directory(folder.copies)  # even if it is gone: a process may have been killed before it did
    with suppress(FileNotFoundError):
        folder.ops.unlink(folder.index(number))


@dataclass(slots=True)
class _Handle:
    fd: int
    index: Index | None = None


class Handles:
    """Segments open for reading, those used last; belongs to the thread that reads."""

    def __init__(self, ops: FileOps) -> None:
        self._ops = ops
        self._open: OrderedDict[tuple[str, int], _Handle] = OrderedDict()
        self._open_max = descriptors(OPEN_MAX)

    def fd(self, folder: TopicFolder, number: int) -> int:
        return self._handle(folder, number).fd

    def index(self, folder: TopicFolder, number: int) -> Index:
        handle = self._handle(folder, number)
        if handle.index is None:
            try:
                handle.index = self._map(folder, number)
            except (OSError, Damaged):
                handle.index = load_index(folder, number)
        return handle.index

    def forget(self, path: str, number: int) -> None:
        handle = self._open.pop((path, number), None)
        if handle is not None:
            self._ops.close(handle.fd)

    def close(self) -> None:
        for path, number in list(self._open):
            self.forget(path, number)

    def _handle(self, folder: TopicFolder, number: int) -> _Handle:
        key = folder.path, number
        handle = self._open.get(key)
        if handle is None:
            while len(self._open) >= self._open_max:
                self.forget(*next(iter(self._open)))
            handle = self._open[key] = _Handle(self._ops.open(folder.segment(number), os.O_RDONLY))
        else:
            self._open.move_to_end(key)
        return handle

    def _map(self, folder: TopicFolder, number: int) -> Index:
        with self._ops.opened(folder.index(number)) as fd:
            try:
                mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
            except ValueError:  # an empty file
                return Index(b"", number)
        return Index(mapped, number, check=False)  # checked when the store was opened, or just written
