"""Refusals, counted and logged: each reason at most every ten seconds, however often it comes.

The refusals of a process are also noted while ``chappe.api.audit`` writes them down; otherwise that costs nothing.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, replace
from typing import Final

from chappe.log.guard import LogRefusal
from chappe.system import time

logger = logging.getLogger(__name__)

COMPLAIN_S: Final = 10.0  # the same reason is logged at most so often
REASONS_MAX: Final = 1_000  # that are told apart
LISTED_MAX: Final = 100  # identities and verbs that are listed
NOTED_MAX: Final = 100  # refusals that are noted between two looks, of an identity, verb and topic each
TEXT_MAX: Final = 1_000  # characters of a topic, and of a reason


class RefusalLog:
    """The refusals of one identity's sockets; any thread may call."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._told: dict[object, float] = {}  # when a reason may be logged again
        self._counts: dict[tuple[str, str], int] = {}  # by identity and verb

    def add(self, count: int, text: str, reason: object = None) -> None:
        """Note that so many connections or messages were refused; the same ``reason`` may have other texts."""
        reason = text if reason is None else reason
        with self._lock:
            self.count += count
            now = time.monotonic()
            told = now >= self._told.get(reason, now) and (reason in self._told or len(self._told) < REASONS_MAX)
            if told:
                self._told[reason] = now + COMPLAIN_S
        if told:
            logger.warning("%s; %d refused so far", text, self.count)

    def add_stranger(self, count: int, text: str, reason: object = None) -> None:
        """Note connections of strangers that were not let in."""
        self.add(count, text, reason)
        audited.note("", "join", "", text.removeprefix("refused "), count)

    def add_refusal(self, refusal: LogRefusal) -> None:
        """Note a forbidden request of an identity that was let in."""
        key = refusal.who, refusal.verb
        with self._lock:
            if key in self._counts or len(self._counts) < REASONS_MAX:
                self._counts[key] = self._counts.get(key, 0) + 1
        self.add(1, f"refused: {refusal}", key)
        topic = f"{refusal.topic}*" if refusal.prefix else refusal.topic
        audited.note(refusal.who, refusal.verb, topic, refusal.why)

    def listed(self) -> list[tuple[str, str, int]]:
        """Return identity, verb and number of refusals, the most frequent first; not all where there are many."""
        with self._lock:
            found = [(who, verb, count) for (who, verb), count in self._counts.items()]
        return sorted(found, key=lambda each: (-each[2], each))[:LISTED_MAX]

    def by_identity(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with self._lock:
            for (who, _), count in self._counts.items():
                found[who] = found.get(who, 0) + count
        return found


@dataclass(frozen=True, slots=True)
class NotedRefusal:
    """A refusal; ``topic`` ends in ``*`` if it is a whole prefix. ``at_ns``: since 1970."""

    who: str
    verb: str
    topic: str
    why: str
    at_ns: int
    count: int = 1


class Audited:
    """The refusals of this process since the last look, while they are written down; any thread may call."""

    def __init__(self) -> None:
        self.on = False
        self._lock = threading.Lock()
        self._noted: dict[tuple[str, str, str], NotedRefusal] = {}
        self._left_out = 0

    def begin(self) -> bool:
        with self._lock:
            began, self.on = not self.on, True
        return began

    def end(self) -> None:
        with self._lock:
            self.on = False
            self._noted.clear()
            self._left_out = 0

    def note(self, who: str, verb: str, topic: str, why: str, count: int = 1) -> None:
        """Note a refusal; beyond ``NOTED_MAX`` between two looks only their number is kept."""
        if not self.on:
            return
        key = who, verb, topic[:TEXT_MAX]
        with self._lock:
            known = self._noted.get(key)
            if known is not None:
                self._noted[key] = replace(known, count=known.count + count)
            elif len(self._noted) < NOTED_MAX:
                self._noted[key] = NotedRefusal(*key, why[:TEXT_MAX], time.time_ns(), count)
            else:
                self._left_out += count

    def forked(self) -> None:
        """Make a new lock in a child's copy: another thread of the parent may have held it."""
        self._lock = threading.Lock()
        self.end()

    def take(self) -> tuple[list[NotedRefusal], int]:
        """Take the refusals noted since the last time; return also the number beyond the bound."""
        with self._lock:
            found, self._noted = list(self._noted.values()), {}
            left_out, self._left_out = self._left_out, 0
        return found, left_out


audited = Audited()  # one for the process, as its members are of one identity


os.register_at_fork(after_in_child=audited.forked)
