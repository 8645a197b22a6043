from __future__ import annotations

import json

import msgspec.structs
from hypothesis import given
from hypothesis import strategies as st

from chappe.cli.rendering import as_json, as_length, as_raw, as_text
from chappe.log.batch import Record

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
