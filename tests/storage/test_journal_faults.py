"""A producer's journal on a disk that refuses and rots: what was accepted is found again, and what is gone is told."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from chappe.errors import StorageError, StorageFormat
from chappe.log.batch import Batch, encode_batch
from chappe.storage import journal as module
from chappe.storage.journal import Journal, Journals

CALLS = ("open", "pwritev", "pwrite", "fdatasync", "fsync", "ftruncate", "unlink")


def batch(base: int, *values: bytes) -> bytes:
    return encode_batch(base, values or [b"%d" % base], 1)


def opened(directory: Path) -> Journal:
    return Journal(directory, "hello", "ADDRESS")


def values(bodies: list[bytes]) -> dict[int, bytes | None]:
    return {
        offset: value
        for body in bodies
        for offset, value in enumerate(Batch.parse(body).values(), Batch.parse(body).base)
    }


def flip(path: Path, at: int, bit: int = 1) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= bit
    path.write_bytes(raw)


@contextmanager
def failing(patch: pytest.MonkeyPatch, first: int, count: int, error: int) -> Iterator[list[str]]:
    """System calls from number ``first`` on fail, ``count`` of them; yields those that were made."""
    made: list[str] = []

    def of(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            made.append(name)
            if first <= len(made) - 1 < first + count:
                raise OSError(error, os.strerror(error))
            return real(*arguments, **options)

        return call

    with patch.context() as broken:
        for name in CALLS:
            broken.setattr(os, name, of(name, getattr(os, name)))
        yield made


def life(journal: Journal, accepted: dict[int, bytes | None]) -> None:
    """Batches, records that are pending, and what is stored; refusals are taken as a producer does."""
    for step in range(12):
        base = journal.next_offset
        if step % 3 == 2:
            with suppress(StorageError):
                journal.pend(batch(base, b"pending %d" % step))
        body = batch(base, b"first of %d" % step, b"second of %d" % step)
        with suppress(StorageError):
            journal.append(body, base + 2)
            accepted |= values([body])
        if step in (3, 4, 8):
            journal.trim(journal.next_offset)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_whichever_calls_fail_what_was_accepted_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, error: int
) -> None:
    monkeypatch.setattr(module, "ROTATE_BYTES", 3 * len(batch(0, b"first of 0", b"second of 0")))
    first = calls = 0
    while first <= calls:
        directory = tmp_path / str(first)
        accepted: dict[int, bytes | None] = {}
        journal = opened(directory)
        with failing(monkeypatch, first, count, error) as made:
            life(journal, accepted)
        calls = len(made)
        journal.close()  # which writes nothing: a killed process leaves the same
        again = opened(directory)
        found = values(again.batches)
        kept_from = min(found, default=again.next_offset)
        assert not again.lost
        assert again.next_offset >= len(accepted), f"call {first}, {made[first : first + 1]}"
        for offset, value in accepted.items():
            assert offset < kept_from or found[offset] == value, f"call {first}, {made[first : first + 1]}"
        again.close()
        first += 1
    assert calls > 30


def test_a_new_file_that_is_there_though_its_making_failed_ends_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def no_directory(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        sync(file)

    journal = opened(tmp_path)
    journal.append(batch(0), 1)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", no_directory)
        journal.trim(1)  # everything is stored: a new file begins, and the folder cannot be synced
    assert (tmp_path / f"{1:020d}.journal").exists()
    journal.append(batch(1), 2)
    journal.append(batch(2), 3)
    journal.close()

    again = opened(tmp_path)
    assert (again.next_offset, sorted(values(again.batches))[-2:]) == (3, [1, 2])
    again.close()


# -- rot -------------------------------------------------------------------------------------------------------


def three_files(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Path], dict[int, bytes | None]]:
    """Offsets 0 to 5, two batches in each file, and the newest file."""
    monkeypatch.setattr(module, "ROTATE_BYTES", 2 * len(batch(0)))
    journal = opened(directory)
    bodies = [batch(base) for base in range(6)]
    for base, body in enumerate(bodies):
        journal.append(body, base + 1)
    journal.close()
    return sorted(directory.glob("*.journal")), values(bodies)


def test_no_flipped_bit_takes_more_than_its_batch_and_what_it_takes_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, sent = three_files(tmp_path / "whole", monkeypatch)
    contents = {path.name: path.read_bytes() for path in tmp_path.glob("whole/*")}
    for file, path in enumerate(paths[:3]):
        for at in range(file, len(contents[path.name]), 5):
            directory = tmp_path / f"{file} {at}"
            directory.mkdir()
            for name, raw in contents.items():
                (directory / name).write_bytes(raw)
            flip(directory / path.name, at, 1 << at % 8)
            journal = opened(directory)
            found = values(journal.batches)
            gone = [offset for first, next_ in journal.lost for offset in range(first, next_)]
            newest = file == 2 and at >= len(contents[path.name]) // 2  # nothing behind it tells of it
            assert found.items() <= sent.items()
            assert newest or (sorted([*found, *gone]), journal.next_offset) == (sorted(sent), 6)
            assert len(gone) == (not newest)
            journal.close()


def test_damaged_files_are_kept_when_everything_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, _ = three_files(tmp_path, monkeypatch)
    flip(paths[0], 30)
    journal = opened(tmp_path)
    assert journal.lost == [(0, 1)]
    journal.trim(6)
    journal.close()

    assert [path.name for path in tmp_path.glob("*.damaged")] == [paths[0].name + ".damaged"]
    again = opened(tmp_path)
    assert (again.lost, again.batches, again.next_offset) == ([], [], 6)
    again.close()


def test_a_missing_file_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, sent = three_files(tmp_path, monkeypatch)
    paths[1].unlink()
    journal = opened(tmp_path)
    assert journal.lost == [(2, 4)]
    assert sorted(values(journal.batches)) == [0, 1, 4, 5]
    assert journal.next_offset == len(sent)
    journal.close()


def test_a_batch_within_a_record_is_not_taken_for_one_of_the_journal(tmp_path: Path) -> None:
    other = tmp_path / "other"
    first = opened(other)
    first.append(batch(0), 1)
    first.append(batch(1), 2)
    first.close()
    within = (other / f"{0:020d}.journal").read_bytes() + batch(1, b"within a record")
    journal = opened(tmp_path / "torn")
    journal.append(batch(0, within + b"the end"), 1)
    journal.close()
    path = tmp_path / "torn" / f"{0:020d}.journal"
    for size in (path.stat().st_size - 12, path.stat().st_size - 100):
        os.truncate(path, size)  # the crash came before the end was written
        again = opened(tmp_path / "torn")
        assert (again.batches, again.lost, again.next_offset) == ([], [], 0)
        again.close()
        path.write_bytes(path.read_bytes())


def test_no_flipped_bit_in_what_is_pending_takes_more_than_its_record(tmp_path: Path) -> None:
    journal = opened(tmp_path / "whole")
    journal.append(batch(0), 1)
    for offset in range(1, 4):
        journal.pend(batch(offset))
    journal.close()
    contents = {path.name: path.read_bytes() for path in tmp_path.glob("whole/*")}
    size = len(contents["pending"])
    for at in range(0, size, 5):
        directory = tmp_path / str(at)
        directory.mkdir()
        for name, raw in contents.items():
            (directory / name).write_bytes(raw)
        flip(directory / "pending", at, 1 << at % 8)
        torn = 1 + 3 * at // size  # the record that it hit
        for _ in range(2):  # what becomes of them outlives the next end, too
            again = opened(directory)
            found = sorted([*values(again.batches), *(each.offset for each in again.pending)])
            assert found == [offset for offset in range(4) if offset != torn]
            assert again.lost == ([] if torn == 3 else [(torn, torn + 1)])
            assert again.next_offset + len(again.pending) == (3 if torn == 3 else 4)
            again.close()


def test_pending_records_prove_that_the_last_batch_is_damaged(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(batch(0), 1)
    journal.append(batch(1), 2)
    journal.pend(batch(2))
    journal.close()
    path = tmp_path / f"{0:020d}.journal"
    flip(path, path.stat().st_size - 9)

    again = opened(tmp_path)
    assert again.lost == [(1, 2)]
    assert sorted(values(again.batches)) == [0, 2]
    assert again.next_offset == 3
    again.close()


# -- whose it is -------------------------------------------------------------------------------------------------


def identities(directory: Path) -> tuple[Path, Path]:
    return directory / "identity.json", directory / "identity.copy.json"


def test_no_flipped_bit_makes_another_partition(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(batch(0), 1)
    journal.close()
    first, copy = identities(tmp_path)
    whole = first.read_bytes()
    assert copy.read_bytes() == whole
    for at in range(0, len(whole), 3):
        for path, bit in ((first, 1 << at % 8), (copy, 1 << (at + 3) % 8)):
            flip(path, at, bit)
            again = opened(tmp_path)
            assert (again.address, again.next_offset) == ("ADDRESS", 1)
            again.close()
            assert (first.read_bytes(), copy.read_bytes()) == (whole, whole)  # mended


def test_an_identity_that_is_gone_or_damaged_twice_begins_no_partition(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(batch(0), 1)
    journal.close()
    first, copy = identities(tmp_path)
    whole = first.read_bytes()
    copy.unlink()
    flip(first, whole.index(b"ADDRESS"))
    with pytest.raises(StorageFormat, match=r"checksum.*keep it") as damaged:
        opened(tmp_path)
    first.unlink()
    with pytest.raises(StorageFormat, match=r"is gone.*keep it") as gone:
        opened(tmp_path)
    for error in (damaged, gone):
        assert "remove" not in str(error.value)
    copy.write_bytes(whole)
    again = opened(tmp_path)
    assert (again.address, again.next_offset) == ("ADDRESS", 1)
    again.close()


def test_the_journal_of_a_further_topic_is_not_passed_over_because_its_identity_is_gone(tmp_path: Path) -> None:
    journals = Journals(tmp_path, "hello", "ADDRESS")
    journals.open("more").append(batch(0), 1)
    journals.close()
    (folder,) = (tmp_path / "topics").iterdir()
    for path in identities(folder):
        path.unlink()
    with pytest.raises(StorageFormat, match=r"is gone.*keep it"):
        Journals(tmp_path, "hello", "ADDRESS")
