"""A network of real endpoint cores without faults: each link takes a fixed time and keeps the order; the clock jumps.

What is written in one instant arrives at once, as it would from a kernel's buffer. The bytes that arrive are those that
were written. Handshakes are real. All frames are counted as they are written.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable
from math import inf
from typing import Final

from tests.worlds.scale.shapes import Edge

from chappe.core import Close, Deliver, Dial, Effect, Flush
from chappe.defaults import MESH_PORT
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.links.dialling import ONCE
from chappe.mesh.messages import (
    COMMAND,
    CONFIRM,
    DATA,
    FORGET,
    LINK_STATE,
    LINK_STATES_HAD,
    LOSS,
    PING,
    PONG,
    TREE,
)

LATENCY_S: Final = 0.005  # from one end of a link to the other
MESSAGES: Final = "messages"
LOSSES: Final = "losses"
TREES: Final = "trees"
CONFIRMATIONS: Final = "confirmations"
LINK_STATES: Final = "link states"
LISTS: Final = "lists"
HANDSHAKES: Final = "handshakes"
PINGS: Final = "pings"
WITH_TIME: Final = frozenset({PINGS, LISTS})  # kinds that are sent now and then, whether something happens or not

_WHOLE: Final = {
    LINK_STATE: LINK_STATES,
    LINK_STATES_HAD: LISTS,
    PING: PINGS,
    PONG: PINGS,
    TREE: TREES,
    FORGET: TREES,
    CONFIRM: CONFIRMATIONS,
}
_PUBLISHED: Final = {DATA: MESSAGES, COMMAND: MESSAGES, LOSS: LOSSES}  # by the lower half; the other is the version's
_KIND_AT: Final = 36  # of a frame, after its length, sender and receiver
_ID_FIRST: Final = 0x40  # of all ids: so the first byte of a body tells a greeting's type from a sender
_TAKE_BYTES: Final = 1 << 40


def id_of(number: int) -> bytes:
    """Return the id of an endpoint: they are in the order of the numbers."""
    return bytes((_ID_FIRST,)) + number.to_bytes(15)


def kind_of(frame: bytes) -> str:
    """Return what a frame is counted as."""
    if frame[4] < _ID_FIRST:
        return HANDSHAKES
    kind = frame[_KIND_AT]
    return _WHOLE.get(kind) or _PUBLISHED.get(kind & 0x0F) or f"type {kind:#x}"


class Network:
    """Endpoints 0, 1, 2, ... and the links between them."""

    def __init__(self, count: int) -> None:
        self.now = 0.0
        options = EndpointOptions()
        self.ids = [id_of(each) for each in range(count)]
        self.cores = [EndpointCore(own_id, options, 0.0) for own_id in self.ids]
        self.frames: Counter[str] = Counter()  # written, by kind
        self.bytes: Counter[str] = Counter()
        self.delivered = [0] * count  # messages, to subscribers of each endpoint
        self.changed_at = 0.0  # when an endpoint last drew a consequence of news about the network
        self.written_at = 0.0  # the last frame but those that come with time
        self._settled = [0] * count
        self._ends: list[int] = []  # by connection: whose it is; the other end's number differs in the last bit
        self._links: list[int] = []  # by end: the number that its endpoint has for the connection
        self._end_at: dict[tuple[int, int], int] = {}  # by host and that number: the end
        self._open: dict[Edge, int] = {}  # the connection of a link, the dialling end's
        self._way: deque[tuple[float, int, list[bytes]]] = deque()  # what is under way: when it arrives, and where
        self._last: dict[int, tuple[float, list[bytes]]] = {}  # by connection: what was written to it last
        self._dials: deque[tuple[float, int, Dial]] = deque()
        self._timers: list[tuple[float, int]] = []
        self._armed = [inf] * count

    # -- what users do ----------------------------------------------------------------------------

    def connect(self, edges: Iterable[Edge]) -> None:
        """Have the first of each pair peer with the second, all of them at once."""
        for one, two in edges:
            self._do(one, self.cores[one].peer(str(two), MESH_PORT, ONCE, two, self.now))

    def cut(self, edge: Edge) -> None:
        """End a link; both ends notice at once."""
        conn = self._open.pop(edge)
        for end in (conn, conn ^ 1):
            host = self._ends[end]
            self._ends[end] = -1
            self._do(host, self.cores[host].handle_gone(self._links[end], "the link was cut", self.now))

    def subscribe(self, host: int, topic: bytes) -> None:
        """Want a topic."""
        self._do(host, self.cores[host].subscribe(1, [topic], now=self.now))

    def unsubscribe(self, host: int, topic: bytes) -> None:
        """Want a topic no longer."""
        self._do(host, self.cores[host].unsubscribe(1, [topic], self.now))

    def publish(self, host: int, topic: bytes, payload: bytes) -> None:
        """Publish a message."""
        self._do(host, self.cores[host].publish(topic, payload, now=self.now))

    def connections(self, host: int) -> dict[int, bytes]:
        """The connections of an endpoint, each with the id at its other end."""
        return {self._links[conn]: self.ids[self._ends[conn ^ 1]] for conn, at in enumerate(self._ends) if at == host}

    # -- time -------------------------------------------------------------------------------------

    def run(self, until: float) -> None:
        """Let everything happen that is due up to ``until``."""
        way, dials, timers = self._way, self._dials, self._timers
        while True:
            arrival = way[0][0] if way else inf
            dial = dials[0][0] if dials else inf
            timer = timers[0][0] if timers else inf
            when = min(arrival, dial, timer)
            if when > until:
                break
            self.now = max(self.now, when)
            if arrival == when:
                self._arrive()
            elif dial == when:
                self._answer(*dials.popleft()[1:])
            else:
                self._wake(*heapq.heappop(timers))
        self.now = until

    def finish(self, quiet_s: float) -> None:
        """Let time pass until for ``quiet_s`` nothing was written but what comes with time."""
        self.written_at = self.now
        while self.now < self.written_at + quiet_s:
            self.run(self.written_at + quiet_s)

    def settle(self, quiet_s: float, max_s: float = 600.0) -> float:
        """Let time pass until no endpoint has learned anything for ``quiet_s``; returns when the last one did."""
        began = self.changed_at = self.now
        while self.now < self.changed_at + quiet_s:
            if self.now > began + max_s:
                raise RuntimeError(f"the network is not settled after {max_s} virtual seconds")
            self.run(self.changed_at + quiet_s)
        return self.changed_at - began

    def disagreement(self) -> str | None:
        """Who knows less of the network than there is; None if all agree."""
        everybody = set(self.ids)
        wanted = {own_id: core.router.subscriptions.filter for own_id, core in zip(self.ids, self.cores, strict=True)}
        for host, core in enumerate(self.cores):
            filters = core.filters()
            if filters.keys() != everybody - {self.ids[host]}:
                return f"endpoint {host} reaches {len(filters)} of {len(everybody) - 1} others"
            wrong = sum(filters[each] != wanted[each] for each in filters)
            if wrong:
                return f"endpoint {host} has a wrong filter of {wrong} others"
        return None

    # -- inside -----------------------------------------------------------------------------------

    def _do(self, host: int, actions: Iterable[Effect]) -> None:
        for action in actions:
            if isinstance(action, Flush):
                self._write(host, self._end_at[host, action.link])
            elif isinstance(action, Deliver):
                self.delivered[host] += len(action.messages)
            elif isinstance(action, Dial):
                self._dials.append((self.now + LATENCY_S, host, action))
            elif isinstance(action, Close):
                raise RuntimeError(f"endpoint {host} ends a link: {action.reason}")
        core = self.cores[host]
        settled = core.router.settled
        if settled != self._settled[host]:
            self._settled[host] = settled
            self.changed_at = self.now
        due = max(core.next_timeout(), self.now)
        if due < self._armed[host]:
            self._armed[host] = due
            heapq.heappush(self._timers, (due, host))

    def _write(self, host: int, conn: int) -> None:
        frames = self.cores[host].take(self._links[conn], _TAKE_BYTES)
        if not frames or self._ends[conn] < 0:
            return
        for frame in frames:
            kind = kind_of(frame)
            self.frames[kind] += 1
            self.bytes[kind] += len(frame)
            if kind not in WITH_TIME:
                self.written_at = self.now
        arrival = self.now + LATENCY_S
        last = self._last.get(conn)
        if last is not None and last[0] == arrival:
            last[1].extend(frames)
            return
        self._last[conn] = arrival, frames
        self._way.append((arrival, conn, frames))

    def _arrive(self) -> None:
        when, conn, frames = self._way.popleft()
        if self._last.get(conn, (0.0, frames))[1] is frames:
            del self._last[conn]
        end = conn ^ 1
        host = self._ends[end]
        if host < 0:
            return
        core, link = self.cores[host], self._links[end]
        at = 0
        while at < len(frames):
            upto = at + core.messages_max(link)
            self._do(host, core.handle_frames(link, [frame[4:] for frame in frames[at:upto]], when))
            at = upto

    def _answer(self, host: int, dial: Dial) -> None:
        """Somebody who was dialled takes the connection."""
        other = int(dial.address[0])
        conn = len(self._ends)
        self._ends += [host, other]
        self._open[host, other] = conn
        self._links += [dial.link, conn + 1]
        self._end_at[host, dial.link], self._end_at[other, conn + 1] = conn, conn + 1
        self._do(other, self.cores[other].handle_link(conn + 1, (str(host), MESH_PORT), self.now))
        self._do(host, self.cores[host].handle_link(dial.link, dial.address, self.now))

    def _wake(self, due: float, host: int) -> None:
        if self._armed[host] != due:
            return
        self._armed[host] = inf
        self._do(host, self.cores[host].handle_timeout(self.now))
