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
from typing import Any, Final

from chappe.channel import (
    ASK_HANDSHAKE,
    Ack,
    ChannelConsumer,
    ChannelProducer,
    Consume,
    ConsumerAction,
    Dropped,
    Event,
    Handshake,
    Heartbeat,
    Lost,
    Nack,
    ProducerAction,
    ToAll,
    ToConsumer,
    ToProducer,
)
from chappe.core import Report
from chappe.data.convert import to_value
from chappe.data.values import Value
from chappe.defaults import (
    CHANNEL_HEARTBEAT_S,
    CHANNEL_SILENT_S,
    CHANNEL_TICK_S,
    DISK_RETRY_S,
    MASTER_CONFLICT_S,
    STORE_ENTRY_BYTES_MAX,
    STORE_SNAPSHOT_BYTES_MAX,
    STORE_WRITER_FORGET_S,
)
from chappe.errors import (
    BackendFailure,
    InvalidOperation,
    ProtocolError,
    RecordTooLarge,
    StorageError,
    StoreError,
    TimedOut,
)
from chappe.stores import commands as cmd
from chappe.stores.actions import Action, Notify, Resolve, Send
from chappe.stores.backend import Loaded
from chappe.stores.committing import Committing, Done
from chappe.stores.engine import Change, Engine
from chappe.stores.entity import NOBODY, Entity
from chappe.stores.events import CloneAttached, CloneDropped, CommandRefused, CommitFailed, TwoMasters
from chappe.stores.executing import Executed, execute
from chappe.stores.outcomes import NOT_INSERTED, code_of
from chappe.stores.sizes import entry_fits
from chappe.stores.topics import check_name, clone_topic
from chappe.stores.writers import NS, Writer, Writers

_FORGET_NS: Final = int(CHANNEL_SILENT_S * NS)
_OFFSET_MAX: Final = 2**62  # numbers of writes stay within what backends can keep
_TOO_LARGE: Final = f"key and value have more than {STORE_ENTRY_BYTES_MAX:,} bytes"
_GREET_AGAIN_S: Final = 1.0  # a clone that asks again meanwhile has its snapshot under way


class StoreMaster:
    """See the module.

    Every method that does something takes ``now`` (monotonic seconds) and ``wall_ns`` (nanoseconds since 1970), and
    returns actions. Operations raise StoreError, UnsupportedValue or RecordTooLarge at once, and then nothing was done;
    their ``ticket`` is resolved when they are durable.

    Args:
        name: Of the store.
        entity: Who this master is; made by ``entity.chappe_entity``, new in each life.
        durable: Whether there is a backend, to be asked by ``Commit``.
        loaded: What the backend had.
        notify: Whether changes are told to watchers.
    """

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        now: float,
        wall_ns: int,
        durable: bool = False,
        loaded: Loaded | None = None,
        heartbeat_s: float = CHANNEL_HEARTBEAT_S,
        notify: bool = True,
    ) -> None:
        self.name = name
        self.entity = entity
        self.engine = Engine()
        self.notify = notify
        self._topic = clone_topic(check_name(name))
        self._heartbeat_s = heartbeat_s
        self._durable = durable
        self._commits = Committing()
        self._writers = Writers(loaded.writers if loaded is not None else ())
        self._output: ChannelProducer[Entity, bytes] = ChannelProducer(len, now=now, heartbeat_s=heartbeat_s)
        self._acks_due: dict[Entity, None] = {}
        self._greeted: dict[Entity, float] = {}  # clones whose handshake is under way
        self._gone: set[bytes] = set()  # endpoints out of reach
        self._waits: dict[int, float] = {}  # await_idle: until when
        self._tick_at = self._beat_at = now + heartbeat_s
        self._conflicts: dict[Entity, float] = {}
        self._forget_at = now
        self._expire_from = now  # not before, since the disk was full
        for key, value, expires_ns in loaded.entries if loaded is not None else ():
            self.engine.put(key, value, expires_ns)

    # -- application: reading -----------------------------------------------------------------------------------

    @property
    def clones(self) -> tuple[Entity, ...]:
        """Those that are attached."""
        return self._output.consumers

    @property
    def room(self) -> bool:
        """Whether the backend keeps up; if not, the driver lets writers wait."""
        return not self._commits.full

    def get(self, key: object) -> Value:
        """The value under a key; raises NoSuchKey."""
        return self.engine.get(key if type(key) is str else to_value(key))

    def get_index(self, key: object, index: object) -> Value:
        """What lies at an index of the value under a key; raises NoSuchKey or TypeClash."""
        return self.engine.get_index(to_value(key), to_value(index))

    def exists(self, key: object) -> bool:
        """Whether there is a value under a key."""
        return self.engine.exists(to_value(key))

    def idle(self) -> bool:
        """Whether every clone in reach has everything, nothing of theirs is missing, and all is durable."""
        return (
            not self._commits.count
            and self._output.idle(lambda clone: clone.endpoint in self._gone)
            and all(
                writer.entity.endpoint in self._gone or (writer.channel is not None and writer.channel.idle())
                for writer in self._writers.attached.values()
            )
        )

    # -- application: writing -----------------------------------------------------------------------------------

    def put(
        self, key: object, value: object, *, now: float, wall_ns: int, expiry_ns: int | None = None,
        ticket: int | None = None,
    ) -> list[Action]:  # fmt: skip
        """Set a value; without ``expiry_ns`` it stays for good, whatever the one before had."""
        if expiry_ns is None and ticket is None and not (self._durable or self.notify or self._output.consumers):
            return self._put_alone(to_value(key), to_value(value), now, wall_ns)
        return self._local(cmd.Put(to_value(key), to_value(value), expiry_ns, self.entity), ticket, now, wall_ns)

    def put_unique(
        self, key: object, value: object, *, now: float, wall_ns: int, expiry_ns: int | None = None,
        ticket: int | None = None,
    ) -> list[Action]:  # fmt: skip
        """Set a value if there is none; the ticket's outcome is whether it did."""
        command = cmd.PutUnique(to_value(key), to_value(value), expiry_ns, NOBODY, 0, self.entity)
        return self._local(command, ticket, now, wall_ns)

    def erase(self, key: object, *, now: float, wall_ns: int, ticket: int | None = None) -> list[Action]:
        """Remove a key, if it is there."""
        return self._local(cmd.Erase(to_value(key), self.entity), ticket, now, wall_ns)

    def add(
        self, key: object, value: object, init: int, *, now: float, wall_ns: int, expiry_ns: int | None = None,
        ticket: int | None = None,
    ) -> list[Action]:  # fmt: skip
        """Add to a value, by default the empty one of the type with tag ``init``; raises TypeClash."""
        command = cmd.Add(to_value(key), to_value(value), init, expiry_ns, self.entity)
        return self._local(command, ticket, now, wall_ns)

    def subtract(
        self, key: object, value: object, *, now: float, wall_ns: int, expiry_ns: int | None = None,
        ticket: int | None = None,
    ) -> list[Action]:  # fmt: skip
        """Take away from a value; raises NoSuchKey or TypeClash."""
        return self._local(cmd.Subtract(to_value(key), to_value(value), expiry_ns, self.entity), ticket, now, wall_ns)

    def clear(self, *, now: float, wall_ns: int, ticket: int | None = None) -> list[Action]:
        """Remove everything."""
        return self._local(cmd.Clear(self.entity), ticket, now, wall_ns)

    def await_idle(self, ticket: int, timeout_s: float, now: float) -> list[Action]:
        """Resolve the ticket with None once ``idle``, with TimedOut after ``timeout_s``."""
        if self.idle():
            return [Resolve(ticket, None)]
        self._waits[ticket] = now + timeout_s
        self._output.hurry(now)
        self._tick_at = now
        return []

    # -- world --------------------------------------------------------------------------------------------------

    def start(self, now: float, wall_ns: int) -> list[Action]:
        """Begin: what expired while the store was closed goes."""
        actions: list[Action] = []
        self._forget_writers(now, wall_ns)
        self._expire(now, wall_ns, actions)
        return actions

    def handle_messages(self, payloads: Iterable[bytes], now: float, wall_ns: int) -> list[Action]:
        """Command messages have come on the master's topic."""
        actions: list[Action] = []
        for payload in payloads:
            try:
                message = cmd.decode_message(payload)
            except ProtocolError as problem:
                actions.append(Report(CommandRefused(self.name, str(problem))))
                continue
            if message.receiver == self.entity or message.receiver == NOBODY:
                self._gone.discard(message.sender.endpoint)
                self._handle(message, now, wall_ns, actions)
        self._flush(actions)
        if self._waits:
            self._check_idle(now, actions)
        self._tick_at = min(self._tick_at, now + CHANNEL_TICK_S)
        return actions

    def handle_clone_topic(self, payload: bytes, now: float) -> list[Action]:
        """A command message has come on the clones' topic: only another master sends there."""
        try:
            sender = cmd.decode_message(payload).sender
        except ProtocolError as problem:
            return [Report(CommandRefused(self.name, str(problem)))]
        if sender == self.entity or now < self._conflicts.get(sender, -math.inf) + MASTER_CONFLICT_S:
            return []
        self._conflicts = {each: at for each, at in self._conflicts.items() if now < at + MASTER_CONFLICT_S}
        self._conflicts[sender] = now
        return [Report(TwoMasters(self.name, self.entity, sender))]

    def handle_gone(self, endpoint: bytes, now: float) -> list[Action]:
        """An endpoint is out of reach: ``idle`` no longer waits for it."""
        self._gone.add(endpoint)
        actions: list[Action] = []
        self._check_idle(now, actions)
        return actions

    def handle_committed(self, number: int, now: float, wall_ns: int) -> list[Action]:
        """A commit is durable."""
        actions: list[Action] = []
        for done in self._commits.committed(number):
            self._release(done, now, actions)
        self._catch_up()
        self._expire(now, wall_ns, actions)
        self._flush(actions)
        self._check_idle(now, actions)
        return actions

    def handle_commit_failed(self, number: int, error: StorageError, now: float) -> list[Action]:
        """A commit was refused: everything that waits is undone and refused."""
        undone = self._commits.failed(number, self.engine)
        self._expire_from = now + DISK_RETRY_S
        actions: list[Action] = [Report(CommitFailed(self.name, len(undone), str(error)))]
        failure = BackendFailure(f"the write is not done: {error}")
        for done in undone:
            self._outcome(done, failure)
            self._release(Done(done.command, (), (), failure, done.ticket, done.writer, done.seq), now, actions)
        self._catch_up()
        self._flush(actions)
        self._check_idle(now, actions)
        return actions

    def handle_timeout(self, now: float, wall_ns: int) -> list[Action]:
        """Expire, acknowledge, ask for what is missing, forget who is gone."""
        actions: list[Action] = []
        self._expire(now, wall_ns, actions)
        if now >= self._tick_at:
            self._apply(self._output.handle_timeout(now), now, actions)
            if not self._output.consumers and now >= self._beat_at:
                self._beat(self._output.seq, now, actions)  # only another master can hear it
            for writer in list(self._writers.attached.values()):
                if writer.channel is not None:
                    self._take(writer, writer.channel.handle_timeout(now), now, wall_ns, actions)
                if wall_ns - writer.heard_ns > _FORGET_NS and writer.entity not in self._output.consumers:
                    self._writers.detach(writer.entity)
            if now >= self._forget_at:
                self._forget_writers(now, wall_ns)
            self._flush(actions)
            self._check_idle(now, actions)
            self._plan(now)
        self._start_commit(actions)
        return actions

    def next_timeout(self, now: float, wall_ns: int) -> float:
        """When ``handle_timeout`` is due."""
        due_ns = self.engine.next_expiry_ns()
        if due_ns is None:
            return self._tick_at
        return min(self._tick_at, max(now + max(0.0, (due_ns - wall_ns) / NS), self._expire_from))

    # -- inside: operations ---------------------------------------------------------------------------------------

    def _local(self, command: cmd.Action, ticket: int | None, now: float, wall_ns: int) -> list[Action]:
        if not _fits(command):
            raise RecordTooLarge(_TOO_LARGE)
        actions: list[Action] = []
        self._expire(now, wall_ns, actions)
        changes, broadcast, result = self._execute(command, wall_ns)
        self._finish(Done(command, changes, broadcast, result, ticket), now, actions)
        self._start_commit(actions)
        return actions

    def _put_alone(self, key: Value, value: Value, now: float, wall_ns: int) -> list[Action]:
        """What ``_local`` comes to for a put of which nobody is to be told."""
        if not entry_fits(key, value):
            raise RecordTooLarge(_TOO_LARGE)
        actions: list[Action] = []
        self._expire(now, wall_ns, actions)
        self.engine.put(key, value)
        return actions

    def _execute(self, command: cmd.Action, wall_ns: int) -> Executed:
        """Do it in memory; raises StoreError if it cannot be done, and then nothing was."""
        return execute(self.engine, self.entity, command, wall_ns)

    def _expire(self, now: float, wall_ns: int, actions: list[Action]) -> None:
        due_ns = self.engine.next_expiry_ns()
        if due_ns is None or due_ns > wall_ns or now < self._expire_from:
            return
        for change in self.engine.expire(wall_ns):
            command = cmd.Expire(change.key, self.entity)
            self._finish(Done(command, (change,), (command,), None), now, actions)
        self._start_commit(actions)

    # -- inside: what becomes of them -----------------------------------------------------------------------------

    def _finish(self, done: Done, now: float, actions: list[Action]) -> None:
        """An operation was done in memory; with a backend it is told later."""
        if self._durable:
            self._commits.add(done)
        else:
            self._release(done, now, actions)

    def _start_commit(self, actions: list[Action]) -> None:
        if self._durable and self._commits.count:
            commit = self._commits.start({entity: each.row() for entity, each in self._writers.attached.items()})
            if commit is not None:
                actions.append(commit)

    def _release(self, done: Done, now: float, actions: list[Action]) -> None:
        """Tell everybody."""
        if self.notify:
            for change in done.changes:
                actions.append(_notice(change, done.command))
        if self._output.consumers:
            for command in done.broadcast:
                self._apply(self._output.produce(cmd.encode_command(command), now), now, actions)
            self._tick_at = min(self._tick_at, now + CHANNEL_TICK_S)
        if done.ticket is not None:
            actions.append(Resolve(done.ticket, done.result))
        if done.writer is not None and (writer := self._writers.known.get(done.writer)) is not None:
            writer.applied = max(writer.applied, done.seq)
            self._acks_due[done.writer] = None

    def _forget_writers(self, now: float, wall_ns: int) -> None:
        """Clones that have been away for very long."""
        self._forget_at = now + STORE_WRITER_FORGET_S / 24
        for entity in self._writers.forget(wall_ns):
            self._commits.forget(entity)

    def _catch_up(self) -> None:
        """With nothing on its way to the disk, all that was taken is applied."""
        if not self._commits.count:
            for writer in self._writers.attached.values():
                writer.applied = max(writer.applied, writer.taken)

    def _outcome(self, done: Done, error: StoreError | None) -> None:
        """Remember what a clone is to be told of its write."""
        if done.writer is None or not done.writer.is_chappe:
            return
        writer = self._writers.known.get(done.writer)
        if writer is not None:
            if error is not None:
                writer.outcomes[done.seq] = code_of(error)
            elif done.result is False:
                writer.outcomes[done.seq] = NOT_INSERTED

    def _flush(self, actions: list[Action]) -> None:
        """Confirm writes, once for all of a writer's that were done meanwhile."""
        self._start_commit(actions)
        for entity in self._acks_due:
            writer = self._writers.known.get(entity)
            if writer is not None and entity.is_chappe:
                self._send(entity, cmd.WriterState(writer.applied, self._output.seq, writer.told()), actions)
        self._acks_due.clear()

    # -- inside: messages -----------------------------------------------------------------------------------------

    def _handle(self, message: cmd.Message, now: float, wall_ns: int, actions: list[Action]) -> None:
        command, sender = message.command, message.sender
        writer = self._writers.attached.get(sender)
        if isinstance(command, cmd.ACTIONS):
            if writer is not None and writer.channel is not None and not writer.full and not self._commits.full:
                self._take(writer, writer.channel.handle_event(message.seq, command, now), now, wall_ns, actions)
        elif isinstance(command, cmd.CumulativeAck):
            attached = sender in self._greeted
            self._apply(self._output.handle_ack(sender, command.seq, now), now, actions)
            if attached and self._greeted.pop(sender, None) is not None and sender in self._output.consumers:
                actions.append(Report(CloneAttached(self.name, sender)))
        elif isinstance(command, cmd.MissingEvents):
            self._nacked(sender, command.seqs, now, actions)
        elif isinstance(command, cmd.AttachWriter):
            self._attach_writer(sender, command, now, wall_ns, actions)
        elif isinstance(command, cmd.Keepalive):
            if writer is not None and writer.channel is not None:
                writer.heard_ns = wall_ns
                self._acks_due[sender] = None
                self._take(writer, writer.channel.handle_heartbeat(command.seq, now), now, wall_ns, actions)
        elif isinstance(command, cmd.RetransmitFailed):
            if writer is not None and writer.channel is not None:
                self._take(writer, writer.channel.handle_retransmit_failed(command.seq, now), now, wall_ns, actions)
        elif isinstance(command, cmd.Settled):
            if writer is not None:
                writer.settle(command.seq)
        elif isinstance(command, cmd.Leave):
            self._apply(self._output.drop(sender, "it was closed"), now, actions)
            self._writers.detach(sender)
        else:
            actions.append(Report(CommandRefused(self.name, f"{sender} sent a master's {type(command).__name__}")))

    def _nacked(self, clone: Entity, seqs: tuple[int, ...], now: float, actions: list[Action]) -> None:
        if seqs == ASK_HANDSHAKE and now < self._greeted.get(clone, -math.inf) + _GREET_AGAIN_S:
            return
        self._apply(self._output.handle_nack(clone, seqs, now), now, actions)

    def _attach_writer(
        self, entity: Entity, command: cmd.AttachWriter, now: float, wall_ns: int, actions: list[Action]
    ) -> None:
        """A clone opens its channel, or opens it again: what is done already is not taken again."""
        if command.offset > _OFFSET_MAX:
            actions.append(Report(CommandRefused(self.name, f"{entity} begins with write {command.offset}")))
            return
        writer = self._writers.known.get(entity) or self._writers.make(entity, command.offset, wall_ns)
        if writer is None:
            actions.append(Report(CommandRefused(self.name, f"{entity} is one writing clone too many")))
            return
        writer.heard_ns = wall_ns
        if writer.channel is None:
            self._writers.attach(writer, ChannelConsumer(now=now, search_max_s=math.inf))
            assert writer.channel is not None
            writer.taken = max(writer.taken, command.offset)
            heartbeat_s = command.ticks * CHANNEL_TICK_S
            taken = writer.channel.handle_handshake(writer.taken, heartbeat_s, now)
            self._take(writer, taken, now, wall_ns, actions)
        else:
            writer.channel.skip_to(command.offset)
            writer.taken = max(writer.taken, command.offset)
        self._catch_up()
        self._acks_due[entity] = None

    def _take(
        self, writer: Writer, taken: list[ConsumerAction[cmd.Action]], now: float, wall_ns: int, actions: list[Action]
    ) -> None:
        """What a writer's channel has to say."""
        for each in taken:
            if isinstance(each, Consume):
                self._write(writer, each.seq, each.payload, now, wall_ns, actions)
            elif isinstance(each, Lost):
                writer.taken = each.seq
                self._catch_up()
            elif isinstance(each, ToProducer):
                message = each.message
                if isinstance(message, Ack):
                    if not writer.entity.is_chappe:  # it hears of each commit, and asks if it does not
                        self._send(writer.entity, cmd.CumulativeAck(writer.applied), actions)
                elif isinstance(message, Nack) and writer.applied == writer.taken and not writer.full:
                    # It also says that everything before has arrived, so it must not run ahead of the disk.
                    self._send(writer.entity, cmd.MissingEvents(message.seqs), actions)

    def _write(
        self, writer: Writer, seq: int, command: cmd.Action, now: float, wall_ns: int, actions: list[Action]
    ) -> None:
        """Do what a clone has asked for."""
        self._expire(now, wall_ns, actions)
        writer.taken = seq
        writer.heard_ns = wall_ns
        try:
            if not _fits(command):
                raise InvalidOperation(_TOO_LARGE)
            changes, broadcast, result = self._execute(command, wall_ns)
            done = Done(command, changes, broadcast, result, None, writer.entity, seq)
            self._outcome(done, None)
        except StoreError as problem:
            told: tuple[cmd.Action, ...] = ()
            if isinstance(command, cmd.PutUnique) and not command.who.is_chappe:
                told = (cmd.PutUniqueResult(False, command.who, command.request, self.entity),)
            done = Done(command, (), told, problem, None, writer.entity, seq)
            self._outcome(done, problem)
        self._finish(done, now, actions)

    # -- inside: sending and timers ---------------------------------------------------------------------------------

    def _apply(self, produced: list[ProducerAction[Entity]], now: float, actions: list[Action]) -> None:
        """What the output channel has to say."""
        for each in produced:
            if isinstance(each, ToAll):
                if isinstance(each.message, Heartbeat):
                    self._beat(each.message.seq, now, actions)
                else:
                    actions.append(self._event(each.message, None))
            elif isinstance(each, Dropped):
                self._greeted.pop(each.consumer, None)
                self._writers.detach(each.consumer)
                actions.append(Report(CloneDropped(self.name, each.consumer, each.reason)))
            elif isinstance(each, ToConsumer):
                message = each.message
                if isinstance(message, Event):
                    actions.append(self._event(message, each.consumer.endpoint))
                elif isinstance(message, Handshake):
                    self._greet(each.consumer, message, now, actions)
                else:
                    self._send(each.consumer, cmd.RetransmitFailed(message.seq), actions)

    def _event(self, event: Event[Any], receiver: bytes | None) -> Send:
        return Send(self._topic, receiver, cmd.encode_message(event.seq, self.entity, NOBODY, event.payload))

    def _beat(self, seq: int, now: float, actions: list[Action]) -> None:
        """Clones of the original only listen to heartbeats that are addressed to them."""
        self._beat_at = now + self._heartbeat_s
        body = cmd.encode_command(cmd.Keepalive(seq))
        actions.append(Send(self._topic, None, cmd.encode_message(0, self.entity, NOBODY, body)))
        for clone in self._output.consumers:
            if not clone.is_chappe:
                actions.append(Send(self._topic, clone.endpoint, cmd.encode_message(0, self.entity, clone, body)))

    def _greet(self, clone: Entity, handshake: Handshake, now: float, actions: list[Action]) -> None:
        """Send a clone everything, as far as it is durable."""
        pairs = self.engine.snapshot(self._commits.changes())
        if len(pairs) > STORE_SNAPSHOT_BYTES_MAX:
            self._output.drop(clone, "")
            reason = f"the store has {len(pairs):,} bytes, more than the {STORE_SNAPSHOT_BYTES_MAX:,} a clone can take"
            actions.append(Report(CloneDropped(self.name, clone, reason)))
            return
        self._greeted[clone] = now
        body = cmd.encode_command(cmd.AckClone(handshake.offset, cmd.ticks(self._heartbeat_s), pairs))
        payload = cmd.encode_message(handshake.offset, self.entity, clone, body)
        actions.append(Send(self._topic, clone.endpoint, payload))

    def _send(self, clone: Entity, command: cmd.Command, actions: list[Action]) -> None:
        payload = cmd.encode_message(0, self.entity, clone, cmd.encode_command(command))
        actions.append(Send(self._topic, clone.endpoint, payload))

    def _check_idle(self, now: float, actions: list[Action]) -> None:
        if not self._waits:
            return
        if self.idle():
            actions += [Resolve(ticket, None) for ticket in self._waits]
            self._waits.clear()
            return
        for ticket in [ticket for ticket, until in self._waits.items() if now >= until]:
            del self._waits[ticket]
            actions.append(Resolve(ticket, TimedOut(f"store {self.name!r} did not become idle in time")))

    def _plan(self, now: float) -> None:
        """When to look again."""
        channels = [each.channel.next_timeout() for each in self._writers.attached.values() if each.channel is not None]
        own = self._output.next_timeout() if self._output.consumers else self._beat_at
        self._tick_at = max(min([own, *channels, *self._waits.values()]), now + CHANNEL_TICK_S)


def _fits(command: cmd.Action) -> bool:
    return entry_fits(getattr(command, "key", None), getattr(command, "value", None))


def _notice(change: Change, command: cmd.Action) -> Notify:
    entry, before = change.entry, change.before
    return Notify(
        change.kind,
        change.key,
        None if entry is None else entry.value,
        None if before is None else before.value,
        getattr(command, "expiry_ns", None),
        command.publisher,
        change.version,
    )
