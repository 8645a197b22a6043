"""Programs that end without closing what they made."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api import unclosed
from tests.api.members import PATIENCE_S, read, values

from chappe.api import at_exit
from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.api.mesh.endpoint import Endpoint

ALL = [b"%d" % number for number in range(unclosed.COUNT)]


def end(case: str, tower: str, port: object = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, unclosed.__file__, case, tower, str(port)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.mark.process
def test_what_a_program_did_not_close_leaves_when_it_ends(tower: str, store: Store) -> None:
    endpoint = Endpoint()
    subscriber = endpoint.subscribe("news")
    master = endpoint.attach_master("shared")

    ended = end("everything", tower, endpoint.listen())

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert [received.value for received in subscriber.get_many(unclosed.COUNT, PATIENCE_S)] == [*range(unclosed.COUNT)]
    assert master.get(unclosed.COUNT - 1) == unclosed.COUNT - 1
    for topic in ("plain", "async", "worker"):
        with Consumer(topic, tower=tower, reset="earliest") as consumer:
            assert values(read(consumer, unclosed.COUNT)) == ALL
    endpoint.close()


@pytest.mark.process
def test_what_nobody_took_when_a_program_failed_is_counted(tower: str) -> None:
    ended = end("failing", tower)

    assert ended.returncode == 1
    assert "ValueError: of the program" in ended.stderr
    for topic in ("plain", "other"):
        assert f"{unclosed.COUNT} records of topic '{topic}' are lost: no store had them in time" in ended.stderr
    assert "at_exit" not in ended.stderr  # only sentences


@pytest.mark.process
def test_what_a_killed_program_gave_offsets_to_is_sent_by_the_next_one(tower: str, tmp_path: Path) -> None:
    assert end("killed", tower, tmp_path).returncode == 9

    with (
        Store(tmp_path / "store", tower=tower),
        Producer("killed", tower=tower, identity="me", directory=tmp_path) as producer,
    ):
        assert producer.send(b"after") == unclosed.COUNT
        producer.flush(PATIENCE_S)
        with Consumer("killed", tower=tower, reset="earliest") as consumer:
            records = read(consumer, unclosed.COUNT + 1)
    assert values(records) == [*ALL, b"after"]
    assert [(each.key, each.headers, each.timestamp) for each in records[:-1]] == [
        (b"key", (("name", b"x"),), 1 + number) for number in range(unclosed.COUNT)
    ]


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only members that a test makes are asked, and nobody waits."""
    with monkeypatch.context() as patch:
        patch.setattr(at_exit, "EXIT_S", 0.0)
        patch.setattr(at_exit, "EXIT_ERROR_S", 0.0)
        patch.setattr(at_exit, "_members", type(at_exit._members)())
        yield


def test_a_closed_member_is_not_asked(ending: None, tower: str, caplog: pytest.LogCaptureFixture) -> None:
    producer = Producer("hello", tower=tower)
    producer.close()
    assert not at_exit._members

    at_exit._leave_all()
    assert not caplog.records


def test_a_forked_process_leaves_the_members_of_its_parent_alone(
    ending: None, tower: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer("hello", tower=tower)
    with monkeypatch.context() as forked:
        forked.setattr("os.getpid", lambda: -1)
        at_exit._leave_all()

    producer.send(b"x")  # it is not closed
    producer.leave(0.0)


def test_records_with_an_identity_are_not_called_lost(
    ending: None, tower: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer("hello", tower=tower, identity="me", directory=tmp_path)
    for _ in range(20):
        producer.send(b"x")
    at_exit._leave_all()

    (said,) = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert "20 records of topic 'hello' are not stored yet; they are in the journal" in said
    again = Producer("hello", tower=tower, identity="me", directory=tmp_path)
    assert again.next_offset == 20
    again.leave(0.0)


def test_one_bound_is_for_all_members_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given: list[float] = []
    now = 100.0

    class Slow:
        def begin_leave(self) -> None:
            pass

        def leave(self, timeout_s: float) -> list[str]:
            nonlocal now
            given.append(timeout_s)
            now += 2 * timeout_s / 3
            raise OSError("what nobody expected")

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(at_exit, "_members", type(at_exit._members)())
    monkeypatch.setattr(at_exit, "EXIT_S", 9.0)
    members = [Slow(), Slow(), Slow()]
    for each in members:
        at_exit.add(each)
    at_exit._leave_all()

    assert given == [9.0, 3.0, 1.0]
    assert len(caplog.records) == 3
