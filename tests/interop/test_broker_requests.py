"""Requests and queues of endpoints of chappe around an original Broker, which passes on the topics it is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.interop.broker_original import VARIABLE, Original, find_bindings
from tests.waiting import PATIENCE_S, until

from chappe import Endpoint, Subscriber
from chappe.errors import NoResponders, RequestFailed

pytestmark = pytest.mark.process
HOST = "127.0.0.1"
Around = tuple[Endpoint, Original, Endpoint]


@pytest.fixture
def around() -> Iterator[Around]:
    """Two endpoints of chappe, which reach each other over an original alone."""
    bindings = find_bindings()
    if bindings is None:
        pytest.skip(f"the original Broker is not here: set {VARIABLE} to the directory of its Python bindings")
    with ExitStack() as stack:
        middle = stack.enter_context(Original(bindings, {"plain": True}))
        port = middle.listen()
        ends = [stack.enter_context(Endpoint()) for _ in range(2)]
        for each in ends:
            each.peer(HOST, port, timeout=PATIENCE_S)
        yield ends[0], middle, ends[1]


def test_requests_are_answered_over_an_original(around: Around) -> None:
    one, middle, other = around
    other.respond("square/", lambda request: request.value * request.value)
    with pytest.raises(NoResponders):  # an original does not say who is behind it
        one.request("square/", 12)
    for topic in ("square/", "<$>/inbox/"):
        middle.forward(topic)
    for endpoint, prefix in ((one, b"square/"), (other, b"<$>/inbox/")):
        until(lambda e=endpoint, p=prefix: p in e.core.peer_subscriptions())  # type: ignore[misc]

    answer = one.request("square/", 12, timeout=PATIENCE_S)

    assert (answer.value, answer.responder) == (144, other.id)
    with pytest.raises(RequestFailed, match="TypeError"):
        one.request("square/", "x", timeout=PATIENCE_S)
    assert [each.value for each in one.request("square/", 3, timeout=PATIENCE_S, answers=1)] == [9]


def test_members_beyond_an_original_are_of_the_same_queue_if_it_passes_on_their_words(around: Around) -> None:
    one, middle, other = around
    for topic in ("jobs/", "<$>/queue/"):
        middle.forward(topic)
    workers = [each.subscribe("jobs/", queue="workers") for each in (one, other)]
    with Endpoint() as publisher:
        publisher.peer(HOST, one.listen(), timeout=PATIENCE_S)
        queue = workers[0].queue
        for each in (one, other):
            until(lambda each=each: len(each.node.member.queues.story(queue)) == 2)  # type: ignore[misc]
        until(lambda: b"jobs/" in publisher.core.peer_subscriptions())
        publisher.publish_batch(("jobs/a", number) for number in range(100))
        assert took(workers, 100) == Counter(range(100))


def took(workers: list[Subscriber], count: int) -> Counter[int]:
    """What the members took, once it is as many as they were sent, and half a second later."""
    found: Counter[int] = Counter()
    until(lambda: found.update(m.value for each in workers for m in each.poll()) or found.total() >= count)
    for each in workers:
        found.update(message.value for message in each.get_many(100, 0.5))
    return found
