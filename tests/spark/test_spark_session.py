"""What a session keeps from the terminal, and how it is set up; without starting one."""

from __future__ import annotations

from pathlib import Path

import pytest

from chappe.spark import archive
from chappe.spark.java import JavaFound
from chappe.spark.session import _cores, _defaults, _worth_saying


def test_only_what_java_always_says_is_kept_from_the_terminal() -> None:
    lines = [
        b"WARNING: Using incubator modules: jdk.incubator.vector\n",
        b"real trouble\n",
        b"PySpark daemon failed to flush the output to the worker process:\n",
        b"Traceback (most recent call last):\n",
        b'  File "daemon.py", line 95, in worker\n',
        b"BrokenPipeError: [Errno 32] Broken pipe\n",
        b"\n",
        b"more trouble\n",
    ]
    assert list(_worth_saying(lines)) == [b"real trouble\n", b"more trouble\n"]


@pytest.mark.parametrize(("master", "cores"), [("local[3]", 3), ("local[2,4]", 2)])
def test_as_many_shuffle_partitions_as_cores(master: str, cores: int) -> None:
    assert _cores(master) == cores
    assert _defaults(master)["spark.sql.shuffle.partitions"] == str(cores)


def test_a_cluster_keeps_its_own_checkpoint_files() -> None:
    assert not any("checkpoint" in name or "host" in name for name in _defaults("spark://host:7077"))


def test_an_archive_is_used_only_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (tmp_path / "jdk" / "bin" / "java").write_text("")
    old, new = (JavaFound(tmp_path / "jdk", major, "PATH") for major in (17, 25))
    assert archive.archive_options(old) == ""
    path = archive.archive_path(old)
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert f"-XX:SharedArchiveFile={path}" in archive.archive_options(old)
    assert f"-XX:AOTCache={path}" in archive.archive_options(new)
    (tmp_path / "jdk" / "release").write_text("another build")
    assert archive.archive_options(old) == ""
