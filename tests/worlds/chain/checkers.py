"""What is promised of a chain: one history at all servers, in which each confirmed command is once."""

from __future__ import annotations

from typing import Any

from tests.worlds.chain.members import ClientLife, ServerLife

from chappe.limits import CHAIN_LIMITS
from chappe.replication.chain.messages import Entry
from chappe.sim.world import Checker, Excused


class Same(Checker[Any]):
    """What is committed is the same everywhere, at all members, and each command is in it once."""

    name = "one history"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.committed: list[Entry] = []
        self._states: dict[int, bytes] = {}

    def on_step(self, host: ServerLife) -> None:
        """A server has done something."""
        core = host.core
        for found in core.invariants():
            self.fail(f"{host.name}: {found}")
        before = host.checked
        for index in range(max(before, core.log.base) + 1, core.committed + 1):
            self._same(host, index, core.log.entry(index))
        if core.committed > before:
            host.checked = core.committed
            if core.tail and core.aligned:
                self._everywhere(host)
            state = core.replica.snapshot()
            if self._states.setdefault(core.committed, state) != state:
                self.fail(f"{host.name} has another state behind {core.committed}")
            if len(host.machine.did) > len(set(host.machine.did)):
                self.fail(f"{host.name} has done a command twice: {host.machine.did}")
        if core.member and core.aligned:
            self._part(host)

    def _same(self, host: ServerLife, index: int, entry: Entry) -> None:
        if index <= len(self.committed):
            if self.committed[index - 1] != entry:
                self.fail(f"{host.name} commits {entry} as {index}, which is {self.committed[index - 1]}")
        elif index == len(self.committed) + 1:
            self.committed.append(entry)
        else:
            self.fail(f"{host.name} commits {index}, before was {len(self.committed)}")

    def _everywhere(self, host: ServerLife) -> None:
        """What the tail commits is at all members of its configuration that live, as safe as promised."""
        upto = host.core.committed
        for place, life in host.core.configuration.chain:
            other = self.world.hosts.get(self.world.servers[place])
            if isinstance(other, ServerLife) and other.alive and other.core.life == life:
                held = other.core.synced if self.world.durable else other.core.log.end
                if held < upto:
                    self.fail(f"{host.name} commits {upto}, {other.name} has {held}")

    def _part(self, host: ServerLife) -> None:
        """The log of a member is a part of that of its predecessor."""
        core = host.core
        if core.head:
            return
        before = self.world.hosts.get(self.world.servers[core._before()])
        if not isinstance(before, ServerLife) or before.core.number != core.number or not before.alive:
            return
        other = before.core
        if not other.member or not other.aligned:
            return
        end = core.log.end
        if end > other.log.end:
            self.fail(f"{host.name} has {end} entries, {before.name} before it {other.log.end}")
        low = max(core.log.base, other.log.base)
        for index in range(max(low, end - 3) + 1, end + 1):
            if core.log.entry(index) != other.log.entry(index):
                self.fail(f"{host.name} and {before.name} differ at {index}")

    def unsettled(self) -> str | None:
        """All servers are members and have the same, and nobody waits."""
        world = self.world
        hosts = world.running()
        if len(hosts) < len(world.servers):
            return f"of {len(world.servers)} servers {len(hosts)} run"
        configuration = world.newest().core.configuration
        if configuration.chain and not world.durable:
            members = dict(configuration.chain)
            if not any(members.get(host.place) == host.core.life for host in hosts):
                raise Excused("the state was in memory only, and no member is left")
        disks = {host.place: host.core.agreement.memory.disk for host in hosts}
        if configuration.chain and all(configuration.disks[each] != disks[each] for each in configuration.places):
            raise Excused("the disk is lost of the last member, which it became at that moment")
        for host in hosts:
            core = host.core
            if not core.member or not core.aligned:
                return f"{host.name} is not a member: {core.story()}; {core.why}"
            if core.number != hosts[0].core.number or core.committed != core.log.end:
                return f"{host.name}: {core.story()}"
            if core.committed != hosts[0].core.committed:
                return f"{host.name} has {core.committed}, {hosts[0].name} has {hosts[0].core.committed}"
        waiting = [host.name for host in world.alive(ClientLife) if host.under_way]
        return f"{', '.join(waiting)} wait" if waiting else None


class Once(Checker[Any]):
    """A command that was confirmed is done, and one that no server has taken is not."""

    name = "confirmed commands"

    def __init__(self, world: Any, same: Same) -> None:
        super().__init__(world)
        self._same = same
        self._confirmed: set[int] = set()
        self._refused: set[int] = set()

    def on_confirmed(self, host: ClientLife, number: int) -> None:
        """A client was told so."""
        if number:
            self._confirmed.add(number)

    def on_refused(self, host: ClientLife, number: int) -> None:
        """A client was told that no server has taken it."""
        self._refused.add(number)

    def on_expired(self, host: ClientLife) -> None:
        """A client was told that its session is over: that must have a reason, and a wrong clock is none."""
        limits = self.world.limits
        most = (limits.sessions_max, limits.session_s, limits.results_bytes)
        if most == (CHAIN_LIMITS.sessions_max, CHAIN_LIMITS.session_s, CHAIN_LIMITS.results_bytes):
            self.fail(f"{host.name} has lost its session, which nobody else was in the way of")

    def unsettled(self) -> str | None:
        """Look whether all are there."""
        for host in self.world.running():
            if host.core.member and host.core.aligned and host.core.committed == len(self._same.committed):
                did = set(host.machine.did)
                if lost := self._confirmed - did:
                    self.fail(f"{host.name} lacks the confirmed commands {sorted(lost)}")
                if done := self._refused & did:
                    self.fail(f"{host.name} has done commands that no server has taken: {sorted(done)}")
        return None
