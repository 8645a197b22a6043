"""A store that is killed, again and again, while a sink commits: every row is there once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.api.members import read, values, wait_until
from tests.api.sinks import TestSink

from chappe.api.log.consumer import Consumer
from chappe.api.log.store import Store
from chappe.errors import StagedRowsMissing, TimedOut
from chappe.log.queries import Answer
from chappe.transports.queries import StoreClient

BATCHES = 8
PIECES = 6
ROWS = 400
ROUNDS_MAX = 100

STORE = """
import sys
from chappe import Store
store = Store(sys.argv[1], tower=sys.argv[2])
print(store.endpoint, store.store_id, flush=True)
sys.stdin.read()
"""


@contextmanager
def store_process(directory: Path, tower: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A store in a process of its own: the process, its query endpoint, its id."""
    command = [sys.executable, "-c", STORE, str(directory), tower]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        endpoint, store_id = process.stdout.readline().split()
        yield process, endpoint, store_id
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()


class PatientClient(StoreClient):
    """Waits for the answer as long as the store lives."""

    def __init__(self, endpoint: str, store: subprocess.Popen[str]) -> None:
        super().__init__(endpoint, 0.1)
        self._store = store

    def receive(self, raw_id: bytes) -> tuple[Answer, Sequence[bytes | memoryview]]:
        while True:
            try:
                return super().receive(raw_id)
            except TimedOut:
                if self._store.poll() is not None:
                    raise
                self._waiting[raw_id] = None  # it is wanted again


def rows(batch: int, task: int, number: int) -> list[bytes | None]:
    return [b"%d.%d.%d.%d" % (batch, task, number, n) + b"x" * 100 for n in range(ROWS)]


def run_until_killed(directory: Path, tower: str, number: int, rng: random.Random) -> int:
    """One life of the store and one run of the sink; returns the last batch that was committed for certain."""
    with store_process(directory, tower) as (process, endpoint, store_id):
        client = PatientClient(endpoint, process)
        sink = TestSink(client, store_id, run=f"run {number}")
        try:
            done = sink.attach().batch
            strike_at = rng.randrange(3)  # commits later
            for batch in range(done + 1, BATCHES):
                tasks = list(range(3))
                rng.shuffle(tasks)
                pieces = {task: [(f"t{n % 2}", rows(batch, task, n)) for n in range(PIECES)] for task in tasks}
                sink.stage(batch, 0, pieces[0][:2], attempt=9)
                attempts = [sink.stage(batch, task, pieces[task]) for task in tasks]
                if strike_at == 0:
                    killer = subprocess.Popen(["sh", "-c", f"sleep {rng.random() * 0.05:.4f}; kill -9 {process.pid}"])
                    try:
                        sink.commit(batch, attempts)
                    finally:
                        killer.wait()
                else:
                    sink.commit(batch, attempts)
                strike_at -= 1
                done = batch
            return done
        except (TimedOut, StagedRowsMissing):
            return done
        finally:
            client.close()


@pytest.mark.process
def test_a_killed_store_has_every_committed_row_once(tower: str, tmp_path: Path) -> None:
    rng = random.Random(5)
    done, lives = -1, 0
    while done < BATCHES - 1:
        assert lives < ROUNDS_MAX
        now_done = run_until_killed(tmp_path / "s", tower, lives, rng)
        assert now_done >= done
        done, lives = now_done, lives + 1
    assert lives > 3, "the store was killed now and then"

    with (
        Store(tmp_path / "s", tower=tower) as store,
        Consumer("t*", tower=tower, reset="earliest") as consumer,
    ):
        found = values(read(consumer, BATCHES * 3 * PIECES * ROWS))
        wanted = [
            row for batch in range(BATCHES) for task in range(3) for n in range(PIECES) for row in rows(batch, task, n)
        ]
        assert sorted(map(str, found)) == sorted(map(str, wanted))
        assert consumer.poll(0.3) is None
        assert store.status().holes == ()
        wait_until(lambda: not list((tmp_path / "s" / "staged").glob("*.rows")))
