"""Worlds of the log whose topics are sealed for groups, which change while records go around.

Everybody has a machine, whose files outlive its programs. A change of the authority comes to one of them, and from
there to all through towers, as in earnest; days pass, so that epochs end. What the log carries is looked at by the
other promises: these are about what comes of it at who may read, and at who may not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.worlds.log.ends import Ends
from tests.worlds.log.standin.faults import StandInFaults
from tests.worlds.sealed.couriers import Couriers
from tests.worlds.sealed.forgeries import Forgeries
from tests.worlds.sealed.hosts import CONSUMERS, NAMES, PRODUCERS, SealedProducer, SealedWorld
from tests.worlds.sealed.secrets import Secrets

COPY_S: Final = 1.0  # within which a machine is given what the authority has made
FORGOTTEN: Final = 0.3  # of the times keys are copied some seconds later
DEAF_S: Final = 5.0  # for which one is told nothing
DAY_US: Final = 25 * 3_600_000_000  # and a bit


class Sealed(SealedWorld):
    """Producers that seal, consumers that open, and groups that change."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.faults_kind = SealedFaults
        self.checkers = [each for each in self.checkers if not isinstance(each, Ends)]  # positions are those opened
        self.couriers = Couriers(self)
        self.secrets, self.forgeries = Secrets(self), Forgeries(self)
        self.watch(self.forgeries, self.secrets)

    # -- changes ----------------------------------------------------------------------------------------------

    def plan(self, until: float) -> float:
        """See ``Log.plan``; and groups that change."""
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
            self.trace(None, "%s: %s %s, epoch %d", group, name, kind, authority.keys(group).newest.number)
            self.clock.after(rng.uniform(0.0, COPY_S), self._copy)

    def _living(self) -> list[str]:
        return [each.name for each in self.members if each.name in NAMES] or [NAMES[0]]

    def _copy(self) -> None:
        """Somebody copies the authority's files to one machine."""
        names = [*self._living(), *(each.name for each in self.towers)]
        name = self.seal_rng.choice(names)
        if self.seal_rng.random() < FORGOTTEN:
            self.trace(None, "the permissions are copied to %s, and later the keys", name)
            self.machine(name).copy_permissions()
            self.clock.after(self.seal_rng.uniform(1.0, 4.0), self.machine(name).copy)
        else:
            self.trace(None, "the files are copied to %s", name)
            self.machine(name).copy()

    def _leave_behind(self) -> None:
        """One is told nothing for a while, in which it becomes a member, or days pass after a new epoch."""
        if not self.sending:
            return
        rng, authority = self.seal_rng, self.authority
        group, living = rng.choice(sorted(authority.chains)), [each.name for each in self.members]
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
        self.trace(None, "%s hears nothing of epoch %d of %s", name, authority.keys(group).newest.number, group)
        self.couriers.deaf[name] = self.now + DEAF_S
        for each in [*(each.name for each in self.towers), *(each for each in writers if each != name)]:
            self.machine(each).copy()

    def _pass_days(self) -> None:
        for each in self.towers:
            self.machine(each.name).copy()
        for _ in range(2):
            self.pass_a_day()

    def pass_a_day(self) -> None:
        """A day is over, in which everything was handed on to towers, and all had something to do.

        Whoever was off, or cut off from all towers, has what it had before.
        """
        if not self.sending or not all(self.machine(each.name).has_all for each in self.towers):
            return
        self.clock.wall_jump_us += DAY_US
        self.trace(None, "a day passes")
        for host in self.alive(SealedProducer):
            host.look_again()

    def heal(self) -> None:
        """See ``Log.heal``."""
        super().heal()
        self.couriers.loss = 0.0
        self.machine(self.towers[0].name).copy()

    # -- who lives there --------------------------------------------------------------------------------------

    def populate(self) -> None:
        """See ``PopulatedLog.populate``."""
        super().populate()
        self.sealed = False  # these worlds do it in earnest
        self.couriers.begin()

    def meet(self, host: Any) -> None:
        """See ``LogWorld.meet``."""
        super().meet(host)
        if host.name in NAMES:
            self.couriers.join(host, self.machine(host.name))

    def _begin_lodgers(self) -> None:
        """Each has a machine of its own."""


class SealedFaults(StandInFaults):
    """As in the log; clocks agree, and days pass."""

    world: Sealed

    def kinds(self) -> Sequence[tuple[int, Callable[[], None]]]:
        """See ``StandInFaults.kinds``."""
        return (
            *(each for each in super().kinds() if each[1] != self.clock_jump),
            (8, self.world.pass_a_day),
            (3, self.lose_files),
        )

    def lose_files(self) -> None:
        """Most of what is handed on is lost for a while."""
        couriers = self.world.couriers
        couriers.loss = 0.7
        self.world.clock.after(4.0, setattr, couriers, "loss", 0.0)
