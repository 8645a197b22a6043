"""What a server of a chain keeps on disk: over restarts, failed writes, power cuts and damage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import copytree

import msgspec
import pytest
from tests.storage.power import Killed, PowerOps

from chappe.defaults import KIB, MIB
from chappe.errors import Damaged, IdentityInUse, StorageError, StorageFormat, StorageFull
from chappe.limits import CHAIN_LIMITS
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain.log import ChainState, LoadedChain, LogChange
from chappe.replication.chain.messages import Entry
from chappe.storage import chain_files
from chappe.storage.chain_files import ChainFiles
from chappe.storage.segments.files import Buffer, FileOps


def entry(number: int, size: int = 3) -> Entry:
    return Entry(1, number, 1, number, 0, bytes([number % 256]) * size)


def opened(path: Path, ops: FileOps | None = None) -> ChainFiles:
    return ChainFiles(path, 77, ops)


def again(files: ChainFiles, path: Path) -> LoadedChain:
    files.close()
    files = opened(path)
    files.close()
    return files.loaded


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    files = opened(tmp_path / "a")
    assert files.loaded == LoadedChain()
    files.write(LogChange(None, 0, (entry(1), entry(2)), 0))
    files.write(LogChange(None, 2, (entry(3),), 2))

    assert again(files, tmp_path / "a") == LoadedChain(None, (entry(1), entry(2), entry(3)), 2)


def test_what_was_cut_is_gone(tmp_path: Path) -> None:
    files = opened(tmp_path / "a")
    files.write(LogChange(None, 0, (entry(1), entry(2)), 0))
    files.write(LogChange(None, 1, (entry(9),), 1))

    assert again(files, tmp_path / "a") == LoadedChain(None, (entry(1), entry(9)), 1)


def test_a_state_stands_for_all_that_was_before(tmp_path: Path) -> None:
    files = opened(tmp_path / "a")
    files.write(LogChange(None, 0, (entry(1), entry(2), entry(3)), 0))
    state = ChainState(2, 1, (b"state",))
    files.write(LogChange(state, 2, (entry(3),), 2))
    files.write(LogChange(None, 3, (entry(4),), 3))

    assert again(files, tmp_path / "a") == LoadedChain(state, (entry(3), entry(4)), 3)
    names = sorted(path.name[18:] for path in (tmp_path / "a").glob("*.chain*"))
    assert names == ["02.chain", "03.chain"]  # the state has a file of its own


def found_in(path: Path, image: Path) -> LoadedChain:
    """What a server finds that starts with a copy of the files."""
    copytree(path, image)
    files = opened(image)
    files.close()
    return files.loaded


def test_what_follows_a_state_is_written_while_that_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_files, "SAVE_BYTES", 10)
    path, state = tmp_path / "a", ChainState(2, 1, (b"a state", b" in some", b" chunks"))
    files = opened(path)
    entries = [entry(1), entry(2), entry(3)]
    files.write(LogChange(None, 0, tuple(entries), 1))
    files.save(LogChange(state, 2, (entry(3),), 2))
    state_found = LoadedChain(ChainState(2, 1, (b"".join(state.chunks),)), (), 2)
    while files.saving:
        before = len(entries)
        found = found_in(path, tmp_path / f"{before}")
        if found.state is None:
            assert found == LoadedChain(None, tuple(entries), 1)
        else:
            assert found == replace(state_found, entries=tuple(entries[2:]))
        files.write(LogChange(None, before, (entry(before + 1),), 0))
        entries.append(entry(before + 1))
        files.save_more()

    assert len(entries) > 5
    assert found_in(path, tmp_path / "whole") == replace(state_found, entries=tuple(entries[2:]))
    assert not (path / f"{1:020d}.chain").exists()
    files.write(LogChange(None, len(entries), (), 3))
    files.close()


class Counting(FileOps):
    """Counts bytes that are written and removed."""

    written = removed = 0

    def write_all(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self.written += sum(map(len, buffers))
        return super().write_all(fd, buffers, position)

    def ftruncate(self, fd: int, length: int) -> None:
        self.removed += os.fstat(fd).st_size - length
        super().ftruncate(fd, length)

    def unlink(self, path: str) -> None:
        self.removed += os.stat(path).st_size
        super().unlink(path)


def test_other_changes_wait_for_a_small_part_of_a_save_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_files, "REMOVE_BYTES", 1 * MIB)
    ops, path = Counting(), tmp_path / "a"
    files = opened(path, ops)
    behind = tuple(entry(number, 64 * KIB) for number in range(2, 200))  # as clients send them at full speed
    files.write(LogChange(None, 0, (entry(1), *behind), 1))
    files.save(LogChange(ChainState(1, 1, (bytes(256 * KIB),) * 40), 1, behind, 1))
    whole = LoadedChain(ChainState(1, 1, (bytes(256 * KIB) * 40,)), behind, 1)
    steps = 0
    while files.saving:
        ops.written = ops.removed = 0
        files.save_more()
        steps += 1
        assert ops.written <= 3 * CHAIN_LIMITS.append_bytes
        assert ops.removed <= 1 * MIB
        if ops.removed:
            assert found_in(path, tmp_path / f"{steps}") == whole

    assert again(files, path) == whole
    assert len(list(path.glob("*.chain"))) == 1


class Refusing(FileOps):
    """A disk that is full when it is told."""

    full = False

    def fsync(self, fd: int) -> None:
        if self.full:
            raise OSError(28, "no room")
        super().fsync(fd)


def test_a_state_that_a_disk_refuses_is_given_up_and_all_is_there(tmp_path: Path) -> None:
    ops = Refusing()
    path = tmp_path / "a"
    files = opened(path, ops)
    files.write(LogChange(None, 0, (entry(1), entry(2)), 0))
    files.save(LogChange(ChainState(1, 1, (b"state",)), 1, (entry(2),), 1))
    ops.full = True
    with pytest.raises(StorageFull):
        files.save_more()
    ops.full = False

    assert not files.saving
    files.write(LogChange(None, 2, (entry(3),), 0))
    assert again(files, path) == LoadedChain(None, (entry(1), entry(2), entry(3)), 0)
    assert not list(path.glob("*.tmp"))


@pytest.mark.parametrize("size", [0, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("count", [0, 15, 16, 65_536])
def test_a_state_in_parts_is_the_same_bytes_as_before(size: int, count: int, tmp_path: Path) -> None:
    change = LogChange(ChainState(7, 2, (b"x" * size,)), 7, (entry(8),) * count, 9)
    old = {
        "state": {"index": 7, "term": 2, "data": b"x" * size}, "keep": 7, "entries": change.entries, "committed": 9,
    }  # fmt: skip

    assert b"".join(chain_files._encoded(change)) == msgspec.msgpack.encode(old)


def test_a_vote_is_kept_and_a_new_server_is_who_it_was_made(tmp_path: Path) -> None:
    files = opened(tmp_path / "a")
    assert files.memory == VoteRecord(77)
    memory = VoteRecord(77, 3, b"value", (2, 77), (1, 5), b"proposal")
    files.keep(memory)
    files.close()

    files = ChainFiles(tmp_path / "a", 88)
    assert files.memory == memory
    files.close()


def test_one_server_at_a_time(tmp_path: Path) -> None:
    files = opened(tmp_path / "a")
    with pytest.raises(IdentityInUse):
        opened(tmp_path / "a")
    files.close()


def test_a_file_that_ends_anywhere_has_whole_changes(tmp_path: Path) -> None:
    files = opened(tmp_path / "a")
    ends = []
    (path,) = [tmp_path / "a" / f"{1:020d}.chain"]
    for number in range(1, 4):
        files.write(LogChange(None, number - 1, (entry(number),), 0))
        ends.append(path.stat().st_size)
    files.close()
    raw = path.read_bytes()
    for end in range(len(raw) + 1):
        path.write_bytes(raw[:end])
        files = opened(tmp_path / "a")
        assert len(files.loaded.entries) == sum(each <= end for each in ends)
        files.close()


def test_damage_in_the_midst_is_not_taken_for_the_end(tmp_path: Path) -> None:
    files = opened(tmp_path / "a")
    for number in range(1, 4):
        files.write(LogChange(None, number - 1, (entry(number),), 0))
    files.close()
    path = tmp_path / "a" / f"{1:020d}.chain"
    raw = bytearray(path.read_bytes())
    raw[20] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Damaged, match="is damaged before byte"):
        opened(tmp_path / "a")


def test_without_its_vote_a_server_does_not_start(tmp_path: Path) -> None:
    files = opened(tmp_path / "a")
    files.write(LogChange(None, 0, (entry(1),), 0))
    files.close()
    (tmp_path / "a" / "vote").write_bytes(b"something")
    with pytest.raises(Damaged, match="vote twice"):
        opened(tmp_path / "a")
    (tmp_path / "a" / "vote").unlink()
    with pytest.raises(Damaged, match="vote twice"):
        opened(tmp_path / "a")


def test_another_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.chain").write_bytes(b"")
    with pytest.raises(StorageFormat, match="does not hold a server of a chain"):
        opened(tmp_path)


class Failing(FileOps):
    """A disk that refuses to sync when it is told."""

    def __init__(self) -> None:
        self.fails = False

    def fdatasync(self, fd: int) -> None:
        if self.fails:
            raise OSError(28, "no room")


def test_after_a_failed_write_the_next_one_goes_on_in_a_new_file(tmp_path: Path) -> None:
    ops = Failing()
    files = opened(tmp_path / "a", ops)
    files.write(LogChange(None, 0, (entry(1),), 0))
    ops.fails = True
    with pytest.raises(StorageError):
        files.write(LogChange(None, 1, (entry(2), entry(3)), 0))
    ops.fails = False
    files.write(LogChange(None, 1, (entry(5),), 1))

    assert again(files, tmp_path / "a") == LoadedChain(None, (entry(1), entry(5)), 1)


def test_files_before_a_state_of_which_some_are_gone_already_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files = opened(path)
    files.write(LogChange(None, 0, (entry(1), entry(2)), 0))
    files.close()
    files = opened(path)  # goes on in a second file
    files.write(LogChange(None, 2, (entry(3),), 2))
    kept = (path / f"{2:020d}.chain").read_bytes()
    state = ChainState(3, 1, (b"state",))
    files.write(LogChange(state, 3, (), 3))
    files.close()
    (path / f"{2:020d}.chain").write_bytes(kept)  # as if it was killed when only the first one was removed

    files = opened(path)
    assert files.loaded == LoadedChain(state, (), 3)
    files.write(LogChange(ChainState(4, 1, (b"newer",)), 4, (), 4))
    files.close()
    assert len(list(path.glob("*.chain"))) == 1


def test_a_missing_file_is_damage_if_no_state_follows(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files = opened(path)
    files.write(LogChange(None, 0, (entry(1), entry(2)), 0))
    files.close()
    files = opened(path)
    files.write(LogChange(None, 2, (entry(3),), 2))
    files.close()
    (path / f"{1:020d}.chain").unlink()

    with pytest.raises(Damaged, match="goes on behind entry 2"):
        opened(path)


class Noting(FileOps):
    """Remembers which directories were synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync_directory(self, path: str) -> None:
        self.synced.append(path)
        super().sync_directory(path)


def test_names_that_a_killed_process_did_not_come_to_sync_are_synced_before_they_count(tmp_path: Path) -> None:
    files = opened(tmp_path / "a")
    files.keep(VoteRecord(77, 3))
    files.close()
    ops = Noting()

    files = opened(tmp_path / "a", ops)

    assert str(tmp_path / "a") in ops.synced
    assert files.memory.number == 3
    files.close()


@pytest.mark.parametrize("seed", range(60))
def test_after_a_power_cut_while_a_state_is_written_all_is_there(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_files, "SAVE_BYTES", 100)
    rng = Random(seed)
    ops = PowerOps(tmp_path / "a", rng)
    (tmp_path / "a").mkdir()
    ops.kill_in = rng.randrange(20, 150)
    views = [LoadedChain()]  # what may be there; of two the second one has the state
    attempt: LogChange | None = None
    try:
        files = opened(tmp_path / "a", ops)
        for _ in range(40):
            if files.saving and rng.random() < 0.6:
                files.save_more()
                views = views if files.saving else views[1:]
                continue
            base = views[0].state.index if views[0].state else 0
            end = base + len(views[0].entries)
            if not files.saving and end > base and rng.random() < 0.3:
                state = ChainState(end - 1, 1, (b"s" * 600,))
                views.append(LoadedChain(state, views[0].entries[-1:], end - 1))
                files.save(LogChange(state, end - 1, views[0].entries[-1:], end - 1))
                continue
            attempt = LogChange(None, end, tuple(entry(end + 1 + each, 300) for each in range(3)), 0)
            files.write(attempt)
            views = [after(each, attempt) for each in views]
            attempt = None
        files.close()
    except Killed:
        pass
    image = tmp_path / "image"
    ops.image(image)
    found = opened(image)
    assert found.loaded in [*views, *(after(each, attempt) for each in views if attempt is not None)]
    found.close()


@pytest.mark.parametrize("seed", range(60))
def test_after_a_power_cut_all_that_was_synced_is_there(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    ops = PowerOps(tmp_path / "a", rng)
    (tmp_path / "a").mkdir()
    ops.kill_in = rng.randrange(8, 80)
    expected, memory, surely = LoadedChain(), VoteRecord(77), 0
    attempt: LogChange | VoteRecord | None = None
    try:
        files = opened(tmp_path / "a", ops)
        for step in range(1, 30):
            end = (expected.state.index if expected.state else 0) + len(expected.entries)
            if rng.random() < 0.2:
                attempt = replace(memory, number=step)
                files.keep(attempt)
                memory = attempt
                continue
            if rng.random() < 0.2 and expected.entries:
                attempt = LogChange(ChainState(end - 1, 1, (b"s" * 600,)), end - 1, expected.entries[-1:], end - 1)
            else:
                attempt = LogChange(None, end, tuple(entry(end + 1 + each, 300) for each in range(3)), 0)
            files.write(attempt)
            surely, expected = step, after(expected, attempt)
            attempt = None
    except Killed:
        pass
    assert surely >= 0
    image = tmp_path / "image"
    ops.image(image)
    found = opened(image)
    assert found.memory in (memory, attempt)
    assert found.loaded in (expected, after(expected, attempt) if isinstance(attempt, LogChange) else expected)
    found.close()


def after(loaded: LoadedChain, change: LogChange) -> LoadedChain:
    if change.state is not None:
        return LoadedChain(change.state, change.entries, change.committed)
    return LoadedChain(loaded.state, (*loaded.entries, *change.entries), max(loaded.committed, change.committed))
