"""Programs that do what there is to do: a line in for each record, a line out; and those that do it wrong."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest
from tests.subscribers.conftest import Place
from tests.waiting import PATIENCE_S, until

from chappe import ShardedConsumer
from chappe.errors import WorkerFailed
from chappe.subscribers import Progress

pytestmark = pytest.mark.process

KEEP = 'while read -r line; do printf "%s\\n" "$line" >> "$CHAPPE_TESTS_PLACE/lines-$CHAPPE_WORKER"; echo ok; done'


def made(place: Place, program: str | list[str], **more: Any) -> ShardedConsumer:
    options: dict[str, Any] = {"until_end": True, "timeout": PATIENCE_S, "tower": place.tower, "workers": 2}
    return ShardedConsumer(["sh", "-c", program] if isinstance(program, str) else program, "t", **options | more)


def lines(place: Place) -> list[list[str]]:
    return [path.read_text().splitlines() for path in sorted(place.path.glob("lines-*"))]


def test_each_record_is_a_line_of_json(place: Place) -> None:
    place.send(*[(f"k{number % 5}", str(number)) for number in range(100)])
    with made(place, KEEP) as consumer:
        assert consumer.run() == Progress(100, 100, 0, 0)
    found = [[json.loads(line) for line in each] for each in lines(place)]
    assert sorted(int(each["value"]) for row in found for each in row) == list(range(100))
    for row in found:
        for key in {each["key"] for each in row}:
            values = [int(each["value"]) for each in row if each["key"] == key]
            assert values == list(range(int(key[1:]), 100, 5))  # all of a key, in order


@pytest.mark.parametrize(("form", "raw"), [("raw", b"one\ntwo\n"), ("length", b"\0\0\0\3one\0\0\0\3two")])
def test_other_forms(place: Place, form: str, raw: bytes) -> None:
    place.send(("k", "one"), ("k", "two"))
    program = f'head -c {len(raw)} > "$CHAPPE_TESTS_PLACE/raw"; echo ok; echo ok; cat'
    with made(place, program, form=form, workers=1) as consumer:
        assert consumer.run().done == 2
    assert (place.path / "raw").read_bytes() == raw


def test_a_record_of_many_times_what_a_pipe_takes(place: Place) -> None:
    place.send(("k", "x" * 1_000_000), ("k", "y"))
    with made(place, 'while read -r line; do echo ${#line} >> "$CHAPPE_TESTS_PLACE/sizes"; echo ok; done') as consumer:
        assert consumer.run().done == 2
    assert [int(each) > 1_000_000 for each in (place.path / "sizes").read_text().split()] == [True, False]


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("exit 3", r"3 workers in a row did not get done with the record at offset 0 .*: ended with exit code 3"),
        ("exec true", r"3 workers in a row .*: ended with exit code 0"),
        ("kill -TERM $$", r"3 workers in a row .*: was ended by SIGTERM"),
        ("exec >&-; read -r line; sleep 1000", r"3 workers in a row .*: closed its output, and was killed"),
        ("read -r line; echo Hello; sleep 1000", r"worker \d cannot go on: it wrote 'Hello' to standard output, where"),
        ("head -c 5000 /dev/zero; sleep 1000", r"worker \d cannot go on: it wrote '\\x00"),
        ("exec yes ok", r"worker \d cannot go on: it said of more records that they are done than it was sent"),
    ],
)
def test_programs_that_do_it_wrong_are_told_of_once(place: Place, program: str, text: str) -> None:
    place.send(("k", "1"), ("k", "2"))
    with made(place, program) as consumer, pytest.raises(WorkerFailed, match=text):
        consumer.run()


def test_a_program_that_is_wrong_is_told_of_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.send(*[(f"k{number}", "1") for number in range(8)])  # of both workers
    with made(place, "read -r line; echo Hello; sleep 1000") as consumer, pytest.raises(WorkerFailed):
        consumer.run()
    assert "cannot go on" not in caplog.text  # the error says it


def test_what_a_program_leaves_behind_is_killed_with_it(place: Place) -> None:
    place.send(("k", "1"))
    program = 'sleep 1000 & echo $! >> "$CHAPPE_TESTS_PLACE/left"; exit 3'  # it keeps standard output open
    with made(place, program) as consumer, pytest.raises(WorkerFailed, match="ended with exit code 3"):
        consumer.run()
    left = [int(each) for each in (place.path / "left").read_text().split()]
    assert len(left) == 3
    until(lambda: not any(map(running, left)))


def running(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_program_that_ends_after_each_record_is_started_for_each(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    place.send(*[("k", str(number)) for number in range(5)])
    program = 'read -r line; echo "$line" >> "$CHAPPE_TESTS_PLACE/lines-0"; echo ok'
    with made(place, program, workers=1) as consumer:
        assert consumer.run().done == 5
    assert [int(json.loads(line)["value"]) for line in lines(place)[0]] == list(range(5))
    assert len(re.findall("is replaced", caplog.text)) == 4
