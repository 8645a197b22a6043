"""A member that meets a defect says so to whoever uses it; what the machine refuses is tried again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.api.members import PATIENCE_S

from chappe.api.log.aio import AsyncConsumer
from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.api.log.tower import Tower
from chappe.core import Effect, Persist
from chappe.errors import MemberStopped, StorageError
from chappe.log.events import MachineRefused, Stopped, TowerFound
from chappe.log.storage import RunRetention
from chappe.runtime import driver as node_module
from chappe.runtime.log_ports import LogPorts

pytestmark = pytest.mark.provokes_defects


def test_what_is_due_and_refused_by_the_machine_is_done_later(
    tower: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []

    def refused(now: float) -> list[Effect]:
        calls.append(now)
        raise StorageError("Too many open files") if len(calls) < 3 else ZeroDivisionError

    monkeypatch.setattr(node_module, "REFUSED_S", 0.01)
    with Store(tmp_path, tower=tower) as store:
        with store._node.driver.lock:
            monkeypatch.setattr(store._node.store, "next_timeout", lambda: 0.0)
            monkeypatch.setattr(store._node.store, "handle_timeout", refused)
        with pytest.raises(MemberStopped, match="ZeroDivisionError"):
            store.wait(PATIENCE_S)
        assert len(calls) == 3  # with a pause between them, and no more after a defect
        told = [type(each) for each in store.events()]
        assert [each for each in told if each is not TowerFound] == [MachineRefused, Stopped]


@pytest.fixture
def defect() -> Callable[[LogPorts], None]:
    def cause(node: LogPorts) -> None:
        def broken(now: float) -> list[Effect]:
            raise ZeroDivisionError("defect")

        with node.driver.lock:
            node.core.role.next_timeout = lambda: 0.0  # type: ignore[method-assign]
            node.core.role.handle_timeout = broken  # type: ignore[method-assign]
            node.driver.turns.wake()

    return cause


def test_a_defect_ends_every_call_of_a_producer(tower: str, defect: Callable[[LogPorts], None]) -> None:
    producer = Producer("hello", tower=tower)
    producer.send(b"x")
    threading.Timer(0.05, defect, [producer._node.node]).start()
    with pytest.raises(MemberStopped, match="stopped because of a defect"):
        producer.flush()  # which waits, without a limit, for a store that never comes
    assert isinstance(producer.events()[-1], Stopped)
    for call in (lambda: producer.send(b"x"), lambda: producer.send_many([b"x"]), producer.flush, producer.events):
        with pytest.raises(MemberStopped):
            call()
    with pytest.raises(MemberStopped):
        producer.close()
    assert producer._node.closed


def test_a_defect_ends_every_call_of_a_consumer(tower: str, defect: Callable[[LogPorts], None]) -> None:
    consumer = Consumer("hello", tower=tower)
    threading.Timer(0.05, defect, [consumer._node.node]).start()
    with pytest.raises(MemberStopped):
        consumer.poll(None)
    assert isinstance(consumer.events()[-1], Stopped)
    for call in (consumer.poll, consumer.position, consumer.heads, consumer.lag, consumer.at_end, consumer.events):
        with pytest.raises(MemberStopped):
            call()
    consumer.close()


def test_a_defect_wakes_who_awaits_a_record(tower: str, defect: Callable[[LogPorts], None]) -> None:
    async def program() -> None:
        async with AsyncConsumer("hello", tower=tower) as consumer:
            threading.Timer(0.05, defect, [consumer.consumer._node.node]).start()
            await consumer.poll()

    with pytest.raises(MemberStopped):
        asyncio.run(program())


def test_a_thread_that_cannot_write_any_more_ends_the_store(
    tower: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        raise ZeroDivisionError("defect")

    with Store(tmp_path, tower=tower) as store:
        monkeypatch.setattr(store._storage, "retain", broken)
        with store._node.driver.lock:
            store._node.driver.do([Persist(RunRetention())])
        with pytest.raises(MemberStopped, match="defect"):
            store.wait(PATIENCE_S)
        assert isinstance(store.events()[-1], Stopped)
        with pytest.raises(MemberStopped):
            store.status()


@pytest.mark.process
@pytest.mark.parametrize("command", ["store", "up"])
def test_a_command_whose_member_meets_a_defect_ends_with_an_exit_code(tower: str, tmp_path: Path, command: str) -> None:
    program = (
        "import sys\n"
        "from chappe.cli.app import run\n"
        "from chappe.log.store import LogStore\n"
        "LogStore.handle_timeout = lambda self, now: 1 / 0\n"
        "LogStore.next_timeout = lambda self: 0.0\n"
        "sys.exit(run())"
    )
    address = tower if command == "store" else "127.0.0.1:0"
    done = subprocess.run(
        [sys.executable, "-c", program, command, str(tmp_path / "kept"), "--tower", address],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "stopped because of a defect: ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr
    Store(tmp_path / "kept", tower=tower).close()  # its lock is free


def test_a_defect_of_a_tower_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(now: float) -> list[Effect]:
        raise ZeroDivisionError("defect")

    with Tower("127.0.0.1:0") as tower:
        monkeypatch.setattr(tower._node.core, "next_timeout", lambda: 0.0)
        monkeypatch.setattr(tower._node.core, "handle_timeout", broken)
        with tower._node.driver.turns.lock:
            tower._node.driver.turns.wake()
        with pytest.raises(MemberStopped):
            tower.wait(PATIENCE_S)
        with pytest.raises(MemberStopped):
            tower.nodes()
