"""A consumer's identity: committed positions, which one consumer at a time has."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chappe.api.log.consumer import Consumer
from chappe.errors import Closed, IdentityInUse, StorageError, StorageFull, UsageError

KEY = ("t", "p")
HOLDER = """
import sys, time
from chappe import Consumer
kept = Consumer("t", tower=sys.argv[1], identity="me", directory=sys.argv[2])
print("ready", flush=True)
time.sleep(1000)
"""


def made(directory: Path, tower: str = "127.0.0.1:1") -> Consumer:
    return Consumer("t", tower=tower, identity="me", directory=directory)


def put(consumer: Consumer, offset: int) -> None:
    consumer._inbox.taken[KEY] = offset
    consumer.commit()


def test_a_second_one_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    with made(tmp_path) as consumer:
        with pytest.raises(IdentityInUse, match=r"another consumer uses the identity in .*consumers/me.*close it"):
            made(tmp_path)
        put(consumer, 3)
    with made(tmp_path) as consumer:
        assert consumer.position() == {KEY: 3}


def test_positions_that_are_given_are_committed_and_others_stay(tmp_path: Path) -> None:
    with made(tmp_path) as consumer:
        put(consumer, 3)
        consumer.commit({("t", "q"): 7})
        assert consumer.position() == {KEY: 3}
    with made(tmp_path) as consumer:
        assert consumer.position() == {KEY: 3, ("t", "q"): 7}


def test_one_that_could_not_be_made_keeps_nothing(tmp_path: Path) -> None:
    for wrong in ({"reset": "never"}, {"listen": "no such host.invalid"}):
        with pytest.raises(Exception, match=r"reset|host"):
            Consumer("t", tower="127.0.0.1:1", identity="me", directory=tmp_path, **wrong)  # type: ignore[arg-type]
    made(tmp_path).close()


@pytest.mark.process
def test_a_killed_process_lets_go_of_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, "127.0.0.1:1", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(IdentityInUse):
            made(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        made(tmp_path).close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_refuses_keeps_what_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    with made(tmp_path) as consumer:
        put(consumer, 3)
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", fail)
            with pytest.raises(StorageError, match=r"cannot commit positions to .*positions.json") as caught:
                put(consumer, 5)
            assert isinstance(caught.value, StorageFull) == (code != errno.EIO)
    with made(tmp_path) as consumer:
        assert consumer.position() == {KEY: 3}


def test_a_commit_is_on_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def sync(fd: int) -> None:
        steps.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}")
        fsync(fd)

    def rename(source: str, target: str) -> None:
        steps.append(f"rename {os.path.basename(source)}")
        replace(source, target)

    with made(tmp_path) as consumer:
        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "replace", rename)
        put(consumer, 3)
    assert steps == ["sync positions.json.tmp", "rename positions.json.tmp", "sync me"]


def test_a_directory_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "consumers").write_bytes(b"")
    with pytest.raises(StorageError, match="for the identity of a consumer"):
        made(tmp_path)


def test_who_was_closed_commits_nothing(tmp_path: Path) -> None:
    with made(tmp_path) as consumer:
        pass
    with pytest.raises(Closed, match="commit before"):
        consumer.commit()
    with Consumer("t", tower="127.0.0.1:1") as nameless, pytest.raises(UsageError):
        nameless.commit()
