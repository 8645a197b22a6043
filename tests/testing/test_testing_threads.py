"""Programs with threads of their own, and waits that are none of chappe's."""

from __future__ import annotations

import queue
import threading
import time

from chappe import Consumer, Endpoint, Producer
from chappe.testing import Log, World


def test_a_thread_of_the_program_takes_part(chappe_log: Log) -> None:
    found: list[bytes | None] = []

    def read() -> None:
        with Consumer("readings") as readings:
            for record in readings:
                found.append(record.value)
                if record.value == b"end":
                    return

    thread = threading.Thread(target=read)
    thread.start()
    chappe_log.write("readings", "1", "2")
    time.sleep(100)
    chappe_log.write("readings", "end")
    thread.join()
    assert found == [b"1", b"2", b"end"]


def test_who_waits_for_a_queue_is_not_waited_for(chappe_log: Log) -> None:
    todo: queue.Queue[str | None] = queue.Queue()

    def send() -> None:
        with Producer("readings") as producer:
            while (value := todo.get()) is not None:
                producer.send(value)

    thread = threading.Thread(target=send)
    thread.start()
    with Consumer("readings") as consumer:
        todo.put("1")
        batch = consumer.poll(500)
        assert batch is not None
        todo.put(None)
    thread.join()


def test_futures_of_records_come_true(chappe_log: Log) -> None:
    with Producer("readings") as producer:
        assert producer.delivered(producer.send("1")).result(30) == 0


def test_who_only_looks_sees_time_pass(chappe_log: Log) -> None:
    chappe_log.write("readings", "1")
    with Consumer("readings") as consumer:
        while consumer.poll(0) is None:
            pass


def test_callbacks_may_wait(chappe_world: World) -> None:
    with Endpoint() as one, Endpoint() as other, Endpoint() as third:
        port = third.listen()
        heard = third.subscribe("alarms/")
        other.peer("127.0.0.1", port, timeout=10)
        seen: list[object] = []

        def hand_on(received: object) -> None:
            time.sleep(30)
            other.publish("alarms/b", 1)
            seen.append(received)

        other.subscribe("readings/").call_back(hand_on)
        one.peer("127.0.0.1", other.listen(), timeout=10)
        one.publish("readings/a", 1)
        assert heard.get(timeout=60) is not None
        chappe_world.wait_until(lambda: seen)


def test_sleep_takes_no_time(chappe_world: World) -> None:
    began, wall = time.monotonic(), time.time()
    time.sleep(10_000)
    assert 10_000 <= time.monotonic() - began < 10_001
    assert 10_000 <= time.time() - wall < 10_001
