"""Who lives in a world of the mesh, and how each of them is made."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.originals import OriginalHost
from tests.worlds.mesh.rogues import RogueHost
from tests.worlds.mesh.subjects import MANY, EndpointSubject
from tests.worlds.mesh.world import TOPICS, MeshWorld

from chappe.defaults import PEER_BYTES_MAX, TTL
from chappe.mesh.endpoint import EndpointOptions
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.messages import COMMAND, DATA

PREFIXES = (b"", b"/a", b"/a/x", b"/b", b"/c")
BYTES_MAX = (8_192, 32_768, PEER_BYTES_MAX)  # that wait for one peer
TWO_WAYS = 0.3  # of the endpoints publish in two ways
ORIGINALS_ALONE = 0.5  # of the worlds where originals close a loop have nobody else publish
RETRY_S = (0.3, 1.0)
SET_BACK = (300, 1_000_000)  # microseconds: more than a life changes its link state, and a second


class PopulatedMesh(MeshWorld):
    """A world of the mesh with members."""

    endpoint: type[Any] = EndpointSubject

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.publishing = True
        self.rogues: list[RogueHost] = []
        self._lives_made = 0
        self._set_back: set[bytes] = set()  # ids whose clock was

    # -- hosts ------------------------------------------------------------------------------------

    def populate(self) -> None:
        """Make the first hosts, and wires that connect them all, with loops."""
        rng = self.rng
        if self.far:
            self._make_chain()
            return
        if self.shortcuts:
            self._make_shortcuts()
            return
        for number in range(max(2, self.few(rng.choice((2, 3, 3, 4, 5, 6, 8, 10))))):
            self._make(f"e{number}")
        names = list(self.hosts)
        for number, name in enumerate(names[1:], 1):
            self.wires.add((name, rng.choice(names[:number])) if rng.random() < 0.5 else (names[number - 1], name))
        for _ in range(rng.choice((0, 1, 2, 5))):
            one, two = rng.sample(names, 2)
            if not self.holds_back or self.paces:  # in rings who is full may wait for himself
                self.wires.add((one, two))
        if rng.random() < 0.35 and not (self.only_floods or self.single or self.filters or self.ordinary):
            self._add_originals(names)
        if self.paces and self.pace_rng.random() < 0.4:  # an original that no way leads over
            self._make("o0", original=True)
            self.wires.add(("o0", self.pace_rng.choice(names)))
        for name in list(self.hosts):
            self.clock.after(rng.random(), self._dial_all, name)
            self.clock.after(rng.random(), self._publish_some, name)

    def _make_chain(self) -> None:
        names = [self._make(f"e{number}", forwarding=True).name for number in range(self.few(TTL + 4))]
        self.wires.update(pairwise(names))
        self.hosts[names[-1]].want((b"",))
        for name in names:
            self.clock.after(self.rng.random(), self._dial_all, name)
        for name in (names[0], names[-1]):
            self.clock.after(self.rng.random(), self._publish_some, name)

    def _make_shortcuts(self) -> None:
        rng = self.shortcut_rng
        names = [
            self._make(f"e{number}", forwarding=True).name for number in range(max(3, self.few(rng.randint(4, 7))))
        ]
        far = [(one, two) for place, one in enumerate(names) for two in names[place + 2 :]]
        self.wires.update(pairwise(names), rng.sample(far, min(len(far), rng.choice((1, 2, 4)))))
        for name in names:
            self.hosts[name].want(rng.choice(((b"",), (b"/a", b"/b"), (b"/a/x",))))
            self.clock.after(rng.random(), self._dial_all, name)
            self.clock.after(rng.random(), self._publish_some, name)

    def _add_originals(self, names: list[str]) -> None:
        rng = self.rng
        # Originals bring what they know to every part of a network that is cut by endpoints that do not forward.
        for host in self.alive(EndpointSubject):
            if not host.options.forwarding:
                self._make(host.name, forwarding=True)
        for number in range(self.few(rng.choice((1, 1, 2, 3)))):
            name = f"o{number}"
            self._make(name, original=True)
            for other in rng.sample(names, min(len(names), rng.choice((1, 2, 3)))):
                self.wires.add((name, other) if rng.random() < 0.5 else (other, name))
        if "o1" in self.hosts and rng.random() < 0.25:
            self.loops = True
            self.originals_alone = not self.settings.plain and Random(f"alone {self.seed}").random() < ORIGINALS_ALONE
            self.wires.add(("o0", "o1"))

    def _make(
        self, name: str, *, original: bool = False, forwarding: bool | None = None, own_id: bytes | None = None,
        first_number: int | None = None,
    ) -> MeshHost:  # fmt: skip
        rng = self.rng
        if first_number is not None:  # its time of day was set back
            self.stage.set_clock(name, (first_number - self.numbers_from - 1) / 1e6 - self.now)
        self._lives_made += 1
        life = f"{name}#{self._lives_made}"
        former = self.hosts.get(name)
        if former is not None and former.alive:
            former.die()
        if self.charter is not None:
            own_id = self.charter.id_of(name) or own_id
        own_id = own_id or rng.randbytes(16)
        if original:
            self.record.originals.add(life)
            self.born(life, True)
            host: MeshHost = OriginalHost(self, name, life, own_id)
        else:
            options = EndpointOptions(
                forwarding=rng.random() > 0.15 if forwarding is None else forwarding,
                paths=2 if not (self.settings.plain or self.filters) and self.paths_rng.random() < TWO_WAYS else 1,
                heartbeat_s=rng.choice((0.5, 1.0, 2.0)),
                peer_messages_max=rng.choice((16, 64, 1024)),
                peer_policy=rng.choice(
                    [each for each in Policy if each is not Policy.DISCONNECT or not self.only_floods]
                ),
                first_number=first_number or self.numbers_from + 1 + int(self.now * 1_000_000),
                peer_bytes_max=PEER_BYTES_MAX if self.settings.plain else self.more_rng.choice(BYTES_MAX),
                limits=self.mesh_limits,
                last_values=self.keeps(),
            )
            if self.single or self.shortcuts:
                options = replace(options, peer_policy=Policy.BLOCK)
            if self.holds_back:
                options = replace(options, peer_policy=Policy.BLOCK)
            if self.paces or self.filters:  # boxes that have room for a batch, also in parts
                options = replace(
                    options,
                    peer_messages_max=max(64, options.peer_messages_max),
                    peer_bytes_max=max(131_072, options.peer_bytes_max),
                )
            if self.holds_back or (self.paces and options.peer_policy is Policy.BLOCK):  # for what all bring at once
                options = replace(options, peer_messages_max=4096 if self.paces else 256, peer_bytes_max=PEER_BYTES_MAX)
            self.born(life, options.forwarding)
            host = self.endpoint(self, name, life, own_id, options, self.core)
            self.trace(host, "begins as %s: %s", own_id.hex(), options)
        host.want(rng.sample(PREFIXES, rng.choice((0, 1, 1, 2, 3))))
        return host

    def restart(self, name: str) -> None:
        """A host that crashed lives again, with its id or another one."""
        host = self.hosts[name]
        if host.alive:
            return
        own_id = host.own_id if self.rng.random() < 0.5 else None
        if own_id in self._set_back or (self.rogues and not self.settings.plain):
            own_id = None  # who told its versions and numbers for it can have them taken for those of its next life
        if isinstance(host, EndpointSubject):
            number = None
            if own_id is not None and not self.settings.plain and self.more_rng.random() < 0.5:
                number = host.options.first_number - self.more_rng.choice(SET_BACK)
                self._set_back.add(own_id)  # once: its next life would not know which numbers this one had
            self._make(name, forwarding=host.options.forwarding, own_id=own_id, first_number=number)
        else:
            self._make(name, original=True)
        self._dial_all(name)
        self._publish_some(name)

    def _dial_all(self, name: str) -> None:
        host = self.hosts[name]
        for one, two in sorted(self.wires):
            if one == name and host.alive:
                host.peer(self.hosts[two].address, self.rng.choice(RETRY_S))

    def invite(self) -> None:
        """Perhaps have a rogue among them, until ``expel``; not where loops that nobody sees need all attention."""
        if self.rogue_comes and not self.loops:
            self.rogues.append(RogueHost(self, self.rogue_rng))
            self.clock.after(self.rogue_rng.random(), self.rogues[-1].dial)

    def expel(self) -> None:
        """Have the rogues end."""
        for rogue in self.rogues:
            rogue.die()
            self.rogue_until = self.now

    # -- messages ---------------------------------------------------------------------------------

    def _publish_some(self, name: str) -> None:
        host = self.hosts[name]
        if not self.publishing or not host.alive or (self.originals_alone and not host.original):
            return
        if not host.frozen:
            for _ in range(self.rng.choice((1, 1, 1, 2, 3, 20))):
                self.publish(host)
            if isinstance(host, EndpointSubject) and not self.settings.plain:
                self._do_more(host)
            if self.batches and self.batch_rng.random() < 0.3:
                batches = self.batch_rng
                self.publish_many(host, batches.choice(TOPICS), batches.choice((2, 5, 30)), batches.choice((0, 0, 600)))
                if batches.random() < 0.3:
                    self.publish(host, batches.choice(TOPICS))
        self.clock.after(self.rng.choice((0.05, 0.3, 1.0)), self._publish_some, name)

    def _do_more(self, host: EndpointSubject) -> None:
        """Commands, messages for one alone, topics that few want, calls that end, and last values."""
        if self.lasts and self.last_rng.random() < 0.03:
            host.want_last(self.last_rng.sample(PREFIXES, 2))
        rng = self.more_rng
        somebody = rng.choice(list(self.hosts.values()))
        receiver = rng.choice((None, somebody))
        if not any(each.original for each in self.hosts.values()) and somebody is not host and rng.random() < 0.5:
            self.publish(host, rng.choice(TOPICS), 0, rng.choice((DATA, COMMAND)), receiver)
        if rng.random() < 0.2:
            self.publish(host, rng.choice(MANY) + b"x")
        if rng.random() < 0.1:
            host.await_peer(rng.choice((somebody.own_id, rng.randbytes(16))), rng.choice((0.1, 2.0)))
        if rng.random() < 0.1 and somebody is not host:
            host.ping(somebody.own_id)
