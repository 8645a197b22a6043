"""Who was refused, counted and logged: each reason at most every ten seconds, however often it comes."""

from __future__ import annotations

import logging
import threading
from typing import Final

from chappe.log.guard import Refusal
from chappe.system import time

logger = logging.getLogger(__name__)

COMPLAIN_S: Final = 10.0  # the same reason is logged at most so often
REASONS_MAX: Final = 1_000  # that are told apart
LISTED_MAX: Final = 100  # identities and verbs that are listed


class Refusals:
    """Of the sockets of one identity; any thread may call."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._told: dict[object, float] = {}  # when a reason may be logged again
        self._counts: dict[tuple[str, str], int] = {}  # by identity and verb

    def add(self, count: int, text: str, reason: object = None) -> None:
        """So many connections or messages were refused, as the text says; the same ``reason`` may have other words."""
        reason = text if reason is None else reason
        with self._lock:
            self.count += count
            now = time.monotonic()
            told = now >= self._told.get(reason, now) and (reason in self._told or len(self._told) < REASONS_MAX)
            if told:
                self._told[reason] = now + COMPLAIN_S
        if told:
            logger.warning("%s; %d refused so far", text, self.count)

    def add_refusal(self, refusal: Refusal) -> None:
        """Somebody who was let in may not do what he wants."""
        key = refusal.who, refusal.verb
        with self._lock:
            if key in self._counts or len(self._counts) < REASONS_MAX:
                self._counts[key] = self._counts.get(key, 0) + 1
        self.add(1, f"refused: {refusal}", key)

    def listed(self) -> list[tuple[str, str, int]]:
        """Identity, verb and how often, the most frequent first; not all where there are many."""
        with self._lock:
            found = [(who, verb, count) for (who, verb), count in self._counts.items()]
        return sorted(found, key=lambda each: (-each[2], each))[:LISTED_MAX]

    def by_identity(self) -> dict[str, int]:
        """How often each identity wanted what it may not."""
        found: dict[str, int] = {}
        with self._lock:
            for (who, _), count in self._counts.items():
                found[who] = found.get(who, 0) + count
        return found
