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

import math
from collections.abc import Iterable
from typing import Any, Final, Literal

from chappe.channel import (
    ASK_HANDSHAKE,
    Ack,
    ChannelConsumer,
    ChannelProducer,
    Consume,
    ConsumerAction,
    Event,
    Handshake,
    Heartbeat,
    Lost,
    ProducerAction,
    ToAll,
    ToConsumer,
    ToProducer,
)
from chappe.core import Report
from chappe.data.convert import to_value
from chappe.data.order import same
from chappe.data.values import Value
from chappe.defaults import (
    CHANNEL_HEARTBEAT_S,
    CHANNEL_NACK_S,
    CHANNEL_TICK_S,
    CLONE_BUFFER_MAX_S,
    CLONE_BUFFER_S,
    CLONE_RESYNC_S,
    CLONE_STALE_S,
    CLONE_WINDOW,
    CLONE_WRITES_BYTES_MAX,
    CLONE_WRITES_MAX,
    MASTER_CONFLICT_S,
    MASTER_SILENT_S,
    STORE_ENTRY_BYTES_MAX,
)
from chappe.errors import NoMaster, ProtocolError, RecordTooLarge, StaleData, TimedOut, UsageError, WriteUnknown
from chappe.stores import commands as cmd
from chappe.stores.actions import Action, Notify, Resolve, Send
from chappe.stores.engine import Change, Engine, index_of
from chappe.stores.entity import NOBODY, Entity
from chappe.stores.events import CloneStale, CommandRefused, MasterFound, MasterLost, TwoMasters, WritesRefused
from chappe.stores.pending import Pending, PendingWrites, State
from chappe.stores.sizes import entry_fits
from chappe.stores.topics import check_name, master_topic

_ORIGINAL_KEEPS_S: Final = 40.0  # an original forgets a silent clone after 50 s; before that the channel just goes on
# An original that still knows us must not be asked for a snapshot: it would keep it, and give us the same one the next
# time, however old that is then. Its heartbeat, every half second, tells that it is there; so we listen first.
_ORIGINAL_LISTEN_S: Final = 1.2
_ORIGINAL_FORGETS_S: Final = 52.0


class StoreClone:
    """See the module.

    Every method that does something takes ``now``, monotonic seconds, and returns actions. Writes return at once;
    their ``ticket`` is resolved when the master has done them durably and this clone shows the result: with None, with
    whether it inserted for ``put_unique``, or with a StoreError. Failures of writes without a ticket are reported.

    Args:
        name: Of the store.
        entity: Who this clone is; made by ``entity.chappe_entity``, new in each life.
        resync_s: Longest pause between two attempts to find a master.
        stale_s: Without a master for longer, reading raises StaleData; negative for never.
        mutation_buffer_s: Without a master for longer, writes are refused; 0 refuses them at once. At most
            ``defaults.CLONE_BUFFER_MAX_S``.
        notify: Whether changes are told to watchers.
    """

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        now: float,
        resync_s: float = CLONE_RESYNC_S,
        stale_s: float = CLONE_STALE_S,
        mutation_buffer_s: float = CLONE_BUFFER_S,
        heartbeat_s: float = CHANNEL_HEARTBEAT_S,
        notify: bool = True,
    ) -> None:
        if not 0 <= mutation_buffer_s <= CLONE_BUFFER_MAX_S:
            raise UsageError(f"mutation_buffer_s is 0 to {CLONE_BUFFER_MAX_S:g} seconds, not {mutation_buffer_s:g}")
        if resync_s < CHANNEL_NACK_S:
            raise UsageError(f"resync_s is at least {CHANNEL_NACK_S:g} seconds, not {resync_s:g}")
        self.name = name
        self.entity = entity
        self.engine = Engine()
        self.notify = notify
        self.master: Entity | None = None  # the one that is followed, or was last
        self.connected = False
        self._topic = master_topic(check_name(name))
        self._resync_s = resync_s
        self._stale_s = stale_s if stale_s >= 0 else math.inf
        self._buffer_s = mutation_buffer_s
        self._heartbeat_s = heartbeat_s
        self._input: ChannelConsumer[cmd.Action] = self._new_input(now)
        self._syncing = False  # a snapshot is needed although the master is there
        self._writes: ChannelProducer[Entity, bytes] = ChannelProducer(
            len, now=now, heartbeat_s=heartbeat_s, events_max=CLONE_WRITES_MAX,
            bytes_max=CLONE_WRITES_BYTES_MAX, lasting=True, window=CLONE_WINDOW,
        )  # fmt: skip
        self._pending = PendingWrites(name)
        self._sent = 0  # the last write that any master may have received
        self._requests = 0
        self._unreadable: str | None = "it has not found a master yet"
        self._refusing = mutation_buffer_s == 0
        self._lost_at = now
        self._heard_at = now
        self._search_at = now
        self._search_s = CHANNEL_NACK_S
        self._probe = False  # the next attempt asks the old master whether it still knows us
        self._idle_waits: dict[int, float] = {}
        self._ready_waits: dict[int, float] = {}
        self._conflicts: dict[Entity, float] = {}

    # -- application: reading -----------------------------------------------------------------------------------

    @property
    def readable(self) -> bool:
        """Whether it may be read."""
        return self._unreadable is None

    @property
    def room(self) -> bool:
        """Whether another write of ordinary size is taken at once."""
        return not self._refusing and self._writes.room(0)

    @property
    def refusing(self) -> bool:
        """Whether writes are refused, since there was no master for too long."""
        return self._refusing

    @property
    def unconfirmed(self) -> int:
        """Writes whose outcome is not known yet."""
        return len(self._pending)

    def get(self, key: object) -> Value:
        """The value under a key; raises NoSuchKey or StaleData."""
        if self._unreadable is not None:
            raise self._stale()
        return self.engine.get(key if type(key) is str else to_value(key))

    def get_index(self, key: object, index: object) -> Value:
        """What lies at an index of the value under a key; raises NoSuchKey, TypeClash or StaleData."""
        return self.readable_engine().get_index(to_value(key), to_value(index))

    def exists(self, key: object) -> bool:
        """Whether there is a value under a key; raises StaleData."""
        return self.readable_engine().exists(to_value(key))

    def readable_engine(self) -> Engine:
        """All data, to be read only; raises StaleData."""
        if self._unreadable is not None:
            raise self._stale()
        return self.engine

    def idle(self) -> bool:
        """Whether it is attached, knows of nothing missing, and all its writes are confirmed and shown."""
        return (
            self.connected
            and not self._syncing
            and self._input.idle()
            and not self._pending
            and self._writes.floor == self._writes.seq
        )

    def await_ready(self, ticket: int, timeout_s: float, now: float) -> list[Action]:
        """Resolve the ticket with None once it may be read, with StaleData after ``timeout_s``."""
        if self._unreadable is None:
            return [Resolve(ticket, None)]
        self._ready_waits[ticket] = now + timeout_s
        return []

    def await_idle(self, ticket: int, timeout_s: float, now: float) -> list[Action]:
        """Resolve the ticket with None once ``idle``, with TimedOut after ``timeout_s``."""
        if self.idle():
            return [Resolve(ticket, None)]
        self._idle_waits[ticket] = now + timeout_s
        self._writes.hurry(now)
        return []

    # -- application: writing -----------------------------------------------------------------------------------

    def put(
        self, key: object, value: object, *, now: float, expiry_ns: int | None = None, ticket: int | None = None
    ) -> list[Action]:
        """Set a value; raises NoMaster or BufferFull if the write is not taken."""
        command = cmd.Put(to_value(key), to_value(value), expiry_ns, self.entity)
        return self._write(command, ticket, now)

    def put_unique(
        self, key: object, value: object, *, now: float, expiry_ns: int | None = None, ticket: int | None = None
    ) -> list[Action]:
        """Set a value if there is none."""
        self._requests += 1
        key, value = to_value(key), to_value(value)
        command = cmd.PutUnique(key, value, expiry_ns, self.entity, self._requests, self.entity)
        return self._write(command, ticket, now, self._requests)

    def erase(self, key: object, *, now: float, ticket: int | None = None) -> list[Action]:
        """Remove a key, if it is there."""
        return self._write(cmd.Erase(to_value(key), self.entity), ticket, now)

    def add(
        self, key: object, value: object, init: int, *, now: float, expiry_ns: int | None = None,
        ticket: int | None = None,
    ) -> list[Action]:  # fmt: skip
        """Add to a value, by default the empty one of the type with tag ``init``."""
        command = cmd.Add(to_value(key), to_value(value), init, expiry_ns, self.entity)
        return self._write(command, ticket, now)

    def subtract(
        self, key: object, value: object, *, now: float, expiry_ns: int | None = None, ticket: int | None = None
    ) -> list[Action]:
        """Take away from a value."""
        return self._write(cmd.Subtract(to_value(key), to_value(value), expiry_ns, self.entity), ticket, now)

    def clear(self, *, now: float, ticket: int | None = None) -> list[Action]:
        """Remove everything."""
        return self._write(cmd.Clear(self.entity), ticket, now)

    # -- world --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Begin: look for a master."""
        return self.handle_timeout(now)

    def leave(self) -> list[Action]:
        """The end: a master of chappe need not wait for it any more."""
        if not self.connected or self.master is None or not self.master.is_chappe:
            return []
        actions: list[Action] = []
        self._send(cmd.Leave(self._writes.seq), self.master, actions)
        return actions

    def handle_messages(self, payloads: Iterable[bytes], now: float) -> list[Action]:
        """Command messages have come on the clones' topic."""
        actions: list[Action] = []
        for payload in payloads:
            try:
                message = cmd.decode_message(payload)
                if message.receiver == self.entity or message.receiver == NOBODY:
                    self._handle(message, now, actions)
            except ProtocolError as problem:
                actions.append(Report(CommandRefused(self.name, str(problem))))
        self._settle(actions)
        self._check_waits(now, actions)
        return actions

    def handle_gone(self, endpoint: bytes, now: float) -> list[Action]:
        """An endpoint is out of reach."""
        actions: list[Action] = []
        if self.connected and self.master is not None and self.master.endpoint == endpoint:
            self._lose("its endpoint is out of reach", now, actions)
        return actions

    def hurry(self, now: float) -> None:
        """There may be a master now that was not before: look for it at the next ``handle_timeout``."""
        if not self.connected:
            self._search_at = now + self._listen_s()
            self._search_s = CHANNEL_NACK_S
            self._probe = False

    def handle_timeout(self, now: float) -> list[Action]:
        """Look for a master, acknowledge, ask for what is missing, grow stale."""
        actions: list[Action] = []
        if self.connected:
            if now >= self._heard_at + MASTER_SILENT_S:
                self._lose(f"nothing was heard of it for {MASTER_SILENT_S:g} s", now, actions)
            else:
                self._take(self._input.handle_timeout(now), now, actions)
                self._apply(self._writes.handle_timeout(now), actions)
        else:
            if now >= self._lost_at + self._stale_s and self._unreadable is None:
                self._unreadable = f"it lost its master more than {self._stale_s:g} s ago"
                actions.append(Report(CloneStale(self.name)))
            if now >= self._lost_at + self._buffer_s and not self._refusing:
                self._refuse(actions)
        if (not self.connected or self._syncing) and now >= self._search_at:
            self._search(now, actions)
        self._settle(actions)
        self._check_waits(now, actions)
        return actions

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is due."""
        due = [*self._idle_waits.values(), *self._ready_waits.values()]
        if self.connected:
            due += [self._heard_at + MASTER_SILENT_S, self._input.next_timeout(), self._writes.next_timeout()]
        else:
            if self._unreadable is None:
                due.append(self._lost_at + self._stale_s)
            if not self._refusing:
                due.append(self._lost_at + self._buffer_s)
        if not self.connected or self._syncing:
            due.append(self._search_at)
        return min(due)

    # -- inside: finding, following and losing a master -----------------------------------------------------------

    def _new_input(self, now: float) -> ChannelConsumer[cmd.Action]:
        return ChannelConsumer(now=now, search_max_s=math.inf)

    def _search(self, now: float, actions: list[Action]) -> None:
        """Ask for a master: whether the old one still knows us, and all others, by turns."""
        self._search_at = now + self._search_s
        self._search_s = min(2 * self._search_s, self._resync_s)
        probe, self._probe = self._probe, not self._probe
        old = self.master
        if probe and old is not None and old.is_chappe and not self._syncing and self._input.initialized:
            self._send(cmd.AttachWriter(self._writes.floor, cmd.ticks(self._heartbeat_s)), old, actions)
            self._search_at = min(self._search_at, now + CHANNEL_NACK_S)
            return
        body = cmd.encode_command(cmd.MissingEvents(ASK_HANDSHAKE))
        # While it is followed a master is asked by name: another one that answered would be a second master.
        receiver = old if self.connected and old is not None else NOBODY
        actions.append(Send(self._topic, None, cmd.encode_message(0, self.entity, receiver, body)))

    def _listen_s(self) -> float:
        """How long to wait for a sign of the master that was lost, before masters are asked for a snapshot."""
        original = self.master is not None and not self.master.is_chappe and self._input.initialized
        return _ORIGINAL_LISTEN_S if original else 0.0

    def _lose(self, reason: str, now: float, actions: list[Action]) -> None:
        assert self.master is not None
        self.connected = False
        self._syncing = False
        self._writes.drop(self.master, "")
        self._lost_at = now
        self._search_at = now + self._listen_s()
        self._search_s = CHANNEL_NACK_S
        self._probe = True
        actions.append(Report(MasterLost(self.name, self.master, reason)))
        if self._buffer_s == 0:
            self._refuse(actions)

    def _refuse(self, actions: list[Action]) -> None:
        """Without a master for too long: give up all writes that wait, and take no more."""
        self._refusing = True
        actions += self._pending.settle(None)[1]
        count = len(self._pending)
        lost = "the master was lost before it confirmed the write; read the key to see whether it was done"
        actions += self._pending.fail(self._sent, WriteUnknown, lost)
        actions += self._pending.fail(self._writes.seq, NoMaster, f"no master was found within {self._buffer_s:g} s")
        self._writes.skip_to(self._writes.seq)
        if count:
            actions.append(Report(WritesRefused(self.name, count)))

    def _follow(self, master: Entity, actions: list[Action]) -> None:
        """It is there, again or for the first time."""
        self.connected = True
        self._syncing = False
        self._search_s = CHANNEL_NACK_S
        self._unreadable = None
        self._refusing = False
        self.master = master
        actions.append(Report(MasterFound(self.name, master)))
        actions += [Resolve(ticket, None) for ticket in self._ready_waits]
        self._ready_waits.clear()

    def _resume(self, now: float, actions: list[Action]) -> None:
        """The master that was lost is there again: the channels go on where they were."""
        assert self.master is not None
        self._follow(self.master, actions)
        self._apply(self._writes.add(self.master, now, replay=True), actions)
        self._send(cmd.CumulativeAck(self._input.next - 1), self.master, actions)

    def _attach(self, master: Entity, command: cmd.AckClone, now: float, actions: list[Action]) -> None:
        """A master has sent all it has."""
        pairs = command.pairs()
        again = master == self.master
        if again and master.is_chappe and self._input.initialized and command.offset < self._input.next - 1:
            return  # an old one that was on its way for long
        if not (again and self._input.initialized and command.offset < self._input.next - 1):
            # Otherwise an original sends the offset that it once gave; what lies between has come already.
            self._input = self._new_input(now)
        if self.connected:
            self._writes.drop(master, "")
        self._differ(pairs, master, actions)
        if not again and self.master is not None and not (self.master.is_chappe and master.is_chappe):
            lost = "the master was lost, and whether it did the write cannot be known; read the key to see"
            actions += self._pending.fail(self._sent, WriteUnknown, lost)
            self._writes.skip_to(self._sent)
        self._follow(master, actions)
        actions += self._pending.settle(None)[1]
        self._take(self._input.handle_handshake(command.offset, command.ticks * CHANNEL_TICK_S, now), now, actions)
        self._apply(self._writes.add(master, now, replay=True), actions)

    def _differ(self, pairs: list[cmd.Pair], master: Entity, actions: list[Action]) -> None:
        """Become what the snapshot says, telling every difference."""
        wanted = {index_of(key) for key, _ in pairs}
        for entry in [entry for index, entry in self.engine.entries.items() if index not in wanted]:
            self._tell(self.engine.erase(entry.key), None, master, actions)
        for key, value in pairs:
            found = self.engine.find(key)
            if found is None or not same(found.value, value):
                self._tell(self.engine.put(key, value), None, master, actions)

    # -- inside: messages -----------------------------------------------------------------------------------------

    def _handle(self, message: cmd.Message, now: float, actions: list[Action]) -> None:
        command, sender = message.command, message.sender
        known = sender == self.master
        if isinstance(command, cmd.AckClone):
            if message.receiver != self.entity or (self.connected and not self._syncing and known):
                return
            if not self.connected or known:
                self._heard_at = now
                self._attach(sender, command, now, actions)
                return
        if not known:
            if self.connected:
                self._conflict(sender, now, actions)
            return
        self._heard_at = now
        if not self.connected:
            fresh = sender.is_chappe or now < self._lost_at + _ORIGINAL_KEEPS_S
            if not (fresh and self._input.initialized):
                if not sender.is_chappe and self._input.initialized:
                    self._search_at = max(self._search_at, self._lost_at + _ORIGINAL_FORGETS_S)
                return
            self._resume(now, actions)
        if isinstance(command, cmd.ACTIONS):
            if not self._syncing:
                self._take(self._input.handle_event(message.seq, command, now), now, actions)
        elif isinstance(command, cmd.Keepalive):
            if not self._syncing:
                self._take(self._input.handle_heartbeat(command.seq, now), now, actions)
        elif message.receiver == self.entity:
            self._control(sender, command, now, actions)

    def _control(self, master: Entity, command: Any, now: float, actions: list[Action]) -> None:
        """What the master says to this clone alone."""
        if isinstance(command, cmd.WriterState):
            self._apply(self._writes.handle_ack(master, command.applied, now), actions)
            self._pending.confirm(State(command.applied, command.output, dict(command.outcomes)))
        elif isinstance(command, cmd.CumulativeAck):
            self._apply(self._writes.handle_ack(master, command.seq, now), actions)
            actions += self._pending.acknowledged(command.seq)
        elif isinstance(command, cmd.MissingEvents):
            self._apply(self._writes.handle_nack(master, command.seqs, now), actions)
        elif isinstance(command, cmd.RetransmitFailed):
            if not self._syncing:
                self._take(self._input.handle_retransmit_failed(command.seq, now), now, actions)
        else:
            actions.append(Report(CommandRefused(self.name, f"{master} sent a clone's {type(command).__name__}")))

    def _conflict(self, other: Entity, now: float, actions: list[Action]) -> None:
        if now < self._conflicts.get(other, -math.inf) + MASTER_CONFLICT_S:
            return
        assert self.master is not None
        if other.is_chappe and other.endpoint == self.master.endpoint:
            self._lose("another master has taken its place", now, actions)  # an endpoint has but one at a time
            self._probe = False
            return
        self._conflicts = {each: at for each, at in self._conflicts.items() if now < at + MASTER_CONFLICT_S}
        self._conflicts[other] = now
        actions.append(Report(TwoMasters(self.name, self.master, other)))

    def _take(self, taken: list[ConsumerAction[cmd.Action]], now: float, actions: list[Action]) -> None:
        """What the channel from the master has to say."""
        for each in taken:
            if isinstance(each, Consume):
                if not self._syncing:
                    self._do(each.payload, actions)
            elif isinstance(each, Lost):
                if not self._syncing:
                    self._syncing = True
                    self._search_s = CHANNEL_NACK_S
                    self._search(now, actions)
            elif isinstance(each, ToProducer) and self.master is not None:
                message = each.message
                if isinstance(message, Ack):
                    self._send(cmd.CumulativeAck(message.seq), self.master, actions)
                else:
                    self._send(cmd.MissingEvents(message.seqs), self.master, actions)

    def _do(self, command: cmd.Action, actions: list[Action]) -> None:
        """An event of the master."""
        if type(command) is cmd.Put:
            change = self.engine.put(command.key, command.value)
            self._tell(change, command.expiry_ns, command.publisher, actions)
        elif isinstance(command, cmd.PutUniqueResult):
            if command.who == self.entity:
                actions += self._pending.answered(command.request, command.inserted)
        elif isinstance(command, cmd.Erase | cmd.Expire):
            kind: Literal["erase", "expire"] = "erase" if isinstance(command, cmd.Erase) else "expire"
            self._tell(self.engine.erase(command.key, kind), None, command.publisher, actions)
        elif isinstance(command, cmd.Clear):
            for change in self.engine.clear():
                self._tell(change, None, command.publisher, actions)
        else:
            raise ProtocolError(f"a master sent {type(command).__name__}, which only clones do")

    def _tell(self, change: Change | None, expiry_ns: int | None, publisher: Entity, actions: list[Action]) -> None:
        if change is not None and self.notify:
            value = None if change.entry is None else change.entry.value
            before = None if change.before is None else change.before.value
            actions.append(Notify(change.kind, change.key, value, before, expiry_ns, publisher, change.version))

    # -- inside: writing and waiting --------------------------------------------------------------------------------

    def _write(self, command: cmd.Action, ticket: int | None, now: float, request: int | None = None) -> list[Action]:
        key, value = getattr(command, "key", None), getattr(command, "value", None)
        if not entry_fits(key, value):
            raise RecordTooLarge(f"key and value have more than {STORE_ENTRY_BYTES_MAX:,} bytes")
        if self._refusing:
            raise NoMaster(f"store {self.name!r} has no master, and keeps writes for {self._buffer_s:g} s only")
        actions: list[Action] = []
        produced = self._writes.produce(cmd.encode_command(command), now)
        self._pending.add(self._writes.seq, Pending(ticket, f"{type(command).__name__} of {key!r:.60}", request))
        self._apply(produced, actions)
        return actions

    def _apply(self, produced: list[ProducerAction[Entity]], actions: list[Action]) -> None:
        """What the channel to the master has to say."""
        for each in produced:
            if isinstance(each, ToConsumer):
                message = each.message
                if isinstance(message, Event):
                    self._sent = max(self._sent, message.seq)
                    payload = cmd.encode_message(message.seq, self.entity, each.consumer, message.payload)
                    receiver = each.consumer.endpoint if each.consumer.is_chappe else None
                    actions.append(Send(self._topic, receiver, payload))
                elif isinstance(message, Handshake):
                    self._send(cmd.AttachWriter(message.offset, cmd.ticks(message.heartbeat_s)), each.consumer, actions)
                else:
                    self._send(cmd.RetransmitFailed(message.seq), each.consumer, actions)
            elif isinstance(each, ToAll) and isinstance(each.message, Heartbeat):
                self._beat(each.message.seq, actions)

    def _beat(self, seq: int, actions: list[Action]) -> None:
        """Acknowledgements are a sign of life enough for a master of chappe that has confirmed all writes."""
        assert self.master is not None
        if not self.master.is_chappe or self._pending or self._writes.floor < self._writes.seq:
            self._send(cmd.Keepalive(seq), self.master, actions)

    def _send(self, command: cmd.Command, master: Entity, actions: list[Action]) -> None:
        payload = cmd.encode_message(0, self.entity, master, cmd.encode_command(command))
        # The original broadcasts what it says as a writer, and answers as a reader to its master alone.
        alone = master.is_chappe or isinstance(command, cmd.CumulativeAck | cmd.MissingEvents)
        actions.append(Send(self._topic, master.endpoint if alone else None, payload))

    def _settle(self, actions: list[Action]) -> None:
        """Tell callers what became of their writes, once this clone shows it."""
        if self.connected and not self._syncing and self.master is not None:
            known, resolved = self._pending.settle(self._input.next)
            actions += resolved
            if known:
                self._send(cmd.Settled(known), self.master, actions)

    def _stale(self) -> StaleData:
        return StaleData(f"store {self.name!r} cannot be read: {self._unreadable}")

    def _check_waits(self, now: float, actions: list[Action]) -> None:
        if self._idle_waits and self.idle():
            actions += [Resolve(ticket, None) for ticket in self._idle_waits]
            self._idle_waits.clear()
        for ticket in [ticket for ticket, until in self._idle_waits.items() if now >= until]:
            del self._idle_waits[ticket]
            actions.append(Resolve(ticket, TimedOut(f"store {self.name!r} did not become idle in time")))
        for ticket in [ticket for ticket, until in self._ready_waits.items() if now >= until]:
            del self._ready_waits[ticket]
            actions.append(Resolve(ticket, self._stale()))
