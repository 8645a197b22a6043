"""What a session keeps from the terminal, and how it is set up; without starting one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from chappe.errors import SparkUnavailable, UsageError
from chappe.spark import class_archive, session
from chappe.spark.java import JavaFound
from chappe.spark.sentences import worth_saying
from chappe.spark.session import _cores, _defaults, _server, await_master, check_master, spark_session


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process without Spark; the run of the tests has a session, which would be returned."""
    monkeypatch.setattr(session, "session_runs", lambda: False)
    monkeypatch.delenv(session._SUBMITTED, raising=False)


STOPPED = [
    b"Traceback (most recent call last):\n",
    b'  File "/venv/pyspark/daemon.py", line 264, in manager\n',
    b"    code = worker(sock, authenticated)\n",
    b'  File "/venv/pyspark/daemon.py", line 95, in worker\n',
    b"    outfile.flush()\n",
    b"BrokenPipeError: [Errno 32] Broken pipe\n",
]
OF_A_UDF = [*STOPPED[:3], b'  File "/home/me/udf.py", line 1, in send\n', *STOPPED[-1:]]


def test_only_what_java_always_says_is_kept_from_the_terminal() -> None:
    lines = [
        b"WARNING: Using incubator modules: jdk.incubator.vector\n",
        b"real trouble\n",
        b"PySpark daemon failed to flush the output to the worker process:\n",
        *STOPPED,
        b"\n",
        b"more trouble\n",
    ]
    assert list(worth_saying(lines)) == [b"real trouble\n", b"more trouble\n"]


def test_workers_that_were_told_to_stop_say_nothing() -> None:
    mixed = [*STOPPED[:3], *STOPPED[:3], *STOPPED[3:5], *STOPPED[3:5], STOPPED[5], STOPPED[5]]
    assert list(worth_saying([*STOPPED, *mixed, b"trouble\n", *STOPPED])) == [b"trouble\n"]


@pytest.mark.parametrize(
    "lines",
    [
        OF_A_UDF,
        [*STOPPED[:5], b"MemoryError\n"],
        [*STOPPED[:1], *OF_A_UDF, STOPPED[5]],
        [*STOPPED[:3], b"26/11/22 WARN TaskSetManager: lost a task\n", *STOPPED[3:]],
        STOPPED[:4],
    ],
)
def test_other_tracebacks_are_told_whole(lines: list[bytes]) -> None:
    assert list(worth_saying(lines)) == lines


@pytest.mark.parametrize(("master", "cores"), [("local[3]", 3), ("local[2,4]", 2)])
def test_as_many_shuffle_partitions_as_cores(master: str, cores: int) -> None:
    assert _cores(master) == cores
    assert _defaults(master)["spark.sql.shuffle.partitions"] == str(cores)


def test_a_cluster_keeps_its_own_checkpoint_files() -> None:
    assert not any("checkpoint" in name or "host" in name for name in _defaults("spark://host:7077"))


@pytest.mark.parametrize("who", ["driver", "executor"])
@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_whoever_has_columns_reads_them_unchecked(master: str, who: str) -> None:
    options = _defaults(master)[f"spark.{who}.defaultJavaOptions"].split()
    assert "-Darrow.enable_unsafe_memory_access=true" in options


def test_an_archive_is_used_only_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (tmp_path / "jdk" / "bin" / "java").write_text("")
    old, new = (JavaFound(tmp_path / "jdk", major, "PATH") for major in (17, 25))
    assert class_archive.archive_options(old) == ""
    path = class_archive.archive_path(old)
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert f"-XX:SharedArchiveFile={path}" in class_archive.archive_options(old)
    assert f"-XX:AOTCache={path}" in class_archive.archive_options(new)
    (tmp_path / "jdk" / "release").write_text("another build")
    assert class_archive.archive_options(old) == ""


@pytest.mark.parametrize(
    ("url", "server"),
    [("sc://host", ("host", 15002)), ("sc://10.0.0.1:99/;token=x", ("10.0.0.1", 99)), ("sc://[::1]:3", ("::1", 3))],
)
def test_addresses_of_spark_connect(url: str, server: tuple[str, int]) -> None:
    assert _server(url) == server


@pytest.mark.parametrize("url", ["sc://127.0.0.1:9", "sc://", "sc://a:b"])
def test_no_spark_connect_server_is_one_sentence(url: str) -> None:
    pytest.importorskip("grpc")
    with pytest.raises(SparkUnavailable, match="Spark Connect server") as caught:
        spark_session(master=url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[2,4]",
        "local-cluster[2,1,512]",
        "yarn",
        "sc://host:15002/;token=x",
        "k8s://https://host",
    ],
)
def test_masters(master: str) -> None:
    assert check_master(master) == master


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize("master", ["", "wrong", "local[abc]", "local[0]", "local[2", "http://host", "spark:host"])
def test_what_is_no_master_is_said_before_java_starts(master: str) -> None:
    with pytest.raises(UsageError, match="is not where Spark runs"):
        spark_session(master=master)
    with pytest.raises(UsageError, match="is not where Spark runs"):
        spark_session(conf={"spark.master": master})


@pytest.mark.parametrize("master", ["spark://host", "spark://host:port", "spark://:7077", "spark://a:1,b"])
def test_what_is_no_address_of_masters_is_said(master: str) -> None:
    with pytest.raises(UsageError, match="not an address of Spark's masters"):
        await_master(master)


@pytest.mark.usefixtures("no_session")
def test_a_master_that_does_not_answer_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        await_master(f"spark://127.0.0.1:{port}")
        await_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    with pytest.raises(SparkUnavailable, match=r"no Spark master answers at spark://127.0.0.1:1: ") as caught:
        spark_session(master="spark://127.0.0.1:1")
    assert "\n" not in str(caught.value)
