"""A Spark cluster of separate processes reads and writes topics, with chappe shipped to it.

The page on clusters is run where it is installed (tests/test_docs.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.spark.spark_cluster import Cluster, kill_tree, packed
from tests.waiting import PATIENCE_S, SPARK_S, until

import chappe
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.api.log.tower import Tower

pytestmark = [pytest.mark.spark, pytest.mark.process]

HOSTS = ("127.0.0.1", "127.0.0.2")
RECORDS = 12_000
VALUE_BYTES = 500


@pytest.fixture
def tower(tmp_path: Path) -> Iterator[str]:
    """With two stores; all of it on addresses that nothing of Spark has."""
    with (
        Tower("127.0.0.3:0") as made,
        Store(tmp_path / "one", tower=made.address, listen="127.0.0.4"),
        Store(tmp_path / "two", tower=made.address, listen="127.0.0.5"),
    ):
        yield made.address


@pytest.fixture
def records(tower: str) -> list[str]:
    """What is in topic ``in``, at both stores."""
    values = [f"{n}-".ljust(VALUE_BYTES, "x") for n in range(RECORDS)]
    with Producer("in", tower=tower, min_acks=2) as producer:
        producer.send_many(values)
        producer.flush(PATIENCE_S)
    return values


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", HOSTS) as made:
        yield made


class Driver:
    """The driver's process, and all that it starts."""

    def __init__(self, cluster: Cluster, command: list[str], folder: Path, **given: object) -> None:
        self.folder = folder
        self._log = folder / "driver.log"
        program = str(Path(__file__).with_name("cluster_driver.py"))
        env = os.environ | {"PYSPARK_PYTHON": str(cluster.python), "PYSPARK_DRIVER_PYTHON": str(cluster.python)}
        argument = json.dumps({"master": cluster.master, "folder": str(folder), **given})
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, program, argument], env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_for(self, name: str) -> Path:
        """A file that it makes."""
        path = self.folder / name
        until(lambda: path.exists() or self.process.poll() is not None, lambda: self.said, SPARK_S)
        assert path.exists(), self.said
        return path

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


CONF = {
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def test_a_cluster_with_shipped_chappe_copies_a_topic_exactly_once_though_a_worker_dies(
    tmp_path: Path, cluster: Cluster, tower: str, records: list[str]
) -> None:
    shipped = packed(tmp_path / "chappe.zip")
    conf = {
        # as docs/how-to/cluster.md says: the first alone does not reach data sources that Spark finds by itself
        "spark.submit.pyFiles": str(shipped),
        "spark.executorEnv.PYTHONPATH": shipped.name,
        "spark.local.dir": str(tmp_path / "local"),
    }
    driver = Driver(cluster, [sys.executable], tmp_path, towers=tower, victim=HOSTS[1], conf=CONF | conf)
    try:
        driver.wait_for("stopped")
        cluster.workers[HOSTS[1]].kill()
        assert driver.process.wait(SPARK_S) == 0, driver.said
    finally:
        kill_tree(driver.process)
    places = json.loads((tmp_path / "places.json").read_text())
    assert {host for host, _ in places} == set(HOSTS)
    for host, place in places:
        assert Path(place).is_relative_to(tmp_path / "cluster" / host), place
    _check_copied(tmp_path, tower, records)


def _check_copied(folder: Path, tower: str, records: list[str]) -> None:
    """All of ``in`` was read once, and copied to ``out`` once."""
    assert Counter(json.loads((folder / "values.json").read_text())) == Counter(records)
    copied = chappe.read_topic("out", tower=tower)
    assert Counter(bytes(each).decode() for each in copied["value"].to_pylist()) == Counter(records)
    assert copied["offset"].to_pylist() == list(range(RECORDS))
