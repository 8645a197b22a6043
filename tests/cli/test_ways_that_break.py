"""Endpoints between a publisher and a subscriber as real processes, which end or stop while messages pass."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from tests.cli.conftest import Shell
from tests.cli.test_mesh_commands import start_node, start_subscriber
from tests.waiting import PATIENCE_S, until

from chappe import Endpoint
from chappe.api.mesh.subscriber import Subscriber
from chappe.mesh.events import LostElsewhere

HOST = "127.0.0.1"
EVENTS = 20_000
pytestmark = pytest.mark.process


@pytest.fixture
def ends() -> Iterator[tuple[Endpoint, Endpoint]]:
    with Endpoint() as publisher, Endpoint() as subscriber:
        yield publisher, subscriber


def way(publisher: Endpoint, to: Endpoint) -> str | None:
    """The neighbour over which the shortest way leads; None if there is no way."""
    return next((each.via for each in publisher.topology().endpoints if each.id == str(to.id)), None)


def take(subscriber: Subscriber, missing: int) -> object:
    """The next value; ``missing`` is how many are still to come."""
    message = subscriber.get(PATIENCE_S)
    assert message is not None, f"{missing} are missing"
    return message.value


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_nothing_is_lost_when_the_hop_that_passes_on_ends(
    shell: Shell, ends: tuple[Endpoint, Endpoint], how: signal.Signals
) -> None:
    """Two hops lead from one to the other; the one that is used is killed, stopped, or leaves."""
    publisher, subscriber = ends
    addresses = [f"{HOST}:{each.listen()}" for each in ends]
    peers = [option for each in addresses for option in ("--peer", each)]
    hops = {facts["id"]: process for process, facts in (start_node(shell, *peers) for _ in range(2))}
    got = subscriber.subscribe("/t", on_full="block")
    until(lambda: len(publisher.peers()) == len(subscriber.peers()) == 2 and way(publisher, subscriber) in hops)
    used = hops[str(way(publisher, subscriber))]
    until(lambda: publisher.core.router.topology.receivers(b"/t"))

    found: list[object] = []
    for number in range(EVENTS):
        if number == EVENTS // 2:
            used.send_signal(how)
        assert publisher.publish("/t/x", number) == 1
        while got.available > 1_000:
            found.append(take(got, EVENTS - len(found)))
    while len(found) < EVENTS:
        found.append(take(got, EVENTS - len(found)))
    assert found == list(range(EVENTS))
    if how is signal.SIGSTOP:
        used.send_signal(signal.SIGCONT)
    assert got.get(0.2) is None  # what a stopped hop still had is not taken twice


@pytest.mark.parametrize("which", [0, 1])
def test_in_two_ways_everything_arrives_before_anybody_knows_that_a_hop_has_stopped(shell: Shell, which: int) -> None:
    with Endpoint(paths=2, heartbeat_s=600.0) as publisher, Endpoint(heartbeat_s=600.0) as subscriber:
        peers = [option for each in (publisher, subscriber) for option in ("--peer", f"{HOST}:{each.listen()}")]
        hops = [start_node(shell, *peers)[0] for _ in range(2)]
        got = subscriber.subscribe("/t")
        until(lambda: sum([link.confirmed for link in publisher.topology().links]) == 4)
        until(lambda: publisher.core.router.topology.receivers(b"/t"))
        for number in range(1_000):
            if number == 500:
                hops[which].send_signal(signal.SIGSTOP)
            assert publisher.publish("/t/x", number) == 1
        found: list[object] = []
        while len(found) < 1_000:
            found.append(take(got, 1_000 - len(found)))
        assert found == list(range(1_000))
        assert len(publisher.peers()) == len(subscriber.peers()) == 2
        hops[which].send_signal(signal.SIGCONT)


def test_who_publishes_is_told_what_no_way_leads_on_for(shell: Shell) -> None:
    """The subscriber stops and is killed behind a hop that lives: the hop has nobody to send it to."""
    _, facts = start_node(shell)
    where = facts["listen"][0]
    host, _, port = where.rpartition(":")
    with Endpoint() as publisher:
        publisher.peer(host, int(port))
        statuses = publisher.statuses()
        subscriber = start_subscriber(shell, where, "/t")
        until(lambda: publisher.core.router.topology.receivers(b"/t"))
        subscriber.send_signal(signal.SIGSTOP)
        for _ in range(500):
            assert publisher.publish("/t/x", bytes(1_000)) == 1
        publisher.ping(facts["id"])  # the hop has read all of it
        subscriber.send_signal(signal.SIGKILL)
        status = statuses.get(PATIENCE_S)
        while not (isinstance(status, LostElsewhere) and status.topic == b"/t/x"):
            assert status is not None, "nobody tells"
            status = statuses.get(PATIENCE_S)
        assert 0 < status.count <= 500
        assert str(publisher.id).replace("-", "") == status.origin.hex()
