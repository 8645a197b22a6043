"""What changes in a store, as messages on the topic ``<$>/local/data/store-events/NAME`` of the endpoint itself.

A subscriber gets them as vectors; ``StoreEvent`` reads these, as the original's C++ interface does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self
from uuid import UUID

from chappe.data.binary import encode
from chappe.data.scalars import Count, Timespan
from chappe.data.values import Value
from chappe.kv.actions import Notify


def encode_event(store: str, change: Notify) -> bytes:
    """The bytes of the message for a change."""
    publisher = change.publisher
    who: tuple[Value, ...] = (None, None)
    if publisher is not None:
        who = (str(UUID(bytes=publisher.endpoint)), Count(publisher.number))
    expiry = None if change.expiry_ns is None else Timespan(change.expiry_ns)
    if change.kind == "insert":
        return encode(("insert", store, change.key, change.value, expiry, *who))
    if change.kind == "update":
        return encode(("update", store, change.key, change.before, change.value, expiry, *who))
    return encode((change.kind, store, change.key, *who))


_FIELDS: Final = {
    "insert": ("key", "value", "expiry"),
    "update": ("key", "before", "value", "expiry"),
    "erase": ("key",),
    "expire": ("key",),
}


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """A change of a store. ``value`` is the new one and ``before`` the old one, where there are such.

    ``publisher`` is the id of the endpoint that made the change, and the number of its store there.
    """

    kind: str
    store_id: str
    key: Any
    value: Any = None
    before: Any = None
    expiry: timedelta | None = None
    publisher: tuple[str, int] | None = None

    @classmethod
    def make(cls, received: Any) -> Self | None:
        """Read what a subscriber got; None if it is not an event of a store."""
        if not isinstance(received, tuple) or len(received) < 3 or not isinstance(received[0], str):
            return None
        names = _FIELDS.get(received[0])
        if names is None or len(received) != len(names) + 4 or not isinstance(received[1], str):
            return None
        fields = dict(zip(names, received[2:], strict=False))
        endpoint, number = received[-2:]
        publisher = None if endpoint is None else (endpoint, number.value)
        return cls(received[0], received[1], publisher=publisher, **fields)
