"""The system that ``chappe dashboard`` and ``chappe top`` look at: options, and the sources that look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from chappe.cli import declared, mesh, options
from chappe.system import started

if TYPE_CHECKING:
    from chappe.dashboard.sources import DashboardSource
    from chappe.dashboard.sources.log import LogSource
    from chappe.dashboard.sources.maps import MapSource
    from chappe.dashboard.sources.mesh import MeshSource


@dataclass(frozen=True, slots=True)
class ObservedSystem:
    """The options that say where the parts of a system are."""

    peers: Annotated[
        list[str] | None,
        declared.of("mesh.peers").option("--peer", help=f"An endpoint of the mesh to dial; else {mesh.HERE} is tried."),
    ] = None
    maps: Annotated[
        list[str] | None,
        Option("--map", metavar="HOST[:PORT]", help="A map to follow; of a pair both servers, separated by commas."),
    ] = None
    chains: Annotated[
        list[Path] | None, Option("--chain", metavar="FILE", help="The configuration of a chain to look at.")
    ] = None
    tower: options.Tower = options.TOWER
    listen: options.Listen = options.LISTEN
    forwarders: Annotated[
        str | None,
        Option(envvar="CHAPPE_FORWARDERS", metavar="ADDRESSES", help="Forwarders to look at instead of a tower."),
    ] = None


@dataclass(slots=True)
class SystemSources:
    """The sources of one process; ``shared`` is there where maps are named, ``further`` are chains and pipelines."""

    log: LogSource
    mesh: MeshSource
    shared: MapSource | None
    further: list[DashboardSource]

    @property
    def all(self) -> list[DashboardSource]:
        return [self.log, self.mesh, *([] if self.shared is None else [self.shared]), *self.further]


def sources(
    where: ObservedSystem, context: Context, trust: mesh.Trust, life: mesh.Life, dialling: mesh.DialOptions
) -> SystemSources:
    """Make the sources; close them. Raises UsageError."""
    security = trust.security()
    dialled = mesh.addresses(security, where.peers or [mesh.HERE])
    from chappe.dashboard.sources.log import LogSource
    from chappe.dashboard.sources.maps import MapSource
    from chappe.dashboard.sources.mesh import MeshSource

    tower, forwarders = where.tower, where.forwarders
    command = started.command(f"tower {':'.join(tower.split(':')[:2])}", f"chappe up --tower {tower}")
    if forwarders:
        command = " and ".join(
            started.command(f"forwarder {at}", f"chappe forward DIRECTORY --at {at}") for at in forwarders.split(",")
        )
    told = options.source_of(context, "tower") != "DEFAULT"
    log = LogSource(
        tower,
        listen=where.listen,
        forwarders=forwarders or None,
        security=trust.of_log,
        named=f"the forwarder at {forwarders}" if forwarders else f"the tower at {tower}",
        command=command,
        expected=bool(forwarders) or not (where.peers or where.chains) or told,
    )
    endpoint = life.endpoint(security, forwarding=False)
    meshed = MeshSource(dialled, named=bool(where.peers), endpoint=endpoint, retry=dialling.arguments)
    shared = MapSource(where.maps, trust.of_log) if where.maps else None
    further: list[DashboardSource] = []
    if where.chains:
        from chappe.dashboard.sources.chains import ChainSource

        further.append(ChainSource(where.chains, trust.of_log))
    return SystemSources(log, meshed, shared, further + _pipelines())


def _pipelines() -> list[DashboardSource]:
    from importlib.util import find_spec

    if find_spec("psutil") is None:
        return []
    from chappe.dashboard.sources.pipelines import PipelineSource

    return [PipelineSource()]
