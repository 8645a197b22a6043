"""Archived records come back into topics: in order, once, at the speed that was asked for, wherever a run was ended."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.archive.archives import NOON_US
from tests.waiting import PATIENCE_S

from chappe.api.log.consumer import Consumer
from chappe.api.log.store import Store
from chappe.api.pace import Pace
from chappe.errors import UnknownTopic, UsageError
from chappe.log.batch import Record
from chappe.spark.archive.manifest import (
    DAY_US,
    ArchivedFile,
    ArchiveWriter,
    Move,
    OffsetSpan,
    directory_of,
    file_name,
    file_schema,
    followed_by,
)
from chappe.spark.archive.replay import Replay, ReplayOrder, ReplayProgress
from chappe.spark.archive.tasks import FileWriter

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tower: str, tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", tower=tower) as made:
        yield made


def write(directory: Path, topic: str, partition: str, rows: int, step_us: int = 1000, first_us: int = NOON_US) -> None:
    """Add records to an archive; keys, values, headers and timestamps all tell where they belong."""
    with ArchiveWriter(directory) as archive:
        start = archive.manifest.next_of(topic, partition) or 0
        numbers = range(start, start + rows)
        stamps = [first_us + (n - start) * step_us for n in numbers]
        columns = [
            [partition] * rows,
            list(numbers),
            pa.array(stamps, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            [partition.encode() if n % 2 else None for n in numbers],
            [None if n % 10 == 9 else f"{topic}/{partition}/{n}".encode() for n in numbers],
            [[{"key": "n", "value": str(n).encode()}] if n % 3 == 0 else [] for n in numbers],
        ]
        schema = file_schema()
        arrays = [pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)]
        staged = f"{archive.run}/0.staged"
        writer = FileWriter(directory / staged)
        writer.add(pa.RecordBatch.from_arrays(arrays, schema=schema))
        size = writer.close()
        path = f"{directory_of(topic, first_us // DAY_US)}/{file_name(archive.manifest.version + 1, 0)}"
        file = ArchivedFile(path, topic, rows, size, stamps[0], stamps[-1])
        spans = {topic: {partition: OffsetSpan(start, start + rows, rows)}}
        archive.commit(followed_by(archive.manifest, [file], spans, [Move(staged, path)]))


def replay(directory: Path, tower: str, order: ReplayOrder) -> ReplayProgress:
    with Replay(directory, order, tower=tower, state=directory.parent / "state") as run:
        run.run()
        return run.progress


def consumed(tower: str, topic: str, count: int) -> list[Record]:
    found: list[Record] = []
    deadline = time.monotonic() + PATIENCE_S
    with Consumer(topic, tower=tower, reset="earliest") as consumer:
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {len(found)} of {count} records came"
            found += list(consumer.poll(0.2) or ())
        assert consumer.poll(0.5) is None
    return found


def test_everything_comes_back_as_it_was(tower: str, store: Store, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    write(archive, "t", "a", 1000)
    write(archive, "t", "b", 1000, first_us=NOON_US + 500)
    write(archive, "t", "a", 500, first_us=NOON_US + DAY_US)
    done = replay(archive, tower, ReplayOrder(to="new"))
    assert (done.sent, done.stored, done.total, done.earlier) == (2500, 2500, 2500, 0)
    records = consumed(tower, "new", 2500)
    assert [record.timestamp for record in records] == sorted(record.timestamp for record in records)
    assert len({record.partition for record in records}) == 1
    assert [record.offset for record in records] == list(range(2500))
    woven = itertools.chain.from_iterable((("a", n), ("b", n)) for n in range(1000))
    for record, (partition, n) in zip(records, [*woven, *(("a", n) for n in range(1000, 1500))], strict=True):
        assert record.value == (None if n % 10 == 9 else f"t/{partition}/{n}".encode())
        assert record.key == (partition.encode() if n % 2 else None)
        assert record.headers == ((("n", str(n).encode()),) if n % 3 == 0 else ())


def test_all_topics_go_back_to_their_own(tower: str, store: Store, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    for topic in ("m.1", "m.2", "n"):
        write(archive, topic, "a", 10)
    assert replay(archive, tower, ReplayOrder("m.*")).sent == 20
    assert len(consumed(tower, "m.1", 10)) == 10
    assert len(consumed(tower, "m.2", 10)) == 10


def test_the_same_again_starts_anew_once_it_was_finished(tower: str, store: Store, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    write(archive, "t", "a", 10)
    replay(archive, tower, ReplayOrder())
    assert replay(archive, tower, ReplayOrder()).earlier == 0
    values = [record.value for record in consumed(tower, "t", 20)]
    assert values[:10] == values[10:]


def test_between_two_times(tower: str, store: Store, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    write(archive, "t", "a", 100)
    done = replay(archive, tower, ReplayOrder(since=NOON_US + 10_000, until=NOON_US + 20_000))
    assert (done.sent, done.total) == (10, 10)
    assert [record.headers or record.offset for record in consumed(tower, "t", 10)][2] == ((("n", b"12")),)


def test_a_given_speed_is_kept(tower: str, store: Store, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    write(archive, "t", "a", 100, step_us=100_000)  # ten seconds
    began = time.monotonic()
    left: list[float | None] = []
    with Replay(archive, ReplayOrder(speed=8.0), tower=tower, state=tmp_path / "state") as run:
        run.show = lambda progress: left.append(progress.left_s)
        run.run()
    assert 1.2 <= time.monotonic() - began < 15
    known = [each for each in left if each is not None]
    assert max(known) <= 1.24
    assert known == sorted(known, reverse=True)


def test_when_records_are_due() -> None:
    pace = Pace(1e-3)
    assert pace.due(5_000_000) == 5_000_000
    assert 900.0 < pace.left_s(6_000_000) <= 1000.0
    assert Pace(None).due(0) is None


def test_one_target_for_several_topics_is_refused(tower: str, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    for topic in ("t", "u"):
        write(archive, topic, "a", 1)
    with pytest.raises(UsageError, match="name one with --topic"):
        Replay(archive, ReplayOrder(to="x"), tower=tower, state=tmp_path)
    with pytest.raises(UnknownTopic, match="it has t, u"):
        Replay(archive, ReplayOrder("x"), tower=tower, state=tmp_path)


def test_an_interrupted_replay_goes_on_where_it_stopped(tower: str, store: Store, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    write(archive, "t", "a", 1000, step_us=1000)  # a second
    state = tmp_path / "state"
    order = ReplayOrder(speed=1.0)
    with Replay(archive, order, tower=tower, state=state) as run:

        def stop(progress: ReplayProgress) -> None:
            if progress.sent >= 200:
                raise KeyboardInterrupt

        run.show = stop
        with pytest.raises(KeyboardInterrupt):
            run.run()
        run.show = lambda progress: None
        assert run.interrupted(PATIENCE_S) == 0
    write(archive, "t", "b", 1000)  # what is archived meanwhile does not take part
    with Replay(archive, ReplayOrder(), tower=tower, state=state) as run:
        assert run.resumed
        assert run.progress.earlier >= 200
        run.run()
        assert (run.progress.sent, run.progress.stored) == (1000, 1000)
    stamps = [record.timestamp for record in consumed(tower, "t", 1000)]
    assert stamps == [NOON_US + 1000 * n for n in range(1000)]
    with Replay(archive, ReplayOrder(), tower=tower, state=state) as run:
        assert not run.resumed


PROGRAM = """
import sys
from functools import partial
from pathlib import Path
from chappe.spark.archive import replay
from chappe.spark.archive.replay import Replay, ReplayOrder
replay.NOTE_S, replay.PIECE_BYTES = 0.0, 2000
replay.sweep = partial(replay.sweep, held_bytes=1)  # so that it is noted several times how far it is
archive, state, tower = sys.argv[1:]
with Replay(Path(archive), ReplayOrder(speed=2.0), tower=tower, state=Path(state)) as run:
    run.show = lambda progress: print(progress.sent, flush=True)
    run.run()
"""


@pytest.mark.process
def test_a_killed_replay_neither_loses_nor_repeats(tower: str, store: Store, tmp_path: Path) -> None:
    archive, state = tmp_path / "archive", tmp_path / "state"
    for n in range(4):
        for partition in "abc":
            write(archive, "t", partition, 500, first_us=NOON_US + 500_000 * n)
    command = [sys.executable, "-c", PROGRAM, str(archive), str(state), tower]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert program.stdout is not None
    with program.stdout as out:
        for line in out:
            if int(line) > 1500:
                break
        program.send_signal(signal.SIGKILL)
        program.wait()
    with Replay(archive, ReplayOrder(), tower=tower, state=state) as run:
        assert run.resumed
        assert len(run._groups) < 12, "what was sent is read again"
        assert 1500 < run.progress.earlier < 6000
        run.run()
    records = consumed(tower, "t", 6000)
    expected = [NOON_US + 1000 * n for n in range(2000) for _ in "abc"]
    assert [record.timestamp for record in records] == expected
    assert len({record.partition for record in records}) == 1


def test_replays_share_a_partition(tower: str, store: Store, tmp_path: Path) -> None:
    archive, state = tmp_path / "archive", tmp_path / "state"
    write(archive, "t", "a", 10)
    first = replay(archive, tower, ReplayOrder(to="new"))
    with Replay(archive, ReplayOrder(to="new"), tower=tower, state=state) as left:
        left.interrupted(0.0)
    with Replay(archive, ReplayOrder(to="new"), tower=tower, state=state) as run:
        assert run.resumed
        run.run()
        second = run.progress
    write(archive, "t", "a", 5)
    third = replay(archive, tower, ReplayOrder(to="new"))
    assert [(each.sent, each.stored, each.earlier) for each in (first, second, third)] == [
        (10, 10, 0),
        (10, 10, 0),
        (15, 15, 0),
    ]
    records = consumed(tower, "new", 35)
    assert [record.offset for record in records] == list(range(35))
    assert len({record.partition for record in records}) == 1


def test_a_replay_to_a_new_store_gets_a_new_partition(tower: str, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    write(archive, "t", "a", 10)
    with Store(tmp_path / "one", tower=tower):
        replay(archive, tower, ReplayOrder())
    with Store(tmp_path / "two", tower=tower):
        replay(archive, tower, ReplayOrder())
        assert [record.offset for record in consumed(tower, "t", 10)] == list(range(10))
