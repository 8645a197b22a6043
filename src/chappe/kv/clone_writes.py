"""A clone's writes: each is kept on its way to a master until it is known what became of it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from chappe.channel import (
    ChannelProducer,
    Event,
    Handshake,
    Heartbeat,
    ProducerAction,
    ToAll,
    ToConsumer,
)
from chappe.compiled import Frozen
from chappe.core import Effect, Report, Resolve, Send
from chappe.data.values import Value
from chappe.defaults import CLONE_WRITES_BYTES_MAX, STORE_ENTRY_BYTES_MAX
from chappe.errors import (
    BackendFailure,
    BufferFull,
    InvalidOperation,
    NoMaster,
    NoSuchKey,
    RecordTooLarge,
    StoreError,
    TypeClash,
    WriteUnknown,
    WrongRevision,
)
from chappe.kv import commands as cmd
from chappe.kv.entity import Entity, check_name, master_topic
from chappe.kv.events import CloneWritesRefused, WriteFailed
from chappe.kv.operations import entry_fits
from chappe.limits import KvLimits

NO_CONDITIONS: Final = "its master is not one of chappe, and knows no revisions; nothing was sent"
_STATES_MAX: Final = 64  # confirmations that wait for the master's events; a further one takes the last one's place
_REASONS: Final[dict[int, tuple[type[StoreError], str]]] = {
    kind.code: (kind, reason)
    for kind, reason in (
        (NoSuchKey, "nothing is stored under the key"),
        (TypeClash, "the operation does not fit the type of the stored value"),
        (InvalidOperation, "the operation's value is not what it needs, or the result would be out of bounds"),
        (BackendFailure, "its backend could not write; look at the master's disk"),
        (NoMaster, "it remembers too many clones already"),
    )
}


def wrong_revision(key: Value, present: int | None) -> str:
    now = "nothing is there now" if present is None else f"it has revision {present} now"
    return f"key {key!r:.60} is not as it was expected to be: {now}"


class Pending(Frozen, frozen=True):
    """One write. ``request``: of a put_unique; ``compares``: it has a condition, which originals cannot check."""

    ticket: int | None
    what: str
    request: int | None = None
    key: Value = None
    compares: bool = False


class WriteState(Frozen, frozen=True):
    """A confirmation that holds once the master's event ``output`` has come."""

    applied: int
    output: int
    outcomes: dict[int, int]


class PendingWrites:
    """The writes of a clone whose outcome it does not know yet, in the order of their numbers."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._writes: dict[int, Pending] = {}
        self._states: deque[WriteState] = deque()
        self.revision_of: Callable[[Value], int | None] = lambda key: None  # of what is shown here

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, seq: int, write: Pending) -> None:
        self._writes[seq] = write

    def confirm(self, state: WriteState) -> None:
        """Note that the master has confirmed writes; ``settle`` makes it known when it may be."""
        if len(self._states) == _STATES_MAX:
            last = self._states.pop()
            state = WriteState(state.applied, state.output, last.outcomes | state.outcomes)
        self._states.append(state)

    def settle(self, next_event: int | None) -> tuple[int, list[Effect]]:
        """Resolve what holds before the master's event ``next_event``; None for all that is confirmed.

        Returns the number up to which failures are now known, 0 if there were none, and the actions.
        """
        known = 0
        actions: list[Effect] = []
        while self._states and (next_event is None or self._states[0].output < next_event):
            state = self._states.popleft()
            known = max(known, max(state.outcomes, default=0))
            while self._writes:
                seq = next(iter(self._writes))
                if seq > state.applied:
                    break
                actions += self._resolve(self._writes.pop(seq), state.outcomes.get(seq, cmd.DONE))
        return known, actions

    def acknowledged(self, applied: int) -> list[Effect]:
        """Note an original's acknowledgement; the outcome of a put_unique comes apart."""
        found = [seq for seq, write in self._writes.items() if seq <= applied and write.request is None]
        return [action for seq in found for action in self._resolve(self._writes.pop(seq), cmd.DONE)]

    def answered(self, request: int, inserted: bool) -> list[Effect]:
        for seq, write in self._writes.items():
            if write.request == request:
                return self._resolve(self._writes.pop(seq), cmd.DONE if inserted else cmd.NOT_INSERTED)
        return []

    def fail(self, up_to: int, kind: type[StoreError], reason: str) -> list[Effect]:
        found = [seq for seq in self._writes if seq <= up_to]
        actions: list[Effect] = []
        for seq in found:
            write = self._writes.pop(seq)
            actions += self._failed(write, kind(f"{write.what}: {reason}"))
        return actions

    @property
    def last_condition(self) -> int:
        return max([seq for seq, write in self._writes.items() if write.compares], default=0)

    def _resolve(self, write: Pending, code: int) -> list[Effect]:
        if write.request is not None and code in (cmd.DONE, cmd.NOT_INSERTED):
            return [] if write.ticket is None else [Resolve(write.ticket, code == cmd.DONE)]
        if code == cmd.DONE:
            return [] if write.ticket is None else [Resolve(write.ticket, None)]
        if code == WrongRevision.code:
            present = self.revision_of(write.key)
            return self._failed(write, WrongRevision(wrong_revision(write.key, present), present))
        kind, reason = _REASONS.get(code, (StoreError, f"error {code}"))
        return self._failed(write, kind(f"the master refused {write.what}: {reason}"))

    def _failed(self, write: Pending, error: StoreError) -> list[Effect]:
        if write.ticket is None:
            return [Report(WriteFailed(self._store, write.what, error))]
        return [Resolve(write.ticket, error)]


class Uplink:
    """Addresses messages of the clone ``entity`` of the store ``name`` to masters; raises UsageError for a bad name."""

    def __init__(self, name: str, entity: Entity) -> None:
        self._topic = master_topic(check_name(name))
        self._entity = entity

    def ask(self, receiver: Entity, state: tuple[Entity, int] | None, actions: list[Effect]) -> None:
        """Ask for a snapshot, aloud: a master by name, or whichever there is with ``NOBODY``; see ``cmd.asking``."""
        body = cmd.encode_command(cmd.asking(state))
        actions.append(Send(None, cmd.encode_message(0, self._entity, receiver, body), self._topic))

    def send(self, command: cmd.Command, master: Entity, actions: list[Effect]) -> None:
        payload = cmd.encode_message(0, self._entity, master, cmd.encode_command(command))
        # The original broadcasts what it says as a writer, and answers as a reader to its master alone.
        alone = master.is_chappe or isinstance(command, cmd.CumulativeAck | cmd.MissingEvents)
        actions.append(Send(master.endpoint if alone else None, payload, self._topic))

    def send_event(self, event: Event[bytes], master: Entity, actions: list[Effect]) -> None:
        payload = cmd.encode_message(event.seq, self._entity, master, event.payload)
        actions.append(Send(master.endpoint if master.is_chappe else None, payload, self._topic))


class CloneWrites:
    """The channel of one clone to its master, and who waits for what was written.

    Args:
        buffer_s: Without a master for longer, writes are refused; 0 refuses them at once.
        heartbeat_s: Longest silence towards the master while something is not confirmed.
    """

    def __init__(
        self, name: str, uplink: Uplink, limits: KvLimits, *, now: float, buffer_s: float, heartbeat_s: float
    ) -> None:
        self.refusing = buffer_s == 0  # since there was no master for too long
        self._name = name
        self._uplink = uplink
        self._buffer_s = buffer_s
        self._heartbeat_s = heartbeat_s
        self.channel: ChannelProducer[Entity, bytes] = ChannelProducer(
            len, now=now, heartbeat_s=heartbeat_s, events_max=limits.writes_max,
            bytes_max=CLONE_WRITES_BYTES_MAX, lasting=True, window=limits.window,
        )  # fmt: skip
        self.pending = PendingWrites(name)  # whose outcome is not known yet, or not shown
        self._unconfirmed_max = 2 * limits.writes_max  # a clone that lags shows late what is confirmed
        self._full_at = math.inf  # writes that were unconfirmed when one found no room
        self._sent = 0  # the last write that any master may have received

    @property
    def room(self) -> bool:
        """True if a write is taken now, or refused since there was no master for too long.

        Behind one that was refused for want of room there is some when a write of those before is confirmed.
        """
        if self.refusing:
            return True
        if self._full_at < math.inf:
            if len(self.pending) >= self._full_at:
                return False
            self._full_at = math.inf
        return self.channel.room(0) and len(self.pending) < self._unconfirmed_max

    def idle(self) -> bool:
        return not self.pending and self.channel.floor == self.channel.seq

    def greeting(self) -> cmd.AttachWriter:
        return cmd.AttachWriter(self.channel.floor, cmd.ticks(self._heartbeat_s))

    def invariants(self) -> list[str]:
        found = self.channel.invariants()
        if self._sent > self.channel.seq:
            found.append(f"write {self._sent} was sent, the last one is {self.channel.seq}")
        if self.refusing and self.channel.floor != self.channel.seq:
            found.append("writes are refused, and some are kept")
        if len(self.pending) > self._unconfirmed_max:
            found.append(f"{len(self.pending)} writes wait for their outcome, at most {self._unconfirmed_max} may")
        return found

    # -- application ------------------------------------------------------------------------------------------------

    def write(self, command: cmd.Mutation, ticket: int | None, now: float) -> list[Effect]:
        """Add a write. Raises RecordTooLarge, NoMaster or BufferFull."""
        key, value = getattr(command, "key", None), getattr(command, "value", None)
        if not entry_fits(key, value):
            raise RecordTooLarge(f"key and value have more than {STORE_ENTRY_BYTES_MAX:,} bytes")
        if self.refusing:
            raise NoMaster(f"store {self._name!r} has no master, and keeps writes for {self._buffer_s:g} s only")
        actions: list[Effect] = []
        try:
            if len(self.pending) >= self._unconfirmed_max:
                raise BufferFull(f"{len(self.pending)} writes are not confirmed and shown, at most that many may be")
            produced = self.channel.produce(cmd.encode_command(command), now)
        except BufferFull:
            self._full_at = float(len(self.pending))
            raise
        request = getattr(command, "request", None)  # of a put_unique
        compares = isinstance(command, cmd.PutIf | cmd.EraseIf)
        what = f"{type(command).__name__} of {key!r:.60}"
        self.pending.add(self.channel.seq, Pending(ticket, what, request, key, compares))
        self._apply(produced, actions)
        return actions

    # -- masters come and go ----------------------------------------------------------------------------------------

    def begin(self, master: Entity, now: float, actions: list[Effect]) -> None:
        """Send a master all that is not confirmed, in order; an original only what comes before a condition."""
        last = 0 if master.is_chappe else self.pending.last_condition
        if last:
            actions += self.pending.fail(last, InvalidOperation, NO_CONDITIONS)
            self.channel.skip_to(last)
        self._apply(self.channel.add(master, now, replay=True), actions)

    def doubt(self, actions: list[Effect]) -> None:
        """Note that the former master may have done writes that it was sent, which the present one cannot know."""
        lost = "the master was lost, and whether it did the write cannot be known; read the key to see"
        actions += self.pending.fail(self._sent, WriteUnknown, lost)
        self.channel.skip_to(self._sent)

    def refuse_at(self, lost_at: float) -> float:
        """Return when writes are refused if the master lost at ``lost_at`` stays away; infinity if they are."""
        return math.inf if self.refusing else lost_at + self._buffer_s

    def refuse(self, actions: list[Effect]) -> None:
        """Give up all writes that wait, and take no more: there was no master for too long."""
        self.refusing = True
        actions += self.pending.settle(None)[1]
        count = len(self.pending)
        lost = "the master was lost before it confirmed the write; read the key to see whether it was done"
        actions += self.pending.fail(self._sent, WriteUnknown, lost)
        actions += self.pending.fail(self.channel.seq, NoMaster, f"no master was found within {self._buffer_s:g} s")
        self.channel.skip_to(self.channel.seq)
        if count:
            actions.append(Report(CloneWritesRefused(self._name, count)))

    # -- what the master says, and time -----------------------------------------------------------------------------

    def take_state(self, master: Entity, command: cmd.WriterState, now: float, actions: list[Effect]) -> None:
        if produced := self.channel.take_ack(master, command.applied, now):
            self._apply(produced, actions)
        self.pending.confirm(WriteState(command.applied, command.output, dict(command.outcomes)))

    def take_ack(self, master: Entity, seq: int, now: float, actions: list[Effect]) -> None:
        self._apply(self.channel.take_ack(master, seq, now), actions)
        actions += self.pending.acknowledged(seq)

    def take_nack(self, master: Entity, seqs: tuple[int, ...], now: float, actions: list[Effect]) -> None:
        """Take a master's list of missing writes; one of chappe confirms earlier ones only with their outcomes."""
        self._apply(self.channel.take_nack(master, seqs, now, confirms=not master.is_chappe), actions)

    def take_answer(self, answer: cmd.PutUniqueResult, actions: list[Effect]) -> None:
        actions += self.pending.answered(answer.request, answer.inserted)

    def settle(self, master: Entity, next_event: int, actions: list[Effect]) -> None:
        """Tell callers the outcomes of their writes, once this clone shows all before ``next_event``."""
        known, resolved = self.pending.settle(next_event)
        actions += resolved
        if known:
            self._uplink.send(cmd.Settled(known), master, actions)

    def tick(self, now: float, actions: list[Effect]) -> None:
        self._apply(self.channel.tick(now), actions)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _apply(self, produced: list[ProducerAction[Entity]], actions: list[Effect]) -> None:
        for each in produced:
            if isinstance(each, ToConsumer):
                message = each.message
                if isinstance(message, Event):
                    self._sent = max(self._sent, message.seq)
                    self._uplink.send_event(message, each.consumer, actions)
                elif isinstance(message, Handshake):
                    greeting = cmd.AttachWriter(message.offset, cmd.ticks(message.heartbeat_s))
                    self._uplink.send(greeting, each.consumer, actions)
                else:
                    self._uplink.send(message, each.consumer, actions)
            elif isinstance(each, ToAll) and isinstance(each.message, Heartbeat):
                self._beat(each.message.seq, actions)

    def _beat(self, seq: int, actions: list[Effect]) -> None:
        """Send heartbeats, unless acknowledgements are enough: to a master of chappe that has confirmed all."""
        (master,) = self.channel.consumers
        if not master.is_chappe or not self.idle():
            self._uplink.send(cmd.Keepalive(seq), master, actions)
