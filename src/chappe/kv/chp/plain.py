"""Snapshots for other clients than chappe's: entries, and then KTHXBAI, offered as the client takes them.

A request waits a moment (``ask_pause_s``): the client has just subscribed, on another connection, and what is published
before that arrives is in the snapshot only if it is taken later. All requests of that moment share a view. So many are
answered at once, the others wait in turn; nothing is ever cut off by a full queue, and who takes nothing for long is
given up.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from chappe.core import Close, Effect, Flush, Reply
from chappe.deadlines import Deadlines
from chappe.kv.chp import messages as chp
from chappe.kv.chp.ledger import Ledger
from chappe.kv.chp.stream import Entry as Told
from chappe.kv.chp.views import MapView, Views
from chappe.limits import MapLimits

RETRY_S: Final = 0.05  # so long until it is seen whether there may be another view
_BEGIN_MAX: Final = 4  # snapshots begun in one go; what is due otherwise comes first


class _SnapshotTaker:
    __slots__ = ("over", "place", "subtree", "view")

    def __init__(self, subtree: bytes, view: MapView) -> None:
        self.subtree = subtree
        self.view = view
        self.place = 0
        self.over = False  # KTHXBAI is offered


class Plain:
    def __init__(self, ledger: Ledger, views: Views, limits: MapLimits) -> None:
        self.dropped = 0  # requests beyond the bound
        self._ledger = ledger
        self._views = views
        self._limits = limits
        self._asked: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()  # subtree, and when it may be answered
        self._takers: dict[bytes, _SnapshotTaker] = {}
        self._silences: Deadlines[bytes] = Deadlines()
        self._again_at = -math.inf

    def __len__(self) -> int:
        return len(self._asked) + len(self._takers)

    def next_timeout(self) -> float:
        due = self._silences.next
        if self._asked and len(self._takers) < self._limits.takers_max:
            due = min(due, max(next(iter(self._asked.values()))[1], self._again_at))
        return due

    def ask(self, client: bytes, subtree: bytes, now: float, effects: list[Effect]) -> None:
        if client in self._takers:
            effects.append(Close(client))
        self.forget(client)
        if len(self._asked) >= self._limits.asks_max:
            self.dropped += 1
        else:
            self._asked[client] = (subtree, now + self._limits.ask_pause_s)

    def expire(self, now: float, effects: list[Effect]) -> None:
        """Begin snapshots that may begin; give up clients that take nothing."""
        for client in self._silences.due(now):
            self.forget(client)
            effects.append(Close(client))
        for _ in range(_BEGIN_MAX):
            if not self._asked or len(self._takers) >= self._limits.takers_max:
                return
            client, (subtree, due) = next(iter(self._asked.items()))
            if due > now or self._again_at > now:
                return
            view = self._views.open(due - self._limits.ask_pause_s / 2, now)
            if view is None:
                self._again_at = now + RETRY_S
                return
            del self._asked[client]
            self._takers[client] = _SnapshotTaker(subtree, view)
            self.taken(client, now, effects)

    def taken(self, client: bytes, now: float, effects: list[Effect]) -> None:
        taker = self._takers.get(client)
        if taker is None:
            return
        if taker.over:
            self.forget(client)
            return
        self._silences.set(client, now + self._limits.taker_s)
        messages: list[list[bytes]] = []
        view = taker.view
        while taker.place < len(view.entries) and not messages:
            found, taker.place = view.take(
                (taker.subtree,), taker.place, now, self._limits.piece_bytes, self._limits.chunk
            )
            messages += [self._kvsync(told, view.sequence, now) for told in found]
        if taker.place >= len(view.entries):
            messages.append(chp.kthxbai(view.sequence, taker.subtree))
            taker.over = True
        effects += [Reply(client, messages), Flush(client)]

    def forget(self, client: bytes) -> None:
        self._asked.pop(client, None)
        taker = self._takers.pop(client, None)
        if taker is not None:
            self._silences.clear(client)
            self._views.close(taker.view)

    def close(self, effects: list[Effect]) -> None:
        for client in [*self._takers, *self._asked]:
            self.forget(client)
            effects.append(Close(client))

    def _kvsync(self, told: Told, sequence: int, now: float) -> list[bytes]:
        key, body, uuid, properties, left = told
        # a moment, as the Guide's backup reads it from a snapshot
        ttl = b"%d" % (self._ledger.ns(now) // 1_000_000 + left) if left else b""
        return chp.encode_update(chp.Update(key, sequence, uuid, properties, body, ttl))
