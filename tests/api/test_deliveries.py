"""Waiting for single records."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path

import pytest
from tests.api.members import PATIENCE_S, wait_until

from chappe.api.log import deliveries as module
from chappe.api.log.aio import AsyncProducer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.errors import BufferFull, Closed, IdentityInUse, MemberStopped, TimedOut, UsageError


def test_a_record_is_delivered_once_a_store_has_it(tower: str, tmp_path: Path) -> None:
    with Producer("hello", tower=tower) as producer:
        producer.send_many([b"x"] * 100)
        producer.send(b"x", topic="other")
        futures = [producer.delivered(offset) for offset in (99, 0, 50, 50)]
        other = producer.delivered(0, "other")
        assert not any(each.done() for each in (*futures, other))
        with Store(tmp_path, tower=tower):
            wait([*futures, other], PATIENCE_S)
            assert [each.result(0) for each in futures] == [99, 0, 50, 50]
            assert other.result(0) == 0
            assert producer.delivered(7).done()  # at once


def test_callbacks_may_use_the_producer_and_come_in_order(tower: str, store: Store) -> None:
    with Producer("hello", tower=tower) as producer:
        found: list[tuple[int, int]] = []

        def note(future: Future[int]) -> None:
            assert threading.current_thread() is not threading.main_thread()
            other = threading.Thread(target=lambda: producer.send(b"from a callback", topic="other"))
            other.start()  # would never end if the lock were held
            other.join(PATIENCE_S)
            assert not other.is_alive()
            found.append((future.result(), producer.stored))

        with producer._lock:  # no acknowledgement meanwhile
            for offset in range(20):
                producer.send(b"x")
                producer.delivered(offset).add_done_callback(note)
        wait_until(lambda: len(found) == 20)
    assert [offset for offset, _ in found] == list(range(20))
    assert all(offset < stored for offset, stored in found)


def test_records_that_are_none_cannot_be_waited_for(tower: str) -> None:
    producer = Producer("hello", tower=tower)
    for offset in (0, -1):
        with pytest.raises(UsageError, match="no record at offset"):
            producer.delivered(offset)
    producer.leave(0.0)


def test_a_producer_that_closes_gives_up(tower: str) -> None:
    producer = Producer("hello", tower=tower)
    waiting = producer.delivered(producer.send(b"x"))
    cancelled = producer.delivered(0)
    assert cancelled.cancel()
    with pytest.raises(TimedOut):
        producer.close(0.0)
    with pytest.raises(
        TimedOut, match="closed before stores said that they hold the record at offset 0 of topic 'hell"
    ):
        waiting.result(0)
    with pytest.raises(CancelledError):
        cancelled.result(0)
    with pytest.raises(Closed):
        producer.delivered(0)


def test_what_stops_a_producer_is_told(tower: str) -> None:
    producer = Producer("hello", tower=tower)
    waiting = producer.delivered(producer.send(b"x"))
    with producer._lock:
        producer._fail(IdentityInUse("another one"))
    with pytest.raises(IdentityInUse, match="another one"):
        waiting.result(PATIENCE_S)
    producer.leave(0.0)


@pytest.mark.provokes_defects
def test_a_defect_is_told(tower: str) -> None:
    producer = Producer("hello", tower=tower)
    waiting = producer.delivered(producer.send(b"x"))
    producer._node.halt(RuntimeError("made on purpose"))
    with pytest.raises(MemberStopped, match="made on purpose"):
        waiting.result(PATIENCE_S)
    producer.leave(0.0)


def test_without_acknowledgements_a_record_is_delivered_when_it_left(tower: str) -> None:
    with Producer("hello", tower=tower, min_acks=0) as producer:
        assert producer.delivered(producer.send(b"x")).result(PATIENCE_S) == 0


def test_how_many_can_be_waited_for_is_bounded(tower: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELIVERIES_MAX", 2)
    producer = Producer("hello", tower=tower)
    producer.send(b"x")
    for _ in range(2):
        producer.delivered(0)
    with pytest.raises(BufferFull):
        producer.delivered(0)
    producer.leave(0.0)


def test_a_coroutine_waits_for_its_record_and_the_loop_goes_round(tower: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncProducer("hello", tower=tower) as producer:
            sending = [asyncio.create_task(producer.send_and_wait(b"x", topic=topic)) for topic in (None, "b", None)]
            for _ in range(100):
                await asyncio.sleep(0)
            assert producer.next_offset == 2
            assert not any(each.done() for each in sending)
            store = await asyncio.to_thread(Store, tmp_path, tower=tower)
            assert await asyncio.wait_for(asyncio.gather(*sending), PATIENCE_S) == [0, 0, 1]
            assert await producer.delivered(1) == 1
            assert producer.stored == 2
            await asyncio.to_thread(store.close)

    asyncio.run(run())
