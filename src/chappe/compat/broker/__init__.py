"""The programming interface of Zeek Broker's Python bindings, on chappe.

A program that was written for them runs after its import line is changed::

    import chappe.compat.broker as broker
"""

from __future__ import annotations

from datetime import UTC as utc  # the name that programs know

from chappe.compat.broker import zeek
from chappe.compat.broker.data import Data, ImmutableData, Set, Table, Vector
from chappe.compat.broker.endpoint import BrokerOptions, Configuration, Endpoint
from chappe.compat.broker.messaging import Publisher, SafeSubscriber, StatusSubscriber, Subscriber, Topic
from chappe.compat.broker.peering import (
    EC,
    SC,
    APIFlags,
    Backend,
    EndpointInfo,
    Error,
    Frontend,
    NetworkInfo,
    PeerFlags,
    PeerInfo,
    PeerStatus,
    Status,
    Version,
)
from chappe.compat.broker.scalars import Address, Count, Enum, Port, Subnet, Timespan, Timestamp, now
from chappe.compat.broker.store import Store, StoreEvent

__all__ = [
    "EC", "SC", "APIFlags", "Address", "Backend", "BrokerOptions", "Configuration", "Count", "Data", "Endpoint",
    "EndpointInfo", "Enum", "Error", "Frontend", "ImmutableData", "NetworkInfo", "PeerFlags", "PeerInfo",
    "PeerStatus", "Port", "Publisher", "SafeSubscriber", "Set", "Status", "StatusSubscriber", "Store", "StoreEvent",
    "Subnet", "Subscriber", "Table", "Timespan", "Timestamp", "Topic", "Vector", "Version", "now", "utc", "zeek",
]  # fmt: skip
