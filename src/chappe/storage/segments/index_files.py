"""Index files on disk: each is kept twice, beside its segment and below ``indexes``.

The copy tells what a segment had whose files are gone, or whose whole folder is. Both must go before anything is
appended to a segment again.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Final

from chappe.errors import Damaged
from chappe.storage.segments.directory import NAME_FILE, copies_folder, copy_path, index_path
from chappe.storage.segments.files import FileOps, read_file, replace_file, sync_directory
from chappe.storage.segments.index import Index

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What is there of an index; ``unreadable`` if the disk refused to give a file, so that no other may replace it."""

    index: Index | None
    unreadable: bool


def save_index(ops: FileOps, folder: str, number: int, raw: bytes, *, durable: bool = True) -> None:
    """Write the index of a segment, and its copy.

    Raises:
        OSError: One of them may be there.
    """
    replace_file(ops, index_path(folder, number), [raw], durable=durable)
    save_copy(ops, folder, number, raw, durable=durable)


def save_copy(ops: FileOps, folder: str, number: int, raw: bytes, *, durable: bool = True) -> None:
    """Write the copy of an index; raises OSError."""
    copies = copies_folder(folder)
    if not os.path.isdir(copies):
        above = os.path.dirname(copies)
        if not os.path.isdir(above):
            ops.mkdir(above)
            sync_directory(ops, os.path.dirname(above))
        ops.mkdir(copies)
        if os.path.basename(copies).startswith("%%"):
            name = read_file(ops, os.path.join(folder, NAME_FILE))
            replace_file(ops, os.path.join(copies, NAME_FILE), [name])
        sync_directory(ops, above)
    replace_file(ops, copy_path(folder, number), [raw], durable=durable)


def find_index(ops: FileOps, folder: str, number: int) -> Found:
    """The index of a segment, from whichever of its files is sound; the other one is written again."""
    unreadable = False
    wrong: list[str] = []
    for path in (index_path(folder, number), copy_path(folder, number)):
        try:
            raw = read_file(ops, path)
            index = Index(raw, number)
        except FileNotFoundError:
            wrong.append(path)
            continue
        except (OSError, Damaged) as error:
            logger.error("%s cannot be used: %s", path, error)
            if isinstance(error, Damaged):
                wrong.append(path)
            else:
                unreadable = True
            continue
        if wrong:
            _mend(ops, wrong[0], raw)
        return Found(index, unreadable)
    return Found(None, unreadable)


def _mend(ops: FileOps, path: str, raw: bytes) -> None:
    try:
        replace_file(ops, path, [raw])
    except OSError as error:
        logger.warning("%s cannot be written again: %s", path, error)
    else:
        logger.warning("%s was damaged or missing and is written again from its copy", path)


def forget_index(ops: FileOps, folder: str, number: int) -> None:
    """Remove an index and its copy; the copy durably, the index when the folder is synced. Raises OSError."""
    copies = copies_folder(folder)
    if os.path.isdir(copies):
        _unlink(ops, copy_path(folder, number))
        sync_directory(ops, copies)  # even if it is gone: a process may have been killed before it did
    _unlink(ops, index_path(folder, number))


def _unlink(ops: FileOps, path: str) -> None:
    try:
        ops.unlink(path)
    except FileNotFoundError:
        pass
