"""Ordered topics: a chain of stores, its writers and readers, in one process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.api.chain_rig import Ledger, new_configuration
from tests.waiting import until

from chappe import (
    AsyncConsumer,
    AsyncOrderedProducer,
    ChainConfiguration,
    ChainServer,
    Consumer,
    OrderedProducer,
    OrderedStore,
    Record,
    read_topic,
)
from chappe.errors import (
    BufferFull,
    Closed,
    CommandFailed,
    NoChain,
    OffsetConflict,
    ProtocolError,
    RecordTooLarge,
    TimedOut,
    UsageError,
)
from chappe.log.batch import encode_batch, encode_sealed
from chappe.log.ordered.commands import Append, decode_command
from chappe.log.ordered.keeping import Keeping
from chappe.log.ordered.machine import OrderedLog

WALL = 1_700_000_000_000_000


@pytest.fixture
def stores(tmp_path: Path, tower: str) -> Iterator[list[OrderedStore]]:
    configuration = new_configuration("ab")
    with ExitStack() as stack:
        yield [
            stack.enter_context(OrderedStore(tmp_path / name, chain=configuration, name=name, tower=tower))
            for name in configuration.names
        ]


@pytest.fixture
def chain(stores: list[OrderedStore]) -> ChainConfiguration:
    return stores[0]._server.configuration


def test_records_of_several_writers_are_in_one_order_at_all_stores(
    stores: list[OrderedStore], chain: ChainConfiguration, tower: str
) -> None:
    def write(name: str) -> None:
        with OrderedProducer("t", chain=chain) as producer:
            for number in range(500):
                producer.send(f"{name} {number}")

    threads = [threading.Thread(target=write, args=(name,)) for name in "xyz"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    def contents(store: OrderedStore) -> list[str]:
        return [each.decode() for each in read_topic("t", stores=store.endpoint)["value"].to_pylist()]

    until(lambda: all(each.status().written_records == 1_500 for each in stores))
    found = contents(stores[0])
    assert contents(stores[1]) == found
    for name in "xyz":
        assert [each for each in found if each.startswith(name)] == [f"{name} {number}" for number in range(500)]
    with Consumer("t", tower=tower) as consumer:
        assert [each.value.decode() for each in consumer.to_end() if each.value is not None] == found


def test_records_come_as_they_were_sent(chain: ChainConfiguration, tower: str) -> None:
    with Consumer("t", tower=tower) as consumer, OrderedProducer("t", chain=chain, partitions=3) as producer:
        producer.send("a", key="k", headers={"h": "v"}, timestamp=WALL)
        producer.send(None, key="k")
        producer.send_batch(encode_batch(9, [b"x", b"y"], WALL), partition=producer.partition_of("k"))
        producer.flush()
        found: list[Record] = []

        def come() -> bool:
            found.extend(consumer.poll(0.05) or ())
            return len(found) == 4

        until(come)

        name = producer.partitions[producer.partition_of("k")]
        assert {each.partition for each in found} == {name}
        assert [(each.offset, each.key, each.value) for each in found] == [
            (0, b"k", b"a"), (1, b"k", None), (2, None, b"x"), (3, None, b"y"),
        ]  # fmt: skip
        assert (found[0].headers, found[0].timestamp, found[3].timestamp) == ((("h", b"v"),), WALL, WALL)
        assert (producer.sent, producer.stored) == (4, 4)


def test_who_expects_another_offset_appends_nothing(chain: ChainConfiguration) -> None:
    with OrderedProducer("t", chain=chain) as one, OrderedProducer("t", chain=chain) as other:
        assert one.append(["a", "b"], expected_offset=0) == range(2)
        with pytest.raises(OffsetConflict, match="goes on at offset 2, not at 1") as conflict:
            other.append([b"c"], expected_offset=1)
        assert conflict.value.next_offset == 2
        assert other.append([b"c"], expected_offset=2) == range(2, 3)
        one.send("d")
        assert one.append(["e"]) == range(4, 5)  # behind what was sent before
        assert one.ends() == other.ends() == (5,)


def test_a_topic_keeps_the_number_of_its_partitions(chain: ChainConfiguration) -> None:
    with OrderedProducer("t", chain=chain, partitions=3) as first, OrderedProducer("t", chain=chain) as second:
        assert second.partitions == first.partitions
        assert len(set(first.partitions)) == 3
        with pytest.raises(UsageError, match="has 3 partitions"):
            OrderedProducer("t", chain=chain, partitions=2)
        with pytest.raises(UsageError, match="name one of them"):
            first.append(["a"])
        with OrderedProducer("u", chain=chain) as other:
            assert len(other.partitions) == 1


def test_what_cannot_be_sent_is_refused(chain: ChainConfiguration, tmp_path: Path, tower: str) -> None:
    with OrderedProducer("t", chain=chain) as producer:
        with pytest.raises(RecordTooLarge):
            producer.send(bytes(4 << 20))
        with pytest.raises(RecordTooLarge):
            producer.append([bytes(3 << 20), bytes(3 << 20)])
        with pytest.raises(ProtocolError):
            producer.send_batch(b"nothing of the kind")
        with pytest.raises(UsageError, match="sealed"):
            producer.send_batch(encode_sealed(0, 1, WALL, WALL, bytes(80)))
        with pytest.raises(UsageError, match="no partition 1"):
            producer.send("a", partition=1)
        with pytest.raises(UsageError, match="values are appended at once"):
            producer.append([])
        with pytest.raises(UsageError, match="no offset"):
            producer.append(["a"], expected_offset=-7)
        with pytest.raises(UsageError, match="no offset"):
            producer.append(["a"], expected_offset="7")  # type: ignore[arg-type]
        given: Any
        for given in (5, 3_000_000_000, 1.5, ["x"], "a\ud800"):
            for call in (
                lambda given=given: producer.send(given),
                lambda given=given: producer.send("a", given),
                lambda given=given: producer.send("a", headers={"a": given}),
                lambda given=given: producer.send_many([given]),
                lambda given=given: producer.send_batch(given),
                lambda given=given: producer.append([given]),
                lambda given=given: producer.append(["a"], key=given),
                lambda given=given: producer.append(["a"], partition=given),
                lambda given=given: producer.partition_of(given),
                lambda given=given: OrderedProducer(given, chain=chain),
            ):
                with pytest.raises(UsageError):
                    call()
        for several in ("text", b"bytes", 5):
            with pytest.raises(UsageError, match="values are several"):
                producer.append(several)  # type: ignore[arg-type]
        producer.flush()
        assert producer.ends() == (0,)
    with pytest.raises(Closed):
        producer.send("a")
    for options, text in (({"partitions": 0}, "1 to 1,024"), ({"on_full": "wait"}, "on_full")):
        with pytest.raises(UsageError, match=text):
            OrderedProducer("t", chain=chain, **options)
    in_memory = new_configuration("a", durable=False)
    with pytest.raises(UsageError, match="must be durable"):
        OrderedStore(tmp_path / "other", chain=in_memory, name="a", tower=tower)


def test_of_many_those_before_one_that_cannot_be_sent_are_sent(chain: ChainConfiguration) -> None:
    with OrderedProducer("t", chain=chain) as producer:
        with pytest.raises(RecordTooLarge):
            producer.send_many(["a", "b", bytes(4 << 20), "c"])
        producer.flush()
        assert producer.ends() == (2,)


def test_a_buffer_is_full_while_nobody_confirms(stores: list[OrderedStore], chain: ChainConfiguration) -> None:
    with OrderedProducer("t", chain=chain) as producer:
        producer.append(["a"])
    failing = OrderedProducer("t", chain=chain, buffer_bytes=200_000, on_full="error")
    for each in stores:
        each.close()
    with pytest.raises(BufferFull, match="send again later"):
        failing.send_many([bytes(1_000)] * 10_000)
    assert 100 < failing.sent < 300
    with pytest.raises(TimedOut, match=r"records of topic 't' are not confirmed"):
        failing.flush(0.2)
    with pytest.raises(TimedOut):
        failing.close(0.1)
    with pytest.raises(NoChain):
        OrderedProducer("t", chain=chain, timeout=0.2)


def test_a_fixed_chain_keeps_no_ordered_topics(tmp_path: Path) -> None:
    configuration = new_configuration("a", fixed=True)
    with pytest.raises(UsageError, match="ordered topics need servers that agree"):
        OrderedStore(tmp_path / "a", chain=configuration, name="a")
    with pytest.raises(UsageError, match="ordered topics need servers that agree"):
        OrderedProducer("t", chain=configuration)


def test_a_store_goes_on_with_what_it_has(tmp_path: Path, tower: str) -> None:
    configuration = new_configuration("a")
    for life in range(3):
        with (
            OrderedStore(tmp_path / "a", chain=configuration, name="a", tower=tower) as store,
            OrderedProducer("t", chain=configuration) as producer,
        ):
            assert producer.ends() == (2 * life,)
            producer.append([b"%d" % life, b"x"])
            assert read_topic("t", stores=store.endpoint).num_rows == 2 * life + 2  # at once
            assert store.member
            assert store.chain_status().committed > 0
            store.chain_events()
    with OrderedStore(tmp_path / "a", chain=configuration, name="a", tower=tower) as store:
        values = read_topic("t", stores=store.endpoint)["value"].to_pylist()
    assert values == [b"0", b"x", b"1", b"x", b"2", b"x"]


def test_another_chain_says_that_it_keeps_no_topics(tmp_path: Path) -> None:
    configuration = new_configuration("a")
    with (
        ChainServer(Ledger(), configuration, "a", directory=tmp_path),
        pytest.raises(UsageError, match="does not keep ordered topics"),
    ):
        OrderedProducer("t", chain=configuration)


class Broken(OrderedLog):
    """Has a defect."""

    def apply(self, command: bytes) -> bytes:
        if isinstance(decode_command(command), Append):
            raise RuntimeError("a defect")
        return super().apply(command)


def test_what_became_of_records_is_said_once(tmp_path: Path) -> None:
    configuration = new_configuration("a")
    with ChainServer(Broken(Keeping(1 << 20)), configuration, "a", directory=tmp_path):
        producer = OrderedProducer("t", chain=configuration)
        producer.send("a")
        with pytest.raises(CommandFailed, match="a defect"):
            producer.flush()
        producer.flush()
        assert (producer.sent, producer.stored) == (1, 0)
        producer.close()


def test_consumers_in_an_event_loop_get_what_is_confirmed_in_order(chain: ChainConfiguration, tower: str) -> None:
    async def run() -> None:
        async with AsyncOrderedProducer("t", chain=chain) as producer, AsyncConsumer("t", tower=tower) as consumer:
            for number in range(200):
                await producer.send(b"%d" % number, key=b"k")
            await producer.flush()
            found = []
            async for record in consumer:
                found.append(record)
                if len(found) == 200:
                    break
            assert [each.value for each in found] == [b"%d" % number for number in range(200)]
            assert [each.offset for each in found] == list(range(200))
            assert {each.partition for each in found} == set(await producer.partitions())

    asyncio.run(run())


def test_the_same_in_an_event_loop(chain: ChainConfiguration) -> None:
    async def run() -> None:
        async with AsyncOrderedProducer("t", chain=chain, partitions=2, buffer_bytes=100_000) as producer:
            for number in range(500):
                await producer.send(bytes(1_000), key=b"%d" % number)
            await producer.flush()
            assert sum(await producer.ends()) == 500
            assert len(await producer.partitions()) == 2
            first = await producer.append(["a"], partition=1)
            with pytest.raises(OffsetConflict):
                await producer.append(["a"], partition=1, expected_offset=first.start)

    asyncio.run(run())
