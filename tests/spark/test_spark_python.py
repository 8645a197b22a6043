"""Spark's helpers use the installed PySpark, and not the zipped one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chappe.spark import session
from chappe.spark.session import worker_python

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the script is for a POSIX shell")


def test_zips_are_taken_out_of_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "cache_dir", lambda: tmp_path)
    command = worker_python("local[2]")
    assert command != sys.executable
    assert worker_python("local[*]") == command
    kept = tmp_path / "my modules"
    given = os.pathsep.join(["/spark/python/lib/pyspark.zip", str(kept), "/spark/python/lib/py4j-0.10-src.zip"])
    code = "import sys; print(sys.executable, *sys.argv[1:], sep='\\n'); print('\\n'.join(sys.path))"
    env = os.environ | {"PYTHONPATH": given}
    said = subprocess.run([command, "-c", code, "a b"], env=env, capture_output=True, text=True, check=True).stdout
    lines = said.splitlines()
    assert lines[:2] == [sys.executable, "a b"]
    assert str(kept) in lines
    assert not any(line.endswith(("pyspark.zip", "py4j-0.10-src.zip")) for line in lines)


def test_what_reads_loads_no_members() -> None:
    code = "import sys, chappe.spark.source; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "chappe.reading.fetch" in loaded
    members = ("chappe.runtime.log_ports", "chappe.runtime.meeting", "chappe.runtime.driver", "chappe.replication")
    assert [each for each in loaded if each.startswith(members)] == []


def test_other_machines_get_a_plain_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "cache_dir", lambda: tmp_path / "file")
    assert worker_python("spark://host:7077") == sys.executable
    assert worker_python("local-cluster[2,1,1024]") == sys.executable
    (tmp_path / "file").write_text("")  # no folder can be made there
    assert worker_python("local[2]") == sys.executable
