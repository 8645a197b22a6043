"""Whole cores among peers that greet as they should and then send anything, in any order.

Whatever they send, nothing is raised, what is kept has bounds, and a peer that behaves is served. A long run:
``CHAPPE_ROGUE_SEEDS=20000 pytest tests/mesh/test_rogue_fuzz.py``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from tests.mesh.rogue_rig import PREFIX, Peer, Rig, frame_of

from chappe.core import Dial
from chappe.defaults import (
    CONTROL_BYTES_MAX,
    ENDPOINTS_MAX,
    KEPT_BYTES_MAX,
    LINK_STATES_BYTES_MAX,
    ROUTES_BYTES_MAX,
    TREES_BYTES_MAX,
    TREES_MAX,
)
from chappe.errors import UsageError
from chappe.limits import MESH_LIMITS
from chappe.mesh.flows import (
    KIND_AT,
    PUBLICATIONS,
    pack_batch,
    pack_confirm,
    pack_detour,
    pack_forget,
    pack_hops,
    pack_publication,
    pack_tree,
    with_time,
)
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.forwarding.losses import Loss, LossReason
from chappe.mesh.links.dialling import ONCE, Retry
from chappe.mesh.links.greetings import (
    DropConn,
    Hello,
    OriginatorAck,
    OriginatorSyn,
    Probe,
    ResponderSynAck,
    VersionSelect,
)
from chappe.mesh.messages import (
    COMMAND,
    CONFIRM,
    DATA,
    FORGET,
    LINK_STATE,
    LOSS,
    NOBODY,
    PING,
    PONG,
    RESERVED_TOPIC,
    ROUTING_UPDATE,
    TREE,
    LinkState,
    Neighbour,
    pack_filter,
    pack_link_state,
    pack_message,
)

KINDS: Final = (
    *(DATA, COMMAND, ROUTING_UPDATE, PING, PONG, LINK_STATE, LOSS, TREE, CONFIRM, FORGET),
    *(*sorted(PUBLICATIONS), 0, 99, 255),
)
SEEDS: Final = int(os.environ.get("CHAPPE_ROGUE_SEEDS", "60"))
STEPS: Final = 120
HUB, FRIEND = b"\x80" * 16, b"\x40" * 16
IDS: Final = (HUB, FRIEND, NOBODY, b"\x11" * 16, b"\x22" * 16, b"\xee" * 16, b"\xff" * 16, b"\x99" * 16)
NUMBERS: Final = (0, 1, 2, 7, 2**20, 2**44, 2**62 - 1, 2**62, 2**62 + 2**32, 2**63 - 1, 2**63, 2**64 - 1)
KEYS: Final = (b"", b"k" * 16, b"l" * 16)
LABELS: Final = (1, 2, 3, 2**64 - 1)
TOPICS: Final = (b"", b"/", b"/a", b"/a/b", RESERVED_TOPIC, b"<$>/local/x", b"\x00\x1b[31m", b"t" * 65_535)


class Honest(Rig):
    """An endpoint that behaves, joined to the hub; both are cores, and frames between them always arrive."""

    def __init__(self, hub: Rig, **options: Any) -> None:
        super().__init__(FRIEND, **options)
        self._hub = hub
        self.joined = False
        self.do(self.core.peer("hub", 1, Retry(0.1), 1, self.now))

    def do(self, actions: Sequence[Any]) -> None:
        super().do(actions)
        for action in actions:
            if isinstance(action, Dial):
                self.conn = action.link
                self.far = self._hub.open()
                self.do(self.core.handle_link(self.conn, ("hub", 1), self.now))

    def pump(self) -> None:
        """Bring what waits on both ends to the other, until nothing does."""
        for _ in range(1000):
            here = [frame[PREFIX:] for frame in self.core.take(self.conn, 1 << 18)]
            there = [frame[PREFIX:] for frame in self._hub.core.take(self.far, 1 << 18)]
            if not here and not there:
                return
            for body in here:
                self._hub.do(self._hub.core.handle_frames(self.far, [body], self.now))
            for body in there:
                self.do(self.core.handle_frames(self.conn, [body], self.now))
        raise AssertionError("the two never come to an end")


class World:
    """What one seed decides."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.hub = Rig(HUB, forwarding=rng.random() < 0.8, peer_policy=rng.choice(list(Policy)), peer_messages_max=64)
        self.hub.want(b"/a")
        self.friend = Honest(self.hub)
        self.friend.want(b"/f")
        self.friend.pump()
        self.rogues: list[Peer] = []
        self.tickets = 100

    # -- what is sent ---------------------------------------------------------------------------------

    def state(self, sender: bytes) -> bytes:
        """A link state of anybody."""
        rng = self.rng
        neighbours = {
            each: Neighbour(each, rng.random() < 0.3, tuple(rng.sample(TOPICS, rng.randrange(3))), rng.choice(KEYS))
            for each in rng.sample(IDS, rng.randrange(5))
        }
        filters = tuple(sorted(rng.sample(TOPICS, rng.randrange(4))))
        made = LinkState(rng.choice(IDS), rng.choice(NUMBERS), rng.random() < 0.7, filters, tuple(neighbours.values()))
        frame = pack_link_state(sender, made)
        receiver = rng.choice(IDS) if rng.random() < 0.2 else NOBODY
        return frame[PREFIX : PREFIX + 16] + receiver + frame[PREFIX + 32 :]

    def publication(self, sender: bytes) -> bytes:
        """What is published, by anybody, along a tree that is known or not; or on a detour, or two."""
        rng = self.rng
        kind = rng.choice((DATA, COMMAND, LOSS))
        origin, number, label = rng.choice((*IDS, *[sender] * 8)), rng.choice(NUMBERS), rng.choice(LABELS)
        payload = rng.choice((rng.randbytes(rng.randrange(60)), self.loss()))
        receiver = rng.choice((NOBODY, *IDS))
        body = pack_publication(origin, number, label, kind, receiver, rng.choice(TOPICS), payload)[PREFIX:]
        if rng.random() < 0.3:
            several = [rng.randbytes(rng.randrange(9)) for _ in range(rng.choice((1, 2, 5, 256)))]
            body = pack_batch(origin, number, label, rng.choice(TOPICS), several)[PREFIX:]
            if rng.random() < 0.2:  # not as many as it says
                body = body[: KIND_AT + 1] + rng.randbytes(1) + body[KIND_AT + 2 :]
        if kind == DATA and rng.random() < 0.3:
            body = with_time(len(body).to_bytes(PREFIX, "big") + body, rng.choice(NUMBERS) - 2**63)[PREFIX:]
        while rng.random() < 0.2:
            around = rng.choice((*IDS, *[sender] * 8))
            body = pack_detour(around, rng.choice(NUMBERS), rng.choice(LABELS), rng.randrange(256), body)[PREFIX:]
        return body

    def tree(self, sender: bytes) -> bytes:
        """A tree of anybody that leads over the hub, as a rule, to some others, whether there is a way or not."""
        rng = self.rng
        some = rng.sample(IDS, rng.randrange(1, 5))
        hops = [HUB, *[each for each in some if each != HUB]] if rng.random() < 0.9 else some
        children: dict[bytes, list[bytes]] = {NOBODY: hops[:1]}
        for number, each in enumerate(hops[1:], 1):
            children.setdefault(rng.choice(hops[:number]), []).append(each)
        receivers = frozenset([each for each in hops if rng.random() < 0.7])
        [hop] = (
            pack_hops(NOBODY, receivers, children) if NOBODY not in hops else pack_hops(b"", receivers, {b"": hops})[:1]
        )
        return pack_tree(sender, rng.choice((*IDS, *[sender] * 8)), rng.choice(LABELS), hop.subtree)[PREFIX:]

    def answer(self, sender: bytes) -> bytes:
        """A confirmation, of labels that are in use or not, or that labels are not used any more."""
        rng = self.rng
        labels = (*LABELS, *self.hub.core.router.trees._labels)
        if rng.random() < 0.3:
            return pack_forget(sender, rng.choices(labels, k=rng.randrange(4)))[PREFIX:]
        entries = [(rng.choice(labels), rng.choice(NUMBERS)) for _ in range(rng.randrange(4))]
        return pack_confirm(sender, entries)[PREFIX:]

    def loss(self) -> bytes:
        """A report of a loss."""
        rng = self.rng
        return Loss(rng.choice(IDS), rng.choice(IDS), rng.choice(NUMBERS), rng.choice(list(LossReason))).pack()

    def plain(self, sender: bytes) -> bytes:
        """A message without origin, of any kind."""
        rng = self.rng
        payloads = (
            b"",
            b"BYE",
            b"ping",
            b"heartbeat",
            pack_filter(rng.sample(TOPICS, 3)),
            rng.randbytes(50),
            b"\xff" * 40,
        )
        sent = pack_message(
            rng.choice((sender, rng.choice(IDS))),
            rng.choice(IDS),
            rng.choice(KINDS),
            rng.choice((0, 16)),
            rng.choice(TOPICS),
            rng.choice(payloads),
        )
        return sent[PREFIX:]

    def echo(self, rogue: Peer) -> bytes:
        """What it was sent, as it was or with changed bytes."""
        body = bytearray(self.rng.choice(rogue.heard)) if rogue.heard else bytearray(b"\x01")
        for _ in range(self.rng.randrange(4)):
            if body:
                body[self.rng.randrange(len(body))] = self.rng.randrange(256)
        return bytes(body[: self.rng.choice((len(body), len(body), self.rng.randrange(len(body) + 1)))])

    def greeting(self) -> bytes:
        """Any frame of the handshake."""
        rng = self.rng
        sender = rng.choice(IDS)
        return frame_of(
            rng.choice(
                (
                    Hello(sender, rng.randrange(256), rng.randrange(256)),
                    Hello(sender),
                    Probe(),
                    VersionSelect(sender, rng.randrange(3)),
                    DropConn(sender, rng.randrange(256), "\x1b[2J" * rng.randrange(3)),
                    OriginatorSyn(tuple(rng.sample(TOPICS, 2))),
                    ResponderSynAck(tuple(rng.sample(TOPICS, 2))),
                    OriginatorAck(),
                )
            )
        )

    # -- what happens ---------------------------------------------------------------------------------

    def step(self) -> None:
        """One thing happens."""
        choices: list[Callable[[], object]] = [self._send] * 12
        choices += [self._open, self._raw, self._close, self._unpeer, self._publish, self._time, self._take, self._dial]
        self.rng.choice(choices)()

    def _send(self) -> None:
        self._open()
        rogue = self.rng.choice(self.rogues)
        made = (self.state, self.state, self.tree, self.publication, self.publication, self.answer, self.plain)
        bodies = [
            self.echo(rogue) if self.rng.random() < 0.15 else self.rng.choice(made)(rogue.id)
            for _ in range(self.rng.choice((1, 1, 2, 20)))
        ]
        if self.rng.random() < 0.2:
            bodies.append(self.greeting())
        rogue.send(*bodies)

    def _open(self) -> None:
        rng = self.rng
        if len(self.rogues) < 6:
            id = rng.choice([each for each in IDS if each not in (HUB, NOBODY, FRIEND)])
            key, named = rng.choice(KEYS), rng.choice(((), (), (id,), (FRIEND,)))
            rogue = Peer(self.hub, id, chappe=rng.random() < 0.7, wanted=rng.sample(TOPICS, 2), key=key, named=named)
            self.rogues.append(rogue)

    def _raw(self) -> None:
        """A connection that greets as it likes."""
        conn = self.hub.open()
        for _ in range(self.rng.randrange(6)):
            if conn not in self.hub.closed:
                self.hub.do(self.hub.core.handle_frames(conn, [self.greeting()], self.hub.now))
        if conn not in self.hub.closed and self.rng.random() < 0.7:
            self.hub.do(self.hub.core.handle_gone(conn, "it broke", self.hub.now))

    def _close(self) -> None:
        if self.rogues:
            rogue = self.rogues.pop(self.rng.randrange(len(self.rogues)))
            if rogue.conn not in self.hub.closed:
                self.hub.do(self.hub.core.handle_gone(rogue.conn, "it broke", self.hub.now))

    def _unpeer(self) -> None:
        if not self.rogues:
            return
        rogue = self.rng.choice(self.rogues)
        self.tickets += 1
        self.hub.do(self.hub.core.unpeer("127.0.0.1", rogue.conn, self.tickets, self.hub.now))
        pongs = [each for each in rogue.messages() if each.kind == PING]
        rogue.send(*[rogue.plain(PONG, payload=each.payload) for each in pongs * 2], self.state(rogue.id))

    def _publish(self) -> None:
        try:
            topic, receiver = self.rng.choice(TOPICS), self.rng.choice(IDS)
            if self.rng.random() < 0.3:
                many = [(topic, bytes(self.rng.choice((0, 1, 20_000)))) for _ in range(self.rng.randrange(300))]
                self.hub.do(list(self.hub.core.publish_many(many, self.hub.now)[0]))
                return
            self.hub.do(self.hub.core.publish(topic, b"x", DATA, receiver, self.hub.now))
        except UsageError:
            pass

    def _dial(self) -> None:
        """The hub dials somebody who answers as it likes."""
        self.tickets += 1
        hub = self.hub
        actions = hub.core.peer("rogue", self.tickets, ONCE, self.tickets, hub.now)
        hub.do(actions)
        for action in actions:
            if isinstance(action, Dial):
                conn = action.link
                hub.do(hub.core.handle_link(conn, ("rogue", self.tickets), hub.now))
                for _ in range(self.rng.randrange(5)):
                    if conn not in hub.closed:
                        hub.do(hub.core.handle_frames(conn, [self.greeting()], hub.now))
                if conn not in hub.closed:
                    hub.do(hub.core.handle_gone(conn, "it broke", hub.now))

    def _time(self) -> None:
        seconds = self.rng.choice((0.01, 0.5, 1.5))
        for rogue in self.rogues:
            if self.rng.random() < 0.8:
                rogue.send(rogue.plain(PONG, payload=b"heartbeat"))
        self.friend.pump()
        self.hub.pass_time(seconds)
        self.friend.pass_time(seconds)

    def _take(self) -> None:
        for rogue in self.rogues:
            if rogue.conn not in self.hub.closed:
                rogue.take()

    # -- what must hold -------------------------------------------------------------------------------

    def check(self) -> None:
        """Bounds, and that the friend is a peer."""
        router = self.hub.core.router
        states = router.topology.states
        assert states._size == sum(len(each.frame) for each in states.known.values()) <= LINK_STATES_BYTES_MAX
        assert len(states.known) <= ENDPOINTS_MAX
        assert all(len(doubts) <= MESH_LIMITS.doubts_max for doubts in states._doubts.values())
        assert set(states._doubts) <= {link.peer_id for link in router.links.values()} or router.topology.changed
        assert router.seen.size <= MESH_LIMITS.seen_total_max
        assert router.routes._bytes <= ROUTES_BYTES_MAX
        assert all(link.outbox.control_bytes <= 2 * CONTROL_BYTES_MAX for link in router.links.values())
        trees = router.trees
        assert all(size <= TREES_BYTES_MAX for size in trees._sizes.values())
        assert len(trees._mine) <= TREES_MAX
        assert all(link.kept_bytes <= KEPT_BYTES_MAX for link in router.links.values())
        assert self.hub.core.invariants() == self.friend.core.invariants() == []
        assert self.friend.conn not in self.friend.closed
        assert self.friend.far not in self.hub.closed

    def serve(self) -> None:
        """The friend and the hub get what they publish for each other."""
        self.friend.pump()
        self.hub.delivered.clear()
        self.friend.delivered.clear()
        hub, friend = self.hub, self.friend
        for number in range(3):
            payload = b"good %d" % number
            friend.do(friend.core.publish(b"/a/f", payload, DATA, NOBODY, friend.now))
            hub.do(hub.core.publish(b"/f", payload, DATA, NOBODY, hub.now))
        friend.pump()
        assert [each.payload for each in hub.delivered if each.topic == b"/a/f"] == [b"good 0", b"good 1", b"good 2"]
        assert [each.payload for each in friend.delivered] == [b"good 0", b"good 1", b"good 2"]


@pytest.mark.parametrize("chunk", range(6))
def test_rogues_break_nothing(chunk: int) -> None:
    for seed in range(chunk, SEEDS, 6):
        world = World(seed)
        try:
            for number in range(STEPS):
                world.step()
                if number % 10 == 0:
                    world.friend.pump()
                    world.check()
            world.serve()
        except Exception as problem:
            raise AssertionError(f"seed {seed}: {problem!r}") from problem
