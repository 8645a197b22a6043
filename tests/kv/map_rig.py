"""Servers and clients of a shared map, joined by a network that a test rules; the clock moves when it says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
from chappe.data.binary import decode
from chappe.errors import ProtocolError, StorageError
from chappe.kv.backend import ClearRows, Commit, EraseRow, ForgetWriter, Loaded, PutRow, WriterRow
from chappe.kv.chp.client import MapClientCore
from chappe.kv.chp.pair import PairedMapServer
from chappe.kv.chp.server import PEER, UPDATES, MapServerCore
from chappe.kv.chp.stream import Step
from chappe.limits import MAP_LIMITS, MapLimits
from chappe.replication.binary_star.messages import BACKUP, PARTNER, PRIMARY, WITNESS
from chappe.replication.binary_star.witness import WitnessCore

WALL_NS = 1_795_222_000 * 10**9


class Node:
    """What follows servers: a client, or a passive server."""

    def __init__(self, rig: Rig, name: str, servers: list[str]) -> None:
        self.rig, self.name, self.servers = rig, name, servers
        self.connections = [0] * len(servers)
        self.prefixes: list[list[bytes]] = [[] for _ in servers]
        self.reports: list[object] = []
        self.up = True

    def identity(self, place: int) -> bytes:
        return f"{self.name}/{place}/{self.connections[place]}".encode()

    def common(self, effect: Effect) -> None:
        rig = self.rig
        if isinstance(effect, Report):
            self.reports.append(effect.event)
        elif isinstance(effect, Send):
            rig.ask(self, effect.to, effect.message)
        elif isinstance(effect, Dial):
            self.connections[effect.link] += 1
        elif isinstance(effect, Subscribe):
            server = rig.nodes.get(self.servers[effect.to])
            had = self.prefixes[effect.to]
            (had.append if effect.on else had.remove)(effect.prefix)
            if isinstance(server, Server):
                rig.post(lambda: server.act(server.core.handle_subscription(effect.prefix, effect.on, rig.now)))
        else:
            raise NotImplementedError(effect)

    def published(self, place: int, frames: list[bytes]) -> None:
        raise NotImplementedError

    def answered(self, place: int, frames: list[bytes]) -> None:
        raise NotImplementedError

    def timeout(self) -> None:
        raise NotImplementedError


class Server(Node):
    """A server and its sockets, alone or one of a pair."""

    def __init__(self, rig: Rig, name: str, core: Any, peers: list[str]) -> None:
        super().__init__(rig, name, peers)
        self.core = core
        self.taking = True  # clients take what they are offered to be asked about
        self.sent: list[tuple[bytes, list[bytes]]] = []
        self.on_air: list[list[bytes]] = []
        self.commits: list[Commit] = []
        self.rows: dict[object, Any] = {}  # of a disk that does what it is asked
        self.disk = False

    def act(self, effects: Sequence[Effect]) -> None:
        if not self.up:
            return
        rig = self.rig
        for effect in [*effects, *self.core.flush(rig.now)]:
            if isinstance(effect, Reply):
                for message in effect.message:
                    self.sent.append((effect.to, message))
                    rig.answer(self, effect.to, message)
            elif isinstance(effect, Flush):
                if self.taking:
                    rig.post(partial(self.take_more, effect.link))
            elif isinstance(effect, Publish):
                self.on_air.append(effect.message)
                rig.publish(self, effect.message)
            elif isinstance(effect, Persist):
                self.commits.append(effect.job)
                if self.disk:
                    rig.post(self.commit_next)
            elif isinstance(effect, Send) and effect.to == PARTNER:
                rig.tell(self, effect.message.beat)
            elif isinstance(effect, Ask):
                rig.ask_witness(self, effect.request)
            elif not isinstance(effect, Close):  # nothing waits
                self.common(effect)

    def commit(self, error: StorageError | None = None) -> Commit:
        """The disk is done with the oldest commit."""
        commit = self.commits.pop(0)
        self.act(self.core.handle_done(commit, error, self.rig.now))
        self.rig.run()
        return commit

    def commit_next(self) -> None:
        if self.up and self.commits:
            commit = self.commits.pop(0)
            for operation in commit.operations:
                if isinstance(operation, ClearRows):
                    self.rows = {key: row for key, row in self.rows.items() if isinstance(row, WriterRow)}
                elif isinstance(operation, PutRow):
                    self.rows[operation.key] = (decode(operation.key), decode(operation.value), operation.expires_ns)
                elif isinstance(operation, EraseRow):
                    self.rows.pop(operation.key, None)
                elif isinstance(operation, ForgetWriter):
                    self.rows.pop(operation.entity, None)
                else:
                    assert isinstance(operation, WriterRow)
                    self.rows[operation.entity] = operation
            self.act(self.core.handle_done(commit, None, self.rig.now))

    def loaded(self) -> Loaded:
        writers = tuple([each for each in self.rows.values() if isinstance(each, WriterRow)])
        return Loaded(tuple([each for each in self.rows.values() if isinstance(each, tuple)]), writers)

    def published(self, place: int, frames: list[bytes]) -> None:
        self.take(lambda: self.core.handle_message(PEER, frames, self.rig.now))

    def answered(self, place: int, frames: list[bytes]) -> None:
        self.take(lambda: self.core.handle_answer(PEER, frames, self.rig.now))

    def request(self, client: bytes, frames: list[bytes]) -> None:
        self.take(lambda: self.core.handle_request(client, frames, self.rig.now))

    def update(self, frames: list[bytes]) -> None:
        self.take(lambda: self.core.handle_message(UPDATES, frames, self.rig.now))

    def take_more(self, client: bytes) -> None:
        self.act(self.core.handle_taken(client, self.rig.now))

    def take(self, handle: Callable[[], Sequence[Effect]]) -> None:
        try:
            self.act(handle())
        except ProtocolError:
            self.core.malformed += 1

    def timeout(self) -> None:
        due = self.core.next_timeout() <= self.rig.now
        self.act(self.core.handle_timeout(self.rig.now) if due else [])

    def contents(self) -> dict[object, bytes]:
        return {entry.key: entry.value[0] for entry in self.core.engine.items()}


class Client(Node):
    """A client and its sockets."""

    def __init__(self, rig: Rig, name: str, core: MapClientCore) -> None:
        super().__init__(rig, name, list(core.servers))
        self.core = core
        self.told: list[tuple[bytes, bytes, bytes]] = []
        self.outcomes: dict[int, object] = {}
        self.tickets = 0

    def act(self, effects: Sequence[Effect]) -> None:
        if not self.up:
            return
        for effect in [*effects, *self.core.flush(self.rig.now)]:
            if isinstance(effect, Deliver):
                self.told += [(change.key, change.body, change.before) for change in effect.messages]
            elif isinstance(effect, Resolve):
                self.outcomes[effect.ticket] = effect.outcome
            elif isinstance(effect, Publish):
                server = self.rig.nodes[self.servers[effect.message.server]]
                assert isinstance(server, Server)
                self.rig.post(partial(server.update, effect.message.frames))
            else:
                self.common(effect)

    def published(self, place: int, frames: list[bytes]) -> None:
        self.act(self.core.handle_message(place, frames, self.rig.now))

    def answered(self, place: int, frames: list[bytes]) -> None:
        self.act(self.core.handle_answer(place, frames, self.rig.now))

    def timeout(self) -> None:
        self.act(self.core.handle_timeout(self.rig.now) if self.core.next_timeout() <= self.rig.now else [])

    def write(self, *sets: tuple[bytes, bytes], ttl_ms: int = 0, expected: tuple[tuple[bytes, bytes], ...] = ()) -> int:
        self.tickets += 1
        step = Step(tuple([(key, body, ttl_ms, b"") for key, body in sets]), expected)
        self.act(self.core.write(step, self.tickets, self.rig.now))
        return self.tickets

    def contents(self) -> dict[object, bytes]:
        return {entry.key: entry.value[0] for entry in self.core.engine.items()}  # type: ignore[index, misc]


class Rig:
    """The network and the clock."""

    def __init__(self, limits: MapLimits = MAP_LIMITS) -> None:
        self.limits = limits
        self.now = 100.0
        self.nodes: dict[str, Node] = {}
        self.lose: Callable[[str, str, list[bytes]], bool] = lambda source, target, frames: False
        self.witness: WitnessCore | None = None
        self.paused: set[str] = set()
        self._queue: deque[Callable[[], None]] = deque()
        self._lives = 0

    def server(self, name: str = "one", *, peer: str | None = None, loaded: Loaded | None = None) -> Server:
        self._lives += 1
        core = MapServerCore(
            self.random(), loaded=loaded, limits=self.limits, now=self.now, clock=self, paired=peer is not None,
        )  # fmt: skip
        made = Server(self, name, core, [] if peer is None else [peer])
        self.nodes[name] = made
        made.act([*core.start(self.now), *core.follow(self.now)])
        self._subscribe_anew(made)
        return made

    def paired(self, name: str, *, witness: bool = False, durable: bool = False) -> Server:
        """One server of a pair, the primary ``one`` or the backup ``two``, in a new life."""
        before = self.nodes.get(name)
        loaded = None
        if durable:
            loaded = before.loaded() if isinstance(before, Server) else Loaded()
        role, peer = (PRIMARY, "two") if name == "one" else (BACKUP, "one")
        core = PairedMapServer(
            role, self.random(), pair=b"pair", loaded=loaded, limits=self.limits,
            witness="witness" if witness else "", now=self.now, clock=self,
        )  # fmt: skip
        made = Server(self, name, core, [peer])
        made.disk = durable
        made.rows = before.rows if isinstance(before, Server) else {}
        self.nodes[name] = made
        made.act(core.start(self.now))
        self._subscribe_anew(made)
        return made

    def _subscribe_anew(self, made: Server) -> None:
        for other in self.nodes.values():  # sockets connect again, and subscribe
            for place, server in enumerate(other.servers):
                if server == made.name:
                    for prefix in other.prefixes[place]:
                        made.act(made.core.handle_subscription(prefix, True, self.now))

    def client(self, name: str = "client", servers: tuple[str, ...] = ("one",), subtrees: tuple[bytes, ...] = (b"",),
               *, watched: bool = True) -> Client:  # fmt: skip
        core = MapClientCore(servers, subtrees, self.random()[:10], self, limits=self.limits)
        core.watched = watched
        made = Client(self, name, core)
        self.nodes[name] = made
        made.act(core.start(self.now))
        return made

    def wall_ns(self) -> int:
        return WALL_NS + int(self.now * 1e9)

    def random(self) -> bytes:
        self._lives += 1
        return bytes([self._lives]) * 16

    def kill(self, name: str) -> None:
        self.nodes[name].up = False

    # -- the network ---------------------------------------------------------------------------------------------------

    def post(self, deliver: Callable[[], None]) -> None:
        self._queue.append(deliver)

    def ask(self, node: Node, place: int, frames: list[bytes]) -> None:
        identity = node.identity(place)

        def deliver() -> None:
            server = self.nodes.get(node.servers[place])
            if isinstance(server, Server) and server.up and not self.lose(node.name, server.name, frames):
                server.request(identity, frames)

        self.post(deliver)

    def answer(self, server: Server, identity: bytes, frames: list[bytes]) -> None:
        name, place, number = identity.decode().split("/")

        def deliver() -> None:
            node = self.nodes.get(name)
            if node is None or not node.up:
                server.act(server.core.handle_gone(identity, self.now))
            elif node.connections[int(place)] == int(number) and not self.lose(server.name, name, frames):
                node.answered(int(place), frames)

        self.post(deliver)

    def tell(self, server: Server, beat: bytes) -> None:
        def deliver() -> None:
            node = self.nodes.get(server.servers[0])
            if isinstance(node, Server) and node.up and not self.lose(server.name, node.name, [beat]):
                node.take(lambda: node.core.handle_message(PARTNER, [beat], self.now))

        self.post(deliver)

    def ask_witness(self, server: Server, payload: bytes) -> None:
        def deliver() -> None:
            if self.witness is None or self.lose(server.name, "witness", [payload]):
                return
            for effect in self.witness.handle_request(b"", payload, self.now):
                if isinstance(effect, Reply):
                    server.take(partial(server.core.handle_answer, WITNESS, [effect.message], self.now))

        self.post(deliver)

    def publish(self, server: Server, frames: list[bytes]) -> None:
        for node in self.nodes.values():
            for place, name in enumerate(node.servers):
                wanted = name == server.name and any(frames[0].startswith(each) for each in node.prefixes[place])
                if wanted and node.up and not self.lose(server.name, node.name, frames):
                    self.post(partial(node.published, place, frames))

    def run(self, seconds: float = 0.0) -> None:
        """Deliver what is on its way, and let time pass."""
        until = self.now + seconds
        while True:
            while self._queue:
                self._queue.popleft()()
            if self.now >= until:
                return
            self.now = min(until, self.now + 0.01)
            for node in list(self.nodes.values()):
                if node.up and node.name not in self.paused:
                    node.timeout()
