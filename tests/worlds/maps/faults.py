"""What befalls a pair of map servers: all faults of the ground with a witness; without one, those that it bears."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.worlds.ground_faults import GroundFaults
from tests.worlds.maps.members import SERVERS
from tests.worlds.residents import Place

from chappe.replication.binary_star.messages import WITNESS

ALL: Final = 10**9  # more than is ever written
VOID_S: Final = 3.0  # a server is cut off so long
VOID_WRITTEN_S: Final = 0.5  # and clients write so long of it
ALONE_S: Final = 1.5  # by then a server goes on without the other one
STALLED_S: Final = 3.5
PARTED_S: Final = 0.4  # too short for a server to go on alone


class PairFaults(GroundFaults):
    """Disturbs a pair. Without a witness nothing begins to go wrong before both are paired again."""

    def kinds(self) -> Sequence[tuple[int, Callable[[], None]]]:
        """What happens, and how often beside the others."""
        kinds: list[tuple[int, Callable[[], None]]] = [
            (6, self.kill), (4, self.part_and_kill), (3, self.freeze), (2, self.kill_client), (2, self.freeze_client),
            (2, self.stuff), (1, self.break_connection),
        ]  # fmt: skip
        if self.world.witnessed:
            kinds += [*super().kinds(), (2, self.kill_both), (3, self.cut_witness), (3, self.void)]
        else:
            kinds += [(4, self.cut), (2, self.cut_one_way)] if self.world.parts else [(4, self.kill_in_turn)]
        if self.world.durable:
            kinds += [(3, self.fill), (2, self.stall_disk)]
        return kinds

    def heal(self) -> None:
        """End everything that is wrong."""
        self.world.quiet_until = 0.0
        super().heal()

    # -- servers ----------------------------------------------------------------------------------------------

    def _server(self, name: str) -> Place:
        found: Place = next(each for each in self.world.places if each.name == name)
        return found

    def _calm(self) -> Any:
        """The active server, if both run and are paired."""
        running = self.world.running()
        active = self.world.active()
        if len(running) < 2 or active is None or any(each.resident.place.paused for each in running):
            return None
        return active if active.core.star.confirms == "paired" else None

    def _bears(self) -> bool:
        return bool(self.world.witnessed or self._calm() is not None)

    def _other(self, name: str) -> Place:
        return self._server(SERVERS[1 - SERVERS.index(name)])

    def _end(self, place: Place, back_s: float) -> None:
        place.kill(power_cut=False)
        self.world.clock.after(back_s, place.restart)

    def kill(self) -> None:
        """One is killed, and comes back."""
        if self._bears():
            self._end(self._server(self.rng.choice(SERVERS)), self.rng.choice((0.1, 1.0, 3.0)))

    def kill_both(self) -> None:
        """Both are killed at once."""
        for name in SERVERS:
            self._end(self._server(name), self.rng.choice((0.1, 1.0, 3.0)))

    def part_and_kill(self) -> None:
        """The active one no longer reaches the passive one, and is killed before it could go on alone."""
        if (active := self._calm()) is not None:
            self.world.stage.cut(*SERVERS)
            self.world.clock.after(PARTED_S, self._end, active.resident.place, 3.0)
            self.world.clock.after(PARTED_S, self._mend)

    def kill_in_turn(self) -> None:
        """The passive backup is killed, then the primary, which went on alone; the backup comes back first."""
        active = self._calm()
        if active is not None and active.name == SERVERS[0]:
            self._end(self._server(SERVERS[1]), 2.1)
            self.world.clock.after(2.0, self._end, active.resident.place, 3.0)

    def freeze(self) -> None:
        """One stands still."""
        if self._bears():
            self._freeze(self._server(self.rng.choice(SERVERS)))

    def _freeze(self, place: Place) -> None:
        if place.up and not place.paused:
            place.pause()
            self.world.clock.after(self.rng.choice((0.3, 0.6, 1.5, 4.0)), place.resume)

    # -- clients ----------------------------------------------------------------------------------------------

    def _client(self) -> Place:
        found: Place = self.rng.choice([each for each in self.world.places if each.name not in (*SERVERS, WITNESS)])
        return found

    def kill_client(self) -> None:
        """A client ends, and another one begins."""
        self._end(self._client(), 0.5)

    def freeze_client(self) -> None:
        """A client stands still."""
        self._freeze(self._client())

    def _connections(self) -> list[Any]:
        return [each for each in self.world.net.connections if each.router.name in SERVERS]

    def stuff(self) -> None:
        """Nothing comes from a server to one that follows it for a while, so that its queue is full."""
        if found := self._connections():
            self.rng.choice(found).down.held_until = self.world.now + self.rng.choice((0.1, 1.0, 4.0))

    def break_connection(self) -> None:
        """A connection by which somebody asks a server breaks."""
        if found := self._connections():
            self.rng.choice(found).break_()

    # -- the network --------------------------------------------------------------------------------------------

    def _two(self) -> tuple[str, str] | None:
        if not self.world.witnessed:
            self.world.excused = ALL
        return super()._two()

    def cut_witness(self) -> None:
        """A server and the witness do not reach each other; perhaps just when it is asked."""
        for one, two in ((WITNESS, self.rng.choice(SERVERS)), SERVERS)[: self.rng.choice((1, 2))]:
            self.world.stage.cut(one, two, one_way=self.rng.random() < 0.3)
        self.world.clock.after(3.0, self._mend)

    def void(self) -> None:
        """The active server goes on where only clients reach it, so what it numbers is void; later it leads again.

        Meanwhile little is written, so that the numbers come again for something else.
        """
        active, clients = self._calm(), self.world.clients()
        if active is None or len(clients) < 2:
            return
        other = self._other(active.name)
        for one in (other.name, WITNESS, clients[0].name):
            self.world.stage.cut(one, active.name)
        self.world.clock.after(VOID_WRITTEN_S, self._be_quiet)
        self.world.clock.after(VOID_S, self._mend)
        self.world.clock.after(VOID_S + 4.0, self._end, other, 2.0)

    def _be_quiet(self) -> None:
        if self.on:
            self.world.quiet_until = self.world.now + VOID_S + 5.0

    # -- disks ------------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """A server's disk is full for a while; perhaps just when it should take over."""
        place = self._server(self.rng.choice(SERVERS))
        disk = self.world.stage.disk(place.name)
        disk.refuse()
        self.world.clock.after(self.rng.choice((0.1, 1.0, 3.0)), disk.refuse, 0.0)
        if self.rng.random() < 0.5 and self._bears():
            self._end(self._other(place.name), self.rng.choice((0.1, 1.0, 3.0)))

    def stall_disk(self) -> None:
        """The disk of the active server takes nothing while the other one copies its map; then that goes on without it.

        So what the other one copies has no write that waits for the disk.
        """
        if (active := self._calm()) is not None:
            disk = self.world.stage.disk(active.name)
            self._end(self._other(active.name), ALONE_S + 0.1)
            self.world.clock.after(ALONE_S, disk.slow, STALLED_S)
            self.world.clock.after(STALLED_S, self._end, active.resident.place, 2.0)
            self.world.clock.after(STALLED_S, disk.slow, self.world.usual_disk_s)
