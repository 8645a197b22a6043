"""Workers, drivers and stores are killed with -9 while a stream writes: every row is in the topic exactly once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from chappe.api.consumer import Consumer
from chappe.api.tower import Tower

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.process]

HERE = Path(__file__).parent
WAIT_S = 240
FILES = 4
LINES = 6_000


class Store:
    """A store in a process of its own. Every start is at another port."""

    def __init__(self, directory: Path, tower: str) -> None:
        self._command = [sys.executable, str(HERE / "sink_store.py"), str(directory), tower]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().strip()
        assert self.endpoint

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def tower() -> Iterator[str]:
    with Tower("127.0.0.1:0") as made:
        yield made.address


@pytest.fixture
def store(tmp_path: Path, tower: str) -> Iterator[Store]:
    made = Store(tmp_path / "store", tower)
    yield made
    made.kill()


@pytest.fixture
def lines(tmp_path: Path) -> Counter[bytes]:
    """Lines in some files, of which Spark takes one for each batch."""
    (tmp_path / "in").mkdir()
    (tmp_path / "marks").mkdir()
    for number in range(FILES):
        text = "".join(f"{number}-{line}-{'x' * 80}\n" for line in range(LINES))
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    return Counter(f"{number}-{line}-{'x' * 80}".encode() for number in range(FILES) for line in range(LINES))


class Program:
    """The streaming program, with its Java and its Python workers."""

    def __init__(self, tower: str, folder: Path, fault: str, checkpoint: str = "checkpoint") -> None:
        given = {"towers": tower, "folder": str(folder), "fault": fault, "checkpoint": str(folder / checkpoint)}
        self._log = folder / f"log-{fault}"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "sink_driver.py"), json.dumps(given)],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> int:
        try:
            return self._process.wait(WAIT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def wait_for(mark: Path, program: Program) -> None:
    deadline = time.monotonic() + WAIT_S
    while not mark.exists():
        assert not program.ended(), program.said[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def written(tower: str) -> Counter[bytes]:
    """All values of topic ``out``, whose offsets must have neither gaps nor repeats."""
    found: Counter[bytes] = Counter()
    offsets: dict[str, list[int]] = {}
    with Consumer("out", tower=tower, reset="earliest") as consumer:
        deadline = time.monotonic() + WAIT_S
        while not (found and consumer.at_end()):
            assert time.monotonic() < deadline
            while (batch := consumer.poll(0.2)) is not None:
                for record in batch:
                    found[record.value or b""] += 1
                    offsets.setdefault(record.partition, []).append(record.offset)
    for each in offsets.values():
        assert each == list(range(len(each)))
    return found


def compare(found: Counter[bytes], expected: Counter[bytes]) -> None:
    assert not expected - found, f"{(expected - found).total()} lost"
    assert not found - expected, f"{(found - expected).total()} doubled"


def test_killed_workers_and_failed_attempts(tmp_path: Path, tower: str, store: Store, lines: Counter[bytes]) -> None:
    program = Program(tower, tmp_path, "attempts")
    assert program.wait() == 0, program.said[-3000:]
    assert "everything is staged, and the attempt fails" in program.said
    compare(written(tower), lines)


def test_a_driver_killed_between_the_commit_of_the_store_and_its_own(
    tmp_path: Path, tower: str, store: Store, lines: Counter[bytes]
) -> None:
    program = Program(tower, tmp_path, "hang")
    try:
        wait_for(tmp_path / "marks" / "committed-1", program)
    finally:
        program.kill()
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    program = Program(tower, tmp_path, "none")
    assert program.wait() == 0, program.said[-3000:]
    compare(written(tower), lines)


def test_a_second_driver_on_a_copied_checkpoint_fences_the_first(
    tmp_path: Path, tower: str, store: Store, lines: Counter[bytes]
) -> None:
    first = Program(tower, tmp_path, "hang")
    try:
        wait_for(tmp_path / "marks" / "committed-1", first)
        # a copy, so that the files of the checkpoint warn neither of the other: what remains is the store
        shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
        second = Program(tower, tmp_path, "none", "copy")
        assert second.wait() == 0, second.said[-3000:]
        (tmp_path / "marks" / "go").touch()
        assert first.wait() != 0
    finally:
        first.kill()
    assert "Fenced" in first.said
    compare(written(tower), lines)


def test_a_store_killed_while_rows_are_staged_and_committed(
    tmp_path: Path, tower: str, store: Store, lines: Counter[bytes]
) -> None:
    chance = Random(7)
    program = Program(tower, tmp_path, "stores")
    kills = {"staging": 0, "committing": 0}
    seen: set[str] = set()
    try:
        while not program.ended():
            for mark in sorted(each.name for each in (tmp_path / "marks").iterdir()):
                kind, _, batch = mark.partition("-")
                if mark in seen or int(batch[0]) % 2 == (kind == "staging"):
                    continue
                seen.add(mark)
                time.sleep(chance.random() * 0.03)  # at another moment every time
                store.kill()
                kills[kind] += 1
                store.start()
            time.sleep(0.002)
        assert program.wait() == 0, program.said[-3000:]
    finally:
        program.kill()
    assert min(kills.values()) >= 2
    compare(written(tower), lines)
