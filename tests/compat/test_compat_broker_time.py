"""Programs that advance the time of their endpoint themselves, as Zeek does when it reads a file of packets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.waiting import until

from chappe.compat import broker
from chappe.storage.kv_backends import SqliteBackend

EVENTS = "<$>/local/data/store-events/"


@pytest.fixture
def endpoint() -> Iterator[Callable[[bool], broker.Endpoint]]:
    with ExitStack() as stack:

        def make(real_time: bool) -> broker.Endpoint:
            options = broker.BrokerOptions()
            options.disable_ssl = True
            options.use_real_time = real_time
            return stack.enter_context(broker.Endpoint(broker.Configuration(options)))

        yield make


@pytest.fixture
def simulated(endpoint: Callable[[bool], broker.Endpoint]) -> broker.Endpoint:
    return endpoint(False)


def attached(store: broker.Store | None) -> broker.Store:
    assert store is not None
    return store


def test_an_entry_expires_when_time_is_advanced_and_not_before(
    simulated: broker.Endpoint, endpoint: Callable[[bool], broker.Endpoint]
) -> None:
    assert not simulated.use_real_time()
    assert simulated.now() == broker.Timestamp(0.0)
    other = endpoint(True)
    assert other.peer("127.0.0.1", simulated.listen("127.0.0.1"))
    master, clone = attached(simulated.attach_master("s", broker.Backend.Memory)), attached(other.attach_clone("s"))
    assert clone.await_idle()
    heard = simulated.make_subscriber(EVENTS)
    for number in range(100):
        clone.put(number, number, 3600.0 + number)
    clone.put("soon", 1, 0.001)
    clone.put("stays", 1)
    assert clone.await_idle()
    assert master.await_idle()
    time.sleep(0.01)
    assert clone.get("soon") == master.get("soon") == 1
    assert master.put_unique("soon", 2) is False

    simulated.advance_time(broker.Timestamp(3600.0 + 98))
    assert simulated.now() == broker.Timestamp(3698.0)
    assert master.keys() == {"stays", 99}
    assert clone.await_idle()
    assert clone.keys() == {"stays", 99}
    told: list[broker.StoreEvent] = []
    while not told or told[-1].key != 98:
        _, value = heard.get()
        event = broker.StoreEvent.make(value)
        assert event is not None
        told += [event] if event.kind == "expire" else []
    assert [each.key for each in told] == ["soon", *range(99)]


def test_a_master_with_a_file_has_removed_from_it_all_that_has_expired(
    simulated: broker.Endpoint, tmp_path: Path
) -> None:
    path = tmp_path / "s.sqlite"
    master = attached(simulated.attach_master("s", broker.Backend.SQLite, {"path": str(path)}))
    simulated.advance_time(datetime(2026, 1, 1, tzinfo=UTC))
    master.put("a", 1, 60.0)
    master.put("b", 1, 61.0)
    simulated.advance_time(datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    assert master.keys() == {"b"}
    simulated.shutdown()
    backend = SqliteBackend(path)
    assert [key for key, _, _ in backend.load().entries] == ["b"]
    backend.close()


def test_who_waits_waits_in_real_time(simulated: broker.Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.compat.broker.store.GET_S", 0.05)
    clone = attached(simulated.attach_clone("s"))
    began = time.monotonic()
    assert clone.get("k") is None
    assert not clone.await_idle(0.05)
    assert time.monotonic() - began >= 0.1
    assert not simulated.await_peer(simulated.node_id().replace("0", "1"), 0.01)


def test_a_clone_looks_for_its_master_when_time_goes_on(
    simulated: broker.Endpoint, endpoint: Callable[[bool], broker.Endpoint]
) -> None:
    """The peering is real time's, and what a clone does about it no time at all."""
    clone = attached(simulated.attach_clone("s"))
    other = endpoint(True)
    other.peer_nosync("127.0.0.1", simulated.listen("127.0.0.1"))
    master = attached(other.attach_master("s", broker.Backend.Memory))
    master.put("k", 1)
    until(lambda: clone.get("k") == 1)
    other.shutdown()
    for number in range(3_100):  # its master is gone for more than 300 s
        simulated.advance_time(broker.Timestamp((number + 1) / 10))
    assert not clone._store.ready


def test_time_does_not_go_back_and_real_time_cannot_be_advanced(
    simulated: broker.Endpoint, endpoint: Callable[[bool], broker.Endpoint]
) -> None:
    simulated.advance_time(broker.Timestamp(5.0))
    simulated.advance_time(broker.Timestamp(4.0))
    simulated.advance_time(broker.Timestamp(-1.0))
    assert simulated.now() == broker.Timestamp(5.0)
    with pytest.raises(TypeError, match="takes a Timestamp or a datetime, not a float"):
        simulated.advance_time(6.0)  # type: ignore[arg-type]
    real = endpoint(True)
    master = attached(real.attach_master("s", broker.Backend.Memory))
    master.put("k", 1, 3600.0)
    real.advance_time(broker.Timestamp(2**33))
    assert real.use_real_time()
    assert abs((real.now().time_since_epoch() - broker.now().time_since_epoch()).count()) < 60 * 10**9
    assert master.get("k") == 1
    simulated.shutdown()
    simulated.advance_time(broker.Timestamp(6.0))  # of nothing nothing is due
