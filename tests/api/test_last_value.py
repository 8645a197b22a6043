"""Consumers that begin with the newest record of each key, at real stores and forwarders."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.api.members import PATIENCE_S, read, wait_until

from chappe import AsyncConsumer, Consumer, Forwarder, Producer, Store, Tower
from chappe.errors import UsageError


def by_key(consumer: Consumer, count: int) -> dict[bytes | None, bytes | None]:
    found = {each.key: each.value for each in read(consumer, count)}
    assert len(found) == count
    return found


def test_a_late_consumer_gets_the_newest_of_each_key_and_what_comes(tmp_path: Path) -> None:
    with (
        Forwarder(tmp_path, listen="127.0.0.1:0") as forwarder,
        Producer("prices", forwarders=forwarder.address) as producer,
    ):
        for round_ in range(20):
            for name in ("a", "b", "c"):
                producer.send(b"%d" % round_, key=name)
        producer.send(None, key="c")
        producer.send(b"no key")
        producer.flush(PATIENCE_S)
        with Consumer("prices", forwarders=forwarder.address, reset="last-value") as consumer:
            assert by_key(consumer, 2) == {b"a": b"19", b"b": b"19"}
            producer.send(b"20", key="a")
            producer.send(b"another")
            assert [(each.key, each.value) for each in read(consumer, 2)] == [(b"a", b"20"), (None, b"another")]
            assert consumer.position() == {("prices", producer.partition): 64}
            assert consumer.events() is not None


def test_what_there_is_now_ends(tmp_path: Path) -> None:
    with Tower("127.0.0.1:0:0") as tower, Store(tmp_path, tower=tower.address):
        with Producer("prices", tower=tower.address) as producer:
            for each in range(1_000):
                producer.send(b"%d" % each, key=b"k%d" % (each % 10))
            producer.flush(PATIENCE_S)
        with Consumer("prices", tower=tower.address, reset="last-value") as consumer:
            found = {each.key: each.value for each in consumer.to_end(PATIENCE_S)}
        assert found == {b"k%d" % each: b"%d" % (990 + each) for each in range(10)}


def test_two_forwarders_of_which_one_dies_leave_nothing_out(tmp_path: Path) -> None:
    with (
        Forwarder(tmp_path / "one", listen="127.0.0.1:0") as one,
        Forwarder(tmp_path / "two", listen="127.0.0.1:0", peers=[one.address]) as two,
    ):
        addresses = [one.address, two.address]
        with Producer("prices", forwarders=addresses, min_acks=2) as producer:
            for each in range(5_000):
                producer.send(b"%d" % each + bytes(100), key=b"k%d" % (each % 2_500))
            producer.flush(PATIENCE_S)
            with Consumer("prices", forwarders=addresses, reset="last-value") as consumer:
                found = read(consumer, 1)
                one.close()
                while len({each.key for each in found}) < 2_500:
                    found += read(consumer, 1)
                newest = {each.key: each for each in found}
                assert all(each.offset >= 2_500 for each in newest.values())
                offsets = [each.offset for each in found]
                assert offsets == sorted(set(offsets))


def test_an_identity_goes_on_where_it_had_committed(tmp_path: Path) -> None:
    with (
        Tower("127.0.0.1:0:0") as tower,
        Store(tmp_path / "log", tower=tower.address),
        Producer("prices", tower=tower.address) as producer,
    ):
        for each in range(100):
            producer.send(b"%d" % each, key=b"k%d" % (each % 10))
        producer.flush(PATIENCE_S)
        options = {"tower": tower.address, "reset": "last-value", "identity": "me", "directory": tmp_path}
        with Consumer("prices", **options) as consumer:  # type: ignore[arg-type]
            assert len(read(consumer, 10)) == 10
            wait_until(lambda: consumer.position() == {("prices", producer.partition): 100})
            consumer.commit()
        producer.send(b"100", key=b"k0")
        producer.send(b"101", key=b"k0")
        producer.flush(PATIENCE_S)
        with Consumer("prices", **options) as consumer:  # type: ignore[arg-type]
            assert [each.value for each in read(consumer, 2)] == [b"100", b"101"]


def test_it_is_the_same_for_event_loops(tmp_path: Path) -> None:
    async def run(forwarder: str) -> list[bytes | None]:
        async with AsyncConsumer("prices", forwarders=forwarder, reset="last-value") as consumer:
            batch = await consumer.poll(PATIENCE_S)
            return [each.value for each in batch or ()]

    with (
        Forwarder(tmp_path, listen="127.0.0.1:0") as forwarder,
        Producer("prices", forwarders=forwarder.address) as producer,
    ):
        for each in range(10):
            producer.send(b"%d" % each, key="k")
        producer.flush(PATIENCE_S)
        assert asyncio.run(run(forwarder.address)) == [b"9"]


def test_another_word_is_refused() -> None:
    with pytest.raises(UsageError, match="last-value"):
        Consumer("prices", reset="newest")  # type: ignore[arg-type]
