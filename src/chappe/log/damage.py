"""What of a store's own disk is damaged: reported once, and read again from other stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from chappe.core import Report
from chappe.defaults import POLL_HEADS_S
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.actions import Action
from chappe.log.batch import Batch
from chappe.log.events import DamageFound
from chappe.log.queries import Answer, ReadAnswer
from chappe.log.sources import Source, Sources
from chappe.log.storage import Hole, LogStorage
from chappe.log.writing import Writer

ASKED_MAX: Final = 4  # holes asked for at once


class Damage:
    """The holes of a storage.

    Args:
        storage: Says which there are.
        sources: The other stores.
        writer: Writes what they answer.
        limits: How much is reported at once.
    """

    def __init__(
        self, storage: LogStorage, sources: Sources, writer: Writer, limits: LogLimits = LOG_LIMITS, *, now: float
    ) -> None:
        self._limits = limits
        self._storage = storage
        self._sources = sources
        self._writer = writer
        self._reported: set[tuple[str, str, int, int]] = set()
        self._turn = 0  # of the holes
        self._store_turn = 0
        self.due = now

    def found(self, holes: list[Hole]) -> list[Action]:
        """Report those that were not reported yet."""
        actions: list[Action] = []
        for hole in holes:
            if len(actions) >= self._limits.damage_reports_max:
                break  # the next look goes on
            known = (hole.topic, hole.partition, hole.first, hole.last)
            if known not in self._reported:
                self._reported.add(known)
                actions.append(Report(DamageFound(*known, hole.reason)))
        return actions

    def look(self, now: float) -> list[Action]:
        """Once ``due`` is reached: ask for some of all holes, others each time."""
        self.due = now + POLL_HEADS_S
        holes = self._storage.holes()
        self._reported &= {(hole.topic, hole.partition, hole.first, hole.last) for hole in holes}
        actions = self.found(holes)
        turn, self._turn = self._turn % max(1, len(holes)), self._turn + ASKED_MAX
        for hole in (holes[turn:] + holes[:turn])[:ASKED_MAX]:
            actions += self._ask(hole, now)
        return actions

    def answered(self, store: Source, hole: Hole, answer: Answer, batches: list[bytes], now: float) -> list[Action]:
        """A store answered for a hole: write what it has. Raises ProtocolError for a malformed batch."""
        actions = self._writer.heal(hole, [Batch.parse(raw) for raw in batches], now)
        if isinstance(answer, ReadAnswer) and not batches and hole.first <= answer.hole_last < hole.last:
            rest = replace(hole, first=answer.hole_last + 1)  # damaged there too, but not all of it
            actions += self._ask(rest, now, store)
        return actions

    def _ask(self, hole: Hole, now: float, store: Source | None = None) -> list[Action]:
        """Ask a store, or else the next one in turn, for a damaged range; nothing if there is none."""
        usable = self._sources.usable(now)
        if not usable:
            return []
        if store not in usable:
            self._store_turn += 1
            store = usable[self._store_turn % len(usable)]
        return [self._sources.read(store, (hole.topic, hole.partition), hole.first, now, hole)]
