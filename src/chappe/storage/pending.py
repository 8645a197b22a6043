"""What a producer with an identity has given offsets to and not yet synced: a killed process finds it again.

Each record is handed to the operating system as a batch of one, without a sync, before its sender gets the offset. So
they survive whatever ends the process; what ends the machine may take them. A batch that reaches the journal empties
the file. Reading passes over what the journal has, and ends at the first entry that is torn or does not go on where the
journal and the entries before it end.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from chappe.errors import ProtocolError
from chappe.log.batch import HEADER, Batch, Record
from chappe.system.disk import sync_file


class Pending:
    """The file at ``path``, made if it is not there.

    Args:
        path: Belongs to one journal.
        next_offset: Where the journal ends.

    Raises:
        OSError: It cannot be read or written.
    """

    def __init__(self, path: Path, next_offset: int) -> None:
        self.records: list[Record] = []  # found, in order from ``next_offset`` on
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._size = self._load(path.read_bytes(), next_offset)
            os.ftruncate(self._file, self._size)
            sync_file(self._file)  # else after a power cut what was cut off could go on where new records end
        except BaseException:
            os.close(self._file)
            raise

    def append(self, body: bytes) -> None:
        """Add a batch of one record.

        Raises:
            OSError: It is not in the file.
        """
        written = os.pwrite(self._file, body, self._size)
        if written != len(body):  # the next one overwrites it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    def clear(self) -> None:
        """Everything is in the journal: the next record overwrites the first one.

        What stays behind the new ones is in the journal, too. Cutting it off would have each sync of the journal write
        this file as well, where data is ordered before metadata.
        """
        self._size = 0

    def close(self) -> None:
        """Release the file."""
        os.close(self._file)

    def _load(self, raw: bytes, next_offset: int) -> int:
        """Take the records that go on at ``next_offset``; returns where they end."""
        at = end = 0
        while at + HEADER.size <= len(raw):
            size = int.from_bytes(raw[at + 20 : at + 24], "little")
            try:
                batch = Batch.parse(raw[at : at + size])
            except ProtocolError:
                break
            at += size
            if batch.base < next_offset:
                continue
            if batch.base != next_offset or batch.count != 1:
                break
            self.records += batch.records("", "")
            next_offset += 1
            end = at
        return end
