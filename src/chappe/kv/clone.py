"""A clone of a store: all data in memory, writes sent to the master and seen when they come back.

A clone looks for a master until it is closed. It takes the first that answers, makes itself equal to the master's
snapshot (telling watchers of every difference), and follows its events. When the master is lost, it serves what it has
for ``stale_s`` and then refuses to be read; it keeps writes for ``mutation_buffer_s`` and then refuses them. When a
master is found again, writes that were not confirmed are repeated in order. A master of chappe remembers which it has
done, so none is done twice; of an original that is gone nobody can know, so what it may have done is reported as
``WriteUnknown`` and not repeated.

Source: Zeek Broker, ``clone_actor.cc``, and its documentation of stale, resync and buffer intervals, which the program
no longer has. Departures: all that follows from coming back; heartbeats of the master are heard; failures are told.
"""

from __future__ import annotations

from collections.abc import Iterable

from chappe.core import Clock, Effect, Report, Resolve
from chappe.data.convert import to_value
from chappe.data.values import Value
from chappe.defaults import (
    CHANNEL_HEARTBEAT_S,
    CHANNEL_NACK_S,
    CHANNEL_TICK_S,
    CLONE_BUFFER_MAX_S,
    CLONE_BUFFER_S,
    CLONE_RESYNC_S,
    CLONE_STALE_S,
)
from chappe.errors import InvalidOperation, ProtocolError, StaleData, UsageError
from chappe.kv import commands as cmd
from chappe.kv.clone_writes import CloneWrites, Uplink
from chappe.kv.engine import Entry
from chappe.kv.entity import NOBODY, Entity, check_name, clone_topic
from chappe.kv.events import CommandRefused
from chappe.kv.following import Following
from chappe.kv.history import of_an_original
from chappe.kv.role import KvRole, Notices, Reaches
from chappe.limits import KV_LIMITS, KvLimits


class KvClone(KvRole):
    """Every method that does something takes ``now``, monotonic seconds, and returns actions. Writes return at once;
    their ``ticket`` is resolved when the master has done them durably and this clone shows the result: with None,
    with True if ``put_unique`` inserted, or with a StoreError. Failures of writes without a ticket are reported.

    Args:
        entity: Who this clone is; made by ``entity.chappe_entity``, new in each life.
        resync_s: Longest pause between two attempts to find a master.
        stale_s: Without a master for longer, reading raises StaleData; negative for never.
        mutation_buffer_s: Without a master for longer, writes are refused; 0 refuses them at once. At most
            ``defaults.CLONE_BUFFER_MAX_S``.
        notify: Whether changes are told to watchers.
    """

    kind = "clone"

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        now: float,
        clock: Clock,
        resync_s: float = CLONE_RESYNC_S,
        stale_s: float = CLONE_STALE_S,
        mutation_buffer_s: float = CLONE_BUFFER_S,
        heartbeat_s: float = CHANNEL_HEARTBEAT_S,
        notify: bool = True,
        limits: KvLimits = KV_LIMITS,
    ) -> None:
        if not 0 <= mutation_buffer_s <= CLONE_BUFFER_MAX_S:
            raise UsageError(f"mutation_buffer_s is 0 to {CLONE_BUFFER_MAX_S:g} seconds, not {mutation_buffer_s:g}")
        if resync_s < CHANNEL_NACK_S:
            raise UsageError(f"resync_s is at least {CHANNEL_NACK_S:g} seconds, not {resync_s:g}")
        self.topics = (clone_topic(check_name(name)),)
        notices = Notices(notify)
        super().__init__(name, entity, notices, entity, clock=clock, immediate=False)
        uplink = Uplink(name, entity)
        self._writes = CloneWrites(name, uplink, limits, now=now, buffer_s=mutation_buffer_s, heartbeat_s=heartbeat_s)
        self._following = Following(
            name, entity, uplink, self.engine, notices, self._writes, limits,
            now=now, clock=clock, resync_s=resync_s, stale_s=stale_s,
        )  # fmt: skip
        self._writes.pending.revision_of = self._shown_revision
        self._unready: dict[int, float] = {}  # await_ready: until when
        self._questions: dict[int, int] = {}  # await_idle: the question whose answer each ticket waits for
        self._tick_at = now  # when to look after everything; what happens brings it forward

    # -- looks --------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int | None:
        return self._following.position

    @property
    def lost_at(self) -> float:
        return self._following.lost_at

    def invariants(self) -> list[str]:
        found = [*self.engine.invariants(), *self._following.invariants(), *self._writes.invariants()]
        if self._unready and self.readable:
            found.append("somebody waits until it may be read, and it may")
        return found

    def story(self, key: object) -> str:
        state = f"follows {self.master} at event {self.position}" if self.connected else f"lost {self.master}"
        waiting = f"; {self.unconfirmed} writes are not confirmed" if self.unconfirmed else ""
        return f"{self.engine.story(to_value(key))}; {state}{waiting}"

    # -- application: its state ---------------------------------------------------------------------------------

    @property
    def master(self) -> Entity | None:
        return self._following.master

    @property
    def connected(self) -> bool:
        return self._following.connected

    @property
    def readable(self) -> bool:
        return self._following.unreadable is None

    @property
    def coming(self) -> tuple[int, int] | None:
        """Progress of a master's snapshot: entries received, and entries in all."""
        return self._following.coming

    def revision_of(self, entry: Entry) -> int:
        self.check_master()
        return max(entry.revision, self._following.base)

    def check_master(self) -> None:
        """Raise InvalidOperation if its master, now or last, is one of the original: it tells too little."""
        master = self._following.master
        if master is not None and not master.is_chappe:
            raise InvalidOperation(of_an_original(self.name))

    def _shown_revision(self, key: Value) -> int | None:
        entry = self.engine.find(key)
        return None if entry is None else max(entry.revision, self._following.base)

    @property
    def room(self) -> bool:
        return self._writes.room

    @property
    def settled(self) -> bool:
        """True if its master, if it is there, has confirmed all writes."""
        return not self._following.connected or not self._writes.pending

    @property
    def unconfirmed(self) -> int:
        """Writes whose outcome is not known yet, or not shown: at most twice ``KvLimits.writes_max``."""
        return len(self._writes.pending)

    def age_s(self, now: float) -> float:
        return self._following.age_s(now)

    def unreadable(self) -> StaleData | None:
        return None if self._following.unreadable is None else self._following.stale()

    def idle(self) -> bool:
        return self._following.idle() and self._writes.idle()

    def await_idle(self, ticket: int, timeout_s: float, now: float) -> list[Effect]:
        """Resolve the ticket with None once the clone has all that its master has now; TimedOut after the timeout."""
        actions: list[Effect] = []
        self._waits[ticket] = now + timeout_s
        self._questions[ticket] = self._following.questions.next
        self._find_out(now, actions)
        self.hurry_idle(now)
        return actions

    def ask_history(self, ticket: int, key: object, timeout_s: float, now: float) -> list[Effect]:
        self.check_master()
        actions: list[Effect] = []
        self._following.past.add(ticket, to_value(key), now + timeout_s)
        self._following.ask_past(now, actions)
        self._plan()
        return actions

    def await_ready(self, ticket: int, timeout_s: float, now: float) -> list[Effect]:
        """Resolve the ticket with None once it may be read, with StaleData after ``timeout_s``."""
        if self.readable:
            return [Resolve(ticket, None)]
        self._unready[ticket] = now + timeout_s
        self._plan()
        return []

    def hurry_idle(self, now: float) -> None:
        """Ask its master to say soon how far it is."""
        self._writes.channel.hurry(now)
        self._plan()

    # -- world --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        return self.handle_timeout(now)

    def leave(self) -> list[Effect]:
        """Tell a master of chappe that it need not wait for this clone any more."""
        actions: list[Effect] = []
        self._following.leave(actions)
        return actions

    def handle_message(self, topic: bytes, messages: Iterable[bytes], now: float) -> list[Effect]:
        actions: list[Effect] = []
        for payload in messages:
            try:
                message = cmd.decode_message(payload)
                if message.receiver == self.entity or message.receiver == NOBODY:
                    self._following.handle(message, len(payload), now, actions)
            except ProtocolError as problem:
                actions.append(Report(CommandRefused(self.name, str(problem))))
        self._following.settle(actions)
        if self._waits or self._unready:
            self._check_waits(now, actions)
        if self._following.calm:
            self._tick_at = min(self._tick_at, now + CHANNEL_TICK_S)
        else:
            self._plan()
        return actions

    def handle_gone(self, endpoint: bytes, now: float) -> list[Effect]:
        actions: list[Effect] = []
        self._following.endpoint_gone(endpoint, now, actions)
        self._plan()
        return actions

    def handle_subscription(self, holders: frozenset[bytes], reaches: Reaches, now: float) -> list[Effect]:
        master = self._following.master
        if self._following.connected and master is not None:
            # Of who is behind an original nobody knows what it wants, nor that it is there: silence tells.
            if master.endpoint not in holders and (master.is_chappe or reaches(master.endpoint)):
                return self.handle_gone(master.endpoint, now)
        elif holders:
            self.hurry(now)
        return []

    def hurry(self, now: float) -> None:
        """Look for a master at the next ``handle_timeout``, as there may be one now."""
        self._following.hurry(now)
        self._plan()

    def handle_timeout(self, now: float) -> list[Effect]:
        """Look for a master, acknowledge, ask for what is missing, grow stale."""
        actions: list[Effect] = []
        self._following.tick(now, actions)
        self._following.settle(actions)
        self._check_waits(now, actions)
        self._plan()
        return actions

    def next_timeout(self) -> float:
        return self._tick_at

    # -- inside ---------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        self._tick_at = min([self._following.next_timeout(), *self._waits.values(), *self._unready.values()])
        if self._questions and self.position is not None:
            asks_at = self._following.questions.next_due(max(self._questions.values()))
            self._tick_at = min(self._tick_at, asks_at)

    def _find_out(self, now: float, actions: list[Effect]) -> None:
        self._following.find_out(max(self._questions.values()), now, actions)

    def _has_all(self, ticket: int) -> bool:
        return self._following.questions.answered >= self._questions[ticket]

    def _write(self, command: cmd.Mutation, ticket: int | None, now: float) -> list[Effect]:
        if isinstance(command, cmd.PutIf | cmd.EraseIf):
            self.check_master()
        if self._tick_at > now + CHANNEL_TICK_S:
            self._tick_at = now + CHANNEL_TICK_S
        return self._writes.write(command, ticket, now)

    def _check_waits(self, now: float, actions: list[Effect]) -> None:
        if self._waits:
            self._check_idle(now, actions)
            self._questions = {ticket: number for ticket, number in self._questions.items() if ticket in self._waits}
            if self._questions:
                self._find_out(now, actions)
        if self._unready and self.readable:
            actions += [Resolve(ticket, None) for ticket in self._unready]
            self._unready.clear()
        for ticket in [ticket for ticket, until in self._unready.items() if now >= until]:
            del self._unready[ticket]
            actions.append(Resolve(ticket, self._following.stale()))
