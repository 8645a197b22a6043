"""The numbers of a durable master's events, as its backend keeps them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fixed_clock import FixedClock

from chappe import Endpoint
from chappe.core import Effect, Persist, Report
from chappe.errors import StorageFull
from chappe.kv import commands as cmd
from chappe.kv.backend import Commit, Loaded, Operation, WriterRow
from chappe.kv.commands import encode_command, encode_message
from chappe.kv.entity import NOBODY, chappe_entity
from chappe.kv.events import CommandRefused
from chappe.kv.master import KvMaster
from chappe.kv.recent import AHEAD
from chappe.storage.kv_backends import SqliteBackend

NS = 1_000_000_000
MASTER = chappe_entity(b"m" * 16, 1)


def master(wall_s: int, *rows: Operation, durable: bool = True) -> KvMaster:
    """A new life behind what the backend keeps."""
    loaded = Loaded((), tuple([row for row in rows if isinstance(row, WriterRow)]))
    return KvMaster("s", MASTER, now=0.0, clock=FixedClock(wall_s * NS), durable=durable, loaded=loaded)


def kept(actions: Sequence[Effect]) -> list[Operation]:
    """The rows with numbers among what is to be committed."""
    commits = [each.job.operations for each in actions if isinstance(each, Persist)]
    return [row for rows in commits for row in rows if isinstance(row, WriterRow) and row.entity == NOBODY]


def test_a_life_begins_behind_those_before_whatever_the_clock_says() -> None:
    first = master(1_000)
    assert first.position == 1_000 * 10**6
    rows = first.reserve()
    second = master(10, *rows)
    assert second.position == 1_000 * 10**6 + AHEAD
    assert master(10, *second.reserve()).position == 1_000 * 10**6 + 2 * AHEAD
    assert master(2_000, *rows).position == 2_000 * 10**6
    assert not master(1_000, durable=False).reserve()


def test_they_are_kept_once_for_very_many_and_before_any_comes_that_is_not() -> None:
    core = master(1_000)
    (row,) = core.reserve()
    assert isinstance(row, WriterRow)
    began, highest, written = core.position, row.applied, 0
    assert not core.reserve()
    for number in range(1, 200):
        core._ordering._planned += AHEAD // 50  # as if so many more had been written
        actions = core.put("k", number, now=0.0)
        for each in kept(actions):
            assert isinstance(each, WriterRow)
            highest, written = each.applied, written + 1
        assert began + number * (AHEAD // 50) < highest
        core.handle_done(Commit(number, ()), None, 0.0)
    assert 4 <= written <= 10


def test_a_backend_that_refuses_them_gets_them_again() -> None:
    core = master(1_000)
    assert kept(core.put("k", 1, now=0.0))
    core.handle_done(Commit(1, ()), StorageFull("full"), 0.0)
    assert kept(core.put("k", 2, now=0.0))
    core.handle_done(Commit(2, ()), None, 0.0)
    assert not kept(core.put("k", 3, now=0.0))


def test_nobody_can_write_over_them() -> None:
    core = master(1_000)
    command = encode_command(cmd.AttachWriter(7, 10))
    (refused,) = core.handle_message(core.topics[0], [encode_message(0, NOBODY, MASTER, command)], 0.0)
    assert isinstance(refused, Report)
    assert isinstance(refused.event, CommandRefused)
    assert not core.writer_rows()


def test_a_file_of_an_earlier_version_has_them_before_its_entries_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Endpoint() as endpoint, endpoint.attach_master("s", "sqlite", path=path) as store:
        store.put("k", 1)
    with sqlite3.connect(path) as database:
        assert database.execute("delete from chappe_writers").rowcount == 1  # as it was left before
    database.close()
    with Endpoint() as endpoint, endpoint.attach_master("s", "sqlite", path=path) as store:
        found = store.entry("k")
        assert found is not None
        assert found.revision is not None
    backend = SqliteBackend(path)
    assert [row.applied for row in backend.load().writers] == [found.revision + AHEAD]
    backend.close()


def test_where_they_cannot_be_kept_nothing_is_attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: SqliteBackend, operations: Sequence[Operation]) -> None:
        raise StorageFull("the disk is full")

    with Endpoint() as endpoint:
        with monkeypatch.context() as patch:
            patch.setattr(SqliteBackend, "commit", refuse)
            with pytest.raises(StorageFull):
                endpoint.attach_master("s", "sqlite", path=tmp_path / "s")
        with endpoint.attach_master("s", "sqlite", path=tmp_path / "s") as store:
            store.put("k", 1)
