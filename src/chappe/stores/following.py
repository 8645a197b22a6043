"""A clone's master: it is looked for, followed event by event, and found again, or another one, when it is lost."""

from __future__ import annotations

import math
from typing import Any, Final

from chappe.channel import Ack, ChannelConsumer, Consume, ConsumerAction, Lost, ToProducer
from chappe.core import Report
from chappe.defaults import CHANNEL_NACK_S, CHANNEL_TICK_S, MASTER_CONFLICT_S, MASTER_SILENT_S
from chappe.errors import StaleData
from chappe.stores import commands as cmd
from chappe.stores.actions import Action, Resolve
from chappe.stores.clone_writes import CloneWrites
from chappe.stores.entity import NOBODY, Entity
from chappe.stores.events import CloneStale, CommandRefused, MasterFound, MasterLost, TwoMasters
from chappe.stores.replica import Replica
from chappe.stores.uplink import Uplink

_ORIGINAL_KEEPS_S: Final = 40.0  # an original forgets a silent clone after 50 s; before that the channel just goes on
# An original that still knows us must not be asked for a snapshot: it would keep it, and give us the same one the next
# time, however old that is then. Its heartbeat, every half second, tells that it is there; so we listen first.
_ORIGINAL_LISTEN_S: Final = 1.2
_ORIGINAL_FORGETS_S: Final = 52.0


class Following:
    """Which master a clone follows, how far, and whether its data may be read.

    Args:
        name: Of the store.
        entity: The clone.
        uplink: Addresses what is sent.
        replica: Is made what the master has.
        writes: Go to the master that is followed.
        resync_s: Longest pause between two attempts to find a master.
        stale_s: Without a master for longer, or without changes that it missed, reading raises StaleData; negative for
            never.
    """

    def __init__(
        self, name: str, entity: Entity, uplink: Uplink, replica: Replica, writes: CloneWrites, *, now: float,
        resync_s: float, stale_s: float,
    ) -> None:  # fmt: skip
        self.master: Entity | None = None  # the one that is followed, or was last
        self.connected = False
        self.unreadable: str | None = "it has not found a master yet"
        self._name = name
        self._entity = entity
        self._uplink = uplink
        self._replica = replica
        self._writes = writes
        self._resync_s = resync_s
        self._stale_s = stale_s if stale_s >= 0 else math.inf
        self._input: ChannelConsumer[cmd.Action] = self._new_input(now)
        self._syncing = False  # events are missing for good: a snapshot is needed, also if the master was lost since
        self._lost_at = now
        self._stale_from = now  # its data is as old as that; infinity while it is up to date
        self._heard_at = now
        self._search_at = now
        self._search_s = CHANNEL_NACK_S
        self._probe = False  # the next attempt asks the old master whether it still knows us
        self._waits: dict[int, float] = {}  # await_ready: until when
        self._conflicts: dict[Entity, float] = {}

    def idle(self) -> bool:
        """Whether it is attached, and knows of nothing missing."""
        return self.connected and not self._syncing and self._input.idle()

    def stale(self) -> StaleData:
        """Why it may not be read."""
        return StaleData(f"store {self._name!r} cannot be read: {self.unreadable}")

    # -- application ------------------------------------------------------------------------------------------------

    def await_ready(self, ticket: int, timeout_s: float, now: float) -> list[Action]:
        """Resolve the ticket with None once it may be read, with StaleData after ``timeout_s``."""
        if self.unreadable is None:
            return [Resolve(ticket, None)]
        self._waits[ticket] = now + timeout_s
        return []

    def leave(self, actions: list[Action]) -> None:
        """The end: a master of chappe need not wait for it any more."""
        if self.connected and self.master is not None and self.master.is_chappe:
            self._uplink.send(cmd.Leave(self._writes.seq), self.master, actions)

    def hurry(self, now: float) -> None:
        """There may be a master now that was not before: look for it at the next ``handle_timeout``."""
        if not self.connected:
            self._search_at = now + self._listen_s()
            self._search_s = CHANNEL_NACK_S
            self._probe = False

    # -- world ------------------------------------------------------------------------------------------------------

    def handle(self, message: cmd.Message, now: float, actions: list[Action]) -> None:
        """A message for this clone or for all; raises ProtocolError."""
        command, sender = message.command, message.sender
        known = sender == self.master
        if isinstance(command, cmd.AckClone):
            if message.receiver != self._entity or (self.connected and not self._syncing and known):
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
            if self._syncing or not self._input.initialized:
                return  # it has gone on behind a gap, or never began: only a snapshot helps
            if not sender.is_chappe and now >= self._lost_at + _ORIGINAL_KEEPS_S:
                self._search_at = max(self._search_at, self._lost_at + _ORIGINAL_FORGETS_S)
                return
            self._resume(now, actions)
        if isinstance(command, cmd.ACTIONS):
            if not self._syncing:
                self._take(self._input.handle_event(message.seq, command, now), now, actions)
        elif isinstance(command, cmd.Keepalive):
            if not self._syncing:
                self._take(self._input.handle_heartbeat(command.seq, now), now, actions)
        elif message.receiver == self._entity:
            self._control(sender, command, now, actions)

    def handle_gone(self, endpoint: bytes, now: float, actions: list[Action]) -> None:
        """An endpoint is out of reach."""
        if self.connected and self.master is not None and self.master.endpoint == endpoint:
            self._lose("its endpoint is out of reach", now, actions)

    def settle(self, actions: list[Action]) -> None:
        """Tell callers what became of their writes, as far as the clone shows it."""
        if self.connected and not self._syncing and self.master is not None:
            self._writes.settle(self.master, self._input.next, actions)

    def handle_timeout(self, now: float, actions: list[Action]) -> None:
        """Look for a master, acknowledge, ask for what is missing, grow stale."""
        if self.connected:
            if now >= self._heard_at + MASTER_SILENT_S:
                self._lose(f"nothing was heard of it for {MASTER_SILENT_S:g} s", now, actions)
            else:
                self._take(self._input.handle_timeout(now), now, actions)
                self._writes.handle_timeout(now, actions)
        else:
            if now >= self._writes.refuse_at(self._lost_at):
                self._writes.refuse(actions)
        if now >= self._stale_from + self._stale_s and self.unreadable is None:
            what = "changes" if self._syncing else "its master"
            self.unreadable = f"it lost {what} more than {self._stale_s:g} s ago"
            actions.append(Report(CloneStale(self._name)))
        if (not self.connected or self._syncing) and now >= self._search_at:
            self._search(now, actions)

    def check_waits(self, now: float, actions: list[Action]) -> None:
        """Those who have waited too long until it may be read."""
        if not self._waits:
            return
        for ticket in [ticket for ticket, until in self._waits.items() if now >= until]:
            del self._waits[ticket]
            actions.append(Resolve(ticket, self.stale()))

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is due, and ``check_waits``."""
        due = [*self._waits.values()]
        if self.connected:
            due += [self._heard_at + MASTER_SILENT_S, self._input.next_timeout(), self._writes.next_timeout()]
        else:
            due.append(self._writes.refuse_at(self._lost_at))
        if self.unreadable is None:
            due.append(self._stale_from + self._stale_s)
        if not self.connected or self._syncing:
            due.append(self._search_at)
        return min(due)

    # -- inside: finding and losing a master ------------------------------------------------------------------------

    def _new_input(self, now: float) -> ChannelConsumer[cmd.Action]:
        return ChannelConsumer(now=now, search_max_s=math.inf)

    def _search(self, now: float, actions: list[Action]) -> None:
        """Ask for a master: whether the old one still knows us, and all others, by turns."""
        self._search_at = now + self._search_s
        self._search_s = min(2 * self._search_s, self._resync_s)
        probe, self._probe = self._probe, not self._probe
        old = self.master
        if probe and old is not None and old.is_chappe and not self._syncing and self._input.initialized:
            self._uplink.send(self._writes.greeting(), old, actions)
            self._search_at = min(self._search_at, now + CHANNEL_NACK_S)
            return
        # While it is followed a master is asked by name: another one that answered would be a second master.
        self._uplink.ask(old if self.connected and old is not None else NOBODY, actions)

    def _listen_s(self) -> float:
        """How long to wait for a sign of the master that was lost, before masters are asked for a snapshot."""
        original = self.master is not None and not self.master.is_chappe and self._input.initialized
        return _ORIGINAL_LISTEN_S if original else 0.0

    def _lose(self, reason: str, now: float, actions: list[Action]) -> None:
        assert self.master is not None
        self.connected = False
        self._writes.end(self.master)
        self._lost_at = now
        if not self._syncing:
            self._stale_from = now
        self._search_at = now + self._listen_s()
        self._search_s = CHANNEL_NACK_S
        self._probe = True
        actions.append(Report(MasterLost(self._name, self.master, reason)))
        if now >= self._writes.refuse_at(now):
            self._writes.refuse(actions)

    def _follow(self, master: Entity, actions: list[Action]) -> None:
        """It is there, again or for the first time."""
        self.connected = True
        self._syncing = False
        self._stale_from = math.inf
        self._search_s = CHANNEL_NACK_S
        self.unreadable = None
        self._writes.accept()
        self.master = master
        actions.append(Report(MasterFound(self._name, master)))
        actions += [Resolve(ticket, None) for ticket in self._waits]
        self._waits.clear()

    def _resume(self, now: float, actions: list[Action]) -> None:
        """The master that was lost is there again: the channels go on where they were."""
        assert self.master is not None
        self._follow(self.master, actions)
        self._writes.begin(self.master, now, actions)
        self._uplink.send(cmd.CumulativeAck(self._input.next - 1), self.master, actions)

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
            self._writes.end(master)
        self._replica.become(pairs, master, actions)
        if not again and self.master is not None and not (self.master.is_chappe and master.is_chappe):
            self._writes.doubt(actions)
        self._follow(master, actions)
        self._writes.settle_confirmed(actions)
        self._take(self._input.handle_handshake(command.offset, command.ticks * CHANNEL_TICK_S, now), now, actions)
        self._writes.begin(master, now, actions)

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
        actions.append(Report(TwoMasters(self._name, self.master, other)))

    # -- inside: following it ---------------------------------------------------------------------------------------

    def _control(self, master: Entity, command: Any, now: float, actions: list[Action]) -> None:
        """What the master says to this clone alone."""
        if isinstance(command, cmd.WriterState):
            self._writes.handle_state(master, command, now, actions)
        elif isinstance(command, cmd.CumulativeAck):
            self._writes.handle_ack(master, command.seq, now, actions)
        elif isinstance(command, cmd.MissingEvents):
            self._writes.handle_nack(master, command.seqs, now, actions)
        elif isinstance(command, cmd.RetransmitFailed):
            if not self._syncing:
                self._take(self._input.handle_retransmit_failed(command.seq, now), now, actions)
        else:
            actions.append(Report(CommandRefused(self._name, f"{master} sent a clone's {type(command).__name__}")))

    def _take(self, taken: list[ConsumerAction[cmd.Action]], now: float, actions: list[Action]) -> None:
        """What the channel from the master has to say."""
        for each in taken:
            if isinstance(each, Consume):
                command = each.payload
                if self._syncing:
                    continue  # it is in the snapshot that is to come
                if type(command) is not cmd.PutUniqueResult:
                    self._replica.do(command, actions)
                elif command.who == self._entity:
                    self._writes.handle_answer(command, actions)
            elif isinstance(each, Lost):
                if not self._syncing:
                    self._syncing = True
                    self._stale_from = now
                    self._search_s = CHANNEL_NACK_S
                    self._search(now, actions)
            elif isinstance(each, ToProducer) and self.master is not None:
                message = each.message
                if isinstance(message, Ack):
                    self._uplink.send(cmd.CumulativeAck(message.seq), self.master, actions)
                else:
                    self._uplink.send(cmd.MissingEvents(message.seqs), self.master, actions)
