"""A clone's master: it is looked for, followed event by event, and found again, or another one, when it is lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from chappe.channel import Consume, ConsumerAction, ConsumerClosed, Lost, ToProducer
from chappe.core import Clock, Effect, Report
from chappe.defaults import CHANNEL_HEARTBEAT_S, CHANNEL_NACK_S, CHANNEL_TICK_S, MASTER_SILENT_S, STAR_MISSED_MAX
from chappe.errors import BrokenClone, ChappeError, InvalidData, ProtocolError, StaleData, StoreError
from chappe.kv import commands as cmd
from chappe.kv.clone_writes import CloneWrites, Uplink
from chappe.kv.engine import Change, Engine, StagedEntries
from chappe.kv.entity import NOBODY, Entity
from chappe.kv.events import (
    CloneResyncs,
    CloneStale,
    CommandRefused,
    MasterFound,
    MasterLost,
    SnapshotGivenUp,
    TwoMasters,
)
from chappe.kv.questions import PastQuestions, Questions
from chappe.kv.receiving import GivenUp, Receiving
from chappe.kv.role import Conflicts, Notices, new_input
from chappe.limits import KvLimits

_ORIGINAL_KEEPS_S: Final = 40.0  # an original forgets a silent clone after 50 s; before that the channel just goes on
# An original that still knows us must not be asked for a snapshot: it would keep it, and give us the same one the next
# time, however old that is then. Its heartbeat, every half second, tells that it is there; so we listen first.
_ORIGINAL_LISTEN_S: Final = 1.2
_ORIGINAL_FORGETS_S: Final = 52.0
_NS_MAX: Final = 2**63 - 1


class Following:
    """A clone's master, how far the clone follows it, and whether its data may be read.

    Args:
        engine: The clone's copy of the data, which its master alone changes.
        resync_s: Longest pause between two attempts to find a master.
        stale_s: Without a master for longer, or without changes that it missed, reading raises StaleData; negative for
            never.
    """

    def __init__(
        self, name: str, entity: Entity, uplink: Uplink, engine: Engine, notices: Notices, writes: CloneWrites,
        limits: KvLimits, *, now: float, clock: Clock, resync_s: float, stale_s: float,
    ) -> None:  # fmt: skip
        self.master: Entity | None = None  # the one that is followed, or was last
        self.connected = False
        self.unreadable: str | None = "it has not found a master yet"
        self.questions = Questions(uplink)
        self.past = PastQuestions(name, uplink)  # for the history of keys
        self.base = 0  # the revision of what was there before its master
        self._clock = clock
        self._name = name
        self._entity = entity
        self._uplink = uplink
        self._engine = engine
        self._notices = notices
        self._writes = writes
        self._resync_s = resync_s
        self._stale_s = stale_s if stale_s >= 0 else math.inf
        self._limits = limits
        self._input = new_input(limits, now)
        self._receiving: Receiving | None = None  # a snapshot that comes
        self.lost_at = now
        self._stale_from = now  # its data is as old as that; infinity while it is up to date
        self._heard_at = now
        self._heard_of: Entity | None = None  # another master, which is there while none is followed
        self._heartbeat_s = CHANNEL_HEARTBEAT_S  # its longest silence, as it says
        self._search_at = now
        self._search_s = CHANNEL_NACK_S
        self._resumed = False  # the master is there again, and it is not known yet whether changes were missed
        self._probe = False  # the next attempt asks the old master whether it still knows us
        self._plainly = False  # the next one that asks for a snapshot does not say what is here
        self._conflicts = Conflicts()

    def idle(self) -> bool:
        return self.connected and not (self._input.closed or self._resumed) and self._input.idle()

    @property
    def position(self) -> int | None:
        return self._input.next - 1 if self.connected and not self._input.closed else None

    def invariants(self) -> list[str]:
        found = self._input.invariants()
        if self.connected and (self.master is None or not self._input.initialized):
            found.append(f"it follows {self.master}, whose channel has not begun")
        return found

    @property
    def calm(self) -> bool:
        """True if it follows a master, and nothing is missing or on its way: then nothing is due within a tick."""
        return self._receiving is None and self.idle()

    @property
    def coming(self) -> tuple[int, int] | None:
        return None if self._receiving is None else (self._receiving.taken, self._receiving.offer.entries)

    def age_s(self, now: float) -> float:
        """Return for how many seconds the data has not been up to date; 0 if it is."""
        return max(0.0, now - self._stale_from)

    def stale(self) -> StaleData:
        coming = "" if self.coming is None else "; {:,} of {:,} entries of its master have come".format(*self.coming)
        return StaleData(f"store {self._name!r} cannot be read: {self.unreadable}{coming}")

    # -- application ------------------------------------------------------------------------------------------------

    def find_out(self, question: int, now: float, actions: list[Effect]) -> None:
        """Ask the master for its position, once there is one."""
        if self.connected and not self._input.closed and self.master is not None:
            self.questions.ask(question, self.master, self._input.next - 1, now, actions)

    def ask_past(self, now: float, actions: list[Effect]) -> None:
        """Ask the master for the history of keys, once there is one."""
        if self.past:
            self.past.tick(now, actions)
            if self.connected and self.master is not None:
                self.past.ask(self.master, now, actions)

    def leave(self, actions: list[Effect]) -> None:
        master = self.master if self.connected or self._receiving is None else self._receiving.master
        if (self.connected or self._receiving is not None) and master is not None and master.is_chappe:
            self._uplink.send(cmd.Leave(self._writes.channel.seq), master, actions)

    def hurry(self, now: float) -> None:
        if not self.connected and self._receiving is None:
            self._search_at = now + self._listen_s()
            self._search_s = CHANNEL_NACK_S
            self._probe = False

    # -- world ------------------------------------------------------------------------------------------------------

    def handle(self, message: cmd.Message, size: int, now: float, actions: list[Effect]) -> None:
        """Take a message of ``size`` bytes for this clone or for all; raises ProtocolError."""
        command, sender = message.command, message.sender
        if isinstance(command, cmd.MasterSilent):
            self._doubt(sender, command.master, now, actions)
            return
        known = sender == self.master
        alone = message.receiver == self._entity
        if isinstance(command, cmd.SnapshotOffer | cmd.ChangesOffer):
            if alone:
                self._offered(sender, command, now, actions)
            return
        if self._receiving is not None and sender == self._receiving.master:
            if known:
                self._heard_at = now
            if not self._receive(self._receiving, message, size, now, actions):
                return
        if isinstance(command, cmd.AckClone):
            if not alone or (self.connected and not self._input.closed and known):
                return
            if not self.connected or known:
                self._heard_at = now
                self._attach(sender, command, now, actions)
                return
        if not known:
            if self.connected:
                self._conflict(sender, now, actions)
            elif sender.is_chappe and sender != self._heard_of:
                self._heard_of = sender
                self.hurry(now)
            return
        self._heard_at = now
        if not self.connected:
            if self._input.closed or not self._input.initialized:
                return  # it has gone on behind a gap, or never began: only a snapshot helps
            if not sender.is_chappe and now >= self.lost_at + _ORIGINAL_KEEPS_S:
                self._search_at = max(self._search_at, self.lost_at + _ORIGINAL_FORGETS_S)
                return
            self._resume(now, actions)
        if not sender.is_chappe:
            self._answered(message)
        if isinstance(command, cmd.EVENTS):
            self._take(self._input.take_event(message.seq, command, now), now, actions)
        elif isinstance(command, cmd.Several):
            for seq, change in enumerate(command.changes, message.seq):
                self._take(self._input.take_event(seq, change, now), now, actions)
        elif isinstance(command, cmd.Keepalive):
            self._take(self._input.take_heartbeat(command.seq, now), now, actions)
            self._is_current(command.seq, actions)
        elif alone and not isinstance(command, cmd.SnapshotPiece):
            self._control(sender, command, now, actions)

    def _answered(self, message: cmd.Message) -> None:
        if isinstance(message.command, cmd.RetransmitFailed):
            self.questions.take_event(message.command.seq)
        elif isinstance(message.command, cmd.EVENTS):
            self.questions.take_event(message.seq)

    def endpoint_gone(self, endpoint: bytes, now: float, actions: list[Effect]) -> None:
        if self._receiving is not None and self._receiving.master.endpoint == endpoint:
            self._give_up("its endpoint is out of reach", now, actions)
        if self.connected and self.master is not None and self.master.endpoint == endpoint:
            self._lose("its endpoint is out of reach", now, actions)

    def settle(self, actions: list[Effect]) -> None:
        if self.connected and not self._input.closed and self.master is not None:
            self._writes.settle(self.master, self._input.next, actions)

    def tick(self, now: float, actions: list[Effect]) -> None:
        if self.connected:
            if now >= self._heard_at + MASTER_SILENT_S:
                self._lose(f"nothing was heard of it for {MASTER_SILENT_S:g} s", now, actions)
            else:
                self._take(self._input.tick(now), now, actions)
                self._writes.tick(now, actions)
        else:
            if now >= self._writes.refuse_at(self.lost_at):
                self._writes.refuse(actions)
        if self._receiving is not None:
            try:
                self._receiving.tick(now, actions)
            except GivenUp as problem:
                self._give_up(str(problem), now, actions)
        if now >= self._stale_from + self._stale_s and self.unreadable is None:
            what = "changes" if self._input.closed or self._resumed else "its master"
            self.unreadable = f"it lost {what} more than {self._stale_s:g} s ago"
            actions.append(Report(CloneStale(self._name)))
        if self._searches and now >= self._search_at:
            self._search(now, actions)
        self.ask_past(now, actions)

    @property
    def _searches(self) -> bool:
        return (not self.connected or self._input.closed) and self._receiving is None

    def next_timeout(self) -> float:
        due = []
        if self.connected:
            due += [self._heard_at + MASTER_SILENT_S, self._writes.channel.next_timeout(), self._input.next_timeout()]
        else:
            due.append(self._writes.refuse_at(self.lost_at))
        if self.unreadable is None:
            due.append(self._stale_from + self._stale_s)
        if self._receiving is not None:
            due.append(self._receiving.next_timeout())
        if self._searches:
            due.append(self._search_at)
        if self.past:
            due.append(self.past.next_due(self.connected))
        return min(due)

    # -- inside: finding and losing a master ------------------------------------------------------------------------

    def _search(self, now: float, actions: list[Effect]) -> None:
        """Ask for a master: whether the old one still knows us, and all others, by turns."""
        self._search_at = now + self._search_s
        self._search_s = min(2 * self._search_s, self._resync_s)
        probe, self._probe = self._probe, not self._probe
        old = self.master
        if probe and old is not None and old.is_chappe and not self._input.closed and self._input.initialized:
            self._uplink.send(self._writes.greeting(), old, actions)
            self._search_at = min(self._search_at, now + CHANNEL_NACK_S)
            return
        state, self._plainly = None if self._plainly else self._state, not self._plainly
        # While it is followed a master is asked by name: another one that answered would be a second master.
        self._uplink.ask(old if self.connected and old is not None else NOBODY, state, actions)

    @property
    def _state(self) -> tuple[Entity, int] | None:
        """Return this clone's state as a master and an event, for which a master of chappe finds later changes."""
        if self.master is None or not self.master.is_chappe or self._input.closed or not self._input.initialized:
            return None
        return self.master, self._input.next - 1

    def _listen_s(self) -> float:
        """Return how long to wait for a sign of the lost master, before masters are asked for a snapshot."""
        original = self.master is not None and not self.master.is_chappe and self._input.initialized
        return _ORIGINAL_LISTEN_S if original else 0.0

    def _lose(self, reason: str, now: float, actions: list[Effect]) -> None:
        assert self.master is not None
        self.connected = False
        self._resumed = False
        if self._receiving is not None and self._receiving.master == self.master:
            self._receiving = None
        self._writes.channel.drop(self.master, "")
        self.lost_at = now
        self._stale_from = min(self._stale_from, now)
        self._search_at = now + self._listen_s()
        self._search_s = CHANNEL_NACK_S
        self._probe = True
        self._plainly = False
        actions.append(Report(MasterLost(self._name, self.master, reason)))
        if now >= self._writes.refuse_at(now):
            self._writes.refuse(actions)

    def _doubt(self, sender: Entity, master: Entity, now: float, actions: list[Effect]) -> None:
        """Doubt the master, as another one replaced it, or one gives it up; a clone that hears it well stays."""
        if not self.connected or master != self.master:
            return
        if sender == master:
            self._lose("it is master no more", now, actions)
        elif now >= self._heard_at + STAR_MISSED_MAX * self._heartbeat_s:
            self._lose("it is silent, and was replaced", now, actions)
        else:
            return
        self._probe = False
        if self._searches:
            self._search(now, actions)

    def _follow(self, master: Entity) -> None:
        self.connected = True
        self.questions.begin_again()
        self.past.begin_again()
        self._search_s = CHANNEL_NACK_S
        self._writes.refusing = False
        self.master = master

    def _current(self, actions: list[Effect]) -> None:
        assert self.master is not None
        self._resumed = False
        self._stale_from = math.inf
        self.unreadable = None
        actions.append(Report(MasterFound(self._name, self.master)))

    def _is_current(self, seq: int, actions: list[Effect]) -> None:
        """Note the master's last event; after an interruption it tells whether nothing is missing."""
        if self._resumed and not self._input.closed and self._input.next > seq:
            self._current(actions)

    def _resume(self, now: float, actions: list[Effect]) -> None:
        """Resume the channels, as the master that was lost is there again.

        The data is as old as it was, until the master's last event is known and has come.
        """
        assert self.master is not None
        if self._receiving is not None:  # another one's
            self._decline(self._receiving.offer, self._receiving.master, actions)
            self._receiving = None
        self._follow(self.master)
        self._resumed = True
        self._writes.begin(self.master, now, actions)
        self._uplink.send(cmd.CumulativeAck(self._input.next - 1), self.master, actions)

    def _attach(self, master: Entity, command: cmd.AckClone, now: float, actions: list[Effect]) -> None:
        pairs = command.pairs()
        again = master == self.master
        if again and master.is_chappe and self._input.initialized and command.offset < self._input.next - 1:
            return  # an old one that was on its way for long
        offset = command.offset
        resumes = again and self._input.initialized and offset < self._input.next - 1
        if resumes:  # an original sends the offset that it once gave; what lies between has come already
            offset = self._input.next - 1
        if not resumes or self._input.closed:
            self._input = new_input(self._limits, now)
        self._heartbeat_s = command.ticks * CHANNEL_TICK_S
        staged = StagedEntries(self._engine)
        for key, value in pairs:
            staged.add(key, value)
        self._become(master, self._engine.replace(staged, tell=self._notices.wanted), actions)
        actions += self._writes.pending.settle(None)[1]  # shown by now
        self._take(self._input.take_handshake(offset, command.ticks * CHANNEL_TICK_S, now), now, actions)
        self._writes.begin(master, now, actions)

    def _become(self, master: Entity, changes: Iterable[Change], actions: list[Effect]) -> None:
        again = master == self.master
        if self.connected:
            self._writes.channel.drop(master, "")
        self._receiving = None
        for change in changes:
            self._notices.tell(change, None, master, actions)
        if not again and self.master is not None and not (self.master.is_chappe and master.is_chappe):
            self._writes.doubt(actions)
        self._follow(master)
        self._current(actions)

    def _conflict(self, other: Entity, now: float, actions: list[Effect]) -> None:
        assert self.master is not None
        if other.is_chappe and other.endpoint == self.master.endpoint:
            self._lose("another master has taken its place", now, actions)  # an endpoint has but one at a time
            self._probe = False
        elif self._conflicts.is_news(other, now):
            actions.append(Report(TwoMasters(self._name, self.master, other)))

    # -- inside: a snapshot in pieces -------------------------------------------------------------------------------

    def _offered(self, master: Entity, offer: cmd.Offer, now: float, actions: list[Effect]) -> None:
        """Take a master's offer of everything, or of changes, which was asked for; raises ProtocolError."""
        if isinstance(offer, cmd.ChangesOffer) and offer.gone > offer.entries:
            raise InvalidData(f"of {offer.entries} changes {offer.gone} are keys that are gone")
        known = master == self.master
        receiving = self._receiving
        wanted = (not self.connected or (self._input.closed and known)) and (
            receiving is None or receiving.master == master
        )
        if isinstance(offer, cmd.ChangesOffer):
            wanted = wanted and (offer.master, offer.event) == self._state
        if not wanted or (receiving is not None and receiving.offer == offer):
            if receiving is None or receiving.master != master:
                self._decline(offer, master, actions)
            return
        if known:
            self._heard_at = now
        self._receiving = receiving = Receiving(master, offer, self._uplink, self._engine, self._limits, now)
        receiving.begin(now, actions)
        if receiving.whole:
            receiving.tell(actions)
            self._complete(receiving, now, actions)

    def _decline(self, offer: cmd.Offer, master: Entity, actions: list[Effect]) -> None:
        self._uplink.send(cmd.SnapshotTaken(offer.snapshot, offer.entries), master, actions)

    def _receive(
        self, receiving: Receiving, message: cmd.Message, size: int, now: float, actions: list[Effect]
    ) -> bool:
        """Take a message during a snapshot; return whether it concerns more than the snapshot."""
        command = message.command
        receiving.heard(now)
        try:
            if isinstance(command, cmd.SnapshotPiece):
                if message.receiver == self._entity and receiving.take_piece(command, now):
                    receiving.tell(actions)
                    if receiving.whole:
                        self._complete(receiving, now, actions)
                return False
            if isinstance(command, cmd.RetransmitFailed) and message.receiver != self._entity:
                return False
            receiving.handle(message, size, now, actions)
        except GivenUp as reason:
            self._give_up(str(reason), now, actions)
            return False
        except ProtocolError as problem:  # not by the same name: compiled, a name has one type
            self._give_up(str(problem), now, actions)
            raise
        follows = self.connected and receiving.master == self.master
        return follows and isinstance(command, cmd.WriterState | cmd.CumulativeAck | cmd.MissingEvents)

    def _complete(self, receiving: Receiving, now: float, actions: list[Effect]) -> None:
        master = receiving.master
        again = master == self.master
        self._input = receiving.input
        self._heard_at = now
        self._heartbeat_s = receiving.offer.ticks * CHANNEL_TICK_S
        self.base = receiving.offer.base
        self._become(master, receiving.become(tell=self._notices.wanted), actions)
        if not again:
            actions += self._writes.pending.settle(None)[1]  # shown by now
        for seq, event in receiving.events:
            self._do(seq, event, now, actions)
        self._writes.begin(master, now, actions)

    def _give_up(self, reason: str, now: float, actions: list[Effect]) -> None:
        assert self._receiving is not None
        actions.append(Report(SnapshotGivenUp(self._name, self._receiving.master, reason)))
        self._receiving = None
        self._search_at = now + CHANNEL_NACK_S
        self._search_s = CHANNEL_NACK_S

    # -- inside: following it ---------------------------------------------------------------------------------------

    def _control(self, master: Entity, command: Any, now: float, actions: list[Effect]) -> None:
        if isinstance(command, cmd.WriterState):
            self._writes.take_state(master, command, now, actions)
            self._input.hear_of(command.output, now)
            self._is_current(command.output, actions)
        elif isinstance(command, cmd.Position):
            self.questions.take_position(command.question)
            self._input.hear_of(command.output, now)
            self._is_current(command.output, actions)
        elif isinstance(command, cmd.HistoryTold):
            self.past.handle(master, command, now, actions)
        elif isinstance(command, cmd.ExpiresAt):
            entry = self._engine.find(command.key)
            if entry is not None and entry.revision == command.revision and not self._input.closed:
                self._engine.set_expiry(entry, command.expires_ns)
        elif isinstance(command, cmd.CumulativeAck):
            self._writes.take_ack(master, command.seq, now, actions)
        elif isinstance(command, cmd.MissingEvents):
            self._writes.take_nack(master, command.seqs, now, actions)
        elif isinstance(command, cmd.RetransmitFailed):
            self._take(self._input.take_retransmit_failed(command.seq, now), now, actions)
        else:
            actions.append(Report(CommandRefused(self._name, f"{master} sent a clone's {type(command).__name__}")))

    def _take(self, taken: list[ConsumerAction[cmd.Event]], now: float, actions: list[Effect]) -> None:
        for each in taken:
            if isinstance(each, Consume):
                if not self._input.closed:  # otherwise it is in the snapshot that is to come
                    self._do(each.seq, each.payload, now, actions)
            elif isinstance(each, Lost):
                self._abort(BrokenClone(f"change {each.seq} of its master is gone for good"), now, actions)
            elif isinstance(each, ConsumerClosed):
                self._resync(each.error, now, actions)
            elif isinstance(each, ToProducer) and self.master is not None:
                self._uplink.send(each.message, self.master, actions)

    def _do(self, seq: int, event: cmd.Event, now: float, actions: list[Effect]) -> None:
        command: cmd.Mutation = event.change if isinstance(event, cmd.Expiring) else event
        if type(command) is cmd.PutUniqueResult:
            if command.who == self._entity:
                self._writes.take_answer(command, actions)
            return
        if self._input.closed:
            return
        expiry_ns = command.expiry_ns if isinstance(command, cmd.Put) else None
        expires_ns = None if expiry_ns is None and event is command else self._expires_ns(event)
        try:
            changes = self._change(command, expires_ns)
        except StoreError as problem:  # the master did it, so this is no copy of what it has
            self._abort(BrokenClone(f"a change does not fit what is here: {problem}"), now, actions)
            return
        for change in changes:
            if change is not None:
                if change.entry is not None:
                    change.entry.revision = seq
                self._notices.tell(change, expiry_ns, command.publisher, actions)

    def _expires_ns(self, event: cmd.Event) -> int | None:
        """Return when a key expires that an event sets; the original tells it roughly, and ``ExpiresAt`` mends that."""
        if isinstance(event, cmd.Expiring):
            return event.expires_ns
        if isinstance(event, cmd.Put) and event.expiry_ns is not None:
            return min(self._clock.wall_ns() + event.expiry_ns, _NS_MAX)
        return None

    def _change(self, command: cmd.Mutation, expires_ns: int | None) -> Sequence[Change | None]:
        """Apply a command. Raises ProtocolError: no master does that; StoreError: it does not fit the data here."""
        engine = self._engine
        if isinstance(command, cmd.Put):
            return (engine.put(command.key, command.value, expires_ns),)
        if isinstance(command, cmd.Erase | cmd.Expire):
            kind: Literal["erase", "expire"] = "erase" if isinstance(command, cmd.Erase) else "expire"
            return (engine.erase(command.key, kind),)
        if isinstance(command, cmd.Clear):
            return engine.clear()
        if isinstance(command, cmd.Add):
            return (engine.add(command.key, command.value, command.init, expires_ns),)
        if isinstance(command, cmd.Subtract):
            return (engine.subtract(command.key, command.value, expires_ns),)
        raise ProtocolError(f"a master sent {type(command).__name__}, which only clones do")

    def _abort(self, error: BrokenClone, now: float, actions: list[Effect]) -> None:
        """Do nothing further that the master's channel brings: this copy would differ from its master."""
        self._take(self._input.close(error), now, actions)

    def _resync(self, error: ChappeError, now: float, actions: list[Effect]) -> None:
        """Ask for a snapshot: the channel is closed, since changes are missing for good."""
        actions.append(Report(CloneResyncs(self._name, error)))
        self._resumed = False
        self._stale_from = min(self._stale_from, now)
        self._search_s = CHANNEL_NACK_S
        self._search(now, actions)
