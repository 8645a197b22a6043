"""A connection that subscribes to more than anybody needs is cut off, and takes its subscriptions along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
import zmq
from tests.api.members import wait_until

from chappe.defaults import SUBSCRIPTION_BYTES_MAX
from chappe.errors import ProtocolError
from chappe.system.machine import Machine
from chappe.transports import zeromq
from chappe.transports.zeromq import PublishingSocket


@pytest.fixture
def publisher() -> Iterator[PublishingSocket]:
    made = PublishingSocket(0.5)
    made.socket.bind("tcp://127.0.0.1:*")
    yield made
    made.socket.close(0)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(0)


def subscriber(context: zmq.Context[zmq.Socket[bytes]], publisher: PublishingSocket) -> zmq.Socket[bytes]:
    made = context.socket(zmq.SUB)
    made.setsockopt(zmq.RECONNECT_IVL, -1)  # once cut off, it stays so
    made.connect(publisher.socket.getsockopt_string(zmq.LAST_ENDPOINT))
    return made


def heard(publisher: PublishingSocket) -> list[tuple[bytes, bool] | str]:
    """What subscriptions came, and what was said of them."""
    found: list[tuple[bytes, bool] | str] = []
    while publisher.socket.poll(0):
        try:
            told = publisher.subscription(publisher.socket.recv_multipart(copy=False))
            assert told is not None
            found.append(told)
        except ProtocolError as error:
            found.append(str(error))
    return found


def gathered(publisher: PublishingSocket, found: list[tuple[bytes, bool] | str]) -> list[tuple[bytes, bool] | str]:
    found += heard(publisher)
    return found


def test_one_that_takes_too_much_is_cut_off_and_the_others_are_not(
    publisher: PublishingSocket, context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeromq, "SUBSCRIBED_PEER_BYTES_MAX", 10_000)
    modest = subscriber(context, publisher)
    modest.setsockopt(zmq.SUBSCRIBE, b"Mgood")
    found: list[tuple[bytes, bool] | str] = []
    wait_until(lambda: bool(gathered(publisher, found)))
    many = subscriber(context, publisher)
    for number in range(200):
        many.setsockopt(zmq.SUBSCRIBE, b"K%06d" % number)

    def over() -> bool:
        found.extend(heard(publisher))
        return sum(each[1] is False for each in found if not isinstance(each, str)) >= 100

    wait_until(over)  # its subscriptions end with it
    assert any("and was cut off" in each for each in found if isinstance(each, str))
    publisher.send([b"Mgood", b"still here"])
    assert modest.poll(30_000)


@pytest.mark.parametrize("order", [(b"Mt", b"Rt", b"K"), (b"Rt", b"Mt", b"K")])
def test_who_takes_batches_is_spared_single_records_whichever_it_asks_for_first(
    publisher: PublishingSocket, context: zmq.Context[zmq.Socket[bytes]], order: tuple[bytes, ...]
) -> None:
    ours = subscriber(context, publisher)
    found: list[tuple[bytes, bool] | str] = []
    for prefix in order:
        ours.setsockopt(zmq.SUBSCRIBE, prefix)
    wait_until(lambda: (b"K", True) in gathered(publisher, found))
    for header in (b"Mt", b"Rt", b"K"):
        publisher.send([header])
    assert [ours.recv(), ours.recv()] == [b"Rt", b"K"]


def test_where_all_take_too_much_the_one_with_the_most_is_cut_off(
    publisher: PublishingSocket, context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeromq, "SUBSCRIBED_BYTES_MAX", 10_000)
    found: list[tuple[bytes, bool] | str] = []
    most = subscriber(context, publisher)
    for number in range(120):
        most.setsockopt(zmq.SUBSCRIBE, b"K%06d" % number)
    wait_until(lambda: len(gathered(publisher, found)) >= 120)
    less = subscriber(context, publisher)
    for number in range(40):
        less.setsockopt(zmq.SUBSCRIBE, b"A%06d" % number)

    def over() -> bool:
        found.extend(heard(publisher))
        return found.count((b"K%06d" % 119, False)) == 1

    wait_until(over)
    assert not any(each[1] is False and each[0][:1] == b"A" for each in found if not isinstance(each, str))


def test_a_subscription_longer_than_any_topic_ends_the_connection(
    publisher: PublishingSocket, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    rogue = subscriber(context, publisher)
    rogue.setsockopt(zmq.SUBSCRIBE, b"Mshort")
    found: list[tuple[bytes, bool] | str] = []
    wait_until(lambda: bool(gathered(publisher, found)))
    rogue.setsockopt(zmq.SUBSCRIBE, b"M" * (SUBSCRIPTION_BYTES_MAX + 1))

    wait_until(lambda: (b"Mshort", False) in (gathered(publisher, found)))
    assert len(found) == 2


class FrameOf:
    """A subscription that came over a descriptor; below 0: of a connection that has ended."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def get(self, _option: int) -> int:
        return self.descriptor


def test_who_gets_the_descriptor_of_one_that_left_is_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an original would get nothing: single records are kept from who gets batches."""
    ours = ("10.0.0.9", 9)
    ends = {7: (("10.0.0.1", 1), ours)}
    monkeypatch.setattr(Machine, "ends", lambda self, descriptor: ends.get(descriptor))
    greedy, before, after = zeromq.Greedy(), cast("zmq.Frame", FrameOf(7)), cast("zmq.Frame", FrameOf(-1))

    def spared(prefix: bytes) -> bool:
        found = greedy.count(before, prefix, True)
        assert found is not None
        return found.spared(prefix)

    assert not spared(b"Rtopic")
    assert spared(b"Mtopic")
    assert greedy.subscriptions() == {"10.0.0.1:1": [b"Mtopic", b"Rtopic"]}
    ends[7] = (("10.0.0.2", 1), ours)
    greedy.count(after, b"Rtopic", False)
    assert not spared(b"Mtopic")
    assert greedy.subscriptions() == {"10.0.0.2:1": [b"Mtopic"]}


def test_who_is_dialled_again_over_the_same_descriptor_has_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what it subscribes to anew would be taken for what it has: it would get nothing any more."""
    where = ("10.0.0.1", 1)
    ends = {7: (where, ("10.0.0.9", 9))}
    monkeypatch.setattr(Machine, "ends", lambda self, descriptor: ends.get(descriptor))
    greedy, before, after = zeromq.Greedy(), cast("zmq.Frame", FrameOf(7)), cast("zmq.Frame", FrameOf(-1))
    first = greedy.count(before, b"Rtopic", True)
    assert first is not None
    first.honoured[b"Rtopic"] = [b"Rtopic"]
    greedy.count(after, b"Rtopic", False)
    ends[7] = (where, ("10.0.0.9", 10))
    again = greedy.count(before, b"Rtopic", True)
    assert again is not None
    assert again is not first
    assert not again.honoured
