"""Pairs of masters: in this process, and as processes that are killed or stand still while clones write."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.counting import Writer
from tests.api.pair_process import Half
from tests.endpoints import PATIENCE_S, Make, until
from tests.ports import free_address, free_ports

from chappe import DataStore, Endpoint, Witness
from chappe.errors import MasterExists, UsageError
from chappe.kv.events import MasterFound
from chappe.replication.binary_star.events import BecameActive, Paired

Halves = tuple[Half, Half]


def in_step(halves: Halves) -> Half | None:
    """Which one is active, if both are there and together."""
    found = [each.pair() for each in halves]
    for each, status in zip(halves, found, strict=True):
        if status["confirms"] == "paired":
            return each
    return None


def together(halves: Halves) -> Half:
    """Wait until both are; which one is active."""
    until(lambda: in_step(halves) is not None, lambda: str([each.pair() for each in halves]))
    found = in_step(halves)
    assert found is not None
    return found


@pytest.fixture
def halves(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Halves]:
    """Two processes; a parameter ``sqlite`` has them keep files."""
    ports = free_ports(), free_ports()
    durable = getattr(request, "param", "memory") == "sqlite"
    made: list[Half] = []
    try:
        for place, role in enumerate(("primary", "backup")):
            where = {"backend": "sqlite", "path": str(tmp_path / f"{role}.db")} if durable else {}
            made.append(Half(ports[place], ports[1 - place], role, **where))
        yield made[0], made[1]
    finally:
        for each in made:
            each.kill()


def clone_of(make: Make, halves: Halves) -> DataStore:
    endpoint = make()
    for each in halves:
        endpoint.peer("127.0.0.1", each.port, retry_s=0.05)
    return endpoint.attach_clone("s", timeout=PATIENCE_S)


@pytest.mark.process
@pytest.mark.parametrize("halves", ["memory", "sqlite"], indirect=True)
def test_the_active_one_is_killed_again_and_again_and_each_increment_is_done_once(make: Make, halves: Halves) -> None:
    clone = clone_of(make, halves)
    together(halves)
    writer = Writer(clone)
    for _ in range(3):
        writer.more()
        active = together(halves)
        active.kill()
        writer.more()  # the other one has taken over
        active.start()
        together(halves)
    writer.stop()
    assert clone["n"] == writer.confirmed
    until(lambda: [each.ask("get n") for each in halves] == [writer.confirmed] * 2)


@pytest.mark.process
def test_the_active_one_stands_still_and_steps_down_when_it_goes_on(make: Make, halves: Halves) -> None:
    clone = clone_of(make, halves)
    first = together(halves)
    other = next(each for each in halves if each is not first)
    writer = Writer(clone)
    writer.more()
    first.signal(signal.SIGSTOP)
    writer.more()  # its connections are still there
    assert other.pair()["state"] == "active"
    first.signal(signal.SIGCONT)
    until(lambda: other.pair()["confirms"] == "paired")
    assert first.pair()["state"] == "passive"
    writer.more()
    writer.stop()
    assert clone["n"] == writer.confirmed
    until(lambda: first.ask("get n") == writer.confirmed)


@pytest.mark.process
@pytest.mark.parametrize("halves", ["sqlite"], indirect=True)
def test_both_are_killed_and_have_everything_when_they_are_back(make: Make, halves: Halves) -> None:
    clone = clone_of(make, halves)
    together(halves)
    clone.put_many({f"k{number}": number for number in range(500)})
    active = together(halves)
    passive = next(each for each in halves if each is not active)
    passive.kill()
    clone.put("alone", 1, timeout=PATIENCE_S)
    active.kill()
    passive.start()  # it comes first, and knows that it may lack something
    active.start()
    together(halves)
    clone.put("again", 1, timeout=PATIENCE_S)
    assert clone["alone"] == 1
    assert len(clone) == 502
    until(lambda: passive.ask("get alone") == 1)


@pytest.mark.process
def test_with_a_witness_one_goes_on_alone(tmp_path: Path) -> None:
    with Witness(free_address(), path=tmp_path / "witness.db") as witness, Endpoint() as endpoint:
        ports = free_ports(), free_ports()
        made: list[Half] = []
        try:
            for place, role in enumerate(("primary", "backup")):
                made.append(Half(ports[place], ports[1 - place], role, witness=witness.address))
            halves = made[0], made[1]
            clone = clone_of(lambda: endpoint, halves)
            active = together(halves)
            clone.put("k", 1, timeout=PATIENCE_S)
            active.kill()
            clone.put("k", 2, timeout=PATIENCE_S)
            other = next(each for each in made if each is not active)
            assert other.pair()["confirms"] == "alone"
        finally:
            for each in made:
                each.kill()


def test_both_ends_read_write_and_watch(make: Make) -> None:
    one, two = make(), make()
    ports = one.listen(), two.listen()
    statuses = one.statuses()
    first = one.attach_master("s", partner=f"127.0.0.1:{ports[1]}", role="primary")
    second = two.attach_master("s", partner=f"127.0.0.1:{ports[0]}", role="backup")
    second.put("k", 1, timeout=PATIENCE_S)  # before it knows whether it is master
    assert first["k"] == second["k"] == 1
    until(lambda: (found := first.pair()) is not None and found.confirms == "paired")
    with first.watch() as here, second.watch() as there:
        assert first.increment("n", timeout=PATIENCE_S) == 1
        assert second.increment("n", timeout=PATIENCE_S) is None  # its master alone knows
        assert [each.value for _ in range(2) if (each := here.get(PATIENCE_S)) is not None] == [1, 2]
        assert [each.value for _ in range(2) if (each := there.get(PATIENCE_S)) is not None] == [1, 2]
    assert second.put_unique("n", 7, timeout=PATIENCE_S) is False
    assert first.await_idle(PATIENCE_S)
    assert second.await_idle(PATIENCE_S)
    assert {type(each) for each in statuses.poll()} >= {BecameActive, Paired}

    first.close()
    assert second.increment("n", timeout=PATIENCE_S) in (None, 3)
    until(lambda: second["n"] == 3)
    assert second.increment("n", timeout=PATIENCE_S) == 4  # it is master
    with pytest.raises(MasterExists):
        one.attach_master("s")


def test_a_clone_hears_of_the_new_master(make: Make) -> None:
    one, two, three = make(), make(), make()
    ports = one.listen(), two.listen()
    first = one.attach_master("s", partner=f"127.0.0.1:{ports[1]}", role="primary")
    two.attach_master("s", partner=f"127.0.0.1:{ports[0]}", role="backup")
    for port in ports:
        three.peer("127.0.0.1", port)
    clone = three.attach_clone("s", timeout=PATIENCE_S)
    clone.put("k", 1, timeout=PATIENCE_S)
    until(lambda: (found := first.pair()) is not None and found.confirms == "paired")
    statuses = three.statuses()
    one.close()
    while not isinstance(statuses.get(PATIENCE_S), MasterFound):
        pass
    assert clone["k"] == 1


def test_what_does_not_fit_a_pair_is_refused(make: Make, tmp_path: Path) -> None:
    endpoint = make()
    with pytest.raises(UsageError, match="give its partner"):
        endpoint.attach_master("s", role="primary")
    with pytest.raises(UsageError, match="role="):
        endpoint.attach_master("s", partner="127.0.0.1:1")
    for partner in ("127.0.0.1", "127.0.0.1:0", "127.0.0.1:x", "example.org:1"):
        with pytest.raises(UsageError):
            endpoint.attach_master("s", partner=partner, role="primary")
    path = tmp_path / "s.db"
    master = endpoint.attach_master("s", "sqlite", partner="127.0.0.1:1", role="primary", path=path)
    assert not master.ready
    master.put("k", 1, timeout=PATIENCE_S)  # a vote: a primary that never met its backup goes on alone
    assert master.ready
    master.close()
    with pytest.raises(UsageError, match="one of a pair"):
        endpoint.attach_master("s", "sqlite", path=path)
