"""Endpoints, peers, statuses and errors, as the original bindings show them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum as _Enum
from typing import Final
from uuid import UUID

from chappe.api.mesh.told import ERROR_TEXTS, STATUS_TEXTS
from chappe.errors import ErrorCode, PeeringError
from chappe.mesh.events import LinkStatus
from chappe.mesh.events import Status as MeshStatus


class _Numbered(_Enum):
    """Converts to its number, and equals only itself."""

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


class APIFlags(_Numbered):
    NonBlocking = 0
    Blocking = 1


class Frontend(_Numbered):
    Clone = 0
    Master = 1


class Backend(_Numbered):
    Memory = 0
    SQLite = 1


class EC(_Numbered):
    """Codes of errors; equal to their numbers, which is what ``Error.code()`` gives."""

    Unspecified = 1
    PeerIncompatible = 2
    PeerInvalid = 3
    PeerUnavailable = 4
    PeerTimeout = 6
    MasterExists = 7
    NoSuchMaster = 8
    NoSuchKey = 9
    RequestTimeOut = 10
    TypeClash = 11
    InvalidData = 12
    BackendFailure = 13
    StaleData = 14

    def __eq__(self, other: object) -> bool:
        return self.value == other if isinstance(other, int) else self is other

    def __hash__(self) -> int:
        return hash(self.value)


class SC(_Numbered):
    Unspecified = 0
    PeerAdded = 1
    PeerRemoved = 2
    PeerLost = 3
    EndpointDiscovered = 4
    EndpointUnreachable = 5


class PeerStatus(_Numbered):
    Initialized = 0
    Connecting = 1
    Connected = 2
    Peered = 3
    Disconnected = 4
    Reconnecting = 5


class PeerFlags(_Numbered):
    Invalid = 0
    Local = 1
    Remote = 2
    Outbound = 4
    Inbound = 8


class Version:
    """The version of the original whose interface this is."""

    MAJOR = 2
    MINOR = 8
    PATCH = 0
    PROTOCOL = 2

    @staticmethod
    def compatible(version: int) -> bool:
        return version == Version.PROTOCOL

    @staticmethod
    def string() -> str:
        return f"{Version.MAJOR}.{Version.MINOR}.{Version.PATCH}"


NOBODY: Final = str(UUID(int=0))
_UNSPECIFIED: Final = ("unspecified", "")


@dataclass(slots=True)
class NetworkInfo:
    address: str
    port: int

    def __repr__(self) -> str:
        return f"{self.address}:{self.port}"


class OptionalNetworkInfo:
    def __init__(self, network: NetworkInfo | None) -> None:
        self._network = network

    def is_set(self) -> bool:
        return self._network is not None

    def get(self) -> NetworkInfo:
        """It; raises RuntimeError if there is none."""
        if self._network is None:
            raise RuntimeError("there is no network information; see is_set()")
        return self._network

    def __repr__(self) -> str:
        return repr(self._network)


class EndpointInfo:
    def __init__(self, node_id: str, network: NetworkInfo | None = None) -> None:
        self._node_id = node_id
        self.network = OptionalNetworkInfo(network)

    def node_id(self) -> str:
        return self._node_id

    def __repr__(self) -> str:
        return self._node_id


@dataclass(frozen=True, slots=True)
class PeerInfo:
    peer: EndpointInfo
    flags: PeerFlags
    status: PeerStatus


class Status:
    def __init__(self, event: MeshStatus) -> None:
        self._code = SC(event.code)
        self._said = STATUS_TEXTS.get(type(event), _UNSPECIFIED)
        network = NetworkInfo(*event.address) if isinstance(event, LinkStatus) else None
        self._context = EndpointInfo(event.id, network)
        self._reason = event.reason if isinstance(event, LinkStatus) else ""

    def code(self) -> SC:
        return self._code

    def context(self) -> EndpointInfo:
        return self._context

    def __repr__(self) -> str:
        name, text = self._said
        network = self._context.network
        where = f", {network.get()}" if network.is_set() else ""
        reason = f" ({self._reason})" if self._code is SC.PeerRemoved and self._reason else ""
        return f'{name}({self._context.node_id()}{where}, "{text}{reason}")'


class Error:
    def __init__(self, error: PeeringError) -> None:
        self._code = int(error.code)
        self._text = ERROR_TEXTS.get(self._code, str(error))
        self._address = error.address
        self._peer_id = NOBODY if error.peer_id is None else str(UUID(bytes=error.peer_id))

    def code(self) -> int:
        """Its number, to be compared with those of ``EC``."""
        return self._code

    def __repr__(self) -> str:
        where = "" if self._address is None else f", *{self._address[0]}:{self._address[1]}"
        return f'{ErrorCode(self._code).text}(endpoint_info({self._peer_id}{where}), "{self._text}")'
