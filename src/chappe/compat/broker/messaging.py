"""Topics, subscribers and publishers, as the original bindings have them."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, NoReturn, Self, TypeVar

from chappe.api.mesh.hosting import Publisher as MeshPublisher
from chappe.api.mesh.received import Received
from chappe.api.mesh.subscriber import StatusSubscriber as MeshStatusSubscriber
from chappe.api.mesh.subscriber import Subscriber as MeshSubscriber
from chappe.api.mesh.told import OWN
from chappe.compat.broker.data import Data, to_py
from chappe.compat.broker.peering import Error, Status
from chappe.data.values import Value
from chappe.errors import InvalidData, PeeringError
from chappe.mesh.events import Status as MeshStatus

logger = logging.getLogger(__name__)

POLL_MAX: Final = 128
T = TypeVar("T")


class Topic:
    def __init__(self, topic: str) -> None:
        self._topic = topic

    def string(self) -> str:
        return self._topic

    def __truediv__(self, other: Topic) -> Topic:
        return Topic(self._joined(other)) if isinstance(other, Topic) else NotImplemented

    def __itruediv__(self, other: Topic) -> Self:
        if not isinstance(other, Topic):
            return NotImplemented
        self._topic = self._joined(other)
        return self

    def _joined(self, other: Topic) -> str:
        """Return a slash between them if the second one does not begin with one, and none at the end."""
        between = "/" if self._topic and other._topic and not other._topic.startswith("/") else ""
        return (self._topic + between + other._topic).removesuffix("/")

    def __repr__(self) -> str:
        return self._topic


def topic_of(topic: str | Topic) -> str:
    return topic.string() if isinstance(topic, Topic) else topic


def topics_of(topics: str | Topic | Iterable[str | Topic]) -> list[str]:
    return [topic_of(topics)] if isinstance(topics, str | Topic) else [topic_of(each) for each in topics]


def with_local(topic: str) -> list[str]:
    """Return the prefixes of a subscription; as in the original a short one has the endpoint's own topics, too."""
    return [topic, OWN] if OWN.startswith(topic) and topic != OWN else [topic]


class ResetHandle:
    """Stands in for a subscriber, publisher or data store after ``reset``; ``advice`` says what to do then."""

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(f"it was reset; {self._advice}")


S = TypeVar("S", MeshSubscriber, MeshStatusSubscriber, MeshPublisher)
Q = TypeVar("Q", MeshSubscriber, MeshStatusSubscriber)


class _Wrapped(Generic[S]):
    def __init__(self, wrapped: S) -> None:
        self._wrapped: S = wrapped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()

    def reset(self) -> None:
        if not isinstance(self._wrapped, ResetHandle):
            self._wrapped.close()
            self._wrapped = ResetHandle("make a new one")  # type: ignore[assignment]

    def fd(self) -> int:
        """Return a descriptor that is readable while there is something, or writable while there is room."""
        return self._wrapped.fd()


def _get(take: Callable[[float | None], T | None], arguments: tuple[float, ...]) -> T | list[T] | None:
    """``get()``, ``get(seconds)``, ``get(n)`` and ``get(n, seconds)``: an int counts, a float is a time."""
    if not arguments:
        return take(None)
    if len(arguments) == 1 and isinstance(arguments[0], float):
        return take(arguments[0])
    count = arguments[0]
    if len(arguments) > 2 or not isinstance(count, int) or count < 0:
        raise TypeError("get() takes nothing, seconds as a float, a number as an int, or both in the other order")
    return list(_take(take, count, arguments[1] if len(arguments) == 2 else None))


def _take(take: Callable[[float | None], T | None], count: int, seconds: float | None) -> Iterator[T]:
    until = None if seconds is None else time.monotonic() + seconds
    for _ in range(count):
        found = take(_left(until))
        if found is None:
            return
        yield found


class _Queue(_Wrapped[Q], ABC):
    def get(self, *arguments: float) -> Any:
        """Return the next one; with seconds as a float None after these, with a number as an int a list of so many."""
        return _get(self._take, arguments)

    def available(self) -> int:
        """Return the greatest possible number of them that are there."""
        return self._wrapped.available

    def _take(self, seconds: float | None) -> Any:
        until = None if seconds is None else time.monotonic() + seconds
        while (found := self._wrapped.get(_left(until))) is not None:
            shown = self._shown(found)
            if shown is not None:
                return shown
        return None

    @abstractmethod
    def _shown(self, found: Any) -> Any:
        """Convert one for a program; None: leave it out."""


class Subscriber(_Queue[MeshSubscriber]):
    """Messages of some topics, as (topic, Python object)."""

    _on_topics: Callable[[list[str]], None] | None = None  # told of further topics

    def poll(self) -> list[tuple[str, Any]]:
        """Return all that are there, at most 128; never waits."""
        return [pair for each in self._wrapped.get_many(POLL_MAX, 0.0) if (pair := self._shown(each)) is not None]

    def add_topic(self, topic: str | Topic, block: bool = False) -> None:
        """Subscribe to a further topic; it is done when this returns, whatever ``block`` says."""
        self._wrapped.add(*with_local(topic_of(topic)))
        if self._on_topics is not None:
            self._on_topics([topic_of(topic)])

    def remove_topic(self, topic: str | Topic, block: bool = False) -> None:
        self._wrapped.remove(*with_local(topic_of(topic)))

    def _shown(self, found: Received) -> tuple[str, Any] | None:
        try:
            return found.topic, self._convert(found.data)
        except InvalidData as error:  # the original drops what is not a value, too
            logger.warning("a message to %s was dropped: %s", found.topic, error)
            return None

    def _convert(self, value: Value) -> Any:
        return to_py(value)


class SafeSubscriber(Subscriber):
    """A ``Subscriber`` of hashable objects, also from ``poll``."""

    def _convert(self, value: Value) -> Any:
        return to_py(value, immutable=True)


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


class StatusSubscriber(_Queue[MeshStatusSubscriber]):
    def __init__(self, wrapped: MeshStatusSubscriber, receive_statuses: bool) -> None:
        super().__init__(wrapped)
        self._wanted = (MeshStatus, PeeringError) if receive_statuses else (PeeringError,)

    def poll(self) -> list[Status | Error]:
        """Return all that are there; never waits."""
        return [shown for each in self._wrapped.poll() if (shown := self._shown(each)) is not None]

    def _shown(self, found: MeshStatus | PeeringError) -> Status | Error | None:
        if not isinstance(found, self._wanted):
            return None
        return Error(found) if isinstance(found, PeeringError) else Status(found)


class Publisher(_Wrapped[MeshPublisher]):
    def publish(self, data: object) -> None:
        self._wrapped.publish(Data.from_py(data)._value)

    def publish_batch(self, *batch: object) -> None:
        self._wrapped.publish_batch([Data.from_py(each)._value for each in batch])

    def buffered(self) -> int:
        return self._wrapped.buffered

    def capacity(self) -> int:
        return self._wrapped.capacity
