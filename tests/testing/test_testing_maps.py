"""Shared maps and their server in a test's own world."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import sleep  # the system's, also in a world

import pytest

from chappe import MapServer, SharedMap, Witness
from chappe.kv.backend import Operation
from chappe.storage.kv_backends import SqliteBackend
from chappe.testing import World

PRIMARY, BACKUP, WITNESS = (f"127.0.0.1:{port}" for port in (6000, 6010, 6020))


def test_a_map_is_shared(chappe_world: World) -> None:
    with chappe_world.on("server"):
        server = MapServer("127.0.0.1:0")
    with SharedMap(server.address) as one, SharedMap(server.address) as other:
        one["a"] = b"20"
        chappe_world.wait_until(lambda: other.get("a") == b"20")
        other.set("b", b"30", ttl=60)
        assert one.compare_and_set("a", b"20", b"21")
        chappe_world.wait_until(lambda: one.get("b") == b"30")
        chappe_world.advance(62)
        assert one.get("b") is None


def test_a_session_value_ends_with_its_host(chappe_world: World) -> None:
    with chappe_world.on("server"):
        server = MapServer("127.0.0.1:0")
    with chappe_world.on("owner"):
        SharedMap(server.address).set("lock", b"mine", session=True)
    with SharedMap(server.address) as other:
        assert other["lock"] == b"mine"
        chappe_world.kill("owner")
        chappe_world.advance(15)
        assert "lock" not in other


def test_a_disk_of_a_pair_that_is_slow_outside_of_the_world_makes_nobody_take_over(
    chappe_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = SqliteBackend.commit

    def slow(backend: SqliteBackend, operations: Sequence[Operation]) -> None:
        sleep(0.02)
        commit(backend, operations)

    monkeypatch.setattr(SqliteBackend, "commit", slow)
    with chappe_world.on("witness"):
        Witness(WITNESS, path=tmp_path / "witness.db")
    with chappe_world.on("primary"):
        primary = MapServer(
            PRIMARY, backend="sqlite", path=tmp_path / "1", partner=BACKUP, role="primary", witness=WITNESS
        )
    with chappe_world.on("backup"):
        backup = MapServer(
            BACKUP, backend="sqlite", path=tmp_path / "2", partner=PRIMARY, role="backup", witness=WITNESS
        )
    with SharedMap(PRIMARY, BACKUP) as shared:
        shared["a"] = b"1"
        chappe_world.cut("primary", "backup")
        chappe_world.advance(5)
        chappe_world.mend()
        chappe_world.advance(30)
        shared["a"] = b"2"
        pairs = [server.status().pair for server in (primary, backup)]
        assert [(each.state, each.term) for each in pairs if each is not None] == [("active", 1), ("passive", 0)]
