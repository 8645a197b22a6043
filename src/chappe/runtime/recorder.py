"""The recorder of an endpoint: what it publishes, as shapes, with what it subscribes to and its peers, into a folder.

An endpoint is never held up: what is to be recorded waits in a bounded queue for a lane of the process's worker, which
makes shapes and writes them. What has no room there is left out and counted. When a write fails, recording ends for
good, and the endpoint goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from chappe.defaults import MIB
from chappe.errors import InvalidData
from chappe.mesh.events import PeerAdded, RecordingIncomplete, RecordingStopped
from chappe.mesh.filters import Filter
from chappe.runtime.worker import DISKS, Lane, Post
from chappe.storage.recordings.codec import RecordingEncoder
from chappe.storage.recordings.files import PEERS_FILE, TOPICS_FILE, RecordingFiles
from chappe.system import time

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 65_536  # messages that wait to be written, about a second of the fastest publisher ...
WAITING_BYTES_MAX: Final = 16 * MIB  # ... and bytes in them
NAMES_MAX: Final = 65_536  # topics, and peers, that are noted; most endpoints have some tens
TELL_S: Final = 1.0  # between two reports of what was left out
CLOSE_S: Final = 2.0  # what still waits at the end gets so long to be written


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """The directory, and the most messages; None: without a limit."""

    directory: str | Path
    messages_max: int | None = None


class _Waiting:
    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes, int]] = []
        self.bytes = 0
        self.topics: list[bytes] = []
        self.peers: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self.messages or self.topics or self.peers)


class EndpointRecorder:
    """Records one endpoint. All but the constructor runs with the endpoint's lock held, unless it says otherwise.

    Args:
        files: Where to; closed at the end.
        messages_max: After so many messages no more are recorded.
        post: ``Turns.run`` of the endpoint.
        report: Called with ``RecordingIncomplete`` and ``RecordingStopped``.
        full: Called when no further messages are wanted.
    """

    def __init__(
        self,
        files: RecordingFiles,
        messages_max: int | None,
        post: Post,
        report: Callable[[object], None],
        full: Callable[[], None],
    ) -> None:
        self._files = files
        self._left = messages_max
        self._report = report
        self._full = full
        self._encoder = RecordingEncoder()  # the lane's alone
        self._lane = Lane(DISKS, post)
        self._waiting = _Waiting()
        self._writing = False
        self._stopped = False
        self._filter: Filter | None = None  # as it was noted last
        self._topics: set[bytes] = set()
        self._peers: set[bytes] = set()
        self._missed = 0  # messages that were left out and not reported yet
        self._tell_at = 0.0

    def record(self, topic: bytes, payload: bytes, kind: int) -> None:
        if self._stopped or self._left == 0:
            return
        waiting = self._waiting
        size = len(topic) + len(payload)
        if len(waiting.messages) >= WAITING_MAX or waiting.bytes + size > WAITING_BYTES_MAX:
            self._missed += 1
            return
        waiting.messages.append((topic, payload, kind))
        waiting.bytes += size
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self._full()
        if not self._writing:
            self._write()

    def note_filter(self, wanted: Filter) -> None:
        if wanted is self._filter or self._stopped:
            return
        self._filter = wanted
        # a topic of several lines cannot be told from several topics
        new = [each for each in wanted if each not in self._topics and b"\n" not in each]
        self._note(new[: NAMES_MAX - len(self._topics)], self._topics, self._waiting.topics)

    def hear(self, event: object) -> None:
        if isinstance(event, PeerAdded) and not self._stopped and len(self._peers) < NAMES_MAX:
            peer = event.id.encode()
            self._note([] if peer in self._peers else [peer], self._peers, self._waiting.peers)

    def close(self) -> None:
        """Write waiting entries, within some seconds; without the lock, and when nothing more comes."""
        stopped, self._stopped = self._stopped, True
        self._lane.close(CLOSE_S, partial(self._finish, _Waiting() if stopped else self._waiting))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _note(self, new: list[bytes], known: set[bytes], waiting: list[bytes]) -> None:
        known.update(new)
        waiting += new
        if new and not self._writing:
            self._write()

    def _write(self) -> None:
        self._writing = True
        batch, self._waiting = self._waiting, _Waiting()
        self._lane.do(partial(self._put, batch), self._written)

    def _put(self, batch: _Waiting) -> tuple[int, OSError | None]:
        """Write a batch, on the lane; return how many messages could not be recorded, and the error that ended it."""
        made = bytearray()
        missed = 0
        for message in batch.messages:
            try:
                made += self._encoder.encode(*message)
            except InvalidData:
                missed += 1
        try:
            if made:
                self._files.append(bytes(made))
            if batch.topics:
                self._files.append_lines(TOPICS_FILE, batch.topics)
            if batch.peers:
                self._files.append_lines(PEERS_FILE, batch.peers)
        except OSError as error:
            return missed, error
        return missed, None

    def _written(self, outcome: tuple[int, OSError | None]) -> None:
        self._writing = False
        missed, error = outcome
        self._missed += missed
        if error is not None:
            self._stopped = True
            self._waiting = _Waiting()
            self._full()
            self._report(RecordingStopped(str(self._files.directory), error.strerror or str(error)))
            return
        now = time.monotonic()
        if self._missed and now >= self._tell_at:
            self._tell_at = now + TELL_S
            missed, self._missed = self._missed, 0
            self._report(RecordingIncomplete(str(self._files.directory), missed))
        if self._waiting:
            self._write()

    def _finish(self, batch: _Waiting) -> None:
        missed, error = self._put(batch)
        self._files.close()
        missed += self._missed
        if error is not None:
            logger.warning("%s", RecordingStopped(str(self._files.directory), error.strerror or str(error)))
        elif missed:
            logger.warning("%s", RecordingIncomplete(str(self._files.directory), missed))
