"""A reliable, ordered channel from one producer to any number of consumers, over a transport that is neither.

The transport may lose, repeat and reorder messages. The producer numbers its events and keeps them until every
consumer has acknowledged them; a consumer hands them on in order, each once, and asks again for what is missing.

=================== ========== =======================================================================
message             from       meaning
=================== ========== =======================================================================
``Handshake``       producer   events after ``offset`` are yours; acknowledge every ``heartbeat_s``
``Event``           producer   number ``seq``; the first is 2, since 1 is "nothing yet"
``Heartbeat``       producer   the last event was ``seq``; so a lost last one is noticed
``RetransmitFailed`` producer  number ``seq`` is gone for good, or the producer does not know the consumer
``Ack``             consumer   everything up to ``seq`` has arrived; also its sign of life
``Nack``            consumer   these are missing, everything before the first has arrived; (0,) asks for a handshake
=================== ========== =======================================================================

Both ends are cores: they return what is to be sent (``ToAll``, ``ToConsumer``, ``ToProducer``) and what has happened.
The transport knows who sends; a consumer must be given the messages of its own producer only.

Bounds: a producer keeps at most ``events_max`` events and ``bytes_max`` bytes. At the bound it drops the consumer that
is furthest behind (``Dropped``), which learns of it with its next message and may begin anew. A *lasting* producer
never drops: it keeps events for a consumer that is yet to come, and refuses more with ``BufferFull``. A consumer holds
at most ``held_max`` events beyond a gap and lets go of further ones, which the producer sends again when asked.

Source: Zeek Broker, ``channel.hh``; the same messages. Departures: seconds for ticks; all buffers bounded; an unknown
consumer is told so; an early heartbeat after the last of a burst; acknowledgements also by count; a new handshake
starts from now; a consumer notices that its producer is silent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from chappe.defaults import (
    CHANNEL_ACK_EVENTS,
    CHANNEL_BYTES_MAX,
    CHANNEL_EVENTS_MAX,
    CHANNEL_HEARTBEAT_S,
    CHANNEL_HELD_MAX,
    CHANNEL_HURRY_S,
    CHANNEL_NACK_MAX,
    CHANNEL_NACK_S,
    CHANNEL_SILENT_S,
)
from chappe.errors import BufferFull

H = TypeVar("H", bound=Hashable)  # how the owner names a consumer
P = TypeVar("P")  # what an event carries

ASK_HANDSHAKE: Final = (0,)
FIRST: Final = 1  # the number before the first event


class Handshake(msgspec.Struct, frozen=True):
    """Events after ``offset`` are for the consumer, which acknowledges every ``heartbeat_s``."""

    offset: int
    heartbeat_s: float


class Event(msgspec.Struct, Generic[P], frozen=True):
    """One event."""

    seq: int
    payload: P


class Heartbeat(msgspec.Struct, frozen=True):
    """The producer lives; its last event was ``seq``."""

    seq: int


class RetransmitFailed(msgspec.Struct, frozen=True):
    """Event ``seq`` cannot be had any more."""

    seq: int


class Ack(msgspec.Struct, frozen=True):
    """Everything up to ``seq`` has arrived."""

    seq: int


class Nack(msgspec.Struct, frozen=True):
    """The events ``seqs`` are missing; ``ASK_HANDSHAKE`` asks for a handshake."""

    seqs: tuple[int, ...]


class ToAll(msgspec.Struct, frozen=True):
    """Send to every consumer."""

    message: Event[Any] | Heartbeat


class ToConsumer(msgspec.Struct, Generic[H], frozen=True):
    """Send to one consumer."""

    consumer: H
    message: Event[Any] | Handshake | RetransmitFailed


class Dropped(msgspec.Struct, Generic[H], frozen=True):
    """The producer has forgotten a consumer; ``reason`` is one sentence."""

    consumer: H
    reason: str


class ToProducer(msgspec.Struct, frozen=True):
    """Send to the producer."""

    message: Ack | Nack


class Consume(msgspec.Struct, Generic[P], frozen=True):
    """The next event in order."""

    seq: int
    payload: P


class Lost(msgspec.Struct, frozen=True):
    """Event ``seq`` is gone for good, and the channel goes on behind it; the owner may begin anew instead."""

    seq: int


class ProducerSilent(msgspec.Struct, frozen=True):
    """Nothing has been heard of the producer for ``silent_s``; said once each time."""


ProducerAction: TypeAlias = ToAll | ToConsumer[H] | Dropped[H]
ConsumerAction: TypeAlias = ToProducer | Consume[P] | Lost | ProducerSilent


class _Path:
    """What a producer knows of one consumer."""

    __slots__ = ("acked", "confirmed", "heard_at", "next")

    def __init__(self, acked: int, next_: int, now: float) -> None:
        self.acked = acked  # everything up to here may be let go
        self.confirmed = False  # it has acknowledged its handshake
        self.next = next_  # the first event that was never sent to it
        self.heard_at = now


class ChannelProducer(Generic[H, P]):
    """Numbers events and keeps them until every consumer has them.

    Args:
        size: Bytes that an event's payload counts for.
        heartbeat_s: Longest silence towards the consumers.
        silent_s: A consumer not heard of for this long is dropped.
        lasting: Keep events while there is no consumer, refuse rather than drop at the bound, never drop a silent
            consumer, repeat the handshake until it is acknowledged, and send at most ``window`` events ahead of what
            is acknowledged (a window below ``CHANNEL_ACK_EVENTS`` moves on with the heartbeats only).
    """

    def __init__(
        self,
        size: Callable[[P], int],
        *,
        now: float,
        heartbeat_s: float = CHANNEL_HEARTBEAT_S,
        silent_s: float = CHANNEL_SILENT_S,
        events_max: int = CHANNEL_EVENTS_MAX,
        bytes_max: int = CHANNEL_BYTES_MAX,
        lasting: bool = False,
        window: int = CHANNEL_EVENTS_MAX,
    ) -> None:
        self.seq = FIRST  # of the last event
        self._size = size
        self._heartbeat_s = heartbeat_s
        self._silent_s = math.inf if lasting else silent_s
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._lasting = lasting
        self._window = window
        self._buffer: deque[Event[P]] = deque()
        self._bytes = 0
        self._paths: dict[H, _Path] = {}
        self._heartbeat_at = now + heartbeat_s

    @property
    def consumers(self) -> tuple[H, ...]:
        """Who takes part."""
        return tuple(self._paths)

    @property
    def kept(self) -> tuple[int, int]:
        """Events and bytes in the buffer."""
        return len(self._buffer), self._bytes

    @property
    def floor(self) -> int:
        """The number before the first event in the buffer."""
        return self.seq - len(self._buffer)

    def idle(self, ignoring: Callable[[H], bool] | None = None) -> bool:
        """Whether every consumer, but those to be ignored, has acknowledged the last event."""
        return all(
            (path.confirmed and path.acked == self.seq) or (ignoring is not None and ignoring(consumer))
            for consumer, path in self._paths.items()
        ) and not (self._lasting and self._buffer)

    def room(self, payload_bytes: int) -> bool:
        """Whether a lasting producer takes another event of that size."""
        return len(self._buffer) < self._events_max and self._bytes + payload_bytes <= self._bytes_max

    # -- application ------------------------------------------------------------------------------------------

    def produce(self, payload: P, now: float) -> list[ProducerAction[H]]:
        """Send an event to all consumers; without any it does nothing, unless lasting.

        Raises BufferFull from a lasting producer at its bound.
        """
        if not self._paths and not self._lasting:
            return []
        size = self._size(payload)
        if self._lasting and not self.room(size):
            raise BufferFull(f"{len(self._buffer)} events wait for their consumer, at most {self._events_max} may")
        self.seq += 1
        event = Event(self.seq, payload)
        self._buffer.append(event)
        self._bytes += size
        if self._lasting:
            return self._send_ahead(now)
        self._heartbeat_at = now + CHANNEL_HURRY_S
        actions: list[ProducerAction[H]] = [ToAll(event)]
        while len(self._buffer) > self._events_max or self._bytes > self._bytes_max:
            slowest = min(self._paths, key=lambda each: self._paths[each].acked)
            actions += self.drop(slowest, f"{len(self._buffer)} events wait for it to acknowledge them")
        return actions

    def add(self, consumer: H, now: float, *, replay: bool = False) -> list[ProducerAction[H]]:
        """Take a consumer in, from the next event on; with ``replay`` from the oldest that is kept."""
        offset = self.floor if replay else self.seq
        self._paths[consumer] = _Path(offset, offset + 1, now)
        return [ToConsumer(consumer, Handshake(offset, self._heartbeat_s)), *self._send_ahead(now)]

    def drop(self, consumer: H, reason: str) -> list[ProducerAction[H]]:
        """Forget a consumer, if it is known."""
        if self._paths.pop(consumer, None) is None:
            return []
        self._trim()
        return [Dropped(consumer, reason)]

    def skip_to(self, seq: int) -> None:
        """Forget the events up to ``seq``, of a producer that has no consumers at present."""
        assert not self._paths
        buffer = self._buffer
        while buffer and buffer[0].seq <= seq:
            self._bytes -= self._size(buffer.popleft().payload)

    def hurry(self, now: float) -> None:
        """Have the next heartbeat now."""
        self._heartbeat_at = now

    # -- world ------------------------------------------------------------------------------------------------

    def handle_ack(self, consumer: H, seq: int, now: float) -> list[ProducerAction[H]]:
        """A consumer has everything up to ``seq``."""
        path = self._paths.get(consumer)
        if path is None:
            return [ToConsumer(consumer, RetransmitFailed(seq + 1))]
        path.heard_at = now
        if path.acked <= seq <= self.seq:
            path.confirmed = True
            path.acked = seq
            path.next = max(path.next, seq + 1)
            self._trim()
            return self._send_ahead(now)
        return []

    def handle_nack(self, consumer: H, seqs: Sequence[int], now: float) -> list[ProducerAction[H]]:
        """A consumer misses events, or asks for its handshake; one who sends nonsense is dropped."""
        if not seqs:
            return []
        path = self._paths.get(consumer)
        if seqs[0] == 0:
            return self.add(consumer, now, replay=self._lasting)
        if path is None:
            return [ToConsumer(consumer, RetransmitFailed(seqs[0]))]
        if any(left >= right for left, right in pairwise(seqs)):
            return self.drop(consumer, "its nack is not in order")
        actions = self.handle_ack(consumer, seqs[0] - 1, now)
        first = self.floor + 1
        for seq in seqs:
            if seq > self.seq:
                break
            kept = seq >= first
            actions.append(ToConsumer(consumer, self._buffer[seq - first] if kept else RetransmitFailed(seq)))
        return actions

    def handle_timeout(self, now: float) -> list[ProducerAction[H]]:
        """Heartbeats, and consumers that are gone."""
        actions: list[ProducerAction[H]] = []
        for consumer, path in list(self._paths.items()):
            if now >= path.heard_at + self._silent_s:
                actions += self.drop(consumer, f"nothing was heard of it for {self._silent_s:g} s")
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self._heartbeat_s
            if self._lasting:
                for consumer, path in self._paths.items():
                    if not path.confirmed:
                        actions.append(ToConsumer(consumer, Handshake(path.acked, self._heartbeat_s)))
            if self._paths:
                actions.append(ToAll(Heartbeat(self._sent())))
        return actions

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is due."""
        if not self._paths:
            return math.inf
        silent = min(path.heard_at for path in self._paths.values()) + self._silent_s
        return min(self._heartbeat_at, silent)

    # -- inside -----------------------------------------------------------------------------------------------

    def _sent(self) -> int:
        """The last event that was sent to anybody."""
        if not self._lasting:
            return self.seq
        return max(path.next for path in self._paths.values()) - 1

    def _send_ahead(self, now: float) -> list[ProducerAction[H]]:
        """What consumers may have that was never sent to them: a lasting producer's window."""
        if not self._lasting:
            return []
        actions: list[ProducerAction[H]] = []
        first = self.floor + 1
        for consumer, path in self._paths.items():
            end = min(self.seq, path.acked + self._window)
            if path.next <= end:
                self._heartbeat_at = now + CHANNEL_HURRY_S
            while path.next <= end:
                actions.append(ToConsumer(consumer, self._buffer[path.next - first]))
                path.next += 1
        return actions

    def _trim(self) -> None:
        """Let go of what everybody has."""
        if self._paths:
            keep_from = min(path.acked for path in self._paths.values())
        else:
            keep_from = 0 if self._lasting else self.seq
        buffer = self._buffer
        while buffer and buffer[0].seq <= keep_from:
            self._bytes -= self._size(buffer.popleft().payload)


class _Hole:
    """Stands for an event that cannot be had any more."""


_HOLE: Final = _Hole()


class ChannelConsumer(Generic[P]):
    """Takes events in any order and hands them on in theirs, each once.

    Args:
        nack_s: Without progress for this long while something is missing, it is asked for.
        search_max_s: Before the handshake the producer is asked after ``nack_s``, then twice as long each time up to
            this; infinity for an owner who asks himself.
        silent_s: ``ProducerSilent`` after this; infinity for never.
    """

    def __init__(
        self,
        *,
        now: float,
        nack_s: float = CHANNEL_NACK_S,
        search_max_s: float = CHANNEL_NACK_S,
        silent_s: float = math.inf,
        held_max: int = CHANNEL_HELD_MAX,
    ) -> None:
        self.next = 0  # the number of the event that is to come; 0 before the handshake
        self._end = 0  # one more than the last number heard of
        self._acked = 0
        self._nack_s = nack_s
        self._search_max_s = search_max_s
        self._search_s = nack_s
        self._silent_s = silent_s
        self._held_max = held_max
        self._held: dict[int, P | _Hole] = {}
        self._heartbeat_s = CHANNEL_HEARTBEAT_S
        self._heard_at = now
        self._silent = False
        self._ack_at = math.inf
        self._nack_at = now if search_max_s < math.inf else math.inf

    @property
    def initialized(self) -> bool:
        """Whether the handshake has come."""
        return self.next != 0

    @property
    def held(self) -> int:
        """Events that wait behind a gap."""
        return len(self._held)

    @property
    def behind(self) -> int:
        """Events that are known to exist and have not been handed on."""
        return self._end - self.next

    def idle(self) -> bool:
        """Whether nothing is missing, as far as it knows."""
        return self.next != 0 and self.next == self._end

    # -- world ------------------------------------------------------------------------------------------------

    def handle_handshake(self, offset: int, heartbeat_s: float, now: float) -> list[ConsumerAction[P]]:
        """Begin behind ``offset``; a repeated handshake is only acknowledged."""
        self._heard(now)
        actions: list[ConsumerAction[P]] = []
        if not self.initialized:
            self._heartbeat_s = max(heartbeat_s, CHANNEL_NACK_S)
            self.next = offset + 1
            self._end = max(self.next, self._end)
            self._held = {seq: each for seq, each in self._held.items() if seq > offset}
            self._nack_at = math.inf
            actions = self._drain(now)
        return [*actions, self._ack(now)]

    def handle_event(self, seq: int, payload: P, now: float) -> list[ConsumerAction[P]]:
        """An event has come."""
        self._heard_at = now
        if seq != self.next or not seq:
            return self._early(seq, payload, now)
        self._silent = False
        self.next = seq + 1
        if self._end <= seq:
            self._end = seq + 1
        actions: list[ConsumerAction[P]] = [Consume(seq, payload)]
        if self._held:
            actions += self._drain(now)
        elif self.next < self._end:
            self._nack_at = now + self._nack_s
        if self.next - self._acked > CHANNEL_ACK_EVENTS:
            actions.append(self._ack(now))
        return actions

    def handle_heartbeat(self, seq: int, now: float) -> list[ConsumerAction[P]]:
        """The producer lives, and its last event was ``seq``; what is not acknowledged yet is acknowledged now."""
        self._heard(now)
        if not self.initialized or seq <= 0:
            return []
        self._known(seq, now)
        return [self._ack(now)] if self._acked < self.next - 1 == seq else []

    def handle_retransmit_failed(self, seq: int, now: float) -> list[ConsumerAction[P]]:
        """An event cannot be had any more."""
        self._heard(now)
        if not self.initialized or seq < self.next or (seq > self.next and len(self._held) >= self._held_max):
            return []
        self._held.setdefault(seq, _HOLE)
        self._end = max(self._end, seq + 1)
        return self._drain(now)

    def handle_timeout(self, now: float) -> list[ConsumerAction[P]]:
        """Acknowledge, ask for what is missing, notice silence."""
        actions: list[ConsumerAction[P]] = []
        if now >= self._nack_at:
            if not self.initialized:
                self._nack_at = now + self._search_s
                self._search_s = min(2 * self._search_s, self._search_max_s)
                actions.append(ToProducer(Nack(ASK_HANDSHAKE)))
            else:
                self._nack_at = now + self._nack_s if self.behind else math.inf
                if self.behind:
                    actions.append(ToProducer(Nack(self._missing())))
        if now >= self._ack_at:
            actions.append(self._ack(now))
        if not self._silent and now >= self._heard_at + self._silent_s:
            self._silent = True
            actions.append(ProducerSilent())
        return actions

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is due."""
        silent_at = math.inf if self._silent else self._heard_at + self._silent_s
        return min(self._nack_at, self._ack_at, silent_at)

    def skip_to(self, offset: int) -> None:
        """Go on behind ``offset`` if that lies ahead; the producer will not send what is before."""
        if self.initialized and offset >= self.next:
            self.next = offset + 1
            self._end = max(self._end, self.next)
            self._held = {seq: each for seq, each in self._held.items() if seq > offset}

    # -- inside -----------------------------------------------------------------------------------------------

    def _heard(self, now: float) -> None:
        self._heard_at = now
        self._silent = False

    def _known(self, seq: int, now: float) -> None:
        """Event ``seq`` exists."""
        if seq >= self._end:
            self._end = seq + 1
        if self.next < self._end and self._nack_at == math.inf:
            self._nack_at = now + self._nack_s

    def _early(self, seq: int, payload: P, now: float) -> list[ConsumerAction[P]]:
        """An event out of turn: an old one is ignored, one beyond a gap is held."""
        self._silent = False
        if seq < max(self.next, 1):
            return []
        if self.initialized:
            self._known(seq, now)
        if len(self._held) < self._held_max or seq in self._held:
            self._held[seq] = payload
        return []

    def _drain(self, now: float) -> list[ConsumerAction[P]]:
        """Hand on what follows without a gap."""
        actions: list[ConsumerAction[P]] = []
        while self.next in self._held:
            found = self._held.pop(self.next)
            actions.append(Lost(self.next) if isinstance(found, _Hole) else Consume(self.next, found))
            self.next += 1
        if self._held:
            self._end = max(self._end, max(self._held) + 1)
        self._end = max(self._end, self.next)
        self._nack_at = now + self._nack_s if self.behind else math.inf
        return actions

    def _missing(self) -> tuple[int, ...]:
        found: list[int] = []
        for seq in range(self.next, self._end):
            if seq not in self._held:
                found.append(seq)
                if len(found) == CHANNEL_NACK_MAX:
                    break
        return tuple(found)

    def _ack(self, now: float) -> ToProducer:
        self._acked = self.next - 1
        self._ack_at = now + self._heartbeat_s
        return ToProducer(Ack(self._acked))
