"""What an endpoint is to the subscribers, publishers and stores that are made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from chappe.api.mesh.questions import Asked
from chappe.api.mesh.waiting import Waiting
from chappe.mesh.endpoint import EndpointCore
from chappe.runtime.mesh_node import MeshNode


class Host(Protocol):
    """The part of ``Endpoint`` that they use."""

    node: MeshNode
    core: EndpointCore
    capacity: int

    @property
    def buffered(self) -> int:
        """See ``Endpoint.buffered``."""

    def check(self) -> None:
        """See ``Endpoint.check``."""

    def new_number(self) -> int:
        """See ``Endpoint.new_number``."""

    def publish(self, topic: str, value: object) -> int:
        """See ``Endpoint.publish``."""

    def publish_batch(self, messages: Iterable[tuple[str, object]]) -> int:
        """See ``Endpoint.publish_batch``."""

    def report(self, event: object) -> None:
        """See ``Endpoint.report``."""

    def pause(self, number: int, on: bool) -> None:
        """See ``Endpoint.pause``."""

    def forget(self, number: int) -> None:
        """See ``Endpoint.forget``."""

    def forget_statuses(self, subscriber: Any) -> None:
        """See ``Endpoint.forget_statuses``."""

    def add_store(self, store: Any) -> None:
        """See ``Endpoint.add_store``."""

    def forget_store(self, store: Any) -> None:
        """See ``Endpoint.forget_store``."""

    def watch_room(self, waiting: Waiting, on: bool) -> None:
        """See ``Endpoint.watch_room``."""

    def call_when_done(self, asked: Asked, function: Callable[[Any], object], name: str) -> None:
        """See ``Endpoint.call_when_done``."""
