"""The master of a store: all writes go through it, in one order that every clone sees.

Its own operations are done at once; those of clones come through a channel of each clone, and the results go out to all
clones through one channel. With a backend, an operation is told to anybody only once it is durable (``Commit``);
reading the master itself shows it a moment earlier.

Source: Zeek Broker, ``master_actor.cc``. Departures: a clone of chappe is told what became of its writes
(``WriterState``), and repeats itself after an interruption without anything being done twice; results beyond a type's
bounds are refused; a second master of the name is reported; buffers are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from chappe.core import Clock, Effect, Report, Resolve
from chappe.data.convert import to_value
from chappe.data.values import Value
from chappe.defaults import CHANNEL_HEARTBEAT_S, CHANNEL_TICK_S
from chappe.errors import ProtocolError, StorageError, TimedOut
from chappe.kv import commands as cmd
from chappe.kv.backend import Commit, HistoryRow, Loaded, Operation, WriterRow
from chappe.kv.engine import DurableContents, Engine, Entry, index_of
from chappe.kv.entity import NOBODY, Entity, check_name, clone_topic, master_topic
from chappe.kv.events import CommandRefused, TwoMasters
from chappe.kv.followers import Followers, Writers
from chappe.kv.history import KeyHistory, past_change
from chappe.kv.ordering import Ordering
from chappe.kv.recent import EventNumbers, Recent
from chappe.kv.role import Conflicts, KvRole, Notices, past_rows
from chappe.kv.taking import OF_WRITERS, Taking
from chappe.limits import KV_LIMITS, KvLimits


class KvMaster(KvRole):
    """Every method that does something takes ``now``, monotonic seconds, and returns actions. Operations raise
    StoreError, UnsupportedValue or RecordTooLarge at once, and then nothing was done; their ``ticket`` is resolved
    when they are durable.

    Args:
        entity: Who this master is; made by ``entity.chappe_entity``, new in each life.
        durable: Whether there is a backend, to be asked by ``Commit``.
        loaded: What the backend had.
        engine: The data, if they are in memory already; of ``loaded`` only the writers are taken then.
        recent: What has changed lately, which the owner keeps.
        history: The latest changes of each key, which the owner keeps; by default none are kept.
        base: Where the numbers of its events begin, which are the revisions of entries too: above those of any former
            master. Without one ``Numbers`` decides, by what the backend had and the time of day.
        notify: Whether changes are told to watchers.
    """

    kind = "master"

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        now: float,
        clock: Clock,
        durable: bool = False,
        loaded: Loaded | None = None,
        engine: Engine | None = None,
        recent: Recent | None = None,
        history: KeyHistory | None = None,
        base: int | None = None,
        heartbeat_s: float = CHANNEL_HEARTBEAT_S,
        notify: bool = True,
        limits: KvLimits = KV_LIMITS,
    ) -> None:
        raw = check_name(name)
        self.topics = (master_topic(raw), clone_topic(raw))
        notices = Notices(notify)
        super().__init__(name, entity, notices, NOBODY, clock=clock, immediate=not durable, engine=engine)
        self._limits = limits
        self._history = KeyHistory(0, limits, kept=durable) if history is None else history
        if loaded is not None and engine is None:
            self._history.load(loaded.history)
        numbers = None
        if base is None:
            numbers = EventNumbers(loaded or Loaded(), clock)
            base = numbers.base
        self._numbers = numbers if durable else None
        self._writers = Writers(loaded.writers if loaded is not None else (), limits, clock)
        self._followers = Followers(
            name, entity, self._writers, lambda: self._ordering.frozen(), lambda *state: self._ordering.since(*state),
            limits, now=now, heartbeat_s=heartbeat_s, base=base,
        )  # fmt: skip
        self._ordering = Ordering(
            name, entity, self.engine, self._writers, self._followers, notices, limits, now=now, clock=clock,
            durable=durable, recent=recent, numbers=self._numbers, history=self._history,
        )  # fmt: skip
        self._taking = Taking(name, self._writers, self._ordering, self._followers, limits, now=now, clock=clock)
        self._asked: dict[Entity, tuple[int, int]] = {}  # clones that ask for the position: question, operations so far
        self._gone: set[bytes] = set()  # endpoints out of reach
        self._conflicts = Conflicts()
        for key, value, expires_ns in loaded.entries if loaded is not None and engine is None else ():
            self.engine.put(key, value, expires_ns)
        if loaded is not None and engine is None:
            self._history.check(self.engine)

    # -- looks --------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        return self._followers.output.seq

    def invariants(self) -> list[str]:
        parts = (self.engine, self._followers, self._writers, self._taking, self._history)
        return [each for part in parts for each in part.invariants()]

    def story(self, key: object) -> str:
        pending = f"; {self.waiting} operations are not durable yet" if self.waiting else ""
        return f"{self.engine.story(to_value(key))}; {len(self.clones)} clones, at event {self.position}{pending}"

    def revision_of(self, entry: Entry) -> int:
        return max(entry.revision, self._followers.base)

    def durable(self, key: Value) -> Entry | None:
        entry = self.engine.find(key)
        if self.settled:
            return entry
        index = index_of(key)
        return next((each.before for each in self._ordering.commits.changes() if index_of(each.key) == index), entry)

    def past(self, key: Value) -> list[HistoryRow]:
        """Return the latest durable changes of a key, the oldest first. Raises InvalidOperation."""
        return past_rows(self, self._history, key)

    def ask_history(self, ticket: int, key: object, timeout_s: float, now: float) -> list[Effect]:
        return [Resolve(ticket, tuple([past_change(row) for row in self.past(to_value(key))]))]

    @property
    def clones(self) -> tuple[Entity, ...]:
        return self._followers.output.consumers

    @property
    def room(self) -> bool:
        """True if the backend keeps up; if not, the driver lets writers wait."""
        return not self._ordering.commits.full

    @property
    def settled(self) -> bool:
        return not self.waiting

    @property
    def waiting(self) -> int:
        return self._ordering.commits.count

    @property
    def written(self) -> int:
        return self._ordering.commits.added

    def has_kept(self, count: int) -> bool:
        return self._ordering.commits.settled >= count

    def kept(self) -> DurableContents:
        return DurableContents(self.engine, self._ordering.commits.changes())

    def idle(self) -> bool:
        return self.settled and self._followers.idle(self._gone) and self._taking.idle(self._gone)

    # -- application: writing -----------------------------------------------------------------------------------

    def put(
        self, key: object, value: object, *, now: float, expiry_ns: int | None = None,
        ticket: int | None = None,
    ) -> list[Effect]:  # fmt: skip
        ordering = self._ordering
        if (
            expiry_ns is None
            and ticket is None
            and not self._history.size
            and not (ordering.durable or ordering.notices.wanted or self._followers.has_clones)
        ):
            return ordering.put_alone(to_value(key), to_value(value), now)
        return ordering.do(cmd.Put(to_value(key), to_value(value), expiry_ns, self.entity), ticket, now)

    def do(self, command: cmd.Mutation, ticket: int | None, now: float) -> list[Effect]:
        return self._ordering.do(command, ticket, now)

    @property
    def held_until(self) -> float:
        return self._followers.held_until

    def let_go(self) -> list[Effect]:
        actions: list[Effect] = []
        self._followers.let_go(actions)
        return actions

    def leave(self) -> list[Effect]:
        return self.let_go()

    # -- of a chain ---------------------------------------------------------------------------------------------

    @property
    def next_position(self) -> int:
        return self._ordering.next_position

    def frozen(self) -> list[Entry]:
        return self._ordering.frozen()

    def writer_rows(self) -> tuple[WriterRow, ...]:
        return self._writers.rows()

    def drop_waiting(self) -> list[Effect]:
        return self._ordering.drop_waiting()

    def end(self, kept: bool, now: float) -> list[Effect]:
        actions = self._ordering.end(kept, now)
        actions += [Resolve(ticket, TimedOut(f"store {self.name!r} went to another master")) for ticket in self._waits]
        return actions

    # -- world --------------------------------------------------------------------------------------------------

    def reserve(self) -> list[Operation]:
        """Return rows that its own backend, if any, must hold before the start: numbers are shown from then on."""
        row = None if self._numbers is None else self._numbers.reserve(self.position)
        return [] if row is None else [row]

    def start(self, now: float) -> list[Effect]:
        actions: list[Effect] = []
        self._taking.forget(now)
        self._ordering.expire(now, actions)
        self._followers.let_go(actions)
        return actions

    def handle_message(self, topic: bytes, messages: Iterable[bytes], now: float) -> list[Effect]:
        if topic == self.topics[1]:
            return self._hear_masters(messages, now)
        actions: list[Effect] = []
        for payload in messages:
            try:
                message = cmd.decode_message(payload)
            except ProtocolError as problem:
                actions.append(Report(CommandRefused(self.name, str(problem))))
                continue
            if message.receiver == self.entity or message.receiver == NOBODY:
                self._gone.discard(message.sender.endpoint)
                self._handle(message, now, actions)
        self._flush(actions)
        if self._waits:
            self._check_idle(now, actions)
        self._followers.tick_at = min(self._followers.tick_at, now + CHANNEL_TICK_S)
        return actions

    def _hear_masters(self, payloads: Iterable[bytes], now: float) -> list[Effect]:
        """Report another master: nobody else sends on the clones' topic."""
        actions: list[Effect] = []
        for payload in payloads:
            try:
                sender = cmd.decode_message(payload).sender
            except ProtocolError as problem:
                actions.append(Report(CommandRefused(self.name, str(problem))))
                continue
            if sender != self.entity and self._conflicts.is_news(sender, now):
                actions.append(Report(TwoMasters(self.name, self.entity, sender)))
        return actions

    def handle_gone(self, endpoint: bytes, now: float) -> list[Effect]:
        """Stop waiting in ``idle`` for an endpoint that is out of reach."""
        self._gone.add(endpoint)
        self._gone &= self._followers.endpoints | self._taking.endpoints  # of others nobody waits for anything
        actions: list[Effect] = []
        self._check_idle(now, actions)
        return actions

    def handle_done(self, job: Commit, error: StorageError | None, now: float) -> list[Effect]:
        """Take the outcome of a commit; after a refusal all waiting operations are undone and refused."""
        actions: list[Effect] = []
        if error is None:
            self._ordering.committed(job.number, now, actions)
        else:
            self._ordering.failed(job.number, error, now, actions)
        self._flush(actions)
        self._check_idle(now, actions)
        return actions

    def handle_timeout(self, now: float) -> list[Effect]:
        """Expire, acknowledge, ask for what is missing, forget who is gone."""
        actions: list[Effect] = []
        self._ordering.expire(now, actions)
        if now >= self._followers.tick_at:
            self._followers.tick(now, actions)
            self._taking.tick(now, actions)
            self._flush(actions)
            self._check_idle(now, actions)
            self._plan(now)
        self._ordering.start_commit(actions)
        if not now < self._followers.held_until < math.inf:
            self._followers.let_go(actions)
        return actions

    def hurry_idle(self, now: float) -> None:
        self._followers.hurry(now)

    def next_timeout(self) -> float:
        return min(self._followers.tick_at, self._followers.held_until, self._ordering.expire_at)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _handle(self, message: cmd.Message, now: float, actions: list[Effect]) -> None:
        command, sender = message.command, message.sender
        if isinstance(command, OF_WRITERS):
            self._taking.handle(sender, message.seq, command, now, actions)
        elif isinstance(command, cmd.CumulativeAck):
            self._followers.take_ack(sender, command.seq, now, actions)
        elif isinstance(command, cmd.MissingEvents):
            self._followers.take_nack(sender, command.seqs, now, actions)
        elif isinstance(command, cmd.PositionAsked):
            if sender in self._followers.output.consumers and self._asked.get(sender, (-1, 0))[0] != command.question:
                self._asked[sender] = command.question, self._ordering.commits.added
        elif isinstance(command, cmd.HistoryAsked):
            if sender in self._followers.output.consumers:
                self._followers.send(sender, self._told_history(command), actions)
        elif isinstance(command, cmd.AttachWriter):
            self._taking.attach(sender, command, now, actions)
        elif isinstance(command, cmd.SnapshotTaken):
            self._followers.snapshot_taken(sender, command, now, actions)
        elif isinstance(command, cmd.Leave):
            self._followers.drop(sender, "it was closed", now, actions)
            self._writers.detach(sender)
        else:
            actions.append(Report(CommandRefused(self.name, f"{sender} sent a master's {type(command).__name__}")))

    def _flush(self, actions: list[Effect]) -> None:
        self._ordering.start_commit(actions)
        self._followers.let_go(actions)
        self._taking.confirm(actions)
        if self._asked:
            self._answer(actions)

    def _answer(self, actions: list[Effect]) -> None:
        """Tell the position to clones for whom all operations before their question are durable."""
        settled = self._ordering.commits.settled
        for clone in [each for each, (_, added) in self._asked.items() if added <= settled]:
            question, _ = self._asked.pop(clone)
            self._followers.send(clone, cmd.Position(question, self.position), actions)

    def _told_history(self, asked: cmd.HistoryAsked) -> cmd.HistoryTold:
        """Return the newest changes that a clone lacks, as many as one message holds."""
        if not self._history.size:
            return cmd.HistoryTold(asked.question, cmd.NO_HISTORY, cmd.encode_past(()))
        rows = [row for row in self.past(asked.key) if not asked.below or row.revision < asked.below]
        size = count = 0
        while count < len(rows) and size < self._limits.piece_bytes:
            count += 1
            size += len(rows[-count].body)
        part = rows[len(rows) - count :]
        return cmd.HistoryTold(asked.question, cmd.MORE if count < len(rows) else cmd.ALL, cmd.encode_past(part))

    def _write(self, command: cmd.Mutation, ticket: int | None, now: float) -> list[Effect]:
        return self.do(command, ticket, now)

    def _plan(self, now: float) -> None:
        at = min([self._followers.next_timeout(), self._taking.next_timeout(), *self._waits.values()])
        self._followers.tick_at = max(at, now + CHANNEL_TICK_S)
