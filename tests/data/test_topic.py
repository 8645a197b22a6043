"""Topic names, the filters that select them, and endpoints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.data.topic import Filter, check_topic, decode_topic, encode_topic, is_endpoint
from chappe.errors import UsageError


@given(st.binary(max_size=255).map(lambda raw: raw.replace(b"\0", b"")))
def test_any_bytes_without_nul_are_a_topic_and_come_back(raw: bytes) -> None:
    assert encode_topic(decode_topic(raw)) == raw


@pytest.mark.parametrize("topic", ["a" * 256, "é" * 128, "a\0b"])
def test_a_topic_that_cannot_travel_is_refused(topic: str) -> None:
    with pytest.raises(UsageError):
        encode_topic(topic)


def test_a_topic_of_exactly_255_bytes_can_travel() -> None:
    assert encode_topic("a" * 255) == b"a" * 255


def test_records_need_a_topic_with_a_name() -> None:
    assert check_topic("metrics") == "metrics"
    with pytest.raises(UsageError, match="at least one character"):
        check_topic("")


@pytest.mark.parametrize("topic", ["x*", "*", "a\tb", "\x1b[0m", "a\x7f", "a\x85"])
def test_a_topic_that_nobody_could_name_or_see_is_not_written_to_but_read(topic: str) -> None:
    with pytest.raises(UsageError, match=r"end in \*|control characters"):
        check_topic(topic)
    assert Filter.parse(topic).matches(topic)


def test_a_filter_is_a_name_or_a_prefix() -> None:
    assert Filter.parse("metrics") == Filter("metrics")
    assert Filter.parse("metrics.*") == Filter("metrics.", prefix=True)
    assert Filter.parse("*") == Filter("", prefix=True)
    for text in ("metrics", "metrics.*", "*"):
        assert str(Filter.parse(text)) == text


def test_a_name_selects_one_topic_and_a_prefix_all_that_start_with_it() -> None:
    """An original consumer of ``tp`` also gets the records of ``tpX``."""
    assert Filter.parse("tp").matches("tp")
    assert not Filter.parse("tp").matches("tpX")
    assert Filter.parse("tp*").matches("tp")
    assert Filter.parse("tp*").matches("tpX")
    assert not Filter.parse("tp*").matches("t")


@pytest.mark.parametrize("text", ["", "a" * 256, "a" * 256 + "*", "a\0*"])
def test_a_filter_that_no_topic_can_match_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Filter.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "tcp://127.0.0.1:5000",
        "tcp://[::1]:1",
        "tcp://fe80::1%eth0:1",
        "tcp://host.example:65535",
        "tcp://1password.example:1",
        "tcp://h:1#hub-1.x",
    ],
)
def test_endpoints_are_tcp(text: str) -> None:
    assert is_endpoint(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcp://",
        "tcp://h",
        "tcp://:1",
        "tcp://h:0",
        "tcp://h:65536",
        "tcp://h:²",
        "ipc://x:1",
        "tcp://a\0:1",
        "tcp://h:1#",
        "tcp://h:1#a b",
        "tcp://h#x",
        "tcp://*:1",
        "tcp://0.0.0.0:1",
        "tcp://[::]:1",
        "tcp://:::1",
        "tcp://[::ffff:0.0.0.0]:1",
        "tcp://224.0.0.1:1",
        "tcp://[ff02::1]:1",
        "tcp://255.255.255.255:1",
        "tcp://0:1",
        "tcp://127.1:1",
        "tcp://0x7f.0.0.1:1",
        "tcp://h.1:1",
        "tcp://10.0.0.1:0;10.0.0.2:1",
        "tcp://10.0.0.1;10.0.0.2:1",
        "tcp://user@h:1",
    ],
)
def test_everything_else_is_no_endpoint(text: str) -> None:
    assert not is_endpoint(text)
