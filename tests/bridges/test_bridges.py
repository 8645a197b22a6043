"""Messages of the mesh become records, and records messages again."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S, until

from chappe import Consumer, Endpoint, Player, Producer, Record, Recorder, Store, Subscriber, read_batches
from chappe.bridges.form import ROW_BYTES, SENDER, fits, pack, unpack
from chappe.data.binary import decode, encode
from chappe.defaults import RECORD_BYTES_MAX
from chappe.errors import IdentityInUse, Sealed, UnknownTopic, UsageError
from chappe.log.batch import Batch, encode_batch
from chappe.mesh.messages import Message

ME = bytes(range(16))


class Recording:
    """A recorder at work in a thread, and a sensor that peers with it."""

    def __init__(self, recorder: Recorder, listener: Endpoint, port: int) -> None:
        self.recorder = recorder
        self._listener = listener
        self._thread = threading.Thread(target=recorder.run)
        self._thread.start()
        self.sensor = Endpoint()
        self.sensor.peer("127.0.0.1", port, timeout=PATIENCE_S)

    def wait_for(self, records: int) -> None:
        until(lambda: self.recorder.progress().records >= records, self.recorder.progress)

    def end(self) -> None:
        self.sensor.close()
        self.recorder.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._listener.close()


def start(tower: str, directory: Path, *topics: str, messages_max: int = 16_384) -> Recording:
    listener = Endpoint()
    port = listener.listen()
    recorder = Recorder(listener, *topics, to="kept", tower=tower, directory=directory, messages_max=messages_max)
    return Recording(recorder, listener, port)


def consumed(tower: str, count: int) -> list[Record]:
    found: list[Record] = []
    deadline = time.monotonic() + PATIENCE_S
    with Consumer("kept", tower=tower, reset="earliest") as consumer:
        while len(found) < count:
            assert time.monotonic() < deadline, len(found)
            found += consumer.poll(0.2) or ()
    return found


def record(tower: str, directory: Path, messages: list[tuple[str, object]]) -> None:
    """Have these recorded, and stored."""
    recording = start(tower, directory, "zeek/")
    try:
        recording.sensor.publish_batch(messages)
        recording.wait_for(len(messages))
    finally:
        recording.end()
    assert recording.recorder.finish(PATIENCE_S).left == 0


def listening(topic: str) -> tuple[Endpoint, int, Subscriber]:
    made = Endpoint()
    return made, made.listen(), made.subscribe(topic)


def test_messages_become_records_and_messages_again() -> None:
    messages = [Message(b"zeek/%d" % n, encode(n), origin=ME) for n in range(5)]
    ((count, raw),) = pack(messages, 7, 1_000)
    batch = Batch.parse(raw)
    assert (count, batch.base) == (5, 7)
    assert batch.headers() == [((SENDER, b"00010203-0405-0607-0809-0a0b0c0d0e0f"),)] * 5
    played, others = unpack(batch, 8, 10, 5_000)
    assert played.messages == [(b"zeek/1", encode(1)), (b"zeek/2", encode(2))]
    assert played.times == [5_000, 5_000]  # never back
    assert others == 0


def test_a_peer_that_tells_no_origin_is_the_sender() -> None:
    ((_, raw),) = pack([Message(b"t", b"\x00", sender=ME)], 0, 0)
    assert Batch.parse(raw).headers() == [((SENDER, b"00010203-0405-0607-0809-0a0b0c0d0e0f"),)]


def test_large_messages_get_batches_of_their_own_and_larger_ones_do_not_fit() -> None:
    messages = [Message(b"t", bytes(size)) for size in (10, 300_000, 300_000, 3_000_000, 10)]
    packed = list(pack(messages, 0, 0))
    assert [count for count, _ in packed] == [2, 1, 1, 1]
    assert [Batch.parse(raw).base for _, raw in packed] == [0, 2, 3, 4]
    largest = RECORD_BYTES_MAX - ROW_BYTES - 1
    assert fits(Message(b"t", bytes(largest)))
    assert not fits(Message(b"t", bytes(largest + 1)))
    assert Batch.parse(next(pack([Message(b"t", bytes(largest))], 0, 0))[1]).count == 1


def test_records_that_were_not_recorded_are_left_out() -> None:
    plain = Batch.parse(encode_batch(0, [b"a", b"b"], 0, keys=[b"k", None]))
    assert unpack(plain, 0, 2, 0)[1] == 2
    mixed = Batch.parse(
        encode_batch(0, [encode(1), b"x", None], 0, keys=[b"k"] * 3, headers=[((SENDER, b"id"),), (), ((SENDER, b""),)])
    )
    played, others = unpack(mixed, 0, 3, 0)
    assert (played.messages, others) == ([(b"k", encode(1))], 2)


@pytest.mark.process
def test_what_is_published_is_recorded(tower: str, store: Store, tmp_path: Path) -> None:
    recording = start(tower, tmp_path, "zeek/")
    try:
        recording.sensor.publish("zeek/conn", ["C1", 80])
        recording.sensor.publish("other", 1)
        recording.sensor.publish("zeek/dns", "example.org")
        recording.wait_for(2)
        first, second = consumed(tower, 2)
        assert (first.key, decode(first.value or b"")) == (b"zeek/conn", ("C1", 80))
        assert (second.key, decode(second.value or b"")) == (b"zeek/dns", "example.org")
        assert first.headers == ((SENDER, recording.sensor.id.encode()),)
    finally:
        recording.end()
    done = recording.recorder.finish(PATIENCE_S)
    assert (done.records, done.stored, done.left, done.dropped) == (2, 2, 0, 0)


@pytest.mark.process
def test_messages_wait_for_keys_to_seal_with_if_these_may_come(
    tower: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, tries = Producer.send_batch, list[str]()

    def late(self: Producer, raw: bytes | Batch, *, topic: str | None = None) -> range:
        tries.append("")
        if len(tries) > 2:
            return send(self, raw, topic=topic)
        error = Sealed("nothing was sent")
        error.passing = True
        raise error

    monkeypatch.setattr(Producer, "send_batch", late)
    record(tower, tmp_path / "state", [("zeek/conn", 1)])
    assert len(consumed(tower, 1)) == 1
    assert len(tries) == 3


@pytest.mark.process
def test_without_a_store_the_mesh_waits_and_the_next_recorder_goes_on(tower: str, tmp_path: Path) -> None:
    recording = start(tower, tmp_path, "zeek/")
    try:
        recording.sensor.publish_batch(("zeek/x", n) for n in range(1000))
        recording.wait_for(1000)
    finally:
        recording.end()
    done = recording.recorder.finish(0.2)
    assert (done.records, done.stored, done.left, done.dropped) == (1000, 0, 1000, 0)
    partition = recording.recorder.partition
    with Store(tmp_path / "store", tower=tower):
        recording = start(tower, tmp_path, "zeek/")
        try:
            recording.sensor.publish("zeek/x", 1000)
            recording.wait_for(1)
        finally:
            recording.end()
        done = recording.recorder.finish(PATIENCE_S)
        assert (done.records, done.stored, done.left) == (1, 1001, 0)
        records = consumed(tower, 1001)
        assert {each.partition for each in records} == {partition}
        assert [decode(each.value or b"") for each in records] == list(range(1001))


@pytest.mark.process
def test_a_recorder_that_cannot_go_on_slows_the_sensor_down(tower: str, store: Store, tmp_path: Path) -> None:
    """Nothing is taken from the subscriber for a while: publishing stops, and nothing is lost in the end."""
    with Endpoint() as listener, Endpoint(peer_messages_max=100) as sensor:
        port = listener.listen()
        recorder = Recorder(listener, "zeek/", to="kept", tower=tower, directory=tmp_path, messages_max=100)
        sensor.peer("127.0.0.1", port, timeout=PATIENCE_S)
        total = 5000
        payload = "x" * 4000
        thread = threading.Thread(
            target=lambda: sensor.publish_batch(("zeek/x", [n, payload]) for n in range(total)), daemon=True
        )
        thread.start()
        deadline = time.monotonic() + PATIENCE_S
        while sensor.room([b"zeek/x"]) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert thread.is_alive()
        runner = threading.Thread(target=recorder.run)
        runner.start()
        while recorder.progress().records < total:
            assert time.monotonic() < deadline, recorder.progress()
            time.sleep(0.01)
        recorder.stop()
        runner.join(PATIENCE_S)
        done = recorder.finish(PATIENCE_S)
        assert (done.stored, done.dropped) == (total, 0)
    assert [decode(each.value or b"")[0] for each in consumed(tower, total)] == list(range(total))  # type: ignore[index]


@pytest.mark.process
def test_the_same_cannot_be_recorded_twice_at_once(tower: str, tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        recorder = Recorder(endpoint, "a", "b", to="kept", tower=tower, directory=tmp_path)
        with pytest.raises(IdentityInUse):
            Recorder(endpoint, "b", "a", to="kept", tower=tower, directory=tmp_path)
        Recorder(endpoint, "a", to="kept", tower=tower, directory=tmp_path).finish(0.0)
        recorder.finish(0.0)
        with pytest.raises(UsageError, match="name at least one"):
            Recorder(endpoint, to="kept", tower=tower)
        with pytest.raises(UsageError, match="min_acks"):
            Recorder(endpoint, "a", to="kept", tower=tower, min_acks=0)


@pytest.mark.process
def test_what_was_recorded_is_played_to_the_topics_that_it_came_from(tower: str, store: Store, tmp_path: Path) -> None:
    record(tower, tmp_path, [(f"zeek/{n % 3}", n) for n in range(3000)])
    with Producer("kept", tower=tower) as stranger:
        stranger.send(b"not from the mesh")
        stranger.flush(PATIENCE_S)
    analyst, port, subscriber = listening("zeek/")
    with analyst, Endpoint() as endpoint:
        endpoint.peer("127.0.0.1", port, timeout=PATIENCE_S)
        done = Player(endpoint, "kept", tower=tower, speed=None).run()
        assert (done.sent, done.skipped, done.total) == (3000, 1, 3001)
        found = [subscriber.get(PATIENCE_S) for _ in range(3000)]
    assert [(each.topic, each.data) for each in found if each is not None] == [
        (f"zeek/{n % 3}", n) for n in range(3000)
    ]


@pytest.mark.process
def test_from_an_offset_or_a_time_until_a_time(tower: str, store: Store, tmp_path: Path) -> None:
    record(tower, tmp_path, [("zeek/x", n) for n in range(10)])
    later = datetime.now(UTC) + timedelta(hours=1)
    with Endpoint() as endpoint:
        assert Player(endpoint, "kept", tower=tower, start=7, speed=None).run().sent == 3
        assert Player(endpoint, "kept", tower=tower, start=later, speed=None).run().sent == 0
        assert Player(endpoint, "kept", tower=tower, end=later, speed=None).run().sent == 10
        assert Player(endpoint, "kept", tower=tower, end=later - timedelta(hours=2), speed=None).run().sent == 0
        with pytest.raises(UnknownTopic):
            Player(endpoint, "unheard", tower=tower)
        for wrong in (0.0, -1.0, float("inf")):
            with pytest.raises(UsageError, match="speed"):
                Player(endpoint, "kept", tower=tower, speed=wrong)
        with pytest.raises(UsageError, match="start is"):
            Player(endpoint, "kept", tower=tower, start=-1)


def put(tower: str, times_us: list[int]) -> None:
    """Records of a partition of its own, as if recorded at these times; each value is its time."""
    with Producer("kept", tower=tower) as producer:
        for each in times_us:
            producer.send(encode(each), b"zeek/x", {SENDER: "id"}, timestamp=each)
        producer.flush(PATIENCE_S)


@pytest.mark.process
def test_partitions_are_merged_by_time(tower: str, store: Store) -> None:
    put(tower, [1, 4, 7, 100])
    put(tower, [2, 3, 50, 60, 200])
    put(tower, [300, 310])
    put(tower, [5, 4, 6])  # its clock went back once
    analyst, port, subscriber = listening("zeek/")
    with analyst, Endpoint() as endpoint:
        endpoint.peer("127.0.0.1", port, timeout=PATIENCE_S)
        assert Player(endpoint, "kept", tower=tower, speed=None).run().sent == 14
        found = [subscriber.get(PATIENCE_S) for _ in range(14)]
    assert [each.data for each in found if each] == [1, 2, 3, 4, 5, 4, 6, 7, 50, 60, 100, 200, 300, 310]


@pytest.mark.process
def test_a_given_speed_is_kept(tower: str, store: Store) -> None:
    put(tower, [n * 100_000 for n in range(1, 101)])  # ten seconds
    left: list[float | None] = []
    with Endpoint() as endpoint:
        player = Player(endpoint, "kept", tower=tower, speed=50.0)
        player.show = lambda progress: left.append(progress.left_s)
        began = time.monotonic()
        done = player.run()
    assert time.monotonic() - began >= 0.19
    assert done.sent == 100
    known = [each for each in left if each is not None]
    assert known == sorted(known, reverse=True)
    assert 0.0 < max(known) < 0.2


@pytest.mark.process
def test_records_of_a_topic_are_plain_arrow_too(tower: str, store: Store, tmp_path: Path) -> None:
    record(tower, tmp_path, [("zeek/x", "é")])
    (batch,) = read_batches("kept", tower=tower)
    assert batch.column("key").to_pylist() == [b"zeek/x"]
