"""The receiving end of a channel: it hands events on in order, and asks again for what is missing."""

from __future__ import annotations

import math
from typing import Final, Generic

from chappe.channel.messages import (
    ASK_HANDSHAKE,
    Ack,
    Consume,
    ConsumerAction,
    ConsumerClosed,
    Lost,
    Nack,
    P,
    ProducerSilent,
    ToProducer,
)
from chappe.defaults import (
    CHANNEL_ACK_EVENTS,
    CHANNEL_CALM_AFTER,
    CHANNEL_HEARTBEAT_S,
    CHANNEL_HELD_MAX,
    CHANNEL_NACK_MAX,
    CHANNEL_NACK_S,
)
from chappe.errors import ChappeError

_NACKS: Final = 20  # in ``nack_s`` at most, however fast they are answered


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
        held_max: Events kept beyond a gap; further ones come again.
        ack_events: Acknowledged at least every so many.
        calm_s: How often it acknowledges once ``CHANNEL_CALM_AFTER`` acknowledgements in a row have said the same and
            nothing is missing, as far as it knows: then they are no more than a sign of life. What comes next is
            acknowledged in its time. Where the producer asks for it more often than each ``CHANNEL_HEARTBEAT_S``, and
            without ``calm_s``, it is as often as that asks.
        nack_max: Asked for at once; the rest when these have come.
    """

    def __init__(
        self,
        *,
        now: float,
        nack_s: float = CHANNEL_NACK_S,
        search_max_s: float = CHANNEL_NACK_S,
        silent_s: float = math.inf,
        held_max: int = CHANNEL_HELD_MAX,
        ack_events: int = CHANNEL_ACK_EVENTS,
        nack_max: int = CHANNEL_NACK_MAX,
        calm_s: float = 0.0,
    ) -> None:
        self.next = 0  # the number of the event that is to come; 0 before the handshake
        self.closed = False  # by its owner: it takes nothing and says nothing any more
        self._stopped = False  # it is closed, or asks its owner about the lost event ``next``
        self._end = 0  # one more than the last number heard of
        self._acked = 0
        self._nack_s = nack_s
        self._search_max_s = search_max_s
        self._search_s = nack_s
        self._silent_s = silent_s
        self._held_max = held_max
        self._ack_events = ack_events
        self._nack_max = nack_max
        self._held: dict[int, P | _Hole] = {}
        self._heartbeat_s = CHANNEL_HEARTBEAT_S
        self._calm_s = calm_s
        self._same = 0  # acknowledgements in a row that said the same
        self._heard_at = now
        self._silent = False
        self._acked_at = math.inf
        self._nacked_at = -math.inf
        self._asked_to: float = math.inf  # where a nack that did not hold all that is missing ends
        self._nack_at = now if search_max_s < math.inf else math.inf

    @property
    def initialized(self) -> bool:
        return self.next != 0

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def behind(self) -> int:
        """Events that are known to exist and have not been handed on."""
        return self._end - self.next

    def idle(self) -> bool:
        return self.next != 0 and self.next == self._end and not self.closed

    def invariants(self) -> list[str]:
        found: list[str] = []
        if not self.initialized:
            return found
        if self.next > self._end or any(not self.next < seq < self._end for seq in self._held):
            found.append(f"{sorted(self._held)} are held between {self.next} and {self._end}")
        if len(self._held) > self._held_max:
            found.append(f"{len(self._held)} events are held, at most {self._held_max} may be")
        if self._stopped and not self.closed and not self.behind:
            found.append(f"event {self.next} is lost, and was never heard of")
        if self.closed and self.next_timeout() < math.inf:
            found.append("it is closed, and something is due")
        if self.behind and self._nack_at == math.inf and not self._stopped:
            found.append(f"{self.behind} events are missing, and never asked for")
        return found

    # -- world ------------------------------------------------------------------------------------------------

    def take_handshake(self, offset: int, heartbeat_s: float, now: float) -> list[ConsumerAction[P]]:
        """Begin behind ``offset``; a repeated handshake is only acknowledged."""
        if self.closed:
            return []
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

    def take_event(self, seq: int, payload: P, now: float) -> list[ConsumerAction[P]]:
        self._heard_at = now
        if seq != self.next or not seq or self._stopped:
            return self._early(seq, payload, now)
        self._silent = False
        self.next = seq + 1
        if self._end <= seq:
            self._end = seq + 1
        actions: list[ConsumerAction[P]] = [Consume(seq, payload)]
        if self._held:
            actions += self._drain(now)
        elif self.next < self._end:
            self._expect(now)
        if self.next - self._acked > self._ack_events:
            actions.append(self._ack(now))
        return actions

    def take_heartbeat(self, seq: int, now: float) -> list[ConsumerAction[P]]:
        """The producer lives, and its last event was ``seq``; what is not acknowledged yet is acknowledged now."""
        self._heard(now)
        if not self.initialized or seq <= 0 or self.closed:
            return []
        self._known(seq, now)
        return [self._ack(now)] if self._acked < self.next - 1 == seq else []

    def hear_of(self, seq: int, now: float) -> None:
        """The producer lives, and its event ``seq`` exists; what has come is acknowledged in its time."""
        self._heard(now)
        if self.next and seq > 0 and not self.closed:
            self._known(seq, now)

    def take_retransmit_failed(self, seq: int, now: float) -> list[ConsumerAction[P]]:
        """An event cannot be had any more."""
        self._heard(now)
        if not self.initialized or seq < self.next or (seq > self.next and len(self._held) >= self._held_max):
            return []
        if self._stopped and (self.closed or seq == self.next):
            return []
        self._held.setdefault(seq, _HOLE)
        self._end = max(self._end, seq + 1)
        return self._drain(now)

    def tick(self, now: float) -> list[ConsumerAction[P]]:
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
                    self._nacked_at = now
                    actions.append(ToProducer(Nack(self._missing())))
        if now >= self._ack_at():
            actions.append(self._ack(now))
        if not self._silent and now >= self._heard_at + self._silent_s:
            self._silent = True
            actions.append(ProducerSilent())
        return actions

    def next_timeout(self) -> float:
        silent_at = math.inf if self._silent else self._heard_at + self._silent_s
        return min(self._nack_at, self._ack_at(), silent_at)

    def skip_to(self, offset: int, now: float) -> list[ConsumerAction[P]]:
        """Go on behind ``offset`` if that lies ahead; the producer will not send what is before."""
        if not self.initialized or offset < self.next or self.closed:
            return []
        self._stopped = False
        self.next = offset + 1
        self._end = max(self._end, self.next)
        self._held = {seq: each for seq, each in self._held.items() if seq > offset}
        return self._drain(now)

    def skip_lost(self, now: float) -> list[ConsumerAction[P]]:
        """Go on behind the event that ``Lost`` has told; its owner can do without it."""
        if self.closed or not self._stopped:
            return []
        self._stopped = False
        self.next += 1
        return self._drain(now)

    def close(self, error: ChappeError) -> list[ConsumerAction[P]]:
        """End it: it hands nothing on, says nothing and is never due again. The event that it asked about is passed."""
        if self.closed:
            return []
        if self._stopped:
            self.next += 1
        self.closed = self._stopped = True
        self._end = self.next
        self._held.clear()
        self._nack_at = self._acked_at = self._silent_s = math.inf
        return [ConsumerClosed(error)]

    # -- inside -----------------------------------------------------------------------------------------------

    def _heard(self, now: float) -> None:
        self._heard_at = now
        self._silent = False

    def _known(self, seq: int, now: float) -> None:
        if seq >= self._end:
            self._end = seq + 1
        if self._stopped:
            return
        if self.next < self._end and self._nack_at == math.inf:
            self._nack_at = now + self._nack_s

    def _early(self, seq: int, payload: P, now: float) -> list[ConsumerAction[P]]:
        """An event out of turn: an old one is ignored, one beyond a gap is held."""
        self._silent = False
        if seq < max(self.next, 1) or (self._stopped and (self.closed or seq == self.next)):
            return []
        if self.initialized:
            self._known(seq, now)
        if len(self._held) < self._held_max or seq in self._held:
            self._held[seq] = payload
        return []

    def _drain(self, now: float) -> list[ConsumerAction[P]]:
        actions: list[ConsumerAction[P]] = []
        while self.next in self._held:
            found = self._held.pop(self.next)
            if isinstance(found, _Hole):
                self._stopped = True
                actions.append(Lost(self.next))
            else:
                actions.append(Consume(self.next, found))
                self.next += 1
        if self._held:
            self._end = max(self._end, max(self._held) + 1)
        self._end = max(self._end, self.next)
        self._expect(now)
        return actions

    def _expect(self, now: float) -> None:
        """There was progress: when to ask next for what is missing."""
        if not self.behind or self._stopped:
            self._nack_at = math.inf
        elif self.next > self._asked_to:
            self._nack_at = max(now, self._nacked_at + self._nack_s / _NACKS)
        else:
            self._nack_at = now + self._nack_s

    def _missing(self) -> tuple[int, ...]:
        found: list[int] = []
        self._asked_to = math.inf
        for seq in range(self.next, self._end):
            if seq not in self._held:
                found.append(seq)
                if len(found) == self._nack_max:
                    self._asked_to = float(seq)
                    break
        return tuple(found)

    def _ack(self, now: float) -> ToProducer:
        self._same = self._same + 1 if self._acked == self.next - 1 else 0
        self._acked = self.next - 1
        self._acked_at = now
        return ToProducer(Ack(self._acked))

    def _ack_at(self) -> float:
        new = self._same < CHANNEL_CALM_AFTER or self._acked != self.next - 1 or self.next < self._end
        calm_s = self._calm_s if self._heartbeat_s >= CHANNEL_HEARTBEAT_S else 0.0
        return self._acked_at + (self._heartbeat_s if new else max(self._heartbeat_s, calm_s))
