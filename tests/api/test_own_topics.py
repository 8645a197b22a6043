"""Statuses and errors of an endpoint as messages, on topics that never leave it."""

from __future__ import annotations

import time

import pytest
from tests.endpoints import PATIENCE_S, Make, until
from tests.ports import free_ports

from chappe import Endpoint, Subscriber
from chappe.api.mesh.arguments import encode_value
from chappe.data.scalars import Count, EnumValue, Port
from chappe.errors import PeerInvalid, PeerUnavailable, UsageError
from chappe.mesh.events import MessagesDropped
from chappe.mesh.messages import DATA

STATUSES = "<$>/local/data/statuses"
ERRORS = "<$>/local/data/errors"


def take(subscriber: Subscriber, count: int) -> list[tuple[str, object]]:
    """So many messages, each a topic and a value."""
    found = [subscriber.get(PATIENCE_S) for _ in range(count)]
    assert all(each is not None and each.origin == subscriber._endpoint.id for each in found)
    return [(each.topic, each.data) for each in found if each is not None]


def test_statuses_are_as_the_original_encodes_them(make: Make) -> None:
    here, there = make(), make()
    subscriber = here.subscribe(STATUSES, ERRORS)
    port = there.listen()
    here.peer("127.0.0.1", port)
    here.unpeer("127.0.0.1", port)

    network = ("127.0.0.1", Port(port, "tcp"), Count(0))
    alone = (there.id, None, None, None)
    assert take(subscriber, 4) == [
        (STATUSES, ("status", EnumValue("endpoint_discovered"), alone, "found a new peer in the network")),
        (STATUSES, ("status", EnumValue("peer_added"), (there.id, *network), "handshake successful")),
        (STATUSES, ("status", EnumValue("peer_removed"), (there.id, *network), "removed connection to remote peer")),
        (STATUSES, ("status", EnumValue("endpoint_unreachable"), alone, "lost the last path")),
    ]


def test_errors_are_as_the_original_encodes_them(make: Make) -> None:
    here = make()
    subscriber = here.subscribe(ERRORS)
    port = free_ports()
    with pytest.raises(PeerUnavailable):
        here.peer("127.0.0.1", port, retry_s=0)
    with pytest.raises(PeerInvalid):
        here.unpeer("127.0.0.1", port)

    context = (None, "127.0.0.1", Port(port, "tcp"), Count(0))
    assert take(subscriber, 2) == [
        (ERRORS, ("error", EnumValue("peer_unavailable"), (context, "unable to connect to remote peer"))),
        (ERRORS, ("error", EnumValue("peer_invalid"), (context, "cannot unpeer from unknown peer"))),
    ]


def test_what_goes_wrong_without_a_peer_has_a_text_alone(make: Make) -> None:
    here = make()
    subscriber = here.subscribe(ERRORS)
    with here.node.lock:
        here.report(MessagesDropped("for a test", 3))
    assert take(subscriber, 1) == [(ERRORS, ("error", EnumValue("unspecified"), ("dropped 3 messages for a test",)))]


def test_only_a_prefix_that_names_them_brings_them(make: Make) -> None:
    here, there = make(), make()
    everything, short, named = (here.subscribe(each) for each in ("", "<$>", "<$>/local/"))
    here.peer("127.0.0.1", there.listen())
    assert [topic for topic, _ in take(named, 2)] == [STATUSES, STATUSES]
    assert everything.poll() == short.poll() == []


def test_nobody_else_hears_of_them_or_speaks_on_them(make: Make) -> None:
    here, there = make(), make()
    mine, theirs = here.subscribe(STATUSES, ERRORS), there.subscribe(STATUSES, ERRORS)
    there.peer("127.0.0.1", here.listen())
    assert here.core.peer_subscriptions() == there.core.peer_subscriptions() == ()
    assert len(take(mine, 2)) == len(take(theirs, 2)) == 2  # each has heard of the other, and of nothing else
    with here.node.lock:
        here.report(MessagesDropped("for a test", 3))
    assert len(take(mine, 1)) == 1

    with pytest.raises(UsageError, match="nothing can be published"):
        there.publish(ERRORS, "forged", to=here.id)
    forge(there, here.id)
    until(lambda: here.dropped == 1)
    (told,) = take(mine, 1)
    assert "dropped 1 messages from" in str(told)
    assert "forged" not in str(told)
    assert mine.poll() == theirs.poll() == []


def forge(rogue: Endpoint, receiver: str) -> None:
    """Have an endpoint publish what no endpoint of chappe does."""
    topic, now = ERRORS.encode(), time.monotonic()
    with rogue.node.lock:
        rogue.core.router.routes.of(topic).refused = False
        flushes = rogue.core.publish(topic, encode_value("forged"), DATA, bytes.fromhex(receiver.replace("-", "")), now)
        rogue.node.send_soon(flushes, now)
        rogue.node.turns.tell()
        rogue.node.turns.look_again()


def test_a_full_subscriber_to_errors_is_not_told_of_itself(make: Make) -> None:
    here = make()
    subscriber = here.subscribe(ERRORS, messages_max=2)
    heard = here.statuses()
    with here.node.lock:
        for count in range(5):
            here.report(MessagesDropped("for a test", count))
    assert [each.data for each in subscriber.poll()] == [
        ("error", EnumValue("unspecified"), (f"dropped {count} messages for a test",)) for count in (3, 4)
    ]
    assert subscriber.dropped == 3
    assert "too slow" in str(heard.poll())  # elsewhere it is told
