"""Worlds of the log whose topics are sealed for groups, which change while records go around.

Every host has the files of its identity, which outlive its programs. A change of the authority comes to one of them,
and from there to all through towers; days pass, so that epochs end. What the log carries is looked at by the other
promises: these are about what comes of it at who may read, and at who may not.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.worlds.log.faults import LogFaults
from tests.worlds.log.identities import KeyedLog
from tests.worlds.log.residents import LogLife, ProducerLife, ProducerResident
from tests.worlds.sealed.forgeries import Forgeries
from tests.worlds.sealed.members import SealedConsumer, WatchedOpening, WatchedSealing
from tests.worlds.sealed.secrets import Secrets
from tests.worlds.sealing import LOOK_S, MARK, Authority, Nonces, signed_file
from tests.worlds.stage import Replaced

from chappe.api.log import consumer as consumers
from chappe.api.log import producer as producers
from chappe.limits import LOG_LIMITS
from chappe.log.batch import Batch
from chappe.log.handing_on import VERSION, is_handed_on
from chappe.permissions.rules import EVERYTHING, Rule
from chappe.runtime.meeting import TOWER_SAYS, AtTowers
from chappe.sealing.records import Sealer
from chappe.security import permissions_file, sealed_file
from chappe.sim.world import Outcome
from chappe.storage import key_files, sealed_files
from chappe.system import machine

MANY: Final = 12  # of each kind; no world has more
PRODUCERS: Final = tuple(f"producer{number}" for number in range(MANY))
CONSUMERS: Final = tuple(f"consumer{number}" for number in range(MANY))
NAMES: Final = (*PRODUCERS, *CONSUMERS)
OTHERS: Final = (*(f"store{number}" for number in range(MANY)), "tower0", "tower1")
COPY_S: Final = 1.0  # within which a machine is given what the authority has made
FORGOTTEN: Final = 0.3  # of the times keys are copied some seconds later
DEAF_S: Final = 5.0  # for which one is told nothing
DAY_US: Final = 25 * 3_600_000_000  # and a bit
KEEPS: Final = 0.8  # of the hosts may write what they are handed
LAB: Final = 0.5  # of the worlds have another group, for the other topic
LOST: Final = 0.1  # of what is handed on
FORGED: Final = 0.3  # of the seconds somebody hands on what nobody has made
PERMISSIONS: Final = permissions_file(Path()).name
EVERYBODY: Final = Rule(True, frozenset([EVERYTHING]), frozenset(), frozenset("*"), ("*",))


class Sealed(KeyedLog):
    """Producers that seal, consumers that open, and groups that change."""

    large_answers = LOG_LIMITS.asks_max  # records that come one by one are far larger than plain ones
    sharing = 0.0  # each has an identity of its own
    mark = MARK
    consumer_life = SealedConsumer

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lasts = self.ages = False
        self.ground_faults = SealedFaults(self)
        self.seal_rng, self._forge_rng = Random(f"groups {self.seed}"), Random(f"keys {self.seed}")
        self.authority = Authority(
            self.seed, NAMES, self._groups(), lambda: self.clock.wall_us, rules=(EVERYBODY,), others=OTHERS
        )
        self.nonces = Nonces()
        self.plain: dict[bytes, bytes] = {}  # what each sealed batch was before
        self.told: dict[Any, dict[str, tuple[int, float]]] = {}  # by host and group: of which epoch it heard last, when
        self.sealings: dict[str, WatchedSealing] = {}  # by partition, in its present life
        self.loss = LOST  # of what is handed on
        self._deaf: dict[str, float] = {}  # to whom nothing is handed, until when
        self._keeps: dict[str, bool] = {}
        self._epochs: dict[tuple[str, int], int] = {}  # the newest one of each version of a group's keys
        self._signed: list[bytes] = []  # permissions, by version
        self.secrets, self.forgeries = Secrets(self), Forgeries(self)
        self.watch(self.forgeries, self.secrets)
        self._note()

    def _groups(self) -> Mapping[str, tuple[tuple[str, ...], set[str]]]:
        rng = self.seal_rng
        producers = {name for name in PRODUCERS if rng.random() < 0.8}
        groups = {"ward": (("a*",), producers | {name for name in CONSUMERS if rng.random() < 0.6})}
        if rng.random() < LAB:
            groups["lab"] = ("b.x",), producers | {name for name in CONSUMERS if rng.random() < 0.6}
        return groups

    def _replaced(self, *arguments: Any) -> list[Replaced]:
        def sealer(name: str, salt: bytes, sign: Any) -> Sealer:
            return Sealer(name, salt, sign, self.nonces.cipher)

        return [
            *super()._replaced(*arguments),
            (producers, "Sealing", WatchedSealing),
            (consumers, "Opening", WatchedOpening),
            (sealed_files, "Sealer", sealer),
            *((home, "put_beside", self._keeping(key_files.put_beside)) for home in (key_files, sealed_files)),
            (AtTowers, "hear", self._hearing(AtTowers.hear)),
        ]

    # -- files --------------------------------------------------------------------------------------------------

    def files(self) -> Mapping[str, bytes]:
        found = {sealed_file(Path(), group).name: chain.raw() for group, chain in self.authority.chains.items()}
        return {PERMISSIONS: self._signed[-1], **found}

    def _note(self) -> None:
        """Keep what the authority has made."""
        self._signed += map(signed_file, self.authority.versions[len(self._signed) :])
        for group in self.authority.chains:
            keys = self.authority.keys(group)
            self._epochs[group, keys.version] = keys.newest.number

    def _keeping(self, put_beside: Callable[..., None]) -> Callable[..., None]:
        def put(path: Path, raw: bytes) -> None:
            host = path.parent.name
            if host not in self._keeps:
                self._keeps[host] = self.seal_rng.random() < KEEPS
            if not self._keeps[host]:
                raise OSError(errno.EROFS, "nobody writes here")
            put_beside(path, raw)

        return put

    def _hearing(self, hear: Callable[..., Any]) -> Callable[..., Any]:
        def watched(meeting: AtTowers, link: Any, frames: Any) -> Any:
            if link is TOWER_SAYS and is_handed_on(frames[0]):
                host: Any = machine.current()
                if self._deaf.get(host.name, 0.0) > self.now or self.seal_rng.random() < self.loss:
                    return ()
                if frames[0] == VERSION:
                    said = {each[8:].decode(): int.from_bytes(each[:8]) for each in frames[2:]}
                    self.told[host] = {
                        group: (self._epochs.get((group, version), 0), self.now) for group, version in said.items()
                    }
            return hear(meeting, link, frames)

        return watched

    def opened(self, batch: Batch) -> Batch:
        """What a batch was before it was sealed, as far as it has it."""
        if batch.sealed is None:
            return batch
        whole = Batch.parse(self.plain[bytes(batch.sealed)], check=False)
        return whole if whole.count == batch.count else Batch.parse(whole.slice(batch.base, batch.next), check=False)

    # -- changes ----------------------------------------------------------------------------------------------

    def plan(self, until: float) -> float:
        """As the log; and groups that change."""
        until = super().plan(until)
        rng = self.seal_rng
        for _ in range(rng.choice((1, 3, 8, 15)) if self.settings.disturb else 0):
            self.clock.at(self.now + rng.uniform(0.0, until), self._change)
        for _ in range(rng.choice((1, 2, 5)) if self.settings.disturb else 0):
            self.clock.at(self.now + rng.uniform(0.0, until), self._leave_behind)
        return until

    def _change(self) -> None:
        if not self.sending:
            return
        rng, authority = self.seal_rng, self.authority
        group, name = rng.choice(list(authority.chains)), rng.choice(self._living())
        kind = rng.choice(("join", "join", "leave", "leave", "revoke", "rotate", "give"))
        if kind == "join":
            done = authority.join(group, name)
        elif kind == "leave":
            done = authority.leave(group, name)
        elif kind == "revoke":
            done = authority.revoke(name)
        elif kind == "rotate":
            done = True
            authority.rotate(group)
        else:
            newest = authority.keys(group).newest.number
            done = name in authority.members[group] and authority.give(group, name, rng.randint(1, newest))
        if done:
            self._note()
            self.trace(None, "%s: %s %s, epoch %d", group, name, kind, authority.keys(group).newest.number)
            self.clock.after(rng.uniform(0.0, COPY_S), self._copy)
            if kind == "revoke":
                self.clock.after(rng.choice((1.0, 4.0)), self._retire, name)

    def _retire(self, name: str) -> None:
        """End a host for good whose identity was revoked: nobody lets it in any more."""
        for place in [each for each in self.places if each.name == name]:
            place.kill(power_cut=False)
            for each in place.residents:
                each.gone = True
                if isinstance(each, ProducerResident) and each.now is not None:
                    self.truth.of(each.now.key).gone = True

    def _living(self) -> list[str]:
        return [each.name for each in self.places if each.name in NAMES] or [NAMES[0]]

    def _copy(self) -> None:
        """Somebody copies the authority's files to one host."""
        names = [*self._living(), *(each.name for each in self.towers)]
        name = self.seal_rng.choice(names)
        if self.seal_rng.random() < FORGOTTEN:
            self.trace(None, "the permissions are copied to %s, and later the keys", name)
            self.directories.copy(name, PERMISSIONS)
            self.clock.after(self.seal_rng.uniform(1.0, 4.0), self.directories.copy, name)
        else:
            self.trace(None, "the files are copied to %s", name)
            self.directories.copy(name)

    def _leave_behind(self) -> None:
        """One is told nothing for a while, in which it becomes a member, or days pass after a new epoch."""
        if not self.sending:
            return
        rng, authority = self.seal_rng, self.authority
        group, living = rng.choice(sorted(authority.chains)), [each.name for each in self.places]
        writers = [name for name in living if name in PRODUCERS and not authority.revoked(name)]
        new = [
            name for name in living
            if name in CONSUMERS and name not in authority.members[group] and not authority.revoked(name)
        ]  # fmt: skip
        if new and (not writers or rng.random() < 0.5):
            name = rng.choice(new)
            authority.join(group, name)
        elif writers:
            name = rng.choice(writers)
            authority.rotate(group)
            self.clock.after(DEAF_S / 4, self._pass_days)
        else:
            return
        self._note()
        self.trace(None, "%s hears nothing of epoch %d of %s", name, authority.keys(group).newest.number, group)
        self._deaf[name] = self.now + DEAF_S
        for each in [*(each.name for each in self.towers), *(each for each in writers if each != name)]:
            self.directories.copy(each)

    def _pass_days(self) -> None:
        for each in self.towers:
            self.directories.copy(each.name)
            if each.up:
                with self.stage.on(each.name):
                    each.gate.look()
        for _ in range(2):
            self.pass_a_day()

    def pass_a_day(self) -> None:
        """A day is over, in which everything was handed on to towers, and all had something to do.

        Whoever was off, or cut off from all towers, has what it had before.
        """
        if not self.sending or not all(each.up and self.lacks(each.gate) is None for each in self.towers):
            return
        self.stage.set_clocks(self, DAY_US)
        self.trace(None, "a day passes")
        for life in self.alive(ProducerLife):
            if not life.resident.place.paused:
                with self.stage.on(life.resident.place.name):
                    self.sealings[life.key[1]].look_again()

    def lacks(self, gate: Any, name: str = "") -> str | None:
        """Return what somebody lacks of what the authority has made: of all groups, or of those of a name."""
        if gate.version != len(self.authority.versions):
            return f"has version {gate.version} of the permissions"
        known = gate.groups.versions()
        for group, members in self.authority.members.items():
            if (not name or name in members) and known.get(group) != self.authority.keys(group).version:
                return f"has version {known.get(group)} of the keys of {group}"
        return None

    def heal(self) -> None:
        """Everything is handed on from a tower; who is revoked is gone."""
        for name in NAMES:
            if self.authority.revoked(name):
                self._retire(name)
        super().heal()
        self.loss = 0.0
        self.directories.copy(self.towers[0].name)

    # -- who lives there --------------------------------------------------------------------------------------

    def add_others(self) -> None:
        """Make nobody else, and somebody who hands on what nobody has made."""
        self._forge()

    def _forge(self) -> None:
        self.clock.after(LOOK_S, self._forge)
        rng = self._forge_rng
        lives = [each for each in self.alive(LogLife) if not each.resident.place.paused]
        if not lives or rng.random() > FORGED:
            return
        life, group = rng.choice(lives), rng.choice(sorted(self.authority.chains))
        chain = self.authority.chains[group]
        groups = life.ports.gate.groups
        raw = bytearray(chain.after(groups.versions()[group]) or chain.after(rng.randrange(chain.version)))
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        with self.stage.on(life.resident.place.name):
            if groups.offer(group, bytes(raw)):
                self.fail("forgeries", f"{life.name} takes keys of {group} that the authority has not made")

    def play(self) -> Outcome:
        """As every world of the log; who seals says here what it does."""
        WatchedSealing.world = self
        try:
            return super().play()
        finally:
            WatchedSealing.world = None


class SealedFaults(LogFaults):
    """As in the log; clocks agree, and days pass."""

    world: Sealed

    def kinds(self) -> Sequence[tuple[int, Callable[[], None]]]:
        """What happens, and how often beside the others."""
        return (
            *(each for each in super().kinds() if each[1] != self.clock_jump),
            (8, self.world.pass_a_day),
            (3, self.lose_files),
        )

    def lose_files(self) -> None:
        """Most of what is handed on is lost for a while."""
        self.world.loss = 0.7
        self.world.clock.after(4.0, setattr, self.world, "loss", 0.0)
