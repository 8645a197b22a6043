"""Reading topics, live and from the beginning."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, TypeVar

from chappe.api import at_exit
from chappe.api.ages import OnStale, check_age
from chappe.api.faces import Closeable, Seconds, happened, weakly
from chappe.api.identity import log_event, new_address, state_directory
from chappe.api.log.aged import Aged
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.api.log.decoding import Decoding, OnBad
from chappe.api.log.grouping import COMMIT_S, Grouping, Rebalance, group_member
from chappe.api.log.inbox import LOOK_S, ConsumerInbox
from chappe.api.log.sealed import Opening
from chappe.api.times import as_micros
from chappe.data.given import as_index, as_text, pairs, two
from chappe.data.topic import Filter, as_topic
from chappe.defaults import GROUP_SESSION_S
from chappe.errors import Closed, OffsetOutOfRange, TimedOut, UsageError
from chappe.log.batch import Record
from chappe.log.clocks import ClockRead
from chappe.log.consumer import EARLIEST, LAST, LATEST, LogConsumer, Reset
from chappe.log.delivery import Records
from chappe.log.events import (
    ConnectionRefused,
    ForwarderFound,
    GroupMoved,
    OutOfRange,
    PermissionsChanged,
    Stopped,
    TowerFound,
)
from chappe.log.producer import JournalBatch, JournalTrim
from chappe.log.sources import Key
from chappe.log.traffic import Reading, reading_of
from chappe.permissions.rules import CONSUME
from chappe.runtime.driver import SYSTEM_CLOCK
from chappe.runtime.log_seats import Where, consuming
from chappe.security import LogSecurity
from chappe.storage.positions import Positions
from chappe.system import program, time
from chappe.system.forking import own

T = TypeVar("T")
RECHECK_S: Final = 0.25  # how often, while records come, it is looked whether something will never come
ResetLike = Literal["earliest", "latest", "last-value"] | int | datetime


class Consumer(at_exit.Collectable, Closeable):
    """Reads every record of its topics; of each partition in order, without gaps or repeats.

    Several threads may read from it, in loops and by ``poll``: each record goes to one of them, and ``position`` and
    ``commit`` count the records of all.

    Args:
        topics: ``name``, or ``prefix*`` for all topics that start so.
        tower: ``HOST[:PORT]``, several separated by commas. Defaults to the settings, as for every command:
            ``CHAPPE_TOWER``, ``tower`` in ``chappe.toml``, or a tower on this machine.
        listen: Host to listen on; ``*`` for all interfaces. Defaults to the settings.
        forwarders: ``HOST[:PORT]`` of each, in a list or separated by commas. They replace the tower, and no member has
            to reach this program. Defaults to the settings, if ``tower`` is not given.
        reset: Where to start in partitions without a position: ``earliest``, which misses nothing; ``latest``,
            which begins once stores were found (``wait_ready``); ``last-value``, the newest record of each key, and
            then all further ones; an offset; or a datetime with a time zone, which is the first record of each
            partition that is not older, or the end where all are.
            Positions that retention removed restart there too, with an event.
        group: Members of a group share partitions: each partition is read by one of them, from the position that the
            group has at stores, or from ``reset`` on. Partitions come and go when the program asks for more records.
        member: A lasting name of this member. After a restart within ``session_s`` it has its partitions again, and no
            others move meanwhile.
        session_s: A member of which stores hear nothing for so long is dead, and others read on; 0.5 to 300.
        auto_commit: Whether a member commits by itself, once a second and when partitions go: all that it had been
            handed when it asked for more. What its program was doing when it died is done again by another.
        on_rebalance: Called with a ``Rebalance`` in the thread that asks for records, before it gets any.
        identity: A name whose committed positions survive restarts (``commit``).
        directory: Where identities are kept; the user's data directory by default.
        max_age_s: The greatest age of a record when you get it, by its timestamp and its producer's clock, which is
            asked for; None: no limit. The loop over a batch checks each record when its turn comes.
        on_stale: The policy for an older record: the consumer stops with TooSlow (``end``), at the position of that
            record; or such records are left out, counted in ``too_old``, with an event (``drop``).
        name: Its name for people, in lists and pictures: a label, 1 to 64 printable characters, which proves nothing.
            The program and its host by default, such as ``sensor.py@web1``.
        stored: Read only records that stores have on their disks: nothing that you got is lost if its
            producer dies and the machines of stores lose power. They come a sync and a read later than otherwise.
            Without a store nothing comes.
        min_acks: With ``stored``, how many stores must have a record. Stores that are there now are counted, each once;
            while too few are, or too few have the next record, nothing comes, and ``RecordsUnconfirmed`` says so. A
            store counts for records that it has let go of. More than one cannot begin with ``last-value``.
        security: ``Keys("DIRECTORY/NAME")``, ``"plain"``, or None for the identity that ``CHAPPE_IDENTITY``
            or ``chappe.toml`` names, if any.
        codec: Decodes the values of records in loops and in ``iterate``; named as for ``Producer``. Batches have bytes.
        on_bad: The policy for a record that is no such value: the loop raises BadValue, and the next one goes on after
            it (``raise``); or it is left out, counted in ``bad``, with an event now and then (``skip``).
        dead_letter: A topic for such records instead: each is stored there, with headers ``chappe.error``,
            ``chappe.topic``, ``chappe.partition`` and ``chappe.offset`` beside its own, before the next one comes.
            After a crash it may be there twice.

    Raises:
        IdentityInUse: Another consumer uses the identity.
        StorageFull, StorageError: Its directory cannot be used.
        NotPermitted: The permissions do not let this identity consume all of these topics.
        UsageError: An argument is out of its range.
    """

    def __init__(
        self,
        *topics: str,
        tower: str | None = None,
        listen: str | None = None,
        forwarders: str | Sequence[str] | None = None,
        reset: ResetLike = "earliest",
        identity: str | None = None,
        directory: str | Path | None = None,
        max_age_s: float | None = None,
        on_stale: OnStale = "end",
        name: str | None = None,
        stored: bool = False,
        min_acks: int = 1,
        group: str | None = None,
        member: str | None = None,
        session_s: float = GROUP_SESSION_S,
        auto_commit: bool = True,
        on_rebalance: Callable[[Rebalance], None] | None = None,
        security: LogSecurity = None,
        codec: object = None,
        on_bad: OnBad = "raise",
        dead_letter: str | None = None,
    ) -> None:
        own(self)
        self._name = program.label(name)
        reach = {"tower": tower, "listen": listen, "forwarders": forwarders, "security": security}
        check_age(max_age_s, on_stale)
        where = Where.parse(tower, listen, forwarders, security)
        self._where, self._tower_at = where, math.inf
        filters = _filters(topics, "Consumer")
        for wanted in filters:
            where.require(CONSUME, wanted.name, prefix=wanted.prefix)
        self.decoding = None if codec is None else Decoding(codec, on_bad, dead_letter, reach)
        _check_dead_letter(self.decoding, on_bad, dead_letter, where, filters)
        beginning = _reset(reset)
        counted = _counted(stored, min_acks, beginning)
        address = new_address()
        crew = group_member(
            group, member, session_s, identity, on_rebalance,
            address=address, name=self._name, filters=filters, last=beginning is LAST,
        )  # fmt: skip
        self._positions: Positions | None = None
        if identity is not None:
            self._positions = Positions(state_directory("consumers", identity, directory))
        self._core = LogConsumer(
            address, filters, beginning, {} if self._positions is None else dict(self._positions.committed),
            clock=SYSTEM_CLOCK, ages=max_age_s is not None, min_acks=counted, group=crew,
        )  # fmt: skip
        self._ahead_of_all = beginning is LAST
        self._events: deque[object] = deque(maxlen=1000)
        self._error: OffsetOutOfRange | None = None
        self._forbidden: UsageError | None = None
        self._refused: ConnectionRefused | None = None
        self._aged = None if max_age_s is None else Aged(max_age_s, on_stale, weakly(self._report))
        self._opening = Opening(where.keys, weakly(self._report))
        self.on_ready: Callable[[], None] | None = None  # called from the node's thread when records came
        try:
            self._node = consuming(self._core.address, new_address(), where)
        except BaseException:
            self._release_identity()
            raise
        self.lock = self._lock = self._node.lock
        self._inbox = ConsumerInbox(self._core, self._node, self._opening, self._aged)
        self._grouping: Grouping | None = None
        if crew is not None:
            self._grouping = Grouping(
                self._core, self._node, self._inbox, auto_commit=auto_commit, on_rebalance=on_rebalance
            )
        with self._lock:
            self._node.start(
                self._core,
                _ConsumerSeat(self),
                name=self._name,
                reading=None
                if self._positions is None
                else partial(_reading, self._core, identity or "", self._positions),
            )
        at_exit.opened(self)

    # -- reading --------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = 0.0) -> ConsumedBatch | None:
        """Return the next batch, or None after ``timeout`` seconds (None: wait for ever; Ctrl-C ends the wait).

        Raises:
            OffsetOutOfRange: An offset given to ``seek`` or ``reset`` is not there.
            NotPermitted: The permissions do not let this identity consume its topics any more.
            TooSlow: A record was older than ``max_age_s``; so says every further call.
            Fenced: Another program goes on as this member of the group; so says every further call.
            Sealed: A topic is sealed for a group, and we have no key of it: raised once, its records are left out from
                then on; if we become a member, records that were sealed for us meanwhile are read again. Or the key
                has not come for 30 s: raised again while that lasts, nothing is left out.
            Closed: The consumer was closed.
            MemberStopped: It met a defect; so says every further call.
        """
        return self._wait_for(self.take, timeout)

    def take(self) -> ConsumedBatch | None:
        """Return a batch that is there already, or None; never waits. Raises as ``poll`` does."""
        self.turn()
        with self._lock:
            self._check()
            return self._inbox.take() if self._grouping is None or self._grouping.holds else None

    def take_records(self) -> Iterator[Record] | None:
        """Return the iterator that a loop continues with, or None; never waits. Raises as ``poll`` does."""
        self.turn()
        with self._lock:
            self._check()
            return self._inbox.take_records() if self._grouping is None or self._grouping.holds else None

    def turn(self) -> bool:
        """Between two records of a loop: True if the rest is not to be handed on before partitions have moved.

        Of a member of a group it commits, and lets partitions come and go; of others it does nothing.
        """
        grouping = self._grouping
        if grouping is None or not grouping.due:
            return False
        return grouping.turn() or not grouping.holds

    def _wait_for(self, take: Callable[[], T | None], timeout: Seconds) -> T | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (found := take()) is None:
            left = 0.5 if deadline is None else min(0.5, deadline - time.monotonic())
            self._node.pump(max(left, 0.0), self._has_come)
            if left <= 0:
                return take()
        return found

    @property
    def name(self) -> str:
        """Its name for people, in lists and pictures."""
        return self._name

    @property
    def look_s(self) -> float:
        """How often ``take`` is to be called though no event says so: for keys that come, and to commit in a group."""
        if self._inbox.waits_for_keys:
            return LOOK_S
        return math.inf if self._grouping is None else COMMIT_S

    def batches(self, timeout: float | None = None) -> Iterator[ConsumedBatch]:
        """Yield batches; end when none came for ``timeout`` seconds (None: never).

        The end of the loop does not mean that there are no more: ``batches_to_end`` reads all.
        """
        while (found := self.poll(timeout)) is not None:
            yield found

    def to_end(self, timeout: float | None = 10.0) -> Iterator[Record]:
        """Yield every record up to the end of the topics when the loop begins; then end, also on a live topic.

        The end is asked of the stores: it is behind every record that a store that is found had acknowledged before, or
        that producers have announced. Without a store it is the end of the records that producers keep. Records that
        come while the loop runs may be among those you get. A topic without partitions is at its end. The next loop
        goes on from there.

        Args:
            timeout: Seconds until the end is known, and for each batch after that; None waits for ever. A new consumer
                needs about 0.3 s to meet all stores, or 1.3 s to know that there is none.

        Raises:
            TimedOut: No tower answers, or no store and no producer was heard; or a record before the end did not come.
            OffsetOutOfRange: As ``poll``.
        """
        for batch in self.batches_to_end(timeout):
            yield from self.iterate(batch)

    def batches_to_end(self, timeout: float | None = 10.0) -> Iterator[ConsumedBatch]:
        """Yield the batches of ``to_end``; the last one of a partition may go beyond the end."""
        for step in self.steps_to_end(timeout):
            if isinstance(step, ConsumedBatch):
                yield step
            else:
                self._node.pump(LOOK_S, step)

    def steps_to_end(self, timeout: Seconds) -> Iterator[ConsumedBatch | Callable[[], bool]]:
        """Yield the steps of ``batches_to_end``: a batch, or a condition to wait for, for ``LOOK_S`` at most."""
        patience_s = math.inf if timeout is None else timeout
        since = time.monotonic()
        with self._lock:
            self._check()
            self._node.do(self._core.seek_end(time.monotonic()))
        while (left := self._unread(since)) is None:
            if time.monotonic() >= since + patience_s:
                raise TimedOut(self._missing(f"within {timeout:g} s"))
            yield lambda: self._end_known(since)
        deadline = math.inf  # begins with a wait: the time that a program takes for a batch does not count
        recheck_at = since + RECHECK_S
        while left:
            now = time.monotonic()
            batch = self.take()
            if batch is not None:
                deadline = math.inf
                if left.get((batch.topic, batch.partition), math.inf) <= batch.next:
                    del left[batch.topic, batch.partition]
            if batch is None or now >= recheck_at:
                recheck_at = now + RECHECK_S
                left = self._still_unread(left)
            if batch is not None:
                yield batch
            elif left:
                deadline = min(deadline, now + patience_s)
                if now >= deadline:
                    raise TimedOut(_not_come(left, patience_s, self._core.min_acks))
                yield self._has_come
        while self._core.unsure and time.monotonic() < since + patience_s:
            yield lambda: not self._core.unsure

    def __iter__(self) -> Iterator[Record]:
        """Iterate over records forever. A new loop continues where the last one was left.

        ``seek`` inside a loop sets its next record; records that ``poll`` takes there are not in the loop.
        """
        while True:
            records = self._wait_for(self.take_records, None)
            assert records is not None
            if self.decoding is not None:
                records = self.decoding.records(records, self)
            if self._grouping is None:
                yield from records
                continue
            for record in records:
                yield record
                if self.turn():
                    break

    def iterate(self, batch: ConsumedBatch) -> Iterator[Record]:
        """Yield the records of a batch; meanwhile ``position`` and ``commit`` count one record after the other.

        The next ``poll`` returns the rest if the loop ends early.

        Raises:
            BadValue: The codec does not decode a value; a new call with ``poll``'s next batch goes on after it.
            SchemasUnavailable: The codec does not get a schema; the record comes again.
            TimedOut: No store has a dead letter after 30 s; the record comes again.
        """
        records = self._inbox.iterate(batch)
        return records if self.decoding is None else self.decoding.records(records, self)

    def undecoded(self, batch: ConsumedBatch) -> Iterator[Record]:
        """Yield the records of a batch as ``iterate`` does, with bytes."""
        return self._inbox.iterate(batch)

    def decoded(self, record: Record) -> Record | None:
        """Return a record of a batch with its value decoded; None if it is left out. Raises as ``iterate`` does."""
        return record if self.decoding is None else self.decoding.one(record, self)

    # -- topics -----------------------------------------------------------------------------------------------

    def subscribe(self, *topics: str) -> None:
        """Read further topics, named as in the constructor; one that is subscribed already stays as it is.

        A partition that was read before goes on at its position, also at one committed by an earlier life of the
        identity; others begin where ``reset`` says. With ``reset="latest"`` wait for ``wait_ready`` before you send
        records that must be delivered.

        Raises:
            NotPermitted: The permissions do not let this identity consume all of these topics; none is subscribed.
            Closed: The consumer was closed.
        """
        wanted = _filters(topics, "subscribe")
        for each in wanted:
            self._where.require(CONSUME, each.name, prefix=each.prefix)
        if self.decoding is not None:
            self.decoding.check(self._where, wanted)
        with self._lock:
            self._check()
            for each in wanted:
                self._node.subscribe(each)

    def unsubscribe(self, *topics: str) -> None:
        """Stop reading topics; ``position`` and ``commit`` keep their positions.

        Topics are named as they were subscribed: ``unsubscribe("a*")`` takes back ``"a*"`` and leaves ``"ab"`` if that
        was subscribed itself. No call that begins after this one returns records of a topic that nothing else
        selects; a loop over records in this or another thread goes on with the other topics, and its remaining records
        come again after ``subscribe``. A consumer may be left without topics: reads wait until there is one.

        Raises:
            UsageError: One of them is not subscribed; then all stay subscribed.
            Closed: The consumer was closed.
        """
        wanted = _filters(topics, "unsubscribe")
        with self._lock:
            self._check()
            for each in wanted:
                if each not in self._core.filters:
                    raise UsageError(f"{str(each)!r} is not subscribed; subscribed are: {self._shown_topics()}")
            for each in wanted:
                self._inbox.unsubscribe(each)

    def _shown_topics(self) -> str:
        return ", ".join(repr(str(each)) for each in self._core.filters) or "no topics"

    # -- positions --------------------------------------------------------------------------------------------

    def position(self) -> dict[Key, int]:
        """Return the offset of the next record you get, by (topic, partition)."""
        self._node.check()
        with self._lock:
            found = self._inbox.position(self._ahead_of_all)
            return found if self._grouping is None else self._grouping.position(found)

    def group_position(self) -> dict[Key, int]:
        """Return how far the whole group is: ``position``, and in partitions of other members what they have committed.

        Raises UsageError: The consumer is of no group.
        """
        if self._grouping is None:
            raise UsageError("only a member of a group knows how far others are: Consumer(..., group='name')")
        position = self.position()
        with self._lock:
            return self._grouping.member.positions() | position

    def heads(self) -> dict[Key, int]:
        """Return the offset after the last record known to exist, by (topic, partition)."""
        self._node.check()
        with self._lock:
            return self._core.heads()

    def lag(self) -> dict[Key, int]:
        """Return the number of records you have not got yet, by (topic, partition)."""
        positions = self.position()
        return {key: max(0, head - positions.get(key, 0)) for key, head in self.heads().items()}

    def seek(self, topic: str, partition: str, offset: int) -> None:
        """Go on at ``offset`` in one partition. If it is not there the next ``poll`` raises OffsetOutOfRange."""
        place = as_topic(topic), as_text(partition, "a partition"), as_index(offset, "an offset")
        with self._lock:
            self._check()
            self._inbox.seek(*place)

    def at_end(self) -> bool:
        """Return True if you got every record known to exist; False until a store has listed its records."""
        self._node.check()
        with self._lock:
            return not self._inbox.queue and self._core.synced and self._core.caught_up

    def wait_ready(self, timeout: float | None = 10.0) -> None:
        """Wait until every record sent from now on will be delivered, also with ``reset="latest"``.

        Then a tower or forwarder hears us and the stores have listed their records: all others are
        new. Where no store is found, it takes 1.3 s to meet every producer, and only records that a producer still
        keeps can be delivered; one that is met later is read from the first record that it keeps.

        Raises:
            TimedOut: No tower answers, or a store does not list its records.
        """

        def ready() -> bool:
            if not self.tower or not self._core.ready(self._tower_at, time.monotonic()):
                return False
            return self._grouping is None or self._grouping.known

        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = None if timeout is None else max(deadline - time.monotonic(), 0.0)
            self._node.wait_until(self._check, ready, self._missing, left)
            self.turn()
            if self._grouping is None or self._grouping.member.settled:
                return

    @property
    def synced(self) -> bool:
        """True once a store was found and has listed its partitions."""
        with self._lock:
            return self._core.synced

    @property
    def tower(self) -> bool:
        """True while a tower or a forwarder hears us."""
        return self._node.discovery.tower

    @property
    def connected(self) -> int:
        """The number of other nodes that it knows."""
        return self._node.discovery.peers

    def commit(self, positions: Mapping[Key, int] | None = None, timeout: float | None = 10.0) -> None:
        """Keep the present positions: a consumer of the same identity, or the group, goes on from them.

        An identity has them on this machine's disk when this returns; a group at every store that answers, and at one
        at least.

        Args:
            positions: Others, by (topic, partition): up to where you have processed the records. Those of further
                partitions stay as they were committed.

            timeout: Seconds for stores to have them, of a group; None waits for ever.

        Raises:
            UsageError: The consumer has no identity, and is of no group.
            Fenced: A partition was read by another member of the group before stores had its position.
            TimedOut: No store has said that it has them.
            StorageFull, StorageError: The disk refused; the former commit stays.
        """
        if self._node.closed:
            raise Closed("the consumer was closed: commit before that")
        if self._grouping is None and self._positions is None:
            raise UsageError("only a consumer with an identity or of a group can commit: Consumer(..., group='name')")
        wanted = self.position() if positions is None else _positions(positions)
        if self._grouping is not None:
            self._grouping.commit(wanted, self._check, self._missing, timeout)
            return
        assert self._positions is not None
        with self._lock:
            beyond = self._core.beyond.items()
            wanted = {key: at for key, at in wanted.items() if (key, at) not in beyond}
        self._positions.commit(wanted)

    @property
    def too_old(self) -> int:
        """The number of records that were left out because they were older than ``max_age_s``."""
        return 0 if self._aged is None else self._aged.stale.dropped

    @property
    def bad(self) -> int:
        """The number of records that were left out because the codec could not decode them."""
        return 0 if self.decoding is None else self.decoding.bad

    @property
    def refused(self) -> int:
        """The number of records of sealed topics that could not be opened; events say why."""
        return self._opening.refused

    def events(self) -> list[object]:
        """Return the events since the last call: lost records, lost towers and the like (``chappe.log.events``)."""
        with self._lock:
            self._opening.tell()
            if self._aged is not None:
                self._aged.stale.tell()
        return happened(self._events, self._node.check)

    def close(self) -> None:
        """Leave. A member of a group commits all that it was handed, unless it is to commit by its own calls only."""
        self._leave(done=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(done=kind is None)  # else the program is not done with what it has

    def _leave(self, *, done: bool) -> None:
        at_exit.closed(self)
        if self._grouping is not None and not self._node.closed and self._node.halted is None:
            self._grouping.leave(done=done)
        self._node.close()
        if self.decoding is not None:
            self.decoding.close()
        self._release_identity()
        if self.on_ready is not None:
            self.on_ready()  # makes a pending read raise Closed

    def __repr__(self) -> str:
        state = (
            "closed"
            if self._node.closed
            else f"{self.connected} members known"
            if self.tower
            else f"no {self._where.kind}"
        )
        return f"<Consumer of {self._shown_topics()} at {self._where}, {state}>"

    # -- of the end -------------------------------------------------------------------------------------------

    def _has_come(self) -> bool:
        """True if ``take`` has something to return, or to raise."""
        if self._grouping is not None and self._grouping.wakes:
            return True
        ready = self._inbox.ready and (self._grouping is None or self._grouping.holds)
        return ready or self._error is not None

    def _unread(self, since: float) -> dict[Key, int] | None:
        """Return the ends of partitions not read so far; None until their ends at ``since`` are known."""
        self.turn()
        with self._lock:
            self._check()
            end = self._core.end(since, time.monotonic())
            position = {} if end is None else self.position()
            return None if end is None else {key: each for key, each in end.items() if position.get(key, 0) < each}

    def _end_known(self, since: float) -> bool:
        known = self._core.end_known(since, time.monotonic())
        return known and (self._grouping is None or self._grouping.known)

    def _still_unread(self, left: dict[Key, int]) -> dict[Key, int]:
        with self._lock:
            queued = {(each.topic, each.partition) for each in self._inbox.queue}
            lacking = self._core.lacking(left)
            return {key: end for key, end in left.items() if key in lacking or key in queued}

    def _missing(self, when: str) -> str:
        """Say why the contents of the topics are not known."""
        if not self.tower:
            return self._where.nobody(when, self._refused)
        if self._core.stores:
            return f"not all of the {self._core.stores} stores that were found have said {when} what they hold"
        return (
            f"{self._where.named} knows no store, and no producer of {self._shown_topics()} was heard {when}; "
            f"start one with: {self._where.command}"
        )

    # -- inside -------------------------------------------------------------------------------------------------

    def _release_identity(self) -> None:
        if self._positions is not None:
            self._positions.close()

    def _deliver(self, messages: Records | ClockRead) -> None:
        if isinstance(messages, ClockRead):
            self._inbox.judged()
        elif self._inbox.ended is None:
            self._inbox.deliver(messages)
        if self.on_ready is not None:
            self.on_ready()

    def _check(self) -> None:
        if self._node.closed:
            raise Closed("the consumer was closed")
        self._node.check()
        if self._inbox.ended is not None:
            raise self._inbox.ended[0].with_traceback(None)
        if self._forbidden is not None:
            raise self._forbidden.with_traceback(None)
        if self._grouping is not None:
            self._grouping.check()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _look_at_permissions(self) -> None:
        """Make every call raise NotPermitted while we may not read our topics."""
        self._forbidden = None
        try:
            for wanted in self._core.filters:
                self._where.require(CONSUME, wanted.name, prefix=wanted.prefix)
        except UsageError as error:  # or we are nobody any more
            self._forbidden = error
            if self.on_ready is not None:
                self.on_ready()

    def report(self, event: object) -> None:
        """Add to ``events``, and log it."""
        with self._lock:
            self._report(event)

    def _report(self, event: object) -> None:
        if isinstance(event, GroupMoved):
            if self.on_ready is not None:
                self.on_ready()
            return
        log_event(event)
        self._events.append(event)
        if isinstance(event, TowerFound | ForwarderFound):
            self._tower_at = time.monotonic()
        if isinstance(event, ConnectionRefused):
            self._refused = event
        if isinstance(event, PermissionsChanged):
            self._look_at_permissions()
        if isinstance(event, Stopped) and self.on_ready is not None:
            self.on_ready()  # whoever waits is told by the next call
        if isinstance(event, OutOfRange) and event.strict:
            self._error = OffsetOutOfRange(str(event))
            self._inbox.gone_on(event.topic, event.partition)
            if self.on_ready is not None:
                self.on_ready()


class _ConsumerSeat:
    """A consumer as its node knows it, while it is in use."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = weakref.ref(consumer)

    def report(self, event: object) -> None:
        consumer = self._consumer()
        if consumer is not None:
            consumer._report(event)

    def deliver(self, messages: Records | ClockRead) -> None:
        consumer = self._consumer()
        if consumer is not None:
            consumer._deliver(messages)

    def carry_out(self, job: JournalBatch | JournalTrim) -> None:
        """Raise: a consumer has no journal."""
        raise NotImplementedError


def _filters(topics: tuple[str, ...], call: str) -> list[Filter]:
    """Parse a user's topics. Raises UsageError."""
    if not topics:
        raise UsageError(f"at least one topic is needed: {call}('metrics') or {call}('metrics.*')")
    for each in topics:
        if not isinstance(each, str):
            raise UsageError(f"topics are given one by one: {call}('a', 'b'), or {call}(*names); not {each!r}")
    return list(dict.fromkeys(Filter.parse(each) for each in topics))


def _check_dead_letter(
    decoding: Decoding | None, on_bad: OnBad, dead_letter: str | None, where: Where, filters: Sequence[Filter]
) -> None:
    if decoding is not None:
        decoding.check(where, filters)
    elif dead_letter is not None or on_bad != "raise":
        raise UsageError("on_bad and dead_letter are for records that a codec cannot decode: give codec")


def _positions(given: object) -> dict[Key, int]:
    """Check a user's positions. Raises UsageError."""
    found: dict[Key, int] = {}
    for each in pairs(given, "positions"):
        place, offset = two(each, "positions are offsets by (topic, partition)")
        topic, partition = two(place, "positions are offsets by (topic, partition)")
        found[as_topic(topic), as_text(partition, "a partition")] = as_index(offset, "a position")
    return found


def _not_come(left: dict[Key, int], patience_s: float, min_acks: int) -> str:
    (topic, partition), end = next(iter(left.items()))
    what = "a partition" if len(left) == 1 else f"{len(left)} partitions"
    counted = f", or {min_acks} stores do not have all of it yet" if min_acks > 1 else ""
    return (
        f"{what} did not come to the end: for {patience_s:g} s nothing came of partition {partition} of topic "
        f"{topic!r}, which ends at offset {end - 1}{counted}; who may wait longer gives a timeout, or None"
    )


def _counted(stored: bool, min_acks: int, reset: Reset) -> int:
    """Return how many stores must have a record before it comes; 0 if it may come from its producer, too."""
    if isinstance(min_acks, bool) or not isinstance(min_acks, int) or min_acks < 1:
        raise UsageError(f"min_acks of a consumer is a number of stores, at least 1, not {min_acks!r}")
    if min_acks > 1 and not stored:
        raise UsageError("min_acks counts stores for a consumer of what is stored alone: add stored=True, or --stored")
    if min_acks > 1 and reset is LAST:
        raise UsageError("last-value begins with what one store has: take min_acks=1, or another reset")
    return min_acks if stored else 0


def _reset(reset: ResetLike) -> Reset:
    if reset == "earliest":
        return EARLIEST
    if reset == "latest":
        return LATEST
    if reset == "last-value":
        return LAST
    if isinstance(reset, datetime):
        return Reset("time", as_micros(reset))
    if isinstance(reset, int) and not isinstance(reset, bool) and reset >= 0:
        return Reset("offset", reset)
    raise UsageError(f"reset is 'earliest', 'latest', 'last-value', an offset or a datetime, not {reset!r}")


def _reading(core: LogConsumer, identity: str, positions: Positions, most: int) -> Reading:
    """Report the committed positions of a consumer, in at most ``most`` partitions; the lock is held."""
    return reading_of(core.address, identity, positions.kept, positions.committed, core.heads(), most)
