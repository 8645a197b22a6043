"""The clones that follow a master: each is sent all there is once, and from then on every change in order.

Writers are the clones that write to a master: how far each is done, and which writes failed.

It is kept beyond the end of a connection, and in the backend beyond the end of the master, because a clone that comes
back repeats what was not confirmed to it, and nothing may be done twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, Final

from chappe.channel import (
    ChannelConsumer,
    ChannelProducer,
    Dropped,
    Event,
    HandshakeCompleted,
    Heartbeat,
    ProducerAction,
    RetransmitFailed,
    ToAll,
    ToConsumer,
)
from chappe.core import Clock, Effect, Report, Send
from chappe.defaults import (
    CHANNEL_CALM_S,
    CHANNEL_HEARTBEAT_S,
    CHANNEL_TICK_S,
    STORE_TOLD_GAP_S,
    STORE_TOLD_LATER_S,
    STORE_WRITER_FORGET_S,
    STORE_WRITERS_MAX,
)
from chappe.kv import commands as cmd
from chappe.kv.backend import WriterRow
from chappe.kv.commands import Mutation
from chappe.kv.engine import Entry
from chappe.kv.entity import NOBODY, Entity, check_name, clone_topic
from chappe.kv.events import CloneAttached, CloneDropped, StoreNearsBound
from chappe.kv.snapshots import SnapshotChanges, Snapshots, SnapshotTooLarge, View, Wholes
from chappe.limits import KvLimits

NS: int = 1_000_000_000


class CloneWriter:
    """One clone that writes, or wrote: ``taken`` counts writes in memory, ``applied`` durable ones to be confirmed."""

    __slots__ = ("_outcomes_max", "applied", "channel", "entity", "heard_ns", "outcomes", "taken")

    def __init__(self, entity: Entity, applied: int, heard_ns: int, limits: KvLimits) -> None:
        self._outcomes_max = limits.outcomes_max
        self.entity = entity
        self.applied = applied
        self.taken = applied
        self.outcomes: dict[int, int] = {}  # by the number of the write
        self.heard_ns = heard_ns
        self.channel: ChannelConsumer[Mutation] | None = None  # while it is attached

    @property
    def full(self) -> bool:
        return len(self.outcomes) >= self._outcomes_max

    def told(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Return how far its writes are done, and the outcomes up to there: as many as one message holds."""
        if not self.outcomes:
            return self.applied, ()
        found = sorted([each for each in self.outcomes.items() if each[0] <= self.applied])
        end = self._outcomes_max  # a disk that is full may refuse more writes than that at once
        return (found[end][0] - 1 if len(found) > end else self.applied), tuple(found[:end])

    def settle(self, seq: int) -> bool:
        """Note that it knows the outcomes up to ``seq``; return whether there were more than it could be told."""
        more = len(self.outcomes) > self._outcomes_max
        self.outcomes = {each: code for each, code in self.outcomes.items() if each > seq}
        return more


class Writers:
    def __init__(self, rows: tuple[WriterRow, ...], limits: KvLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self.known: dict[Entity, CloneWriter] = {}
        self.attached: dict[Entity, CloneWriter] = {}
        self.due: dict[Entity, None] = {}  # who is to be told how far it is done; in order
        self._silent: dict[Entity, None] = {}  # at the last look, by the time of day
        for row in rows:
            if row.entity == NOBODY:
                continue  # it keeps the numbers of events: see ``Numbers``
            writer = self.known[row.entity] = CloneWriter(row.entity, row.applied, row.heard_ns, limits)
            writer.outcomes = dict(row.outcomes)

    def invariants(self) -> list[str]:
        found: list[str] = []
        for entity, writer in self.known.items():
            if writer.applied > writer.taken:
                found.append(f"write {writer.applied} of {entity} is confirmed, {writer.taken} are done")
            if (writer.channel is not None) is not (self.attached.get(entity) is writer):
                found.append(f"{entity} has a channel and is not attached, or the other way round")
            if writer.channel is not None:
                found += [f"of {entity} {each}" for each in writer.channel.invariants()]
            if any(seq > writer.taken for seq in writer.outcomes):
                found.append(f"{entity} has outcomes of writes that are not done")
        return found

    def make(self, entity: Entity, applied: int) -> CloneWriter | None:
        """Return a new one; None if there are too many that must be remembered."""
        if len(self.known) >= STORE_WRITERS_MAX:
            return None
        writer = self.known[entity] = CloneWriter(entity, applied, self._clock.wall_ns(), self._limits)
        return writer

    def row(self, entity: Entity) -> WriterRow | None:
        """Return the row that a backend keeps of a clone that writes or wrote; None if it is forgotten."""
        each = self.known.get(entity)
        return None if each is None else WriterRow(entity, each.taken, tuple(each.outcomes.items()), each.heard_ns)

    def rows(self) -> tuple[WriterRow, ...]:
        found = []
        for each in self.known.values():
            outcomes = tuple([outcome for outcome in each.outcomes.items() if outcome[0] <= each.applied])
            found.append(WriterRow(each.entity, each.applied, outcomes, each.heard_ns))
        return tuple(found)

    def apply(self, entity: Entity, seq: int) -> None:
        writer = self.known.get(entity)
        if writer is not None:
            writer.applied = max(writer.applied, seq)
            self.due[entity] = None

    def detach(self, entity: Entity) -> None:
        """End its channel; of an original nothing is remembered, for it never repeats itself."""
        writer = self.attached.pop(entity, None)
        if writer is not None:
            writer.channel = None
            if not entity.is_chappe:
                del self.known[entity]

    def forget(self) -> list[Entity]:
        """Forget those not heard of for ``STORE_WRITER_FORGET_S`` at two looks in a row, and say whom. The time of day
        may have been set, or be that of another machine than before: then at the next look who is there has been heard.
        """
        old = self._clock.wall_ns() - int(STORE_WRITER_FORGET_S * NS)
        silent = [entity for entity, each in self.known.items() if each.heard_ns < old and each.channel is None]
        gone = [entity for entity in silent if entity in self._silent]
        for entity in gone:
            del self.known[entity]
        self._silent = dict.fromkeys(silent)
        return gone


_STRANGER: Final = 0  # the number of no event: of all that is missed nothing can be had


class Followers:
    """The output channel of a master, and what else is sent to clones.

    Args:
        writers: Those among the clones that write; one that is dropped is detached there.
        frozen: All entries that are durable, as they are now and stay.
        since: What of them may have changed since a master's event, likewise; None if that is not known.
        heartbeat_s: Longest silence towards the clones, while they may lack something, or there are originals among
            them. Then it is ``CHANNEL_CALM_S``, unless heartbeats more frequent than usual are asked for: whoever does
            wants to notice silence.
        base: The number before that of the first event. Events have numbers whether there are clones or not.
    """

    def __init__(
        self, name: str, entity: Entity, writers: Writers, frozen: Callable[[], list[Entry]],
        since: Callable[[Entity, int], SnapshotChanges | None], limits: KvLimits, *, now: float, heartbeat_s: float,
        base: int,
    ) -> None:  # fmt: skip
        self.has_clones = False  # whether there are clones; asked with every write
        self.tick_at = now + heartbeat_s  # when to look after all channels of the master; an event brings it forward
        self._name = name
        self._entity = entity
        self._topic = clone_topic(check_name(name))
        self._writers = writers
        self._limits = limits
        self._snapshots = Snapshots(frozen, since, limits)  # for clones of chappe ...
        self._wholes = Wholes(frozen, limits)  # ... and of originals
        self._originals: set[Entity] = set()
        self._heartbeat_s = heartbeat_s
        self._calm_s = CHANNEL_CALM_S if heartbeat_s >= CHANNEL_HEARTBEAT_S else heartbeat_s
        self.output: ChannelProducer[Entity, bytes] = ChannelProducer(
            len,
            now=now,
            heartbeat_s=heartbeat_s,
            calm_s=self._calm_s,
            events_max=limits.events_max,
            counting=True,
            first=base,
        )
        self.base = base
        self._beat_at = now + heartbeat_s
        self._together = False  # whether several changes go in one message: originals do not know such
        self._held: list[bytes] = []  # events that have numbers and were not sent, as they leave together ...
        self._held_from = 0  # the number of the first
        self._held_bytes = 0
        self.held_until = math.inf  # ... then at the latest; infinity if nothing is held between two calls
        self._told_at = -math.inf

    @property
    def endpoints(self) -> set[bytes]:
        return {clone.endpoint for clone in (*self.output.consumers, *self._snapshots.takers)}

    def idle(self, gone: Collection[bytes]) -> bool:
        """Return True if every clone has everything, except those at endpoints that are ``gone``."""
        return self.output.idle(lambda clone: clone.endpoint in gone) and all(
            clone.endpoint in gone for clone in self._snapshots.takers
        )

    def invariants(self) -> list[str]:
        found = self.output.invariants()
        if self.has_clones is not bool(self.output.consumers):
            found.append(f"clones are told: {self.has_clones}, {len(self.output.consumers)} there are")
        if not {*self._originals, *self._snapshots.takers} <= set(self.output.consumers):
            found.append("somebody is known as a clone and is not among them")
        if self._together is not (self.has_clones and all(clone.is_chappe for clone in self.output.consumers)):
            found.append(f"changes go together: {self._together}, and {len(self._originals)} clones are originals")
        if self._held and (self.held_until == math.inf or not self._together):
            found.append(f"{len(self._held)} changes are held, until {self.held_until}")
        return found

    # -- what the master has to say ---------------------------------------------------------------------------------

    def tell(self, commands: Collection[cmd.Told], now: float, actions: list[Effect]) -> None:
        if self.has_clones:
            for command in commands:
                if isinstance(command, cmd.Changed):
                    body = cmd.encode_command(command.whole if self._originals else command.change)
                else:
                    body = cmd.encode_command(command)
                if self._originals:
                    self._wholes.changed(len(body))
                produced = self.output.produce(body, now)
                if self._together:
                    event = produced.pop(0)
                    assert isinstance(event, ToAll)
                    assert isinstance(event.message, Event)
                    self._hold(event.message, actions)
                if produced:
                    self._apply(produced, now, actions)
                if self._originals and isinstance(command, cmd.Changed) and isinstance(command.change, cmd.Expiring):
                    self._tell_expiry(command.change, actions)
            self.tick_at = min(self.tick_at, now + CHANNEL_TICK_S)
        else:
            self.output.pass_over(len(commands))

    def _tell_expiry(self, change: cmd.Expiring, actions: list[Effect]) -> None:
        """Tell clones of chappe when the key of the last event expires, which originals' form does not say."""
        told = cmd.ExpiresAt(change.change.key, self.output.seq, change.expires_ns)
        for clone in self.output.consumers:
            if clone.is_chappe:
                self.send(clone, told, actions)

    def let_go(self, actions: list[Effect]) -> None:
        """Send held events; before any other message, so that all stays in order."""
        held = self._held
        if held:
            body = cmd.encode_several(held) if len(held) > 1 else held[0]
            actions.append(Send(None, cmd.encode_message(self._held_from, self._entity, NOBODY, body), self._topic))
            held.clear()
            self._held_bytes = 0
            self.held_until = math.inf

    def pause(self, now: float, actions: list[Effect]) -> None:
        """Plan to send told changes: now, or, in a fast sequence, soon, with those that follow."""
        quick = now < self._told_at + STORE_TOLD_GAP_S
        self._told_at = now
        if not quick or now >= self.held_until:
            self.let_go(actions)
        elif self._held and self.held_until == math.inf:
            self.held_until = now + STORE_TOLD_LATER_S

    def send(self, clone: Entity, command: cmd.Command, actions: list[Effect]) -> None:
        if self._held:
            self.let_go(actions)
        payload = cmd.encode_message(0, self._entity, clone, cmd.encode_command(command))
        actions.append(Send(clone.endpoint, payload, self._topic))

    def drop(self, clone: Entity, reason: str, now: float, actions: list[Effect]) -> None:
        self._apply(self.output.drop(clone, reason), now, actions)

    def hurry(self, now: float) -> None:
        self.output.hurry(now)
        self.tick_at = now

    # -- what clones say, and time ----------------------------------------------------------------------------------

    def take_ack(self, clone: Entity, seq: int, now: float, actions: list[Effect]) -> None:
        self._apply(self.output.take_ack(clone, seq, now), now, actions)

    def take_nack(self, clone: Entity, seqs: tuple[int, ...], now: float, actions: list[Effect]) -> None:
        """Take one's list of missing events, or its request for everything."""
        self.let_go(actions)
        if not seqs:
            return
        if seqs[0] != 0:
            self._apply(self.output.take_nack(clone, seqs, now), now, actions)
        elif clone not in self.output.consumers and len(self.output.consumers) >= self._limits.clones_max:
            reason = f"{self._limits.clones_max:,} follow it already"
            actions.append(Report(CloneDropped(self._name, clone, reason)))
        elif clone.is_chappe:
            state = cmd.asked(seqs)
            view = self._snapshots.open(clone, self.output.seq, self.output.floor, now, state)
            if view is not None:
                self.output.add(clone, now, behind=view.offset)
                self._counted()
                self.send(clone, self._offer(view, state), actions)
                for piece in self._snapshots.ahead(clone):
                    self.send(clone, piece, actions)
        else:
            self._greet(clone, now, actions)

    def snapshot_taken(self, clone: Entity, command: cmd.SnapshotTaken, now: float, actions: list[Effect]) -> None:
        if clone not in self.output.consumers:
            self.send(clone, cmd.RetransmitFailed(_STRANGER), actions)
        elif clone in self._snapshots.takers:
            for piece in self._snapshots.taken(clone, command, now):
                self.send(clone, piece, actions)
            if clone not in self._snapshots.takers:
                actions.append(Report(CloneAttached(self._name, clone)))

    def tick(self, now: float, actions: list[Effect]) -> None:
        """Send heartbeats; drop clones that are gone; measure the store."""
        self._apply(self.output.tick(now), now, actions)
        for clone in self._snapshots.silent(now):
            self.drop(clone, "it did not take what it asked for", now, actions)
        if self._originals:
            self._warn(self._wholes.measure(now), actions)
        if not self.output.consumers and now >= self._beat_at:
            self._beat(self.output.seq, now, actions)  # only another master can hear it

    def next_timeout(self) -> float:
        if not self.output.consumers:
            return self._beat_at
        due = min(self.output.next_timeout(), self._snapshots.silences.next)
        return min(due, self._wholes.next_timeout()) if self._originals else due

    # -- inside -----------------------------------------------------------------------------------------------------

    def _apply(self, produced: list[ProducerAction[Entity]], now: float, actions: list[Effect]) -> None:
        if produced:
            self.let_go(actions)
        for each in produced:
            if isinstance(each, ToAll):
                if isinstance(each.message, Heartbeat):
                    self._beat(each.message.seq, now, actions)
                else:
                    actions.append(self._event(each.message, None))
            elif isinstance(each, Dropped):
                self._forget(each.consumer)
                self._writers.detach(each.consumer)
                actions.append(Report(CloneDropped(self._name, each.consumer, each.reason, each.code)))
            elif isinstance(each, HandshakeCompleted):
                if not each.consumer.is_chappe:  # its handshake holds everything; chappe's follows in pieces
                    self._wholes.close(each.consumer)
                    actions.append(Report(CloneAttached(self._name, each.consumer)))
            elif isinstance(each, ToConsumer):
                message = each.message
                if isinstance(message, Event):
                    actions.append(self._event(message, each.consumer.endpoint))
                elif isinstance(message, RetransmitFailed):
                    self.send(each.consumer, message, actions)

    def _event(self, event: Event[Any], receiver: bytes | None) -> Send:
        return Send(receiver, cmd.encode_message(event.seq, self._entity, NOBODY, event.payload), self._topic)

    def _beat(self, seq: int, now: float, actions: list[Effect]) -> None:
        """Send heartbeats: clones of the original only listen to those that are addressed to them."""
        self._beat_at = now + self._heartbeat_s
        body = cmd.encode_command(cmd.Keepalive(seq))
        actions.append(Send(None, cmd.encode_message(0, self._entity, NOBODY, body), self._topic))
        for clone in self.output.consumers:
            if not clone.is_chappe:
                actions.append(Send(clone.endpoint, cmd.encode_message(0, self._entity, clone, body), self._topic))

    def _greet(self, clone: Entity, now: float, actions: list[Effect]) -> None:
        """Send an original everything, as far as it is durable."""
        seq = self.output.seq
        try:
            pairs = self._wholes.open(clone, seq, now)
        except SnapshotTooLarge as problem:
            self.output.drop(clone, "")
            self._forget(clone)
            if problem.new:
                bound = f"the {self._limits.snapshot_bytes_max:,} bytes that those can take"
                reason = f"it is an original's, and the store has more than {bound}; clones of chappe can"
                actions.append(Report(CloneDropped(self._name, clone, reason)))
            return
        if pairs is None:
            return
        self.output.add(clone, now)
        self._originals.add(clone)
        self._counted()
        self._warn(self._wholes.measured(len(pairs)), actions)
        body = cmd.encode_command(cmd.AckClone(seq, cmd.ticks(self._heartbeat_s), pairs))
        actions.append(Send(clone.endpoint, cmd.encode_message(seq, self._entity, clone, body), self._topic))

    def _offer(self, view: View, state: tuple[Entity, int] | None) -> cmd.Offer:
        ticks, entries = cmd.ticks(self._heartbeat_s), len(view.entries)
        if view.changes is None or state is None:
            return cmd.SnapshotOffer(view.number, view.offset, ticks, entries, self.base)
        return cmd.ChangesOffer(view.number, view.offset, ticks, entries, self.base, view.changes.gone, *state)

    def _forget(self, clone: Entity) -> None:
        self._snapshots.close(clone)
        self._wholes.close(clone)
        self._originals.discard(clone)
        self._counted()

    def _counted(self) -> None:
        consumers = self.output.consumers
        self.has_clones = bool(consumers)
        self._together = self.has_clones and not self._originals
        self.output.calm_s = self._heartbeat_s if self._originals else self._calm_s

    def _hold(self, event: Event[bytes], actions: list[Effect]) -> None:
        held, limits = self._held, self._limits
        if not held:
            self._held_from = event.seq
        held.append(event.payload)
        self._held_bytes += len(event.payload)
        if len(held) >= limits.told_together or self._held_bytes >= limits.told_bytes:
            self.let_go(actions)

    def _warn(self, size: int | None, actions: list[Effect]) -> None:
        if size is not None:
            actions.append(Report(StoreNearsBound(self._name, size, self._limits.snapshot_bytes_max)))
