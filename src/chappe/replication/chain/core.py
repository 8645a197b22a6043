"""One server of a chain: see ``docs/explanation/chains.md`` for what it does and why that is safe.

Inputs change its state; what follows for its neighbours, its disk and its clients is in ``flush``, which is called
after each input or after many. So what came together is written, sent on and acknowledged together.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import msgspec

from chappe.core import Clock, Effect, Report, Send
from chappe.errors import StorageError, UsageError
from chappe.limits import CHAIN_LIMITS, ChainLimits
from chappe.replication.agreement.core import Agreement, Ask, Decided, VoteRecord, WithoutAgreement
from chappe.replication.agreement.core import Message as AgreementMessage
from chappe.replication.chain import configuration as value
from chappe.replication.chain.compaction import Compaction
from chappe.replication.chain.configuration import NOBODY, Configuration
from chappe.replication.chain.downstream import Downstream
from chappe.replication.chain.events import Applied, Entered, EntriesDiscarded
from chappe.replication.chain.joining import Joining
from chappe.replication.chain.log import ChainState, EntryLog, Job, LoadedChain
from chappe.replication.chain.membership import another, builds_on, outbids
from chappe.replication.chain.messages import (
    Ack,
    Append,
    Beat,
    Between,
    Confirm,
    Confirmed,
    Entry,
    Join,
    Link,
    Outcomes,
    Piece,
    Request,
    Resume,
    Want,
)
from chappe.replication.chain.peers import Peers
from chappe.replication.chain.proposing import Proposing
from chappe.replication.chain.replica import ChainReplica, ExternalState, ReplicatedMachine, Restored
from chappe.replication.chain.serving import Serving
from chappe.replication.chain.storing import VOTE, Storing


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """A server's view of its chain, for people."""

    number: int
    members: tuple[str, ...]
    end: int
    synced: int
    committed: int
    others: tuple[tuple[str, int, int, int], ...]  # those that are heard: name, and their last, synced, committed entry
    why: str


class ChainServerCore:
    """The state of one server; ``flush`` is due after each input.

    Args:
        place: Of this server among the named ones.
        names: Of all servers, in order.
        life: A number from 1 to 2**63 - 1 that no other life of a server has.
        memory: The state of the agreement that was kept last.
        machine: In its initial state.
        clock: The head numbers commands with its time of day.
        loaded: The content of its disk, if the chain is durable.
        durable: Whether a chain that does not exist yet is founded as durable.
        fixed: Whether servers decide alone on the members, and the last survivor goes on: then a cut of the network
            makes two chains of one.

    Raises:
        UsageError: Two servers have one name, or the disk has a chain of the other kind.
    """

    def __init__(
        self,
        place: int,
        names: tuple[str, ...],
        life: int,
        memory: VoteRecord,
        machine: ReplicatedMachine,
        *,
        now: float,
        clock: Clock,
        loaded: LoadedChain | None = None,
        durable: bool = True,
        fixed: bool = False,
        limits: ChainLimits = CHAIN_LIMITS,
    ) -> None:
        if len(set(names)) < len(names):
            raise UsageError("two servers of a chain have the same name")
        self.place = place
        self.names = names
        self.life = life
        self.clock = clock
        self._limits = limits
        self.fixed = fixed
        self.number = memory.number
        self._be_in(value.decode(memory.value) if memory.number else NOBODY)
        if self.number and self.configuration.fixed != fixed:
            kind = "fixed" if self.configuration.fixed else "one whose servers agree"
            raise UsageError(
                f"the directory of {names[place]} is of a chain that is {kind}: set fixed as it was, or choose another"
                " directory"
            )
        self.agreement = (
            WithoutAgreement(place, len(names), memory, value.disks_of, self._disk_in)
            if fixed
            else Agreement(place, len(names), memory, value.disks_of)
        )
        self._disk = memory.disk
        self.apart = False  # of a fixed chain: it has gone on by itself, and what it has goes
        self.peers = Peers(place, len(names), limits.silent_s)
        # -- the log and the state
        loaded = loaded or LoadedChain()
        self.replica = ChainReplica(machine, limits, fixed=fixed)
        state = loaded.state
        if state is not None:
            self.replica.restore(state.index, state.chunks)
        else:
            self.replica.begin()
        self.log = EntryLog(*((state.index, state.term) if state else (0, 0)), loaded.entries)
        self.committed = self.log.base
        self.apply(min(loaded.committed, self.log.end), answers=False)
        self.external = machine if isinstance(machine, ExternalState) else None
        self.compaction = Compaction(self, limits, 0 if state is None else state.size)
        self.storing = Storing(self, limits)
        # -- its place in the configuration
        self.aligned = False  # its log is a part of its predecessor's
        self._floor = 0  # its last entry when it was aligned: what was committed before ends there at the latest
        self._upstream = 0  # so far all members before it are synced
        self._acked: tuple[int, int, int, bool] | None = None  # what the predecessor was told last
        self._ack_at = -math.inf  # it is not told again before
        self._owes_ack = False
        self.next: Downstream | None = None
        self.joining = Joining(self, limits)
        self.holds = False  # it commits nothing until the next configuration
        # -- who is to be a member
        self.proposing = Proposing(self, limits, durable=durable, now=now)
        self._leaves = False
        self.why = ""
        # -- time
        self._beat_at = now
        self._seen_at = now
        self._answers: list[Effect] = []  # found while applying
        self.news: list[Applied] | None = None  # what was applied, if somebody takes it from here
        self.serving = Serving(self, limits)

    # -- looks ------------------------------------------------------------------------------------------------

    @property
    def safe(self) -> int:
        """The last entry that is as safe here as the chain promises."""
        if not self.configuration.durable:
            return self.log.end
        external = self.external
        if external is None:
            return self.synced
        if not self.member and (not external.complete or external.settled < self.compaction.owed):
            return 0
        return min(self.synced, self.committed) if external.full else self.synced

    @property
    def shown(self) -> int:
        """The entry that a read at the tail has to show now: a new tail may hear late of commits of the old one."""
        return max(self.committed, self._floor)

    @property
    def majority(self) -> int:
        return 1 if self.fixed else len(self.names) // 2 + 1

    @property
    def log_most(self) -> int:
        return self.compaction.log_most

    @property
    def gives(self) -> bool:
        return self.joining.gives

    @property
    def saves(self) -> bool:
        return self.storing.saves

    @property
    def synced(self) -> int:
        return self.storing.synced

    def next_timeout(self) -> float:
        due = min(self._beat_at, self.agreement.next_timeout(), self.compaction.next_timeout())
        return min(due, self._ack_at) if self._owes_ack else due

    def status(self, now: float) -> ChainStatus:
        heard = self.peers.heard(now)
        others = tuple((self.names[place], each.end, each.synced, each.committed) for place, each in heard.items())
        members = tuple(self.names[place] for place in self.configuration.places)
        return ChainStatus(
            self.number, members, self.log.end, self.safe, self.committed, others, self.why or self.storing.why
        )

    def invariants(self) -> list[str]:
        found = self.agreement.invariants()
        if not self.log.base <= self.committed <= self.log.end:
            found.append(f"committed {self.committed}, the log has {self.log.base} to {self.log.end}")
        if self.replica.applied != self.committed:
            found.append(f"applied {self.replica.applied} of {self.committed}")
        if self.synced > self.log.end:
            found.append(f"synced {self.synced}, the log ends with {self.log.end}")
        if self.next is not None and self.next.known and self.next.sent > self.log.end:
            found.append(f"sent {self.next.sent}, the log ends with {self.log.end}")
        if self.holds and not self.tail:
            found.append("holds commits, and is not the tail")
        return found

    def story(self) -> str:
        places = ">".join(self.names[place] for place in self.configuration.places)
        role = "aligned" if self.aligned else "member" if self.member else "outside"
        return (
            f"{self.number}: {places}, {role}{', holds' if self.holds else ''}, log {self.log.base} to {self.log.end},"
            f" synced {self.synced}, committed {self.committed}; {self.agreement.story()}"
        )

    # -- inputs -----------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        return self.agree(self.agreement.start(), now) + self.handle_timeout(now)

    def handle_message(self, sender: int, message: Between, now: float) -> list[Effect]:
        """Take another server's message; ``sender`` is its place."""
        self._look(now)
        if isinstance(message, Decided) and self._outbids(message):
            return self._outbid(message.number, now)
        if isinstance(message, AgreementMessage):
            return self.agree(self.agreement.handle_message(sender, message, now), now)
        if isinstance(message, Beat):
            self.peers.hear(sender, message, now)
        if message.number > self.number:
            return [Send(sender, Ask(self.number))]
        if message.number < self.number:
            asks = isinstance(message, Beat | Resume | Append | Join | Confirm)
            return [Send(sender, Decided(self.number, self.agreement.value))] if asks else []
        return self._hear(sender, message, now)

    def handle_request(self, client: Hashable, request: Request, origin: bytes, now: float) -> list[Effect]:
        """Take a client's request; ``Reply`` answers it, or it is repeated. ``origin``: its identity or address."""
        return self.serving.handle(client, request, origin)

    def propose(self, command: bytes) -> bool:
        """Number a command of the machine's part at the head, up to 4 MiB, without a session: see ``HeadMachine``.

        Once it is numbered it is done once, or never: then this server has left the chain before it was committed.

        Returns:
            Whether it is numbered: only the head does that.
        """
        if self.head:
            self.serving.propose(command)
        return self.head

    def handle_timeout(self, now: float) -> list[Effect]:
        self._look(now)
        self.compaction.handle_timeout(now)
        actions = self.agree(self.agreement.handle_timeout(now), now)
        if now < self._beat_at:
            return actions
        self._beat_at = now + self._limits.beat_s
        if not self.joining.gives:
            self.compaction.forget()
        actions += [Send(place, self.beat(now)) for place in self.peers.others]
        actions += self.proposing.consider(now)
        self._repeat(now)
        return actions + self.joining.look(now) + self.joining.ask(now) + self.serving.repeat()

    def handle_done(self, job: Job, outcome: StorageError | None, now: float) -> list[Effect]:
        """Note that a job of the disk is done, or was refused."""
        if not isinstance(job, VoteRecord):
            return self.storing.done(job, outcome, now)
        done = self.agree(self.agreement.handle_done(job, outcome, now), now)
        return done if outcome is None else [*done, *self.storing.refused(VOTE, str(outcome), now)]

    def ask_out(self, place: int, out: bool, now: float) -> None:
        self.proposing.ask_out(place, out)
        self._beat_at = now

    def leave(self, now: float) -> None:
        """Let the chain go on at once, without waiting for the silence of this server, which is about to end."""
        self._leaves = True
        self._beat_at = now

    # -- what follows from inputs -----------------------------------------------------------------------------

    def flush(self, now: float) -> list[Effect]:
        """Return the writes, messages, acknowledgements and answers that follow from all inputs."""
        if self.fixed and not self.agreement.kept:
            return []  # nobody else remembers what this server has decided
        self.compaction.shorten(now)
        self._commit()
        actions, self._answers = self._answers, []
        actions += self.storing.flush(now)
        synced = self.safe if self.head else min(self.safe, self._upstream)
        for target in (self.next, self.joining.joiner):
            if target is not None:
                joins = target is not self.next
                found = target.feed(self.log, self.number, synced, self.committed, now, joins=joins)
                actions += [Send(target.place, each) for each in found]
        if self.aligned and not self.head:
            ack = (self.log.end, self.safe, self.committed, self.joining.full)
            self._owes_ack = ack != self._acked
            if self._owes_ack and now >= self._ack_at:
                self._acked, self._owes_ack, self._ack_at = ack, False, now + self._limits.ack_s
                actions.append(Send(self._before(), Ack(self.number, self.life, *ack)))
        return actions + self.serving.flush()

    def _commit(self) -> None:
        if self.tail and self.aligned and not self.holds:
            self.apply(self.safe if self.head else min(self.safe, self._upstream))

    def apply(self, upto: int, *, answers: bool = True) -> None:
        while self.committed < min(upto, self.log.end):
            self.committed += 1
            entry = self.log.entry(self.committed)
            outcomes = self.replica.apply(self.committed, entry)
            if answers:
                self._applied(self.committed, entry, outcomes)

    def _applied(self, index: int, entry: Entry, outcomes: Outcomes | None) -> None:
        if self.news is not None and outcomes is not None and self.replica.asked:
            commands = (entry.command, *entry.also)
            found = zip(commands, outcomes, strict=True)
            self.news += [Applied(index, entry.at_us, command, *outcome) for command, outcome in found]
        if self.tail:
            self._answers += self.serving.committed(index, entry, outcomes)

    def replace_log(self, state: ChainState) -> None:
        """Let a state take the place of the log up to it, here and on disk."""
        self.log.shorten(state.index)
        self.storing.replace_log(state)

    def take_state(self, state: ChainState, restored: Restored) -> None:
        restored.finish(state.index)
        self.compaction.begin(state.size)
        self.log = EntryLog(state.index, state.term)
        self.committed = state.index
        self.storing.begin_anew(state)
        self.aligned = False

    # -- neighbours -------------------------------------------------------------------------------------------

    def _before(self) -> int:
        """Return the place from which it gets new entries: its predecessor, or the tail if it is not a member."""
        places = self.configuration.places
        return places[places.index(self.place) - 1] if self.member else places[-1]

    def _hear(self, sender: int, message: Link, now: float) -> list[Effect]:
        match message:
            case Resume():
                self._resume(sender, message, now)
            case Append():
                return self._append(sender, message)
            case Ack():
                self._acknowledge(sender, message, now)
            case Join():
                return self.joining.admit(sender, message, now)
            case Piece():
                return self.joining.take_piece(sender, message, now)
            case Want():
                return self.joining.give_more(sender, message, now)
            case Confirm():
                return self._confirm(sender, message)
            case Confirmed():
                if message.life == self.life and self.agreement.counts(sender, message.disk):
                    self.serving.confirmed(sender, message)
            case Beat():
                pass
        return []

    def _resume(self, sender: int, message: Resume, now: float) -> None:
        """Find the common part of our log and the successor's, and send the rest."""
        target = self.next
        if target is None or target.place != sender or not self.aligned:
            return
        log = self.log
        common = log.common(message.runs)
        base = max(message.committed, log.base) if common is None else common
        if base > log.end:
            return
        target.begin(base, now)

    def _append(self, sender: int, message: Append) -> list[Effect]:
        if self.head or sender != self._before():
            return []
        if not self.member and self.place in self.configuration.places:
            return []  # what is on its disk may be all that is left of what was committed
        if self.joining.anew:
            return []
        actions: list[Effect] = []
        if not self.aligned:
            if not message.first or not self.committed <= message.base <= self.log.end:
                return []
            actions += self._throw_away(message.base)
            self.aligned = True
            self._floor = self.log.end
        if message.base > self.log.end:
            return actions  # one before is on its way, or lost
        for entry in () if self.joining.full else message.entries[self.log.end - message.base :]:
            self.log.append(entry)
        self._upstream = max(self._upstream, message.synced)
        self.apply(message.committed)
        self._acked = None
        return actions

    def _throw_away(self, base: int) -> list[Effect]:
        last = self.log.end
        if last <= base:
            return []
        self.log.cut(base)
        self.storing.cut(base)
        self.serving.forget()
        return [Report(EntriesDiscarded(base + 1, last))]

    def _acknowledge(self, sender: int, message: Ack, now: float) -> None:
        for target in (self.next, self.joining.joiner):
            if target is None or (target.place, target.life) != (sender, message.life):
                continue
            if target.acknowledge(message, self.log.end, now) and target is self.next:
                self.apply(message.committed)

    def _repeat(self, now: float) -> None:
        self._acked = None
        for target in (self.next, self.joining.joiner):
            if target is not None:
                target.repeat(now)
        if self.member and not self.aligned:
            resume = Resume(self.number, self.log.runs(), self.committed)
            self._answers.append(Send(self._before(), resume))

    # -- reads, for others ------------------------------------------------------------------------------------

    def _confirm(self, sender: int, message: Confirm) -> list[Effect]:
        if not self.agreement.untouched or not self.agreement.may_vote:
            return []
        last = self.place in self.configuration.places[-1:]
        if last and not (self.tail and self.aligned):  # another life of the tail does not know what that has committed
            return []
        disk = self.agreement.memory.disk
        return [Send(sender, Confirmed(self.number, message.life, message.round, disk, self.shown))]

    # -- configurations ---------------------------------------------------------------------------------------

    def beat(self, now: float) -> Beat:
        return Beat(
            self.number, self.agreement.memory.disk, self.life, self.log.end, self.safe, self.committed,
            self.peers.hears(now), self._leaves,
        )  # fmt: skip

    def _look(self, now: float) -> None:
        if now - self._seen_at > self._limits.silent_s / 2 and now - self._beat_at > self._limits.silent_s / 2:
            self.peers.paused(now)
            self.proposing.reset()
        self._seen_at = now

    def agree(self, effects: list[Effect], now: float) -> list[Effect]:
        if self.agreement.number > self.number:
            return effects + self._enter(self.agreement.number, self.agreement.value, now)
        return effects

    def _enter(self, number: int, decided: bytes, now: float) -> list[Effect]:
        disk = self.agreement.memory.disk
        if self.fixed and disk != self._disk:  # it has gone on by itself: nobody may take it for who it was
            self._disk, self.apart = disk, True
            self.life = another(self.life, number)
        self.number = number
        configuration = self._be_in(value.decode(decided))
        self.proposing.entered()
        self.holds, self.next = False, None
        self.compaction.forget()
        self.joining.entered()
        self._upstream, self._acked = 0, None
        self._owes_ack, self._ack_at = False, -math.inf
        self.aligned = self.head
        self._floor = self.log.end
        if self.member and not self.tail:
            places = configuration.places
            after = places[places.index(self.place) + 1]
            self.next = Downstream(after, configuration.life(after), self._limits, now)
        if self.member and not self.head:
            self._repeat(now)
        self._beat_at = now
        actions: list[Effect] = [Report(Entered(number, configuration.places, self.place, self.names))]
        return actions + self.serving.entered()

    # -- a fixed chain: two servers may have decided at once -----------------------------------------------------

    def _outbids(self, message: Decided) -> bool:
        return (
            self.fixed
            and message.number > self.number
            and outbids(self.place, self.number, self.configuration, message.number, value.decode(message.value))
        )

    def _outbid(self, number: int, now: float) -> list[Effect]:
        line = value.line_behind(self.configuration, self.number)
        again = value.encode(msgspec.structs.replace(self.configuration, line=line))
        assert isinstance(self.agreement, WithoutAgreement)
        return self.agree(self.agreement.propose(again, now, above=number), now)

    def _disk_in(self, number: int, decided: bytes) -> int:
        disk = self.agreement.memory.disk
        follows = builds_on(self.number, self.configuration, number, value.decode(decided))
        return disk if follows else another(disk, number)

    def _be_in(self, configuration: Configuration) -> Configuration:
        self.configuration = configuration
        places = configuration.places
        self.member = configuration.life(self.place) == self.life  # this life is one of the chain
        self.head = self.member and places[0] == self.place  # it numbers commands
        self.tail = self.member and places[-1] == self.place  # what it has is committed
        return configuration
