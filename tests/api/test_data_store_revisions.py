"""Revisions, conditional writes and expiry of data stores, as users meet them at a master, a clone and a chain."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import PATIENCE_S

from chappe import AsyncEndpoint, Endpoint
from chappe.errors import Damaged, InvalidOperation, NoSuchKey, UsageError, WrongRevision
from chappe.system import time


def test_a_master_and_a_clone_know_when_entries_expire_and_list_by_prefix() -> None:
    with Endpoint() as here, Endpoint() as there:
        there.peer("127.0.0.1", here.listen())
        with here.attach_master("s") as master:
            master.put("user/1", "ann", expiry_s=600)
            with there.attach_clone("s", timeout=PATIENCE_S) as clone:
                before_ns = time.time_ns()
                clone.put("user/2", "bob", expiry_s=3600)
                clone.put("host/1", "x")
                clone.put(7, "a number")
                assert clone.await_idle(PATIENCE_S)
                expires_ns = clone.expires_ns("user/2")
                assert expires_ns is not None
                assert before_ns + 3600 * 10**9 <= expires_ns <= time.time_ns() + 3600 * 10**9
                for store in (master, clone):
                    assert store.expires_ns("user/2") == expires_ns
                    assert store.expires_ns("host/1") is None
                    with pytest.raises(NoSuchKey):
                        store.expires_ns("nothing")
                    assert store.keys(prefix="user/") == ["user/1", "user/2"]
                    assert store.items("host/") == [("host/1", "x")]
                    assert [each.key for each in store.snapshot("user/")] == ["user/1", "user/2"]
                    assert len(store.keys()) == 4
                assert {e.key: e.expires_ns for e in clone.snapshot()} == {
                    e.key: e.expires_ns for e in master.snapshot()
                }


def test_of_two_clones_that_read_and_write_back_nothing_is_lost() -> None:
    with Endpoint() as here, Endpoint() as there:
        there.peer("127.0.0.1", here.listen())
        with here.attach_master("s") as master, there.attach_clone("s", timeout=PATIENCE_S) as clone:
            clone.put_if("total", 0, None)
            with pytest.raises(WrongRevision) as found:
                master.put_if("total", 9, None)
            for _ in range(5):
                for store in (clone, master):
                    while True:
                        entry = store.entry("total")
                        assert entry is not None
                        assert entry.revision is not None
                        try:
                            store.put_if("total", entry.value + 1, entry.revision)
                            break
                        except WrongRevision:
                            continue  # this clone does not show yet what the master has written
            assert found.value.revision is not None
            assert master["total"] == 10
            last = master.entry("total")
            assert last is not None
            assert last.revision is not None
            with pytest.raises(WrongRevision):
                clone.erase_if("total", found.value.revision)
            clone.erase_if("total", last.revision)
            assert "total" not in clone
            assert clone.entry("total") is None
            with pytest.raises(UsageError):
                clone.put_if("total", 1, 0)


def test_a_durable_master_that_is_started_again_refuses_revisions_of_before(tmp_path: Path) -> None:
    with Endpoint() as here:
        with here.attach_master("s", "sqlite", path=str(tmp_path / "s.db")) as master:
            master["a"] = 1
            before = master.entry("a")
        with here.attach_master("s", "sqlite", path=str(tmp_path / "s.db")) as master:
            after = master.entry("a")
            assert before is not None
            assert after is not None
            assert before.revision is not None
            assert after.revision is not None
            assert after.revision > before.revision
            with pytest.raises(WrongRevision) as found:
                master.put_if("a", 2, before.revision)
            assert found.value.revision == after.revision
            master.put_if("a", 2, after.revision)
            assert master["a"] == 2


@pytest.mark.parametrize("backend", ["memory", "sqlite", "rocksdb"])
def test_the_history_of_a_key_is_told_to_all_and_outlives_a_durable_master(tmp_path: Path, backend: str) -> None:
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    options: dict[str, Any] = {} if backend == "memory" else {"path": str(tmp_path / "kept")}
    with Endpoint() as here, Endpoint() as there:
        there.peer("127.0.0.1", here.listen())
        with (
            here.attach_master("s", backend, history=3, **options) as master,
            there.attach_clone("s", timeout=PATIENCE_S) as clone,
        ):
            for n in range(3):
                clone.put("a", n)
            before_ns = time.time_ns()
            master.erase("a")
            found = clone.history("a", timeout=PATIENCE_S)
            assert found == master.history("a")
            assert [(each.operation, each.value) for each in found] == [("put", 1), ("put", 2), ("erase", None)]
            assert [each.publisher for each in found] == [clone.entity, clone.entity, master.entity]
            assert before_ns <= (found[2].at_ns or 0) <= time.time_ns()
            assert clone.history("nothing", timeout=PATIENCE_S) == []
            with clone.proxy() as proxy:
                asked = {proxy.history("a"): found, proxy.keys("b"): []}
                answers = [proxy.receive(PATIENCE_S) for _ in asked]
                assert {each.id: each.take() for each in answers if each is not None} == asked
        with here.attach_master("s", backend, history=3, **options) as master:
            assert master.history("a") == ([] if backend == "memory" else found)
        with here.attach_master("s", backend, **options) as master:
            with pytest.raises(InvalidOperation, match="history=N"):
                master.history("a")
            with master.proxy() as proxy:
                proxy.history("a")
                answer = proxy.receive(PATIENCE_S)
                assert answer is not None
                assert isinstance(answer.error, InvalidOperation)
        for history in (-1, 65, True, "5"):
            with pytest.raises(UsageError, match="0 to 64"):
                here.attach_master("s", history=history)  # type: ignore[arg-type]


def test_a_history_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    with Endpoint() as here:
        with here.attach_master("s", "sqlite", path=path, history=3) as master:
            master["a"] = 1
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("update chappe_history set change = x'07'")
        with pytest.raises(Damaged, match="restore it from a copy"):
            here.attach_master("s", "sqlite", path=path, history=3)


def test_asyncio_has_them() -> None:
    async def main() -> None:
        async with AsyncEndpoint() as here, AsyncEndpoint() as there:
            await there.peer("127.0.0.1", await here.listen())
            master = await here.attach_master("s", history=2)
            clone = await there.attach_clone("s", timeout=PATIENCE_S)
            await clone.put_if("a", 1, None, expiry_s=600)
            entry = clone.entry("a")
            assert entry is not None
            assert entry.revision is not None
            assert entry.expires_ns == master.expires_ns("a") == clone.expires_ns("a")
            await clone.put_if("a", 2, entry.revision)
            assert clone.expires_ns("a") is None
            with pytest.raises(WrongRevision):
                await clone.erase_if("a", entry.revision)
            assert clone.keys(prefix="a") == ["a"]
            found = await clone.history("a", timeout=PATIENCE_S)
            assert [each.value for each in found] == [1, 2]
            assert found == await master.history("a")

    asyncio.run(main())
