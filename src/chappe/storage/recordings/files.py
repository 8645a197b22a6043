"""The folder of a recording, as Broker lays it out: ``id.txt``, ``topics.txt``, ``peers.txt``, ``messages.dat``.

``id.txt`` is the endpoint's id; the lines of ``topics.txt`` are prefixes that it subscribed to, those of ``peers.txt``
the ids of endpoints that it was peered with. ``broker.conf`` says whether it forwards, which Broker's own tool reads
there. Entries of ``messages.dat`` are whole, also after a disk was full.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from chappe.errors import StorageLocked
from chappe.storage.recordings.codec import HEADER
from chappe.storage.segments.files import trying
from chappe.system.disk import PRIVATE_DIRECTORY, FileLock

ID_FILE = "id.txt"
TOPICS_FILE = "topics.txt"
PEERS_FILE = "peers.txt"
MESSAGES_FILE = "messages.dat"
CONFIG_FILE = "broker.conf"


class RecordingFiles:
    """The files of one recording, in the place of those of an earlier one.

    Args:
        directory: Made if it is not there; other files in it stay.
        endpoint_id: As people read it.
        forwarding: Whether the endpoint passes messages on.

    Raises:
        StorageLocked: Another endpoint records there.
        StorageError: The folder cannot be made or written to.
    """

    def __init__(self, directory: str | Path, endpoint_id: str, forwarding: bool) -> None:
        self.directory = Path(directory)
        with trying(f"record into {directory}"):
            self.directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            try:
                self._messages = FileLock(self.directory / MESSAGES_FILE)  # the recorder has it open
            except BlockingIOError:
                raise StorageLocked(
                    f"another endpoint records into {directory}: give each a directory of its own"
                ) from None
        self._size = 0
        with trying(f"record into {directory}", self.close):
            os.ftruncate(self._messages.fd, 0)
            self.append(HEADER)
            (self.directory / ID_FILE).write_text(f"{endpoint_id}\n")
            (self.directory / TOPICS_FILE).write_bytes(b"")
            (self.directory / PEERS_FILE).write_bytes(b"")
            disabled = "false" if forwarding else "true"
            (self.directory / CONFIG_FILE).write_text(f"broker {{\n  disable-forwarding = {disabled}\n}}\n")

    def append(self, entries: bytes) -> None:
        """Append to the messages: all of it or, raising OSError, nothing."""
        view = memoryview(entries)
        fd = self._messages.fd
        try:
            while view:
                view = view[os.write(fd, view) :]
        except OSError:
            os.ftruncate(fd, self._size)
            raise
        self._size += len(entries)

    def append_lines(self, name: str, lines: Iterable[bytes]) -> None:
        """Append lines to the topics or the peers. Raises OSError."""
        with (self.directory / name).open("ab") as file:
            file.write(b"".join([line + b"\n" for line in lines]))

    def close(self) -> None:
        self._messages.close()
