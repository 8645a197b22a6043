"""A master of a pair: what it commits counts when its own backend has it, and the partner too while they are paired.

Its own backend comes first, so that what the partner has this one has, too. While it may confirm alone, a partner that
catches up is waited for near the end, and when too much waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from chappe.defaults import STAR_HEARTBEAT_S
from chappe.errors import ProtocolError, StorageError
from chappe.kv.actions import Action, Commit
from chappe.kv.backend import Loaded, Operation, WriterRow
from chappe.kv.engine import Engine
from chappe.kv.entity import Entity
from chappe.kv.master import KvMaster
from chappe.kv.pair.messages import Gone, Have, Join, Missing, Said
from chappe.kv.pair.stream import Feed
from chappe.kv.recent import Recent
from chappe.limits import KvLimits
from chappe.replication.binary_star.actions import Confirms

Answer: TypeAlias = list[Said | Action]
_UNNUMBERED = 0


class Active:
    """See the module. A ``Commit`` that it asks for is answered by ``handle_kept``; there is one at a time.

    Args:
        rows: What is known of writers.
        recent: What has changed lately, and in this life.
        durable: Whether there is a backend.
    """

    def __init__(
        self, name: str, entity: Entity, engine: Engine, rows: Sequence[WriterRow], recent: Recent, limits: KvLimits, *,
        now: float, wall_ns: int, notify: bool, durable: bool,
    ) -> None:  # fmt: skip
        self.master = KvMaster(
            name, entity, now=now, wall_ns=wall_ns, durable=True, loaded=Loaded((), tuple(rows)), engine=engine,
            recent=recent, heartbeat_s=STAR_HEARTBEAT_S, notify=notify, limits=limits,
        )  # fmt: skip
        recent.name(entity, self.master.position)
        self.feed: Feed | None = None
        self.busy = False  # something is on its way to the backend
        self._limits = limits
        self._durable = durable
        self._recent = recent
        self._commit: tuple[int, tuple[Operation, ...], int] | None = None  # that is under way, and its last event
        self._kept = False  # the backend has it
        self._released = 0  # the last that counts
        self._lonely = False  # the partner has everything, and may yet not be waited for

    # -- commits -----------------------------------------------------------------------------------------------------

    def filtered(self, actions: Sequence[Action], now: float) -> Answer:
        """What the master asks for, but for its commits."""
        answer: Answer = []
        for action in actions:
            if not isinstance(action, Commit):
                answer.append(action)
                continue
            assert self._commit is None
            self._commit = action.number, action.operations, self.master.next_position
            self._kept = False
            if self._durable and action.operations:
                self.busy = True
                answer.append(Commit(_UNNUMBERED, action.operations))
            else:
                answer += self._forward(now)
        return answer

    def handle_kept(self, error: StorageError | None, now: float) -> Answer:
        """The backend has a commit, or has refused it."""
        assert self._commit is not None
        self.busy = False
        if error is None:
            return self._forward(now)
        number, self._commit = self._commit[0], None
        self._released = number
        return self.filtered(self.master.handle_commit_failed(number, error, now), now)

    def _forward(self, now: float) -> Answer:
        assert self._commit is not None
        self._kept = True
        if self.feed is None:
            return []
        self.feed.add(*self._commit)
        return [*self.feed.send(now)]

    def release(self, confirms: Confirms, life: int, now: float, wall_ns: int) -> Answer:
        """Have count what may: ``life`` is the partner's, if it is paired."""
        answer: Answer = []
        while self._commit is not None and self._kept and self._may(confirms, life):
            (number, operations, event), self._commit = self._commit, None
            self._released = number
            actions = self.master.handle_committed(number, now, wall_ns)
            self._recent.add(self.master.entity, event, operations)
            answer += self.filtered(actions, now)
        return answer

    def _may(self, confirms: Confirms, life: int) -> bool:
        assert self._commit is not None
        feed = self.feed
        if confirms == "paired":
            return feed is not None and feed.life == life and feed.taken >= self._commit[0]
        if confirms == "nothing":
            return False
        if feed is None or self._lonely:
            return True
        return not feed.near and feed.queued_bytes <= self._limits.pair_queue_bytes

    # -- the partner -------------------------------------------------------------------------------------------------

    @property
    def caught_up(self) -> int:
        """The life of the partner if it has all that counts, else 0."""
        return self.feed.life if self.feed is not None and self.feed.taken >= self._released else 0

    def be_lonely(self, lonely: bool) -> None:
        """The partner has everything, and is not to be waited for all the same."""
        self._lonely = lonely

    def join(self, join: Join, now: float) -> Answer:
        """The partner asks for everything."""
        if self.feed is not None and self.feed.stream == join.stream:
            return []
        master = self.master
        self.feed = Feed(
            join.stream, join.life, master.entity, master.frozen(), master.writer_rows(), self._released,
            master.position, self._limits, now,
        )  # fmt: skip
        if self._commit is not None and self._kept:
            self.feed.add(*self._commit)
        return [*self.feed.send(now)]

    def handle(self, said: Have | Missing | Gone, now: float) -> Answer:
        """The partner says something of its stream. Raises ProtocolError, and then that has ended."""
        feed = self.feed
        if feed is None or feed.stream != said.stream:
            return [] if isinstance(said, Gone) else [Gone(said.stream)]
        if isinstance(said, Gone):
            self.feed = None
            return []
        try:
            answered = (
                feed.handle_have(said.number, now) if isinstance(said, Have)
                else feed.handle_missing(said.numbers, now)
            )  # fmt: skip
        except ProtocolError:
            self.feed = None
            raise
        return [*answered, *feed.send(now)]

    def settle(self, error: StorageError | None) -> None:
        """As ``handle_kept`` of one that is master no more; ``end`` follows."""
        self.busy = False
        self._kept = error is None

    # -- time, and the end -------------------------------------------------------------------------------------------

    def next_timeout(self, now: float, wall_ns: int) -> float:
        """When ``handle_timeout`` is due."""
        due = self.master.next_timeout(now, wall_ns)
        return due if self.feed is None else min(due, self.feed.next_timeout())

    def handle_timeout(self, now: float, wall_ns: int) -> Answer:
        """Do what is due."""
        answer: Answer = []
        if self.feed is not None:
            if self.feed.stalled(now):
                answer.append(Gone(self.feed.stream))
                self.feed = None
            elif now >= self.feed.next_timeout():
                answer += self.feed.handle_timeout(now)
        if now >= self.master.next_timeout(now, wall_ns):
            answer += self.filtered(self.master.handle_timeout(now, wall_ns), now)
        return answer

    def end(self, now: float) -> list[Action]:
        """Its backend has kept or refused what was under way: this was the master."""
        kept = self._commit is not None and self._kept
        if kept and self._commit is not None:
            _, operations, event = self._commit
            self._recent.add(self.master.entity, event, operations)
        return self.master.end(kept, now)

    def invariants(self) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        found = [*self.master.invariants(), *self._recent.invariants()]
        if self.feed is not None:
            found += self.feed.invariants()
        if self.busy and (self._commit is None or self._kept):
            found.append("its backend is busy, and no commit waits for it")
        return found
