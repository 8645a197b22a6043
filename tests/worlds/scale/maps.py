"""Tens of thousands of clients of one shared map, without faults but the death of a server: ``python -m
tests.worlds.scale.maps``.

Two servers of a pair and their clients are real cores. The clock jumps, and a message takes a fixed time. What a server
does takes time too: each message that it takes or sends so much. So it is seen whether a crowd keeps a server from what
is due, and how long everybody waits.
"""

from __future__ import annotations

import argparse
import heapq
import resource
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from typing import Any, Final

from chappe.core import Close, Dial, Effect, Publish, Reply, Report, Resolve, Send, Subscribe
from chappe.errors import ProtocolError
from chappe.kv.chp.client import MapClientCore
from chappe.kv.chp.messages import HUGZ, session_of
from chappe.kv.chp.pair import PairedMapServer
from chappe.kv.chp.server import PEER
from chappe.kv.chp.stream import MARK, Step
from chappe.replication.binary_star.messages import BACKUP, PARTNER, PRIMARY

CLIENTS: Final = 30_000
LATENCY_S: Final = 0.001  # of a message
MESSAGE_S: Final = 0.000_03  # of a server's time, for each message that it takes or sends; measured
DRAIN_MAX: Final = 256  # messages that a server takes before it looks at what is due, as its node
SERVERS: Final = ("primary", "backup")
ANSWER_S: Final = 300.0  # of the world: nothing that is waited for takes so long
_WALL_NS: Final = 1_795_222_000 * 10**9


class Server:
    """One server of the pair: it does one thing after the other, and each takes time."""

    def __init__(self, world: World, place: int) -> None:
        self.world = world
        self.place = place
        self.up = True
        self.offered: Counter[bytes] = Counter()  # messages to clients, by kind
        self.most_bytes = 0  # under way to all clients
        self._inbox: deque[Callable[[], Sequence[Any]]] = deque()
        self._free_at = 0.0  # what it does now is done then
        self._turn_at = inf
        self.core = PairedMapServer(
            (PRIMARY, BACKUP)[place], world.random(16), pair=b"", now=world.now, clock=world,
        )  # fmt: skip

    def start(self) -> None:
        """Begin."""
        self._inbox.append(lambda: self.core.start(self.world.now))
        self.wake(self.world.now)

    def take(self, handle: Callable[[], Sequence[Any]]) -> None:
        """Something has come."""
        if self.up:
            self._inbox.append(handle)
            self.wake(self.world.now)

    def wake(self, at: float) -> None:
        """Have it go on then, or when it is free."""
        at = max(at, self._free_at)
        if at < self._turn_at:
            self._turn_at = at
            self.world.at(at, self._turn)

    def _turn(self) -> None:
        world, core = self.world, self.core
        if not self.up or world.now < self._turn_at:
            return
        self._turn_at = inf
        took = sent = 0
        while self._inbox and took < DRAIN_MAX:
            took += 1
            try:
                sent += self._carry_out(self._inbox.popleft()())
            except ProtocolError as error:
                world.faults.append(f"{SERVERS[self.place]} got what it does not understand: {error}")
        if core.next_timeout() <= world.now:
            sent += self._carry_out(core.handle_timeout(world.now))
        sent += self._carry_out(core.flush(world.now))
        self.most_bytes = max(self.most_bytes, core.under_way)
        self._free_at = world.now + world.message_s * (took + sent)
        self.wake(self._free_at if self._inbox else core.next_timeout())

    def _carry_out(self, effects: Sequence[Effect]) -> int:
        """Do these; how many messages that are sent."""
        world, sent = self.world, 0
        for effect in effects:
            if isinstance(effect, Reply):
                sent += len(effect.message)
                for frames in effect.message:
                    self.offered[frames[1][:2] if frames[0] == MARK else b""] += 1
                world.answer(self, effect.to, effect.message)
            elif isinstance(effect, Publish):
                sent += 1  # one, for all subscribers: the rest is done by ZeroMQ's thread
                world.publish(self, effect.message)
            elif isinstance(effect, Send) and effect.to == PARTNER:
                world.tell(1 - self.place, effect.message.beat)
            elif isinstance(effect, Report):
                world.told[type(effect.event).__name__] += 1
            elif isinstance(effect, (Send, Subscribe, Dial)):
                world.ask(effect, self)
            elif not isinstance(effect, Close):
                world.faults.append(f"a server wants {effect!r}")
        return sent


class Client:
    """One client of both."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.lost = 0  # servers
        self.confirmed = 0  # writes
        self._due_at = inf
        session = session_of(number.to_bytes(10, "big"))
        self.core = MapClientCore(SERVERS, (b"",), session, world)

    def start(self) -> None:
        """Begin."""
        self.act(self.core.start(self.world.now))

    def act(self, effects: Sequence[Effect]) -> None:
        """Carry out effects, and what follows from them."""
        world = self.world
        for effect in (*effects, *self.core.flush(world.now)):
            if isinstance(effect, (Send, Subscribe, Dial)):
                world.ask(effect, self)
            elif isinstance(effect, Resolve):
                self.confirmed += effect.outcome is True
            elif isinstance(effect, Report):
                name = type(effect.event).__name__
                world.told[name] += 1
                self.lost += name == "MapServerLost"
        due = self.core.next_timeout()
        if due < self._due_at:
            self._due_at = due
            world.at(due, self._look)

    def _look(self) -> None:
        """Do what is due, if nothing has put it off."""
        if self.world.now < self._due_at:
            return
        self._due_at = inf
        due = self.core.next_timeout() <= self.world.now
        self.act(self.core.handle_timeout(self.world.now) if due else ())


@dataclass(frozen=True, slots=True)
class Phase:
    """How long something took all clients, in the world; what the servers sent for it, and what it cost in earnest."""

    name: str
    seconds: float
    messages: int
    beats: int
    lost: int  # servers, by clients
    cpu_us: float  # of this process, for each client
    most_bytes: int  # under way to all clients of one server


@dataclass
class World:
    """The clock and the network."""

    clients_count: int
    message_s: float = MESSAGE_S
    now: float = 100.0
    told: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    heard: int = 0  # what is published, by all who hear it

    def __post_init__(self) -> None:
        self._numbers = count(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._subscribers: list[dict[Client | Server, set[bytes]]] = [{}, {}]
        self.servers = [Server(self, 0), Server(self, 1)]
        self.clients = [Client(self, number) for number in range(self.clients_count)]
        for each in self.servers:
            each.start()
        self.run(lambda: self.servers[0].core.active, LATENCY_S)

    def wall_ns(self) -> int:
        """As ``core.Clock``."""
        return _WALL_NS + int(self.now * 1e9)

    def random(self, size: int) -> bytes:
        """Bytes that come only once."""
        return next(self._numbers).to_bytes(size, "big")

    def at(self, instant: float, do: Callable[[], None]) -> None:
        """Have it done then."""
        if instant < inf:
            heapq.heappush(self._events, (max(instant, self.now), next(self._numbers), do))

    def run(self, until: Callable[[], bool], look_s: float = 0.05, most_s: float = ANSWER_S) -> float:
        """Let time pass until something is so; how long that took."""
        began = self.now
        look_at = began
        while True:
            if self.now >= look_at:
                if until():
                    return self.now - began
                look_at = self.now + look_s
            if self.now > began + most_s or not self._events:
                raise AssertionError(f"not so after {self.now - began:.1f} s: {self.faults[:3]}")
            self.now, _, do = heapq.heappop(self._events)
            do()

    # -- the network ---------------------------------------------------------------------------------------------------

    def _later(self, do: Callable[[], None]) -> None:
        self.at(self.now + LATENCY_S, do)

    def ask(self, effect: Send | Subscribe | Dial, source: Client | Server) -> None:
        """A client, or a passive server, says something to a server."""
        if isinstance(effect, Dial):
            return
        place = effect.to if isinstance(source, Client) else 1 - source.place
        server = self.servers[place]
        name = source.number.to_bytes(4, "big") if isinstance(source, Client) else b"peer"
        if isinstance(effect, Subscribe):
            prefixes = self._subscribers[place].setdefault(source, set())
            (prefixes.add if effect.on else prefixes.discard)(effect.prefix)
            prefix, on = effect.prefix, effect.on
            self._later(lambda: server.take(lambda: server.core.handle_subscription(prefix, on, self.now)))
        else:
            frames = effect.message
            self._later(lambda: server.take(lambda: server.core.handle_request(name, frames, self.now)))

    def answer(self, server: Server, name: bytes, messages: Sequence[list[bytes]]) -> None:
        """A server says something to one who asked."""
        place = server.place

        def deliver() -> None:
            if name == b"peer":
                other = self.servers[1 - place]
                for frames in messages:
                    other.take(partial(self._peer_answer, other, frames))
                return
            client = self.clients[int.from_bytes(name, "big")]
            for frames in messages:
                client.act(client.core.handle_answer(place, frames, self.now))

        self._later(deliver)

    def publish(self, server: Server, frames: list[bytes]) -> None:
        """A server says something to all who have subscribed."""
        place, key = server.place, frames[0]

        def deliver() -> None:
            for each, prefixes in self._subscribers[place].items():
                if (key in prefixes or b"" in prefixes) if key == HUGZ else any(map(key.startswith, prefixes)):
                    self.heard += 1
                    if isinstance(each, Client):
                        each.act(each.core.handle_message(place, frames, self.now))
                    else:
                        each.take(partial(self._peer_publication, each, frames))

        self._later(deliver)

    def _peer_answer(self, server: Server, frames: list[bytes]) -> Sequence[Any]:
        return server.core.handle_answer(PEER, frames, self.now)

    def _peer_publication(self, server: Server, frames: list[bytes]) -> Sequence[Any]:
        return server.core.handle_message(PEER, frames, self.now)

    def tell(self, place: int, beat: bytes) -> None:
        """A server tells the other one of itself."""
        server = self.servers[place]
        self._later(lambda: server.take(lambda: server.core.handle_message(PARTNER, [beat], self.now)))

    # -- what happens --------------------------------------------------------------------------------------------------

    def phase(self, name: str, begin: Callable[[], None], until: Callable[[], bool]) -> Phase:
        """Have something done, and see when it is so for all."""
        sent, heard, lost = self._sent(), self.heard, sum([each.lost for each in self.clients])
        for each in self.servers:
            each.most_bytes = 0
        cpu_s = time.process_time()
        begin()
        seconds = self.run(until)
        cpu_s = time.process_time() - cpu_s
        return Phase(
            name, seconds, self._sent() - sent, self.heard - heard,
            sum([each.lost for each in self.clients]) - lost, 1e6 * cpu_s / len(self.clients),
            max([each.most_bytes for each in self.servers]),
        )  # fmt: skip

    def _sent(self) -> int:
        return sum([each.offered.total() for each in self.servers])

    def follow(self, place: int) -> bool:
        """Whether all clients follow this server."""
        return all(each.core.server == SERVERS[place] for each in self.clients)

    def have(self, key: str, value: bytes) -> bool:
        """Whether all clients have a value."""
        found = (each.core.engine.find(key) for each in self.clients)
        return all(entry is not None and entry.value[0] == value for entry in found)  # type: ignore[index]

    def set(self, key: bytes, value: bytes) -> None:
        """The first client writes."""
        writer = self.clients[0]
        writer.act(writer.core.write(Step(((key, value, 0, b""),)), next(self._numbers), self.now))

    def fill(self, keys: int) -> None:
        """The first client writes so many keys, while the others are not there yet."""
        writer = self.clients[0]
        writer.start()
        self.run(lambda: writer.core.server is not None)
        for number in range(keys):
            self.set(b"/%d" % number, b"value")
        self.run(lambda: writer.core.pending == 0)

    def join(self) -> None:
        """All others come."""
        for each in self.clients[1:]:
            each.start()

    def wrong(self) -> list[str]:
        """What is wrong with servers and clients at the end."""
        found = list(self.faults)
        contents = self.clients[0].core.engine.items()
        expected = {each.key: each.value for each in contents}
        for server in self.servers:
            if server.up:
                found += server.core.invariants()
                if {each.key: each.value for each in server.core.engine.items()} != expected:
                    found.append(f"{SERVERS[server.place]} has something else than the first client")
        for client in self.clients:
            if {each.key: each.value for each in client.core.engine.items()} != expected:
                found.append(f"client {client.number} has something else than the first one")
        return found


def play(clients: int, keys: int = 20, updates: int = 3, message_s: float = MESSAGE_S) -> tuple[World, list[Phase]]:
    """All join at once; all are told of some updates; the active server dies, and all follow the other one."""
    world = World(clients, message_s)
    world.fill(keys)
    phases = [world.phase("all join at once", world.join, lambda: world.follow(0))]
    for number in range(updates):
        value = b"%d" % number
        phases.append(
            world.phase("an update", lambda: world.set(b"/last", value), lambda: world.have("/last", value))  # noqa: B023
        )
    until = world.now + 5.0
    phases.append(world.phase("5 s without anything", lambda: None, lambda: world.now >= until))

    def die() -> None:
        world.servers[0].up = False

    phases.append(world.phase("the active server dies", die, lambda: world.follow(1)))
    phases.append(
        world.phase("a late update", lambda: world.set(b"/last", b"late"), lambda: world.have("/last", b"late"))
    )
    return world, phases


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.scale.maps", description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS, metavar="N")
    parser.add_argument("--keys", type=int, default=20, metavar="N", help="in the map before they join")
    options = parser.parse_args(arguments)
    world, phases = play(options.clients, options.keys)
    print("| what happens | s of the world | messages for each client | HUGZ for each | servers lost | us for each "
          "| under way, KiB |\n|---|---|---|---|---|---|---|")  # fmt: skip
    for each in phases:
        messages, beats = each.messages / options.clients, each.beats / options.clients
        print(f"| {each.name} | {each.seconds:.2f} | {messages:.1f} | {beats:.1f} | {each.lost:,} "
              f"| {each.cpu_us:,.0f} | {each.most_bytes / 1024:,.0f} |")  # fmt: skip
    wrong = world.wrong()
    for text in wrong[:10]:
        print(text, file=sys.stderr)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{options.clients:,} clients, {memory:,.0f} MiB, {time.process_time():.1f} s of the processor", file=sys.stderr
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
