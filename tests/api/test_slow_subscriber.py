"""A slow subscriber of one topic, over two hops of which the one between is a process, and others beside it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from tests.endpoints import PATIENCE_S, Make, make, until

from chappe import Endpoint
from chappe.data.scalars import Count
from chappe.defaults import AHEAD_MAX, SURPLUS_MESSAGES_MAX

__all__ = ["make"]

HEARTBEAT_S = PATIENCE_S  # nobody is given up, however long a machine stands still
MESSAGES = 2 * (2 * SURPLUS_MESSAGES_MAX + 2 * AHEAD_MAX)  # more than may be on its way by far
ROUNDS = 20
SLOW, FAST = "/slow", "/fast"
HOP = f"""
import sys
from chappe import Endpoint
with Endpoint(heartbeat_s={HEARTBEAT_S}) as hop:
    hop.peer("127.0.0.1", int(sys.argv[1]))
    print(hop.listen(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def sender(make: Make) -> Endpoint:
    return make(heartbeat_s=HEARTBEAT_S)


@pytest.fixture
def hop(sender: Endpoint) -> Iterator[int]:
    """The port of a process between the sender and others."""
    command = [sys.executable, "-c", HOP, str(sender.listen())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


@pytest.mark.process
def test_one_slow_subscriber_slows_its_publisher_and_nobody_else(sender: Endpoint, hop: int, make: Make) -> None:
    there, beside = make(heartbeat_s=HEARTBEAT_S), make(heartbeat_s=HEARTBEAT_S)
    slow = there.subscribe(SLOW, on_full="block", messages_max=100)
    others = [each.subscribe(FAST, on_full="block") for each in (there, beside)]
    for each in (there, beside):
        each.peer("127.0.0.1", hop)
        assert sender.await_peer(each.id, PATIENCE_S)
    messages = ((SLOW, [Count(number), "x" * 100]) for number in range(MESSAGES))
    publishing = threading.Thread(target=sender.publish_batch, args=(messages,))
    publishing.start()

    until(lambda: slow.available > 100 and not sender.room((SLOW.encode(),)), "the publisher to be held")
    taken: list[int] = []
    for number in range(ROUNDS):
        assert sender.publish(FAST, Count(number)) == 2
        assert [each.get(PATIENCE_S).value for each in others] == [number, number]  # type: ignore[union-attr]
        received = slow.get(PATIENCE_S)
        assert received is not None
        taken.append(received.value[0])
    assert publishing.is_alive()
    assert slow.available < MESSAGES // 2

    while len(taken) < MESSAGES:
        found = slow.get_many(1_000, PATIENCE_S)
        assert found
        taken += [each.value[0] for each in found]
    publishing.join(PATIENCE_S)
    assert taken == list(range(MESSAGES))
    assert slow.dropped == 0
