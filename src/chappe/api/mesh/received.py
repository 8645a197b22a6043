"""A received message, whose value is decoded on first use."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final
from uuid import UUID

from chappe.data.binary import decode
from chappe.data.convert import to_python
from chappe.data.values import Value
from chappe.errors import Sealed
from chappe.mesh.messages import NOBODY, Message, OpenedMessage
from chappe.mesh.places import COUNT_MAX
from chappe.sealing.events import is_sealed


class _Undecoded(Enum):
    """Stands for a value that was not decoded yet: None is a value."""

    UNDECODED = 0


_UNDECODED: Final = _Undecoded.UNDECODED


class Received:
    """A message; ``topic, value = received`` takes it apart.

    A payload that is not a value, which only a faulty peer sends, raises InvalidData on first use; one that is
    sealed raises Sealed, at an endpoint without an identity.
    """

    __slots__ = ("_data", "message")

    def __init__(self, message: Message) -> None:
        self.message = message  # itself, with ids and topic as bytes: for whoever passes it on
        self._data: Value | _Undecoded = _UNDECODED

    @property
    def topic(self) -> str:
        """The topic; bytes that are not UTF-8 survive as ``surrogateescape`` does it."""
        return self.message.topic.decode("utf-8", "surrogateescape")

    @property
    def data(self) -> Value:
        """The value with its types: counts, nanoseconds, enum values and the rest of ``chappe.data``."""
        found = self._data
        if found is _UNDECODED:
            self.check_opened()
            found = self._data = decode(self.message.payload)
        return found

    @property
    def value(self) -> Any:
        """The value as natural Python objects, by the table in ``chappe.data.convert``."""
        return to_python(self.data)

    @property
    def payload(self) -> bytes:
        """The value in its encoded bytes."""
        return self.message.payload

    def check_opened(self) -> None:
        """Raise Sealed if the payload is sealed, and this endpoint has no identity to open it."""
        if is_sealed(self.message.payload):
            raise Sealed(f"topic {self.topic!r} is sealed, and cannot be read: this endpoint has no identity")

    @property
    def sender(self) -> str:
        """The id of the peer that sent it here; that of its publisher is ``origin``."""
        return str(UUID(bytes=self.message.sender))

    @property
    def origin(self) -> str | None:
        """The id of the endpoint that published it, or brought it in from an original; None if it is unknown."""
        origin = self.message.origin
        return None if origin == NOBODY else str(UUID(bytes=origin))

    @property
    def number(self) -> int | None:
        """How many messages ``origin`` had published to this topic with this one, in its life so far.

        It rises by one from message to message; where it does not, some are missing: ``subscribe(on_gap=...)`` counts
        them. It begins anew with a new life of the publisher, and when that has published to 16,384 topics. None
        for messages from an original that is a peer, and for messages to this endpoint alone.
        """
        place = self.message.place
        return place & COUNT_MAX if place else None

    @property
    def sealed_by(self) -> str | None:
        """The name of the identity that sealed it; None if its topic is plain."""
        return self.message.by if isinstance(self.message, OpenedMessage) else None

    @property
    def unicast(self) -> bool:
        """True if it was sent to this endpoint alone."""
        return self.message.receiver != NOBODY

    def __iter__(self) -> Iterator[Any]:
        yield self.topic
        yield self.value

    def __repr__(self) -> str:
        return f"Received({self.topic!r}, {len(self.payload)} bytes)"
