"""Simulated time drives whatever takes time: of endpoints and of data stores, each with its default times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chappe import AsyncEndpoint, Endpoint
from chappe.api.kv.data_store import DataStore
from chappe.defaults import CLONE_BUFFER_S, CLONE_STALE_S, HEARTBEAT_S, LOST_AFTER, MASTER_SILENT_S
from chappe.errors import NoMaster, PeeringError, StaleData, TimedOut, WrongRevision
from chappe.testing import World


@contextmanager
def takes(world: World, seconds: float) -> Iterator[None]:
    """The block takes this long on the world's clock."""
    began = world.now
    yield
    assert world.now - began == pytest.approx(seconds, abs=0.2)


@contextmanager
def master_elsewhere(world: World) -> Iterator[tuple[Endpoint, DataStore, int]]:
    """An endpoint here, a clone of a data store there, and the port of its master on the host ``keeper``."""
    with world.on("keeper"):
        keeper = Endpoint()
        port = keeper.listen()
        keeper.attach_master("rooms").put("a", 1)
    with Endpoint() as here:
        here.peer("127.0.0.1", port, timeout=10)
        yield here, here.attach_clone("rooms"), port


def peered(endpoint: Endpoint) -> list[str | None]:
    return [each.id for each in endpoint.peers() if each.status.name == "PEERED"]


def test_time_passes_by_as_much_as_is_said(chappe_world: World) -> None:
    before = time.time(), time.monotonic()
    with takes(chappe_world, 3600.0):
        chappe_world.advance(3600.0)
    assert time.time() - before[0] == pytest.approx(3600.0, abs=0.001)
    assert time.monotonic() - before[1] == pytest.approx(3600.0, abs=0.001)


def test_a_peer_is_lost_after_three_heartbeats_without_an_answer(chappe_world: World) -> None:
    with master_elsewhere(chappe_world) as (here, _, _):
        chappe_world.advance(100.0)
        assert peered(here)
        chappe_world.cut("keeper", "test")
        chappe_world.advance((LOST_AFTER - 1) * HEARTBEAT_S)
        assert peered(here)
        chappe_world.advance(2 * HEARTBEAT_S)
        assert not peered(here)


def test_a_peer_that_is_not_there_is_dialled_again_when_it_is_time(chappe_world: World) -> None:
    with chappe_world.on("keeper"), Endpoint() as taken:
        port = taken.listen()
    with Endpoint() as here:
        here.peer_nosync("127.0.0.1", port, retry_s=30.0)
        chappe_world.advance(1.0)
        with chappe_world.on("keeper"):
            keeper = Endpoint()
            keeper.listen(port=port)
        chappe_world.advance(28.0)
        assert not peered(here)
        chappe_world.advance(2.0)
        assert peered(here) == [keeper.id]


def test_an_entry_expires(chappe_world: World) -> None:
    with master_elsewhere(chappe_world) as (here, clone, _):
        clone.put("b", 2, expiry_s=600.0)
        own = here.attach_master("own")
        own.put("c", 3, expiry_s=60.0)
        chappe_world.advance(59.9)
        assert own.get("c") == 3
        chappe_world.advance(0.2)
        assert own.get("c") is None
        chappe_world.advance(539.0)
        assert clone.get("b") == 2
        chappe_world.advance(2.0)
        assert clone.get("b") is None
        assert clone.get("a") == 1


def test_a_clone_grows_stale_refuses_writes_and_finds_its_master_again(chappe_world: World) -> None:
    with master_elsewhere(chappe_world) as (_, clone, port):
        chappe_world.kill("keeper")
        chappe_world.advance(CLONE_BUFFER_S - 1.0)
        clone.put("b", 2, wait=False)
        chappe_world.advance(MASTER_SILENT_S + 2.0)
        with pytest.raises(NoMaster):
            clone.put("b", 3)
        assert clone.get("a") == 1
        chappe_world.advance(CLONE_STALE_S - CLONE_BUFFER_S)
        with pytest.raises(StaleData):
            clone.get("a")
        with chappe_world.on("keeper"):
            keeper = Endpoint()
            keeper.listen(port=port)
            keeper.attach_master("rooms").put("a", 5)
        chappe_world.advance(60.0)
        assert clone.get("a") == 5


def test_a_clone_that_was_cut_off_catches_up(chappe_world: World) -> None:
    with chappe_world.on("keeper"):
        keeper = Endpoint()
        port = keeper.listen()
        master = keeper.attach_master("rooms")
    with Endpoint() as here:
        here.peer("127.0.0.1", port, timeout=10)
        clone = here.attach_clone("rooms")
        chappe_world.cut("keeper", "test")
        master.put("a", 1)
        clone.put("b", 2, wait=False)
        chappe_world.advance(60.0)
        assert clone.get("a") is None
        chappe_world.mend()
        chappe_world.advance(60.0)
        assert (clone.get("a"), master.get("b")) == (1, 2)


def test_whoever_waits_in_vain_waits_that_long(chappe_world: World) -> None:
    with Endpoint() as here:
        with takes(chappe_world, 20.0):
            assert not here.await_peer("00000000-0000-5000-8000-000000000000", timeout=20.0)
        with takes(chappe_world, 30.0), pytest.raises(NoMaster):
            here.attach_clone("rooms", timeout=30.0)
        with takes(chappe_world, 40.0), pytest.raises(TimedOut):
            here.peer("127.0.0.1", 1, timeout=40.0)
        with here.attach_clone("rooms", timeout=0) as clone, takes(chappe_world, 50.0):
            assert not clone.await_idle(50.0)
        with takes(chappe_world, 0.0), pytest.raises(PeeringError):
            here.peer("127.0.0.1", 1, retry_s=0.0)


def test_coroutines_wait_that_long_too(chappe_world: World) -> None:
    async def main() -> None:
        async with AsyncEndpoint() as here:
            assert not await here.await_peer("00000000-0000-5000-8000-000000000000", timeout=20.0)
            with pytest.raises(NoMaster):
                await here.attach_clone("rooms", timeout=30.0)
            clone = await here.attach_clone("rooms", timeout=0)
            assert not await clone.await_idle(50.0)

    with takes(chappe_world, 100.0):
        asyncio.run(main())


@pytest.mark.parametrize("backend", ["sqlite", "rocksdb"])
def test_a_revision_from_before_a_restart_matches_nothing_though_the_clock_was_set_back(
    backend: str, chappe_world: World, tmp_path: Path
) -> None:
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    known: dict[str, list[int | None]] = {"a": [], "b": []}  # revisions that were shown
    values = {}
    for life, written in enumerate(("ab", "", "a", "b")):
        chappe_world.kill("keeper")
        chappe_world.set_clock("keeper", -3600.0 * life)
        with chappe_world.on("keeper"):
            keeper = Endpoint()
            rooms = keeper.attach_master("rooms", backend, path=tmp_path / backend)
            for key in written:
                rooms.put(key, life)
                values[key] = life
        with Endpoint() as here:
            here.peer("127.0.0.1", keeper.listen(), timeout=10)
            shown = []
            for store in (rooms, here.attach_clone("rooms")):
                for key, revisions in known.items():
                    for revision in revisions:
                        assert revision is not None
                        with pytest.raises(WrongRevision):
                            store.put_if(key, "late", revision)
                    found = store.entry(key)
                    assert found is not None
                    assert found.value == values[key]
                    shown.append((key, found.revision))
            for key, revision in shown:
                known[key].append(revision)
