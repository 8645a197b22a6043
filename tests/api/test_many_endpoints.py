"""What many endpoints in one process take of the system: one thread, and descriptors for what is connected."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack

from tests.alone import alone
from tests.endpoints import Make, until
from tests.waiting import new_threads

from chappe import Endpoint

ENDPOINTS = 200
RAYS = 40  # each hears of all others, so the time grows with the square
WAKEUP = 1 if sys.platform == "linux" else 2
ALARM = 1 if sys.platform == "linux" else 0
LOOP = 1 + WAKEUP + ALARM  # the loop's selector besides


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/dev/fd"))


def with_endpoints(test: Callable[[Make], None]) -> None:
    with ExitStack() as stack:
        test(lambda **options: stack.enter_context(Endpoint(**options)))


def test_endpoints_without_peers_share_one_thread_and_its_descriptors() -> None:
    alone(with_endpoints, without_peers)


def without_peers(make: Make) -> None:
    threads, before = set(threading.enumerate()), descriptors()
    endpoints = [make() for _ in range(ENDPOINTS)]
    for each in endpoints:
        subscriber = each.subscribe("/t")
        assert each.publish("/t", 1) == 0
        assert subscriber.get(0) is None
        each.attach_master("s").put("k", 1)
    assert new_threads(threads) == ["chappe-loop"]
    assert descriptors() == before + LOOP


def test_an_endpoint_that_listens_takes_two_descriptors() -> None:
    alone(with_endpoints, listening)


def listening(make: Make) -> None:
    before = descriptors()
    threads = set(threading.enumerate())
    for _ in range(ENDPOINTS):
        make().listen()
    assert new_threads(threads) == ["chappe-loop"]
    assert descriptors() == before + LOOP + 2 * ENDPOINTS


def test_a_star_takes_a_descriptor_for_each_end_of_a_connection() -> None:
    alone(with_endpoints, star)


def star(make: Make) -> None:
    before = descriptors()
    threads = set(threading.enumerate())
    hub = make()
    port = hub.listen()
    rays = [make() for _ in range(RAYS)]
    got = hub.subscribe("/t", messages_max=RAYS)
    for each in rays:
        each.peer("127.0.0.1", port)
        each.await_peer(hub.id)
        each.publish("/t", each.id)
    until(lambda: got.available == RAYS)
    assert {each.value for each in got.poll()} == {each.id for each in rays}
    assert new_threads(threads) == ["chappe-loop"]
    # the listener; of each endpoint a selector, of each ray a wake-up, as a thread has waited; both ends of each link
    assert descriptors() <= before + LOOP + 1 + (RAYS + 1) + WAKEUP * RAYS + 2 * RAYS
