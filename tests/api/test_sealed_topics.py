"""Topics that only a group can read, over real sockets and disks."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.api.members import PATIENCE_S, read, wait_until

from chappe import AsyncProducer, Consumer, Forwarder, Keys, Producer, read_topic
from chappe.api import permissions
from chappe.errors import NotPermitted, Sealed
from chappe.log.batch import Batch
from chappe.log.events import RecordsRefused
from chappe.permissions.rules import Group
from chappe.sealing.records import decode
from chappe.sealing.ring import HeldGroups
from chappe.security import permissions_file, sealed_file
from chappe.storage.sealed_files import WatchedGroups
from chappe.transports.gate import Gate

TOPIC = "patients/1"
PLANTED = [b"planted value", b"planted key", b"planted header", b"planted name"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The authority's directory: ann and bob are of the group, eve is not."""
    made = tmp_path / "keys"
    permissions.init(made, "hub", "server")
    for name in ("ann", "bob", "bob2"):
        permissions.add(made, name, "member")
    permissions.add(made, "eve", "consumer")
    permissions.seal(made, "ward", ["patients/*"], roles=["member"])
    return made


@pytest.fixture
def forwarder(tmp_path: Path, home: Path) -> Iterator[Forwarder]:
    with Forwarder(tmp_path / "data", listen="127.0.0.1:0", security=Keys(home / "hub")) as made:
        yield made


class Network:
    """Makes members."""

    def __init__(self, forwarder: Forwarder, home: Path) -> None:
        self.address, self.home = forwarder.address, home

    def producer(self, name: str = "ann", topic: str = TOPIC, **options: Any) -> Producer:
        return Producer(topic, forwarders=self.address, security=Keys(self.home / name), **options)

    def consumer(self, name: str = "bob", topic: str = TOPIC, **options: Any) -> Consumer:
        return Consumer(topic, forwarders=self.address, security=Keys(self.home / name), **options)


@pytest.fixture
def network(forwarder: Forwarder, home: Path) -> Network:
    return Network(forwarder, home)


def send(producer: Producer, *values: bytes) -> None:
    for value in values:
        producer.send(value)
    producer.flush(PATIENCE_S)


def until_refused(consumer: Consumer, count: int) -> str:
    """Poll until so many records were refused; returns why the last of them were."""

    def happened() -> bool:
        assert consumer.poll(0.05) is None
        return consumer.refused >= count

    wait_until(happened)
    assert consumer.refused == count
    found = [each for each in consumer.events() if isinstance(each, RecordsRefused)]
    assert sum(each.count for each in found) == count
    return found[-1].reason


@contextmanager
def tapped(patch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """All that sockets of this process send and receive, as it is before and after the hop's own encryption."""
    seen: list[bytes] = []

    def watch(method: str, sends: bool) -> None:
        real = getattr(zmq.Socket, method)

        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            answer = real(self, *args, **kwargs)
            what = args[0] if sends else answer
            seen.extend(bytes(each) for each in (what if isinstance(what, list | tuple) else [what]) if each)
            return answer

        patch.setattr(zmq.Socket, method, watched)

    for name in ("send", "recv", "send_multipart", "recv_multipart"):
        watch(name, name.startswith("send"))
    with patch.context():
        yield seen


def asks_for_keys(patch: pytest.MonkeyPatch) -> threading.Event:
    """Is set once somebody asks whether keys that are not there may come."""
    asked = threading.Event()
    real = HeldGroups.within

    def within(self: HeldGroups, group: Group) -> bool:
        asked.set()
        return real(self, group)

    patch.setattr(HeldGroups, "within", within)
    return asked


def test_a_time_begins_at_the_first_record_that_is_not_older(network: Network) -> None:
    """Stores see the times of whole batches only: the rest is seen where they are opened."""
    begun = datetime(2024, 1, 1, tzinfo=UTC)
    with network.producer() as producer:
        for number in range(1_000):
            producer.send(b"%d" % number, timestamp=begun + timedelta(minutes=number))
    for minute in (1, 500, 999):
        with network.consumer(reset=begun + timedelta(minutes=minute)) as consumer:
            found = [record.offset for record in consumer.to_end(PATIENCE_S)]
        assert found == [*range(minute, 1_000)]


def test_a_producer_waits_for_keys_that_come_after_the_permissions(
    network: Network, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chappe.api.log.topic_writers.KEYS_COME_S", PATIENCE_S)
    monkeypatch.setattr("chappe.storage.sealed_files.LOOK_S", 0.0)
    monkeypatch.setattr(Gate, "offer_keys", lambda self, group, raw: None)  # they come when the test copies them
    there = tmp_path / "there"
    shutil.copytree(home, there)
    producer = Producer(TOPIC, forwarders=network.address, security=Keys(there / "ann"))
    with producer, network.consumer() as bob:
        send(producer, b"before")
        permissions.revoke(home, "bob2")
        shutil.copy(permissions_file(home), permissions_file(there))
        waits = asks_for_keys(monkeypatch)
        sending = threading.Thread(target=send, args=(producer, b"after"))
        sending.start()
        assert waits.wait(PATIENCE_S)
        assert sending.is_alive()
        shutil.copy(sealed_file(home, "ward"), sealed_file(there, "ward"))
        sending.join(PATIENCE_S)
        assert [each.value for each in read(bob, 2)] == [b"before", b"after"]


def test_asyncio_waits_for_keys_too(
    network: Network, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chappe.api.log.aio.KEYS_COME_S", PATIENCE_S)
    monkeypatch.setattr("chappe.storage.sealed_files.LOOK_S", 0.0)
    monkeypatch.setattr(Gate, "offer_keys", lambda self, group, raw: None)
    there = tmp_path / "there"
    shutil.copytree(home, there)
    keys = sealed_file(there, "ward").rename(tmp_path / "kept")
    waits = asks_for_keys(monkeypatch)

    async def run() -> int:
        security = Keys(there / "ann")
        async with AsyncProducer(TOPIC, forwarders=network.address, security=security) as producer:
            sending = asyncio.create_task(producer.send(b"1"))
            await asyncio.to_thread(waits.wait, PATIENCE_S)
            assert not sending.done()
            shutil.copy(keys, sealed_file(there, "ward"))
            offset = await sending
            await producer.flush(PATIENCE_S)
            return offset

    assert asyncio.run(run()) == 0
    monkeypatch.setattr("chappe.api.log.aio.KEYS_COME_S", 0.0)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(home, elsewhere)
    sealed_file(elsewhere, "ward").unlink()
    with pytest.raises(Sealed, match="is not there, or not usable") as refused:
        asyncio.run(run_once(network, elsewhere))
    assert refused.value.passing


async def run_once(network: Network, there: Path) -> None:
    producer = AsyncProducer(TOPIC, forwarders=network.address, security=Keys(there / "ann"))
    try:
        await producer.send(b"1")
    finally:
        await producer.close(0.1)


def test_keys_that_do_not_come_are_an_error_at_last_and_at_once_for_who_does_not_block(
    network: Network, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chappe.api.log.topic_writers.KEYS_COME_S", 0.3)
    monkeypatch.setattr(Gate, "offer_keys", lambda self, group, raw: None)
    there = tmp_path / "there"
    shutil.copytree(home, there)
    sealed_file(there, "ward").unlink()
    ways: list[dict[str, Any]] = [{}, {"on_full": "error"}]
    for options in ways:
        with (
            closing(Producer(TOPIC, forwarders=network.address, security=Keys(there / "ann"), **options)) as producer,
            pytest.raises(Sealed, match="is not there, or not usable"),
        ):
            producer.send(b"1")


def test_members_read_what_members_write_and_know_who_did(network: Network) -> None:
    with network.producer() as producer, network.consumer() as consumer:
        producer.send("one", key="k", headers={"h": "v"}, timestamp=5)
        producer.send_many([b"two"] * 10_000)
        producer.send(None, key="k")
        producer.flush(PATIENCE_S)
        records = read(consumer, 10_002)
        assert (records[0].value, records[0].key, records[0].headers) == (b"one", b"k", (("h", b"v"),))
        assert records[0].timestamp == 5
        assert [each.offset for each in records] == list(range(10_002))
        assert (records[-1].value, records[-1].key) == (None, b"k")
        assert consumer.refused == 0
    with network.consumer() as later:
        batch = later.poll(PATIENCE_S)
        assert batch is not None
        assert batch.sender == "ann"
        assert batch.to_arrow().column("value")[0].as_py() == b"one"


def test_nothing_of_them_is_on_any_socket_or_disk(
    tmp_path: Path, home: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tapped(monkeypatch) as seen:
        for topic in (TOPIC, "orders"):
            state = tmp_path / "state" / topic
            with (
                network.producer(topic=topic, identity="p", directory=state) as producer,
                network.consumer(topic=topic, identity="c", directory=state) as consumer,
            ):
                for _ in range(3):
                    producer.send(PLANTED[0], key=PLANTED[1], headers={PLANTED[3].decode(): PLANTED[2]})
                producer.send_many([PLANTED[0]] * 100)
                producer.flush(PATIENCE_S)
                producer.send_batch(_batch())
                producer.send(PLANTED[0])  # pending in the journal while it is looked for
                assert len(read(consumer, 105)) == 105
                consumer.commit()
                disk = _disk(tmp_path)
            if topic == TOPIC:
                assert not [each for each in PLANTED if any(each in raw for raw in [*seen, *disk, *_disk(tmp_path)])]
    for each in PLANTED:  # what is plain is found: one has looked where it would be
        assert any(each in raw for raw in seen)
        assert any(each in raw for raw in disk)


def _batch() -> bytes:
    from chappe.log.batch import encode_batch

    return encode_batch(0, [PLANTED[0]], 1, keys=[PLANTED[1]], headers=[((PLANTED[3].decode(), PLANTED[2]),)])


def _disk(directory: Path) -> list[bytes]:
    found = []
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # journals drop what is stored
            found += [path.read_bytes()] if path.is_file() else []
    return found


def test_a_sealed_record_is_gathered_while_the_last_batch_is_opened(network: Network) -> None:
    with network.producer() as producer, producer._lock:
        writer = producer._writer(TOPIC)
        for left_at, gathered in ((math.inf, True), (0.0, False)):
            writer._common.sent_at, writer._pace.left_at = 0.0, left_at
            producer.send(b"x")
            assert writer.core.pending is gathered


def test_who_has_no_key_is_told_once_and_gets_nothing(network: Network) -> None:
    with network.producer() as producer, network.producer(topic="orders") as orders:
        send(producer, b"one", b"two")
        send(orders, b"open")
        with network.consumer("eve", "*") as consumer:
            topics: list[str] = []
            told: list[str] = []
            while not (told and topics):
                try:
                    batch = consumer.poll(PATIENCE_S)
                except Sealed as error:
                    told.append(str(error))
                else:
                    topics += [] if batch is None else [batch.topic]
            send(orders, b"more")
            assert [each.value for each in read(consumer, 1)] == [b"more"]
            wait_until(lambda: consumer.poll(0.01) is None and consumer.refused == 2)
            assert (set(topics), len(told)) == ({"orders"}, 1)
            assert "'patients/1' is sealed, and cannot be read: eve is not of the group ward" in told[0]
            assert sum(consumer.lag().values()) == 0  # offsets and heads are known to all


def test_who_is_added_while_it_runs_gets_what_came_before_its_own_files(
    tmp_path: Path, home: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "late"
    shutil.copytree(home, late, ignore=shutil.ignore_patterns("authority.key"))
    with (
        network.producer() as producer,
        Consumer(TOPIC, forwarders=network.address, security=Keys(late / "eve")) as consumer,
    ):
        send(producer, b"early")
        with pytest.raises(Sealed, match="eve is not of the group ward"):
            read(consumer, 1)
        with monkeypatch.context() as patch:
            patch.setattr(Gate, "offer", lambda self, raw: None)  # permissions do not travel
            path = permissions_file(home)
            before, mark, group = path.read_text().partition("[[sealed]]")
            path.write_text(before + mark + group.replace('"member"', '"member", "consumer"', 1))
            permissions.sign(path)
            wait_until(lambda: _epoch(producer) == 2)
            send(producer, b"one", b"two")
            until_refused(consumer, 3)
        assert [each.value for each in read(consumer, 2)] == [b"one", b"two"]
        send(producer, b"three")
        assert [each.value for each in read(consumer, 1)] == [b"three"]


def test_who_is_not_of_the_group_cannot_write(network: Network) -> None:
    with network.producer("hub") as producer:
        with pytest.raises(Sealed, match="sealed for ward, and nothing was sent: hub is not of the group ward"):
            producer.send(b"x")
        with pytest.raises(Sealed):
            producer.send_many([b"x"] * 10)
        assert producer.next_offset == 0
        producer.send(b"x", topic="orders")
        producer.flush(PATIENCE_S)


def test_plain_records_in_a_sealed_topic_are_refused(tmp_path: Path, home: Path, network: Network) -> None:
    other = tmp_path / "elsewhere"  # of somebody whose permissions are those of before
    shutil.copytree(home, other)
    path = permissions_file(other)
    path.write_text(path.read_text().replace("[[sealed]]", "[[sealed]]", 1).replace('"patients/*"', '"others/*"'))
    permissions.sign(path)
    with Producer(TOPIC, forwarders=network.address, security=Keys(other / "bob")) as forger:
        send(forger, b"forged")
        with network.consumer() as consumer:
            assert until_refused(consumer, 1) == "they are not sealed for ward, as the topic is"


def test_a_batch_that_is_put_into_another_partition_or_topic_is_refused(network: Network, home: Path) -> None:
    stolen: list[bytes] = []
    with network.producer() as producer, network.consumer() as consumer:
        seal = producer._writers[TOPIC].core._seal
        assert seal is not None
        producer._writers[TOPIC].core._seal = lambda raw: stolen.append(seal(raw)) or stolen[-1]  # type: ignore[func-returns-value]
        send(producer, b"true")
        assert [each.value for each in read(consumer, 1)] == [b"true"]
    for topic in (TOPIC, "patients/2"):
        with network.producer(topic=topic) as thief, network.consumer(topic=topic, reset="latest") as consumer:
            consumer.wait_ready(PATIENCE_S)
            thief._writers[topic].core._seal = lambda raw: stolen[0]
            send(thief, b"whatever")
            assert "not as ann has signed them, for this topic" in until_refused(consumer, 1)


def test_who_joins_reads_what_comes_and_who_is_revoked_nothing_more(
    tmp_path: Path, home: Path, network: Network
) -> None:
    with network.producer() as producer:
        send(producer, b"early")
        permissions.add(home, "cat", "member")
        with network.consumer("cat") as cat:
            assert "whose key was not given to us" in until_refused(cat, 1)
            wait_until(lambda: _epoch(producer) == 2)
            send(producer, b"both")
            assert [each.value for each in read(cat, 1)] == [b"both"]
        permissions.give(home, "cat", "ward", 1)
        with network.consumer("cat") as cat:
            assert [each.value for each in read(cat, 2)] == [b"early", b"both"]
        permissions.revoke(home, "bob")
        wait_until(lambda: _epoch(producer) == 3)
        send(producer, b"late")
        with network.consumer("cat") as cat:
            assert [each.value for each in read(cat, 3)] == [b"early", b"both", b"late"]


def _epoch(producer: Producer) -> int:
    """In which it seals, once it has looked."""
    with producer.lock:
        sealing = producer._topics.sealing
        assert sealing is not None
        sealing.check(TOPIC)
        return sealing._core._secrets["ward"].number


@pytest.fixture
def nothing_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of groups are copied by hand alone, as where no forwarder has them."""
    monkeypatch.setattr(Gate, "offer_keys", lambda self, group, raw: None)


@pytest.mark.usefixtures("nothing_travels")
def test_who_has_old_keys_waits_for_the_new_ones_and_misses_nothing(
    tmp_path: Path, home: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "late"
    shutil.copytree(home, late)
    permissions.rotate(home, "ward")
    options: Any = {"forwarders": network.address, "security": Keys(late / "bob")}
    with network.producer() as producer, Consumer(TOPIC, "orders", **options) as consumer:
        send(producer, b"new")
        producer.send(b"plain", topic="orders")
        producer.flush(PATIENCE_S)
        assert [each.value for each in read(consumer, 1)] == [b"plain"]  # the others are not held up
        wait_until(lambda: consumer.poll(0.01) is None and consumer.look_s < math.inf)
        with monkeypatch.context() as patch:
            patch.setattr("chappe.api.log.sealed.KEYS_WAIT_S", 0.0)
            with pytest.raises(Sealed, match="sealed in epoch 2, and the keys here end with 1: no newer"):
                consumer.poll(PATIENCE_S)
        assert consumer.refused == 0
        shutil.copy2(sealed_file(home, "ward"), late)
        assert [each.value for each in read(consumer, 1)] == [b"new"]


@pytest.mark.usefixtures("nothing_travels")
def test_a_producer_with_keys_from_before_a_revocation_sends_nothing_until_it_has_new_ones(
    tmp_path: Path, home: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chappe.api.log.topic_writers.KEYS_COME_S", 0.3)  # they come when the test copies them
    late = tmp_path / "late"
    shutil.copytree(home, late)
    with Producer(TOPIC, forwarders=network.address, security=Keys(late / "ann")) as producer:
        send(producer, b"one")
        permissions.revoke(home, "bob")
        shutil.copy2(permissions_file(home), late)

        def refused() -> str:
            try:
                producer.send(b"more")
            except Sealed as error:
                return str(error)
            return ""

        wait_until(refused)
        assert "which do not have bob in the group" in refused()
        shutil.copy2(sealed_file(home, "ward"), late)
        wait_until(lambda: not refused())
        producer.flush(PATIENCE_S)
        count = producer.next_offset
    permissions.add(home, "cat", "member")
    permissions.give(home, "cat", "ward", 1)
    with network.consumer("cat") as cat:
        assert len(read(cat, count)) == count


def test_a_producer_that_was_off_for_days_seals_nothing_before_it_has_asked_for_newer_keys(
    tmp_path: Path, home: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "late"
    shutil.copytree(home, late, ignore=shutil.ignore_patterns("authority.key"))
    permissions.rotate(home, "ward")
    monkeypatch.setattr("chappe.sealing.chain.CHANGE", timedelta(0))  # all keys are old
    monkeypatch.setattr("chappe.sealing.chain.ASKED_S", PATIENCE_S)
    sealed: list[bytes] = []
    with Producer(TOPIC, forwarders=network.address, security=Keys(late / "ann")) as producer:
        seal = producer._writers[TOPIC].core._seal
        assert seal is not None
        producer._writers[TOPIC].core._seal = lambda raw: sealed.append(seal(raw)) or sealed[-1]  # type: ignore[func-returns-value]
        send(producer, b"one")
    bodies = [Batch.parse(each, check=False).sealed for each in sealed]
    assert [None if each is None else decode(each).epoch for each in bodies] == [2]


def test_a_producer_that_does_not_block_is_told_that_its_keys_may_be_old(
    tmp_path: Path, home: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "late"
    shutil.copytree(home, late, ignore=shutil.ignore_patterns("authority.key"))
    monkeypatch.setattr("chappe.sealing.chain.CHANGE", timedelta(0))
    with monkeypatch.context() as patch:
        patch.setattr("chappe.sealing.chain.ASKED_S", PATIENCE_S)
        patch.setattr(WatchedGroups, "hear", lambda self, group, version, now: None)
        options: Any = {"forwarders": network.address, "security": Keys(late / "ann"), "on_full": "error"}
        with Producer(TOPIC, **options) as producer:
            with pytest.raises(Sealed, match="may be old, and nobody has said yet which one he has") as error:
                producer.send(b"one")
            assert error.value.passing
            patch.setattr("chappe.sealing.chain.ASKED_S", 0.0)  # so long nobody has said anything
            wait_until(lambda: _sent(producer))


def _sent(producer: Producer) -> bool:
    with suppress(Sealed):
        producer.send(b"one")
        return True
    return False


def test_a_producer_goes_on_after_a_restart_and_its_journal_is_sealed(tmp_path: Path, network: Network) -> None:
    options: Any = {"identity": "p", "directory": tmp_path / "state"}
    with network.producer(**options) as producer:
        send(producer, b"one", b"two")
    with network.producer(**options) as producer:
        send(producer, b"three")
        partition = producer.partition
    with network.consumer() as consumer:
        records = read(consumer, 3)
        assert [each.value for each in records] == [b"one", b"two", b"three"]
        assert {each.partition for each in records} == {partition}
        consumer.seek(TOPIC, partition, 1)
        assert [each.value for each in read(consumer, 2)] == [b"two", b"three"]


def test_a_consumer_of_the_newest_records_begins_at_the_first_one(network: Network) -> None:
    with network.producer() as producer:
        for each in range(3):
            producer.send(b"%d" % each, key="k")
        producer.flush(PATIENCE_S)
        with network.consumer(reset="last-value") as consumer:
            assert [each.value for each in read(consumer, 3)] == [b"0", b"1", b"2"]


def test_records_that_are_too_old_are_left_out_of_sealed_ones_too(network: Network) -> None:
    with network.producer() as producer, network.consumer(max_age_s=1000, on_stale="drop") as consumer:
        producer.send(b"old", timestamp=5)
        producer.send(b"new")
        producer.send(b"old", timestamp=5)
        producer.send(b"new")
        producer.flush(PATIENCE_S)
        assert [each.value for each in read(consumer, 2)] == [b"new", b"new"]
        wait_until(lambda: consumer.poll(0.01) is None and consumer.too_old == 2)


def test_a_loop_that_was_left_goes_on_where_it_was(network: Network) -> None:
    with network.producer() as producer, network.consumer() as consumer:
        producer.send_many([b"%d" % each for each in range(100)])
        producer.flush(PATIENCE_S)
        for record in consumer:
            if record.offset == 41:
                break
        assert consumer.position() == {(TOPIC, producer.partition): 42}
        assert [each.value for each in consumer.to_end(PATIENCE_S)] == [b"%d" % each for each in range(42, 100)]


def read_in_bulk(forwarder: Forwarder, **options: Any) -> list[bytes | None]:
    found: list[bytes | None] = read_topic(TOPIC, stores=forwarder.endpoint, **options).column("value").to_pylist()
    return found


def is_let_in(reads: Callable[[], object]) -> bool:
    """Whether the forwarder, which looks for itself, knows the permissions by which the topic can be read."""
    try:
        reads()
    except NotPermitted:
        return False
    except Sealed:
        pass
    return True


def test_topics_are_opened_in_bulk(
    home: Path, forwarder: Forwarder, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    with network.producer() as producer:
        send(producer, b"one", b"two")
        permissions.add(home, "cat", "member")
        wait_until(lambda: _epoch(producer) == 2)
        send(producer, b"three")
        partition = producer.partition

    monkeypatch.setenv("CHAPPE_IDENTITY", str(home / "bob"))
    assert read_in_bulk(forwarder) == [b"one", b"two", b"three"]
    assert read_in_bulk(forwarder, start={TOPIC: {partition: 1}}, end={TOPIC: {partition: 2}}) == [b"two"]
    monkeypatch.setenv("CHAPPE_IDENTITY", str(home / "cat"))
    wait_until(lambda: is_let_in(lambda: read_in_bulk(forwarder)))
    with pytest.raises(Sealed, match="cannot be read: they are sealed in epoch 1 of ward, whose key was not given"):
        read_in_bulk(forwarder)
    assert read_in_bulk(forwarder, start={TOPIC: {partition: 2}}) == [b"three"]
    monkeypatch.setenv("CHAPPE_IDENTITY", str(home / "eve"))
    with pytest.raises(Sealed, match="cannot be read: eve is not of the group ward"):
        read_in_bulk(forwarder)
    assert read_topic(TOPIC, stores=forwarder.endpoint, columns=["topic", "offset"]).num_rows == 3


def test_spark_opens_what_it_may(
    home: Path,
    forwarder: Forwarder,
    network: Network,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("pyspark")
    from chappe.spark.batch import TopicReader
    from chappe.spark.options import Options

    def read_rows(**options: str) -> list[bytes | None]:
        reader = TopicReader(Options.parse({"stores": forwarder.endpoint, "subscribe": TOPIC, **options}))
        return [
            value
            for task in reader.partitions()
            for batch in reader.read(task)
            for value in batch.column("value").to_pylist()
        ]

    with network.producer() as producer:
        send(producer, b"one")
        permissions.add(home, "cat", "member")
        wait_until(lambda: _epoch(producer) == 2)
        send(producer, b"two")
    monkeypatch.setenv("CHAPPE_IDENTITY", str(home / "bob"))
    assert read_rows() == [b"one", b"two"]
    with pytest.raises(Sealed, match="they are to stay sealed"):
        read_rows(openSealed="false", failOnDataLoss="false")
    monkeypatch.setenv("CHAPPE_IDENTITY", str(home / "cat"))
    wait_until(lambda: is_let_in(read_rows))
    with pytest.raises(Sealed, match="whose key was not given"):
        read_rows()
    assert read_rows(failOnDataLoss="false") == [b"two"]
    assert "going on without them" in caplog.text


def test_what_tasks_of_spark_write_is_sealed_before_it_is_staged(
    home: Path, forwarder: Forwarder, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    from chappe.log.batch import encode_batch
    from chappe.spark.encode import EncodedPiece
    from chappe.spark.home import Sink, SinkStores, settle
    from chappe.spark.sink import StagedOutput, Staging, commit

    ann, sink = Keys(home / "ann"), Sink("query", "run", lasting=True)
    stores = SinkStores((forwarder.endpoint,), None, PATIENCE_S, ann)
    sent: list[bytes] = []
    real = Staging._send

    def send_and_tell(self: Staging, stage: Any, raw: bytes) -> None:
        sent.append(raw)
        real(self, stage, raw)

    monkeypatch.setattr(Staging, "_send", send_and_tell)

    def attempt(batch: int, task: int, number: int) -> StagedOutput:
        staging = Staging(stores, settle(stores, sink, batch), sink, batch, task, number)
        for piece in range(3):
            values = [b"%s %d %d %d" % (PLANTED[0], batch, task, piece), None]
            staging.put(EncodedPiece(TOPIC, encode_batch(0, values, 7), 2))
            staging.put(EncodedPiece("orders", encode_batch(0, values, 7), 2))
        staging.finish()
        return StagedOutput(
            sink, staging.home, batch, task, number, staging.pieces, staging.rows, tuple(staging.topics)
        )

    def written(*batches: int) -> list[bytes | None]:
        return [
            value
            for batch in batches
            for task in range(2)
            for piece in range(3)
            for value in (b"%s %d %d %d" % (PLANTED[0], batch, task, piece), None)
        ]

    attempt(0, 0, 1)  # of which nothing comes: it is done again
    commit(stores, [attempt(0, 0, 2), attempt(0, 1, 3)], 1)
    permissions.rotate(home, "ward")
    with network.consumer() as consumer:
        assert [each.value for each in read(consumer, 12)] == written(0)
        commit(stores, [attempt(1, 0, 4), attempt(1, 1, 5)], 1)
        batch = consumer.poll(PATIENCE_S)
        assert batch is not None
        assert batch.sender == "ann"
        assert [*batch.values(), *[each.value for each in read(consumer, 12 - len(batch))]] == written(1)
        consumer.seek(TOPIC, batch.partition, 3)
        assert [each.offset for each in read(consumer, 21)] == list(range(3, 24))
        assert consumer.refused == 0
    found = read_topic(TOPIC, stores=forwarder.endpoint, security=Keys(home / "bob"))
    assert found.column("value").to_pylist() == written(0, 1)
    with network.consumer("eve", "orders") as eve:
        assert [each.value for each in read(eve, 24)] == written(0, 1)

    sealed = [raw for raw in sent if PLANTED[0] not in raw]
    assert len(set(sealed)) == len(sealed) == len(sent) / 2 == 15
    with pytest.raises(Sealed, match="nothing was sent: hub is not of the group ward"):
        Staging(
            SinkStores(stores.endpoints, None, PATIENCE_S, Keys(home / "hub")), settle(stores, sink, 2), sink, 2, 0, 6
        ).put(EncodedPiece(TOPIC, encode_batch(0, [b"x"], 7), 1))
