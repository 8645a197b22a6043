"""The calls to the operating system that the storage makes, in one object so that tests can make them fail.

``FileOps`` is a thin layer over ``os``, and on that what the storage needs: complete vectored writes, files replaced
atomically, directories synced. ``storage_error`` turns what goes wrong into chappe's own errors.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crc32c import crc32c

from chappe.errors import IdentityInUse, StorageError, StorageFormat, StorageFull
from chappe.system import machine
from chappe.system.disk import (
    FULL,
    PRIVATE_DIRECTORY,
    FileLock,
    keep_private,
    open_private,
    sync_data,
    sync_file,
)
from chappe.system.limits import EXHAUSTED, TEXT

logger: Final = logging.getLogger(__name__)
IOV_MAX: Final = 1024  # buffers in one pwritev; what Linux and macOS allow
READ_TRIES: Final = 3  # a read that the disk refuses is made so often in a row

Buffer = bytes | bytearray | memoryview


class FileOps:
    """The calls to the operating system; every method raises OSError as ``os`` does."""

    def open(self, path: str, flags: int) -> int:
        return open_private(path, flags)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write some or all of at most ``IOV_MAX`` buffers; return how many bytes."""
        if hasattr(os, "pwritev"):
            return os.pwritev(fd, buffers, position)
        return os.pwrite(fd, b"".join(buffers), position)  # macOS before 11

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return os.pread(fd, size, position)

    def fdatasync(self, fd: int) -> None:
        sync_data(fd)

    def fsync(self, fd: int) -> None:
        sync_file(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def replace(self, source: str, target: str) -> None:
        """Rename atomically; replaces an existing ``target``."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        os.mkdir(path, PRIVATE_DIRECTORY)

    def drop_cache(self, fd: int, position: int, size: int) -> None:
        """Let the next read of these bytes come from the disk, as far as the system lets us ask for it."""
        if hasattr(os, "posix_fadvise"):  # macOS has none
            os.posix_fadvise(fd, position, size, os.POSIX_FADV_DONTNEED)

    def free_bytes(self, path: str) -> int:
        """Bytes that an ordinary user may still write on the file system of ``path``."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    @contextmanager
    def opened(self, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        fd = self.open(path, flags)
        try:
            yield fd
        finally:
            self.close(fd)

    def write_all(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers from ``position`` on; return the end. Raises OSError: some bytes may be written."""
        for start in range(0, len(buffers), IOV_MAX):
            part = buffers[start : start + IOV_MAX]
            wanted = sum(map(len, part))
            written = self.pwritev(fd, part, position)
            while written < wanted:
                rest = memoryview(b"".join(part))[written:]
                more = self.pwritev(fd, [rest], position + written)
                if more <= 0:
                    raise OSError(errno.EIO, "the disk accepts no more bytes")
                written += more
            position += wanted
        return position

    def read_some(self, fd: int, size: int, position: int) -> bytes:
        """Read up to ``size`` bytes; an error of the disk may pass, so it is asked ``READ_TRIES`` times.

        Raises OSError: EIO says that the bytes cannot be read now, and nothing about what they are.
        """
        for left in reversed(range(READ_TRIES)):
            try:
                return self.pread(fd, size, position)
            except OSError as error:
                if error.errno != errno.EIO or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def read_all(self, fd: int, size: int, position: int) -> bytes:
        """Read ``size`` bytes, or fewer where the file ends before; raises as ``read_some``."""
        parts: list[bytes] = []
        while size > 0 and (part := self.read_some(fd, size, position)):
            parts.append(part)
            position += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_file(self, path: str) -> bytes:
        with self.opened(path) as fd:
            return self.read_all(fd, os.fstat(fd).st_size, 0)

    def replace_file(self, path: str, buffers: Sequence[Buffer], *, durable: bool = True) -> None:
        """Write a file so that always the old or the new content is found, never a mixture. ``durable``: return only
        when it is on disk. Without it a power cut may leave an empty file; for content that carries a checksum and can
        be made again. Raises OSError: the old content is still there.
        """
        temporary = path + ".tmp"
        try:
            fd = self.create(temporary)
            try:
                self.write_all(fd, buffers, 0)
                if durable:
                    self.fsync(fd)
            finally:
                self.close(fd)
            self.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                self.unlink(temporary)
            raise
        if durable:
            self.sync_directory(os.path.dirname(path))

    def create(self, path: str) -> int:
        """Open a file that is new: after a power cut, one that was only cut to nothing may have what it had before."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return self.open(path, flags)
        except FileExistsError:
            self.unlink(path)  # a process was killed
            return self.open(path, flags)

    def discard(self, path: str) -> None:
        """Remove a file that is no longer needed, if it is there; never raises."""
        with logged("cannot remove %s, which is no longer needed", path), suppress(FileNotFoundError):
            self.unlink(path)

    def discard_part(self, path: str, size: int) -> bool:
        """Remove ``size`` bytes at most at an unneeded file's end; return True once it is gone. Never raises."""
        doing = logged("cannot shorten %s, which is no longer needed", path)
        with doing, suppress(FileNotFoundError), self.opened(path, os.O_WRONLY) as fd:
            length = os.fstat(fd).st_size - size
            if length > 0:
                self.ftruncate(fd, length)
                return False
        self.discard(path)
        return True

    def mend(self, path: str, raw: bytes) -> None:
        """Write a file again that is damaged or missing, from its other copy; never raises."""
        try:
            self.replace_file(path, [raw])
        except OSError as error:
            logger.warning("%s is damaged or missing and cannot be written again: %s", path, error)
        else:
            logger.warning("%s was damaged or missing and is written again from its other copy", path)

    def make_directory(self, path: str) -> None:
        """Make a directory, durably, unless it is there; the one above it is."""
        if not os.path.isdir(path):
            try:
                self.mkdir(path)
            except FileExistsError:
                if not os.path.isdir(path):
                    raise
                # another process has just made it, and may not have synced yet
            self.sync_directory(os.path.dirname(path))

    def make_directories(self, path: str) -> None:
        """Make a directory, and those above it that are missing, so that a power cut does not take them again.

        One that is there already may have been made by a process that was killed before it could sync: it is synced in
        its parent, where we may read that.
        """
        missing = []
        at = path
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        for each in reversed(missing):
            self.make_directory(each)
        if not missing:
            with suppress(PermissionError):  # who made it had the right to, and to sync it too
                self.sync_directory(os.path.dirname(path))

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""
        with self.opened(path) as fd:
            self.fsync(fd)


def file_ops() -> FileOps:
    """The calls of the machine that is current: of the operating system, or of a disk that a test plays."""
    return machine.current().files(FileOps())


def storage_error(error: OSError, doing: str) -> StorageError:
    """Return the error to raise for ``error``; ``doing`` completes the words "cannot ..."."""
    if error.errno in FULL:
        return StorageFull(f"cannot {doing}: the disk is full; free some space and the write is accepted again")
    if error.errno in EXHAUSTED:
        return StorageError(f"cannot {doing}: {TEXT}")
    at = f" ({error.filename})" if error.filename else ""
    return StorageError(f"cannot {doing}: {error.strerror or error}{at}; check the disk and its permissions")


@contextmanager
def trying(doing: str, close: Callable[[], None] | None = None) -> Iterator[None]:
    """Turn errors of the system into a ``storage_error``; call ``close`` on any exception."""
    try:
        yield
    except BaseException as error:
        if close is not None:
            close()
        if isinstance(error, OSError):
            raise storage_error(error, doing) from error
        raise


def hold_identity(ops: FileOps, directory: Path, whose: str, doing: str) -> FileLock:
    """The lock of an identity's directory, which is made. Raises IdentityInUse, and StorageError as ``trying``."""
    with trying(f"use {directory} for the identity of a {whose}"):
        ops.make_directories(str(directory.absolute()))
        keep_private(directory)
        try:
            return FileLock(directory / "lock")
        except BlockingIOError:
            raise IdentityInUse(
                f"another {whose} uses the identity in {directory}: {doing} it, or choose another identity"
            ) from None


@contextmanager
def logged(text: str, *args: object, level: int = logging.WARNING) -> Iterator[None]:
    """Log errors of the system behind this text, and suppress them."""
    try:
        yield
    except OSError as error:
        logger.log(level, f"{text}: %s", *args, error)


def descriptors(wanted: int) -> int:
    """Return ``wanted``, or less where this process may have few files open: an eighth of its limit, at least 8."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(8, min(wanted, soft // 8))


def check_format(found: object, known: int, path: Path) -> None:
    """Raise StorageFormat if a JSON file's content says that a newer chappe wrote it, whatever else it says."""
    format_ = found.get("format") if isinstance(found, dict) else None
    if isinstance(format_, int) and format_ > known:
        raise StorageFormat(
            f"{path} has format {format_}, written by a newer chappe; this one knows {known}: install that version, or "
            "choose another identity"
        )


def checksum(text: str) -> str:
    return f"{crc32c(text.encode()):08x}"


def encode_name(name: str) -> bytes:
    """Encode the name of a topic or partition that came over the wire, and so is not checked again."""
    return name.encode("utf-8", "surrogateescape")
