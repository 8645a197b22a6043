"""One of several servers that are a data store's master in turn, whatever decides which of them is.

The one that is master has a ``KvMaster``, with a name of its own in each term; the others have the same data. What is
written at one of them goes to the master by a channel, as a clone's writes do, and by the same channel to the own
master if this one is it by then: so it is done once. Clones that ask aloud while there is no master are answered by
the next one.

``Voters`` are clones that ask all endpoints for a master while none serves: the next one answers them first.

``Author`` sends writes made at a passive replica to the current master over a clone's channel.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from chappe.channel import ASK_HANDSHAKE
from chappe.core import Clock, Effect, Report, Resolve, Send
from chappe.data.convert import to_value
from chappe.data.values import Value
from chappe.defaults import (
    CHANNEL_HEARTBEAT_S,
    CLONE_BUFFER_S,
    CLONE_STALE_S,
    MASTER_SILENT_S,
    STAR_ORIGINAL_SILENT_S,
    STORE_ASKS_MAX,
)
from chappe.errors import ProtocolError, StaleData
from chappe.kv import commands as cmd
from chappe.kv.backend import HistoryRow
from chappe.kv.clone_writes import CloneWrites, Uplink
from chappe.kv.engine import Entry
from chappe.kv.entity import NOBODY, Entity, check_name, clone_topic, master_topic
from chappe.kv.events import CommandRefused
from chappe.kv.history import KeyHistory, past_change
from chappe.kv.master import KvMaster
from chappe.kv.role import KvRole, Notices, Reaches, past_rows
from chappe.limits import KvLimits

_SHOWN: Final = 1 << 62  # what the active one has confirmed is shown here


class Author:
    """The channel, its master, and since when there is none."""

    def __init__(self, name: str, entity: Entity, limits: KvLimits, now: float) -> None:
        self.writes = CloneWrites(
            name, Uplink(name, entity), limits, now=now, buffer_s=CLONE_BUFFER_S, heartbeat_s=CHANNEL_HEARTBEAT_S
        )
        self.master: Entity | None = None
        self.stale = False  # there was no master for too long
        self._entity = entity
        self._lost_at = now  # infinity while there is one
        self._heard_at = now

    @property
    def waits(self) -> bool:
        return len(self.writes.pending) > 0

    def write(self, command: cmd.Mutation, ticket: int | None, now: float) -> list[Effect]:
        """Add a write. Raises RecordTooLarge, NoMaster or BufferFull."""
        return self.writes.write(command, ticket, now)

    def look(self, master: Entity | None, found: bool, now: float) -> list[Effect]:
        """Send writes to this ``master`` from now on; ``found``: there is one, here or elsewhere."""
        actions: list[Effect] = []
        if found:
            self._lost_at = math.inf
            self.writes.refusing = False
        elif self._lost_at == math.inf:
            self._lost_at = now
        self.stale = now >= self._lost_at + CLONE_STALE_S
        if master != self.master:
            if self.master is not None:
                self.writes.channel.drop(self.master, "")
            self.master = master
            if master is not None:
                self._heard_at = now
                self.writes.begin(master, now, actions)
        return actions

    def hear(self, message: cmd.Message, now: float) -> list[Effect]:
        actions: list[Effect] = []
        master, command = message.sender, message.command
        if master == self.master and message.receiver == self._entity:
            self._heard_at = now
            if isinstance(command, cmd.WriterState):
                self.writes.take_state(master, command, now, actions)
                self.writes.settle(master, _SHOWN, actions)
            elif isinstance(command, cmd.MissingEvents):
                self.writes.take_nack(master, command.seqs, now, actions)
        return actions

    def next_timeout(self) -> float:
        return self.writes.refuse_at(self._lost_at) if self.master is None else self.writes.channel.next_timeout()

    def handle_timeout(self, now: float) -> list[Effect]:
        """Tell the master how far this is, or give up writes that waited for one for too long."""
        actions: list[Effect] = []
        if self.master is not None:
            if self.waits and now >= self._heard_at + MASTER_SILENT_S:  # it may have let go of us, as its clock was set
                self._heard_at = now
                self.writes.channel.drop(self.master, "")
                self.writes.begin(self.master, now, actions)
            self.writes.tick(now, actions)
        elif now >= self.writes.refuse_at(self._lost_at):
            self.writes.refuse(actions)
        return actions


class Voters:
    """Those that ask while nobody serves, at most ``STORE_ASKS_MAX``."""

    def __init__(self) -> None:
        self._asks: dict[Entity, tuple[float, bytes]] = {}  # who asked, and when, and what to answer to

    def note(self, message: cmd.Message, payload: bytes, now: float) -> None:
        known = self._asks.get(message.sender)
        if known is None and len(self._asks) >= STORE_ASKS_MAX:
            return
        command = message.command
        assert isinstance(command, cmd.MissingEvents)
        if known is not None and cmd.asked(command.seqs) is None:
            payload = known[1]  # which says more
        self._asks[message.sender] = now, payload

    def forget(self, now: float) -> None:
        self._asks = {who: ask for who, ask in self._asks.items() if now < ask[0] + STAR_ORIGINAL_SILENT_S}

    def take(self) -> list[bytes]:
        asks, self._asks = self._asks, {}
        return [payload for _, payload in asks.values()]


def asks_aloud(message: cmd.Message) -> bool:
    """Return True if a clone looks for any master."""
    command = message.command
    return isinstance(command, cmd.MissingEvents) and message.receiver == NOBODY and command.seqs[:1] == ASK_HANDSHAKE


class StoreReplica(KvRole):
    """One of the servers that are master in turn.

    Args:
        entity: Who this one is as an author of writes; made by ``entity.chappe_entity``, new in each life.
        notify: Whether changes are told to watchers.
        history: The latest changes of each key, as far as all have them.
    """

    kind = "master"

    def __init__(
        self, name: str, entity: Entity, *, now: float, clock: Clock, notify: bool, limits: KvLimits,
        history: KeyHistory,
    ) -> None:  # fmt: skip
        raw = check_name(name)
        super().__init__(name, entity, Notices(notify), NOBODY, clock=clock, immediate=False)
        self.history = history
        self._limits = limits
        self._clone_topic = clone_topic(raw)
        self._master_topic = master_topic(raw)
        self.topics = (self._master_topic, self._clone_topic)
        self._own = Author(name, entity, limits, now)
        self._own.writes.pending.revision_of = self._shown_revision
        self._base = 0  # the revision of what was there before the master that is elsewhere
        self._voters = Voters()
        self._looped: deque[tuple[bytes, bytes]] = deque()  # messages to ourselves: topic and payload
        self._done: list[Effect] = []

    # -- looks --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def master(self) -> KvMaster | None: ...

    @property
    @abstractmethod
    def _serving(self) -> bool: ...

    @property
    @abstractmethod
    def _unreadable(self) -> str | None: ...

    @property
    def leads(self) -> bool:
        """True if own writes are done here during the call; after a takeover earlier ones come first."""
        return self._serving and not self._own.waits

    @property
    def clones(self) -> tuple[Entity, ...]:
        return () if self.master is None else self.master.clones

    @property
    def notify(self) -> bool:
        return self._notices.wanted

    @notify.setter
    def notify(self, notify: bool) -> None:
        self._notices.wanted = notify
        if self.master is not None:
            self.master.notify = notify

    @property
    def readable(self) -> bool:
        return self._unreadable is None

    def unreadable(self) -> StaleData | None:
        reason = self._unreadable
        return None if reason is None else StaleData(f"store {self.name!r} cannot be read: {reason}")

    @property
    def room(self) -> bool:
        if self.leads and self.master is not None:
            return self.master.room
        return self._own.writes.room

    @property
    def settled(self) -> bool:
        if self.master is not None and not self.master.settled:
            return False
        return self._own.master is None or not self._own.waits

    @property
    def unconfirmed(self) -> int:
        return len(self._own.writes.pending)

    def revision_of(self, entry: Entry) -> int:
        """Return a revision; where this replica is not master, it may be that of a later write in the same commit."""
        return max(entry.revision, self._base) if self.master is None else self.master.revision_of(entry)

    def durable(self, key: Value) -> Entry | None:
        return self.engine.find(key) if self.master is None else self.master.durable(key)

    def past(self, key: Value) -> list[HistoryRow]:
        """Return the latest changes of a key that all have, the oldest first. Raises InvalidOperation."""
        return past_rows(self, self.history, key)

    def ask_history(self, ticket: int, key: object, timeout_s: float, now: float) -> list[Effect]:
        return [Resolve(ticket, tuple([past_change(row) for row in self.past(to_value(key))]))]

    def _shown_revision(self, key: Value) -> int | None:
        entry = self.engine.find(key)
        return None if entry is None else self.revision_of(entry)

    # -- application --------------------------------------------------------------------------------------------

    def _write(self, command: cmd.Mutation, ticket: int | None, now: float) -> list[Effect]:
        self._wake(now)
        if self.leads and self.master is not None:
            self._by_master(self.master.do(command, ticket, now), now)
        else:
            self._by_author(self._own.write(command, ticket, now))
        return self._take(now)

    def hurry_idle(self, now: float) -> None:
        if self.master is not None:
            self.master.hurry_idle(now)
        self._own.writes.channel.hurry(now)

    # -- world --------------------------------------------------------------------------------------------------

    def handle_subscription(self, holders: frozenset[bytes], reaches: Reaches, now: float) -> list[Effect]:
        """Do nothing: the other servers, or their chain, tell what a change of the network means for them."""
        return []

    def handle_message(self, topic: bytes, messages: Iterable[Any], now: float) -> list[Effect]:
        return self._hear_clones(messages, now) if topic == self._master_topic else self._hear_masters(messages, now)

    def _hear_clones(self, payloads: Iterable[bytes], now: float) -> list[Effect]:
        self._wake(now)
        taken = list(payloads)
        for payload in taken:
            if not self._serving:
                self._hear_voter(payload, now)
        if self._serving and self.master is not None:
            self._by_master(self.master.handle_message(self._master_topic, taken, now), now)
        return self._take(now)

    def _hear_voter(self, payload: bytes, now: float) -> None:
        """Note a clone that looks for a master, while nobody serves here; it repeats everything else."""
        try:
            message = cmd.decode_message(payload)
        except ProtocolError as problem:
            self._refused(problem)
            return
        if asks_aloud(message):
            self._voters.note(message, payload, now)

    def _hear_masters(self, payloads: Iterable[bytes], now: float) -> list[Effect]:
        self._wake(now)
        for payload in payloads:
            try:
                message = cmd.decode_message(payload)
            except ProtocolError as problem:
                self._refused(problem)
                continue
            if message.receiver == self.entity:
                self._by_author(self._own.hear(message, now))
            elif self._serving and self.master is not None and not self._knows(message.sender.endpoint):
                self._done += self.master.handle_message(self._clone_topic, [payload], now)
        return self._take(now)

    @abstractmethod
    def _knows(self, endpoint: bytes) -> bool:
        """Return True if an endpoint is this one or another replica, and so not a second master."""

    # -- what follows from what was done ------------------------------------------------------------------------

    @abstractmethod
    def _wake(self, now: float) -> None:
        """Notice, before anything else, that this server stood still."""

    @abstractmethod
    def _look(self, now: float) -> None: ...

    def _take(self, now: float) -> list[Effect]:
        while True:
            self._look(now)
            if not self._looped:
                break
            self._hear_ourselves(now)
        self._check_idle(now, self._done)
        done, self._done = self._done, []
        return done

    def _hear_ourselves(self, now: float) -> None:
        """Deliver messages to our own endpoint: own writes to the own master, and its answers."""
        while self._looped:
            topic, payload = self._looped.popleft()
            if topic == self._clone_topic:
                self._by_author(self._own.hear(cmd.decode_message(payload), now))
            elif self._serving and self.master is not None:
                self._by_master(self.master.handle_message(self._master_topic, [payload], now), now)

    @abstractmethod
    def _by_master(self, actions: Sequence[Effect], now: float) -> None: ...

    def _by_author(self, actions: Sequence[Effect]) -> None:
        for each in actions:
            if isinstance(each, Send) and each.to == self.entity.endpoint:
                self._looped.append((each.topic, each.message))
            else:
                self._done.append(each)

    def _answer_voters(self) -> None:
        self._looped += [(self._master_topic, payload) for payload in self._voters.take()]

    def _tell_clones(self, sender: Entity, master: Entity) -> None:
        body = cmd.encode_command(cmd.MasterSilent(master))
        self._done.append(Send(None, cmd.encode_message(0, sender, NOBODY, body), self._clone_topic))

    def _refused(self, problem: ProtocolError) -> None:
        self._done.append(Report(CommandRefused(self.name, str(problem))))
