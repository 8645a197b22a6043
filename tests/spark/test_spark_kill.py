"""A whole streaming program is killed with -9 and another goes on: nothing is lost or doubled."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest
from tests.spark.fake_store import FakeStore

pytest.importorskip("pyspark")

from tests.spark import killed_driver
from tests.waiting import SPARK_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process]


def start(store: FakeStore, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(killed_driver.__file__), store.endpoint, str(folder)]
    return subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL)


def kill(program: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)  # Java too, and its Python workers
    program.wait()


def wait_for_file(folder: Path, number_min: int, program: subprocess.Popen[bytes]) -> None:
    """Until the checkpoint has planned a batch of at least this number."""
    deadline = time.monotonic() + SPARK_S
    while max((int(p.name) for p in folder.glob("*") if p.name.isdecimal()), default=-1) < number_min:
        assert program.poll() is None, "the program ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_killed_query_goes_on_without_loss_or_repeats(spark: SparkSession, tmp_path: Path) -> None:
    with FakeStore() as store:
        stopped = threading.Event()

        def produce() -> None:
            n = 0
            while not stopped.wait(0.01):
                store.put("t", f"p{n % 3}", [f"{n}-{i}".encode() for i in range(20)])
                n += 1

        producer = threading.Thread(target=produce, daemon=True)
        producer.start()
        planned = tmp_path / "checkpoint" / "offsets"
        program = start(store, tmp_path)
        try:
            wait_for_file(planned, 4, program)
        finally:
            kill(program)
        stopped.set()
        producer.join()
        killed_driver.writer(spark, store.endpoint, tmp_path).trigger(availableNow=True).start().awaitTermination()
        expected = Counter((p, n) for (_, p), stop in store.next.items() for n in range(stop))
    assert Counter(read_committed(tmp_path / "out")) == expected


def read_committed(out: Path) -> list[tuple[str, int]]:
    """What a Spark reader sees: the files that the sink's log names, not those of killed attempts."""

    log = out / "_spark_metadata"
    names = {}
    for each in log.iterdir():
        if each.name.startswith("."):
            continue
        for line in each.read_text().splitlines()[1:]:
            entry = json.loads(line)
            names[entry["path"].rpartition("/")[2]] = entry["action"]
    files = [str(out / name) for name, action in names.items() if action == "add"]
    table = pyarrow.dataset.dataset(files).to_table(columns=["partition", "offset"])
    return list(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
