"""A producer's journal: what was published and not stored survives any end, and nothing else does."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from chappe.errors import IdentityInUse, StorageError, StorageFormat, StorageFull
from chappe.log.batch import Record, encode_batch, encode_record
from chappe.log.journal import FRAME
from chappe.storage import journal as module
from chappe.storage.journal import Journal


def batch(base: int, *values: bytes) -> bytes:
    return encode_batch(base, values or [b"%d" % base], 1)


def opened(directory: Path, topic: str = "hello") -> Journal:
    return Journal(directory, topic, "NEW")


def reopened(directory: Path) -> tuple[list[bytes], int]:
    """What a further life finds."""
    journal = opened(directory)
    found = journal.batches, journal.next_offset
    journal.close()
    return found


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.journal"))


def test_the_first_life_names_the_partition_for_all_that_follow(tmp_path: Path) -> None:
    first = Journal(tmp_path / "made" / "here", "hello", "FIRST")
    first.close()
    second = Journal(tmp_path / "made" / "here", "hello", "SECOND")

    assert (first.address, second.address) == ("FIRST", "FIRST")
    assert (second.batches, second.next_offset) == ([], 0)
    second.close()


def test_what_was_appended_is_there_after_an_end_without_warning(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(batch(0, b"a", b"b"), 2)
    journal.append(batch(2), 3)
    journal._lock.close()  # as a killed process leaves it

    assert reopened(tmp_path) == ([batch(0, b"a", b"b"), batch(2)], 3)


def test_lives_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    for base in range(5):
        journal = opened(tmp_path)
        assert journal.next_offset == base
        journal.append(batch(base), base + 1)
        journal.close()

    assert reopened(tmp_path) == ([batch(base) for base in range(5)], 5)


def test_what_is_stored_is_dropped_but_the_offset_is_remembered(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for base in range(3):
        journal.append(batch(base), base + 1)
    journal.trim(3)
    journal.close()

    assert reopened(tmp_path) == ([], 3)
    assert len(files(tmp_path)) == 1


def test_a_file_goes_only_when_everything_in_it_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROTATE_BYTES", 2 * len(batch(0)))
    journal = opened(tmp_path)
    for base in range(6):
        journal.append(batch(base), base + 1)
    assert [int(path.stem) for path in files(tmp_path)] == [0, 2, 4]

    journal.trim(3)
    assert [int(path.stem) for path in files(tmp_path)] == [2, 4]
    journal.close()
    assert reopened(tmp_path) == ([batch(base) for base in range(2, 6)], 6)


def test_every_cut_of_the_last_batch_loses_that_batch_alone(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(batch(0), 1)
    journal.append(batch(1), 2)
    journal.close()
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    for size in range(FRAME.size + len(batch(0)), len(whole)):
        path.write_bytes(whole[:size])
        for later in files(tmp_path)[1:]:
            later.unlink()
        assert reopened(tmp_path) == ([batch(0)], 1)


@pytest.mark.parametrize("tail", [b"\0" * 200, b"garbage" * 50, b"CB\x01\0" + b"\xff" * 60])
def test_bytes_that_are_no_batch_end_the_file(tmp_path: Path, tail: bytes) -> None:
    journal = opened(tmp_path)
    journal.append(batch(0), 1)
    journal.close()
    with open(files(tmp_path)[0], "ab") as file:
        file.write(tail)

    assert reopened(tmp_path) == ([batch(0)], 1)
    journal = opened(tmp_path)
    journal.append(batch(1), 2)
    journal.close()
    assert reopened(tmp_path) == ([batch(0), batch(1)], 2)


def test_a_full_disk_refuses_the_batch_and_takes_the_next_one_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)
    journal.append(batch(0), 1)
    write = os.pwritev

    def half(file: int, buffers: list[bytes], at: int) -> int:
        write(file, [buffers[0][:10]], at)
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwritev", half)
    with pytest.raises(StorageFull, match="the disk is full; free some space"):
        journal.append(batch(1), 2)
    room = [10]

    def full(file: int, buffers: list[bytes], at: int) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(file, [buffers[0][: room.pop()]], at)

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(StorageFull):
        journal.append(batch(1), 2)
    monkeypatch.setattr(os, "pwritev", write)
    journal.append(batch(1), 2)
    journal.close()

    assert reopened(tmp_path) == ([batch(0), batch(1)], 2)


def test_a_refused_batch_that_stayed_on_disk_does_not_count_once_there_is_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync fails and so does taking the bytes back: the same offsets come again in the next file."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    journal = opened(tmp_path)
    journal.append(batch(0), 1)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fail)
        broken.setattr(os, "ftruncate", fail)
        with pytest.raises(StorageError, match="Input/output") as found:
            journal.append(batch(1, b"refused", b"too"), 3)
    assert not isinstance(found.value, StorageFull)
    journal.append(batch(1, b"again"), 2)
    journal.append(batch(2), 3)
    journal.close()

    assert len(files(tmp_path)) == 2
    assert reopened(tmp_path) == ([batch(0), batch(1, b"again"), batch(2)], 3)


@pytest.mark.parametrize("synced", [False, True])
def test_ctrl_c_in_the_middle_of_a_write_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: bool
) -> None:
    sync = os.fdatasync

    def interrupted(file: int) -> None:
        if synced:
            sync(file)
        raise KeyboardInterrupt

    journal = opened(tmp_path)
    journal.append(batch(0), 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.append(batch(1), 2)
    assert journal.next_offset == 1
    journal.append(batch(1, b"again"), 2)
    journal.append(batch(2), 3)
    journal.close()

    assert reopened(tmp_path) == ([batch(0), batch(1, b"again"), batch(2)], 3)


def test_a_new_file_that_cannot_be_made_refuses_the_batch_not_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROTATE_BYTES", 1)
    real = os.open

    def no_more(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags, *rest)  # type: ignore[arg-type]

    journal = opened(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(os, "open", no_more)
        journal.append(batch(0), 1)  # the file is full now
        journal.trim(1)
        with pytest.raises(StorageError, match="no more files"):
            journal.append(batch(1), 2)
    journal.append(batch(1), 2)
    journal.close()

    assert reopened(tmp_path) == ([batch(0), batch(1)], 2)


def test_what_a_killed_process_had_not_synced_is_synced_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)
    journal.append(batch(0), 1)
    journal.close()
    synced: list[str] = []
    real = os.fsync

    def note(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        real(file)

    monkeypatch.setattr(os, "fsync", note)
    opened(tmp_path).close()

    assert str(files(tmp_path)[0]) in synced


# -- what has an offset and is in no batch yet ---------------------------------------------------------------


def found_pending(directory: Path) -> list[tuple[int, bytes | None]]:
    """What a further life finds behind the batches; it leaves it as it is."""
    journal = opened(directory)
    found = [(each.offset, each.value) for each in journal.pending]
    journal.close()
    return found


def test_a_killed_process_finds_what_it_gave_offsets_to(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(batch(0), 1)
    journal.pend(encode_record(1, b"one", 7))
    journal.pend(encode_batch(2, [None], 8, keys=[b"key"], headers=[(("name", b"x"),)]))
    journal._lock.close()  # as a killed process leaves it

    assert reopened(tmp_path) == ([batch(0)], 1)
    again = opened(tmp_path)
    assert again.pending == [
        Record("", "", 1, 7, None, b"one", ()),
        Record("", "", 2, 8, b"key", None, (("name", b"x"),)),
    ]
    again.pend(encode_record(3, b"three", 9))
    again.close()
    assert found_pending(tmp_path) == [(1, b"one"), (2, None), (3, b"three")]


def test_what_a_batch_brought_into_the_journal_is_pending_no_more(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for offset in range(3):
        journal.pend(batch(offset))
    journal.append(batch(0, b"0", b"1", b"2"), 3)
    assert found_after_a_kill(journal, tmp_path) == []

    journal = opened(tmp_path)
    journal.pend(batch(3))  # over those of before
    assert found_after_a_kill(journal, tmp_path) == [(3, b"3")]


def found_after_a_kill(journal: Journal, directory: Path) -> list[tuple[int, bytes | None]]:
    journal._lock.close()
    return found_pending(directory)


def test_every_cut_of_the_pending_ends_them_there(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for offset in range(2):
        journal.pend(batch(offset))
    journal.close()
    path = tmp_path / "pending"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert found_pending(tmp_path) == [(0, b"0")][: size // (FRAME.size + len(batch(0)))]


@pytest.mark.parametrize(("end", "found"), [(1, [(1, b"1")]), (2, []), (3, [])])
def test_pending_count_from_where_the_journal_ends(tmp_path: Path, end: int, found: object) -> None:
    journal = opened(tmp_path)
    journal.pend(batch(0))
    journal.pend(batch(1))
    journal.close()
    (tmp_path / f"{end:020d}.journal").touch()  # it says that everything before was journaled

    assert found_pending(tmp_path) == found
    assert found_pending(tmp_path) == found


def test_a_refused_batch_that_stayed_on_disk_does_not_stand_for_records_that_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    journal = opened(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fail)
        broken.setattr(os, "ftruncate", fail)
        with pytest.raises(StorageError):
            journal.append(batch(0, b"refused"), 1)
    journal.pend(batch(0, b"taken"))

    assert found_after_a_kill(journal, tmp_path) == [(0, b"taken")]
    assert reopened(tmp_path) == ([], 0)


def test_a_full_disk_refuses_a_record_and_takes_the_next_one_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)
    journal.pend(batch(0))
    write = os.pwritev
    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", lambda file, bodies, at: write(file, [bodies[0][:-1]], at))
        with pytest.raises(StorageFull, match="cannot write the journal"):
            journal.pend(batch(1, b"refused and longer"))
    journal.pend(batch(1))
    journal.close()

    assert found_pending(tmp_path) == [(0, b"0"), (1, b"1")]


def hold(directory: Path, ready: object, done: object) -> None:
    journal = opened(directory)
    ready.set()  # type: ignore[attr-defined]
    done.wait(PATIENCE_S)  # type: ignore[attr-defined]
    journal.close()


@pytest.mark.process
def test_two_processes_cannot_have_one_identity(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, ready, done))
    other.start()
    try:
        assert ready.wait(PATIENCE_S)
        with pytest.raises(IdentityInUse, match="stop it, or choose another identity"):
            opened(tmp_path)
    finally:
        done.set()
        other.join(PATIENCE_S)
    opened(tmp_path).close()


def test_two_producers_of_one_process_cannot_have_one_identity(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with pytest.raises(IdentityInUse):
        opened(tmp_path)
    journal.close()
    opened(tmp_path).close()


def test_a_journal_of_another_topic_is_refused_and_not_locked(tmp_path: Path) -> None:
    opened(tmp_path).close()
    for _ in range(2):
        with pytest.raises(StorageFormat, match="'hello'"):
            opened(tmp_path, "other")
    opened(tmp_path).close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a producer's identity"),
        (b"{", "not a producer's identity"),
        (b"[]", "not a producer's identity"),
        (b'{"format":1}', "not a producer's identity"),
        (b'{"format":1,"address":"A","topic":"\xff"}', "not a producer's identity"),
        (b'{"format":2,"address":"A","topic":"hello"}', "checksum"),
        (b'{"format":2,"address":"A","topic":"hello","checksum":"00000000"}', "checksum"),
        (b'{"format":3,"address":"A","topic":"hello"}', "newer chappe"),
        (b'{"format":3,"address":"A","topic":"hello","more":1}', "newer chappe"),
    ],
)
def test_an_identity_that_is_none_or_newer_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "identity.json").write_bytes(content)

    with pytest.raises(StorageFormat, match=message):
        opened(tmp_path)


def test_a_foreign_file_is_refused_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.journal").write_text("mine")

    with pytest.raises(StorageFormat, match=r"notes\.journal"):
        opened(tmp_path)
    assert (tmp_path / "notes.journal").read_text() == "mine"


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="for the identity of a producer"):
        opened(tmp_path / "file" / "below")
