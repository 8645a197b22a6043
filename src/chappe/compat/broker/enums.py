"""The names that the original bindings number."""

from __future__ import annotations

from enum import Enum as _Enum


class _Numbered(_Enum):
    """Converts to its number, and equals only itself."""

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


class APIFlags(_Numbered):
    """How a store answers."""

    NonBlocking = 0
    Blocking = 1


class Frontend(_Numbered):
    """What a store is."""

    Clone = 0
    Master = 1


class Backend(_Numbered):
    """Where a master keeps its entries."""

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
    """Codes of statuses."""

    Unspecified = 0
    PeerAdded = 1
    PeerRemoved = 2
    PeerLost = 3
    EndpointDiscovered = 4
    EndpointUnreachable = 5


class PeerStatus(_Numbered):
    """How far a peering is."""

    Initialized = 0
    Connecting = 1
    Connected = 2
    Peered = 3
    Disconnected = 4
    Reconnecting = 5


class PeerFlags(_Numbered):
    """What a peer is."""

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
        """Whether a peer of that protocol version can be talked to."""
        return version == Version.PROTOCOL

    @staticmethod
    def string() -> str:
        """All three numbers."""
        return f"{Version.MAJOR}.{Version.MINOR}.{Version.PATCH}"
