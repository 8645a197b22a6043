"""A master's snapshot on its way to a clone: entries gathered piece by piece, and the events that follow it.

It holds all entries, or those that have changed since a state that the clone has.

What is gathered is seen by nobody until it is whole. Events are taken in order and acknowledged meanwhile, so that the
master need not keep them, and done when the snapshot is there; beyond ``staged_events_max`` or
``staged_bytes_max`` of them it is given up. A piece that does not come is asked for again.
"""

from __future__ import annotations

from typing import Final

from chappe.channel import Consume, ConsumerAction, Lost, ToProducer
from chappe.core import Effect
from chappe.data.order import same
from chappe.defaults import (
    CHANNEL_CALM_S,
    CHANNEL_NACK_S,
    CHANNEL_TICK_S,
    MASTER_SILENT_S,
)
from chappe.errors import ProtocolError
from chappe.kv import commands as cmd
from chappe.kv.clone_writes import Uplink
from chappe.kv.engine import Change, Engine, StagedEntries
from chappe.kv.entity import Entity
from chappe.kv.role import new_input
from chappe.limits import KvLimits

_ASK_S: Final = 2.0  # what takes longer than that, and than a few pieces took before, is asked for again ...
_ASK_MAX_S: Final = 5.0  # ... but so often, since the master gives up who is silent
_PIECES: Final = 4


class GivenUp(Exception):
    """It cannot become whole; the text says why."""


class Receiving:
    """One snapshot. ``engine``: the clone's present data; it does not change meanwhile."""

    def __init__(
        self, master: Entity, offer: cmd.Offer, uplink: Uplink, engine: Engine, limits: KvLimits, now: float
    ) -> None:
        self.master = master
        self.offer = offer
        self._engine = engine
        self._staged = StagedEntries(engine)  # of all that there is
        self._changed: list[cmd.Row] = []  # of what has changed since a state that is here
        self.events: list[tuple[int, cmd.Event]] = []  # with their numbers, behind the snapshot, in order
        self.input = new_input(limits, now, CHANNEL_CALM_S)
        self.taken = 0  # entries
        self._uplink = uplink
        self._limits = limits
        self._events_bytes = 0  # of what came, some of it perhaps twice
        self._heard_at = now
        self._came_at = now
        self._ask_s = _ASK_S
        self._ask_at = now + _ASK_S

    @property
    def whole(self) -> bool:
        return self.taken == self.offer.entries

    def begin(self, now: float, actions: list[Effect]) -> None:
        begun = self.input.take_handshake(self.offer.offset, self.offer.ticks * CHANNEL_TICK_S, now)
        self._gather(begun, actions)

    def tell(self, actions: list[Effect], again: bool = False) -> None:
        self._uplink.send(cmd.SnapshotTaken(self.offer.snapshot, self.taken, again), self.master, actions)

    def take_piece(self, piece: cmd.SnapshotPiece, now: float) -> bool:
        """Take a piece; return whether it was the next one. Raises ProtocolError for anything else."""
        if piece.snapshot != self.offer.snapshot or piece.first < self.taken:
            return False
        if piece.first > self.taken:
            self._ask_at = min(self._ask_at, now + CHANNEL_NACK_S)  # one is missing, or takes another way
            return False
        rows = piece.rows()
        if not rows or self.taken + len(rows) > self.offer.entries:
            raise ProtocolError(f"a piece has {len(rows)} entries of a snapshot of {self.offer.entries}")
        if isinstance(self.offer, cmd.ChangesOffer):
            self._changed += rows
        else:
            for key, value, revision, expires_ns in rows:
                self._staged.add(key, value, expires_ns, revision)
        self.taken += len(rows)
        self._ask_s = min(max(_ASK_S, _PIECES * (now - self._came_at)), _ASK_MAX_S)
        self._came_at = now
        self._ask_at = now + self._ask_s
        return True

    def become(self, *, tell: bool) -> list[Change]:
        """Take the whole snapshot over into the engine; return the changes, if few or ``tell``."""
        offer, engine = self.offer, self._engine
        if not isinstance(offer, cmd.ChangesOffer):
            return engine.replace(self._staged, tell=tell)  # in one step for those who read
        changes: list[Change] = []
        there = offer.entries - offer.gone
        for key, value, revision, expires_ns in self._changed[:there]:
            entry = engine.find(key)
            if entry is None or entry.expires_ns != expires_ns or not same(entry.value, value):
                made = engine.put(key, value, expires_ns)
                changes.append(made)
                entry = made.entry
                assert entry is not None
            entry.revision = revision
        changes += [change for row in self._changed[there:] if (change := engine.erase(row[0])) is not None]
        return changes

    def handle(self, message: cmd.Message, size: int, now: float, actions: list[Effect]) -> None:
        """Take another message of the channel, of so many bytes. Raises GivenUp."""
        command = message.command
        if isinstance(command, cmd.EVENTS):
            if message.seq >= self.input.next:
                self._events_bytes += size
            self._gather(self.input.take_event(message.seq, command, now), actions)
        elif isinstance(command, cmd.Several):
            if message.seq + len(command.changes) > self.input.next:
                self._events_bytes += size
            for seq, change in enumerate(command.changes, message.seq):
                self._gather(self.input.take_event(seq, change, now), actions)
        elif isinstance(command, cmd.Keepalive):
            self._gather(self.input.take_heartbeat(command.seq, now), actions)
        elif isinstance(command, cmd.RetransmitFailed):
            if not command.seq:
                raise GivenUp("its master does not send it any more")
            self._gather(self.input.take_retransmit_failed(command.seq, now), actions)

    def heard(self, now: float) -> None:
        self._heard_at = now

    def tick(self, now: float, actions: list[Effect]) -> None:
        """Acknowledge events, and ask again for missing ones. Raises GivenUp."""
        if now >= self._heard_at + MASTER_SILENT_S:
            raise GivenUp(f"nothing was heard of it for {MASTER_SILENT_S:g} s")
        self._gather(self.input.tick(now), actions)
        if now >= self._ask_at:
            self._ask_s = min(2 * self._ask_s, _ASK_MAX_S)
            self._ask_at = now + self._ask_s
            self.tell(actions, again=True)

    def next_timeout(self) -> float:
        return min(self._heard_at + MASTER_SILENT_S, self._ask_at, self.input.next_timeout())

    def _gather(self, taken: list[ConsumerAction[cmd.Event]], actions: list[Effect]) -> None:
        said: list[Effect] = []
        for each in taken:
            if isinstance(each, Consume):
                self.events.append((each.seq, each.payload))
            elif isinstance(each, Lost):
                raise GivenUp("changes that followed it can no longer be had")
            elif isinstance(each, ToProducer):
                self._uplink.send(each.message, self.master, said)
        limits = self._limits
        if len(self.events) > limits.staged_events_max or self._events_bytes > limits.staged_bytes_max:
            raise GivenUp("more has changed meanwhile than a clone keeps")
        actions += said
