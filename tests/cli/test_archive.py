"""``chappe archive`` and ``chappe replay`` as a user runs them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Shell
from tests.waiting import SPARK_S

from chappe.cli.console import left_text
from chappe.cli.replay import parse_speed
from chappe.errors import UsageError


@pytest.mark.parametrize(("text", "factor"), [("original", 1.0), ("max", None), ("10", 10.0), ("0.5x", 0.5)])
def test_speeds(text: str, factor: float | None) -> None:
    assert parse_speed(text) == factor


@pytest.mark.parametrize("text", ["fast", "0", "-1", "inf", "nan", ""])
def test_what_is_no_speed(text: str) -> None:
    with pytest.raises(UsageError, match="--speed is original, max, or"):
        parse_speed(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.4, ", 0 s left"),
        (59.0, ", 59 s left"),
        (184.0, ", 3:04 left"),
        (7384.0, ", 2:03:04 left"),
        (266_584.0, ", 3 days 2:03:04 left"),
    ],
)
def test_the_time_left(seconds: float | None, text: str) -> None:
    assert left_text(seconds) == text


@pytest.mark.process
def test_mistakes_are_named(shell: Shell) -> None:
    for arguments, text in (
        (("replay", "--from", "none"), b"none is not an archive; make one with: chappe archive TOPIC --to none"),
        (("replay", "--from", "none", "--speed", "warp"), b"--speed is original, max, or how many times faster"),
        (("replay", "--from", "none", "--start", "latest"), b"--start is a time such as"),
        (("archive", "a,b", "--to", "none"), b"name one topic, or a prefix* for several"),
    ):
        ended = shell.run(*arguments)
        assert ended.returncode == 2
        assert text in ended.stderr


@pytest.mark.process
@pytest.mark.spark
def test_there_and_back(shell: Shell) -> None:
    pytest.importorskip("pyspark")
    shell.up()
    lines = [b"line %d" % number for number in range(20_000)]
    shell.run("produce", "lines", stdin=b"\n".join(lines))
    archived = shell.run("archive", "lines", "--to", "kept", timeout=SPARK_S)
    assert archived.returncode == 0
    assert b"archived 20,000 records" in archived.stderr

    shell.run("produce", "lines", stdin=b"one\nmore")
    events = _followed(shell, signal.SIGTERM, "lines", "--to", "kept", records=2)
    assert [event["event"] for event in events] == ["progress", "progress", "done"]
    assert (events[-1]["records"], events[-1]["total"], events[-1]["files"]) == (2, 2, 1)

    replayed = shell.run("replay", "--from", "kept", "--to", "again", "--speed", "max", "--json")
    facts = json.loads(replayed.stdout)
    assert (facts["sent"], facts["stored"], facts["total"]) == (20_002, 20_002, 20_002)
    back = shell.run("consume", "again", "--until-end", "--output", "raw").stdout.splitlines()
    assert back == [*lines, b"one", b"more"]
    assert not list(Path(shell.env["XDG_DATA_HOME"]).rglob("replay.json")), "what is finished leaves nothing behind"


def _followed(shell: Shell, how: signal.Signals, *arguments: str, records: int) -> list[dict[str, Any]]:
    """What is told by an archive job that keeps running until so many records are archived."""
    follower = shell.start("archive", *arguments, "--follow", "--json")
    assert follower.stdout is not None
    told: list[dict[str, Any]] = []
    while not told or told[-1]["records"] < records:
        told.append(json.loads(follower.stdout.readline()))
    code, out, _ = shell.stop(follower, how)
    assert code == 0
    return [*told, *map(json.loads, out.splitlines())]


@pytest.mark.process
@pytest.mark.spark
def test_following_ends_with_ctrl_c(shell: Shell) -> None:
    pytest.importorskip("pyspark")
    shell.up()
    shell.run("produce", "news", stdin=b"hello\n")
    assert _followed(shell, signal.SIGINT, "new*", "--to", "kept", records=1)[-1]["event"] == "done"
    assert len(list((shell.directory / "kept").rglob("*.parquet"))) == 1


@pytest.mark.process
def test_an_interrupted_replay_says_how_to_go_on(shell: Shell) -> None:
    pytest.importorskip("pyarrow")
    shell.up()
    _archive(shell.directory / "kept")
    slow = shell.start("replay", "--from", "kept", "--speed", "original")
    assert shell.run("consume", "t", "--from", "earliest", "--count", "1", "--output", "raw").stdout == b"0\n"
    code, _, said = shell.stop(slow, signal.SIGINT)
    assert code == 130
    assert "the same command goes on from there" in said
    nobody = shell.run("replay", "--from", "kept", "--as", "keys/nobody")
    assert b"keys/authority.pem does not exist" in nobody.stderr
    rest = shell.run("replay", "--from", "kept", "--speed", "max", "--listen", "0.0.0.0", "--plain")
    assert b"going on after " in rest.stderr
    back = shell.run("consume", "t", "--until-end", "--output", "raw").stdout.splitlines()
    assert back == [b"%d" % n for n in range(100)]


def _archive(directory: Path) -> None:
    """A hundred records, one a second."""
    import pyarrow as pa

    from chappe.spark.archive.manifest import (
        ArchivedFile,
        ArchiveWriter,
        Move,
        OffsetSpan,
        directory_of,
        file_name,
        file_schema,
        followed_by,
    )
    from chappe.spark.archive.tasks import FileWriter

    with ArchiveWriter(directory) as archive:
        staged = f"{archive.run}/0.staged"
        writer = FileWriter(directory / staged)
        stamps = pa.array([n * 1_000_000 for n in range(100)], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        values = [str(n).encode() for n in range(100)]
        columns = [["p"] * 100, list(range(100)), stamps, [None] * 100, values, [[]] * 100]
        arrays = [pa.array(each, field.type) for each, field in zip(columns, file_schema(), strict=True)]
        writer.add(pa.RecordBatch.from_arrays(arrays, schema=file_schema()))
        path = f"{directory_of('t', 0)}/{file_name(1, 0)}"
        file = ArchivedFile(path, "t", 100, writer.close(), 0, 99_000_000)
        archive.commit(
            followed_by(archive.manifest, [file], {"t": {"p": OffsetSpan(0, 100, 100)}}, [Move(staged, path)])
        )
