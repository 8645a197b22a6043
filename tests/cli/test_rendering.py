from __future__ import annotations

import json

import msgspec.structs
from hypothesis import given
from hypothesis import strategies as st

from chappe.api.log.lines import as_json, as_length, as_raw
from chappe.bridges.form import pack, recorded
from chappe.cli.formats import as_text, consumed_lines, looks_consumed, message_as_json, message_as_text
from chappe.data.binary import encode
from chappe.data.json import loads_message
from chappe.data.scalars import Count
from chappe.data.zeek import Batch as ZeekBatch
from chappe.data.zeek import Event
from chappe.log.batch import Batch, Record, encode_batch
from chappe.mesh.messages import Message

RECORD = Record(
    "metrics", "8f14e45f-ceea-467f-9c3d-aaaaaaaaaaaa", 7, 1_700_000_000_000_001, b"cpu", b"12.5", (("h", b"\xff"),)
)


def test_raw_is_the_value_and_a_newline() -> None:
    assert as_raw(RECORD) == b"12.5\n"
    assert as_raw(msgspec.structs.replace(RECORD, value=None)) == b"\n"


def test_length_is_what_produce_reads() -> None:
    assert as_length(RECORD) == b"\0\0\0\x0412.5"


def test_text_is_one_line_for_people() -> None:
    assert as_text(RECORD) == b"2023-11-14T22:13:20.000001Z  metrics/8f14e45f@7  cpu  12.5\n"
    assert as_text(msgspec.structs.replace(RECORD, key=None, value=None)).endswith(b"metrics/8f14e45f@7  (no value)\n")
    hostile = as_text(msgspec.structs.replace(RECORD, value=b"a\n\x1b[2J\xff\tb"))
    assert hostile.endswith(b"cpu  a\\n\\x1b[2J\\xff\tb\n")


def test_json_has_everything() -> None:
    assert json.loads(as_json(RECORD)) == {
        "topic": "metrics",
        "partition": "8f14e45f-ceea-467f-9c3d-aaaaaaaaaaaa",
        "offset": 7,
        "timestamp": "2023-11-14T22:13:20.000001Z",
        "key": "cpu",
        "value": "12.5",
        "headers": [["h", {"base64": "/w=="}]],
    }
    assert json.loads(as_json(msgspec.structs.replace(RECORD, key=None, value=None)))["value"] is None


@given(st.binary(max_size=40), st.text(max_size=10), st.integers(-(2**63), 2**63 - 1))
def test_any_record_is_one_line_of_text_and_of_json(value: bytes, topic: str, timestamp: int) -> None:
    name = topic.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    record = msgspec.structs.replace(RECORD, value=value, topic=name, timestamp=timestamp)
    assert as_json(record).count(b"\n") == 1
    json.loads(as_json(record))
    assert as_text(msgspec.structs.replace(record, topic="t")).count(b"\n") == 1


# -- records of messages of the mesh --------------------------------------------------------------------------


def message_of(payload: bytes) -> Record:
    return msgspec.structs.replace(RECORD, key=b"zeek/a", value=payload)


def test_messages_are_shown_as_subscribe_shows_them() -> None:
    begin = b"2023-11-14T22:13:20.000001Z  metrics/8f14e45f@7  zeek/a  "
    assert message_as_text(message_of(encode((1, Count(5))))) == begin + b'[1, {"@data-type": "count", "data": 5}]\n'
    assert message_as_text(message_of(Event("ping", "a", Count(1)).encode())) == begin + b'ping("a", count:1)\n'
    batch = ZeekBatch([Event("one"), Event("two", 2)])
    assert message_as_text(message_of(batch.encode())) == begin + b"one(); two(2)\n"
    assert message_as_text(message_of(b"\xff")) == begin + b"\\xff\n"  # no value


def test_messages_as_json_have_their_value_typed_and_are_records_again() -> None:
    line = message_as_json(message_of(encode(Count(5))))
    found = json.loads(line)
    assert loads_message(json.dumps(found.pop("message"))) == ("zeek/a", 5)
    assert found == json.loads(as_json(message_of(encode(Count(5)))))
    assert looks_consumed(line)
    ((record,),) = consumed_lines([line])
    assert not isinstance(record, bytes)
    assert (record.key, record.value) == (b"zeek/a", encode(Count(5)))
    for payload in (b"\xff", encode(float("nan"))):  # no value, and none that JSON has
        assert json.loads(message_as_json(message_of(payload)))["message"] is None


def test_only_what_was_recorded_is_a_message() -> None:
    message = Message(b"zeek/a", encode(1), sender=bytes(16))
    ((_, raw),) = pack([message, message], 0, 5)
    assert recorded(Batch.parse(raw)) == [True, True]
    assert recorded(Batch.parse(encode_batch(0, [b"a"], 5))) == []
    others = encode_batch(0, [b"a", b"b"], 5, keys=[b"k", b"k"], headers=[b"", b"\xff\xff"])
    assert recorded(Batch.parse(others)) == [False, False]
