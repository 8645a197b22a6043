"""What a master and a clone have in common: whoever runs one need not know which it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, Protocol, TypeAlias

from chappe.errors import StaleData
from chappe.kv.actions import Action
from chappe.kv.engine import Engine
from chappe.kv.entity import Entity

Hear: TypeAlias = Callable[[Iterable[bytes], float, int], list[Action]]  # command messages, now, wall_ns
Reaches: TypeAlias = Callable[[bytes], bool]  # whether there is a path to an endpoint


class KvRole(Protocol):
    """A master or a clone. Every method that does something takes ``now`` and ``wall_ns``, and returns actions.

    A master takes the time of day for its entries that expire, a clone does not use it.
    """

    name: str
    entity: Entity
    engine: Engine
    kind: Literal["master", "clone"]
    immediate: bool  # whether a write is done when its call returns
    hears: dict[bytes, Hear]  # the topics that it subscribes to, and what takes their messages
    notify: bool  # whether changes are told to watchers

    @property
    def readable(self) -> bool:
        """Whether it may be read."""

    def unreadable(self) -> StaleData | None:
        """Why it may not be read."""

    @property
    def room(self) -> bool:
        """Whether a write is taken now, or refused for another reason than too little room."""

    @property
    def settled(self) -> bool:
        """Whether nothing that was written here waits: for a backend, or for a master that is in reach."""

    @property
    def unconfirmed(self) -> int:
        """Writes that a master elsewhere has not confirmed."""

    def start(self, now: float, wall_ns: int) -> list[Action]:
        """Begin."""

    def leave(self) -> list[Action]:
        """The end."""

    def handle_gone(self, endpoint: bytes, now: float) -> list[Action]:
        """An endpoint is out of reach."""

    def handle_network(self, holders: frozenset[bytes], reaches: Reaches, now: float) -> list[Action]:
        """The network has changed: ``holders`` are all that may have the master."""

    def handle_timeout(self, now: float, wall_ns: int) -> list[Action]:
        """Do what is due."""

    def next_timeout(self, now: float, wall_ns: int) -> float:
        """When ``handle_timeout`` is due."""
