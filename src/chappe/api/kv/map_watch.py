"""Watches of a shared map: changes of its keys, in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol

from chappe.api.kv.map_values import MapChange, V
from chappe.api.mesh.source import Source
from chappe.errors import BufferFull, InvalidData
from chappe.kv.chp.client import KeyChanged
from chappe.runtime.driver import Driver


class MapListener(Protocol):
    """A listener to changes, called with the lock held."""

    def told(self, change: KeyChanged) -> None: ...

    def close(self) -> None: ...


class Watched(Protocol[V]):
    driver: Driver

    def change(self, told: KeyChanged) -> MapChange[V]: ...

    def forget_watch(self, watch: Any) -> None: ...


class MapWatch(Source[MapChange[V]], Generic[V]):
    """Changes of the watched keys. Made by ``SharedMap.watch``.

    Where more waits than ``messages_max`` the oldest are dropped, and counted in ``dropped``; with
    ``on_full="disconnect"`` the watch ends with BufferFull.
    """

    called_by = "chappe-map-watch"

    def __init__(
        self, member: Watched[V], wanted: Callable[[bytes], bool], messages_max: int, *, disconnect: bool
    ) -> None:
        super().__init__(member.driver)
        self.dropped = 0
        self._member = member
        self._wanted = wanted
        self._messages_max = messages_max
        self._disconnect = disconnect

    def told(self, change: KeyChanged) -> None:
        """Take a change; the lock is held."""
        if not self._wanted(change.key) or (self._disconnect and self.dropped):
            return
        if len(self._queue) >= self._messages_max:
            self.dropped += 1
            if self._disconnect:
                self._node.turns.news = True
                return
            self._queue.popleft()
        self._queue.append(change)
        self._waiting.changed()

    def ready(self) -> bool:
        """True if ``get`` would not wait."""
        return bool(self._queue) or (self._disconnect and self.dropped > 0) or self._waiting.closed

    def _shown(self, found: list[Any]) -> list[MapChange[V]]:
        shown: list[MapChange[V]] = []
        for each in found:
            try:
                shown.append(self._member.change(each))
            except InvalidData:
                if not shown:
                    self._put_back(found[1:])
                    raise
                self._put_back(found[len(shown) :])  # the next call raises it
                break
        return shown

    def _put_back(self, found: list[Any]) -> None:
        with self._lock:
            if not self._waiting.closed:
                room = max(0, self._messages_max - len(self._queue))
                kept = found[max(0, len(found) - room) :]
                self.dropped += len(found) - len(kept)
                self._queue.extendleft(reversed(kept))
                self._waiting.changed()
                self._node.turns.tell()

    def _check(self) -> None:
        self._waiting.check()
        if self._disconnect and self.dropped:
            raise BufferFull("this watch was too slow and has ended: watch again, with a larger queue")

    def _leave(self) -> None:
        self._member.forget_watch(self)
        self._queue.clear()
