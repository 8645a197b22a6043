"""Producers and consumers with a codec: values that fit, and what becomes of those that do not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import pytest

from chappe import AsyncConsumer, AsyncProducer, Avro, Codec, Consumer, Producer
from chappe.defaults import HEADERS_MAX, RECORD_BYTES_MAX
from chappe.errors import BadValue, SchemasUnavailable, TimedOut, UsageError
from chappe.log.events import RecordsRefused
from chappe.testing import Log

READING = '{"type": "record", "name": "Reading", "fields": [{"name": "room", "type": "string"}]}'


class Reading(msgspec.Struct):
    room: str
    celsius: float


@dataclass
class Alarm:
    room: str


def _values(consumer: Consumer) -> list[Any]:
    return [record.value for record in consumer.to_end()]


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        ("json", {"room": "a", "celsius": [1, 2.5]}),
        (Reading, Reading("a", 20.5)),
        (Alarm, Alarm("a")),
        (list[int], [1, 2]),
    ],
)
def test_values_come_as_they_were_sent(chappe_log: Log, codec: Any, value: Any) -> None:
    with Producer("t", codec=codec) as producer:
        producer.send(value, key="k")
        producer.send(None, key="k")
        producer.send_many([value])
        producer.flush()
    with Consumer("t", codec=codec) as consumer:
        assert _values(consumer) == [value, None, value]


def test_a_value_that_does_not_fit_is_not_sent(chappe_log: Log) -> None:
    with Producer("readings", codec=Reading) as producer:
        for wrong in (Reading("a", "hot"), {"room": "a"}, 5):  # type: ignore[arg-type]
            with pytest.raises(BadValue, match=r"does not fit topic 'readings'.*nothing was sent") as found:
                producer.send(wrong)
            assert (found.value.topic, found.value.offset) == ("readings", None)
        with pytest.raises(BadValue):
            producer.send_many([Reading("a", 1.0), 5])
        assert producer.next_offset == 0
        with pytest.raises(BadValue, match="'other'"):
            producer.send(5, topic="other")


def test_a_consumer_goes_on_after_a_bad_record(chappe_log: Log) -> None:
    chappe_log.write("readings", '{"room": "a", "celsius": 1}', b"\xff", '{"room": "b", "celsius": 2}')
    with Consumer("readings", codec=Reading) as consumer:
        rooms = []
        with pytest.raises(BadValue, match="offset 1 of topic 'readings'") as found:
            rooms += [record.value.room for record in consumer]
        assert (found.value.topic, found.value.offset) == ("readings", 1)
        assert [record.value.room for record in islice(consumer, 1)] == ["b"]
        assert set(consumer.position().values()) == {3}


def test_bad_records_are_left_out_and_counted(chappe_log: Log) -> None:
    chappe_log.write("readings", b"", '{"room": "a", "celsius": 1}', b"[" * 100_000, b"\0")
    with Consumer("readings", codec=Reading, on_bad="skip") as consumer:
        assert _values(consumer) == [Reading("a", 1.0)]
        assert consumer.bad == 3
        told = [each for each in consumer.events() if isinstance(each, RecordsRefused)]
        assert [each.first for each in told] == [0]  # not one for each of them


def test_batches_have_bytes_and_are_decoded_on_demand(chappe_log: Log) -> None:
    chappe_log.write("t", "[1]", "[2]")
    with Consumer("t", codec="json") as consumer:
        batch = consumer.poll(timeout=60)
        assert batch is not None
        assert batch.values()[0] == b"[1]"
        assert next(iter(consumer.iterate(batch))).value == [1]


def test_the_dead_letter_topic_has_what_was_bad(chappe_log: Log) -> None:
    chappe_log.write("readings", "{}", b'{"room": "a", "celsius": 1}')
    with Consumer("readings", codec=Reading, dead_letter="dead") as consumer:
        assert [value.room for value in _values(consumer)] == ["a"]
    (dead,) = chappe_log.read("dead")
    headers = dict(dead.headers)
    assert dead.value == b"{}"
    assert headers["chappe.topic"] == b"readings"
    assert headers["chappe.offset"] == b"0"
    assert b"missing required field `room`" in headers["chappe.error"]
    assert headers["chappe.partition"].decode() == chappe_log.read("readings")[0].partition


def test_a_record_with_too_much_beside_it_is_no_obstacle(chappe_log: Log) -> None:
    """A dead letter has more headers than the record: one that has no room for them is raised, once."""
    many = [(f"h{at}", b"") for at in range(HEADERS_MAX)]
    with Producer("t") as producer:
        producer.send(b"{", headers=many)
        producer.send(b"{" + b" " * (RECORD_BYTES_MAX - 100))
        producer.send(b"[]")
        producer.flush()
    with Consumer("t", codec="json", dead_letter="dead") as consumer:
        with pytest.raises(BadValue, match="offset 1"):
            _values(consumer)
        assert _values(consumer) == [[]]
    (dead,) = chappe_log.read("dead")
    assert len(dead.headers) == HEADERS_MAX
    assert dead.headers[-1] == ("chappe.offset", b"0")


class _Away(msgspec.Struct):
    """A codec whose schema is not to be had at first."""

    name: str = "away"
    answers: bool = False

    def encode(self, value: object) -> bytes:
        raise SchemasUnavailable("no answer")

    def decode(self, data: bytes) -> object:
        if not self.answers:
            raise SchemasUnavailable("no answer")
        return data.decode()


def test_a_record_whose_schema_is_not_to_be_had_comes_again(chappe_log: Log) -> None:
    chappe_log.write("t", "a", "b")
    codec = _Away()
    with Consumer("t", codec=codec, on_bad="skip") as consumer:
        for _ in range(2):
            with pytest.raises(SchemasUnavailable):
                next(iter(consumer))
        codec.answers = True
        assert _values(consumer) == ["a", "b"]


def test_a_record_that_no_store_takes_as_a_dead_letter_comes_again(chappe_log: Log) -> None:
    chappe_log.write("t", "{", "[]")
    with Consumer("t", codec="json", dead_letter="dead") as consumer:
        batch = consumer.poll(timeout=60)
        assert batch is not None
        chappe_log.store.close()
        with pytest.raises(TimedOut, match="not stored after 30 s"):
            list(consumer.iterate(batch))
        chappe_log.start_store()
        assert _values(consumer) == [[]]
    assert {each.value for each in chappe_log.read("dead")} == {b"{"}


def test_any_codec_will_do(chappe_log: Log) -> None:
    class Upper:
        name = "upper"

        def encode(self, value: str) -> bytes:
            return value.upper().encode()

        def decode(self, data: bytes) -> str:
            return data.decode().lower()

    assert isinstance(Upper(), Codec)
    with Producer("t", codec=Upper()) as producer, Consumer("t", codec=Upper()) as consumer:
        producer.send("abc")
        producer.flush()
        assert [record.value for record in chappe_log.read("t")] == [b"ABC"]
        assert _values(consumer) == ["abc"]


def test_avro_is_a_codec(chappe_log: Log) -> None:
    pytest.importorskip("fastavro")
    with Producer("t", codec=Avro(READING)) as producer, Consumer("t", codec=Avro(READING)) as consumer:
        producer.send({"room": "a"})
        with pytest.raises(BadValue, match=r"Reading\.room"):
            producer.send({"room": 5})
        producer.flush()
        assert _values(consumer) == [{"room": "a"}]


def test_protobuf_and_arrow_are_codecs(chappe_log: Log) -> None:
    stamps = pytest.importorskip("google.protobuf.timestamp_pb2")
    pa = pytest.importorskip("pyarrow")
    for codec, value in ((stamps.Timestamp, stamps.Timestamp(seconds=3)), ("arrow", pa.table({"a": [1, 2]}))):
        topic = f"t-{len(str(codec))}"
        with Producer(topic, codec=codec) as producer, Consumer(topic, codec=codec, on_bad="skip") as consumer:
            producer.send(value)
            producer.flush()
            chappe_log.write(topic, b"\xffgarbage")
            assert _values(consumer) == [value]
            with pytest.raises(BadValue):
                producer.send(object())


@pytest.mark.parametrize("wrong", ["yaml", 5, object()])
def test_what_is_no_codec_is_refused(chappe_log: Log, wrong: object) -> None:
    with pytest.raises(UsageError, match="codec"):
        Producer("t", codec=wrong)
    with pytest.raises(UsageError, match="codec"):
        Consumer("t", codec=wrong)


def test_a_dead_letter_topic_is_not_read_itself(chappe_log: Log) -> None:
    with pytest.raises(UsageError, match="among those that are read"):
        Consumer("t*", codec="json", dead_letter="t-dead")
    with (
        Consumer("other", codec="json", dead_letter="t-dead") as consumer,
        pytest.raises(UsageError, match="among those that are read"),
    ):
        consumer.subscribe("t*")
    with pytest.raises(UsageError, match="give codec"):
        Consumer("t", dead_letter="dead")


def test_members_for_asyncio_have_codecs(chappe_log: Log) -> None:
    async def main() -> None:
        async with AsyncProducer("t", codec=Reading) as producer:
            with pytest.raises(BadValue):
                await producer.send(5)
            await producer.send(Reading("a", 1.0))
            await producer.flush()
        chappe_log.write("t", b"\xff")
        async with AsyncConsumer("t", codec=Reading, dead_letter="dead") as consumer:
            assert [record.value async for record in consumer.to_end()] == [Reading("a", 1.0)]
            assert consumer.bad == 1
        async with AsyncConsumer("t", codec=Reading) as consumer:
            with pytest.raises(BadValue):
                assert [record async for record in consumer.to_end()] == []

    asyncio.run(main())
    assert [record.value for record in chappe_log.read("dead")] == [b"\xff"]
