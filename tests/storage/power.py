"""A disk whose machine may lose power after any call: what may then be on it, as directories to be opened.

The real directory is what the machine has in memory. Of a file the disk surely has what was synced, and any of the
sectors written since; of a directory what was synced, and a beginning of what was done in it since. A sync that fails
loses what it was to write, which memory goes on showing until it is dropped.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from chappe.storage.segments.files import Buffer, FileOps

SECTOR = 512


class Killed(BaseException):
    """The process dies here."""


@dataclass(slots=True)
class _File:
    synced: bytes = b""
    since: list[tuple[int, bytes] | int] = field(default_factory=list)  # writes at a position, or a length to cut to

    def surely(self) -> bytes:
        """What memory has."""
        content = bytearray(self.synced)
        for each in self.since:
            _apply(content, each)
        return bytes(content)

    def maybe(self, rng: Random) -> bytes:
        """What a power cut may leave."""
        content = bytearray(self.synced)
        for each in self.since[: rng.randint(0, len(self.since))]:
            if isinstance(each, int):
                _apply(content, each)
                continue
            position, raw = each
            rate = rng.choice((0.0, 0.5, 0.9, 1.0))
            at = 0
            while at < len(raw):
                end = min(len(raw), at + SECTOR - (position + at) % SECTOR)
                if rng.random() < rate:
                    _apply(content, (position + at, raw[at:end]))
                elif rng.random() < 0.5:  # the length may be on disk without the bytes
                    content.extend(bytes(max(0, position + end - len(content))))
                at = end
        return bytes(content)


def _apply(content: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        del content[change:]
        content.extend(bytes(change - len(content)))
        return
    position, raw = change
    content.extend(bytes(max(0, position - len(content))))
    content[position : position + len(raw)] = raw


Entries = dict[str, _File | None]  # None: a directory


class PowerOps(FileOps):
    """Calls ``event`` before each change, and dies, or fails to sync, where it is told.

    Args:
        root: The directory of which images are made.
        rng: Decides what is left.
    """

    def __init__(self, root: Path, rng: Random) -> None:
        self.root = root
        self.rng = rng
        self.event: Callable[[], None] = lambda: None
        self.kill_in = -1  # changes until the process dies
        self.fail_in = -1  # syncs until one fails
        self.dead = False
        self._fds: dict[int, _File | str] = {}
        self._live: Entries = {}
        self._disk: Entries = {}
        self._done: dict[str, list[tuple[str, str, _File | None]]] = {}  # by directory: add or remove, path, what

    # -- images ---------------------------------------------------------------------------------------------

    def image(self, target: Path) -> None:
        """Make a directory of what may be left. The files of whoever was killed are closed, as the system does."""
        if self.dead:
            for fd in list(self._fds):
                self.close(fd)
        entries = dict(self._disk)
        for done in self._done.values():
            for what, path, file in done[: self.rng.randint(0, len(done))]:
                if what == "add":
                    entries[path] = file
                else:
                    entries.pop(path, None)
        target.mkdir()
        for path, file in sorted(entries.items()):
            if file is None:
                if (target / path).parent.is_dir():
                    (target / path).mkdir(exist_ok=True)
            elif (target / path).parent.is_dir():
                (target / path).write_bytes(file.maybe(self.rng))

    # -- changes ----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        if self.dead:
            raise Killed
        self.event()
        if self.kill_in == 0:
            self.dead = True
            raise Killed
        self.kill_in -= 1

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self.root)

    def _do(self, what: str, name: str, file: _File | None) -> None:
        if what == "add":
            self._live[name] = file
        else:
            self._live.pop(name, None)
        self._done.setdefault(os.path.dirname(name), []).append((what, name, file))

    def open(self, path: str, flags: int) -> int:
        name = self._name(path)
        if flags & os.O_CREAT:
            self._step()
        new = flags & os.O_CREAT and name not in self._live
        fd = super().open(path, flags)
        if new:
            self._do("add", name, _File())
        found = self._live.get(name)
        if found is None:
            self._fds[fd] = name
            return fd
        self._fds[fd] = found
        if flags & os.O_TRUNC and not new:
            found.since.append(0)
        return fd

    def close(self, fd: int) -> None:
        if self._fds.pop(fd, None) is not None:
            super().close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        raw = b"".join(buffers)
        file = self._fds[fd]
        assert isinstance(file, _File)
        try:
            self._step()
        except Killed:
            raw = raw[: self.rng.randint(0, len(raw))] if self.kill_in == 0 else b""
            self.kill_in = -1
            os.pwrite(fd, raw, position)
            file.since.append((position, raw))
            raise
        file.since.append((position, raw))
        return super().pwritev(fd, [raw], position)

    def fdatasync(self, fd: int) -> None:
        self._step()
        file = self._fds[fd]
        self.fail_in -= 1
        if isinstance(file, str):
            for what, path, each in self._done.pop("" if file == "." else file, []):
                if what == "add":
                    self._disk[path] = each
                else:
                    self._disk.pop(path, None)
            return
        if self.fail_in == -1:
            file.since.clear()  # memory still has it
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        file.synced = file.surely()
        file.since.clear()

    def fsync(self, fd: int) -> None:
        self.fdatasync(fd)

    def drop_cache(self, fd: int, position: int, size: int) -> None:
        file = self._fds[fd]
        if isinstance(file, _File) and not file.since:
            path = f"/proc/self/fd/{fd}"
            with open(path, "r+b", buffering=0) as memory:
                end = position + size
                memory.truncate(len(file.synced))
                memory.seek(min(position, len(file.synced)))
                memory.write(file.synced[position:end])

    def ftruncate(self, fd: int, length: int) -> None:
        self._step()
        file = self._fds[fd]
        assert isinstance(file, _File)
        file.since.append(length)
        super().ftruncate(fd, length)

    def replace(self, source: str, target: str) -> None:
        self._step()
        super().replace(source, target)
        before, after = self._name(source), self._name(target)
        file = self._live[before]
        self._do("add", after, file)
        self._do("remove", before, None)

    def unlink(self, path: str) -> None:
        self._step()
        super().unlink(path)
        self._do("remove", self._name(path), None)

    def mkdir(self, path: str) -> None:
        self._step()
        super().mkdir(path)
        self._do("add", self._name(path), None)
