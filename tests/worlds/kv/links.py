"""What is promised of the mesh beneath a data store, as far as sockets and statuses show it."""

from __future__ import annotations

from typing import Any, Final

from chappe.mesh.events import LinkEnded
from chappe.mesh.flows import FLOWS, HEAD_BYTES, KIND_AT, parse_head
from chappe.sim.streams import PREFIX, StreamSide
from chappe.sim.world import Checker

SILENT: Final = "nothing came from it"  # how the reason begins why a silent peer is lost


class Storms(Checker[Any]):
    """A publication crosses each link at most once in each direction along one tree."""

    name = "storms"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._rest: dict[StreamSide, bytes] = {}  # of a frame that is not written whole
        self._crossed: set[tuple[StreamSide, bytes, int, int]] = set()

    def on_written(self, side: StreamSide, pieces: list[bytes]) -> None:
        """Look at the frames in what a socket has sent; each piece stands for a packet of the simulator."""
        data = self._rest.get(side, b"") + b"".join([piece[PREFIX:] for piece in pieces])
        at = 0
        while (end := at + PREFIX + int.from_bytes(data[at : at + PREFIX])) <= len(data) and len(data) >= at + PREFIX:
            self._look(side, data[at + PREFIX : end])
            at = end
        self._rest[side] = data[at:]

    def _look(self, side: StreamSide, frame: bytes) -> None:
        if len(frame) >= HEAD_BYTES and frame[KIND_AT] in FLOWS:
            origin, number, tree, _ = parse_head(frame)
            crossing = side, origin, number, tree
            if crossing in self._crossed:
                self.fail(f"{side.host.name} sends {number} of {origin.hex()} to {side.other.host.name} twice")
            self._crossed.add(crossing)


class Patience(Checker[Any]):
    """A peer that runs and can be reached is not lost for its silence."""

    name = "patience"

    def on_lost(self, host: Any, status: LinkEnded) -> None:
        """Look whether it was dead, or the way to it cut."""
        life, reason = self.world.lives[status.peer_id], status.reason
        alive = any(each.life == life and each.alive for each in self.world.endpoints())
        if reason.startswith(SILENT) and alive and frozenset((host.life, life)) not in self.world.cuts:
            self.fail(f"{host.life} gives {life} up, which runs: {reason}")
