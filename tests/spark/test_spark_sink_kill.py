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
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.waiting import LOOK_S, SPARK_S

from chappe.api.log.consumer import Consumer
from chappe.api.log.tower import Tower

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.process]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
FILES = 4
LINES = 3_000


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


class Driver:
    """A driver with its Java and its Python workers; it runs one query after the other, until it is killed."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "sink_driver.py"), str(folder)],
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=(folder / "answers").open("wb"),
                stderr=log,
            )
        self._answers = folder / "answers"
        self._asked = 0

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def begin(self, job: Job, fault: str) -> None:
        """Start a query, and do not wait for it."""
        given = {"towers": job.tower, "topic": "out", "folder": str(job.folder), "fault": fault}
        line = json.dumps(given | {"checkpoint": str(job.checkpoint)})
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        self._asked += 1

    def ended(self) -> bool:
        """Whether the query has; the driver must live."""
        assert self._process.poll() is None, self.said
        return self._answers.read_bytes().count(b"\n") == self._asked

    def wait(self) -> str:
        """For the end of the query; returns the error that it ended with, if any."""
        deadline = time.monotonic() + SPARK_S
        while not self.ended():
            assert time.monotonic() < deadline, self.said
            time.sleep(LOOK_S)
        error: str = json.loads(self._answers.read_bytes().splitlines()[-1])
        return error

    def wait_for(self, mark: Path) -> None:
        """Until the query has left a mark."""
        deadline = time.monotonic() + SPARK_S
        while not mark.exists():
            assert not self.ended(), self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(LOOK_S)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


@dataclass
class Job:
    """What a query has to do: where it writes to, and lines in some files, of which Spark takes one for each batch."""

    tower: str
    store: Store
    folder: Path
    expected: Counter[bytes]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def marks(self) -> Path:
        return self.folder / "marks"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, quick_java: None) -> Iterator[Driver]:
    """One for all tests, as its start takes longer than what they do. The last of them kills it."""
    made = Driver(tmp_path_factory.mktemp("driver"))
    yield made
    made.kill()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    (tmp_path / "in").mkdir()
    (tmp_path / "marks").mkdir()
    for number in range(FILES):
        text = "".join(f"{number}-{line}-{'x' * 80}\n" for line in range(LINES))
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    lines = Counter(f"{number}-{line}-{'x' * 80}".encode() for number in range(FILES) for line in range(LINES))
    with Tower("127.0.0.1:0") as tower:
        store = Store(tmp_path / "store", tower.address)
        yield Job(tower.address, store, tmp_path, lines)
        store.kill()


def finish(spark: SparkSession, job: Job, checkpoint: Path) -> None:
    """Let another driver, the one of all tests, go on from a checkpoint."""
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(job.folder / "in"))
    writer = lines.repartition(3).writeStream.format("chappe").options(towers=job.tower, topic="out")
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def written(tower: str) -> Counter[bytes]:
    """All values of topic ``out``, whose offsets must have neither gaps nor repeats."""
    found: Counter[bytes] = Counter()
    offsets: dict[str, list[int]] = {}
    with Consumer("out", tower=tower, reset="earliest") as consumer:
        deadline = time.monotonic() + SPARK_S
        while not (found and consumer.at_end()):
            assert time.monotonic() < deadline
            while (batch := consumer.poll(0.2)) is not None:
                for record in batch:
                    found[record.value or b""] += 1
                    offsets.setdefault(record.partition, []).append(record.offset)
    for each in offsets.values():
        assert each == list(range(len(each)))
    return found


def compare(job: Job) -> None:
    found = written(job.tower)
    assert not job.expected - found, f"{(job.expected - found).total()} lost"
    assert not found - job.expected, f"{(found - job.expected).total()} doubled"


def test_killed_workers_and_failed_attempts(driver: Driver, job: Job) -> None:
    driver.begin(job, "attempts")
    assert driver.wait() == ""
    happened = {each.name for each in job.marks.iterdir()}
    assert happened == {f"{what}-{batch}" for what in ("killed", "failed") for batch in range(FILES)}
    compare(job)


def test_a_store_killed_while_rows_are_staged_and_committed(driver: Driver, job: Job) -> None:
    chance = Random(7)
    kills = {"staging": 0, "committing": 0}
    seen: set[str] = set()
    driver.begin(job, "stores")
    while not driver.ended():
        for mark in sorted(each.name for each in job.marks.iterdir()):
            kind, batch, *task = mark.split("-")
            if mark in seen or int(batch) % 2 == (kind == "staging") or task == ["1"]:  # that runs together with 0
                continue
            seen.add(mark)
            time.sleep(chance.random() * 0.03)  # at another moment every time
            job.store.kill()
            kills[kind] += 1
            job.store.start()
        time.sleep(0.002)
    assert driver.wait() == ""
    assert min(kills.values()) >= 2
    compare(job)


def test_a_second_driver_on_a_copied_checkpoint_fences_the_first(driver: Driver, job: Job, spark: SparkSession) -> None:
    driver.begin(job, "hang")
    driver.wait_for(job.marks / "committed-1")
    # a copy, so that the files of the checkpoint warn neither of the other: what remains is the store
    copy = job.folder / "copy"
    shutil.copytree(job.checkpoint, copy)
    finish(spark, job, copy)
    (job.marks / "go").touch()
    assert "Fenced" in driver.wait()
    compare(job)


def test_a_driver_killed_between_the_commit_of_the_store_and_its_own(
    driver: Driver, job: Job, spark: SparkSession
) -> None:
    driver.begin(job, "hang")
    driver.wait_for(job.marks / "committed-1")
    driver.kill()
    assert not (job.checkpoint / "commits" / "1").exists()
    finish(spark, job, job.checkpoint)
    compare(job)
