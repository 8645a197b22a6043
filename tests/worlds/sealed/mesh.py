"""Worlds of the mesh whose topics are sealed for groups, which change while messages go around.

Everybody has an identity and may do everything else; a change of the authority comes to one machine, and goes from
neighbour to neighbour. Nobody is revoked: who is would be cut off, and worlds of the log have that.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.rules import RuledFaults
from tests.worlds.sealed.endpoints import NAMES, SealedEndpoint, SealedMeshWorld
from tests.worlds.sealing import MARK, private_of, sign_of

from chappe.errors import Sealed
from chappe.mesh.messages import DATA, NOBODY, Message, OpenedMessage
from chappe.sealing.events import is_sealed, unwrap, wrap
from chappe.sealing.messages import EVENTS, MessageFrame, MessageSealer
from chappe.sealing.ring import Ring
from chappe.sealing.senders import SALT_BYTES
from chappe.sim.streams import StreamSide
from chappe.sim.world import Checker

FORGED: Final = 0.1  # of what comes sealed comes after something that somebody has made up


class SealedMesh(SealedMeshWorld):
    """Endpoints that seal and open, and groups that change."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._faults = SealedMeshFaults(self)
        self.secrets = MeshSecrets(self)
        self.forgeries = MeshForgeries(self)
        self.watch(self.secrets, self.forgeries)


class SealedMeshFaults(RuledFaults):
    """As in the mesh, and groups change; nobody is flooded, as what comes late is refused where it is sealed."""

    world: SealedMeshWorld

    def plan(self, until: float) -> float:
        """See ``RuledFaults.plan``."""
        for _ in range(self.world.seal_rng.choice((1, 3, 6))):
            self.at(self.world.seal_rng.uniform(0.5, until), self._sign)
        return super().plan(until)

    def _sign(self) -> None:
        rng, authority = self.world.seal_rng, self.world.authority
        running = [each for each in self.world.alive(SealedEndpoint) if not each.frozen]
        group, name = rng.choice(list(authority.chains)), rng.choice(list(self.world.hosts))
        kind = rng.choice(("join", "leave", "rotate", "give"))
        if kind == "rotate":
            authority.rotate(group)
        elif kind == "give":
            if name in authority.members[group]:
                authority.give(group, name, rng.randint(1, authority.keys(group).newest.number))
        else:
            (authority.join if kind == "join" else authority.leave)(group, name)
        self.world.laws.draw()
        self.world.trace(None, "%s: %s %s, epoch %d", group, name, kind, authority.keys(group).newest.number)
        if running:
            rng.choice(running).copy()

    def _give_last(self) -> None:
        self.world.seal_rng.choice(self.world.alive(SealedEndpoint)).copy()

    def _flood(self) -> None:
        """Nobody is."""


class MeshSecrets(Checker[SealedMeshWorld]):
    """Who may read is given what was published, and by whom it was sealed; nobody else is, and nothing goes plain."""

    name = "secrets"

    def __init__(self, world: SealedMeshWorld) -> None:
        super().__init__(world)
        self.opened = 0

    def on_sealed(self, host: SealedEndpoint, frame: MessageFrame) -> None:
        """Nobody is in the epoch who has left the group, as far as the endpoint knows."""
        ring, permissions = host.held.ring(frame.group), host.held.permissions
        group = next(each for each in permissions.sealed if each.name == frame.group)
        assert ring is not None
        gone = [name for name in sorted(ring.keys.members()) if not group.has(permissions.identities[name])]
        if gone:
            self.fail(f"{host.life} seals in epoch {frame.epoch}, of which {gone[0]} has the key, who has left")

    def on_written(self, side: StreamSide, frames: list[bytes]) -> None:
        """What goes over a connection."""
        for frame in frames:
            if MARK in frame and any(topic in frame for topic in (b"/a", b"/c/long/topic")):
                self._look(side, frame)

    def _look(self, side: StreamSide, frame: bytes) -> None:
        """Which topics what stands there is of."""
        for each in frame.split(MARK)[1:]:
            serial = each.split(b" ", 1)[0]
            for payload, (group, _, by) in self.world.sealed.items():
                if payload.startswith(MARK + serial + b" of "):
                    self.fail(f"{side.host.name} sends plain what {by} has sealed for {group}")

    def on_delivered(self, host: MeshHost, message: Message) -> None:
        """A subscriber is given something."""
        found = self.world.sealed.get(message.payload)
        if found is None:
            if isinstance(message, OpenedMessage):
                self.fail(f"{host.life} opens {message.payload!r}, which nobody has sealed")
            return
        group, epoch, by = found
        if not isinstance(message, OpenedMessage) or message.by != by:
            self.fail(f"{host.life} takes {message.payload!r} of {by} for something else: {message}")
        if epoch not in self.world.authority.entitled[group, host.name]:
            self.fail(f"{host.life} opens what is sealed in epoch {epoch} of {group}, which was not given to it")
        self.opened += 1

    def on_quiet(self) -> None:
        """Who has the newest keys of a group can seal for it."""
        authority = self.world.authority
        for host in self.world.alive(SealedEndpoint):
            for group, members in authority.members.items():
                if host.name in members and host.versions[group] == authority.keys(group).version:
                    try:
                        host.sealing.check({"ward": b"/a", "lab": b"/c"}[group])
                    except Sealed as error:
                        self.fail(f"{host.life} has the keys of {group}, and is told: {error}")

    def unsettled(self) -> str | None:
        """All have the newest permissions, and all keys of their groups that somebody in reach has."""
        authority = self.world.authority
        for host in self.world.alive(SealedEndpoint):
            had = host.versions
            reach = [each.versions for each in self.world.reachable(host) if isinstance(each, SealedEndpoint)]
            late = [
                group for group, members in authority.members.items()
                if host.name in members and any(each[group] > had[group] for each in reach)
            ]  # fmt: skip
            version = self.world.laws.held[host.name]
            if late or version < len(authority.versions):
                return f"{host.life} has version {version} and {had}"
        return None


class MeshForgeries(Checker[SealedMeshWorld]):
    """What forwarders that lie, members and former members make up is taken by nobody."""

    name = "forgeries"

    def __init__(self, world: SealedMeshWorld) -> None:
        super().__init__(world)
        self._rng = Random(f"forgeries {world.seed}")
        self._last: dict[str, Message] = {}  # what a life has had
        self.refused = 0

    def on_coming(self, host: SealedEndpoint, messages: list[Message]) -> None:
        """An endpoint is about to open something, and gets something else first."""
        message = messages[-1]
        if not is_sealed(message.payload) or message.kind != DATA:
            return
        if self._rng.random() < FORGED:
            kinds = [
                self._changed,
                self._plain,
                self._elsewhere,
                self._again,
                self._in_the_name_of_another,
                self._by_who_left,
            ]
            self._rng.shuffle(kinds)
            forge, made = next((forge, made) for forge in kinds if (made := forge(host, message)) is not None)
            if host.sealing.open([made]):
                self.fail(f"{host.life} reads what was {forge.__name__[1:]}, {made.topic!r}")
            self.refused += 1
        self._last[host.life] = message

    def _changed(self, host: SealedEndpoint, message: Message) -> Message | None:
        raw = bytearray(unwrap(message.payload))
        raw[self._rng.randrange(len(raw))] ^= 1 << self._rng.randrange(8)
        return _with(message, wrap(bytes(raw)))

    def _plain(self, host: SealedEndpoint, message: Message) -> Message | None:
        return _with(message, MARK + b"forged")

    def _elsewhere(self, host: SealedEndpoint, message: Message) -> Message | None:
        if self._rng.random() < 0.5:
            topic = {b"/a": b"/a/x", b"/a/x": b"/a"}.get(message.topic, b"/c/other")
            return Message(topic, message.payload, DATA, message.sender, message.receiver)
        receiver = host.own_id if message.receiver == NOBODY else NOBODY
        return Message(message.topic, message.payload, DATA, message.sender, receiver)

    def _again(self, host: SealedEndpoint, message: Message) -> Message | None:
        """What it has had before, if that was for it, and waits for no keys."""
        last = self._last.get(host.life)
        return None if last is None or host.sealing.waits else last

    def _in_the_name_of_another(self, host: SealedEndpoint, message: Message) -> Message | None:
        members = sorted(self.world.authority.members[self.world.lane(message.topic)])
        if len(members) < 2:
            return None
        member, other = self._rng.sample(members, 2)
        return self._sealed(message, member, other)

    def _by_who_left(self, host: SealedEndpoint, message: Message) -> Message | None:
        """Somebody who never was of the group, or was not in its newest epoch, seals with what a member gave it."""
        authority, group = self.world.authority, self.world.lane(message.topic)
        newest = authority.keys(group).newest.number
        others = [name for name in NAMES if newest not in authority.entitled[group, name]]
        if not others:
            return None
        return self._sealed(message, min(authority.members[group]), self._rng.choice(others), others=True)

    def _sealed(self, message: Message, member: str, sender: str, *, others: bool = False) -> Message | None:
        authority, group = self.world.authority, self.world.lane(message.topic)
        keys = authority.keys(group)
        secret = Ring(keys, member, private_of(member)).secret(keys.newest.number)
        if secret is None:
            return None
        sealer = MessageSealer(sender, self._rng.randbytes(SALT_BYTES), sign_of(sender if others else member))
        place = message.topic, message.receiver
        raw = sealer.seal(secret, EVENTS, place, (6).to_bytes(4) + b"forged", self.world.clock.wall_us)
        return _with(message, wrap(raw))


def _with(message: Message, payload: bytes) -> Message:
    return Message(message.topic, payload, DATA, message.sender, message.receiver)
