"""Endpoints of a group around a hub that is not of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.endpoints import Make, until

from chappe import Endpoint, Keys, Subscriber
from chappe.api import permissions
from chappe.mesh.messages import NOBODY


def make_home(made: Path) -> Path:
    """The authority's directory: ann and bob are of the group, the hub and eve are not."""
    permissions.init(made, "hub", "server")
    for name in ("ann", "bob", "eve"):
        permissions.add(made, name, "member")
    permissions.seal(made, "ward", ["patients/*"], names=["ann", "bob", "cat"])
    return made


@dataclass
class Net:
    """Endpoints around a hub, which keeps what passes."""

    make: Make
    home: Path
    passed: list[bytes] = field(default_factory=list)  # frames, as the hub has them when TLS is off them

    def __post_init__(self) -> None:
        self.hub = self.make(security=Keys(self.home / "hub"))
        self.port = self.hub.listen()
        self.hub.node.tapped = lambda conn, frames: self.passed.extend(frames)

    def join(self, name: str, home: Path | None = None) -> Endpoint:
        made = self.make(security=Keys((home or self.home) / name))
        made.peer("127.0.0.1", self.port)
        return made

    def pair(self) -> tuple[Endpoint, Endpoint, Subscriber]:
        """ann, bob, and what bob gets, once ann knows that he wants it."""
        ann, bob = self.join("ann"), self.join("bob")
        subscriber = bob.subscribe("")
        self.know(ann, bob)
        return ann, bob, subscriber

    def know(self, one: Endpoint, other: Endpoint) -> None:
        until(lambda: one.core.filters().get(other.core.own_id), "the subscription is known")

    def rogue(self, bob: Endpoint) -> Callable[..., None]:
        """The hub sends what it likes."""
        self.know(self.hub, bob)
        self.hub.node.pass_sealed()

        def send(topic: str, payload: bytes, receiver: bytes = NOBODY) -> None:
            assert self.hub.try_publish(topic.encode(), payload, receiver)

        return send
