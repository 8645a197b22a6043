"""The order of what an origin publishes, kept while its ways change.

Along one tree everything comes in order, and so it does along all trees of an origin as long as nothing changes, for
they are parts of one tree of shortest ways. When the ways change, what is under way along the former ones may come
later than what goes along the new ones. So whatever is for the same receivers waits, here where it is published, until
that has arrived: until the hop beside us has confirmed it, or the link to it has ended and it goes another way. Of
what goes two ways one is enough.

A hop that sends something on a detour does the same with what it sends of one origin. Everything waits only for what
has a lower number of the same origin: so nothing waits for each other, even if it comes to the same hop again.

What may go then goes as boxes have room for it: it came in a moment, and may be more than they take at once.

What waits is bounded, and so is the time in which nothing of what is waited for arrives. Beyond that the order is given
up, rather than messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Final, TypeAlias

from chappe.defaults import ORDER_BYTES_MAX, ORDER_S, ROOM_LOOK_S
from chappe.mesh.forwarding.branches import Branch, Child

_ENTRY_BYTES: Final = 1_024  # what one message that waits takes beside its topic and payload
Keys: TypeAlias = frozenset[bytes]  # receivers; of what another endpoint has published: its id and theirs


class _Former:
    """A hop to which something is under way along what was the way."""

    __slots__ = ("back", "branch", "keys", "left", "until")

    def __init__(self, branch: Branch, keys: Keys, left: frozenset[int]) -> None:
        self.branch = branch
        self.keys = keys
        self.left = left  # numbers of messages ...
        self.back: dict[bytes, set[int]] = {}  # ... and by key of those that were sent back to us: they go from here
        self.until = inf  # it is waited for

    def hold(self, held: dict[bytes, float]) -> None:
        lowest = min(self.left, default=inf)
        for key in self.keys:
            back = self.back.get(key)
            found = lowest if back is None else min(self.left - back, default=inf)
            held[key] = min(found, held.get(key, inf))


class _Entry:
    __slots__ = ("room", "send", "size", "until")

    def __init__(self, size: int, send: Callable[[], None], room: Callable[[], bool]) -> None:
        self.size = size
        self.send = send
        self.room = room
        self.until = inf  # it waits for room


class Order:
    """Messages that wait until earlier ones have arrived."""

    def __init__(self) -> None:
        self.held: dict[bytes, float] = {}  # keys of what is to wait, if it has a higher number than this
        self.due = inf  # when to call ``go_on``
        self.size = 0  # bytes that wait
        self.given_up = 0  # how often the order was
        self._former: dict[Child, _Former] = {}
        # What waits, by its keys: heaps of number, when it came, and entry. Only the first of each heap may be next.
        self._waiting: dict[Keys, list[tuple[int, int, _Entry]]] = {}
        self._came = count()

    def begin(self, branch: Branch, children: Iterable[Child], keys: Callable[[frozenset[bytes]], Keys]) -> None:
        """Note that the ways of a tree over some hops, to which something is under way, have changed."""
        for child in children:
            if child not in self._former:
                former = self._former[child] = _Former(branch, keys(child.receivers), branch.left(child))
                former.hold(self.held)
                self.due = -inf

    def holds(self, keys: Keys, number: float = inf) -> bool:
        return _holds(self.held, keys, number)

    def came_back(self, keys: Keys, number: int) -> None:
        """Note that messages under way along a former way came back because that way has ended; they go on from here.

        If they were waited for, each of the many that may come back would wait until the one before had arrived.
        """
        for former in self._former.values():
            if number in former.left:
                for key in keys & former.keys:
                    former.back.setdefault(key, set()).add(number)
                    self.due = -inf

    def put(self, keys: Keys, number: int, size: int, send: Callable[[], None], room: Callable[[], bool]) -> None:
        """Call ``send`` in its turn, once there is ``room``."""
        size += _ENTRY_BYTES
        heappush(self._waiting.setdefault(keys, []), (number, next(self._came), _Entry(size, send, room)))
        _hold(self.held, keys, number)
        self.size += size
        if self.due == inf or self.size > 2 * ORDER_BYTES_MAX:
            self.due = -inf

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def has_room(self) -> None:
        if self._waiting:
            self.due = -inf

    def go_on(self, now: float) -> None:
        """Send messages that need not wait any longer, as long as there is room for them."""
        if self.size > 2 * ORDER_BYTES_MAX:
            self.give_up()
            return
        for child, former in list(self._former.items()):
            left = former.branch.left(child)
            if former.left - left or former.until == inf:
                former.until = now + ORDER_S
            former.left = left
            if not left or now >= former.until:
                self.given_up += bool(left)
                del self._former[child]
        self.due = min([each.until for each in self._former.values()], default=inf)
        self._send(now)

    def give_up(self, now: float = inf) -> None:
        """Wait for no message that has not arrived; for room only until ``now``."""
        self.given_up += bool(self._former and self._waiting)
        self._former.clear()
        self.due = inf
        self._send(now)

    def _send(self, now: float) -> None:
        held: dict[bytes, float] = {}
        for former in self._former.values():
            former.hold(held)
        first = [(heap[0][0], heap[0][1], keys) for keys, heap in self._waiting.items()]
        heapify(first)
        while first:  # all that waits, by number, but of equal keys no further than to one that stays
            number, _, keys = heappop(first)
            heap = self._waiting[keys]
            entry = heap[0][2]
            if _holds(held, keys, number) or not self._may_go(entry, now):
                _hold(held, keys, number)
                continue
            heappop(heap)
            self.size -= entry.size
            if heap:
                heappush(first, (heap[0][0], heap[0][1], keys))
            else:
                del self._waiting[keys]
            entry.send()
        self.held = held

    def _may_go(self, entry: _Entry, now: float) -> bool:
        if now >= entry.until or entry.room():
            return True
        entry.until = min(entry.until, now + ORDER_S)
        self.due = min(self.due, now + ROOM_LOOK_S)
        return False


def _hold(held: dict[bytes, float], keys: Keys, number: float) -> None:
    for key in keys:
        held[key] = min(number, held.get(key, inf))


def _holds(held: dict[bytes, float], keys: Keys, number: float) -> bool:
    return any(held.get(key, inf) < number for key in keys)
