"""The promises of a pair of map servers.

No two servers are active in one term, as clients see it; what was confirmed is in the map in the end, and what was
refused never was; each write is done once; values end with the client that wrote them; and when all is well both
servers and all clients have the same.

``excused`` writes may be lost, as the docs say: without disks what only dead servers had, without a witness what was
confirmed on one side of a cut, or by a server that is not there while the other begins.
"""

from __future__ import annotations

from typing import Any, Final

from tests.worlds.maps.members import GuideLife, MapLife, ServerLife, Written

from chappe.errors import WriteUnknown
from chappe.kv.chp.messages import SESSION_BYTES
from chappe.replication.binary_star.messages import PASSIVE
from chappe.sim.world import Checker

SESSION_S: Final = 8.5  # at least so long they stay, by the world's clock: those of servers drift


class Terms(Checker[Any]):
    """No two servers are active in one term."""

    name = "one active server"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._epochs: dict[int, tuple[bytes, ServerLife]] = {}

    def on_welcome(self, server: str, epoch: bytes) -> None:
        """A client is served."""
        host = self.world.hosts.get(server)
        if host is None:
            return  # it began a life and could not
        term = int.from_bytes(epoch[8:])
        known, former = self._epochs.setdefault(term, (epoch, host))
        if known != epoch:
            if self.world.durable or former.alive:
                self.fail(f"{server} and {former.name} are both active in term {term}")
            self._epochs[term] = epoch, host  # both have lost their memories


class Survival(Checker[Any]):
    """What was confirmed is there in the end, what was refused is not."""

    name = "confirmed writes"

    def unsettled(self) -> str | None:
        """Whether a write is lost, or done though it was refused."""
        world = self.world
        servers = [each for each in world.running() if each.core.active]
        if len(servers) != 1:
            return f"{len(servers)} servers are active: {[each.core.star.story() for each in world.running()]}"
        found = {entry.key: entry.value[0] for entry in servers[0].core.engine.items()}
        if any(each.outcome is None and host.alive for host in world.clients() for each in host.written.values()):
            return "writes are under way"
        counters: dict[str, dict[bytes, Written]] = {}
        for each in world.written[self.world.excused :]:
            key = each.key.decode()
            if each.expected is not None:
                counters.setdefault(key, {})[each.value] = each
            elif each.outcome is True and (each.key, each.value) not in world.plain and found.get(key) != each.value:
                self.fail(f"{key} was confirmed as {each.value!r}, and is {found.get(key)!r}")
        if not self.world.excused:
            for key, steps in counters.items():
                self._count(key, steps, found.get(key, b""))
        return None

    def _count(self, key: str, steps: dict[bytes, Written], value: bytes) -> None:
        """Go back from the last value: every confirmed step is on the way, and no refused one is."""
        done = set()
        last = value
        while value:
            step = steps[value]
            if step.value in done:
                self.fail(f"{key} went in a circle")
            if step.outcome is not True and step.outcome is not None and not isinstance(step.outcome, WriteUnknown):
                self.fail(f"{key} was set from {step.expected!r} to {value!r}, which was refused: {step.outcome}")
            done.add(value)
            value = step.expected or b""
        for step in steps.values():
            if step.outcome is True and step.value not in done:
                self.fail(f"{key} was confirmed to go from {step.expected!r} to {step.value!r}, and ends as {last!r}")


class Convergence(Checker[Any]):
    """In the end one serves, the other has everything, and clients have what they have."""

    name = "convergence"

    def unsettled(self) -> str | None:
        """What is not yet as it must be."""
        world = self.world
        servers = world.running()
        active = [each for each in servers if each.core.active]
        if len(servers) != 2 or len(active) != 1 or active[0].core.star.confirms != "paired":
            return f"not paired: {[each.core.star.story() for each in servers]}"
        passive = next(each for each in servers if each is not active[0])
        if passive.core.star.state != PASSIVE:
            return f"{passive.name} is not passive: {passive.core.star.story()}"
        contents = contents_of(active[0])
        if contents_of(passive) != contents:
            return f"the passive server has {len(contents_of(passive))} keys, the active one {len(contents)}"
        for client in world.clients():
            if client.core.state != "active" or client.core.pending:
                return f"{client.name} is {client.core.state}, {client.core.pending} writes are not confirmed"
            if isinstance(client, GuideLife):
                continue  # what a cut took from it does not come again
            if contents_of(client) != contents or client.shown != contents:
                return f"{client.name} has something else"
        return None


class Sessions(Checker[Any]):
    """Values end with the client that wrote them: not before, and soon after."""

    name = "session values"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._ended: set[MapLife] = set()  # clients that were silent for too long

    def on_session_ended(self, server: ServerLife, client: MapLife) -> None:
        """A server has removed the values of a client that lives."""
        silent_s = self.world.now - self.world.heard.get(client.name, 0.0)
        if silent_s < SESSION_S:
            self.fail(f"{server.name} took {client.name} for dead, which was heard {silent_s:.1f} s ago")
        self._ended.add(client)

    def unsettled(self) -> str | None:
        """Whether a value has outlived its client, or is gone before it."""
        world = self.world
        server = world.active()
        if server is None:
            return "nobody is active"
        found = {entry.key.encode(): entry.value[1] for entry in server.core.engine.items()}
        sessions = {each.core.session for each in world.clients()}
        for key, uuid in found.items():
            if key.startswith(b"/session/") and uuid[:SESSION_BYTES] not in sessions:
                return f"{key!r} has outlived its client"
        if not world.excused:
            for client in world.clients():
                lost = client.session_keys - found.keys()
                if lost and client not in self._ended:
                    self.fail(f"{client.name} lives, and its values {sorted(lost)} are gone")
        return None


def contents_of(host: Any) -> dict[bytes, bytes]:
    """What a server or a client has."""
    return {entry.key.encode(): entry.value[0] for entry in host.core.engine.items()}


class Watches(Checker[Any]):
    """A program that watches a map is told of each change, in their order."""

    name = "watches"

    def on_wrong(self, text: str) -> None:
        """One was told of something else."""
        self.fail(text)
