"""Refuses publications that came before: each is taken once, on however many ways it comes.

Every publication has an origin and a number; the numbers of an origin rise, with holes where nobody here wanted one.
Of each origin the last ones are remembered, in two generations. What is not newer than the newest number of a dropped
generation is refused: it may have come before. So nothing is taken twice, ever, and memory is bounded; what is lost by
it came more than ``seen_max`` publications of its origin later than others.

Or somebody on the way has used numbers that are still to come. So the origin is told (``losses``), and goes on above.

Messages that came before the news that their origin is behind who brings them.

When a link comes, what goes over it may be faster than what is told of it: a link state counts only from where its
endpoint is known to be, which may be the longer way, and is not passed on to a neighbour of its endpoint. So what
nobody may bring yet waits for a moment, in the order in which it came. It is confirmed once it is taken or refused; in
that order, as a confirmation counts for all that came before on the same tree.

``Turn`` collects the effects of the frames of one call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import TypeAlias

from chappe.core import Deliver, Effect, Flush
from chappe.defaults import EARLY_BYTES_MAX, EARLY_MAX, EARLY_S, ENDPOINTS_MAX
from chappe.errors import ProtocolError
from chappe.limits import MESH_LIMITS, MeshLimits
from chappe.mesh.forwarding.last_values import Newest
from chappe.mesh.links.link import Link
from chappe.mesh.messages import Message

Opens: TypeAlias = Callable[[list[Message]], list[Message]]  # what of messages of one topic can be read here


class Turn:
    """Gathers deliveries, so that a subscriber is called once.

    Args:
        opens: Opens messages of sealed topics; None where nobody can.
        newest: The messages that subscribers with last values have had.
    """

    __slots__ = ("_newest", "_opens", "actions", "boxes", "flushes")

    def __init__(self, opens: Opens | None, newest: dict[int, Newest]) -> None:
        self._opens = opens
        self._newest = newest
        self.actions: list[Effect] = []
        self.boxes: dict[int, list[Message]] = {}
        self.flushes: dict[int, Flush] = {}

    def deliver(self, subscribers: tuple[int, ...], message: Message) -> None:
        if self._opens is not None:
            self.deliver_all(subscribers, [message])
            return
        boxes = self.boxes
        for subscriber in subscribers:
            if subscriber in boxes:
                boxes[subscriber].append(message)
            else:
                boxes[subscriber] = [message]

    def deliver_all(self, subscribers: tuple[int, ...], messages: list[Message]) -> None:
        if self._opens is not None and subscribers:
            messages = self._opens(messages)
            if not messages:
                return
        boxes = self.boxes
        for subscriber in subscribers:
            if subscriber in boxes:
                boxes[subscriber] += messages
            else:
                boxes[subscriber] = messages.copy()

    def close(self) -> None:
        """Put the gathered deliveries into the actions: later ones follow later actions."""
        if self.boxes:
            for subscriber in self._newest.keys() & self.boxes.keys() if self._newest else ():
                self.boxes[subscriber] = self._newest[subscriber].fresh(self.boxes[subscriber])
                if not self.boxes[subscriber]:
                    del self.boxes[subscriber]
            self.actions += [Deliver(subscriber, messages) for subscriber, messages in self.boxes.items()]
            self.boxes = {}
        if self.flushes:
            self.actions += self.flushes.values()
            self.flushes = {}


class LossesElsewhere(ProtocolError):
    """The origin of a message is not behind the neighbour that brought it, as far as is known here."""


class Early:
    def __init__(self) -> None:
        self.due = inf  # when the first has waited for long enough
        self._waiting: deque[tuple[float, Link, bytes]] = deque()  # until when, who brought it, and its body
        self._bytes = 0
        self._looked = -1  # what the network was when it was tried last

    def keep(self, link: Link, body: bytes, network: int, now: float) -> list[tuple[Link, bytes]]:
        """Let a message wait; remove and return the oldest ones where too much does, as ``give_up``."""
        self._add(now + EARLY_S, link, body)
        self._looked = network
        found = []
        while len(self._waiting) > EARLY_MAX or self._bytes > EARLY_BYTES_MAX:
            found.append(self._remove())
        return found

    def _add(self, until: float, link: Link, body: bytes) -> None:
        self._waiting.append((until, link, body))
        self._bytes += len(body)
        self.due = self._waiting[0][0]

    def is_due(self, network: int) -> bool:
        """Return whether something waits, and the network is another one than when it was tried last."""
        return bool(self._waiting) and network != self._looked

    def try_again(self, network: int, take: Callable[[Link, bytes], None]) -> None:
        """Take everything that waits; what raises LossesElsewhere again stays."""
        self._looked = network
        waiting, self._waiting, self._bytes, self.due = self._waiting, deque(), 0, inf
        for until, link, body in waiting:
            try:
                take(link, body)
            except LossesElsewhere:
                self._add(until, link, body)

    def give_up(self, now: float) -> list[tuple[Link, bytes]]:
        """Remove and return the messages whose wait is over, each with the link that brought it."""
        found = []
        while self.due <= now:
            found.append(self._remove())
        return found

    def _remove(self) -> tuple[Link, bytes]:
        _, link, body = self._waiting.popleft()
        self._bytes -= len(body)
        self.due = self._waiting[0][0] if self._waiting else inf
        return link, body


class _Origin:
    __slots__ = ("floor", "old", "young")

    def __init__(self) -> None:
        self.young: set[int] = set()
        self.old: set[int] = set()
        self.floor = -1  # numbers up to this are refused

    def rotate(self) -> int:
        """Begin a new generation; returns how many numbers were dropped."""
        dropped = len(self.old)
        if self.old:
            self.floor = max(self.floor, *self.old)  # some of them may have come before the floor rose
        self.old, self.young = self.young, set()
        return dropped


class SeenMessages:
    """Publications that came to the endpoint ``own``. ``late`` counts those refused though they are not remembered."""

    def __init__(self, own: bytes, limits: MeshLimits = MESH_LIMITS) -> None:
        self._limits = limits
        self.late = 0
        self.late_of: dict[bytes, None] = {}  # origins of such ones
        self.size = 0  # numbers remembered
        self._own = own
        self._origins: dict[bytes, _Origin] = {}
        self._add(own).floor = 2**64  # what was published here and comes back is never new

    def is_new(self, origin: bytes, sequence: int) -> bool:
        """Note a publication; False if it was noted before, or is too old to tell."""
        known = self._origins.get(origin)
        if known is None:
            known = self._add(origin)
        young = known.young
        if sequence in young or sequence in known.old:
            return False
        if sequence <= known.floor:
            self.late += 1
            if origin != self._own:
                self.late_of[origin] = None
            return False
        young.add(sequence)
        self.size += 1
        if len(young) >= self._limits.seen_max or self.size >= self._limits.seen_total_max:
            self._rotate(known)
        return True

    def is_new_run(self, origin: bytes, numbers: range) -> bool:
        """Note consecutive publications if all are surely new; else return False: each is for ``is_new``."""
        known = self._origins.get(origin)
        if known is None or numbers[0] <= known.floor:
            return False
        young, count = known.young, len(numbers)
        room = len(young) + count < self._limits.seen_max and self.size + count < self._limits.seen_total_max
        if not room or not young.isdisjoint(numbers) or not known.old.isdisjoint(numbers):
            return False
        young.update(numbers)
        self.size += count
        return True

    def take_late(self) -> dict[bytes, int]:
        """Remove and return the origins in ``late_of`` that are known still, with the highest number of each."""
        origins, self.late_of = self.late_of, {}
        known = {each: self._origins[each] for each in origins if each in self._origins}
        return {each: max([found.floor, *found.old, *found.young]) for each, found in known.items()}

    def forget(self, origin: bytes) -> None:
        """Forget an origin that has been gone for so long that nothing of it is on its way."""
        known = self._origins.pop(origin, None)
        if known is not None:
            self.size -= len(known.young) + len(known.old)

    def invariants(self) -> list[str]:
        size = sum([len(each.young) + len(each.old) for each in self._origins.values()])
        right = self.size == size <= self._limits.seen_total_max
        return [] if right else [f"{self.size} numbers are counted, {size} remembered"]

    def _add(self, origin: bytes) -> _Origin:
        if len(self._origins) >= ENDPOINTS_MAX:
            self.forget(next(each for each in self._origins if each != self._own))
        known = self._origins[origin] = _Origin()
        return known

    def _rotate(self, full: _Origin) -> None:
        self.size -= full.rotate()
        if self.size >= self._limits.seen_total_max:  # many origins: all of them remember less
            self.size -= sum([each.rotate() for each in self._origins.values()])
