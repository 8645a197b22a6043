"""FETCHes of originals that are being answered, record by record and piece by piece.

A hundred thousand single records take seconds. Who sends them in one go meanwhile sends no beacons and takes no
acknowledgements, and its peers drop it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.actions import Action
from chappe.log.messages import Fetch

PAUSE_S: Final = 0.001  # between two pieces, so that everything else gets its turn

Piece: TypeAlias = Callable[[Fetch, int], tuple[list[Action], int]]


class Answering:
    """FETCHes under way, each in its turn.

    Args:
        piece: Answers a FETCH with no more than so many records; returns these, and the offset to go on from, which
            is that of the FETCH if there is no more.
        limits: Bounds of an answer, and of answers.
    """

    def __init__(self, piece: Piece, limits: LogLimits = LOG_LIMITS) -> None:
        self._piece = piece
        self._limits = limits
        self._waiting: dict[tuple[str, str, str], Fetch] = {}
        self.due = math.inf

    def fetch(self, wanted: Fetch, now: float) -> list[Action]:
        """Begin to answer. Who asks again has not got what was sent: it begins anew."""
        wanted = replace(wanted, count=min(wanted.count, self._limits.fetch_records_max))
        key = (wanted.address, wanted.topic, wanted.subject)
        if key in self._waiting or len(self._waiting) < self._limits.answers_max:
            self._waiting[key] = wanted
        return self.serve(now) if self.due == math.inf else []

    def serve(self, now: float) -> list[Action]:
        """The next piece, once ``due`` is reached."""
        if not self._waiting:
            self.due = math.inf
            return []
        key = next(iter(self._waiting))
        wanted = self._waiting.pop(key)
        actions, reached = self._piece(wanted, min(wanted.count, self._limits.answer_records))
        left = wanted.count - (reached - wanted.sequence)
        if reached > wanted.sequence and left > 0:
            self._waiting[key] = replace(wanted, sequence=reached, count=left)
        self.due = now + PAUSE_S if self._waiting else math.inf
        return actions

    def gone(self, requester: str) -> None:
        """A member left: it wants no answers any more."""
        for key in [each for each in self._waiting if each[0] == requester]:
            del self._waiting[key]
