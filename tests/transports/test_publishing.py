"""A peer that does not take what is published holds nobody up, and nothing waits in the call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq
from tests.api.members import wait_until

from chappe.defaults import BACKLOG_BYTES_MAX
from chappe.transports import zeromq
from chappe.transports.zeromq import PublishingSocket

FRAME = b"T" + bytes(1 << 20)


class Clock:
    """Stands still."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(zeromq, "time", made)
    return made


@pytest.fixture
def full(clock: Clock) -> Iterator[tuple[PublishingSocket, zmq.Socket[bytes]]]:
    """A publisher, and a subscriber that takes nothing until its queue is full and two messages wait."""
    publisher = PublishingSocket(0.5)
    publisher.socket.setsockopt(zmq.SNDHWM, 2)
    port = publisher.socket.bind_to_random_port("tcp://127.0.0.1")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer = context.socket(zmq.SUB)
    peer.setsockopt(zmq.RCVHWM, 1)
    peer.setsockopt(zmq.SUBSCRIBE, b"T")
    peer.connect(f"tcp://127.0.0.1:{port}")
    assert publisher.subscription(publisher.socket.recv_multipart(copy=False)) == (b"T", True)
    while not publisher.waits:  # it returns at once, though the clock stands still
        publisher.send([FRAME, b"content"])
    publisher.send([b"T2", b"content"])
    yield publisher, peer
    publisher.socket.close()
    context.destroy(0)


Full = tuple[PublishingSocket, zmq.Socket[bytes]]


def test_what_a_full_peer_holds_up_is_kept_in_order_and_sent_when_it_takes_again(full: Full) -> None:
    publisher, peer = full
    assert publisher.waits
    found: list[list[bytes]] = []

    def all_is_out() -> bool:
        while peer.poll(0):
            found.append(peer.recv_multipart())
        publisher.retry()
        return bool(found) and found[-1][0] == b"T2"

    wait_until(all_is_out)
    assert (publisher.waits, publisher.waiting_bytes, publisher.kept) == (False, 0, publisher.sent)
    assert found[:-1] == [[FRAME, b"content"]] * (len(found) - 1)


def test_a_peer_that_stays_full_loses_and_nobody_waits_for_it(full: Full, clock: Clock) -> None:
    publisher, _ = full
    while not publisher._lossy:
        publisher.send([FRAME])  # the system may still take some
        publisher.retry()
        clock.now += 0.25
    assert not publisher.waits
    for _ in range(20):
        publisher.send([FRAME])  # lost at once for a while ...
        assert not publisher.waits
    clock.now += 60.0
    while not publisher.waits:  # ... then it is waited for again
        publisher.send([FRAME])


def test_who_leaves_does_not_wait_for_it(full: Full) -> None:
    publisher, _ = full
    publisher.retry(patient=False)
    assert not publisher.waits


def test_what_waits_has_a_bound_that_the_member_sees(full: Full) -> None:
    publisher, _ = full
    while publisher.waiting_bytes < BACKLOG_BYTES_MAX:
        assert not publisher.choked
        publisher.send([FRAME])
    assert publisher.choked
