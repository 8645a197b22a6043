"""Zeek's events, as the original's module ``broker.zeek`` has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from chappe.compat.broker.data import FROM_PY, Data, to_py
from chappe.compat.broker.scalars import Count
from chappe.data import scalars
from chappe.data.values import Value

FORMAT: Final = scalars.Count(1)
EVENT: Final = scalars.Count(1)
NETWORK_TIMESTAMP: Final = scalars.Count(1)


class MetadataType:
    NetworkTimestamp = Count(1)
    UserMetadataStart = Count(200)


class Event:
    """An event: ``Event(name, *args, metadata=None)`` to send one, ``Event(received)`` to look at what came.

    Args:
        args: A name and its arguments, or one received value.
        metadata: A dict, or pairs; an int as key becomes a count.
    """

    def __init__(self, *args: Any, metadata: Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None = None) -> None:
        if len(args) == 1 and not isinstance(args[0], str):
            self._value: Value = Data(args[0])._value
            return
        content: tuple[Value, ...] = (args[0], Data(args[1:])._value)
        if metadata is not None:
            pairs = metadata.items() if isinstance(metadata, Mapping) else metadata
            content += (tuple([(_key(key), Data(value)._value) for key, value in pairs]),)
        self._value = (FORMAT, EVENT, content)

    def valid(self) -> bool:
        return _content(self._value) is not None

    def name(self) -> str:
        """The name. This and the others raise ValueError if it is not an event."""
        return str(self._parts()[0])

    def args(self) -> list[Any]:
        """Return the arguments, as ``Data.to_py`` makes them."""
        return [to_py(each) for each in self._arguments()]

    def metadata(self) -> list[tuple[Count, Any]] | None:
        """(key, value) of each metadatum, or None if it has none."""
        parts = self._parts()
        return [to_py(each) for each in parts[2]] if len(parts) > 2 else None

    def as_data(self) -> Data:
        return Data._of(self._value)

    def _parts(self) -> Any:
        content = _content(self._value)
        if content is None:
            raise ValueError("invalid Event data")
        return content

    def _arguments(self) -> tuple[Value, ...]:
        arguments: tuple[Value, ...] = self._parts()[1]
        return arguments


class SafeEvent(Event):
    """An event whose arguments are hashable, whatever they are."""

    def args(self) -> list[Any]:
        """Return the arguments, as ``ImmutableData.to_py`` makes them."""
        return [to_py(each, immutable=True) for each in self._arguments()]


def _key(key: object) -> Value:
    return Data(key if isinstance(key, Count) else Count(key))._value  # type: ignore[arg-type]


def _content(value: Value) -> tuple[Value, ...] | None:
    """Return name, arguments and perhaps metadata of an event; None if it is not one."""
    if type(value) is not tuple or len(value) < 3:
        return None
    kind, content = value[1], value[2]
    if type(kind) is not scalars.Count or kind != EVENT or type(content) is not tuple or len(content) < 2:
        return None
    well_formed = type(content[0]) is str and type(content[1]) is tuple
    return content if well_formed and (len(content) == 2 or _is_metadata(content[2])) else None


def _is_metadata(found: Value) -> bool:
    return type(found) is tuple and all(
        type(each) is tuple
        and len(each) == 2
        and type(each[0]) is scalars.Count
        and (each[0] != NETWORK_TIMESTAMP or type(each[1]) is scalars.Timestamp)
        for each in found
    )


FROM_PY[Event] = lambda event: event._value
