"""What waits for one subscriber: messages, in the order in which they came, within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import inf

from chappe.defaults import SUBSCRIBER_BYTES_MAX, SUBSCRIBER_MESSAGES_MAX
from chappe.mesh.messages import Message
from chappe.mesh.policy import Box, Policy


class Inbox(Box[Message]):
    """Messages for one subscriber; their bytes are those of topics and payloads."""

    def __init__(
        self,
        messages_max: int = SUBSCRIBER_MESSAGES_MAX,
        bytes_max: int = SUBSCRIBER_BYTES_MAX,
        policy: Policy = Policy.BLOCK,
    ) -> None:
        super().__init__(messages_max, bytes_max, policy)

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    def put(self, message: Message) -> bool:
        """Add a message; False if it was dropped."""
        size = len(message.topic) + len(message.payload)
        if len(self._waiting) < self.messages_max and self.bytes < self.bytes_max:
            self._waiting.append(message)
            self.bytes += size
            return True
        return self._put_full(message, size)

    def put_many(self, messages: Sequence[Message]) -> int:
        """Add messages; returns how many of them were dropped on arrival."""
        size = sum([len(message.topic) + len(message.payload) for message in messages])
        if len(self._waiting) + len(messages) <= self.messages_max and self.bytes + size <= self.bytes_max:
            self._waiting.extend(messages)
            self.bytes += size
            return 0
        return sum([not self.put(message) for message in messages])

    def take(self) -> Message | None:
        """Remove and return the oldest message; None if there is none."""
        if not self._waiting:
            return None
        message, size = self._remove_oldest()
        self.taken += 1
        self.taken_bytes += size
        return message

    def take_many(self, messages_max: int, bytes_max: float = inf) -> list[Message]:
        """Remove and return the oldest: at most ``messages_max``, and none beyond ``bytes_max`` but the first."""
        waiting = self._waiting
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

    def _remove_oldest(self) -> tuple[Message, int]:
        oldest = self._waiting.popleft()
        size = len(oldest.topic) + len(oldest.payload)
        self.bytes -= size
        return oldest, size
