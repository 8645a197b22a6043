"""Boxes of bounded size, and what they do with what comes when they are full."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Policy(StrEnum):
    """The four policies; ``Policy("block")`` reads the name that users write.

    BLOCK: whoever fills the box looks at ``full`` and waits while it is True. What is on its way already is still
    taken, up to twice the bounds (of messages for a peer twice its surplus more); what would go beyond is dropped and
    counted. What is sent another way, as a link has ended, is taken up to twice the bytes.
    DROP_OLDEST: the oldest make room. DROP_NEWEST: what comes is dropped. Both count.
    DISCONNECT: what comes is dropped and counted, and ``overflowed`` tells the owner to end the connection (or the
    subscription).
    """

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    DISCONNECT = "disconnect"


class Box(ABC, Generic[T]):
    """What waits for somebody, in the order in which it came. Not for several threads at once: its owner has a lock.

    It is full at ``messages_max`` messages or ``bytes_max`` bytes, whichever comes first; one message may go beyond the
    bytes, so that a message of any size passes. Counters, only ever rising: ``dropped`` and ``dropped_bytes``
    (messages), ``taken`` and ``taken_bytes``.
    """

    def __init__(self, messages_max: int, bytes_max: int, policy: Policy) -> None:
        assert messages_max > 0
        assert bytes_max > 0
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.policy = policy
        self.bytes = 0  # of messages that wait
        self.dropped = 0
        self.dropped_bytes = 0
        self.taken = 0
        self.taken_bytes = 0
        self.overflowed = False  # end the connection, or the subscription
        self._waiting: deque[T] = deque()

    @property
    def full(self) -> bool:
        """Whether the policy applies to the next message; under BLOCK whoever fills the box waits."""
        return len(self._waiting) >= self.messages_max or self.bytes >= self.bytes_max

    def _put_full(self, message: T, size: int) -> bool:
        """As the policy says; False if the message was dropped."""
        if self.policy is Policy.DROP_OLDEST:
            while self.full:
                self._count_dropped(*self._remove_oldest())
        elif self.policy is not Policy.BLOCK or self._is_beyond_twice():
            self._count_dropped(message, size)
            self.overflowed = self.overflowed or self.policy is Policy.DISCONNECT
            return False
        self._waiting.append(message)
        self.bytes += size
        return True

    def _is_beyond_twice(self) -> bool:
        return len(self._waiting) >= 2 * self.messages_max or self.bytes >= 2 * self.bytes_max

    @abstractmethod
    def _remove_oldest(self) -> tuple[T, int]:
        """Remove and return the oldest, and its size."""

    def _count_dropped(self, message: T, size: int) -> None:
        self.dropped += 1
        self.dropped_bytes += size
