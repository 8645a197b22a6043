"""An archive job is killed with -9 between any two of its steps: no reader ever sees a record twice, none is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.archive import killed_archive
from tests.spark.archive.archives import DAY_US, NOON_US, archive, fill, held, seen
from tests.spark.fake_store import FakeStore
from tests.waiting import SPARK_S

pytest.importorskip("pyspark")

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process]


def run(store: FakeStore, directory: Path, moment: str, number: int) -> int:
    program = [sys.executable, str(killed_archive.__file__), store.endpoint, str(directory), moment, str(number)]
    root = str(Path(__file__).parents[3])
    return subprocess.run(
        program,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        timeout=SPARK_S,
        env=os.environ | {"PYTHONPATH": root},
    ).returncode


def test_killed_and_run_again_every_record_is_there_once(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    with FakeStore() as store:
        for n in range(12):
            for partition in "pq":
                fill(store, "t", partition, 50, NOON_US + n % 3 * DAY_US)
        expected = held(store)
        kept = 0
        for moment in killed_archive.MOMENTS:  # each goes on from what the last one left
            assert run(store, directory, moment, 2) == -9
            found = seen(directory)
            assert max(found.values()) == 1, "a reader sees a record twice"
            assert kept <= len(found) < len(expected)
            assert not found - expected
            kept = len(found)
        assert kept > 0
        archive(spark, store, directory)
    assert seen(directory) == expected
