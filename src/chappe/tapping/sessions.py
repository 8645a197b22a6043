"""Clients of a tap: the topics that each looks for, and the messages that wait for it.

A client that has not asked for some seconds is forgotten, and told when it asks again that it has missed messages. So a
tap that nobody looks at has no sessions, and costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from chappe.core import Clock, Effect
from chappe.deadlines import Deadlines
from chappe.tapping.messages import Look, Passed, Refused, Seen, Shown, Subscribed

SESSIONS_MAX: Final = 8
SILENT_S: Final = 5.0  # who has not asked for so long does not look any more
MESSAGES_MAX: Final = 2_000  # that wait for one who looks; further ones are counted
SUBSCRIPTIONS_MAX: Final = 20_000  # so many more wait if these are subscriptions
ANSWER_MAX: Final = 500  # in one answer

Wants = Mapping[tuple[str, bytes], tuple[str, ...]]  # kinds of messages, by who wants them and of which topics


class _TapSession:
    def __init__(self, prefixes: tuple[bytes, ...], missed: int) -> None:
        self.prefixes = prefixes
        self.waiting: deque[Seen] = deque()
        self.missed = missed
        self.number = 0  # of the last question

    def offer(self, each: Seen) -> None:
        if isinstance(each, Passed):
            if not each.topic.startswith(self.prefixes):
                return
            room, count = MESSAGES_MAX, each.count
        else:
            if not each.topic.startswith(self.prefixes) and not any(p.startswith(each.topic) for p in self.prefixes):
                return
            room, count = SUBSCRIPTIONS_MAX, 1
        if len(self.waiting) < room:
            self.waiting.append(each)
        else:
            self.missed += count


class Sessions:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[bytes, _TapSession] = {}
        self._until: Deadlines[bytes] = Deadlines()
        self._wants: Wants = {}  # as it was told last

    def __bool__(self) -> bool:
        return bool(self._sessions)

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        return tuple({prefix for each in self._sessions.values() for prefix in each.prefixes})

    def look(self, client: bytes, look: Look, now: float) -> Refused | None:
        """Note a question, which ``take`` answers unless it is refused; a new client hears of all subscriptions."""
        session, prefixes = self._sessions.get(client), look.topics or (b"",)
        if session is None and len(self._sessions) >= SESSIONS_MAX:
            return Refused(f"{SESSIONS_MAX} others look already")
        self._until.set(client, now + SILENT_S)
        if session is None or session.prefixes != prefixes:
            session = self._sessions[client] = _TapSession(prefixes, int(look.again))  # how much, nobody knows
            now_us = self._clock.wall_ns() // 1000
            for (who, topic), kinds in self._wants.items():
                session.offer(Subscribed(now_us, topic, who, kinds))
        session.number = look.number
        return None

    def show(self, passed: Iterable[Passed], missed: int) -> None:
        """Queue messages that passed, and count those that were not looked at."""
        sessions = self._sessions.values()
        for each in passed:
            for session in sessions:
                session.offer(each)
        for session in sessions:
            session.missed += missed

    def show_wants(self, wants: Wants) -> None:
        before, self._wants, now_us = self._wants, wants, self._clock.wall_ns() // 1000
        gone = [Subscribed(now_us, topic, who, ()) for who, topic in before if (who, topic) not in wants]
        new = [Subscribed(now_us, key[1], key[0], kinds) for key, kinds in wants.items() if before.get(key) != kinds]
        for session in self._sessions.values():
            for each in (*gone, *new):
                session.offer(each)

    def take(self, client: bytes) -> Shown:
        session = self._sessions[client]
        waiting, missed = session.waiting, session.missed
        session.missed = 0
        return Shown([waiting.popleft() for _ in range(min(len(waiting), ANSWER_MAX))], missed, session.number)

    def forget(self, client: bytes) -> None:
        self._sessions.pop(client, None)
        self._until.clear(client)

    def handle_timeout(self, now: float) -> Sequence[Effect]:
        for client in self._until.due(now):
            self._sessions.pop(client, None)
        return ()

    def flush(self, now: float) -> Sequence[Effect]:
        """Do nothing: answers leave at once."""
        return ()

    def next_timeout(self) -> float:
        return self._until.next
