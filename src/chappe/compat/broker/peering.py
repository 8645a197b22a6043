"""Endpoints, peers, statuses and errors, as the original bindings show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from chappe.compat.broker.enums import SC, PeerFlags, PeerStatus
from chappe.errors import PeeringError
from chappe.mesh.events import LinkStatus
from chappe.mesh.events import Status as MeshStatus

NOBODY: Final = str(UUID(int=0))
# What the original calls each code, and what it says.
_STATUSES: Final = {
    SC.Unspecified: ("unspecified", ""),
    SC.PeerAdded: ("peer_added", "handshake successful"),
    SC.PeerRemoved: ("peer_removed", "removed connection to remote peer"),
    SC.PeerLost: ("peer_lost", "lost connection to remote peer"),
    SC.EndpointDiscovered: ("endpoint_discovered", "found a new peer in the network"),
    SC.EndpointUnreachable: ("endpoint_unreachable", "lost the last path"),
}
_ERRORS: Final = {
    2: ("peer_incompatible", "incompatible peer"),
    3: ("peer_invalid", "cannot unpeer from unknown peer"),
    4: ("peer_unavailable", "unable to connect to remote peer"),
}


@dataclass(slots=True)
class NetworkInfo:
    """Where a peer was dialled, or where it dialled from."""

    address: str
    port: int

    def __repr__(self) -> str:
        return f"{self.address}:{self.port}"


class OptionalNetworkInfo:
    """A NetworkInfo, or none."""

    def __init__(self, network: NetworkInfo | None) -> None:
        self._network = network

    def is_set(self) -> bool:
        """Whether there is one."""
        return self._network is not None

    def get(self) -> NetworkInfo:
        """It; raises RuntimeError if there is none."""
        if self._network is None:
            raise RuntimeError("there is no network information; see is_set()")
        return self._network

    def __repr__(self) -> str:
        return repr(self._network)


class EndpointInfo:
    """Who an endpoint is and where."""

    def __init__(self, node_id: str, network: NetworkInfo | None = None) -> None:
        self._node_id = node_id
        self.network = OptionalNetworkInfo(network)

    def node_id(self) -> str:
        """The id."""
        return self._node_id

    def __repr__(self) -> str:
        return self._node_id


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A direct peer."""

    peer: EndpointInfo
    flags: PeerFlags
    status: PeerStatus


class Status:
    """Something that happened to a peer."""

    def __init__(self, event: MeshStatus) -> None:
        self._code = SC(event.code)
        network = NetworkInfo(*event.address) if isinstance(event, LinkStatus) else None
        self._context = EndpointInfo(event.id, network)
        self._reason = event.reason if isinstance(event, LinkStatus) else ""

    def code(self) -> SC:
        """What happened."""
        return self._code

    def context(self) -> EndpointInfo:
        """To whom."""
        return self._context

    def __repr__(self) -> str:
        name, text = _STATUSES[self._code]
        network = self._context.network
        where = f", {network.get()}" if network.is_set() else ""
        reason = f" ({self._reason})" if self._code is SC.PeerRemoved and self._reason else ""
        return f'{name}({self._context.node_id()}{where}, "{text}{reason}")'


class Error:
    """Something that did not work."""

    def __init__(self, error: PeeringError) -> None:
        self._code = error.code
        self._address = error.address
        self._peer_id = NOBODY if error.peer_id is None else str(UUID(bytes=error.peer_id))

    def code(self) -> int:
        """Its number, to be compared with those of ``EC``."""
        return self._code

    def __repr__(self) -> str:
        name, text = _ERRORS.get(self._code, ("unspecified", ""))
        where = "" if self._address is None else f", *{self._address[0]}:{self._address[1]}"
        return f'{name}(endpoint_info({self._peer_id}{where}), "{text}")'
