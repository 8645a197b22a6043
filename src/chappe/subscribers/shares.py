"""Assigns records to workers, repeats the work of a worker that ends, and tracks the watermark of completed work.

A record belongs to one share, by its key, and each share has one worker at a time. A worker does the records of its
share in the order in which they were read, and says how many more are done. So of each share there is a row of records:
those that its worker was sent and has not done, in front of those that wait. When the worker ends, what it was sent
waits again, in the same place, for the next one.

What may be committed of a partition is everything before its first record that is not done, in whichever share that is.

Source: the Black Box pattern of the ZeroMQ Guide, chapter 5. Departures: workers are processes that can die; what they
take from is bounded; a key has one worker, so that its order is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias
from zlib import crc32

from chappe.log.batch import Record

Key: TypeAlias = tuple[str, str]  # topic and partition
By = Literal["key", "topic"]
CHUNK: Final = 256  # records sent to a worker at once
WINDOW: Final = 1024  # records that a worker was sent and has not done, at most ...
WINDOW_FIRST: Final = 16  # ... at first, and then ...
WINDOW_MIN: Final = 2  # ... one that it does, one that waits for it, and ...
WINDOW_S: Final = 0.5  # ... what it does in so long: so much is done again with another, or waited for at the end ...
LOOK_S: Final = 0.25  # ... looked at this often
WINDOW_BYTES: Final = 1 << 20  # ... or so many bytes of them, and at least one chunk
AHEAD: Final = 65_536  # records read and not done, of all workers; then nothing more is read ...
AHEAD_BYTES: Final = 32 << 20  # ... or so many bytes of them


@dataclass(slots=True)
class Portion:
    """Neighbours in a share, of one batch. ``first``: the next of them to be sent, or to be done.

    Args:
        size: Their bytes, about.
        careful: They may have ended a worker: the next one is to tell of each that it is done.
    """

    records: list[Record]
    size: int
    careful: bool = False
    first: int = 0

    @property
    def left(self) -> int:
        return len(self.records) - self.first


@dataclass(slots=True)
class _Share:
    sent: deque[Portion] = field(default_factory=deque)
    waiting: deque[Portion] = field(default_factory=deque)
    records: int = 0  # of what was sent
    bytes: int = 0
    ends: int = 0  # workers that ended with the same record as the first one that was not done
    window: int = WINDOW_FIRST
    counted: int = 0  # records that were done ...
    since: float | None = None  # ... since then; None: it had nothing to do, and this begins when more is done

    def measure(self, count: int, now: float) -> None:
        """Note that so many more are done: it tells how much the worker should have before it."""
        if self.since is None:
            self.counted, self.since = 0, now
            return
        self.counted += count
        if now >= self.since + LOOK_S:
            self.window = max(WINDOW_MIN, int(self.counted / (now - self.since) * WINDOW_S))
            self.counted, self.since = 0, now


class Shares:
    """The records that were read and are not done.

    Args:
        workers: How many shares.
        ahead: How many records there may be; then it is ``full``.
        ahead_bytes: How many bytes.
        window: How many records a worker may have been sent, however fast it is.
    """

    def __init__(
        self, workers: int, *, ahead: int = AHEAD, ahead_bytes: int = AHEAD_BYTES, window: int = WINDOW
    ) -> None:
        self._shares = [_Share() for _ in range(workers)]
        self._ahead = ahead
        self._ahead_bytes = ahead_bytes
        self._window = window
        self.records = 0
        self.bytes = 0
        self.read = 0  # counted from the beginning ...
        self.done_ = 0
        self.again = 0  # ... records that were sent to another worker once more

    @property
    def full(self) -> bool:
        """True if nothing more should be read: so workers that are slow hold back the reader."""
        return self.records >= self._ahead or self.bytes >= self._ahead_bytes

    def add(self, portions: Mapping[int, list[Record]], size: int) -> None:
        """Add records that were read, of so many bytes, by share; those of each partition in order."""
        count = sum(map(len, portions.values()))
        for number, records in portions.items():
            part = size * len(records) // count
            self._shares[number].waiting.append(Portion(records, part))
            self.bytes += part
        self.records += count
        self.read += count

    def waits(self, number: int) -> bool:
        """True if anything of a share is to be sent, and may be."""
        share = self._shares[number]
        return bool(share.waiting) and (
            not share.sent or (2 * share.records <= self._window_of(share) and share.bytes < WINDOW_BYTES)
        )

    def _window_of(self, share: _Share) -> int:
        return min(share.window, self._window)

    @property
    def sent(self) -> int:
        return sum(share.records for share in self._shares)

    def sent_to(self, number: int) -> int:
        return self._shares[number].records

    def take(self, number: int) -> Portion | None:
        """Take the next records for the worker of a share; None: nothing for now."""
        if not self.waits(number):
            return None
        share = self._shares[number]
        portion = share.waiting[0]
        most = max(1, min(CHUNK, self._window_of(share) - share.records))
        end = portion.first + most
        if portion.left <= most:
            taken = share.waiting.popleft()
            taken = Portion(taken.records[taken.first :], taken.size, taken.careful)
        else:
            size = portion.size * (end - portion.first) // portion.left
            taken = Portion(portion.records[portion.first : end], size, portion.careful)
            portion.first = end
            portion.size -= size
        if taken.careful:
            self.again += taken.left
        share.sent.append(taken)
        share.records += taken.left
        share.bytes += taken.size
        return Portion(list(taken.records), taken.size, taken.careful)

    def done(self, number: int, count: int, now: float) -> bool:
        """Note that the worker of a share has done so many more; return False if it was not sent as many."""
        share = self._shares[number]
        if not 0 <= count <= share.records:
            return False
        if count:
            share.ends = 0
        share.measure(count, now)
        self.records -= count
        self.done_ += count
        share.records -= count
        while count:
            portion = share.sent[0]
            step = min(count, portion.left)
            portion.first += step
            count -= step
            if not portion.left:
                share.sent.popleft()
                share.bytes -= portion.size
                self.bytes -= portion.size
        if not share.sent and not share.waiting:
            share.since = None
        return True

    def lost(self, number: int) -> int:
        """Note that the worker of a share has ended: what it was sent waits again.

        Returns how many workers in a row have ended with the same first record not done; 0: it had nothing to do.
        """
        share = self._shares[number]
        if not share.sent:
            return 0
        share.ends += 1
        for portion in reversed(share.sent):
            portion.careful = True
            share.waiting.appendleft(portion)
        share.sent.clear()
        share.records = share.bytes = 0
        return share.ends

    def next_of(self, number: int) -> Record | None:
        share = self._shares[number]
        rows = share.sent or share.waiting
        return rows[0].records[rows[0].first] if rows else None

    def positions(self, read: Mapping[Key, int]) -> dict[Key, int]:
        """Return the positions that may be committed; ``read`` is how far each partition was read."""
        found = dict(read)
        for share in self._shares:
            for portion in (*share.sent, *share.waiting):
                record = portion.records[portion.first]
                key = (record.topic, record.partition)
                found[key] = min(found.get(key, record.offset), record.offset)
        return found

    def invariants(self) -> list[str]:
        """Name the faults of its own state, each as a part of a sentence."""
        rows = [(share, [*share.sent, *share.waiting]) for share in self._shares]
        found: list[str] = []
        if sum(each.left for _, row in rows for each in row) != self.records:
            found.append(f"{self.records} records are counted, others are there")
        if sum(each.size for _, row in rows for each in row) != self.bytes:
            found.append(f"{self.bytes} bytes are counted, others are there")
        for share, row in rows:
            if sum(each.left for each in share.sent) != share.records or any(not each.left for each in row):
                found.append("a share has records that it does not count, or an empty portion")
        return found


def split(records: Iterable[Record], workers: int, by: By) -> dict[int, list[Record]]:
    """Return the records of one batch by share.

    By key, those without one go by topic and partition, whose order is kept so; by topic all of a topic go to one.
    """
    found: dict[int, list[Record]] = {}
    rest = -1
    for record in records:
        key = record.key
        if key is not None and by == "key":
            number = crc32(key) % workers
        else:
            if rest < 0:
                name = record.topic if by == "topic" else f"{record.topic}\0{record.partition}"
                rest = crc32(name.encode("utf-8", "surrogateescape")) % workers
            number = rest
        try:
            found[number].append(record)
        except KeyError:
            found[number] = [record]
    return found


def stream_of(topic: str, key: bytes | str, streams: int) -> str:
    """Return the one of ``TOPIC.0``, ``TOPIC.1`` and so on to which a producer sends a key, of so many.

    Streams of one topic can be read by as many readers; a key is always in the same one.
    """
    return f"{topic}.{crc32(key.encode() if isinstance(key, str) else key) % streams}"
