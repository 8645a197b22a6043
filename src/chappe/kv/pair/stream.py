"""The stream from the active master to its standby: all there is, then every commit, in order, each part once.

It is a channel (``chappe.channel``) of one producer and one consumer, whose events are parts of at most
``pair_part_bytes``. What the standby acknowledges is what it keeps, so that no more waits there than is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from chappe.channel import (
    FIRST,
    ChannelConsumer,
    ChannelProducer,
    Consume,
    ConsumerAction,
    Event,
    Heartbeat,
    ProducerAction,
    ToAll,
    ToConsumer,
    ToProducer,
)
from chappe.channel import Nack as ChannelNack
from chappe.data.binary import encode as encode_value
from chappe.defaults import PAIR_STALL_S, PAIR_UNIT_BYTES_MAX, STAR_HEARTBEAT_S
from chappe.errors import ProtocolError
from chappe.kv.backend import Operation, PutRow, WriterRow
from chappe.kv.engine import Entry
from chappe.kv.entity import Entity
from chappe.kv.pair.messages import COMMIT, END, ENTRIES, Last, Missing, Part, Said, encode_operation, encode_unit
from chappe.limits import KvLimits

_STANDBY: Final = 0  # the one consumer
_NEVER: Final = -1


class Feed:
    """The sending end.

    Args:
        stream: The standby's number of it.
        life: The standby's life.
        master: Who the active one is to clones.
        entries: All that was confirmed; they stay as they are.
        rows: What is known of writers, likewise.
        number: Of the last commit that these contain.
        event: The last that clones were told of them.
    """

    def __init__(
        self, stream: int, life: int, master: Entity, entries: Sequence[Entry], rows: Sequence[WriterRow], number: int,
        event: int, limits: KvLimits, now: float,
    ) -> None:  # fmt: skip
        self.stream = stream
        self.life = life
        self.taken = _NEVER  # the last commit that the standby has
        self.queued_bytes = 0  # of commits that were not sent yet
        self._limits = limits
        self._channel: ChannelProducer[int, tuple[bool, bytes]] = ChannelProducer(
            lambda payload: len(payload[1]), now=now, heartbeat_s=STAR_HEARTBEAT_S, lasting=True,
            window=limits.pair_window,
        )  # fmt: skip
        self._channel.add(_STANDBY, now)
        end = encode_unit(END, (), event, master)
        self._snapshot: Iterator[bytes] | None = _units(entries, rows, end, limits.pair_part_bytes)
        self._number = number
        self._commits: deque[tuple[int, bytes]] = deque()
        self._unit: deque[tuple[bool, bytes]] = deque()  # parts of the unit that is being sent
        self._marks: deque[tuple[int, int]] = deque()  # the last part of a commit, and its number
        self._moved_at = now

    @property
    def near(self) -> bool:
        """Whether all of it is at the standby or on its way."""
        return self._snapshot is None and not self._commits and not self._unit

    def stalled(self, now: float) -> bool:
        """Whether the standby has taken nothing of what waits for it for too long."""
        return self._channel.floor < self._channel.seq and now >= self._moved_at + PAIR_STALL_S

    def add(self, number: int, operations: Sequence[Operation], event: int) -> None:
        """A commit follows; with all of it clones will have been told everything up to ``event``."""
        raw = encode_unit(COMMIT, map(encode_operation, operations), event)
        self._commits.append((number, raw))
        self.queued_bytes += len(raw)

    def send(self, now: float) -> list[Said]:
        """What the standby has room for."""
        said: list[Said] = []
        while self._channel.kept[0] < self._limits.pair_window:
            if not self._unit and not self._next_unit():
                break
            if self._channel.floor == self._channel.seq:
                self._moved_at = now  # nothing waited until now
            payload = self._unit.popleft()
            said += self._said(self._channel.produce(payload, now))
            if payload[0] and self._snapshot is None:
                self._marks.append((self._channel.seq, self._number))
        return said

    def handle_have(self, number: int, now: float) -> list[Said]:
        """The standby has everything up to a part."""
        before = self._channel.floor
        said = self._said(self._channel.handle_ack(_STANDBY, number, now))
        if self._channel.floor > before:
            self._moved_at = now
        while self._marks and self._marks[0][0] <= self._channel.floor:
            self.taken = self._marks.popleft()[1]
        return said

    def handle_missing(self, numbers: tuple[int, ...], now: float) -> list[Said]:
        """Parts did not come. Raises ProtocolError for what cannot be missing."""
        if _STANDBY not in self._channel.consumers or not numbers[0]:
            raise ProtocolError("a standby asks for parts that there never were")
        return self._said(self._channel.handle_nack(_STANDBY, numbers, now, confirms=False))

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is due."""
        return self._channel.next_timeout()

    def handle_timeout(self, now: float) -> list[Said]:
        """Heartbeats."""
        return self._said(self._channel.handle_timeout(now))

    def invariants(self) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        found = self._channel.invariants()
        if self._channel.kept[0] > self._limits.pair_window:
            found.append(f"{self._channel.kept[0]} parts are under way")
        return found

    # -- inside ------------------------------------------------------------------------------------------------------

    def _next_unit(self) -> bool:
        if self._snapshot is not None:
            raw = next(self._snapshot)
            if raw[0] == END:
                self._snapshot = None
        elif self._commits:
            self._number, raw = self._commits.popleft()
            self.queued_bytes -= len(raw)
        else:
            return False
        size = self._limits.pair_part_bytes
        for at in range(0, len(raw), size):
            self._unit.append((at + size >= len(raw), raw[at : at + size]))
        return True

    def _said(self, produced: list[ProducerAction[int]]) -> list[Said]:
        found: list[Said] = []
        for each in produced:
            message = each.message if isinstance(each, ToAll | ToConsumer) else None
            if isinstance(message, Event):
                found.append(Part(self.stream, message.seq, *message.payload))
            elif isinstance(message, Heartbeat):
                found.append(Last(self.stream, message.seq))
        return found


def _units(entries: Sequence[Entry], rows: Sequence[WriterRow], end: bytes, part_bytes: int) -> Iterator[bytes]:
    """All there is: entries, some to a unit, encoded when they are wanted; the last unit begins with ``end``."""
    gathered: list[bytes] = []
    size = 0
    for entry in entries:
        row = PutRow(encode_value(entry.key), encode_value(entry.value), entry.expires_ns)
        gathered.append(encode_operation(row))
        size += len(gathered[-1])
        if size >= part_bytes:
            yield encode_unit(ENTRIES, gathered)
            gathered, size = [], 0
    for writer in rows:
        gathered.append(encode_operation(writer))
        size += len(gathered[-1])
        if size >= part_bytes:
            yield encode_unit(ENTRIES, gathered)
            gathered, size = [], 0
    yield end + b"".join(gathered)


class Intake:
    """The receiving end.

    Args:
        stream: Its number.
    """

    def __init__(self, stream: int, limits: KvLimits, now: float) -> None:
        self.stream = stream
        self.units: deque[tuple[int, bytes]] = deque()  # that are whole: the last part's number, and the bytes
        self.kept = FIRST  # everything up to this part is kept here
        self._channel: ChannelConsumer[Part] = ChannelConsumer(now=now, held_max=2 * limits.pair_window)
        self._channel.handle_handshake(FIRST, STAR_HEARTBEAT_S, now)
        self._pieces: list[bytes] = []
        self._size = 0
        self._piece = FIRST  # the last part of a unit that is not whole yet
        self._first = True  # nothing has come yet
        self.heard_at = now

    @property
    def began(self) -> bool:
        """Whether anything has come."""
        return not self._first

    @property
    def have(self) -> int:
        """The last part that need not be sent again: of a unit that waits to be kept none, of one that comes each."""
        return self.kept if self.units else max(self.kept, self._piece if self._pieces else 0)

    def silent(self, now: float) -> bool:
        """Whether nothing has come for too long."""
        return now >= self.heard_at + PAIR_STALL_S

    def handle_part(self, part: Part, now: float) -> list[Said]:
        """A part has come. Raises ProtocolError for a unit that is too large."""
        self._heard(now)
        return self._take(self._channel.handle_event(part.number, part, now))

    def handle_last(self, number: int, now: float) -> list[Said]:
        """The active one says which part was the last."""
        self._heard(now)
        return self._take(self._channel.handle_heartbeat(number, now))

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is due."""
        return min(self._channel.next_timeout(), self.heard_at + PAIR_STALL_S)

    def handle_timeout(self, now: float) -> list[Said]:
        """Ask for what is missing."""
        return self._take(self._channel.handle_timeout(now))

    def invariants(self) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        return self._channel.invariants()

    def _heard(self, now: float) -> None:
        self._first = False
        self.heard_at = now

    def _take(self, taken: list[ConsumerAction[Part]]) -> list[Said]:
        said: list[Said] = []
        for each in taken:
            if isinstance(each, Consume):
                part = each.payload
                self._pieces.append(part.piece)
                self._piece = part.number
                self._size += len(part.piece)
                if self._size > PAIR_UNIT_BYTES_MAX:
                    raise ProtocolError(f"a unit has more than {PAIR_UNIT_BYTES_MAX:,} bytes")
                if part.last:
                    self.units.append((part.number, b"".join(self._pieces)))
                    self._pieces, self._size = [], 0
            elif isinstance(each, ToProducer) and isinstance(each.message, ChannelNack):
                said.append(Missing(self.stream, tuple(each.message.seqs)))
        return said  # acknowledged is what is kept
