"""Records of original producers reach everybody.

An original's answers to FETCH carry wrong contents beyond its first 256 unacknowledged records and after a partial
acknowledgement (faults 1 and 2 in docs/reference/protocol.md), and whoever asks cannot tell. So listeners are
connected before many records are sent, or few records are sent and none of them is acknowledged before.
"""

from __future__ import annotations

from typing import Literal

import pytest
from tests.interop.network import Network, silent, take, wait_until_stored
from tests.waiting import until

from chappe import Consumer
from chappe.log.events import RecordsLost
from chappe.log.introducing import Leaving
from chappe.log.messages import Ack

pytestmark = [pytest.mark.interop, pytest.mark.process]

MANY = [f"line {n}" for n in range(5_000)]
FEW = [f"line {n}" for n in range(200)]
LARGE = [f"line {n} " + 200_000 * "x" for n in range(300)]  # 60 MB: more than a consumer takes that is not read


def test_live_to_our_consumer(network: Network, topic: str) -> None:
    consumer = network.consumer(topic, reset="latest")
    network.original_producer(topic).send(MANY)
    records = take(consumer, len(MANY))
    assert [record.value for record in records] == [line.encode() for line in MANY]
    assert [record.offset for record in records] == list(range(len(MANY)))
    assert silent(consumer)


def test_our_consumer_fetches_what_it_missed(network: Network, topic: str) -> None:
    producer = network.original_producer(topic)
    producer.send(FEW)
    consumer = network.consumer(topic)
    assert [record.value for record in take(consumer, len(FEW))] == [line.encode() for line in FEW]
    producer.send(["and on"])
    assert [record.value for record in take(consumer, 1)] == [b"and on"]
    assert silent(consumer)


def test_stored_by_our_store(network: Network, topic: str) -> None:
    """The console producer ends only after everything was acknowledged; then only the store can have it.

    It is not asked to end before everything is stored: with more than 2,000 lines in its queue it may abort (fault 6).
    """
    store = network.store()
    producer = network.original_producer(topic)
    producer.send(MANY)
    wait_until_stored(store, topic, len(MANY))
    assert producer.finish() == 0
    late, ours = network.original_consumer(topic, from_beginning=True), network.consumer(topic)
    late.expect(len(MANY))
    assert late.contents(topic) == MANY
    assert [record.value for record in take(ours, len(MANY))] == [line.encode() for line in MANY]


def test_our_store_fetches_what_it_missed(network: Network, topic: str) -> None:
    producer = network.original_producer(topic)
    producer.send(FEW)
    store = network.store()
    assert producer.finish() == 0
    wait_until_stored(store, topic, len(FEW))
    consumer = network.consumer(topic)
    assert [record.value for record in take(consumer, len(FEW))] == [line.encode() for line in FEW]
    assert not any(isinstance(event, RecordsLost) for event in store.events())


def test_several_at_once(network: Network, topic: str) -> None:
    store = network.store()
    consumer = network.consumer(topic)
    producers = [network.original_producer(topic) for _ in range(3)]
    for producer in producers:
        producer.send(MANY)
    wait_until_stored(store, topic, 3 * len(MANY))
    records = take(consumer, 3 * len(MANY))
    partitions = {record.partition for record in records}
    assert len(partitions) == 3
    for partition in partitions:
        mine = [record.value for record in records if record.partition == partition]
        assert mine == [line.encode() for line in MANY]


def met(consumer: Consumer) -> list[str]:
    """The addresses of all that a consumer knows."""
    with consumer._node.lock:
        return [address for address, _ in consumer._node.discovery.met]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("cut_off", [False, True])
def test_the_last_records_of_a_producer_that_has_left(
    network: Network, topic: str, reset: Literal["earliest", "latest"], cut_off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves when its store has acknowledged, and the consumer has not read them yet, or its connection is lost."""
    if cut_off:
        monkeypatch.setattr(
            Leaving, "look", lambda self, unread, now: [each for each in [*self._empty] if self.stay(each)]
        )
    network.original_store()
    consumer = network.consumer(topic, reset=reset)
    witness = network.new_witness("K")
    producer = network.original_producer(topic)
    producer.send(LARGE)
    last = len(LARGE) - 1

    def stored() -> list[str]:
        return [each.topic for each in witness.messages if isinstance(each, Ack) and each.sequence == last]

    until(stored, "the store has all")
    producer.kill()  # it is done; asked to end, it may wait for ever
    (address,) = set(stored())
    until(lambda: address not in met(consumer), "the consumer has noticed")
    values = [record.value for record in take(consumer, len(LARGE))]
    assert values == [line.encode() for line in LARGE]
    assert silent(consumer)
