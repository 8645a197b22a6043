"""The store's manifest: which segments there are, and what was acknowledged of the newest of each topic.

A file that is appended to with each commit, after its blocks are synced and before anybody is told, and that is made
anew when most of it is out of date. An entry is not synced: it survives the death of the process at once, and a power
cut when ``sync`` was called since, which the store does every few seconds. So it never says more than is on disk; what
it may not say yet after a power cut is the last commits, and of those all but the last one of each topic are proved by
the blocks themselves (``place``).

What for: a segment that is gone, or shorter than it was, is known with what it had, and bad bytes behind the last sound
block are told from a write that was never finished.

::

    magic "CHPMAN1\\n", a number of this file u32, crc32c of the store's id and both u32
    entries: size u32, crc32c u32, then msgpack: an array of topics, each
        [topic, first segment (-1: as before), newest segment with blocks, its length, [[partition, first, next]...]]

The checksum of an entry starts from the file's number and the entry's position. Reading ends at the first entry that
is not right.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from chappe.data.topic import decode_topic
from chappe.defaults import MANIFEST_BYTES
from chappe.storage.segments.files import FileOps, logged
from chappe.storage.segments.table import Spans, widen

logger: Final = logging.getLogger(__name__)
_MAGIC: Final = b"CHPMAN1\n"
_HEAD: Final = struct.Struct("<8sII")
_ENTRY: Final = struct.Struct("<II")
_MASK: Final = 0xFFFF_FFFF
_SPANS_MAX: Final = 10_000  # in one entry of a new file
_RawSpans = list[tuple[bytes, int, int]]
_Topic = tuple[bytes, int, int, int, _RawSpans]
_decoder: Final = msgspec.msgpack.Decoder(list[_Topic])
_encoder: Final = msgspec.msgpack.Encoder()


class Mark(NamedTuple):
    """The acknowledged part of a segment: its first ``length`` bytes, which have these offsets of its partitions."""

    segment: int
    length: int
    spans: Spans


class KnownTopic(NamedTuple):
    """The manifest's entry of a topic: its oldest segment, and the newest one with blocks."""

    oldest: int
    mark: Mark


class StoreManifest:
    """The manifest of the store in ``path``, for the writing thread; ``load`` or ``renew`` comes first."""

    def __init__(self, ops: FileOps, path: str, store_id: str) -> None:
        self.path = path
        self.large = False  # whether it should be made anew
        self._ops = ops
        self._store_id = store_id.encode()
        self._fd = -1
        self._seed = 0
        self._length = 0
        self._renewed_length = 0
        self._unsynced = False
        self._broken = True  # nothing can be appended

    def load(self) -> dict[str, KnownTopic] | None:
        """Read the entries of all topics; None if there is no readable one. Raises OSError if it cannot be opened.

        If its end is not right it has to be renewed.
        """
        try:
            raw = self._ops.read_file(self.path)
        except FileNotFoundError:
            return None
        if len(raw) < _HEAD.size:
            return None
        magic, number, crc = _HEAD.unpack_from(raw)
        if magic != _MAGIC or crc != self._crc(number):
            logger.error("%s is damaged; what it said of the last writes is lost", self.path)
            return None
        known: dict[str, KnownTopic] = {}
        self._seed, self._length = crc, _HEAD.size
        for topic, oldest, segment, length, spans in self._entries(raw):
            _merge(known, decode_topic(topic), oldest, segment, length, spans)
        self._broken = self._length != len(raw)
        self._renewed_length = self._length // 2
        return known

    def _entries(self, raw: bytes) -> Iterator[_Topic]:
        while self._length + _ENTRY.size <= len(raw):
            size, crc = _ENTRY.unpack_from(raw, self._length)
            start = self._length + _ENTRY.size
            body = memoryview(raw)[start : start + size]
            if len(body) != size or crc32c(body, (self._seed + self._length) & _MASK) != crc:
                return
            try:
                topics = _decoder.decode(body)
            except msgspec.DecodeError:
                return
            self._length = start + size
            yield from topics

    @property
    def whole(self) -> bool:
        """True if it was read to its end, and can be appended to."""
        return not self._broken

    def renew(self, topics: Iterable[tuple[str, KnownTopic]]) -> None:
        """Begin a new file with these topics, durably; raises OSError, and the old one is still there."""
        number = int.from_bytes(os.urandom(4), "little")
        crc = self._crc(number)
        parts = [_HEAD.pack(_MAGIC, number, crc)]
        at = _HEAD.size
        for topic, known in topics:
            rows = list(known.mark.spans.items())
            for start in range(0, max(len(rows), 1), _SPANS_MAX):
                mark = known.mark._replace(spans=dict(rows[start : start + _SPANS_MAX]))
                parts.append(_encode([(topic, known.oldest, mark)], (crc + at) & _MASK))
                at += len(parts[-1])
        self.close()
        self._ops.replace_file(self.path, parts)
        self._seed, self._length, self._renewed_length = crc, at, at
        self._broken = self._unsynced = self.large = False

    def note(self, marks: Sequence[tuple[str, int, Mark]]) -> None:
        """Append a commit: topic, oldest segment (-1 for unchanged), and the mark of each.

        Raises OSError: it is not noted, unless the disk lies.
        """
        if self._broken:
            raise OSError(5, "the manifest must be made anew first")
        self._open()
        entry = _encode(marks, (self._seed + self._length) & _MASK)
        try:
            end = self._ops.write_all(self._fd, [entry], self._length)
        except OSError:
            with logged("cannot cut back %s", self.path):
                self._ops.ftruncate(self._fd, self._length)
            raise
        self._length = end
        self._unsynced = True
        self.large = self._length > MANIFEST_BYTES + 2 * self._renewed_length

    def sync(self) -> None:
        """Make the notes durable. If the disk refuses, they may be lost with the next power cut: renew it."""
        if self._unsynced and not self._broken:
            self._unsynced, self._broken = False, True
            with logged("cannot sync %s", self.path):
                self._open()
                self._ops.fdatasync(self._fd)
                self._broken = False

    def _open(self) -> None:
        if self._fd < 0:
            self._fd = self._ops.open(self.path, os.O_WRONLY)

    def close(self) -> None:
        if self._fd >= 0:
            self._ops.close(self._fd)
            self._fd = -1

    def _crc(self, number: int) -> int:
        return crc32c(self._store_id, crc32c(_MAGIC + number.to_bytes(4, "little")))


def _encode(marks: Sequence[tuple[str, int, Mark]], seed: int) -> bytes:
    topics: list[_Topic] = []
    for topic, oldest, mark in marks:
        spans = [(name.encode("utf-8", "surrogateescape"), *span) for name, span in mark.spans.items()]
        topics.append((topic.encode("utf-8", "surrogateescape"), oldest, mark.segment, mark.length, spans))
    body = _encoder.encode(topics)
    return _ENTRY.pack(len(body), crc32c(body, seed)) + body


def _merge(known: dict[str, KnownTopic], topic: str, oldest: int, segment: int, length: int, spans: _RawSpans) -> None:
    before = known.get(topic)
    if before is not None and before.mark.segment == segment:
        mark = before.mark._replace(length=max(length, before.mark.length))
    else:
        mark = Mark(segment, length, {})
    for raw, first, next_ in spans:
        widen(mark.spans, decode_topic(raw), first, next_)
    if oldest < 0:
        oldest = segment if before is None else before.oldest
    known[topic] = KnownTopic(oldest, mark)
