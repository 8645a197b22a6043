"""What a user wants to go wrong in a test."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from chappe import Consumer, DataStore, Endpoint, Producer
from chappe.errors import BackendFailure, Closed, TimedOut, WrongRevision
from chappe.runtime.worker import DISKS, run_once
from chappe.storage.kv_backends import SqliteBackend
from chappe.testing import Log, NothingHappens, World


def test_what_was_stored_survives_the_kill_of_its_store(chappe_log: Log) -> None:
    world = chappe_log.world
    chappe_log.write("readings", "1", "2")
    store = chappe_log.store
    world.kill("store")
    with pytest.raises(Closed, match="a host that the test has killed"):
        store.status()
    store.close()
    with Producer("readings") as producer:
        producer.send("3")
        with pytest.raises(TimedOut):
            producer.flush(30)
        chappe_log.start_store()
        producer.flush(30)
    assert sorted(each.value or b"" for each in chappe_log.read("readings")) == [b"1", b"2", b"3"]


def test_a_kill_meets_no_slow_call_half_way(chappe_world: World) -> None:
    """What its thread does with what was left behind would look like a defect of the member's."""
    began, done = threading.Event(), threading.Event()

    def call() -> None:
        began.set()
        sum(range(3_000_000))  # a slow disk
        done.set()

    with chappe_world.on("keeper"):
        run_once(DISKS, lambda function, *args: function(*args), call, lambda _: None)
    assert began.wait(PATIENCE_S)  # not on the world's clock, so this thread goes on beside the call
    chappe_world.kill("keeper")
    assert done.is_set()


def test_a_store_that_is_cut_off_gets_it_later(chappe_log: Log) -> None:
    world = chappe_log.world
    with Producer("readings") as producer:
        producer.send("1")
        producer.flush(10)
        world.cut("test", "store")
        producer.send("2")
        with pytest.raises(TimedOut):
            producer.flush(20)
        world.mend()
        producer.flush(60)
        assert producer.stored == 2


def test_members_that_know_each_other_need_no_tower(chappe_log: Log) -> None:
    with Producer("readings") as producer:
        producer.send("1")
        producer.flush(10)
        chappe_log.tower.close()
        chappe_log.world.advance(60)
        producer.send("2")
        producer.flush(10)
        with Consumer("readings") as late, pytest.raises(TimedOut, match="tower"):
            list(late.to_end(5))
        chappe_log.start_tower()
        assert len(chappe_log.read("readings")) == 2


def test_peers_notice_a_cut_and_a_mended_network(chappe_world: World) -> None:
    with chappe_world.on("sensor"):
        sensor = Endpoint()
    with sensor, Endpoint() as program, program.subscribe("alarms/") as heard:
        sensor.peer("127.0.0.1", program.listen(), timeout=10)
        chappe_world.cut("sensor", "test")
        chappe_world.wait_until(lambda: not program.peers(), 120)
        assert heard.get(timeout=30) is None
        chappe_world.mend()
        chappe_world.wait_until(lambda: sensor.publish("alarms/a", 2), 120)
        received = heard.get(timeout=10)
        assert received is not None
        assert received.value == 2


def test_a_durable_master_goes_on_after_a_kill(chappe_world: World, tmp_path: Path) -> None:
    path = tmp_path / "rooms.db"
    with chappe_world.on("keeper"):
        keeper = Endpoint()
        port = keeper.listen()
        keeper.attach_master("rooms", backend="sqlite", path=path)
    with Endpoint() as program:
        program.peer("127.0.0.1", port, timeout=10)
        clone = program.attach_clone("rooms")
        clone.put("a", 20)
        chappe_world.kill("keeper")
        with chappe_world.on("keeper"):
            again = Endpoint()
            again.listen(port=port)
            again.attach_master("rooms", backend="sqlite", path=path)
        clone.put("b", 30, timeout=120)
        assert clone.get("a") == 20
        again.close()


def test_a_conditional_write_that_a_full_disk_refuses_is_refused_once_and_done_nowhere(
    chappe_world: World, tmp_path: Path
) -> None:
    with chappe_world.on("keeper"):
        keeper = Endpoint()
        port = keeper.listen()
        master = keeper.attach_master("rooms", backend="sqlite", path=tmp_path / "rooms.db", history=4)
    with Endpoint() as program, Endpoint() as other:
        for endpoint in (program, other):
            endpoint.peer("127.0.0.1", port, timeout=10)
        clone, reader = program.attach_clone("rooms"), other.attach_clone("rooms")
        clone.put_if("a", 1, None)
        before = clone.entry("a")
        assert before is not None
        assert before.revision is not None
        reports = program.statuses()
        _limit(master, 0)  # the file may not grow
        for write in (clone.put_if, master.put_if):
            with pytest.raises(BackendFailure) as refused:
                write("a", 1_000_000 * "x", before.revision, timeout=60)
            assert refused.value.definite
        chappe_world.advance(5)
        _limit(master, 1_000_000)
        chappe_world.advance(60)
        assert not [each for each in reports.poll() if type(each).__name__ == "WriteFailed"]
        for store in (master, clone, reader):
            found = store.entry("a")
            assert found is not None
            assert (found.value, found.revision) == (1, before.revision)
            assert [each.value for each in store.history("a")] == [1]

        clone.put_if("a", 2, before.revision)
        with pytest.raises(WrongRevision):
            master.put_if("a", 3, before.revision)
        chappe_world.wait_until(lambda: reader.get("a") == 2)
        assert [each.value for each in reader.history("a")] == [1, 2]
    keeper.close()


def _limit(master: DataStore, pages: int) -> None:
    """Bound the file of a master: SQLite says that the disk is full, and never bounds it below what it has."""
    backend = master.attached._backend
    assert isinstance(backend, SqliteBackend)
    backend._opened().execute(f"pragma max_page_count={max(1, pages)}").fetchall()


def test_two_programs_meet(chappe_log: Log) -> None:
    def alarms() -> None:
        with Consumer("readings") as readings, Producer("alarms") as sent:
            for record in readings:
                if int(record.value or b"0") > 80:
                    sent.send(record.value)

    program = chappe_log.world.start(alarms, host="alarms")
    chappe_log.write("readings", "20", "95")
    with Consumer("alarms") as heard:
        batch = heard.poll(60)
    assert batch is not None
    assert not program.done()


def test_what_a_program_returns_is_known(chappe_world: World) -> None:
    assert chappe_world.start(lambda: 7).result(10) == 7
    with pytest.raises(ZeroDivisionError):
        chappe_world.start(lambda: 1 // 0).result(10)


def test_who_waits_for_ever_is_told(chappe_log: Log) -> None:
    chappe_log.world.be_patient(60)
    with Consumer("nothing") as consumer, pytest.raises(NothingHappens):
        next(iter(consumer))


def test_a_tower_that_dies_while_it_is_cut_off_is_found_again(chappe_log: Log) -> None:
    world = chappe_log.world
    with Producer("readings") as producer:
        producer.wait_ready()
        world.cut("test", "tower")
        world.advance(1)
        world.kill("tower")
        world.mend()
        chappe_log.start_tower()
        world.wait_until(lambda: chappe_log.tower.nodes() == 2, 60)
