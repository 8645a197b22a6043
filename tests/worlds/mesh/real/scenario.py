"""Worlds of the mesh as users run it: endpoints of the API, on hosts that fail, among originals and rogues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.worlds.mesh.base import PORT, MeshHost
from tests.worlds.mesh.paces import SURPLUS
from tests.worlds.mesh.real.endpoints import RealEndpoint
from tests.worlds.mesh.real.wires import RealOriginal, RealRogue, Written
from tests.worlds.mesh.scenario import MeshScenario
from tests.worlds.mesh.subjects import SURPLUS_MAX
from tests.worlds.stage import Replaced, Stage, StagedWorld

from chappe.api.mesh import hosting, subscriber
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.security import Keys, Security
from chappe.sim.streams import PREFIX, StreamSide
from chappe.sim.world import WALL_START_US, Settings, Violation


class Mesh(StagedWorld, MeshScenario):
    """The mesh as users run it: the API's own objects, sockets' buffers and threads' turns."""

    endpoint: type[Any] = RealEndpoint
    original = RealOriginal
    rogue = RealRogue
    net: Any = None

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        core: type[EndpointCore] = EndpointCore,
    ) -> None:
        self._ports: dict[str, int] = {}
        self._views: dict[StreamSide, Written] = {}
        self.first_number = 0  # of the endpoint that was made last
        super().__init__(seed, settings, tell)
        self.core = core
        self.careless = False  # the API always looks whether there is room

    def _wired(self, windows: Sequence[int] | None) -> tuple[Any, Any]:
        self.stage = Stage(self, self.replaced())
        streams = self.stage.streams
        streams.look = self._written
        streams.windows = windows or streams.windows
        return self.stage.net, streams

    def replaced(self) -> list[Replaced]:
        """What means something else while this world is played."""
        return [
            (hosting, "EndpointCore", self._core),
            (subscriber, "SURPLUS_MESSAGES_MAX", SURPLUS if self.paces else SURPLUS_MAX),
        ]

    def security(self, host: RealEndpoint) -> Security | Keys:
        """The keys of an endpoint that begins."""
        return None

    def _core(self, own_id: bytes, options: EndpointOptions, now: float) -> EndpointCore:
        """Make a core with the limits and numbers of this world, which raises what is a defect."""
        first = self.first_number = options.first_number - WALL_START_US + self.numbers_from + 1
        return self.core(own_id, replace(options, limits=self.mesh_limits, first_number=first), now)

    def _make(self, name: str, *, first_number: int | None = None, **options: Any) -> MeshHost:
        if first_number is not None:  # its time of day was set back
            self.stage.set_clock(name, (first_number - self.numbers_from - 1) / 1e6 - self.now)
        return super()._make(name, first_number=first_number, **options)

    def port_of(self, name: str) -> int:
        """See ``MeshWorld``: the stage has one address for all."""
        return self._ports.setdefault(name, PORT + len(self._ports))

    def suspend(self, host: MeshHost, on: bool) -> None:
        super().suspend(host, on)
        if not on:
            self.stage.host(host.name).steady_s = self.steady(host.name) - self.now

    # -- connections --------------------------------------------------------------------------------------------

    def host_of(self, side: StreamSide) -> Any:
        return side.host if isinstance(side.host, MeshHost) else self.hosts[side.host.name]

    def is_closed(self, side: StreamSide) -> bool:
        return getattr(side.host, "closed", False)

    def _view(self, side: StreamSide) -> Written:
        if side not in self._views:
            one = self._views[side] = Written(self.host_of(side))
            other = self._views[side.other] = Written(self.host_of(side.other))
            one.other, other.other = other, one
        return self._views[side]

    def _written(self, side: StreamSide, frames: list[bytes]) -> None:
        view = self._view(side)
        try:
            self.see("on_written", view, view.frames.cut([each[PREFIX:] for each in frames]))
        except Violation as violation:
            self.broken = self.broken or violation

    def has_read(self, host: RealEndpoint, link: int, frames: list[bytes]) -> None:
        """An endpoint has read frames from a peer."""
        side = host.face.node._links[link]._sock._side  # type: ignore[attr-defined]
        self.see("on_read", self._view(side), frames)
