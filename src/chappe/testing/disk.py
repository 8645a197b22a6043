"""The disk of a host: files that are real, and what a full or broken disk or a power cut makes of them.

The files of a host lie in directories of the test, and are what the host has in memory. A power cut leaves of a file
what was synced, and any of the sectors that were written since; and of a directory what was synced, and a beginning of
what was done in it since. A sync that fails loses what it was to write, which memory goes on showing. Databases of
SQLite are not played: they survive as they are.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from chappe.storage.segments.files import Buffer, FileOps
from chappe.system.disk import FULL, PRIVATE_DIRECTORY, PRIVATE_FILE
from chappe.testing.scheduler import Killed

SECTOR_BYTES: Final = 512
SURVIVING: Final = (0.0, 0.5, 0.9, 1.0)  # shares of the sectors of a write that a power cut leaves
_WRITES: Final = os.O_WRONLY | os.O_RDWR


@dataclass(slots=True)
class _DiskChange:
    """A write at a position, or a cut to a length."""

    at: int
    raw: bytes | None
    old: bytes  # that was there from ``at`` on, and is no longer
    length: int  # of the file before
    synced: bool = False
    lost: bool = False  # a sync of it has failed

    def do(self, content: bytearray, start: int = 0, end: int | None = None) -> None:
        if self.raw is None:
            content.extend(bytes(max(0, self.at - len(content))))
            del content[self.at :]
            return
        raw = self.raw[start:end]
        content.extend(bytes(max(0, self.at + start - len(content))))
        content[self.at + start : self.at + start + len(raw)] = raw

    def undo(self, content: bytearray) -> None:
        if self.raw is None:
            content.extend(self.old)
        else:
            content[self.at : self.at + len(self.old)] = self.old
        del content[self.length :]


@dataclass(slots=True, eq=False)
class _DiskFile:
    since: list[_DiskChange] = field(default_factory=list)  # changes that are not all synced
    content: bytes = b""  # of one that was removed: what it had then

    def sync(self) -> None:
        if any(each.lost for each in self.since):
            for each in self.since:
                each.synced = not each.lost
        else:
            self.since.clear()

    def lose(self) -> None:
        for each in self.since:
            each.lost = not each.synced

    def on_disk(self, content: bytes, rng: Random | None = None) -> bytes:
        """Return what the disk has; with ``rng`` what it may have after a power cut."""
        found = bytearray(content)
        for each in reversed(self.since):
            each.undo(found)
        open_ = [each for each in self.since if not each.synced and not each.lost]
        kept = len(open_) if rng is None else rng.randint(0, len(open_))
        tried = {id(each) for each in open_[:kept]}
        for each in self.since:
            if each.synced:
                each.do(found)
            elif id(each) in tried:
                if rng is None or each.raw is None:
                    each.do(found)
                else:
                    _tear(each, found, rng)
        return bytes(found)


def _tear(change: _DiskChange, content: bytearray, rng: Random) -> None:
    """Apply some sectors of a write; of others the length alone may be there."""
    assert change.raw is not None
    share = rng.choice(SURVIVING)
    at, size = 0, len(change.raw)
    while at < size:
        end = min(size, at + SECTOR_BYTES - (change.at + at) % SECTOR_BYTES)
        if rng.random() < share:
            change.do(content, at, end)
        elif rng.random() < 0.5:
            content.extend(bytes(max(0, change.at + end - len(content))))
        at = end


class Disk:
    """The disk of a host, over all its lives. ``World.disk`` has it."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._share = 0.0
        self._error = errno.ENOSPC
        self.slow_s = 0.0
        self._files: dict[str, _DiskFile] = {}  # those that were changed, by path
        self._done: dict[str, list[tuple[str, _DiskFile | None]]] = {}  # by directory: path, and what was there

    # -- what a test decides ----------------------------------------------------------------------------------

    def refuse(self, share: float = 1.0, error: int = errno.ENOSPC) -> None:
        """Refuse calls that need room from now on, after writing a part; or every call, with another error.

        Args:
            share: The share of the calls that is refused, drawn from the seed of the world.
            error: ``errno.ENOSPC`` or ``errno.EDQUOT`` for a full disk; any other, such as ``errno.EIO``, also refuses
                to read and to sync. A sync that fails loses the writes before it.
        """
        self._share = share
        self._error = error

    def allow(self) -> None:
        """Refuse nothing from now on, and be as fast as at first."""
        self._share = 0.0
        self.slow_s = 0.0

    def slow(self, seconds: float) -> None:
        """Take about so long from now on for each write or sync of a member that others wait for."""
        self.slow_s = seconds

    def takes_s(self) -> float:
        """Return how long the next job takes."""
        return self._rng.expovariate(1.0) * self.slow_s if self.slow_s else 0.0

    # -- the files of a host ----------------------------------------------------------------------------------

    def refuses(self, *, room: bool) -> bool:
        if not self._share or (self._error in FULL and not room):
            return False
        return self._rng.random() < self._share

    def refusal(self, path: str | None = None) -> OSError:
        return OSError(self._error, os.strerror(self._error), path)

    def part(self, size: int) -> int:
        """Return how many of so many bytes a write takes that fails, or in which the process is killed."""
        return self._rng.randint(0, size)

    def of(self, path: str) -> _DiskFile | None:
        return self._files.get(path)

    def changing(self, path: str) -> _DiskFile:
        return self._files.setdefault(path, _DiskFile())

    def was(self, path: str) -> _DiskFile | None:
        """Return the state of a path, to be put back; None if nothing is there."""
        if not os.path.lexists(path):
            return None
        found = self._files.get(path) or _DiskFile()
        found.content = _read(path)
        return found

    def did(self, path: str, before: _DiskFile | None) -> None:
        self._done.setdefault(os.path.dirname(path), []).append((path, before))

    def moved(self, source: str, target: str) -> None:
        found = self._files.pop(source, None)
        self._files.pop(target, None)
        if found is not None:
            self._files[target] = found

    def forget(self, path: str) -> None:
        self._files.pop(path, None)

    def sync_directory(self, path: str) -> None:
        """Make all changes in a directory durable."""
        self._done.pop(path, None)

    def cut_power(self) -> None:
        """Leave of all files what a power cut may leave."""
        for directory in sorted(self._done):
            done = self._done[directory]
            for path, before in reversed(done[self._rng.randint(0, len(done)) :]):
                if os.path.isdir(directory):
                    self._put_back(path, before)
        self._done.clear()
        for path, file in sorted(self._files.items()):
            if file.since and os.path.exists(path):
                content = _read(path)
                found = file.on_disk(content, self._rng)
                if found != content:
                    _write(path, found)
        self._files.clear()

    def _put_back(self, path: str, before: _DiskFile | None) -> None:
        self._files.pop(path, None)
        if before is not None:
            _write(path, before.content)
            self._files[path] = before
        elif os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write(path: str, content: bytes) -> None:
    """Write to a new file: a killed process may still have the former one mapped."""
    temporary = path + ".power-cut"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        os.write(file, content)
    finally:
        os.close(file)
    os.replace(temporary, path)


class DiskOps(FileOps):
    """The calls that one life of a host makes; ``synced`` is called before each sync."""

    def __init__(self, disk: Disk, synced: Callable[[], None]) -> None:
        self._disk = disk
        self._synced = synced
        self._open: dict[int, _DiskFile | str | None] = {}  # a directory has its path
        self._paths: dict[int, str] = {}
        self.changes_left: int | None = None  # then the process is killed

    def leave(self) -> None:
        """Close everything as the system does when the process is gone."""
        for fd in list(self._open):
            self.close(fd)

    def _change(self) -> None:
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left < 0:
                raise Killed

    def open(self, path: str, flags: int) -> int:
        path = os.path.abspath(path)
        new = bool(flags & os.O_CREAT) and not os.path.exists(path)
        if new or flags & os.O_TRUNC:
            self._change()
        if self._disk.refuses(room=new):
            raise self._disk.refusal(path)
        before = _read(path) if flags & os.O_TRUNC and not new else b""
        fd = super().open(path, flags & ~os.O_WRONLY | os.O_RDWR if flags & os.O_WRONLY else flags)
        self._paths[fd] = path
        if new:
            self._disk.forget(path)
            self._disk.did(path, None)
        if os.path.isdir(path):
            self._open[fd] = path
        else:
            self._open[fd] = self._disk.changing(path) if flags & _WRITES else self._disk.of(path)
        if before:
            self._file(fd).since.append(_DiskChange(0, None, before, len(before)))
        return fd

    def _file(self, fd: int) -> _DiskFile:
        found = self._open[fd]
        assert isinstance(found, _DiskFile)
        return found

    def close(self, fd: int) -> None:
        if fd in self._open:
            del self._open[fd], self._paths[fd]
            super().close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        raw = b"".join(buffers)
        killed = False
        try:
            self._change()
        except Killed:
            killed = True
        refused = killed or self._disk.refuses(room=True)
        if refused:
            raw = raw[: self._disk.part(len(raw))]
        file, length = self._file(fd), os.fstat(fd).st_size
        old = os.pread(fd, min(len(raw), max(0, length - position)), position)
        file.since.append(_DiskChange(position, raw, old, length))
        written = super().pwritev(fd, [raw], position) if raw else 0
        if killed:
            raise Killed
        if refused:
            raise self._disk.refusal()
        return written

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if self._disk.refuses(room=False):
            raise self._disk.refusal()
        return super().pread(fd, size, position)

    def fdatasync(self, fd: int) -> None:
        self._change()
        self._synced()
        found = self._open[fd]
        if self._disk.refuses(room=False):
            if isinstance(found, _DiskFile):
                found.lose()
            raise self._disk.refusal()
        if isinstance(found, _DiskFile):
            found.sync()
        elif found is not None:
            self._disk.sync_directory(found)

    fsync = fdatasync

    def drop_cache(self, fd: int, position: int, size: int) -> None:
        found, path = self._open[fd], self._paths.get(fd, "")
        if (
            not isinstance(found, _DiskFile)
            or not found.since
            or not all(each.synced or each.lost for each in found.since)
        ):
            return
        if os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(fd)):
            content = found.on_disk(_read(path))
            found.since.clear()
            with open(path, "r+b", buffering=0) as file:
                file.truncate(len(content))
                file.write(content)

    def ftruncate(self, fd: int, length: int) -> None:
        self._change()
        size = os.fstat(fd).st_size
        old = os.pread(fd, max(0, size - length), length)
        self._file(fd).since.append(_DiskChange(length, None, old, size))
        super().ftruncate(fd, length)

    def replace(self, source: str, target: str) -> None:
        source, target = os.path.abspath(source), os.path.abspath(target)
        self._change()
        if os.path.isdir(source):
            super().replace(source, target)
            return
        file, there = self._disk.was(source), self._disk.was(target)
        super().replace(source, target)
        self._disk.did(target, there)
        self._disk.did(source, file)
        self._disk.moved(source, target)

    def unlink(self, path: str) -> None:
        path = os.path.abspath(path)
        self._change()
        before = self._disk.was(path)
        super().unlink(path)
        self._disk.did(path, before)
        self._disk.forget(path)

    def mkdir(self, path: str) -> None:
        path = os.path.abspath(path)
        self._change()
        if self._disk.refuses(room=True):
            raise self._disk.refusal(path)
        os.mkdir(path, PRIVATE_DIRECTORY)
        self._disk.did(path, None)
