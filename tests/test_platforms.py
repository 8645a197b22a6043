"""Systems that these tests do not run on: what is missing there is taken away here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import chappe
from chappe.log.batch import encode_batch
from chappe.log.storage import AppendRecords
from chappe.storage.segments import SegmentStorage
from chappe.storage.segments.files import FileOps

WITHIN = "chappe runs on Linux and macOS, and on Windows within WSL 2"
NOT_ON_MACOS = ("fdatasync", "posix_fadvise", "pwritev", "sched_getaffinity", "pipe2")


@pytest.mark.parametrize(
    ("argv0", "kind"),
    [("program.py", ImportError), ("", ImportError), ("-m", SystemExit), ("/venv/Scripts/chappe.exe", SystemExit)],
)
def test_windows_is_told_where_chappe_runs(
    monkeypatch: pytest.MonkeyPatch, argv0: str, kind: type[BaseException]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "argv", [argv0])
    source = Path(chappe.__file__)
    with pytest.raises(kind, match=WITHIN):
        exec(compile(source.read_bytes(), source, "exec"), {"__name__": "chappe"})


def test_windows_is_told_by_the_script_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    script = Path(__file__).parent.parent / "run.py"
    with pytest.raises(SystemExit, match=WITHIN):
        exec(compile(script.read_bytes(), script, "exec"), {"__name__": "run", "__file__": str(script)})


def test_a_store_works_without_what_macos_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in NOT_ON_MACOS:
        monkeypatch.delattr(os, each, raising=False)
    for _ in range(2):
        storage = SegmentStorage(tmp_path / "store")
        body = encode_batch(0, [b"a", b"b"], 1)
        if storage.partition("t", "p") is None:
            storage.publish(storage.write([AppendRecords("t", "p", 0, 2, 1, 1, body)]))
        info = storage.partition("t", "p")
        assert info is not None
        assert info.next == 2
        storage.close()


def test_parts_of_a_write_are_joined_where_the_system_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pwritev")
    ops = FileOps()
    fd = ops.open(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT)
    assert ops.pwritev(fd, [b"ab", memoryview(b"cd"), bytearray(b"e")], 1) == 5
    assert ops.pread(fd, 10, 0) == b"\0abcde"
    ops.close(fd)
