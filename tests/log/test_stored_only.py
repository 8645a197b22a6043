"""A consumer that takes records from disks of stores alone."""

from __future__ import annotations

import pytest
from tests.log.consumer_rig import ConsumerRig
from tests.log.store_rig import WALL, StoreRig

from chappe.data.topic import Filter
from chappe.log.actions import Deliver, Of, Subscribe, Unsubscribe
from chappe.log.batch import encode_batch
from chappe.log.consumer import EARLIEST, LATEST, LogConsumer
from chappe.log.consuming import ConsumingMember
from chappe.log.messages import BatchMessage, Fetch, Stored, StoreInfo


def ack(rig: ConsumerRig, store: StoreRig, sequence: int) -> None:
    rig.do(rig.core.handle_message(Stored("P", store.storage.store_id, "hello", sequence), rig.now, WALL))
    assert rig.core.wrong() == []


def met() -> tuple[ConsumerRig, StoreRig]:
    """A consumer that has met a store with one record."""
    rig, store = ConsumerRig(EARLIEST, stored=True), StoreRig("S")
    store.keep(0, b"0")
    rig.meet(store)
    assert rig.values() == [b"0"]
    return rig, store


def test_it_does_not_ask_for_what_is_published() -> None:
    rig = ConsumerRig(EARLIEST, stored=True)
    wanted = {each.prefix for each in rig.start_actions if isinstance(each, Subscribe)}
    assert {b"A", b"Hhello"} < wanted
    assert not wanted & {b"Rhello", b"Mhello"}
    assert rig.core.unsubscribe(Filter("hello"), rig.now) == [Unsubscribe(b"Hhello")]


def test_a_record_comes_at_once_when_a_store_acknowledges_it_and_not_before() -> None:
    rig, store = met()
    rig.head(1)
    rig.wait(0.1)
    assert rig.values() == [b"0"]
    store.keep(1, b"1")
    ack(rig, store, 1)
    assert rig.values() == [b"0", b"1"]
    store.keep(2, b"2")
    ack(rig, store, 2)
    assert rig.values() == [b"0", b"1", b"2"], "also before its producer announces it"


def test_without_acknowledgements_the_next_look_finds_it() -> None:
    rig, store = met()
    store.keep(1, b"1")
    rig.wait(1.5)
    assert rig.values() == [b"0", b"1"]


def test_an_acknowledgement_of_a_partition_that_is_new_is_enough() -> None:
    rig, store = ConsumerRig(EARLIEST, stored=True), StoreRig("S")
    rig.meet(store)
    store.keep(0, b"0")
    ack(rig, store, 0)
    assert rig.values() == [b"0"]


@pytest.mark.parametrize("reset", [EARLIEST, LATEST], ids=repr)
def test_producers_are_never_asked_for_records(reset: object) -> None:
    rig = ConsumerRig(EARLIEST if reset is EARLIEST else LATEST, stored=True)
    rig.head(5)
    rig.wait(30)
    rig.head(9)
    rig.wait(30)
    assert not any(isinstance(each, Fetch) for each in rig.published)
    assert rig.delivered == []
    assert not rig.events


def test_what_nobody_had_comes_once_a_store_has_it() -> None:
    rig, store = ConsumerRig(EARLIEST, stored=True), StoreRig("S")
    rig.head(0)
    rig.wait(30)
    rig.meet(store)
    store.keep(0, b"0")
    ack(rig, store, 0)
    rig.wait(2)
    assert rig.values() == [b"0"]


def test_an_acknowledgement_of_somebody_unknown_is_ignored() -> None:
    rig, _ = met()
    rig.do(rig.core.handle_message(Stored("P", "stranger", "hello", 9), rig.now, WALL))
    assert rig.core.heads() == {("hello", "P"): 1}


def test_beside_one_that_takes_what_is_published_it_only_learns_of_it() -> None:
    node = ConsumingMember("N")
    for address, stored in (("live", False), ("stored", True)):
        node.add(LogConsumer(address, [Filter("hello")], EARLIEST, stored=stored), 0.0)
    node.handle_message(StoreInfo("", "S", "id", "tcp://s:1"), 0.0, WALL)
    message = BatchMessage("hello", "P", "hello", encode_batch(0, [b"x"], WALL))
    actions = node.handle_message(message, 0.0, WALL)
    assert [each.address for each in actions if isinstance(each, Of) and isinstance(each.action, Deliver)] == ["live"]
