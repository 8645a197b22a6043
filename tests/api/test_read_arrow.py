"""Events as columns, from a subscriber."""

from __future__ import annotations

import asyncio
import sys

import pyarrow as pa
import pytest
from tests.endpoints import PATIENCE_S, Make, event, until

from chappe import AsyncEndpoint, Endpoint, Subscriber
from chappe.columns import events
from chappe.data.scalars import Count
from chappe.data.zeek import Batch, Event
from chappe.errors import Closed, TooSlow, UsageError
from chappe.mesh.events import MessagesMalformed

TOPIC = "zeek/conn"


def joined(make: Make, **options: object) -> tuple[Endpoint, Subscriber, Endpoint]:
    """An endpoint that wants all of Zeek's, its subscriber, and one that has dialled it."""
    one, two = make(), make()
    subscriber = one.subscribe("zeek/", on_full="block", **options)  # type: ignore[arg-type]
    two.peer("localhost", one.listen())
    assert two.await_peer(one.id, PATIENCE_S)
    return one, subscriber, two


def read(subscriber: Subscriber, rows: int) -> list[pa.RecordBatch]:
    """So many rows, however many calls they come with."""
    found: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in found) < rows:
        more = subscriber.read_arrow(PATIENCE_S)
        assert more, f"only {found} came"
        found += more
    return found


def test_what_peers_publish_comes_as_columns(make: Make) -> None:
    _, subscriber, two = joined(make)
    two.publish_batch((TOPIC, Event("seen", Count(number), "x")) for number in range(100))
    two.publish("zeek/other", Batch([Event("seen", Count(number), "y") for number in range(100, 200)]))

    table = pa.Table.from_batches(read(subscriber, 200))

    assert table.schema.names == ["topic", "event", "network_time", "_1", "_2"]
    assert table["_1"].to_pylist() == list(range(200))
    assert table["topic"].to_pylist() == [TOPIC] * 100 + ["zeek/other"] * 100
    assert subscriber.available == 0
    assert subscriber.malformed == 0


def test_reading_waits_and_gives_nothing_after_its_timeout(make: Make) -> None:
    _, subscriber, _ = joined(make)

    assert subscriber.read_arrow(0.0) == []
    subscriber.close()
    with pytest.raises(Closed):
        subscriber.read_arrow()


def test_what_was_got_one_by_one_before_does_not_come_again(make: Make) -> None:
    _, subscriber, two = joined(make)
    two.publish_batch((TOPIC, Event("seen", number)) for number in range(1_000))
    until(lambda: subscriber.available == 1_000)

    first = subscriber.get(PATIENCE_S)
    table = pa.Table.from_batches(read(subscriber, 999))

    assert first is not None
    assert Event.parse(first.payload).args == (0,)
    assert table["_1"].to_pylist() == list(range(1, 1_000))


def test_damage_is_counted_and_told_and_what_is_right_comes(make: Make) -> None:
    one, subscriber, two = joined(make)
    statuses = one.statuses()
    assert two.try_publish(TOPIC.encode(), b"\x0f") is not None
    two.publish(TOPIC, Event("seen", 5))

    (batch,) = read(subscriber, 1)

    assert batch.column("_1").to_pylist() == [5]
    assert subscriber.malformed == 1
    told = event(statuses, MessagesMalformed)
    assert (told.topic, told.count) == (TOPIC.encode(), 1)
    assert "type 15 at byte 0 is unknown" in str(told)


def test_messages_that_are_too_old_are_left_out_as_they_are_of_get(make: Make) -> None:
    _, subscriber, two = joined(make, max_age_s=1e-6)
    two.publish(TOPIC, Event("seen", 5))

    with pytest.raises(TooSlow):
        subscriber.read_arrow(PATIENCE_S)


@pytest.mark.parametrize(("module", "named"), [("pyarrow", "Arrow"), ("numpy", "numpy")])
def test_without_what_it_needs_it_says_what_to_install_and_takes_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, module: str, named: str
) -> None:
    _, subscriber, two = joined(make)
    two.publish(TOPIC, Event("seen", 5))
    until(lambda: subscriber.available == 1)
    monkeypatch.delitem(sys.modules, "chappe.columns.events", raising=False)
    monkeypatch.delitem(sys.modules, "chappe.columns.wire", raising=False)
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(UsageError, match=rf"{named} is not installed; run: pip install 'chappe\[arrow\]'"):
        subscriber.read_arrow(0.0)
    assert subscriber.available == 1


def test_asyncio_reads_columns_and_keeps_what_a_reader_that_is_cancelled_has_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        async with AsyncEndpoint() as one, AsyncEndpoint() as two:
            subscriber = one.subscribe("zeek/", on_full="block")
            await two.peer("localhost", await one.listen())
            assert await two.await_peer(one.id)
            assert await subscriber.read_arrow(0.01) == []
            await two.publish(TOPIC, Batch([Event("seen", number) for number in range(5)]))

            begun, reading = asyncio.Event(), asyncio.get_running_loop()
            decoding = asyncio.Event()

            async def never(*_: object) -> None:
                begun.set()
                await decoding.wait()

            with monkeypatch.context() as patched:
                patched.setattr(asyncio, "to_thread", never)
                task = reading.create_task(subscriber.read_arrow())
                await begun.wait()
                assert subscriber.available == 0
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            (batch,) = await subscriber.read_arrow(PATIENCE_S)
            assert batch.column("_1").to_pylist() == list(range(5))
            assert subscriber.malformed == 0

    asyncio.run(asyncio.wait_for(body(), 3 * PATIENCE_S))


def test_a_reader_is_the_one_that_the_tests_of_columns_try() -> None:
    from chappe.columns import reader

    assert reader() is events.read
