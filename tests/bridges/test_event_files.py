"""Events of the mesh in files of Parquet."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.endpoints import PATIENCE_S, Make, until

from chappe.bridges import event_files
from chappe.bridges.event_files import EventFiles, folder_of
from chappe.data.scalars import Count, Timespan, Timestamp
from chappe.data.values import Set, Table
from chappe.data.zeek import Batch, Event
from chappe.errors import StorageFull, UsageError

TOPIC = "zeek/conn"


def whole(directory: Path) -> list[str]:
    """The files that readers see."""
    return sorted(str(each.relative_to(directory)) for each in directory.rglob("*.parquet") if each.name[0] != ".")


def test_what_came_is_in_a_file_for_each_event_and_types_of_its_arguments(make: Make, tmp_path: Path) -> None:
    one, two = make(), make()
    with EventFiles(one, "zeek/", directory=tmp_path / "new" / "files") as recorder:
        two.peer("localhost", one.listen())
        assert two.await_peer(one.id, PATIENCE_S)
        two.publish_batch((TOPIC, Event("seen", Count(number), "x")) for number in range(1_000))
        two.publish(TOPIC, Batch([Event("seen", Count(1_000), "x"), Event("../..", None, Timespan(5), ())]))
        two.publish(TOPIC, Event("seen", "other"))
        two.publish("zeek/plain", Table({"a": Set([Timestamp(5)])}))
        until(lambda: recorder.progress().waiting >= 1_003)
        account = recorder.finish()

    found: dict[str, list[int]] = {}
    for name in whole(tmp_path):
        table = pq.read_table(tmp_path / name, partitioning=None)
        found.setdefault(Path(name).parent.name, []).append(table.num_rows)
    assert {name: sorted(rows) for name, rows in found.items()} == {
        "seen": [1, 1_001],
        "%2E.%2F..": [1],
        "%values": [1],
    }
    assert (account.records, account.stored, account.left, account.dropped) == (1_004, 1_004, 0, 0)
    assert recorder.malformed == 0
    assert not list(tmp_path.rglob(".*"))


def test_files_are_made_while_it_runs_once_they_are_due(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_files, "FILES_S", 0.0)
    one, two = make(), make()
    recorder = EventFiles(one, "zeek/", directory=tmp_path)
    running = threading.Thread(target=recorder.run)
    running.start()
    try:
        two.peer("localhost", one.listen())
        assert two.await_peer(one.id, PATIENCE_S)
        for number in range(2):
            two.publish(TOPIC, Event("seen", number))
            until(lambda number=number: len(whole(tmp_path)) == number + 1)  # type: ignore[misc]
    finally:
        recorder.stop()
        running.join()
    assert recorder.finish().stored == 2


def test_a_disk_that_is_full_ends_it_in_a_sentence_and_leaves_no_part_of_a_file(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    one, two = make(), make()
    recorder = EventFiles(one, "zeek/", directory=tmp_path)
    two.peer("localhost", one.listen())
    assert two.await_peer(one.id, PATIENCE_S)
    two.publish(TOPIC, Event("seen", 5))
    until(lambda: recorder.progress().waiting == 1)
    monkeypatch.setattr(event_files, "sync_file", full)

    with pytest.raises(StorageFull, match=r"cannot write .*/seen/.*: No space left on device; 1 events are in no file"):
        recorder.finish()
    assert list((tmp_path / "seen").iterdir()) == []


def test_a_file_in_the_place_of_its_directory_is_refused(make: Make, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")

    with pytest.raises(UsageError, match="is a file"):
        EventFiles(make(), "", directory=tmp_path / "there")


@pytest.mark.parametrize("event", ["", ".", "..", "_seen", "a/b", "Conn::log", "ä", "%values", "x" * 500, "a\0b"])
def test_the_folder_of_any_event_is_a_name_of_its_own_that_readers_do_not_pass_over(event: str) -> None:
    folder = folder_of(event)

    assert folder[0] not in "._"
    assert not set(folder) & {"/", "\\", "\0"}
    assert len(folder) <= 200
    assert folder != folder_of(None)
    assert folder != folder_of(event + "y")
