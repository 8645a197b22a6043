"""Everything of the log and of shared maps that listens, and rogues with keys that may do one thing to ``a/*``.

A rogue is ZeroMQ alone with an identity's keys: it says what it likes, and is believed as far as the permissions go.
Behind whatever it tries it sends something that nobody may (a fence), so it is known when the first was judged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
import zmq
from tests.api.rogues import rules
from tests.ports import free_address
from tests.waiting import until

from chappe import Consumer, Forwarder, Keys, MapServer, Producer, Store, Tower, Witness
from chappe.api import permissions
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say
from chappe.log.guard import DENIED, Guard, LogRefusal
from chappe.log.messages import Fetch, Head, Message, encode
from chappe.log.queries import ErrorAnswer, Request, decode_answer, encode_query
from chappe.permissions.rules import PRODUCE, VERBS
from chappe.runtime.log_ports import LogPorts
from chappe.storage.key_files import watched_permissions
from chappe.tapping.messages import Look, Refused
from chappe.tapping.messages import decode_answer as decode_shown
from chappe.tapping.messages import encode as encode_look
from chappe.transports.addresses import ForwarderAddress, TowerAddress, bind
from chappe.transports.gate import ORIGINALS, Gate, gate_of
from chappe.transports.refusals import RefusalLog
from chappe.transports.zeromq import open_socket

MESH: Final = ("publish", "subscribe", "forward")
ROLES: Final = ("nothing", *(each for each in VERBS if each not in MESH))  # what each may do is what it is called
YES: Final = "yes"
PART: Final = "part"
NO: Final = "–"
SERVERS: Final = (
    (["store", "introduce"], "hub", ["*"]),
    (["store"], "relay", ["*"]),
    ([PRODUCE], "maker", ["*"]),
    (["consume"], "taker", ["*"]),
    (["attach-master"], "maps", ["*"]),
    (["store"], "judge", ["*"]),
)
GONE: Final = "gone"  # was revoked
_fences = count(1)


def signed(home: Path, originals: str) -> None:
    """The rules, with programs of the original as one of the roles."""
    of_roles = [([each] if each in VERBS else list(MESH), each, ["a/*"]) for each in ROLES]
    of_originals = ([originals] if originals in VERBS else list(MESH), ORIGINALS, ["a/*"])
    rules(home, *SERVERS, *of_roles, of_originals)


@dataclass
class Place:
    """A member of the log: what came to its core, and what it refused."""

    node: LogPorts
    seen: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        role, handle = self.node.core.role, self.node.core.role.handle_message

        def spied(message: Message, now: float) -> list[Any]:
            self.seen.append(message)
            return handle(message, now)

        role.handle_message = spied  # type: ignore[method-assign]

    @property
    def guard(self) -> Guard:
        assert self.node.guard is not None
        return self.node.guard

    @property
    def gate(self) -> Gate:
        found = self.node.gate
        assert found is not None
        return found


class Net:
    """All that listens, in this process, each with an identity of its own."""

    def __init__(self, home: Path, stack: ExitStack, patch: pytest.MonkeyPatch) -> None:
        self.home, self._stack = home, stack
        self.refused: list[tuple[RefusalLog, LogRefusal]] = []
        add = RefusalLog.add_refusal

        def heard(refusals: RefusalLog, refusal: LogRefusal) -> None:
            add(refusals, refusal)
            self.refused.append((refusals, refusal))

        patch.setattr(RefusalLog, "add_refusal", heard)
        watched = watched_permissions(home)
        offer = watched.offer
        self.offered: dict[bytes, bool] = {}  # permissions that others handed on, and whether they are in force

        def looked_at(raw: bytes) -> bool:
            self.offered[raw] = offer(raw)
            return self.offered[raw]

        patch.setattr(watched, "offer", looked_at)
        keys = {each: Keys(home / each) for _, each, _ in SERVERS}
        open_ = stack.enter_context
        self.tower = open_(closing(Tower("127.0.0.1:0", security=keys["hub"]))).address
        where = f"hub@{self.tower}"
        store = open_(closing(Store(home.parent / "kept", tower=where, security=keys["hub"])))
        self.producer = Producer("a/x", tower=where, security=keys["maker"])
        stack.callback(self.producer.close, 0.1)
        self.consumer = open_(closing(Consumer("a/*", tower=where, security=keys["taker"])))
        forwarder = open_(
            closing(Forwarder(home.parent / "passed", listen="127.0.0.1:0", originals="127.0.0.1:0",
                              security=keys["relay"]))
        )  # fmt: skip
        self.map = open_(MapServer("127.0.0.1:0", name="a", security=keys["maps"]))
        self.witness = open_(Witness(free_address(), path=home.parent / "granted.db", security=keys["judge"]))
        self.tap = forwarder.tap()
        self.ports = ForwarderAddress.parse(forwarder.address)
        self.originals = TowerAddress.parse(forwarder.originals or "")
        self.store, self.stored = Place(store._node), store.endpoint
        self.maker = Place(self.producer._node.node)
        self.taker = Place(self.consumer._node.node)
        self.relay = Place(forwarder._node)
        self.asked: list[list[bytes]] = []  # what came to the map's core
        core = self.map._ports.core
        handle = core.handle_request

        def spied(client: bytes, frames: list[bytes], now: float) -> list[Any]:
            self.asked.append(frames)
            return handle(client, frames, now)

        core.handle_request = spied  # type: ignore[method-assign, assignment]

    def of(self, gate: Gate, who: str) -> list[LogRefusal]:
        """What a member has refused to somebody."""
        return [each for refusals, each in list(self.refused) if refusals is gate.refusals and each.who == who]

    def judged(self, gate: Gate, who: str, topic: str) -> list[LogRefusal]:
        """Wait for the fence; what was refused before it."""
        until(lambda: any(each.topic == topic for each in self.of(gate, who)), f"the fence {topic} of {who}")
        found = [each for each in self.of(gate, who) if each.topic != topic]
        self.refused.clear()
        return found


@contextmanager
def net(tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[Net]:
    home = tmp_path / "keys"
    permissions.init(home, "hub", "server")
    for each in (*(name for _, name, _ in SERVERS if name != "hub"), *ROLES, ORIGINALS, GONE):
        permissions.add(home, each, "consumer")
    signed(home, "nothing")
    with ExitStack() as stack:
        yield Net(home, stack, patch)


class Rogue:
    """One who has the keys of a role; or who has none, as programs of the original, and ``role`` is what these may."""

    def __init__(self, net: Net, role: str, stack: ExitStack, *, original: bool = False) -> None:
        self.net, self.role, self._stack = net, role, stack
        self.name = ORIGINALS if original else role
        self.gate = None if original else gate_of(Keys(net.home / role))
        self.address = f"rogue-{self.name}-{role}"

    def socket(self, kind: int, endpoint: str = "") -> zmq.Socket[bytes]:
        made = open_socket(kind, self.gate)
        self._stack.callback(made.close)
        made.setsockopt(zmq.LINGER, 0)
        if endpoint:
            made.connect(endpoint.partition("#")[0] if self.gate is None else self.gate.dial(made, endpoint))
        return made

    # -- what it hands on -------------------------------------------------------------------------------------

    def announced(self, towers: TowerAddress, name: str, wanted: list[bytes]) -> zmq.Socket[bytes] | None:
        """A socket that members listen to, as they know it, and want all of this; None if the tower refuses."""
        made = self.socket(zmq.XPUB)
        port = bind(made, "127.0.0.1", gate=self.gate)
        beacons = self.socket(zmq.PUB, f"tcp://127.0.0.1:{towers.sub_port}{name}")
        place = f"{port}#{self.role}" if self.gate is not None else str(port)
        left = {b"\1" + each for each in wanted}
        tower = gate_of(Keys(self.net.home / "hub"))
        assert tower is not None
        before = tower.refusals.count

        def refused() -> bool:
            return self.gate is not None and tower.refusals.count > before

        def subscribed() -> bool:
            beacons.send_multipart([b"B", self.address.encode(), b"127.0.0.1", place.encode()])
            while made.poll(0):
                left.discard(made.recv())
            return not left or refused()

        until(subscribed, lambda: f"subscriptions of {left}")
        return None if refused() else made

    def dialling(self, endpoint: str, wanted: bytes) -> zmq.Socket[bytes]:
        """A socket that publishes to one that it dials."""
        made = self.socket(zmq.XPUB, endpoint)
        until(lambda: made.poll(0) and made.recv() == b"\1" + wanted, f"a subscription to {wanted!r}")
        return made

    def hands(
        self, sock: zmq.Socket[bytes] | None, message: Message, to: Place, fence: Callable[[str], Message]
    ) -> str:
        """Whether a message gets through to a member's core."""
        if sock is None:  # nobody listens to it
            return NO
        topic = f"fence-{next(_fences)}"
        to.seen.clear()
        sock.send_multipart(encode(message))
        sock.send_multipart(encode(fence(topic)))
        refused = self.net.judged(to.gate, self.name, topic)
        if message in to.seen:
            assert not refused, refused
            return YES
        assert refused, f"{message} of {self.role} is dropped without a word"
        return NO

    # -- what it listens to -----------------------------------------------------------------------------------

    def hears(self, sub: zmq.Socket[bytes], prefix: bytes, of: Place, *topics: bytes) -> str:
        """Whether what begins so is published to it: all of these topics, some, or none."""
        fence = b"I~%d" % next(_fences)
        sub.setsockopt(zmq.SUBSCRIBE, prefix)
        sub.setsockopt(zmq.SUBSCRIBE, fence)
        wanted = [prefix + each for each in topics or (b"",)]
        heard: set[bytes] = set()

        def come() -> bool:
            with of.node.driver.lock:
                for each in (*wanted, fence):
                    of.node.publish_frames([each])
            of.node.driver.turns.wake()
            while sub.poll(2):
                heard.add(sub.recv())
            return fence in heard

        until(come, f"{fence!r} of {prefix!r}")
        refused = self.net.of(of.gate, self.name)
        self.net.refused.clear()
        found = sum(each in heard for each in wanted)
        assert (found == 0) == bool(refused), (prefix, found, refused)
        return YES if found == len(wanted) else PART if found else NO

    # -- what it asks -----------------------------------------------------------------------------------------

    def asks(self, sock: zmq.Socket[bytes], request: Request, of: Place, payload: bytes | None = None) -> str:
        """Whether a store answers."""
        number = struct.pack(">Q", next(_fences))
        self.net.refused.clear()
        sock.send_multipart([number, encode_query(request), *([] if payload is None else [payload])])
        frames = sock.recv_multipart()
        assert frames[0] == number
        answer = decode_answer(frames[1])
        denied = isinstance(answer, ErrorAnswer) and answer.kind == DENIED
        assert denied == bool(self.net.of(of.gate, self.name)), answer
        return NO if denied else YES

    def asks_map(self, sock: zmq.Socket[bytes], frames: list[bytes]) -> str:
        """Whether a request comes to the map's core as it is."""
        gate = self.net.map._ports.gate
        assert gate is not None
        fence = next(_fences)
        self.net.refused.clear()
        self.net.asked.clear()
        sock.send_multipart(frames)
        sock.send_multipart(say.encode(say.Hello(fence, bytes(chp.SESSION_BYTES), (b"",), b"", 0, 0, True)))
        while True:
            answer = say.from_server(sock.recv_multipart())
            if isinstance(answer, say.Refused) and answer.stream == fence:
                break
        refused = self.net.of(gate, self.name)[:-1]
        through = frames in self.net.asked
        assert through != bool(refused) or frames[0] == b"ICANHAZ?", refused
        return YES if through else NO

    def looks(self) -> str:
        """Whether a tap shows it something."""
        sock = self.socket(zmq.DEALER, f"tcp://127.0.0.1:{self.net.tap}#relay")
        sock.send(encode_look(Look((b"a/",))))
        return NO if isinstance(decode_shown(sock.recv_multipart()[-1]), Refused) else YES


def head_fence(address: str) -> Callable[[str], Message]:
    """Of who says how far a partition goes."""
    return lambda topic: Head(topic, address, topic, 0)


def fetch_fence(partition: str, address: str) -> Callable[[str], Message]:
    """Of who asks a producer."""
    return lambda topic: Fetch(partition, address, topic, 0, 1)


def direct_fence(to: str, address: str) -> Callable[[str], Message]:
    """Of who answers a consumer."""
    return lambda topic: Head(to, address, topic, 0, direct=True)
