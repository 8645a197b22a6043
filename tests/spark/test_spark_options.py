"""Options: what is accepted, and the sentences for what is not."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.arrow import COLUMNS
from chappe.data.topic import Filter
from chappe.errors import UsageError
from chappe.reading.bounds import Moment
from chappe.reading.selection import Selection
from chappe.spark.options import NAMES, SINK_NAMES, Options, SinkOptions

STORE = "tcp://127.0.0.1:5558"


def test_the_usual_options() -> None:
    parsed = Options.parse({"stores": f"{STORE}, tcp://h:1", "SUBSCRIBE": "a, b", "startingOffsets": "earliest"})
    assert parsed.reading.stores == (STORE, "tcp://h:1")
    assert parsed.reading.selection.filters == (Filter("a"), Filter("b"))
    assert parsed.reading.starting == "earliest"
    assert parsed.reading.fail_on_data_loss
    assert parsed.reading.towers is None
    assert parsed.reading.columns == ("topic", "partition", "offset", "timestamp", "key", "value")


def test_without_stores_the_tower_of_this_machine_is_asked() -> None:
    assert Options.parse({"subscribePattern": "a.*"}).reading.towers == "127.0.0.1:5556"


def test_offsets_as_json_are_sorted() -> None:
    parsed = Options.parse({"subscribe": "t", "startingOffsets": '{"t": {"b": 5, "a": -1}}'})
    assert repr(parsed.reading.starting) == "{'t': {'a': -1, 'b': 5}}"


def test_a_moment_wins_over_offsets() -> None:
    given = {"subscribe": "t", "startingOffsets": "latest", "startingTimestamp": "1700000000000"}
    assert Options.parse(given).reading.starting == Moment(1_700_000_000_000_000)
    for text in ("2023-11-14T22:13:20Z", "2023-11-14T23:13:20+01:00"):
        assert Options.parse(given | {"startingTimestamp": text}).reading.starting == Moment(1_700_000_000_000_000)


def test_columns_are_those_named_in_their_order() -> None:
    given = {"subscribe": "t", "columns": "value, Offset"}
    assert Options.parse(given).reading.columns == ("value", "offset")
    assert Options.parse({"subscribe": "t", "includeHeaders": "true"}).reading.columns == COLUMNS


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("topic.*", ["topic", "topic1", "topic.a"], ["a.topic", "topi"]),  # as in Spark's guide to Kafka
        (".*", ["a", "b.c"], []),
        ("^metrics.*", ["metrics", "metricsx", "metrics.cpu"], ["a.metrics"]),
        (r"metrics\.(cpu|disk)", ["metrics.cpu", "metrics.disk"], ["metrics.cpux", "metrics.net"]),
        ("ab?c", ["ac", "abc"], ["abbc"]),
        ("a|b", ["a", "b"], ["c"]),
    ],
)
def test_a_pattern_is_matched_by_the_whole_name(pattern: str, matching: list[str], others: list[str]) -> None:
    found = Selection.of_pattern(pattern)
    (asked,) = found.filters
    assert all(found.has(topic, "p") and asked.matches(topic) for topic in matching)
    assert not any(found.has(topic, "p") for topic in others)


def test_single_partitions() -> None:
    found = Options.parse({"assign": '{"t": ["p", "q"], "u": ["p"]}'}).reading.selection
    assert found.filters == (Filter("t"), Filter("u"))
    assert found.has("t", "q")
    assert not found.has("u", "q")


def test_batches_of_a_stream_have_a_smallest_size() -> None:
    parsed = Options.parse({"subscribe": "t", "minRecordsPerTrigger": "10", "maxTriggerDelay": "2m"})
    assert (parsed.min_records, parsed.delay_s) == (10, 120.0)
    for wrong, text in (
        ({"minRecordsPerTrigger": "10", "maxRecordsPerTrigger": "5"}, "`minRecordsPerTrigger` is 10, and"),
        ({"maxTriggerDelay": "1m"}, "`maxTriggerDelay` ends the wait for `minRecordsPerTrigger`"),
        ({"minRecordsPerTrigger": "1", "maxTriggerDelay": "soon"}, "`maxTriggerDelay` is a duration such as"),
        ({"minOffsetsPerTrigger": "1"}, "did you mean `minRecordsPerTrigger`"),
        ({"maxRecordsPerPartition": "0"}, "`maxRecordsPerPartition` is a whole number of at least 1"),
    ):
        with pytest.raises(UsageError, match=text):
            Options.parse({"subscribe": "t"} | wrong)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "exactly one of `subscribe`"),
        ({"subscribe": "a", "subscribePattern": "b*"}, "exactly one"),
        ({"subscribe": "a", "assign": '{"a": ["p"]}'}, "exactly one"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": "a*"}, "for others use `subscribePattern`"),
        ({"subscribePattern": "a(.+"}, r"`subscribePattern`: not a regular expression for topics: a \( without its \)"),
        ({"subscribePattern": "*"}, r"for a \* of file names write \.\*"),
        ({"assign": '{"a": "p"}'}, "`assign` is JSON such as"),
        ({"assign": "{}"}, "`assign` is JSON such as"),
        ({"subscribe": "a", "stores": "localhost:1"}, "tcp://host:port"),
        ({"subscribe": "a", "stores": STORE, "towers": "h"}, "not both"),
        ({"subscribe": "a", "tower": "h"}, "did you mean `towers`?"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "h:1"}, "did you mean `towers` or `stores`?"),
        ({"subscribe": "a", "kafka.security.protocol": "SSL"}, "no Kafka clients to configure"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "1"}, "did you mean `maxRecordsPerTrigger`?"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": "{}"}, "did you mean `startingTimestamp`?"),
        ({"subscribe": "a", "endingOffsetsByTimestamp": "{}"}, "did you mean `endingTimestamp`?"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "error"}, "starts at its end"),
        ({"subscribe": "a", "startingOfsets": "1"}, "did you mean `startingOffsets`?"),
        ({"subscribe": "a", "zzz": "1"}, "unknown option `zzz` of format chappe: there are stores, towers"),
        ({"subscribe": "a", "startingOffsets": "first"}, '`startingOffsets` is "earliest", "latest" or JSON'),
        ({"subscribe": "a", "startingOffsets": "[1]"}, "or JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"p": -3}}'}, "or JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"p": 1.5}}'}, "or JSON"),
        ({"subscribe": "a", "startingOffsets": '{"b": {"p": 1}}'}, "'b', which is not subscribed to"),
        ({"assign": '{"a": ["p"]}', "startingOffsets": '{"a": {"q": 1}}'}, "'q' of topic 'a', which is not assigned"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "nothing would be read"),
        ({"subscribe": "a", "startingTimestamp": "yesterday"}, "`startingTimestamp` is milliseconds since 1970"),
        ({"subscribe": "a", "startingTimestamp": "2023-11-14T22:13:20"}, "a time with its zone"),
        ({"subscribe": "a", "startingTimestamp": "-5"}, "milliseconds since 1970"),
        ({"subscribe": "a", "maxRecordsPerTrigger": "0"}, "a whole number of at least 1"),
        ({"subscribe": "a", "maxBytesPerTrigger": "1m"}, "a whole number of at least 1"),
        ({"subscribe": "a", "minPartitions": "many"}, "a whole number of at least 1"),
        ({"subscribe": "a", "failOnDataLoss": "yes"}, "true or false"),
        ({"subscribe": "a", "fetchTimeout": "nan"}, "a number of seconds above 0"),
        ({"subscribe": "a", "columns": "ofset"}, "did you mean offset?"),
        ({"subscribe": "a", "columns": "key,key"}, "twice"),
        ({"subscribe": "a", "columns": "key", "includeHeaders": "true"}, "has no headers"),
    ],
)
def test_mistakes_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Options.parse(options)


PIECES = [
    *("0", "5", *"-.:,*[](){}t", "nan", "inf", "true", "earliest", "latest", "tcp://a:1", "key", "value"),
    *('{"t":', '{"t":{"p":', "}}", '"', "null", "1e400", "9" * 25, "9" * 5000, "2026-01-31", "T12:00", "Z", "\ud800"),
]
values = st.lists(st.sampled_from(PIECES), max_size=5).map("".join) | st.text(max_size=20)


@given(st.dictionaries(st.sampled_from(NAMES), values, max_size=4))
def test_any_options_of_a_read_are_taken_or_refused(options: dict[str, str]) -> None:
    with suppress(UsageError):
        Options.parse(options)


@given(st.dictionaries(st.sampled_from(SINK_NAMES), values, max_size=4))
def test_any_options_of_a_write_are_taken_or_refused(options: dict[str, str]) -> None:
    with suppress(UsageError):
        SinkOptions.parse(options)
