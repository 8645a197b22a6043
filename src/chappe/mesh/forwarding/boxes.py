"""Queues of bounded size, each for one connection or one subscriber, and their policies when full.

For a connection that is frames. Messages obey the policy. Control frames (handshake, routing, pings) go past it, within
bounds of their own; they keep their place in the order, so that a pong follows everything that was put before it.

A frame may have a batch of messages. It waits, leaves and is dropped as a whole, and all its messages count; as one
message may go beyond the bytes of a box, a batch may go beyond the messages.

``put`` and ``take`` cost a small part of a microsecond.


"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import islice, takewhile
from math import inf
from typing import Final, Generic, TypeVar

from chappe.defaults import (
    CONTROL_BYTES_MAX,
    CONTROL_FRAMES_MAX,
    PEER_BYTES_MAX,
    PEER_MESSAGES_MAX,
)
from chappe.mesh.flows import DETOUR, KIND_AT, PREFIX, messages_in
from chappe.mesh.messages import Message

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


class Box(Generic[T]):
    """A queue of bounded size. It is not safe for several threads: its owner has a lock.

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
        """True if the policy applies to the next message; under BLOCK publishers wait."""
        return len(self._waiting) >= self.messages_max or self.bytes >= self.bytes_max

    def _put_full(self, message: T, size: int) -> bool:
        """Apply the policy to a message; False if it was dropped."""
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
    def _remove_oldest(self) -> tuple[T, int]: ...

    def _count_dropped(self, message: T, size: int) -> None:
        self.dropped += 1
        self.dropped_bytes += size


_FIRST: Final = -1  # a place before all others


class Outbox(Box[bytes]):
    """Frames for one connection. ``taken`` and ``taken_bytes`` count frames, ``messages`` those that were messages.

    ``overflowed`` also when too many control frames wait. ``surplus``: so many messages more are on their way as a rule
    until all who publish them wait.
    """

    def __init__(
        self,
        messages_max: int = PEER_MESSAGES_MAX,
        bytes_max: int = PEER_BYTES_MAX,
        policy: Policy = Policy.BLOCK,
        surplus: int = 0,
    ) -> None:
        super().__init__(messages_max, bytes_max, policy)
        self.surplus = surplus
        self.control_bytes = 0
        self.messages = 0
        self.on_drop: Callable[[bytes], None] | None = None  # called with each message that is dropped
        self._more = 0  # messages that wait beyond one for each frame
        self._gone = 0  # frames of messages that left _waiting, taken or dropped
        # Control frames, each with the number of frames ever accepted before it: it leaves when as many are gone.
        self._control: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._waiting) + self._more + len(self._control)

    @property
    def accepted(self) -> int:
        return self.messages + len(self._waiting) + self._more

    @property
    def full(self) -> bool:
        return len(self._waiting) + self._more >= self.messages_max or self.bytes >= self.bytes_max

    @property
    def pressed(self) -> bool:
        """True if it is full, and half of that again waits, and the surplus."""
        messages = len(self._waiting) + self._more - self.surplus
        return 2 * messages >= 3 * self.messages_max or 2 * self.bytes >= 3 * self.bytes_max

    @property
    def half_empty(self) -> bool:
        """True if no more waits than half of its bounds."""
        return 2 * (len(self._waiting) + self._more) <= self.messages_max and 2 * self.bytes <= self.bytes_max

    def _is_beyond_twice(self) -> bool:
        messages = len(self._waiting) + self._more
        return messages >= 2 * (self.messages_max + self.surplus) or self.bytes >= 2 * self.bytes_max

    def invariants(self) -> list[str]:
        size = sum(map(len, self._waiting))
        control = sum([len(frame) for _, frame in self._control])
        found: list[str] = []
        if (size, control) != (self.bytes, self.control_bytes):
            found.append(f"{self.bytes} and {self.control_bytes} bytes are counted, {size} and {control} wait")
        more = sum([messages_in(frame, PREFIX) - 1 for frame in self._waiting])
        if more != self._more:
            found.append(f"{self._more} messages are counted beside {len(self._waiting)} that wait, {more} are there")
        first = [frame for frame in self._waiting if frame[PREFIX + KIND_AT :][:1] != bytes((DETOUR,))]
        if len(first) > 2 * (self.messages_max + self.surplus) or len(self._control) > CONTROL_FRAMES_MAX:
            found.append(f"{len(first)} messages and {len(self._control)} control frames wait")
        return found

    def put(self, frame: bytes) -> bool:
        """Add the frame of a message, its length included; False if it was dropped."""
        if len(self._waiting) + self._more < self.messages_max and self.bytes < self.bytes_max:
            self._waiting.append(frame)
            self.bytes += len(frame)
            return True
        return self._put_full(frame, len(frame))

    def add(self, frame: bytes) -> bool:
        """Add the frame of a message if it is not full even then; False, and nothing done, if it is to be ``put``."""
        size = self.bytes + len(frame)
        if len(self._waiting) + self._more + 1 < self.messages_max and size < self.bytes_max:
            self._waiting.append(frame)
            self.bytes = size
            return True
        return False

    def put_batch(self, frame: bytes) -> bool:
        """Add a frame that may have several messages; as ``put``.

        Whoever blocks takes any number of detours, up to twice the bytes: what was kept for a link that has ended comes
        all at once, and nobody can be made to wait with it.
        """
        if self.policy is Policy.BLOCK and frame[PREFIX + KIND_AT] == DETOUR and self.bytes < 2 * self.bytes_max:
            self._waiting.append(frame)
            self.bytes += len(frame)
        elif not self.put(frame):
            return False
        self._more += messages_in(frame, PREFIX) - 1
        return True

    def refuse(self, frame: bytes) -> None:
        self._count_dropped(frame, len(frame))

    @property
    def crowded(self) -> bool:
        """True if so many control frames wait that those which can wait, or be left out, should."""
        return 2 * len(self._control) >= CONTROL_FRAMES_MAX or 2 * self.control_bytes >= CONTROL_BYTES_MAX

    def put_control(self, frame: bytes) -> bool:
        """Add a control frame; False, and ``overflowed``, if the peer takes so little that even these pile up."""
        if len(self._control) >= CONTROL_FRAMES_MAX or self.control_bytes >= CONTROL_BYTES_MAX:
            self.overflowed = True
            return False
        self._control.append((self._gone + len(self._waiting), frame))
        self.control_bytes += len(frame)
        return True

    def put_first(self, frame: bytes) -> bool:
        """Add a control frame that leaves before all that waits, but behind others of its kind; as ``put_control``."""
        if not self.put_control(frame):
            return False
        self._control.pop()
        first = sum(1 for _ in takewhile(lambda each: each[0] == _FIRST, self._control))
        self._control.insert(first, (_FIRST, frame))
        return True

    def discard(self) -> list[bytes]:
        """Remove everything that waits, as the connection is of no further use; return the frames of messages."""
        frames = list(self._waiting)
        self._waiting.clear()
        self._control.clear()
        self._gone += len(frames)
        self._more = self.bytes = self.control_bytes = 0
        return frames

    def take(self, bytes_max: int) -> list[bytes]:
        """Remove and return the next frames with their lengths, at least one if any waits, at most ``bytes_max``."""
        frames = self._waiting
        if not self._control and self.bytes <= bytes_max:
            taken = list(frames)
            frames.clear()
            size = self.bytes
            self.bytes = 0
            self._gone += len(taken)
            self.messages += len(taken) + self._more
            self._more = 0
        else:
            taken, size = self._take_some(bytes_max)
        self.taken += len(taken)
        self.taken_bytes += size
        return taken

    def _take_some(self, bytes_max: int) -> tuple[list[bytes], int]:
        frames, control = self._waiting, self._control
        taken: list[bytes] = []
        total = 0
        while frames or control:
            is_control = bool(control) and control[0][0] <= self._gone
            frame = control[0][1] if is_control else frames[0]
            size = len(frame)
            if taken and total + size > bytes_max:
                break
            if is_control:
                control.popleft()
                self.control_bytes -= size
            else:
                self.messages += 1 + self._more
                self._remove_oldest()
                self.messages -= self._more
            taken.append(frame)
            total += size
        return taken, total

    def _remove_oldest(self) -> tuple[bytes, int]:
        oldest = self._waiting.popleft()
        self.bytes -= len(oldest)
        self._gone += 1
        if self._more:
            self._more -= messages_in(oldest, PREFIX) - 1
        return oldest, len(oldest)

    def _count_dropped(self, message: bytes, size: int) -> None:
        super()._count_dropped(message, size)
        self.dropped += messages_in(message, PREFIX) - 1
        if self.on_drop is not None:
            self.on_drop(message)


class SubscriberInbox(Box[Message]):
    """Messages for one subscriber; their bytes are those of topics and payloads."""

    def __init__(self, messages_max: int, bytes_max: int, policy: Policy) -> None:
        super().__init__(messages_max, bytes_max, policy)
        self.on_drop: Callable[[Message], None] | None = None  # called with each message that is dropped

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: Message) -> bool:
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

    def _count_dropped(self, message: Message, size: int) -> None:
        super()._count_dropped(message, size)
        if self.on_drop is not None:
            self.on_drop(message)
