"""The sending end of a channel: it numbers events, and keeps them until every consumer has them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Generic

from chappe.channel.messages import (
    FIRST,
    SEQ_MAX,
    Dropped,
    Event,
    H,
    Handshake,
    HandshakeCompleted,
    Heartbeat,
    P,
    ProducerAction,
    RetransmitFailed,
    ToAll,
    ToConsumer,
)
from chappe.defaults import (
    CHANNEL_BYTES_MAX,
    CHANNEL_CALM_AFTER,
    CHANNEL_EVENTS_MAX,
    CHANNEL_HEARTBEAT_S,
    CHANNEL_HURRY_S,
    CHANNEL_NACK_BYTES,
    CHANNEL_SILENT_S,
)
from chappe.errors import BufferFull, ErrorCode


class _Path:
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
        calm_s: The same once all of them have acknowledged the last event and ``CHANNEL_CALM_AFTER`` heartbeats have
            told it: then nothing can be lost, and a heartbeat is no more than a sign of life. At least ``heartbeat_s``,
            which it is without.
        silent_s: A consumer not heard of for this long is dropped.
        lasting: Keep events while there is no consumer, refuse rather than drop at the bound, never drop a silent
            consumer, repeat the handshake until it is acknowledged, and send at most ``window`` events ahead of what
            is acknowledged (a window below ``CHANNEL_ACK_EVENTS`` moves on with the heartbeats only).
        counting: Number every event, and nothing else, whether somebody listens or not; see ``pass_over``.
        first: The number before that of the first event.
    """

    def __init__(
        self,
        size: Callable[[P], int],
        *,
        now: float,
        heartbeat_s: float = CHANNEL_HEARTBEAT_S,
        calm_s: float = 0.0,
        silent_s: float = CHANNEL_SILENT_S,
        events_max: int = CHANNEL_EVENTS_MAX,
        bytes_max: int = CHANNEL_BYTES_MAX,
        lasting: bool = False,
        counting: bool = False,
        first: int = FIRST,
        window: int = CHANNEL_EVENTS_MAX,
    ) -> None:
        self.seq = first  # of the last event
        self._counting = counting
        self._size = size
        self.calm_s = calm_s
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
        self._same = 0  # heartbeats in a row that told nothing new

    @property
    def consumers(self) -> tuple[H, ...]:
        return tuple(self._paths)

    @property
    def kept(self) -> tuple[int, int]:
        return len(self._buffer), self._bytes

    @property
    def floor(self) -> int:
        return self.seq - len(self._buffer)

    def idle(self, ignoring: Callable[[H], bool] | None = None) -> bool:
        """Return True if every consumer, but those to be ignored, has acknowledged the last event."""
        return all(
            (path.confirmed and path.acked == self.seq) or (ignoring is not None and ignoring(consumer))
            for consumer, path in self._paths.items()
        ) and not (self._lasting and self._buffer)

    def room(self, payload_bytes: int) -> bool:
        """Return True if a lasting producer takes another event of that size."""
        return len(self._buffer) < self._events_max and self._bytes + payload_bytes <= self._bytes_max

    def invariants(self) -> list[str]:
        found: list[str] = []
        kept = [event.seq for event in self._buffer]
        if kept != list(range(self.floor + 1, self.seq + 1)):
            found.append(f"events {kept[:1]} to {kept[-1:]} are kept where {self.floor + 1} to {self.seq} should be")
        size = sum([self._size(event.payload) for event in self._buffer])
        if size != self._bytes:
            found.append(f"{self._bytes} bytes are counted, {size} are kept")
        for consumer, path in self._paths.items():
            if not (self.floor <= path.acked <= self.seq and path.acked < path.next <= self.seq + 1):
                found.append(
                    f"{consumer} has {path.acked}, is sent {path.next} next, and {self.floor} to {self.seq} are kept"
                )
        return found

    # -- application ------------------------------------------------------------------------------------------

    def produce(self, payload: P, now: float) -> list[ProducerAction[H]]:
        """Send an event to all consumers; without any it does nothing, unless lasting, or counting.

        Raises BufferFull from a lasting producer at its bound.
        """
        if not self._paths and not self._lasting:
            if self._counting:
                self.seq += 1
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
        self._same = 0
        actions: list[ProducerAction[H]] = [ToAll(event)]
        while len(self._buffer) > self._events_max or self._bytes > self._bytes_max:
            slowest = min(self._paths, key=lambda each: self._paths[each].acked)
            actions += self.drop(slowest, f"{len(self._buffer)} events wait for it to acknowledge them")
        return actions

    def add(
        self, consumer: H, now: float, *, replay: bool = False, behind: int | None = None
    ) -> list[ProducerAction[H]]:
        """Take a consumer in, from the next event on; with ``replay`` from the oldest that is kept.

        With ``behind``, from the one behind that, which is kept; what was told already it has to ask for.
        """
        offset = self.floor if replay else self.seq if behind is None else behind
        assert self.floor <= offset <= self.seq
        self._paths[consumer] = _Path(offset, offset + 1, now)
        self._heartbeat_at = min(self._heartbeat_at, now + self._heartbeat_s)
        self._same = 0
        self._trim()  # who asks again may have been the slowest
        return [ToConsumer(consumer, Handshake(offset, self._heartbeat_s)), *self._send_ahead(now)]

    def drop(self, consumer: H, reason: str, code: int = ErrorCode.UNSPECIFIED) -> list[ProducerAction[H]]:
        """Forget a consumer, if it is known.

        Behind the last one a number is left out: what happens while nobody listens has none, and who was forgotten
        and does not know it yet must not take the next event for the one that follows what it has. Not so with
        ``counting``, where those have numbers.
        """
        if self._paths.pop(consumer, None) is None:
            return []
        self._trim()
        if not self._paths and not self._lasting and not self._counting:
            self.seq += 1
        return [Dropped(consumer, reason, code)]

    def skip_to(self, seq: int) -> None:
        """Forget the events up to ``seq``, of a producer that has no consumers at present."""
        assert not self._paths
        buffer = self._buffer
        while buffer and buffer[0].seq <= seq:
            self._bytes -= self._size(buffer.popleft().payload)

    def pass_over(self, count: int) -> None:
        """So many events have happened while nobody listens; they have numbers, too."""
        assert not self._paths
        self.seq += count

    def hurry(self, now: float) -> None:
        self._heartbeat_at = now
        self._same = 0

    # -- world ------------------------------------------------------------------------------------------------

    def take_ack(self, consumer: H, seq: int, now: float) -> list[ProducerAction[H]]:
        """A consumer has everything up to ``seq``."""
        path = self._paths.get(consumer)
        if path is None:  # what a stranger sends may be anything
            return [ToConsumer(consumer, RetransmitFailed(seq + 1))] if 0 <= seq < SEQ_MAX else []
        path.heard_at = now
        if path.acked <= seq <= self.seq:
            path.acked = seq
            path.next = max(path.next, seq + 1)
            self._trim()
            actions: list[ProducerAction[H]] = []
            if not path.confirmed:
                path.confirmed = True
                actions.append(HandshakeCompleted(consumer))
            if self._lasting and path.next <= self.seq:
                actions += self._send_ahead(now)
            return actions
        return []

    def take_nack(
        self, consumer: H, seqs: Sequence[int], now: float, *, confirms: bool = True
    ) -> list[ProducerAction[H]]:
        """A consumer misses events, or asks for its handshake; one who sends nonsense is dropped.

        A nack also says that everything before the first number has come; not so without ``confirms``, where only an
        acknowledgement does, because more than that goes with it.
        """
        if not seqs:
            return []
        path = self._paths.get(consumer)
        if seqs[0] == 0:
            return self.add(consumer, now, replay=self._lasting)
        if path is None:
            return [ToConsumer(consumer, RetransmitFailed(seqs[0]))]
        if any(left >= right for left, right in pairwise(seqs)):
            return self.drop(consumer, "its nack is not in order", ErrorCode.INVALID_MESSAGE)
        path.heard_at = now
        actions = self.take_ack(consumer, seqs[0] - 1, now) if confirms else []
        first = self.floor + 1
        size = 0
        for seq in seqs:
            if seq > self.seq or size >= CHANNEL_NACK_BYTES:
                break  # what else is missing is asked for again
            if seq < first:
                actions.append(ToConsumer(consumer, RetransmitFailed(seq)))
                continue
            event = self._buffer[seq - first]
            size += self._size(event.payload)
            actions.append(ToConsumer(consumer, event))
        return actions

    def tick(self, now: float) -> list[ProducerAction[H]]:
        """Heartbeats, and consumers that are gone."""
        actions: list[ProducerAction[H]] = []
        for consumer, path in list(self._paths.items()):
            if now >= path.heard_at + self._silent_s:
                silent = f"nothing was heard of it for {self._silent_s:g} s"
                actions += self.drop(consumer, silent, ErrorCode.CONNECTION_TIMEOUT)
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self._pause_s()
            if self._lasting:
                for consumer, path in self._paths.items():
                    if not path.confirmed:
                        actions.append(ToConsumer(consumer, Handshake(path.acked, self._heartbeat_s)))
            if self._paths:
                actions.append(ToAll(Heartbeat(self._sent())))
        return actions

    def next_timeout(self) -> float:
        if not self._paths:
            return math.inf
        due = self._heartbeat_at
        for path in self._paths.values():
            due = min(due, path.heard_at + self._silent_s)
        return due

    # -- inside -----------------------------------------------------------------------------------------------

    def _pause_s(self) -> float:
        """How long after a heartbeat the next one follows."""
        self._same += 1
        calm = self.calm_s > self._heartbeat_s and self._same >= CHANNEL_CALM_AFTER and self.idle()
        return self.calm_s if calm else self._heartbeat_s

    def _sent(self) -> int:
        if not self._lasting:
            return self.seq
        return max(path.next for path in self._paths.values()) - 1

    def _send_ahead(self, now: float) -> list[ProducerAction[H]]:
        """Send a lasting producer's window, which consumers may have without having been sent it."""
        if not self._lasting:
            return []
        actions: list[ProducerAction[H]] = []
        first = self.seq - len(self._buffer) + 1
        for consumer, path in self._paths.items():
            end = min(self.seq, path.acked + self._window)
            if path.next <= end:
                self._heartbeat_at = now + CHANNEL_HURRY_S
                self._same = 0
            while path.next <= end:
                actions.append(ToConsumer(consumer, self._buffer[path.next - first]))
                path.next += 1
        return actions

    def _trim(self) -> None:
        keep_from = 0 if self._lasting and not self._paths else self.seq
        for path in self._paths.values():
            keep_from = min(keep_from, path.acked)
        buffer = self._buffer
        while buffer and buffer[0].seq <= keep_from:
            self._bytes -= self._size(buffer.popleft().payload)
