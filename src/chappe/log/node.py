"""One node of the log: what it carries, and how it meets others.

The role is a store, or the producers or consumers of a process; the discovery knows the members that it has met. What a
member publishes is judged (``guard``), counted (``traffic``), and goes to whom it concerns. While too much waits for
peers whose queues are full, nothing that is due of the role is done: it would publish more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from chappe.core import Effect, Publish, Subscribe
from chappe.data.topic import encode_topic
from chappe.log.events import ForwarderFound, ForwarderLost, TowerFound, TowerLost
from chappe.log.guard import Guard
from chappe.log.member import Carrying, ProducingMember
from chappe.log.messages import AskTraffic, Message, StoreInfo, decode
from chappe.log.queries import Answer
from chappe.log.traffic import Traffic

ASKS: Final = b"Q"  # how a question begins that the node itself answers (``log.traffic``)


class LogRole(Protocol):
    address: str

    @property
    def paused(self) -> bool:
        """True if so much waits here that nothing more should be received."""

    def start(self, now: float) -> list[Effect]: ...

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]: ...

    def handle_message(self, message: Message, now: float) -> list[Effect]: ...

    def handle_answer(
        self, request_id: int, answer: Answer, batches: Sequence[bytes | memoryview], now: float
    ) -> list[Effect]: ...

    def handle_gone(self, address: str, now: float) -> list[Effect]: ...

    def handle_timeout(self, now: float) -> list[Effect]: ...

    def next_timeout(self) -> float: ...

    def flush(self, now: float) -> list[Effect]: ...


class Discovers(Protocol):
    """The core that knows the nodes that were met: through towers, or forwarders."""

    @property
    def tower(self) -> bool:
        """True if a tower or forwarder is there."""

    @property
    def told(self) -> TowerFound | TowerLost | ForwarderFound | ForwarderLost | None: ...

    @property
    def peers(self) -> int: ...

    @property
    def met(self) -> list[tuple[str, str]]:
        """Address and place of each node."""

    def store_heard(self, address: str, now: float) -> None: ...

    def claim(self, identity: str, now: float) -> list[Effect]:
        """Tell everybody that we go on with an identity."""

    def disclaim(self, identity: str) -> list[Effect]: ...

    def newcomer(self, identity: str, now: float) -> bool:
        """Return True if we claim an identity only since now."""

    def goodbye(self) -> list[Effect]: ...

    def handle_timeout(self, now: float) -> list[Effect]: ...

    def next_timeout(self) -> float: ...


class LogNode:
    """A role and its discovery, which ``meet`` adds first. ``guard``: judges other members where there are keys."""

    def __init__(self, role: LogRole, guard: Guard | None = None) -> None:
        self.role = role
        self.guard = guard
        self.address = role.address
        self.traffic = Traffic()
        self.discovery: Discovers
        self._waiting = 0  # frames that wait for full peers
        self._choked = False  # so many that nothing more is to be published

    def meet(self, discovery: Discovers) -> None:
        self.discovery = discovery
        if isinstance(self.role, ProducingMember):
            self.role.claims = discovery

    def start(self, now: float) -> list[Effect]:
        """Subscribe to the role's messages, and to questions about traffic."""
        return [*self.role.start(now), Subscribe(ASKS + encode_topic(self.address))]

    @property
    def paused(self) -> bool:
        """True if published messages are to be left in the queue. Ask before each message."""
        return self._choked or self.role.paused

    def handle_frames(self, frames: Sequence[bytes | memoryview], who: str, now: float) -> Sequence[Effect]:
        """Take a message that a member published; with keys its identity is ``who``. Raises ProtocolError."""
        message = decode(frames)
        if self.guard is not None:
            allowed = self.guard.message(who, message)
            if allowed is None:
                return ()
            message = allowed
        self.traffic.took(message, len(frames[0]) + len(frames[-1]) * (len(frames) > 1))
        if isinstance(message, AskTraffic):
            return self._tell_traffic(message, now)
        if isinstance(message, StoreInfo):
            self.discovery.store_heard(message.address, now)
        return self.role.handle_message(message, now)

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> Sequence[Effect]:
        return () if prefix[:1] == ASKS else self.role.handle_subscription(prefix, on, now)

    def handle_full(self, waiting: int, choked: bool, now: float) -> Sequence[Effect]:
        """Note that so many frames wait for peers whose queues are full; ``choked``: publish nothing more."""
        self._waiting, self._choked = waiting, choked
        return ()

    def handle_taken(self, now: float) -> Sequence[Effect]:
        """Note that full peers have taken everything, or have lost it."""
        self._waiting, self._choked = 0, False
        return ()

    def handle_timeout(self, now: float) -> Sequence[Effect]:
        """Do what is due of the discovery, or else of the role."""
        if now >= self.discovery.next_timeout():
            return self.discovery.handle_timeout(now)
        return () if self._choked or now < self.role.next_timeout() else self.role.handle_timeout(now)

    def next_timeout(self) -> float:
        return min(self.discovery.next_timeout(), math.inf if self._choked else self.role.next_timeout())

    def flush(self, now: float) -> Sequence[Effect]:
        return self.role.flush(now)

    def _tell_traffic(self, question: AskTraffic, now: float) -> Sequence[Effect]:
        carries = self.role.carries if isinstance(self.role, Carrying) else ()
        told = self.traffic.answer(question, carries, self._waiting, self.paused, now)
        return () if told is None or question.topic != self.address else (Publish(told),)
