"""A Spark Connect server with chappe installed reads and writes topics for its clients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.waiting import PATIENCE_S, SPARK_S

import chappe
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.api.log.tower import Tower

pytestmark = [pytest.mark.spark, pytest.mark.process]

VALUES = [f"value {n}" for n in range(100)]


def test_a_client_reads_and_writes_topics(tmp_path: Path) -> None:
    with Tower("127.0.0.1:0") as tower, Store(tmp_path / "store", tower=tower.address):
        with Producer("in", tower=tower.address) as producer:
            producer.send_many(VALUES)
            producer.flush(PATIENCE_S)
        program = Path(__file__).with_name("connect_server.py")
        with subprocess.Popen(
            [sys.executable, program], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            client = Path(__file__).with_name("connect_client.py")
            done = subprocess.run(
                [sys.executable, client, f"sc://127.0.0.1:{port}", tower.address, tmp_path],
                cwd=tmp_path, capture_output=True, text=True, timeout=SPARK_S, check=False,
            )  # fmt: skip
            server.communicate("")
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout) == {"batch": sorted(VALUES), "table": [len(VALUES)]}
        copied = chappe.read_topic("out", tower=tower.address)
        assert sorted(bytes(each).decode() for each in copied["value"].to_pylist()) == sorted(VALUES)
