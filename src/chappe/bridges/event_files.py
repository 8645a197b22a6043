"""From the mesh into files of Parquet: events as columns."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from uuid import uuid4

from chappe.api.mesh.endpoint import Endpoint
from chappe.arrow import pyarrow
from chappe.bridges.keeping import LOOK_S
from chappe.bridges.recorder import MeshRecording, Recorded
from chappe.defaults import MIB
from chappe.errors import Closed, StorageError, StorageFull, UsageError
from chappe.system import time
from chappe.system.disk import FULL, sync_directory, sync_file
from chappe.system.forking import own

if TYPE_CHECKING:
    import pyarrow as pa

FILES_S: Final = 60.0  # what has come is in files after so long at most ...
FILES_BYTES: Final = 64 * MIB  # ... or when there are so many bytes of columns ...
FILES_MAX: Final = 1_000  # ... or so many files to be made of it
NAME_MAX: Final = 150  # characters of an event's name that a folder is called by
NO_EVENT: Final = "%values"  # the folder of values that are no events: no name becomes that


class EventFiles(MeshRecording):
    """Makes rows of Parquet of every event whose topic in the mesh starts with one of some prefixes; a context.

    Files are ``EVENT/TIME-NUMBER-TOKEN.parquet``, with the columns that ``Subscriber.read_arrow`` has. What came within
    a minute, or 64 MiB of it, becomes files: one for each event and types of its arguments. A file is there once it is
    whole and on disk; until then its name begins with a dot. What is in no file yet when the process is killed is lost,
    as is what is published while it does not run: the mesh keeps nothing. A slow disk slows the mesh down.

    Args:
        endpoint: Of the mesh; peers are its user's affair.
        topics: Prefixes of topics in the mesh.
        directory: Where the folders of events are; made if it is not there.

    Raises:
        UsageError: pyarrow or numpy is not installed, or ``directory`` is a file.
        StorageError: ``directory`` cannot be made.
    """

    def __init__(self, endpoint: Endpoint, *topics: str, directory: str | Path) -> None:
        own(self)
        pyarrow()
        self._directory = Path(directory)
        if self._directory.exists() and not self._directory.is_dir():
            raise UsageError(f"{directory} is a file: name a directory for the files of events")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot(self._directory, error) from None
        super().__init__(endpoint.subscribe(*topics, on_full="block"))
        self._held: dict[tuple[str | None, Any], list[pa.RecordBatch]] = {}  # by event and schema
        self._held_rows = self._held_bytes = 0
        self._held_since = 0.0
        self._files = 0
        self._token = uuid4().hex[:8]  # of this run: several may write into one directory
        self._records = self._stored = self._bytes = 0

    def run(self) -> None:
        """Record until ``stop`` is called, by a signal handler or another thread.

        Raises:
            StorageError: A file cannot be written; what was to be in it, and in others, is lost.
            ChappeError: Of the endpoint.
        """
        while not self._stopping:
            self._hold(self._subscriber.read_arrow(LOOK_S))
            if self._held and self._is_due():
                self._write()
            self._show()

    def finish(self) -> Recorded:
        """Make files of what has come until now, and leave; return the account. Raises as ``run``."""
        with suppress(Closed):  # the endpoint went first
            self._hold(self._subscriber.read_arrow(0.0))
        self._subscriber.close()
        self._write()
        return self.progress()

    def progress(self) -> Recorded:
        """Return the progress: records are rows, those stored are in files, bytes are of columns."""
        return Recorded(
            self._records,
            self._stored,
            self._held_rows,
            self._bytes,
            self._subscriber.available,
            self._subscriber.dropped,
            time.monotonic() - self._began,
        )

    @property
    def malformed(self) -> int:
        """The number of messages that are in no file, as they cannot be decoded."""
        return self._subscriber.malformed

    # -- inside -----------------------------------------------------------------------------------------

    def _hold(self, batches: list[pa.RecordBatch]) -> None:
        if not self._held:
            self._held_since = time.monotonic()
        for batch in batches:
            self._held.setdefault((batch.column("event")[0].as_py(), batch.schema), []).append(batch)
            self._held_rows += batch.num_rows
            self._held_bytes += batch.nbytes
            self._records += batch.num_rows

    def _is_due(self) -> bool:
        if self._held_bytes >= FILES_BYTES or len(self._held) >= FILES_MAX:
            return True
        return time.monotonic() - self._held_since >= FILES_S

    def _write(self) -> None:
        held, self._held = self._held, {}
        self._held_bytes = 0
        for (event, _), batches in held.items():
            table = pyarrow().Table.from_batches(batches)
            self._write_file(folder_of(event), table)
            self._held_rows -= table.num_rows
            self._stored += table.num_rows
            self._bytes += table.nbytes

    def _write_file(self, folder: str, table: pa.Table) -> None:
        from pyarrow import parquet

        self._files += 1
        stamp = datetime.fromtimestamp(time.time_ns() // 10**9, UTC).strftime("%Y%m%dT%H%M%SZ")
        name = f"{stamp}-{self._files:06d}-{self._token}.parquet"
        directory = self._directory / folder
        staged = directory / f".{name}"
        try:
            if not directory.exists():
                directory.mkdir()
                sync_directory(self._directory)
            with staged.open("xb") as file:
                parquet.write_table(table, file)
                file.flush()
                sync_file(file.fileno())
            staged.rename(directory / name)
            sync_directory(directory)
        except OSError as error:
            with suppress(OSError):
                staged.unlink(missing_ok=True)
            raise _cannot(directory / name, error, self._held_rows) from None


def folder_of(event: str | None) -> str:
    """Name the folder of an event: its name, with all but letters, digits and ``_.-~`` as ``%NN``.

    A name that begins with a dot or an underscore, which readers pass over, has that as ``%NN`` too; one that is long
    is cut, and has a part of its hash instead.
    """
    if event is None:
        return NO_EVENT
    name = quote(event, safe="")
    if name[:1] in ("", ".", "_"):
        name = f"%{ord(name[0]):02X}{name[1:]}" if name else "%00"
    if len(name) > NAME_MAX:
        name = f"{name[:NAME_MAX]}~{hashlib.sha256(event.encode()).hexdigest()[:16]}"
    return name


def _cannot(path: Path, error: OSError, lost: int = 0) -> StorageError:
    kind = StorageFull if error.errno in FULL else StorageError
    rest = f"; {lost:,} events are in no file" if lost else ""
    return kind(f"cannot write {path}: {error.strerror or error}{rest}")
