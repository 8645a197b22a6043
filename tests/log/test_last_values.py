"""The newest record of each key, as a store tells it and a consumer begins with it; both joined without a network."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import FrameType
from typing import Any

import pytest
from tests.fixed_clock import FixedClock
from tests.log.consumer_rig import Clocked
from tests.log.store_rig import WALL, StoreRig

from chappe.core import Ask, Deliver, Effect, Reply, Report
from chappe.data.topic import Filter
from chappe.limits import LOG_LIMITS
from chappe.log import consumer, last_values
from chappe.log.batch import HEADER, Batch, encode_batch
from chappe.log.consumer import LAST, LogConsumer
from chappe.log.events import LastValuesRefused, NoLastValues
from chappe.log.last_values import FORGET_S, LastValues
from chappe.log.messages import BatchMessage, StoreInfo
from chappe.log.queries import ErrorAnswer, LastAnswer, LastRequest, decode_answer, encode_query
from chappe.log.storage import AppendRecords

CLOCK = FixedClock(us=WALL)

Given = tuple[str, str | None]  # key ("" for none), value (None for a tombstone)


def keep(rig: StoreRig, base: int, *records: Given, partition: str = "P", stamp: int = 0) -> None:
    body = encode_batch(
        base,
        [None if value is None else value.encode() for _, value in records],
        WALL + stamp,
        keys=[key.encode() or None for key, _ in records],
    )
    append = AppendRecords("hello", partition, base, len(records), WALL + stamp, WALL + stamp, body)
    rig.storage.publish(rig.storage.write([append]))


def ask(rig: StoreRig, request: LastRequest) -> tuple[LastAnswer | ErrorAnswer, tuple[bytes, ...]]:
    (reply,) = rig.core.handle_request(b"c", b"r", request, b"", rig.now)
    assert isinstance(reply, Reply)
    answer = decode_answer(encode_query(reply.message.answer))
    assert isinstance(answer, LastAnswer | ErrorAnswer)
    return answer, reply.message.batches


def told(rig: StoreRig, topic: bytes = b"hello") -> dict[str, tuple[str, int, str]]:
    """Partition, offset and value by key, as all pages tell it."""
    found: dict[str, tuple[str, int, str]] = {}
    request = LastRequest(topic)
    while True:
        answer, bodies = ask(rig, request)
        assert isinstance(answer, LastAnswer), answer
        if answer.busy:
            rig.wait(0.01)
            continue
        for name, raw in zip(answer.partitions, bodies, strict=True):
            (record,) = Batch.parse(raw).records("hello", name.decode())
            assert record.key is not None
            assert record.value is not None
            assert record.key.decode() not in found
            found[record.key.decode()] = (name.decode(), record.offset, record.value.decode())
        if not answer.more:
            assert rig.core.invariants() == []
            return found
        request = LastRequest(topic, answer.table, answer.part, answer.offset)


def small(**limits: int) -> StoreRig:
    return StoreRig(limits=replace(LOG_LIMITS, **limits))


# -- at the store ------------------------------------------------------------------------------------------


def test_of_each_key_the_newest_record_is_told() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "1"), ("b", "1"), ("a", "2"))
    assert told(rig) == {"a": ("P", 2, "2"), "b": ("P", 1, "1")}


def test_records_without_a_key_and_deleted_keys_are_not_told() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "1"), ("", "x"), ("b", "1"))
    keep(rig, 3, ("a", None))
    rig.keep(4, b"no keys at all")
    assert told(rig) == {"b": ("P", 2, "1")}


def test_among_partitions_the_later_one_is_newer() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "late"), ("b", "early"), stamp=5)
    keep(rig, 0, ("a", "early"), ("c", "1"), partition="Q", stamp=4)
    keep(rig, 2, ("b", "late"), partition="Q", stamp=6)
    assert told(rig) == {"a": ("P", 0, "late"), "b": ("Q", 2, "late"), "c": ("Q", 1, "1")}


def test_all_stores_agree_on_what_came_at_the_same_time() -> None:
    one, other = StoreRig(), StoreRig()
    for rig, order in ((one, "PQ"), (other, "QP")):
        for partition in order:
            keep(rig, 0, ("a", partition), partition=partition)
    assert told(one) == told(other) == {"a": ("Q", 0, "Q")}


def test_within_a_partition_offsets_decide() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "1"), stamp=9)
    keep(rig, 1, ("a", "2"), stamp=0)
    assert told(rig) == {"a": ("P", 1, "2")}


def test_what_is_new_is_told_the_next_time() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "1"), ("b", "1"))
    told(rig)
    keep(rig, 2, ("a", "2"), ("c", "1"))
    rig.now += 2.0
    assert told(rig) == {"a": ("P", 2, "2"), "b": ("P", 1, "1"), "c": ("P", 3, "1")}


def test_pages_are_small_and_have_everything_once() -> None:
    rig = small(read_bytes=300)
    keep(rig, 0, *[(f"k{number}", "v") for number in range(100)])
    assert told(rig) == {f"k{number}": ("P", number, "v") for number in range(100)}


def test_a_table_is_read_piece_by_piece() -> None:
    rig = small(last_piece_bytes=100)
    for base in range(0, 100, 2):
        keep(rig, base, (f"k{base}", "v"), (f"k{base + 1}", "v"))
    answer, _ = ask(rig, LastRequest(b"hello"))
    assert isinstance(answer, LastAnswer)
    assert (answer.busy, answer.table) == (True, 0)
    assert len(told(rig)) == 100


def test_the_first_page_says_how_far_each_partition_was_read() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "1"), ("b", "1"))
    keep(rig, 0, ("c", "1"), partition="Q")
    answer, _ = ask(rig, LastRequest(b"hello"))
    assert isinstance(answer, LastAnswer)
    assert sorted(answer.cuts) == [(b"P", 2), (b"Q", 1)]


def test_topics_that_begin_alike_are_others() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "1"))
    rig.keep(0, b"x", topic="hello2")
    answer, _ = ask(rig, LastRequest(b"hell"))
    assert isinstance(answer, LastAnswer)
    assert (answer.cuts, answer.partitions) == ([], [])


def test_a_topic_with_more_than_the_bound_is_refused() -> None:
    rig = small(last_bytes_max=1 << 20)
    for base in range(0, 4_000, 1_000):
        keep(rig, base, *[(f"k{number}", "v" * 100) for number in range(base, base + 1_000)])
    while isinstance(answer := ask(rig, LastRequest(b"hello"))[0], LastAnswer):
        assert answer.busy
        rig.wait(0.01)
    assert answer.text == "the newest records of topic 'hello' have more than 1 MiB"


def test_the_table_not_asked_for_longest_makes_room() -> None:
    storage = StoreRig().storage
    rig = StoreRig(storage=storage, limits=replace(LOG_LIMITS, last_bytes_max=100_000))
    for topic in ("one", "two"):
        body = encode_batch(0, [b"x" * 300] * 100, WALL, keys=[b"k%d" % number for number in range(100)])
        storage.publish(storage.write([AppendRecords(topic, "P", 0, 100, WALL, WALL, body)]))
    for asked in (b"one", b"two", b"one"):
        rig.now += 1.0
        assert len(told(rig, asked)) == 100
    assert rig.core._last.held_bytes <= 100_000


def test_tables_that_have_no_room_beside_each_other_are_told_one_after_the_other() -> None:
    limits = replace(LOG_LIMITS, last_bytes_max=100_000, last_piece_bytes=1_000, read_bytes=1_000)
    rig = StoreRig(limits=limits)
    for topic in ("one", "two"):
        body = encode_batch(0, [b"x" * 300] * 100, WALL, keys=[b"k%d" % number for number in range(100)])
        rig.storage.publish(rig.storage.write([AppendRecords(topic, "P", 0, 100, WALL, WALL, body)]))
    found = {b"one": 0, b"two": 0}
    requests = {topic: LastRequest(topic) for topic in found}
    for _ in range(2_000):
        for wanted, request in list(requests.items()):
            answer, bodies = ask(rig, request)
            assert isinstance(answer, LastAnswer)
            found[wanted] = found[wanted] + len(bodies) if request.table else len(bodies)
            requests[wanted] = LastRequest(wanted, answer.table, answer.part, answer.offset)
            if answer.table and not answer.more:
                del requests[wanted]
        rig.wait(0.01)
    assert (found, requests) == ({b"one": 100, b"two": 100}, {})


def test_a_topic_with_more_than_the_bound_is_refused_while_another_one_is_asked_for() -> None:
    rig = StoreRig(limits=replace(LOG_LIMITS, last_bytes_max=100_000, last_piece_bytes=1))
    for topic, base in (("large", 0), ("large", 100), ("small", 0)):
        keys: list[bytes | None] = [b"k%d" % (base + number) for number in range(100)]
        body = encode_batch(base, [b"x" * 300] * 100, WALL, keys=keys)
        rig.storage.publish(rig.storage.write([AppendRecords(topic, "P", base, 100, WALL, WALL, body)]))
    for _ in range(10):
        answer, _ = ask(rig, LastRequest(b"large"))
        if isinstance(answer, ErrorAnswer):
            break
        rig.wait(0.1)
        ask(rig, LastRequest(b"small"))
        rig.wait(0.1)
    assert isinstance(answer, ErrorAnswer)
    assert len(told(rig, b"small")) == 100


def test_a_table_that_is_gone_is_asked_for_from_the_beginning() -> None:
    rig = small(read_bytes=100)
    keep(rig, 0, *[(f"k{number}", "v") for number in range(10)])
    answer, _ = ask(rig, LastRequest(b"hello"))
    assert isinstance(answer, LastAnswer)
    rig.wait(FORGET_S + 1.0)
    assert rig.core._last.held_bytes == 0
    gone, bodies = ask(rig, LastRequest(b"hello", answer.table, answer.part, answer.offset))
    assert (gone, bodies) == (LastAnswer(b"hello", 0), ())


def test_a_damaged_topic_is_refused() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "1"))
    keep(rig, 2, ("b", "1"))
    answer, _ = ask(rig, LastRequest(b"hello"))
    assert answer == ErrorAnswer("records of topic 'hello' are damaged at this store")


def test_a_topic_whose_records_overlap_is_refused_and_the_store_goes_on() -> None:
    rig = small(last_piece_bytes=1)
    keep(rig, 0, ("a", "1"))
    raw = bytearray(encode_batch(1, [b"x", b"y"], WALL, keys=[b"b", b"c"]))
    raw[HEADER.size + 4] = 99  # where the second key begins
    rig.storage.publish(rig.storage.write([AppendRecords("hello", "P", 1, 2, WALL, WALL, bytes(raw))]))
    answer, _ = ask(rig, LastRequest(b"hello"))
    assert isinstance(answer, LastAnswer)
    assert answer.busy
    rig.wait(0.1)
    assert ask(rig, LastRequest(b"hello"))[0] == ErrorAnswer("batch whose values overlap")


def test_a_table_has_room_for_what_is_overwritten() -> None:
    rig = StoreRig()
    for base in range(0, 1_000, 10):
        keep(rig, base, *[(f"k{number}", str(base)) for number in range(10)])
    assert len(told(rig)) == 10
    (table,) = rig.core._last._tables.values()
    assert len(table.parts["P"].offsets) < 100


# -- with a consumer ---------------------------------------------------------------------------------------


@dataclass
class World(Clocked):
    """Stores and a consumer; what is asked is answered at once, or not at all."""

    stores: list[StoreRig]
    wanted: str = "*"
    now: float = 1000.0
    delivered: list[tuple[str, int, str, str | None]] = field(default_factory=list)
    events: list[object] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)  # who was asked for newest records

    def __post_init__(self) -> None:
        limits = replace(LOG_LIMITS, read_bytes=400)
        self.core = LogConsumer("C", [Filter.parse(self.wanted)], LAST, None, limits, clock=CLOCK)
        self.do(self.core.start(self.now))

    def meet(self) -> None:
        for rig in self.stores:
            info = StoreInfo("", rig.core.address, rig.storage.store_id, rig.endpoint)
            self.do(self.core.handle_message(info, self.now))

    def do(self, actions: Sequence[Effect]) -> None:
        for action in actions:
            if isinstance(action, Deliver):
                self._take(action)
            elif isinstance(action, Report):
                self.events.append(action.event)
            elif isinstance(action, Ask):
                self._ask(action)

    def _take(self, action: Deliver) -> None:
        for record in action.messages.batch.records(
            action.messages.topic, action.messages.partition, action.messages.start
        ):
            key, value = (record.key or b"").decode(), record.value
            place = (action.messages.partition, record.offset, key, None if value is None else value.decode())
            assert place not in self.delivered
            self.delivered.append(place)
        self.do(self.core.taken(len(action.messages.batch.raw), self.now))

    def _ask(self, action: Ask) -> None:
        rig = next(each for each in self.stores if each.endpoint == action.to)
        if isinstance(action.request, LastRequest):
            self.asked.append(rig.endpoint)
        if rig.endpoint in self.silent:
            return
        rig.now = self.now
        rig.core.handle_timeout(self.now)
        (reply,) = (each for each in rig.core.handle_request(b"c", b"r", action.request, b"", self.now))
        assert isinstance(reply, Reply)
        self.do(self.core.handle_answer(action.ticket, reply.message.answer, list(reply.message.batches), self.now))

    def live(self, partition: str, base: int, *records: Given) -> None:
        body = encode_batch(
            base,
            [None if value is None else value.encode() for _, value in records],
            WALL + base,
            keys=[key.encode() or None for key, _ in records],
        )
        self.do(self.core.handle_message(BatchMessage("hello", partition, "hello", body), self.now))

    @property
    def places(self) -> list[tuple[str, int]]:
        return [(partition, offset) for partition, offset, *_ in self.delivered]


def test_a_consumer_begins_with_the_newest_and_goes_on() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "1"), ("b", "1"), ("a", "2"), ("", "x"))
    world = World([rig])
    world.meet()
    world.wait(1.0)
    assert world.places == [("P", 1), ("P", 2)]
    world.live("P", 4, ("a", "3"), ("", "y"))
    assert world.places == [("P", 1), ("P", 2), ("P", 4), ("P", 5)]
    assert world.core.positions() == {("hello", "P"): 6}
    assert world.core.invariants() == []


def test_nothing_comes_again_after_long_without_news_or_stores() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "1"), ("b", "1"), ("a", "2"), ("", "x"))
    keep(rig, 0, ("", "x"), partition="Q")
    world = World([rig])
    world.meet()
    world.wait(1.0)
    world.do(world.core.handle_gone(rig.core.address, world.now))
    for _ in range(2):
        world.now += LOG_LIMITS.settled_s
        world.do(world.core.handle_timeout(world.now))

    world.live("P", 0, ("a", "1"), ("b", "1"), ("a", "2"), ("", "x"), ("a", "3"))
    world.live("Q", 0, ("", "x"), ("a", "4"))
    assert world.places == [("P", 1), ("P", 2), ("P", 4), ("Q", 1)]


def test_what_comes_live_meanwhile_waits_its_turn() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "1"), ("a", "2"))
    world = World([rig])
    world.live("P", 2, ("a", "3"))
    assert world.places == []
    world.meet()
    world.wait(2.0)
    assert world.places == [("P", 1), ("P", 2)]


def test_a_partition_that_is_new_is_read_from_its_beginning() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "1"), ("a", "2"))
    world = World([rig])
    world.meet()
    world.wait(1.0)
    world.live("Q", 0, ("a", "3"), ("a", "4"))
    assert world.places == [("P", 1), ("Q", 0), ("Q", 1)]


@pytest.mark.parametrize("stores", [0, 1])
def test_a_topic_that_nobody_has_begins_with_what_is_published(stores: int) -> None:
    world = World([StoreRig()] * stores)
    world.meet()
    world.wait(0.5)
    world.live("P", 0, ("a", "1"), ("a", "2"))
    world.wait(3.0)
    assert world.places == [("P", 0), ("P", 1)]
    assert world.events == []


def test_a_store_that_refuses_has_all_of_it_read() -> None:
    rig = StoreRig(limits=replace(LOG_LIMITS, last_bytes_max=100))
    keep(rig, 0, ("a", "1"), ("a", "2"))
    world = World([rig])
    world.meet()
    world.wait(5.0)
    assert world.places == [("P", 0), ("P", 1)]
    (event,) = world.events
    assert isinstance(event, LastValuesRefused)
    assert str(event).endswith("the newest records of topic 'hello' have more than 0 MiB")


TWICE = [*[(f"k{number}", "1") for number in range(20)], *[(f"k{number}", "2") for number in range(20)]]


def test_a_store_that_is_silent_gives_way_to_another() -> None:
    one, two = StoreRig("S1"), StoreRig("S2")
    for rig in (one, two):
        keep(rig, 0, *TWICE)
    world = World([one, two])
    world.meet()
    assert world.asked == []
    world.silent.add(one.endpoint)
    world.wait(3.0)
    assert world.asked[:2] == [one.endpoint, two.endpoint]
    assert world.places == [("P", offset) for offset in range(20, 40)]
    assert world.events == []


def test_the_only_store_is_waited_for_while_it_is_silent() -> None:
    rig = StoreRig()
    keep(rig, 0, *TWICE)
    world = World([rig])
    world.meet()
    world.silent.add(rig.endpoint)
    world.wait(2.5)
    world.silent.clear()
    world.wait(5.0)
    assert world.places == [("P", offset) for offset in range(20, 40)]
    assert world.events == []


@pytest.mark.parametrize("others", [0, 1])
def test_a_store_that_was_silent_from_the_beginning_may_have_it(others: int) -> None:
    rig = StoreRig("S1")
    keep(rig, 0, *TWICE)
    world = World([rig, *(StoreRig("S2") for _ in range(others))])
    world.silent.add(rig.endpoint)
    world.meet()
    world.live("P", 40, ("k1", "3"))
    world.wait(3.5)
    world.silent.clear()
    world.wait(5.0)
    assert world.places == [("P", offset) for offset in range(20, 41)]
    assert world.events == []


def test_a_topic_that_is_wanted_later_is_waited_for_as_well() -> None:
    rig = StoreRig()
    keep(rig, 0, *TWICE)
    world = World([rig], wanted="other")
    world.meet()
    world.wait(1.5)
    world.silent.add(rig.endpoint)
    world.do(world.core.subscribe(Filter("hello"), world.now))
    world.live("P", 40, ("k1", "3"))
    world.wait(1.9)
    world.silent.clear()
    world.wait(5.0)
    assert world.places == [("P", offset) for offset in range(20, 41)]
    assert not any(isinstance(each, LastValuesRefused) for each in world.events)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("others", [0, 1])
def test_a_store_that_stays_silent_has_all_of_it_read(listed: bool, others: int) -> None:
    rig = StoreRig("S1")
    if listed:
        keep(rig, 0, ("a", "1"))
    world = World([rig, *(StoreRig("S2") for _ in range(others))])
    if not listed:
        world.silent.add(rig.endpoint)
    world.meet()
    world.silent.add(rig.endpoint)
    world.live("P", 0, ("a", "1"), ("a", "2"))
    world.wait(15.0)
    assert world.places == [("P", 0), ("P", 1)]
    assert world.events == [LastValuesRefused("hello", "no store answers for them")]


def test_a_store_that_leaves_in_the_midst_is_waited_for_as_well() -> None:
    rig = StoreRig()
    keep(rig, 0, ("a", "1"))
    world = World([rig])
    world.meet()
    world.silent.add(rig.endpoint)
    world.wait(1.0)
    assert world.asked == [rig.endpoint]
    world.live("P", 0, ("a", "1"), ("a", "2"))
    world.do(world.core.handle_gone(rig.core.address, world.now))
    world.wait(15.0)
    assert world.places == [("P", 0), ("P", 1)]
    assert world.events == [LastValuesRefused("hello", "no store answers for them")]


def random_records(rng: Random) -> list[Given]:
    return [
        (
            rng.choice(("", "a", "b", "c", "d", "e")),
            None if rng.random() < 0.1 else f"{rng.random():.4f}" * rng.choice((1, 9)),
        )
        for _ in range(rng.randint(1, 6))
    ]


@pytest.mark.parametrize("seed", range(300))
def test_nothing_is_missed_or_doubled_whatever_happens(seed: int) -> None:
    """Records come live and to two stores, which answer late, fall silent, forget their tables, and lag behind.

    The consumer unsubscribes and subscribes again.
    """
    rng = Random(seed)
    limits = replace(LOG_LIMITS, read_bytes=200, last_piece_bytes=rng.choice((1, 300, 10_000)))
    rigs = [StoreRig(f"S{number}", limits=limits) for number in range(2)]
    world = World(rigs)
    truth: dict[str, list[Given]] = {"P": [], "Q": [], "R": []}
    stamps: dict[str, list[int]] = {partition: [] for partition in truth}
    lacks: dict[str, list[tuple[str, int, list[Given]]]] = {rig.endpoint: [] for rig in rigs}

    def catch_up(rig: StoreRig) -> None:
        for partition, base, records in lacks[rig.endpoint]:
            keep(rig, base, *records, partition=partition, stamp=base)
        lacks[rig.endpoint].clear()

    def publish() -> None:
        partition, records = rng.choice("PQR"), random_records(rng)
        base = len(truth[partition])
        truth[partition] += records
        stamps[partition] += [base] * len(records)  # as batches have them, one for all their records
        for rig in rigs:
            lacks[rig.endpoint].append((partition, base, records))
            if rng.random() < 0.7:
                catch_up(rig)
        if rng.random() < 0.7:
            world.live(partition, base, *records)

    for _ in range(rng.randint(0, 30)):
        publish()
    for rig in rigs:
        catch_up(rig)
    before: dict[str, int] = {}  # where partitions ended when the newest records had come

    def look() -> None:
        if not before and world.core._last.begun("hello"):
            before.update({partition: len(records) for partition, records in truth.items()})

    world.meet()
    for _ in range(rng.randint(5, 40)):
        match rng.randrange(7):
            case 0 | 1:
                publish()
            case 4:
                everything = Filter("", prefix=True)
                world.do(world.core.unsubscribe(everything, world.now))
                if rng.random() < 0.5:
                    publish()
                world.wait(rng.choice((0.0, 0.1, 2.5)))
                world.do(world.core.subscribe(everything, world.now))
            case 2:
                world.silent ^= {rng.choice(rigs).endpoint}
            case 3:
                rng.choice(rigs).core._last._tables.clear()
            case _:
                world.wait(rng.choice((0.01, 0.1, 0.5, 2.5)))
        look()
    world.silent.clear()
    for rig in rigs:
        catch_up(rig)
    world.wait(30.0)
    look()

    assert world.core.invariants() == []
    known = set(world.places)
    for partition, records in truth.items():
        offsets = [offset for name, offset in world.places if name == partition]
        assert offsets == sorted(offsets)
        assert known >= {(partition, offset) for offset in range(before.get(partition, 0), len(records))}
        last = {key: offset for offset, (key, _) in enumerate(records) if key}
        for key, offset in last.items():  # what is newest of its partition and not elsewhere came
            newer = any(
                stamps[partition][offset] <= stamps[there][other] and name == key
                for there, others in truth.items()
                if there != partition
                for other, (name, _) in enumerate(others)
            )
            if not newer and records[offset][1] is not None:
                assert (partition, offset) in known, (partition, offset, key)
    assert world.core.caught_up


def test_a_table_of_its_own_is_empty_without_records() -> None:
    made = LastValues(StoreRig().storage, LOG_LIMITS)
    assert made.answer(LastRequest(b"none"), 0.0)[0] == LastAnswer(b"none", 1)


@dataclass
class Queued(World):
    """One whose stores answer in turn."""

    pending: list[Ask] = field(default_factory=list)

    def _ask(self, action: Ask) -> None:
        self.pending.append(action)

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.05)):
            while self.pending:
                super()._ask(self.pending.pop(0))
            self.wait(0.05)


def effort(topics: int) -> int:
    """How many lines run until a consumer has the newest record of each of so many topics."""
    counted = {each.__file__ for each in (consumer, last_values)}
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count if frame.f_code.co_filename in counted else None

    rig = StoreRig()
    body = encode_batch(0, [b"v"], WALL, keys=[b"k"])
    appends = [AppendRecords(f"t{number}", f"P{number}", 0, 1, WALL, WALL, body) for number in range(topics)]
    rig.storage.publish(rig.storage.write(appends))
    world = Queued([rig])
    before = sys.gettrace()
    sys.settrace(count)
    try:
        world.meet()
        world.run(3)
    finally:
        sys.settrace(before)
    assert len(world.delivered) == topics
    assert rig.core._last.invariants() == []
    return lines


def test_many_topics_take_a_consumer_and_a_store_in_proportion() -> None:
    assert effort(400) < 5 * effort(100)


@pytest.mark.parametrize("given", [("", "1"), ("a", None)])
def test_a_topic_without_a_newest_record_per_key_says_so(given: Given) -> None:
    rig = StoreRig()
    keep(rig, 0, given, given)
    world = World([rig])
    world.meet()
    world.wait(5.0)
    assert world.places == []
    assert world.events == [NoLastValues("hello")]
    assert str(world.events[0]).startswith("topic 'hello' has no newest record per key: its records have no keys, or")
    world.live("P", 2, ("b", "1"))
    world.wait(5.0)
    assert world.places == [("P", 2)]
    assert len(world.events) == 1


def test_a_topic_with_one_key_or_nothing_says_nothing() -> None:
    for records in ([], [("", "1"), ("a", "2")]):
        rig = StoreRig()
        if records:
            keep(rig, 0, *records)
        world = World([rig])
        world.meet()
        world.wait(5.0)
        assert world.events == []
