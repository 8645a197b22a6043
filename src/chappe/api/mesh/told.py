"""Reports of an endpoint as Broker's messages, on two topics that never leave the endpoint.

=============================== =====================================================================================
``<$>/local/data/statuses``     ("status", the code's name as an enum value, context, text)
``<$>/local/data/errors``       ("error", the code's name as an enum value, (text) or (context, text))
=============================== =====================================================================================

A context is (id, address, port, seconds between attempts): no id where it is not known, and the others together or
not at all. Texts of a peering are Broker's own words; others are the ``str`` of the report.

Source: Broker's ``status.cc``, ``error.cc`` and ``endpoint_info.cc``. Departure: the seconds between attempts are 0.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from chappe.data.scalars import Count, EnumValue, Port
from chappe.data.values import Value
from chappe.errors import Address, ErrorCode, PeeringError
from chappe.kv.events import StoreEvent
from chappe.mesh.events import (
    DefectContained,
    EndpointDiscovered,
    EndpointHalted,
    EndpointUnreachable,
    HookFailed,
    LinkStatus,
    LostElsewhere,
    MessagesDropped,
    MessagesMalformed,
    MessagesRefused,
    PeerAdded,
    PeerLost,
    PeerRemoved,
    RecordingIncomplete,
    RecordingStopped,
    Status,
    SubscriptionRefused,
)
from chappe.mesh.filters import LOCAL_PREFIX

OWN: Final = LOCAL_PREFIX.decode()
STATUSES: Final = LOCAL_PREFIX + b"data/statuses"
ERRORS: Final = LOCAL_PREFIX + b"data/errors"
# What Broker calls each status, and what it says.
STATUS_TEXTS: Final[dict[type[Status], tuple[str, str]]] = {
    PeerAdded: ("peer_added", "handshake successful"),
    PeerRemoved: ("peer_removed", "removed connection to remote peer"),
    PeerLost: ("peer_lost", "lost connection to remote peer"),
    EndpointDiscovered: ("endpoint_discovered", "found a new peer in the network"),
    EndpointUnreachable: ("endpoint_unreachable", "lost the last path"),
}
ERROR_TEXTS: Final[dict[int, str]] = {
    ErrorCode.PEER_INCOMPATIBLE: "incompatible peer",
    ErrorCode.PEER_INVALID: "cannot unpeer from unknown peer",
    ErrorCode.PEER_UNAVAILABLE: "unable to connect to remote peer",
}
_OF_THE_MESH: Final = (  # events for which Broker has no code
    DefectContained,
    EndpointHalted,
    HookFailed,
    LostElsewhere,
    MessagesDropped,
    MessagesMalformed,
    MessagesRefused,
    RecordingIncomplete,
    SubscriptionRefused,
)


def told(report: object) -> tuple[bytes, Value] | None:
    """Return topic and value for a report; None if Broker has nothing of that kind."""
    if isinstance(report, Status):
        context = _context(report.peer_id, report.address if isinstance(report, LinkStatus) else None)
        if type(report) in STATUS_TEXTS:
            name, text = STATUS_TEXTS[type(report)]
            if isinstance(report, PeerRemoved) and report.reason:
                text = f"{text} ({report.reason})"
            return STATUSES, ("status", EnumValue(name), context, text)
        return _error(ErrorCode.UNSPECIFIED, context, str(report))
    if isinstance(report, PeeringError):
        text = ERROR_TEXTS.get(report.code, str(report))
        return _error(report.code, _context(report.peer_id, report.address), text)
    if isinstance(report, StoreEvent):
        return _error(report.code, str(report)) if report.code else None
    if isinstance(report, RecordingStopped):
        return _error(ErrorCode.CANNOT_WRITE_FILE, str(report))
    return _error(ErrorCode.UNSPECIFIED, str(report)) if isinstance(report, _OF_THE_MESH) else None


def _error(code: int, *context: Value) -> tuple[bytes, Value]:
    return ERRORS, ("error", EnumValue(ErrorCode(code).text), context)


def _context(peer_id: bytes | None, address: Address | None) -> Value:
    known = None if peer_id is None else str(UUID(bytes=peer_id))
    if address is None:
        return (known, None, None, None)
    host, port = address
    return (known, host, Port(port, "tcp"), Count(0))
