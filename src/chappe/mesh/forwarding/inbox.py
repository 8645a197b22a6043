"""What waits for one subscriber: messages, in the order in which they came, within bounds.

As the outbox: full at ``messages_max`` messages or ``bytes_max`` bytes (topics and payloads), one message may go
beyond the bytes; then the policy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import inf

from chappe.defaults import SUBSCRIBER_BYTES_MAX, SUBSCRIBER_MESSAGES_MAX
from chappe.mesh.messages import Message
from chappe.mesh.policy import Policy


class Inbox:
    """Messages for one subscriber. Not for several threads at once: its owner has a lock.

    Counters, only ever rising: ``dropped`` and ``dropped_bytes``, ``taken`` and ``taken_bytes``.
    """

    def __init__(
        self,
        messages_max: int = SUBSCRIBER_MESSAGES_MAX,
        bytes_max: int = SUBSCRIBER_BYTES_MAX,
        policy: Policy = Policy.BLOCK,
    ) -> None:
        assert messages_max > 0
        assert bytes_max > 0
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.policy = policy
        self.bytes = 0
        self.dropped = 0
        self.dropped_bytes = 0
        self.taken = 0
        self.taken_bytes = 0
        self.overflowed = False  # policy DISCONNECT: end the subscription
        self._messages: deque[Message] = deque()

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._messages)

    @property
    def full(self) -> bool:
        """Whether the policy applies to the next message; under BLOCK whoever fills the box waits."""
        return len(self._messages) >= self.messages_max or self.bytes >= self.bytes_max

    def put(self, message: Message) -> bool:
        """Add a message; False if it was dropped."""
        size = len(message.topic) + len(message.payload)
        if len(self._messages) < self.messages_max and self.bytes < self.bytes_max:
            self._messages.append(message)
            self.bytes += size
            return True
        return self._put_full(message, size)

    def put_many(self, messages: Sequence[Message]) -> int:
        """Add messages; returns how many of them were dropped on arrival."""
        size = sum([len(message.topic) + len(message.payload) for message in messages])
        if len(self._messages) + len(messages) <= self.messages_max and self.bytes + size <= self.bytes_max:
            self._messages.extend(messages)
            self.bytes += size
            return 0
        return sum([not self.put(message) for message in messages])

    def take(self) -> Message | None:
        """Remove and return the oldest message; None if there is none."""
        if not self._messages:
            return None
        message = self._messages.popleft()
        size = len(message.topic) + len(message.payload)
        self.bytes -= size
        self.taken += 1
        self.taken_bytes += size
        return message

    def take_many(self, messages_max: int, bytes_max: float = inf) -> list[Message]:
        """Remove and return the oldest: at most ``messages_max``, and none beyond ``bytes_max`` but the first."""
        waiting = self._messages
        size = 0
        if self.bytes > bytes_max:
            count = 0
            for message in islice(waiting, messages_max):
                further = len(message.topic) + len(message.payload)
                if count and size + further > bytes_max:
                    break
                count += 1
                size += further
            taken = [waiting.popleft() for _ in range(count)]
        elif messages_max >= len(waiting):
            taken = list(waiting)
            waiting.clear()
            size = self.bytes
        else:
            taken = [waiting.popleft() for _ in range(messages_max)]
            size = sum([len(message.topic) + len(message.payload) for message in taken])
        self.bytes -= size
        self.taken += len(taken)
        self.taken_bytes += size
        return taken

    def _put_full(self, message: Message, size: int) -> bool:
        if self.policy is Policy.DROP_OLDEST:
            while self.full:
                self._drop_oldest()
        elif self.policy is not Policy.BLOCK or self._is_beyond_twice():
            self._count_dropped(size)
            self.overflowed = self.overflowed or self.policy is Policy.DISCONNECT
            return False
        self._messages.append(message)
        self.bytes += size
        return True

    def _is_beyond_twice(self) -> bool:
        return len(self._messages) >= 2 * self.messages_max or self.bytes >= 2 * self.bytes_max

    def _drop_oldest(self) -> None:
        oldest = self._messages.popleft()
        size = len(oldest.topic) + len(oldest.payload)
        self.bytes -= size
        self._count_dropped(size)

    def _count_dropped(self, size: int) -> None:
        self.dropped += 1
        self.dropped_bytes += size
