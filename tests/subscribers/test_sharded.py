"""Worker processes that share topics: they die, hang, raise and are slow, and so is their reader; nothing is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest
from tests.subscribers import working
from tests.subscribers.conftest import Place
from tests.waiting import PATIENCE_S, Clock, interrupt, until

from chappe import Consumer, Producer, ShardedConsumer, errors
from chappe.errors import ChappeError, Closed, OffsetConflict, TimedOut, TooSlow, UsageError, WorkerFailed
from chappe.log.batch import encode_batch, encode_headers
from chappe.subscribers import Progress, readers, sharded, workers
from chappe.subscribers.shares import Shares

pytestmark = pytest.mark.process

KEYS = [f"k{number}" for number in range(8)]
ONE, TWO = (next(key for key in KEYS if crc32(key.encode()) % 2 == share) for share in (0, 1))  # of two workers
SOME = [(key, str(number)) for number in range(25) for key in KEYS]


def made(place: Place, function: Any, *topics: str, **more: Any) -> ShardedConsumer:
    options: dict[str, Any] = {
        "until_end": True,
        "timeout": PATIENCE_S,
        "tower": place.tower,
        "directory": place.path / "state",
    }
    return ShardedConsumer(function, *(topics or ("t",)), **options | more)


@contextmanager
def running(consumer: ShardedConsumer) -> Iterator[list[object]]:
    """``run`` in a thread; the list is what came of it, once the block is left."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(consumer.run())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    finally:
        consumer.stop()
        thread.join(PATIENCE_S)


def position(place: Place, partition: str, identity: str = "me", topic: str = "t") -> int:
    """What was committed."""
    with Consumer(topic, tower=place.tower, identity=identity, directory=place.path / "state") as consumer:
        return consumer._positions.committed.get((topic, partition), 0)  # type: ignore[union-attr]


def pids(consumer: ShardedConsumer) -> list[int]:
    return [each for each in consumer.workers() if each is not None]


def check_order(place: Place) -> None:
    """Of each key all values, each for the first time in its order."""
    for key in KEYS:
        assert list(dict.fromkeys(place.of(key))) == [value for each, value in SOME if each == key]


def test_each_record_is_done_once_and_a_key_has_one_process(place: Place) -> None:
    place.send(*SOME)
    with made(place, working.note, workers=3) as consumer:
        assert consumer.run() == Progress(len(SOME), len(SOME), 0, 0)
        assert consumer.run() == Progress(len(SOME), len(SOME), 0, 0)  # nothing is left
    assert len(place.done()) == len(SOME)
    check_order(place)
    assert len({process for *_, process in place.done()}) > 1
    for key in KEYS:
        assert len({process for each, _, process in place.done() if each == key}) == 1


def test_by_topic_one_process_has_all_of_a_topic(place: Place) -> None:
    for topic in ("t", "u", "v"):
        place.send(*((f"{topic}-{key}", value) for key, value in SOME), topic=topic)
    with made(place, "tests.subscribers.working:note", "t", "u", "v", workers=3, by="topic") as consumer:
        consumer.run()
    for topic in ("t", "u", "v"):
        found = [(value, process) for key, value, process in place.done() if key.startswith(topic)]
        assert [value for value, _ in found] == [value for _, value in SOME]
        assert len({process for _, process in found}) == 1


def test_a_worker_that_is_killed_is_replaced_and_its_share_done_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.send(*SOME)
    with made(place, working.note_when_let, workers=2) as consumer, running(consumer) as found:
        place.wait_at(ONE)
        place.wait_at(TWO)
        before = pids(consumer)
        os.kill(before[0], signal.SIGKILL)
        until(lambda: consumer.progress().replaced == 1)
        place.go()
    (progress,) = found
    assert isinstance(progress, Progress)
    assert (progress.done, progress.replaced) == (len(SOME), 1)
    assert progress.again > 0
    check_order(place)
    assert re.search(
        r"worker 0 is replaced, which had \d+ records that are not done: was ended by SIGKILL", caplog.text
    )


def test_workers_that_end_all_the_time_get_everything_done(place: Place) -> None:
    place.send(*SOME[:40])
    with made(place, working.leave_after_five, workers=1) as consumer:
        progress = consumer.run()
    assert (progress.done, progress.replaced) == (40, 7)  # the last one ends when nothing is left
    assert [value for key, value, _ in place.done() if key == "k1"] == [str(number) for number in range(5)]


def test_a_worker_that_hangs_is_replaced_after_a_while(clock: Clock, place: Place) -> None:
    place.send(("k", "before"), ("k", "hang"), ("k", "after"))
    options: dict[str, Any] = {"workers": 1, "patience_s": PATIENCE_S, "until_end": False}
    with made(place, working.note_or_hang_once, **options) as consumer, running(consumer) as found:
        until((place.path / "hung").exists, "a worker that hangs")

        def replaced() -> bool:
            if consumer.progress().replaced:
                return True
            clock.forward_s += PATIENCE_S / 4  # again and again: what it did before may still be on its way
            return False

        until(replaced, timeout_s=1_000 * PATIENCE_S)  # by the same clock
        until(lambda: consumer.progress().done == 3)
        consumer.stop()
    (progress,) = found
    assert isinstance(progress, Progress), progress
    assert (progress.done, progress.replaced) == (3, 1)
    assert list(dict.fromkeys(place.of("k"))) == ["before", "hang", "after"]


def test_what_a_worker_imports_may_take_longer_than_a_record(
    clock: Clock, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "START_S", 10 * PATIENCE_S)
    place.send(("k", "1"))
    options: dict[str, Any] = {"workers": 1, "patience_s": PATIENCE_S, "until_end": False}
    with made(place, "tests.subscribers.working_slowly:note_late", **options) as consumer, running(consumer) as found:
        place.wait_at("import")
        inner = consumer._workers
        assert inner is not None
        looked_at = inner._look_at
        clock.forward_s += 2 * PATIENCE_S
        until(lambda: inner._look_at > looked_at + PATIENCE_S, "a look at it")
        place.go()
        until(lambda: consumer.progress().done == 1)
        consumer.stop()
    assert found == [Progress(1, 1, 0, 0)]


def test_without_patience_one_is_told_of_a_worker_that_hangs(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "STUCK_S", 0.2)
    place.send(("k", "1"))
    with made(place, working.note_when_let, workers=1) as consumer, running(consumer):
        until(lambda: "has got nothing done for 0.2 s" in caplog.text)
        place.go()
    assert place.of("k") == ["1"]
    assert caplog.text.count("has got nothing done") == 1


@pytest.mark.parametrize(
    ("function", "why"),
    [(working.note_or_die, "was ended by SIGKILL"), (working.note_or_raise, "ValueError: cannot do that")],
)
def test_a_record_that_ends_every_worker_ends_the_run(place: Place, function: Any, why: str) -> None:
    partition = place.send(*[("k", str(number)) for number in range(10)], ("k", "poison"), ("k", "after"))
    with made(place, function, workers=2, identity="me") as consumer, pytest.raises(WorkerFailed) as caught:
        consumer.run()
    assert str(caught.value) == (
        f"3 workers in a row did not get done with the record at offset 10 of topic 't', partition {partition}; "
        f"the last one: {why}"
    )
    assert place.of("k")[-1] == "9"
    assert position(place, partition) == 10  # all before it, and it is met again
    attempts = place.path / "attempts"
    assert not attempts.exists() or len(attempts.read_text().split()) <= 4  # one more, if the first told less


def test_slow_workers_hold_back_the_reader(place: Place) -> None:
    for _ in range(3):  # batches of different partitions, which nobody merges
        place.send(*[("k", str(number)) for number in range(60)])
    with made(place, working.note_when_let, workers=2) as consumer:
        consumer._shares = Shares(2, ahead=50)
        with running(consumer):
            place.wait_at("k")
            inner = consumer._consumer
            assert inner is not None
            # a partition comes in one batch, or in several; each but those that wait is handed out
            until(lambda: consumer.progress().read + sum(map(len, inner._inbox.queue)) == 180)
            assert 50 <= consumer.progress().read < 50 + 60
            place.go()
    assert len(place.of("k")) == 180


def test_headers_that_cannot_be_read_are_left_out(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    headers = [encode_headers((("a", b"b"),)), b"\xff", b""]
    with Producer("t", tower=place.tower) as producer:
        producer.send_batch(encode_batch(0, [b"one", b"two", b"three"], 1, headers=headers))
        producer.flush(PATIENCE_S)
    with made(place, working.note_header_a) as consumer:
        assert consumer.run().done == 3
    assert [(key, value) for key, value, _ in place.done()] == [("b", "one"), ("-", "two"), ("-", "three")]
    assert "handed out without them" in caplog.text


def test_a_consumer_that_begins_with_the_newest_of_each_key_commits_all(place: Place) -> None:
    partition = place.send(*SOME)
    options: dict[str, Any] = {"workers": 2, "identity": "me", "reset": "last-value"}
    with made(place, working.note, **options) as consumer:
        assert consumer.run().done == len(KEYS)
    assert sorted((key, value) for key, value, _ in place.done()) == [(key, "24") for key in KEYS]
    assert position(place, partition) == len(SOME)


def test_the_end_waits_for_one_worker_though_another_is_not_started_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded, "LAST_S", PATIENCE_S)
    asked: list[float] = []
    place.send((ONE, "1"), (TWO, "1"))
    with made(place, working.note_when_let, workers=2, until_end=False) as consumer, running(consumer):
        place.wait_at(ONE)
        place.wait_at(TWO)
        inner = consumer._workers
        assert inner is not None
        select = inner._selector.select

        def note(timeout_s: float | None = None) -> Any:
            if consumer._stopped and not consumer._shares.sent_to(0):
                assert timeout_s is not None
                asked.append(timeout_s)
            return select(timeout_s)

        monkeypatch.setattr(inner._selector, "select", note)
        consumer.stop()
        os.kill(pids(consumer)[0], signal.SIGKILL)
        until(lambda: len(asked) > 2)
        place.go()
    assert 0.0 not in asked


def test_what_is_not_done_is_not_committed(place: Place) -> None:
    partition = place.send((ONE, "1"), (TWO, "1"), (ONE, "2"), (TWO, "2"))
    options: dict[str, Any] = {"workers": 2, "identity": "me"}
    with made(place, working.note_when_let, until_end=False, **options) as consumer, running(consumer) as found:
        place.wait_at(ONE)
        place.wait_at(TWO)
        consumer._hurried = True  # as after a second Ctrl-C
        consumer.stop()
    assert found == [Progress(4, 0, 0, 0)]
    assert position(place, partition) == 0
    place.go()
    with made(place, working.note_when_let, workers=1, identity="me") as consumer:
        assert consumer.run().done == 4
    assert position(place, partition) == 4
    assert (place.of(ONE), place.of(TWO)) == (["1", "2"], ["1", "2"])


def test_ctrl_c_waits_for_what_workers_have_and_commits_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "LAST_S", PATIENCE_S)
    partition = place.send(("k", "1"))
    with made(place, working.note, workers=1, identity="me", until_end=False) as consumer:
        interrupt(consumer.run)
    assert position(place, partition) == len(place.done())


def test_ctrl_c_ends_it_where_waits_go_on_after_signals(place: Place) -> None:
    def run() -> None:
        signal.siginterrupt(signal.SIGINT, False)  # as the handler of polars has it
        consumer.run()

    with made(place, working.note, workers=1, until_end=False) as consumer:
        try:
            interrupt(run)
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_while_the_reading_thread_starts_has_it_do_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.send(("k", "1"))
    late: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        late.append(thread)
        raise KeyboardInterrupt

    with made(place, working.note, workers=1) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(KeyboardInterrupt):
                consumer.run()
        late[0].run()
        assert consumer.progress() == Progress()
    assert place.done() == []


def test_ctrl_c_in_the_middle_of_another_ends_it_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(ended: object) -> None:
        raise KeyboardInterrupt

    with made(place, working.note, workers=1, until_end=False) as consumer:
        monkeypatch.setattr(consumer, "_leave", leave)
        interrupt(consumer.run)
        assert not any(each.name == "chappe-reader" for each in threading.enumerate())


READER = """
import sys
from chappe import ShardedConsumer
from tests.subscribers.working import {function}

def mine(record):
    {function}(record)

if __name__ == "__main__":
    with ShardedConsumer(mine, *{topics!r}, tower={tower!r}, directory={directory!r}, identity="me", **{more!r}) as all:
        print("made", flush=True)
        print(all.run().done)
"""


def reader(place: Place, function: str, *topics: str, **more: Any) -> subprocess.Popen[bytes]:
    """One in a program of its own, whose function is in the file that was started."""
    program = place.path / "program.py"
    facts = {"function": function, "topics": topics or ("t",), "tower": place.tower, "more": {"workers": 2} | more}
    program.write_text(READER.format(directory=str(place.path / "state"), **facts))
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen([sys.executable, str(program)], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"made\n"
    return process


def test_a_reader_that_is_killed_is_followed_by_one_that_has_the_rest_done(place: Place) -> None:
    partition = place.send(*SOME)
    with reader(place, "note_when_let") as process:
        place.wait_at(ONE)
        place.wait_at(TWO)
        orphans = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
    assert len(orphans) == 2
    place.go()
    psutil.wait_procs(orphans, PATIENCE_S)
    assert not any(each.is_running() for each in orphans)
    assert len(place.done()) <= 2  # each ends with the record that it was at
    assert position(place, partition) == 0
    with reader(place, "note_when_let", until_end=True) as process:
        assert process.communicate(timeout=PATIENCE_S)[0] == b"%d\n" % len(SOME)
    check_order(place)
    assert position(place, partition) == len(SOME)


def test_an_orphan_whose_function_hangs_ends_too() -> None:
    out, theirs = os.pipe()
    command = "import sys; from chappe.subscribers import function_worker as worker; worker.ORPHAN_S = 0.1; "
    command += "worker._end_with_reader(int(sys.argv[1]))"
    process = subprocess.Popen([sys.executable, "-c", command, str(theirs)], pass_fds=(theirs,))
    os.close(theirs)
    os.close(out)
    assert process.wait(PATIENCE_S) == 1


def test_a_second_ctrl_c_does_not_wait(place: Place) -> None:
    partition = place.send(*SOME)
    with reader(place, "note_when_let") as process:
        place.wait_at(ONE)
        place.wait_at(TWO)
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        while process.poll() is None:  # the second one may come while the first is not heard yet
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
    psutil.wait_procs(children, PATIENCE_S)
    assert not any(each.is_running() for each in children)
    assert place.done() == []
    assert position(place, partition) == 0


def test_each_topic_has_a_reader_and_one_that_is_killed_is_replaced(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    partitions = {topic: place.send(*SOME, topic=topic) for topic in ("t.0", "t.1")}
    options: dict[str, Any] = {"workers": 3, "identity": "me", "reader_per_topic": True}
    with made(place, working.note_when_let, "t.0", "t.1", **options) as consumer, running(consumer) as found:
        place.wait_at("k0")
        first = pids(consumer)
        assert len(first) == 2
        os.kill(first[0], signal.SIGKILL)
        until(lambda: first[0] not in pids(consumer) and len(pids(consumer)) == 2)
        place.go()
    (progress,) = found
    assert isinstance(progress, Progress), progress
    assert progress.done >= 2 * len(SOME)
    for key in KEYS:
        assert {*place.of(key)} == {str(number) for number in range(25)}
    for topic, partition in partitions.items():
        assert position(place, partition, f"me-{topic}", topic) == len(SOME)
    assert "the reader of 't.0' is replaced: it was ended by SIGKILL" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds processes to processors")
@pytest.mark.parametrize("several", [False, True])
def test_reader_and_workers_run_on_the_processors_that_are_theirs(place: Place, several: bool) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    here = os.sched_getaffinity(0)
    place.send(*SOME, topic="t.0")
    options: dict[str, Any] = {"reader_per_topic": several, "identity": "me", "cpus": [first, *others[:1]]}
    with made(place, working.note_cpus, "t.0", **options) as consumer:
        consumer.run()
    assert {cpus for cpus, _, _ in place.done()} == {str(others[0] if others else first)}
    assert os.sched_getaffinity(0) == here


@pytest.mark.parametrize(
    ("cpus", "count", "wanted"),
    [
        ((), 2, [None, None]),
        ((0,), 2, [[0, 0], [0, 0]]),
        ((0, 1), 2, [[0, 0, 1], [1, 0, 1]]),
        ((0, 1, 2), 2, [[0, 2], [1, 2]]),
        ((0, 1, 2, 3, 4), 2, [[0, 2, 4], [1, 3]]),
    ],
)
def test_each_reader_has_a_processor_and_workers_have_those_that_are_left(
    cpus: tuple[int, ...], count: int, wanted: list[list[int] | None]
) -> None:
    assert [readers._share(cpus, number, count) for number in range(count)] == wanted


def test_readers_that_do_not_wait_take_their_workers_along(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "HURRIED_S", PATIENCE_S)
    place.send(("k", "1"), topic="t.0")
    written = place.path / "process"
    program = 'read -r line; echo $$ > "$CHAPPE_TESTS_PLACE/process"; exec sleep 1000'  # though its input ends
    options: dict[str, Any] = {"workers": 1, "identity": "me", "reader_per_topic": True, "until_end": False}
    with made(place, ["sh", "-c", program], "t.0", **options) as consumer, running(consumer):
        until(lambda: written.exists() and written.read_text().endswith("\n"))
        consumer._hurried = True  # as after a second Ctrl-C
        consumer.stop()
    assert not psutil.pid_exists(int(written.read_text()))


def test_an_error_of_one_reader_ends_all(place: Place) -> None:
    place.send(("k", "1"), topic="t.0")
    place.send(("k", "poison"), topic="t.1")
    options: dict[str, Any] = {"workers": 2, "identity": "me", "reader_per_topic": True, "until_end": False}
    with made(place, working.note_or_raise, "t.0", "t.1", **options) as consumer:
        with pytest.raises(WorkerFailed, match=r"offset 0 of topic 't.1'.*ValueError: cannot do that"):
            consumer.run()
        assert pids(consumer) == []


KINDS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, ChappeError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_a_reader_is_the_same_with_who_started_it(kind: type[ChappeError]) -> None:
    made = {TooSlow: TooSlow("why", 1.5, 7), OffsetConflict: OffsetConflict("why", 12)}
    error = made[kind] if kind in made else kind("why")
    found = readers.error_of(json.loads(readers.line_of(readers.facts_of(error))))
    assert (type(found), str(found), vars(found)) == (kind, "why", vars(error))


def test_an_error_of_a_reader_that_is_none_of_ours_is_named() -> None:
    found = readers.error_of(readers.facts_of(ValueError("why")))
    assert (type(found), str(found)) == (WorkerFailed, "a reader ended: ValueError: why")


def test_readers_end_with_the_program_that_started_them(place: Place) -> None:
    place.send(("k", "1"), topic="t.0")
    with reader(place, "note", "t.0", "t.1", reader_per_topic=True) as process:
        until(lambda: place.of("k") == ["1"])
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 3  # two readers, and a worker
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
    psutil.wait_procs(family, PATIENCE_S)
    assert not any(each.is_running() for each in family)


def test_where_nobody_answers_it_says_so(tmp_path: Path) -> None:
    consumer = ShardedConsumer(working.note, "t", tower="127.0.0.1:1", until_end=True, timeout=0.2)
    with consumer, pytest.raises(TimedOut, match="no tower answers"):
        consumer.run()
    with pytest.raises(Closed):
        consumer.run()


def test_it_runs_once_at_a_time(place: Place) -> None:
    with made(place, working.note, until_end=False) as consumer, running(consumer):
        until(lambda: consumer._running.locked())
        with pytest.raises(UsageError, match="it runs already"):
            consumer.run()
        consumer.stop()


def test_a_child_that_is_forked_keeps_no_worker_alive(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "FAREWELL_S", PATIENCE_S / 2)
    place.send(("k", "1"))
    with made(place, working.note_when_let, workers=1) as consumer, running(consumer) as found:
        place.wait_at("k")
        child = os.fork()
        if not child:
            signal.pause()  # for ever
            os._exit(1)
        try:
            place.go()
            until(lambda: found)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert found == [Progress(1, 1, 0, 0)]
    assert "did not end" not in caplog.text


def test_a_worker_that_does_not_end_is_killed_at_the_end(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "FAREWELL_S", 0.2)
    place.send(("k", "1"))
    with made(place, ["sh", "-c", "read -r line; echo ok; exec sleep 1000"], workers=1) as consumer:
        assert consumer.run().done == 1
    assert "worker 0 had nothing more to do, did not end, and is killed" in caplog.text


@pytest.mark.parametrize(
    ("function", "more", "text"),
    [
        (lambda record: None, {}, "workers import their function by its name"),
        ("working", {}, "a function is named as MODULE:NAME"),
        ("tests.subscribers.working:nothing", {}, "cannot be imported"),
        ("tests.subscribers.working:not_a_function", {}, "is not the function"),
        ([], {}, "a program is a list of texts"),
        (["/no/such/program"], {}, "there is no program '/no/such/program'"),
        (["cat"], {"form": "xml"}, "a program gets records as json, raw, length"),
        (working.note, {"workers": 0}, "workers is a number from 1 to 1024"),
        (working.note, {"tries": True}, "tries is a number"),
        (working.note, {"by": "value"}, "by is 'key' or 'topic'"),
        (working.note, {"patience_s": 0.0}, "patience_s is a number of seconds above 0"),
        (working.note, {"cpus": [1 << 20]}, "that this process may use, not (1048576,)"),
        (working.note, {"cpus": []}, "that this process may use, not ()"),
        (working.note, {"reader_per_topic": True}, "takes an identity"),
        (working.note, {"reader_per_topic": True, "identity": "me", "topics": ("a*", "ab")}, "read by two readers"),
        (
            working.note,
            {"reader_per_topic": True, "identity": "me", "topics": ("a", "b", "c")},
            "each topic has a reader",
        ),
    ],
)
def test_wrong_arguments(function: Any, more: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        ShardedConsumer(function, *more.pop("topics", ("t",)), tower="127.0.0.1:1", **more)


def test_nothing_is_left_open_of_one_that_could_not_be_made() -> None:
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        with pytest.raises(UsageError):
            ShardedConsumer(working.note, tower="127.0.0.1:1")
    assert len(os.listdir("/dev/fd")) <= before  # what earlier tests let go of may close meanwhile


def test_a_worker_cannot_make_another(place: Place) -> None:
    program = place.path / "unguarded.py"
    program.write_text(
        "from chappe import ShardedConsumer\n"
        "def mine(record): pass\n"
        f"ShardedConsumer(mine, 't', tower={place.tower!r}, until_end=True).run()\n"
    )
    place.send(("k", "1"))
    found = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert found.returncode == 1
    assert re.search(r"WorkerFailed: worker \d cannot go on: UsageError: this process is a worker", found.stderr)


def test_how_long_it_waits_at_the_end_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "LAST_S", 0.2)
    partition = place.send(("k", "1"))
    options: dict[str, Any] = {"workers": 1, "identity": "me", "until_end": False}
    with made(place, working.note_when_let, **options) as consumer, running(consumer) as found:
        place.wait_at("k")
        consumer.stop()
    assert found == [Progress(1, 0, 0, 0)]
    assert position(place, partition) == 0
