"""The servers of a pair, their witness, and clients, in a world."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from tests.worlds.backends import SimBackend
from tests.worlds.clocked import ClockedHost
from tests.worlds.clocked import Deliver as Arrive

from chappe.core import (
    Ask,
    Close,
    Deliver,
    Dial,
    Effect,
    Flush,
    Persist,
    Publish,
    Reply,
    Report,
    Resolve,
    Send,
    Subscribe,
)
from chappe.errors import ChappeError, StorageError, StorageFull
from chappe.kv.backend import Commit
from chappe.kv.chp.client import MapClientCore, PlainWrite
from chappe.kv.chp.messages import HUGZ
from chappe.kv.chp.pair import PairedMapServer
from chappe.kv.chp.server import PEER, UPDATES
from chappe.kv.chp.sessions import SESSION
from chappe.kv.chp.stream import MARK, Step, Welcome, from_server
from chappe.replication.binary_star.messages import BACKUP, PARTNER, PRIMARY, WITNESS, PairMemory, PartnerBeat
from chappe.replication.binary_star.witness import PairRecord, WitnessCore

SERVERS: Final = ("server0", "server1")
PAIR: Final = b"pair"
SUBSCRIBED_S: Final = 0.05  # so long after a server began its subscribers have found it
COMMITS_S: Final = (0.000_5, 0.005, 0.05)


class MapHost(ClockedHost):
    """A server or a client, and the servers that it follows."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.ahead_s = world.rng.random() * 1_000
        self.core: Any = None
        self.prefixes: list[list[bytes]] = []
        self.servers: tuple[str, ...] = ()
        self.connections: list[int] = []
        self.table = {
            Report: self._report, Subscribe: self._subscribe, Send: self._send_to, Dial: self._dial,
        }  # fmt: skip

    def due(self) -> float:
        """When the core wants to be called, on the world's clock."""
        return self.in_world(self.core.next_timeout())

    def handle_due(self) -> None:
        """Have it do what is due."""
        if self.now >= self.core.next_timeout():
            self.call(self.core.handle_timeout, self.now)

    def call(self, method: Callable[..., Sequence[Any]], *args: object, **options: object) -> None:
        """Make one call into the core, carry out its answer, and what follows from it."""
        super().call(method, *args, **options)
        if self.alive:
            super().call(self.core.flush, self.now)
            for found in self.core.invariants() if hasattr(self.core, "invariants") else ():
                self.world.fail("invariants", f"{self.name}: {found}")

    def _report(self, action: Report) -> None:
        self.world.trace(self, "%s", action.event)

    # -- following servers

    def follow(self, servers: tuple[str, ...]) -> None:
        """Know these servers."""
        self.servers = servers
        self.prefixes = [[] for _ in servers]
        self.connections = [0] * len(servers)

    def _subscribe(self, effect: Subscribe) -> None:
        had = self.prefixes[effect.to]
        (had.append if effect.on else had.remove)(effect.prefix)
        self._subscribe_at(self.servers[effect.to], effect.prefix, effect.on)

    def _subscribe_at(self, server: str, prefix: bytes, on: bool) -> None:
        def deliver(host: Any) -> None:
            host.call(host.core.handle_subscription, prefix, on, host.now)

        self.world.lines.send(self.name, server, Subscribe, deliver)

    def listen_again(self, server: str) -> None:
        """The connection broke by which it listens: the next one says what it wants."""
        for prefix in self.prefixes[self.servers.index(server)]:
            self._subscribe_at(server, prefix, True)

    def _send_to(self, effect: Send) -> None:
        client, place, frames = self.name, effect.to, effect.message
        number = self.connections[place]

        def deliver(host: Any) -> None:
            if host.core.active:
                self.world.heard[client] = self.world.now
            host.call(host.core.handle_request, f"{client}/{place}/{number}/{host.life}".encode(), frames, host.now)

        self.world.lines.send(client, self.servers[place], Send, deliver, kept=True)

    def reconnect(self, server: str) -> None:
        """A connection broke, with what was on it: the next one is another client to the server."""
        if server in self.servers:
            self.connections[self.servers.index(server)] += 1

    def _dial(self, effect: Dial) -> None:
        self.connections[effect.link] += 1

    def published(self, place: int, frames: list[bytes]) -> None:
        """A server has published something."""

    def answered(self, place: int, frames: list[bytes]) -> None:
        """A server has sent something to this host alone."""


class _Box:
    """What waits for one client of a server."""

    def __init__(self) -> None:
        self.messages: deque[list[bytes]] = deque()
        self.ask = False
        self.waits = False  # for room


class ServerHost(MapHost):
    """One server of the pair."""

    def __init__(self, world: Any, name: str, backend: SimBackend | None) -> None:
        super().__init__(world, name)
        self.life = world.next_life()
        self.backend = backend
        self._boxes: dict[bytes, _Box] = {}
        self._sessions: set[ClientHost] = set()  # that live and have session values here
        place = SERVERS.index(name)
        self.follow((SERVERS[1 - place],))
        self.core = PairedMapServer(
            (PRIMARY, BACKUP)[place], world.random(16), pair=PAIR, loaded=None if backend is None else backend.load(),
            limits=world.limits, witness=WITNESS if world.witnessed else "", now=self.now, clock=world.clock,
        )  # fmt: skip
        self.table |= {
            Reply: self._reply, Flush: self._flush, Close: self._close, Publish: self._publish,
            Persist: self._commit, Ask: self._claim,
        }  # fmt: skip

    def start(self) -> None:
        """Begin; who has subscribed finds it again."""
        self.call(self.core.start, self.now)
        self.world.clock.after(SUBSCRIBED_S, self._found)
        self.world.lines.begun(self.name)

    def call(self, method: Callable[..., Sequence[Any]], *args: object, **options: object) -> None:
        """Make one call into the core; tell the world whose session values it has ended."""
        super().call(method, *args, **options)
        if self.world.sessions and self.alive:
            values = self.core.ledger.session_values if self.core.active else None
            clients = self.world.alive(ClientHost) if values is not None else []
            now = {each for each in clients if values is not None and values.has(each.core.session)}
            for client in self._sessions.intersection(clients) - now:
                self.world.see("on_session_ended", self, client)
            self._sessions = now

    def _found(self) -> None:
        for host in self.world.alive(MapHost):
            for place, server in enumerate(host.servers):
                for prefix in host.prefixes[place] if server == self.name else ():
                    self.call(self.core.handle_subscription, prefix, True, self.now)

    def _reply(self, effect: Reply) -> None:
        box = self._boxes.setdefault(effect.to, _Box())
        box.messages += effect.message
        if not box.waits:
            self._send(effect.to, box)

    def _flush(self, effect: Flush) -> None:
        box = self._boxes.get(effect.link)
        if box is not None:
            box.ask = True
        else:
            self.world.clock.after(0.001, self._call_soon, "handle_taken", effect.link)

    def _close(self, effect: Close) -> None:
        self._boxes.pop(effect.link, None)

    def _send(self, client: bytes, box: _Box) -> None:
        """Send what waits for a client, unless it takes nothing just now."""
        if not self.alive or self._boxes.get(client) is not box:
            return
        name, place, number, life = client.decode().split("/")
        if int(life) != self.life or name not in self.world.hosts or not self.world.hosts[name].alive:
            self.world.failed[Reply] += 1
            del self._boxes[client]
            self.world.clock.after(0.0, self._call_soon, "handle_gone", client)
            return
        until = self.world.stuffed.get((self.name, name), 0.0)
        box.waits = until > self.world.now
        if box.waits:
            self.world.failed[Reply] += 1
            self.world.clock.at(until, self._send, client, box)
            return
        del self._boxes[client]
        for frames in box.messages:
            self.world.lines.send(self.name, name, Reply, self._answer(int(place), int(number), frames))
        if box.ask:
            self.world.clock.after(0.001, self._call_soon, "handle_taken", client)

    def _call_soon(self, method: str, client: bytes) -> None:
        if self.alive:
            self.take(lambda host: host.call(getattr(host.core, method), client, host.now))

    def _answer(self, place: int, number: int, frames: list[bytes]) -> Arrive:
        life = self.life

        def deliver(host: Any) -> None:
            server = self.world.hosts[host.servers[place]]
            if host.connections[place] == number and server.life == life:
                host.answered(place, frames)

        return deliver

    def _publish(self, effect: Publish) -> None:
        frames = effect.message
        for host in self.world.alive(MapHost):
            for place, server in enumerate(host.servers):
                if server == self.name and any(frames[0].startswith(each) for each in host.prefixes[place]):
                    self.world.lines.send(self.name, host.name, Publish, _publication(place, frames))

    def _send_to(self, effect: Send) -> None:
        if effect.to != PARTNER:
            super()._send_to(effect)
            return
        beat = effect.message.beat

        def deliver(host: Any) -> None:
            host.call(host.core.handle_message, PARTNER, [beat], host.now)

        self.world.lines.send(self.name, self.servers[0], PartnerBeat, deliver)

    def _claim(self, effect: Ask) -> None:
        source, life, payload = self.name, self.life, effect.request
        self.world.lines.send(source, WITNESS, Ask, lambda host: host.claim(source, life, payload), kept=True)

    def _commit(self, effect: Persist) -> None:
        self.world.clock.after(self.world.commit_s * self.world.rng.random(), self._committed, effect.job)

    def _committed(self, commit: Commit) -> None:
        if not self.alive:
            return
        until = self.world.stalled.get(self.name, 0.0)
        if self.world.now < until:
            self.world.clock.at(until, self._committed, commit)
            return
        assert self.backend is not None
        error: StorageError | None = None
        try:
            self.backend.commit(commit.operations)
        except StorageFull as problem:
            error = problem
            self.world.failed[Commit if commit.number > 0 else PairMemory] += 1

        def deliver(host: Any) -> None:
            host.call(host.core.handle_done, commit, error, host.now)

        self.take(deliver)

    def published(self, place: int, frames: list[bytes]) -> None:
        """The other server has published something."""
        self.call(self.core.handle_message, PEER, frames, self.now)

    def answered(self, place: int, frames: list[bytes]) -> None:
        """The other server has answered."""
        self.call(self.core.handle_answer, PEER, frames, self.now)


def _publication(place: int, frames: list[bytes]) -> Arrive:
    return lambda host: host.published(place, frames)


class WitnessHost(MapHost):
    """The witness; what it has granted lasts. A claim waits until what the one before it changed is on disk."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.life = world.next_life()
        self.core = WitnessCore(world.granted)
        self.table = {Report: self._report}
        self._claims: deque[tuple[str, int, bytes]] = deque()
        self._keeping: PairRecord | None = None

    def start(self) -> None:
        """What servers have asked meanwhile comes."""
        self.world.lines.begun(self.name)

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """What was on its way to the disk may be there."""
        super().die(goodbye=goodbye, notice_s=notice_s)
        keep = self._keeping
        if keep is not None:
            self.world.failed[PairRecord] += 1
            if self.world.rng.random() < 0.5:
                self.world.granted[keep.pair] = keep.held

    def due(self) -> float:
        """It has no time of its own."""
        return inf

    def claim(self, server: str, life: int, payload: bytes) -> None:
        """A server claims."""
        self._claims.append((server, life, payload))
        self._go_on()

    def _go_on(self) -> None:
        while self._claims and self._keeping is None:
            server, life, payload = self._claims.popleft()
            self._carry_out(server, life, self.core.handle_request(server.encode(), payload, self.now))

    def _carry_out(self, server: str, life: int, actions: Sequence[Effect]) -> None:
        for place, action in enumerate(actions):
            if isinstance(action, Persist):
                self._keeping = action.job
                seconds = self.world.commit_s * self.world.rng.random()
                self.world.clock.after(seconds, self._kept, action.job, server, life, actions[place + 1 :])
                return
            if isinstance(action, Reply):
                self._reply(server, life, action.message)
            else:
                self.table[Report](action)

    def _kept(self, job: PairRecord, server: str, life: int, rest: Sequence[Effect]) -> None:
        if not self.alive:
            return
        self._keeping = None
        if self.world.witness_full:
            self.world.failed[PairRecord] += 1
            self.core.handle_done(job, StorageError("no space left on device"), self.now)
        else:
            self.world.granted[job.pair] = job.held
            self._carry_out(server, life, rest)
        self._go_on()

    def _reply(self, server: str, life: int, payload: bytes) -> None:
        def deliver(host: Any) -> None:
            if host.life == life:
                host.call(host.core.handle_answer, WITNESS, [payload], host.now)

        self.world.lines.send(self.name, server, Reply, deliver)


@dataclass
class Written:
    """One step of a client, and what became of it."""

    key: bytes
    value: bytes
    expected: bytes | None
    outcome: bool | ChappeError | None = None
    plain: bool = False  # it was written in the Guide's way, which promises nothing


class ClientHost(MapHost):
    """A client of both servers, which writes."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.life = world.next_life()
        self.follow(SERVERS)
        self.core = MapClientCore(SERVERS, (b"",), world.random(10), world.clock, limits=world.limits)
        self.core.watched = True
        self.shown: dict[bytes, bytes] = {}  # what who watches has been told
        self.written: dict[int, Written] = {}
        self.session_keys: set[bytes] = set()  # that were confirmed
        self._session_writes: dict[int, bytes] = {}
        self._tickets = 0
        self.table |= {Resolve: self._resolve, Deliver: self._told, Publish: self._write}

    def start(self) -> None:
        """Begin."""
        self.call(self.core.start, self.now)

    def write(self, key: bytes, value: bytes, *, compare: bool = False) -> None:
        """Set a key; ``compare``: if it has not changed."""
        if self.frozen or not self.core.room:
            return
        self._tickets += 1
        entry = self.core.engine.find(key.decode())
        expected = (b"" if entry is None else entry.value[0]) if compare else None
        self.written[self._tickets] = self.world.noted(Written(key, value, expected))
        step = Step(((key, value, 0, b""),), () if expected is None else ((key, expected),))
        self.call(self.core.write, step, self._tickets, self.now)

    def write_session(self, key: bytes) -> None:
        """Set a key that ends with this client."""
        if self.frozen or not self.core.room:
            return
        self._tickets += 1
        self._session_writes[self._tickets] = key
        self.call(self.core.write, Step(((key, b"here", 0, SESSION),)), self._tickets, self.now)

    def _resolve(self, effect: Resolve) -> None:
        key = self._session_writes.pop(effect.ticket, None)
        if key is not None:
            if effect.outcome is True:
                self.session_keys.add(key)
            return
        written = self.written.pop(effect.ticket)
        written.outcome = effect.outcome
        self.world.see("on_outcome", self, written)

    def _write(self, effect: Publish) -> None:
        """It has not heard that its server is one of chappe: it writes as the Guide's clients do, to both."""
        frames = effect.message.frames
        for written in self.written.values():
            if (written.key, written.value) == (frames[0], frames[4]):
                written.plain = True

        def deliver(host: Any) -> None:
            host.call(host.core.handle_message, UPDATES, frames, host.now)

        for server in self.servers:
            self.world.lines.send(self.name, server, PlainWrite, deliver)

    def _told(self, effect: Deliver) -> None:
        for change in effect.messages:
            if self.shown.get(change.key, b"") != change.before:
                self.world.fail("watches", f"{self.name} is told {change}, and knew {self.shown.get(change.key)!r}")
            if change.body:
                self.shown[change.key] = change.body
            else:
                del self.shown[change.key]

    def published(self, place: int, frames: list[bytes]) -> None:
        """A server has published something."""
        self.call(self.core.handle_message, place, frames, self.now)

    def answered(self, place: int, frames: list[bytes]) -> None:
        """A server has answered."""
        if frames[0] == MARK:
            message = from_server(frames)
            if isinstance(message, Welcome):
                self.world.see("on_welcome", self, self.servers[place], message.epoch)
        self.call(self.core.handle_answer, place, frames, self.now)


class GuideHost(ClientHost):
    """One that takes the servers for those of the Guide's model 6, as it does not hear that they are more."""

    def published(self, place: int, frames: list[bytes]) -> None:
        """A server has published something."""
        super().published(place, [HUGZ, frames[1], b"", b"", b""] if frames[0] == HUGZ else frames)
