"""A consumer that takes records from disks of stores alone, and of several if it is to count them."""

from __future__ import annotations

import pytest
from tests.fixed_clock import FixedClock
from tests.log.consumer_rig import ConsumerRig
from tests.log.store_rig import WALL, StoreRig, published

from chappe.core import Deliver, Effect, Subscribe
from chappe.data.topic import Filter
from chappe.defaults import HOLES_TOLD_MAX
from chappe.limits import LOG_LIMITS
from chappe.log.batch import encode_batch
from chappe.log.consumer import EARLIEST, LATEST, LogConsumer
from chappe.log.consuming import ConsumingMember
from chappe.log.events import RecordsLost, RecordsUnconfirmed
from chappe.log.messages import BatchMessage, Fetch, OnDisk, PeerSubscriptions, StoreInfo
from chappe.log.queries import heads_answer
from chappe.log.storage import Hole, PartitionInfo

CLOCK = FixedClock(us=WALL)


def told(rig: ConsumerRig, store: StoreRig, sequence: int, first: int = 0) -> None:
    """The store says what it has on disk."""
    message = OnDisk("hello", store.storage.store_id, "P", first, sequence)
    rig.do(rig.core.handle_message(message, rig.now))
    assert rig.core.invariants() == []


def met() -> tuple[ConsumerRig, StoreRig]:
    """A consumer that has met a store with one record."""
    rig, store = ConsumerRig(EARLIEST, min_acks=1), StoreRig("S")
    store.keep(0, b"0")
    rig.meet(store)
    assert rig.values() == [b"0"]
    return rig, store


def met_two() -> tuple[ConsumerRig, StoreRig, StoreRig]:
    """One that wants what two stores have, and two stores with one record."""
    rig, one, two = ConsumerRig(EARLIEST, min_acks=2), StoreRig("A"), StoreRig("B")
    for store in (one, two):
        store.keep(0, b"0")
        rig.meet(store)
    assert rig.values() == [b"0"]
    return rig, one, two


def test_it_does_not_ask_for_what_is_published() -> None:
    rig = ConsumerRig(EARLIEST, min_acks=1)
    wanted = {each.prefix for each in rig.start_actions if isinstance(each, Subscribe)}
    assert {b"Hhello", b"Jhello"} < wanted
    assert not wanted & {b"Rhello", b"Mhello"}
    assert rig.core.unsubscribe(Filter("hello"), rig.now) == [Subscribe(b"Jhello", False), Subscribe(b"Hhello", False)]


def test_producers_take_it_for_no_original() -> None:
    subscriptions = PeerSubscriptions()
    for prefix in (b"Hhello", b"Rhello", b"Mhello", b"Hhello", b"Jhello"):
        subscriptions.change(prefix, True)
    assert not subscriptions.originals(b"hello")
    for prefix in (b"Mhello", b"Hhello"):  # one of the original
        subscriptions.change(prefix, True)
    assert subscriptions.originals(b"hello")


def test_a_record_comes_at_once_when_a_store_says_that_it_is_on_disk_and_not_before() -> None:
    rig, store = met()
    rig.head(1)
    rig.wait(0.1)
    assert rig.values() == [b"0"]
    store.keep(1, b"1")
    told(rig, store, 1)
    assert rig.values() == [b"0", b"1"]
    store.keep(2, b"2")
    told(rig, store, 2)
    assert rig.values() == [b"0", b"1", b"2"], "also before its producer announces it"


def test_if_a_word_of_the_store_is_lost_the_next_look_finds_it() -> None:
    rig, store = met()
    store.keep(1, b"1")
    rig.wait(1.5)
    assert rig.values() == [b"0", b"1"]


def test_a_word_of_a_partition_that_is_new_is_enough() -> None:
    rig, store = ConsumerRig(EARLIEST, min_acks=1), StoreRig("S")
    rig.meet(store)
    store.keep(0, b"0")
    told(rig, store, 0)
    assert rig.values() == [b"0"]


@pytest.mark.parametrize("reset", [EARLIEST, LATEST], ids=repr)
def test_producers_are_never_asked_for_records(reset: object) -> None:
    rig = ConsumerRig(EARLIEST if reset is EARLIEST else LATEST, min_acks=1)
    rig.head(5)
    rig.wait(30)
    rig.head(9)
    rig.wait(30)
    assert not any(isinstance(each, Fetch) for each in rig.published)
    assert rig.delivered == []
    assert not rig.events


def test_what_nobody_had_comes_once_a_store_has_it() -> None:
    rig, store = ConsumerRig(EARLIEST, min_acks=1), StoreRig("S")
    rig.head(0)
    rig.wait(30)
    rig.meet(store)
    store.keep(0, b"0")
    told(rig, store, 0)
    rig.wait(2)
    assert rig.values() == [b"0"]


def test_a_word_of_somebody_unknown_is_ignored() -> None:
    rig, _ = met()
    rig.do(rig.core.handle_message(OnDisk("hello", "stranger", "P", 0, 9), rig.now))
    assert rig.core.heads() == {("hello", "P"): 1}


def test_beside_one_that_takes_what_is_published_it_only_learns_of_it() -> None:
    node = ConsumingMember("N")
    for address, min_acks in (("live", 0), ("stored", 1)):
        node.add(LogConsumer(address, [Filter("hello")], EARLIEST, min_acks=min_acks, clock=CLOCK), 0.0)
    node.handle_message(StoreInfo("", "S", "id", "tcp://s:1"), 0.0)
    message = BatchMessage("hello", "P", "hello", encode_batch(0, [b"x"], WALL))
    actions = node.handle_message(message, 0.0)
    assert [each.to for each in actions if isinstance(each, Deliver)] == ["live"]


# -- several stores ---------------------------------------------------------------------------------------


def test_a_record_comes_at_once_when_the_second_store_has_it_and_not_before() -> None:
    rig, one, two = met_two()
    one.keep(1, b"1")
    told(rig, one, 1)
    rig.wait(3)
    assert rig.values() == [b"0"]
    two.keep(1, b"1")
    told(rig, two, 1)
    assert rig.values() == [b"0", b"1"]


def test_without_a_producer_stores_list_what_they_have() -> None:
    rig, one, two = ConsumerRig(EARLIEST, min_acks=2), StoreRig("A"), StoreRig("B")
    one.keep(0, b"0", b"1", b"2")
    rig.meet(one)
    rig.wait(3)
    assert rig.values() == []
    two.keep(0, b"0", b"1")
    rig.meet(two)
    assert rig.values() == [b"0", b"1"], "what the second one lists is read from there, not from the longer batch"
    two.keep(2, b"2")
    rig.wait(1.5)
    assert rig.values() == [b"0", b"1", b"2"]


def test_a_store_counts_once_under_two_addresses() -> None:
    rig, one = ConsumerRig(EARLIEST, min_acks=2), StoreRig("A")
    one.keep(0, b"0")
    rig.meet(one)
    rig.meet(StoreRig("A2", one.storage))
    rig.wait(3)
    assert rig.values() == []


def test_who_answers_at_the_endpoint_of_a_dead_store_does_not_count_for_it() -> None:
    rig, one, two = ConsumerRig(EARLIEST, min_acks=2), StoreRig("A"), StoreRig("B")
    rig.meet(one)
    rig.meet(two)
    one.keep(0, b"0")
    rig.stores[two.endpoint] = one  # the consumer does not know yet that B has died, and A come back there
    rig.wait(3)
    assert rig.values() == []


def test_a_store_that_is_gone_counts_no_more_and_its_successor_does() -> None:
    rig, one, two = met_two()
    for store in (one, two):
        store.keep(1, b"1")
    rig.lose(two)
    told(rig, one, 1)
    rig.wait(3)
    assert rig.values() == [b"0"]
    three = StoreRig("C")
    three.keep(0, b"0", b"1")
    rig.meet(three)
    assert rig.values() == [b"0", b"1"]


def test_a_store_counts_for_what_it_has_let_go_of() -> None:
    rig, one, two = ConsumerRig(EARLIEST, min_acks=2), StoreRig("A"), StoreRig("B")
    one.keep(0, b"0")
    one.keep(1, b"1")
    two.keep(1, b"1")
    two.storage.reset("hello", "P", 1)
    rig.meet(one)
    rig.meet(two)
    assert rig.values() == [b"0", b"1"]


def holed(name: str, *holes: int) -> StoreRig:
    """A store with ten records, of which it lacks some."""
    store = StoreRig(name)
    for offset in range(10):
        if offset not in holes:
            store.keep(offset, b"%d" % offset)
    return store


def test_a_store_does_not_count_for_what_it_lacks() -> None:
    rig, one, two = ConsumerRig(EARLIEST, min_acks=2), holed("A"), holed("B", 4, 5)
    rig.meet(one)
    rig.meet(two)
    rig.wait(3)
    assert rig.offsets() == [0, 1, 2, 3]
    assert not rig.events
    rig.wait(6)
    assert rig.events == [RecordsUnconfirmed("hello", "P", 4, 9, 2)], "said once"
    heal(two, 4, 5)
    rig.wait(1.5)
    assert rig.offsets() == [*range(10)]


def heal(store: StoreRig, *offsets: int) -> None:
    for offset in offsets:
        store.keep(offset, b"%d" % offset, heal=True)


def test_what_all_stores_lack_is_passed_over_as_ever() -> None:
    rig, one, two = ConsumerRig(EARLIEST, min_acks=2), holed("A", 4), holed("B", 4)
    rig.meet(one)
    rig.meet(two)
    rig.wait(LOG_LIMITS.pass_over_s + 5)
    assert rig.offsets() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert [type(each) for each in rig.events][-1] is RecordsLost


def test_what_one_store_lacks_and_the_other_has_let_go_of_is_passed_over() -> None:
    rig, one, two = ConsumerRig(EARLIEST, min_acks=2), holed("A"), holed("B", 4, 5)
    rig.meet(one)
    rig.meet(two)
    rig.wait(3)
    assert rig.offsets() == [0, 1, 2, 3]
    one.storage.reset("hello", "P", 6)
    rig.wait(LOG_LIMITS.pass_over_s + 5)
    assert rig.offsets() == [0, 1, 2, 3, 6, 7, 8, 9]
    assert [type(each) for each in rig.events if not isinstance(each, RecordsUnconfirmed)] == [RecordsLost]


def test_one_store_alone_passes_over_nothing_that_two_have_to_have() -> None:
    rig, one, two = ConsumerRig(EARLIEST, min_acks=2), holed("A"), holed("B", 4, 5)
    rig.meet(one)
    rig.meet(two)
    rig.lose(two)
    one.storage.reset("hello", "P", 6)
    rig.wait(LOG_LIMITS.pass_over_s + 5)
    assert rig.offsets() == [0, 1, 2, 3]


def test_a_word_of_what_comes_behind_a_hole_does_not_count_for_the_hole() -> None:
    rig, one, two = met_two()
    one.keep(1, b"1")
    one.keep(2, b"2")
    two.keep(2, b"2")
    rig.deaf = {one.endpoint, two.endpoint}  # nothing is listed meanwhile
    told(rig, two, 2, first=2)
    told(rig, one, 2)
    rig.deaf = {two.endpoint}
    rig.wait(3)
    assert rig.values() == [b"0"]


def said(actions: list[Effect]) -> list[object]:
    return [each for each in published(actions) if isinstance(each, OnDisk)]


def test_a_store_says_from_where_on_nothing_is_missing() -> None:
    store = holed("S", 3, 4)
    store.subscribe(b"Jhel")
    actions = store.written(store.batch(10, b"10"))
    assert said(actions) == [OnDisk("hello", store.storage.store_id, "P", 5, 10)]


def test_a_store_says_so_to_nobody_if_nobody_wants_it() -> None:
    store = StoreRig("S")
    store.subscribe(b"Hhello", b"Jhello2")
    assert said(store.written(store.batch(0, b"0"))) == []


def test_holes_in_an_answer_are_bounded_and_the_last_one_covers_the_rest() -> None:
    info = PartitionInfo("t", "p", 0, 10_000, 1, 1, 1, 1)
    holes = [Hole("t", "p", 2 * n, 2 * n) for n in range(HOLES_TOLD_MAX + 5)] + [Hole("t", "q", 1, 1)]
    answer = heads_answer([info], 0, 10, 1, holes=holes)
    assert len(answer.holes) == HOLES_TOLD_MAX
    assert answer.holes[-1] == (b"t", b"p", 2 * (HOLES_TOLD_MAX - 1), 9_999)
