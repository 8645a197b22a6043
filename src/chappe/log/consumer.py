"""A consumer: every record of the wanted topics, each partition in order, without gaps or repeats.

Live batches come from producers. While a gap is filled, they are held back up to a bound; beyond it they are
dropped and read later like everything else (``delivery``). What was missed is read from stores, or fetched from
producers where no store has it (``gap``). ``beginnings`` decides where a partition starts.

Source: Dafka's consumer. Departures (numbers of its known faults in docs/reference/protocol.md): requests are
repeated until answered, also past the first 100,000; batches that came early are kept; ``latest`` starts after
the head, not at it; original producers are never asked for more than they have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, KeysView, Mapping, Sequence
from typing import Final

from chappe.core import Clock, Effect, Publish, Report, Subscribe
from chappe.data.topic import Filter, decode_topic, encode_topic
from chappe.defaults import HEAD_IDLE_S
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, StampedHere, encode_batch
from chappe.log.beginnings import Beginnings
from chappe.log.clocks import ClockEstimate, Clocks
from chappe.log.delivery import COUNTED, EARLIEST, LAST, LATEST, Delivery, Reset
from chappe.log.events import PartitionsLeftOut
from chappe.log.gap import UNDECIDED, GapState, Load, PartitionGap, check_single
from chappe.log.groups.member import NOWHERE, TICKETS, GroupMember
from chappe.log.last_values import LastTopics
from chappe.log.messages import (
    BatchMessage,
    ClockTold,
    ConsumerHello,
    GetHeads,
    Head,
    Message,
    OnDisk,
    RecordMessage,
    StoreHello,
    StoreInfo,
    address_in,
)
from chappe.log.queries import Answer, HeadsAnswer, SeekAnswer
from chappe.log.sources import Key, KnownStore, Question, RangeSet, Sources
from chappe.log.storage import PartitionInfo
from chappe.log.wishes import ALONE_S, MEET_S, Absent, Beyond

__all__ = ["EARLIEST", "LAST", "LATEST", "LogConsumer", "Reset"]

MATCHING_MAX: Final = 10_000  # topics remembered
LIVE_S: Final = 2 * HEAD_IDLE_S  # a producer speaks at least this often


class LogConsumer:
    """The state of one consumer.

    Args:
        reset: Where to start in partitions without a position.
        positions: Next offsets from an earlier life, by (topic, partition).
        ages: Whether it is asked how old records are (``judge``).
        min_acks: How many stores must have a record on disk before it is delivered. With 1 or more records are read
            from stores alone: messages of producers only announce them, and messages of stores that they can be read.
        group: It reads only partitions that are its own in this group, from positions that the group has.
    """

    def __init__(
        self,
        address: str,
        filters: Iterable[Filter],
        reset: Reset,
        positions: dict[Key, int] | None = None,
        limits: LogLimits = LOG_LIMITS,
        *,
        clock: Clock,
        ages: bool = False,
        min_acks: int = 0,
        group: GroupMember | None = None,
    ) -> None:
        self.group = group
        self._limits = limits
        self.min_acks = min_acks
        self._clock = clock
        self.address = address
        self.clocks = Clocks(address, clock) if ages else None
        self._raw = encode_topic(address)
        self._filters = list(filters)
        self._matching: dict[str, bool] = {}  # what ``_wanted`` found: it is asked for every batch
        self._reset = reset
        self._sources = Sources(limits.reads_max, ever=bool(positions), limits=limits)
        self._delivery = Delivery(
            address, reset, self._sources, positions or {}, limits, clock=clock, min_acks=min_acks
        )
        self._gaps = self._delivery.gaps
        self._beyond = Beyond(positions or {}, self._delivery, self._sources)
        self._last = LastTopics(self._sources)
        self._beginnings = Beginnings(reset, self._filters, self._delivery, self._sources, self._last, group)
        self._heard_at = math.inf  # when anything of a wanted partition was heard first
        self._absent = Absent(self._delivery, self._sources)
        self._subscribed_at = -math.inf
        self._settle_at = 0.0

    def start(self, now: float) -> list[Effect]:
        # Batches first: who asks for single records and not for batches seems an original.
        actions: list[Effect] = [Subscribe(id_ + self._raw) for id_ in (b"S", b"D", b"E", b"L")]
        if self.clocks is not None:
            actions.append(Subscribe(b"C" + self._raw))
        actions.append(Subscribe(b"I"))
        for each in self._filters:
            actions += self._subscribe(each)
        return actions

    def subscribe(self, wanted: Filter, now: float) -> list[Effect]:
        """Want further topics; each partition goes on at its position, if it has one."""
        if wanted in self._filters:
            return []
        self._filters.append(wanted)
        self._matching.clear()
        if self.group is not None:
            self.group.want(self._filters, now)
        self._subscribed_at = now
        self._sources.poll_soon(now)
        return [*self._subscribe(wanted), *self.handle_timeout(now)]

    def unsubscribe(self, wanted: Filter, now: float) -> list[Effect]:
        """Want these topics no longer; positions are kept."""
        if wanted not in self._filters:
            return []
        self._filters.remove(wanted)
        self._matching.clear()
        if self.group is not None:
            self.group.want(self._filters, now)
        self._beginnings.ready.discard(wanted)
        if not wanted.prefix:
            self._absent.forget(wanted.name)
        self._sources.leave(wanted, self.wants)
        self._last.leave(self.wants)
        actions = self._beginnings.begin(now)  # where the newest records that came end
        self._delivery.leave(self.wants)
        if any(each.name == wanted.name for each in self._filters):
            return actions  # ``a`` and ``a*`` are one subscription
        raw = encode_topic(wanted.name)
        return [*actions, *(Subscribe(id_ + raw, False) for id_ in reversed(self._kinds))]

    def seek(self, topic: str, partition: str, offset: int, now: float, *, strict: bool = True) -> list[Effect]:
        """Go on at ``offset``; if it is out of range an ``OutOfRange`` event follows.

        If not ``strict``, go on behind records that nobody has any more, and report these.
        """
        key = (topic, partition)
        if not self.wants(topic):
            self._delivery.keep_position(key, offset)
            return []
        self._delivery.go_to(key, offset, strict=strict)
        return self._gaps.look(now)

    def taken(self, size: int, now: float) -> list[Effect]:
        delivery = self._delivery
        paused = delivery.queued_bytes >= self._limits.consumer_queue_bytes
        delivery.queued_bytes -= size
        return self._gaps.look(now) if paused else []

    def judge(
        self, key: Key, batch: Batch, arrived: float, max_age_s: float, now: float
    ) -> tuple[ClockEstimate | None, list[Effect]]:
        """Return the clock that tells how old records are; None while it is asked for, until ``ClockRead``."""
        assert self.clocks is not None
        if isinstance(batch, StampedHere):
            return self.clocks.own(now), []
        span = batch.timestamp_min, batch.timestamp_max
        part = self._delivery.partitions.get(key)
        live = part is not None and part.gap.heard_at > now - LIVE_S
        stores = len(self._sources.stores)
        return self.clocks.judge(key[1], span, arrived, max_age_s, live=live, stores=stores, now=now)

    def clock(self, partition: str, batch: Batch, now: float) -> ClockEstimate:
        """Return the clock that tells how old records are, without asking for it."""
        assert self.clocks is not None
        here = isinstance(batch, StampedHere)
        return self.clocks.own(now) if here else self.clocks.clock(partition, now)

    @property
    def paused(self) -> bool:
        return self._delivery.paused

    @property
    def filters(self) -> list[Filter]:
        return list(self._filters)

    def wants(self, topic: str) -> bool:
        found = self._matching.get(topic)
        if found is None:
            if len(self._matching) >= MATCHING_MAX:
                self._matching.clear()
            found = self._matching[topic] = any(each.matches(topic) for each in self._filters)
        return found

    @property
    def duplicates(self) -> int:
        return self._delivery.duplicates

    def positions(self) -> dict[Key, int]:
        """The next offset to be delivered, of every partition that has one."""
        known = {key: part.gap.next for key, part in self._delivery.partitions.items() if part.gap.next != UNDECIDED}
        return {**self._delivery.settled, **known}

    def take_over(self, positions: Mapping[Key, int], now: float) -> list[Effect]:
        """Read partitions that the group has given us: from its positions, or from where ``reset`` says."""
        for key, offset in positions.items():
            at = self._beginnings.of_group(key, offset)
            if at != NOWHERE:
                self._delivery.keep_position(key, at)
                self._beyond.doubt(key, at)
        self._sources.list_again(now)
        return self.handle_timeout(now)

    def give_up(self, keys: Iterable[Key]) -> None:
        """Read partitions no longer, which others of the group have from now on."""
        gone = set(keys)
        for key in gone:
            self._delivery.drop(key)
            self._beyond.forget(key)
        self._sources.leave_partitions(gone)

    def heads(self) -> dict[Key, int]:
        return self._delivery.heads()

    def seek_end(self, now: float) -> list[Effect]:
        self._sources.poll_soon(now)
        return [*self._ask_heads(self._filters), *self.handle_timeout(now)]

    def end(self, since: float, now: float) -> dict[Key, int] | None:
        """The offset after the last record of every wanted partition, as of ``since``, when ``seek_end`` was called.

        None until that is known. On a log that grows there is no last record, only one that was the last when somebody
        looked. So the end is known when every store that is known has answered what it was asked at ``since`` or
        later: whatever a store acknowledged before that is in front of it. Where there is no store, producers must have
        been heard, and each have had time to tell of what it has.
        """
        if not self.end_known(since, now) or not (self.group is None or self.group.settled):
            return None
        return {key: head for key, head in self.heads().items() if self.wants(key[0])}

    def end_known(self, since: float, now: float) -> bool:
        if self._sources.stores:
            return self._listed_since(since, now)
        return now >= max(since, self._heard_at) + ALONE_S

    def _listed_since(self, since: float, now: float) -> bool:
        """Return True if others than the first store had time to be met, and all were asked at ``since`` or later."""
        return now >= self._sources.met_at + MEET_S and self._sources.listed(self._filters, since)

    def lacking(self, end: dict[Key, int]) -> dict[Key, int]:
        """Return the part of ``end`` still to be delivered, without records that nobody has any more, or ever had."""
        return {key: offset for key, offset in end.items() if self._delivery.lacks(key, offset)}

    def listen_for_news(self) -> None:
        """Leave it to somebody else to ask stores for news, for many consumers: ``take_rested`` tells which stores."""
        self._sources.told = True

    def take_rested(self) -> dict[str, int]:
        """Return stores that are asked for news no more until ``hear_news``, and the version that we know."""
        found, self._sources.rested = self._sources.rested, {}
        return found

    def ready(self, since: float, now: float) -> bool:
        """Return True if records sent from now on will be delivered, also to consumers that start at the latest.

        That is so once the stores have listed their partitions: any other record is new. Where no store is found,
        everybody has ``ALONE_S`` from ``since``, when a tower was there, to be met; a partition that is met later is
        read from the first record that its producer keeps.
        """
        if self._sources.stores:
            return self._listed_since(-math.inf, now)
        if now >= max(since, self._subscribed_at) + ALONE_S:
            self._beginnings.ready.update(self._filters)
        return self._beginnings.ready.issuperset(self._filters)

    @property
    def stores(self) -> int:
        return len(self._sources.stores)

    @property
    def synced(self) -> bool:
        """True if at least one store is known and all known stores have listed their partitions."""
        return self._sources.synced(self._filters)

    @property
    def beyond(self) -> Mapping[Key, int]:
        """Positions of an earlier life beyond the end that all stores list of their partitions."""
        return self._beyond.told

    @property
    def unsure(self) -> bool:
        return self._beyond.unsure

    @property
    def caught_up(self) -> bool:
        return all(part.gap.complete for part in self._delivery.partitions.values())

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        """Tell a store that listens our topics, as the original does."""
        if not on:
            return []
        if prefix[:1] == b"W":
            store = address_in(prefix)
            if store is None or store in self._sources.stores:
                return []
            self._beyond.greeted(store, now)
            return [self._hello(store)]
        return self._ask_heads(self._filters) if prefix == b"G" else []

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        """Take a message; ``flush`` before another input while ``gathers``. Raises ProtocolError: malformed batch."""
        match message:
            case BatchMessage(_, partition, topic, body, direct):
                return self._arrived(topic, partition, Batch.parse(body), now, live=not direct)
            case RecordMessage(_, partition, topic, sequence, content, direct):
                return self._single((topic, partition), sequence, content, now, live=not direct)
            case Head(_, partition, topic, sequence, direct):
                before = self._delivery.hand_on((topic, partition))
                return before + self._heard_head(topic, partition, sequence, now, live=not direct)
        return self._delivery.hand_on_all() + self._told(message, now)

    def flush(self, now: float) -> list[Effect]:
        """Deliver the single records that were gathered; call it when no message is pending."""
        return self._delivery.hand_on_all()

    @property
    def gathers(self) -> bool:
        return bool(self._delivery.singles)

    def _told(self, message: Message, now: float) -> list[Effect]:
        match message:
            case StoreHello(topic, store) if topic == self.address and store not in self._sources.stores:
                self._sources.ever = True
                self._beyond.greeted(store, now)
                return [self._hello(store)]
            case StoreInfo(_, store, store_id, endpoint):
                if self.group is not None:
                    self.group.store_found(store, endpoint, now)
                return self.handle_timeout(now) if self._sources.found(store, endpoint, now, store_id) else []
            case OnDisk(topic) if self.min_acks and self.wants(topic):
                return self._on_disk(message, now)
            case ClockTold() if self.clocks is not None:
                return self.clocks.told(message, now)
        return []

    def _on_disk(self, told: OnDisk, now: float) -> list[Effect]:
        """A store has more of a partition on disk: read it, if enough stores have."""
        stores = [each for each in self._sources.stores.values() if each.store_id == told.address]
        key, next_ = (told.topic, told.partition), told.sequence + 1
        if not stores or told.sequence >= (1 << 63) - 1:
            return []
        store = stores[-1]  # its present life, if there was another one
        part = self._delivery.find(key)
        known = store.heads.get(key)
        if part is None or known is None:  # it says where the partition begins
            self._sources.poll_soon(now, store.address)
            return self.handle_timeout(now)
        gap = part.gap
        if self._counts:
            store.on_disk.setdefault(key, RangeSet()).add(told.first, next_)
            self._counted(gap)
        elif next_ <= known[1]:
            return []
        gap.head = max(gap.head, next_)
        self._gaps.listed(store, key, gap, known[0], max(known[1], next_))
        if gap.next == UNDECIDED or gap.complete:
            return []
        self._gaps.want(key, gap)
        return self._gaps.pursue(key, gap, now)

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        self._beyond.gone(address)
        if self.group is not None:
            self.group.store_gone(address)
        questions = self._sources.gone(address, now)
        if questions is None:
            return []
        return [*self._unanswered(questions, now), *self._gaps.look(now)]

    def handle_answer(
        self, request_id: int, answer: Answer, batches: Sequence[bytes | memoryview], now: float
    ) -> list[Effect]:
        """A store answered. Raises ProtocolError for a malformed batch."""
        if self.group is not None and request_id >= TICKETS:
            return self.group.handle_answer(request_id, answer, now)
        found = self._sources.answered(request_id)
        if found is None:
            return []
        question, store = found
        actions: list[Effect] = []
        if question.last and question.key is not None:
            actions = self._beginnings.last_came(store, question.key[0], answer, batches, now)
            return actions + self._gaps.look(now)
        match answer:
            case HeadsAnswer() if question.filter is not None:
                return self._listed(store, question.filter, answer, question.at, now)
            case HeadsAnswer() if question.key is None:
                return self._absent.tell(info.topic for info in answer.infos())
            case SeekAnswer() if question.key is not None:
                self._gaps.unanswered([question])
                if answer.offset >= 0:
                    actions = self._delivery.begin(question.key, answer.offset, now, self._reset.value)
            case _ if question.key is not None:
                parsed = self._gaps.answered(store, question, answer, batches, now)
                confirmed = self._delivery.confirmed(question.key, parsed, now)
                actions = self._delivery.advance_all(question.key, confirmed)
            case _:
                store.fail(now)
        return actions + self._gaps.look(now)

    def hear_news(self, store: str, now: float) -> list[Effect]:
        """A store has something new, or does not say."""
        if store not in self._sources.stores:
            return []
        self._sources.poll_soon(now, store)
        return self.handle_timeout(now)

    def handle_timeout(self, now: float) -> list[Effect]:
        actions = self._unanswered(self._sources.overdue(now), now)
        if now >= self._last.next_timeout() and not self.paused:
            actions += self._last.look(now) + self._beginnings.begin(now)
        if now >= self._settle_at:
            self._settle_at = now + self._limits.settled_s / 2
            self._delivery.settle(now)
        actions += self._sources.polls(self._filters, now)
        actions += self._beyond.look(self._filters, now)
        if self.group is not None and now >= self.group.next_timeout():
            actions += self.group.handle_timeout(now)
        if self.clocks is not None:
            actions += self.clocks.handle_timeout(now)
        return actions + self._gaps.look(now) + self._absent.look(self._filters, now)

    def next_timeout(self) -> float:
        due = min(self._sources.next_timeout(), self._gaps.next_timeout(), self._absent.next_timeout())
        due = min(due, self._beyond.due, math.inf if self.group is None else self.group.next_timeout())
        if not self.paused:
            due = min(due, self._last.next_timeout())
        if self.clocks is not None:
            due = min(due, self.clocks.next_timeout())
        return min(due, self._settle_at) if self._sources.told and self._delivery.partitions else due

    # -- for people and checkers --------------------------------------------------------------------------

    @property
    def met_stores(self) -> bool:
        return self._sources.ever

    @property
    def store_addresses(self) -> KeysView[str]:
        return self._sources.stores.keys()

    def load(self) -> Load:
        sources, gaps = self._sources, self._gaps
        return Load(gaps.held_bytes, self._delivery.queued_bytes, sources.reads, len(sources.asked), list(gaps.open))

    def story(self, topic: str, partition: str, now: float) -> str:
        """Return one sentence: how far a partition came, and how its missing records are being asked for."""
        key = (topic, partition)
        if key in self._delivery.settled:
            return f"{topic}/{partition}: nothing new for long, next is {self._delivery.settled[key]}"
        part = self._delivery.partitions.get(key)
        return f"{topic}/{partition}: unknown" if part is None else self._gaps.story(key, part.gap, now)

    def invariants(self) -> list[str]:
        return [*self._delivery.invariants(), *(() if self.group is None else self.group.invariants())]

    def _subscribe(self, wanted: Filter) -> list[Effect]:
        raw = encode_topic(wanted.name)
        # Publishers count: between two of these they overlook no original, and send us no single records.
        actions: list[Effect] = [Subscribe(id_ + raw) for id_ in self._kinds]
        return actions + self._ask_heads([wanted])

    @property
    def _kinds(self) -> tuple[bytes, ...]:
        return (b"H", b"J") if self.min_acks else (b"H", b"R", b"M")

    @property
    def _counts(self) -> bool:
        """True if we count the stores that have a record: with ``min_acks`` of 1 any store that is read has it."""
        return self.min_acks >= COUNTED

    def _counted(self, gap: PartitionGap) -> None:
        """A store said what it has on disk: enough may have what a gap waits for."""
        if gap.state is GapState.OPEN and not gap.tries:
            gap.retry_at = 0.0

    def _ask_heads(self, filters: Iterable[Filter]) -> list[Effect]:
        """Ask original stores, which do not list their partitions."""
        if self._reset is LATEST:
            return []  # they answer with their last record, as if that were new
        return [Publish(GetHeads(each.name, self.address)) for each in filters]

    def _hello(self, store: str) -> Effect:
        subjects = () if self._reset is LATEST else tuple(each.name for each in self._filters)
        return Publish(ConsumerHello(store, self.address, subjects))

    def _unanswered(self, questions: list[Question], now: float) -> list[Effect]:
        self._gaps.unanswered(questions)
        lasts = [each.key[0] for each in questions if each.last and each.key is not None]
        return [action for topic in lasts for action in self._last.unanswered(topic, now)] + self._beginnings.begin(now)

    def _arrived(self, topic: str, partition: str, batch: Batch, now: float, *, live: bool) -> list[Effect]:
        if not self.wants(topic):
            return []
        key = (topic, partition)
        if self._beginnings.others_heard(key, batch.base, now):
            return []
        part = self._beginnings.partition(key, batch.base, now)
        gap = part.gap
        gap.head = max(gap.head, batch.next)
        gap.heard(now, live=live)
        if live:
            self._beyond.heard(key, batch.base, batch.next, now)
        actions = self._delivery.hand_on(key)
        if batch.base <= gap.next:
            actions += self._delivery.advance(key, part, batch)
        else:
            if not live:
                self._delivery.answer_begins(gap, batch.base)
            self._gaps.hold_early(key, gap, batch, live=live)
        return actions if gap.state is GapState.CLOSED else actions + self._gaps.pursue(key, gap, now)

    def _single(self, key: Key, sequence: int, content: bytes, now: float, *, live: bool) -> list[Effect]:
        check_single(sequence, content)
        if not self.wants(key[0]) or self._beginnings.others_heard(key, sequence, now):
            return []
        part = self._beginnings.partition(key, sequence, now)
        if sequence != part.gap.next:
            batch = StampedHere.parse(encode_batch(sequence, [content], self._clock.wall_ns() // 1000), check=False)
            return self._arrived(key[0], key[1], batch, now, live=live)
        gap = part.gap
        gap.head = max(gap.head, sequence + 1)
        gap.heard(now, live=live)
        actions = self._delivery.take_single(key, part, content)
        if gap.state is GapState.CLOSED or (gap.state is GapState.FETCHING and now < gap.retry_at):
            return actions
        return actions + self._delivery.hand_on(key) + self._gaps.pursue(key, gap, now)

    def _heard_head(self, topic: str, partition: str, sequence: int, now: float, *, live: bool) -> list[Effect]:
        if not self.wants(topic) or sequence >= (1 << 63) - 1:
            return []
        key = (topic, partition)
        if not live and not self._beginnings.concerns(key, sequence + 1):
            return []
        self._heard_at = min(self._heard_at, now)
        if self._beginnings.others_heard(key, sequence + 1, now):
            return []
        if self._delivery.find(key) is None and len(self._gaps.open) >= self._limits.unknown_partitions_max:
            return []  # its producer speaks of it again
        gap = self._beginnings.partition(key, sequence + 1, now).gap
        if live:
            if not self.min_acks:  # else nothing comes live that is to be waited for
                gap.heard_at = now
                gap.said = max(gap.said, sequence + 1)
            self._beyond.heard(key, sequence + 1, sequence + 1, now)
        gap.head = max(gap.head, sequence + 1)
        if gap.next == UNDECIDED or gap.next >= gap.head:
            return []
        self._gaps.want(key, gap)
        return self._gaps.pursue(key, gap, now)

    def _listed(
        self, store: KnownStore, wanted: Filter, answer: HeadsAnswer, asked_at: float, now: float
    ) -> list[Effect]:
        """A store lists partitions: begin those that are new, and read records that nobody sends live."""
        delivery = self._delivery
        actions: list[Effect] = []
        store.since[wanted] = answer.version
        infos = answer.infos()
        counts = self._counts and answer.store_id == store.store_id  # else another one has taken over its endpoint
        whole = _whole(infos, answer.holes) if counts else {}
        for info in infos:
            if not wanted.matches(info.topic):
                continue
            key = (info.topic, info.partition)
            if len(store.heads) >= self._limits.listed_partitions_max and key not in store.heads:
                actions += (
                    []
                    if store.overfull
                    else [Report(PartitionsLeftOut(store.address, self._limits.listed_partitions_max))]
                )
                store.overfull = True
                continue
            new = wanted in store.synced
            if self._beginnings.others_listed(key, info, new=new, now=now):
                store.note(key, info.first, info.next)
                continue
            part = delivery.find(key) or delivery.add(key, UNDECIDED)
            gap = part.gap
            if gap.next == UNDECIDED:
                gap.next = self._beginnings.start(store, key, info, new=new, now=now)
                part.strict = self._reset.strict
            self._gaps.listed(store, key, gap, info.first, info.next)
            if counts:
                for low, high in store.on_disk.get(key, ()):  # what it said meanwhile counts, too
                    whole[key].add(max(low, info.next), high)
                store.on_disk[key] = whole[key]
                self._counted(gap)
            gap.head = max(gap.head, info.next)
            if part.strict or not gap.complete:
                self._gaps.want(key, gap)
            elif gap.state is GapState.OPEN and not gap.held:  # it begins at its end: everything was trimmed
                self._gaps.close(key, gap)
        if answer.more and not store.overfull:
            actions = [self._sources.news(store, wanted, now)]
        else:
            store.synced[wanted] = asked_at
            self._beyond.listed(now)
            self._sources.rest(store, self._filters)
        return actions + self._gaps.look(now) + self._absent.look(self._filters, now)


def _whole(infos: Iterable[PartitionInfo], holes: Iterable[tuple[bytes, bytes, int, int]]) -> dict[Key, RangeSet]:
    """Return the offsets on a store's disk, of the partitions that it lists; those before its first one count."""
    whole: dict[Key, RangeSet] = {}
    for info in infos:
        ranges = whole[info.topic, info.partition] = RangeSet()
        ranges.add(0, info.next)
    for topic, partition, first, last in holes:
        found = whole.get((decode_topic(topic), decode_topic(partition)))
        if found is not None:
            found.remove(first, last + 1)
    return whole
