"""Spark's progress as numbers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from chappe.observing.snapshot import ObservedLag, ObservedQuery
from chappe.spark.pipeline.progress import LOOKS_MAX, Tracker


def progress(batch: int, head: dict[str, Any] | None, end: dict[str, Any], **more: Any) -> dict[str, Any]:
    source = {"latestOffset": json.dumps(head), "endOffset": json.dumps(end)}
    return {"batchId": batch, "timestamp": "2026-01-01T00:00:00Z", "numInputRows": 10, "sources": [source], **more}


def test_rates_state_and_totals() -> None:
    tracker = Tracker("q")
    state = [
        {"numRowsTotal": 3, "memoryUsedBytes": 100, "numRowsDroppedByWatermark": 2},
        {"numRowsTotal": 4, "memoryUsedBytes": 200, "numRowsDroppedByWatermark": 0},
    ]
    more = {
        "batchDuration": 250,
        "inputRowsPerSecond": 40.0,
        "processedRowsPerSecond": float("inf"),
        "stateOperators": state,
        "eventTime": {"watermark": "2026-01-01T00:00:05.000Z"},
    }
    for batch in range(2):
        found = tracker.take(progress(batch, {"t": {"p": 10}}, {"t": {"p": 10}}, **more), now=float(batch))
    assert (found.rows_in_s, found.rows_processed_s, found.batch_s) == (40.0, 0.0, 0.25)
    assert (found.state_rows, found.state_bytes, found.late_rows) == (7, 300, 4)
    assert (found.rows, found.batches, found.batch) == (20, 2, 1)
    assert found.watermark == "2026-01-01T00:00:05.000Z"
    assert tracker.idle().rows_in_s == 0.0
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(found))), ObservedQuery) == found


def test_lag_in_records_is_what_the_stores_have_more() -> None:
    found = Tracker("q").take(
        progress(0, {"a": {"p": 10, "q": 5}, "b": {"p": 7}}, {"a": {"p": 4}, "b": {"p": 7}}), now=0.0
    )
    assert [(each.topic, each.records) for each in found.lag] == [("a", 11), ("b", 0)]
    assert found.lag_records == 11
    assert found.lag[1].seconds == 0.0


def test_lag_in_seconds_is_how_long_ago_the_topic_was_that_long() -> None:
    tracker = Tracker("q")
    tracker.take(progress(0, {"t": {"p": 100}}, {"t": {"p": 100}}), now=10.0)
    tracker.take(progress(1, {"t": {"p": 200}}, {"t": {"p": 150}}), now=20.0)
    found = tracker.take(progress(2, {"t": {"p": 300}}, {"t": {"p": 150}}), now=30.0)
    assert found.lag_s == 15.0  # it was 150 long at 15.0


def test_lag_before_the_first_look_follows_from_the_pace() -> None:
    tracker = Tracker("q")
    first = tracker.take(progress(0, {"t": {"p": 1000}}, {"t": {"p": 100}}), now=0.0)
    assert first.lag[0].seconds is None
    assert first.lag_s is None
    second = tracker.take(progress(1, {"t": {"p": 1100}}, {"t": {"p": 500}}), now=1.0)
    assert second.lag_s == pytest.approx(6.0)  # 600 records at 100 a second


def test_a_topic_that_rests_has_no_pace() -> None:
    tracker = Tracker("q")
    for batch in range(5):
        found = tracker.take(progress(batch, {"t": {"p": 1000}}, {"t": {"p": 100 * batch}}), now=float(batch))
    assert found.lag_s is None
    assert tracker.take(progress(5, {"t": {"p": 1000}}, {"t": {"p": 1000}}), now=6.0).lag_s == 0.0


def test_bytes_of_the_lag_are_those_that_the_source_says() -> None:
    heads: Any = {"": {"a": 700}, "a": {"p": 20}, "b": {"p": 5}}
    found = Tracker("q").take(progress(1, heads, {"a": {"p": 13}, "b": {"p": 5}}), now=0.0)
    assert [(each.topic, each.records, each.bytes) for each in found.lag] == [("a", 7, 700), ("b", 0, 0)]
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(found))), ObservedQuery) == found
    older = msgspec.to_builtins(found) | {"lag": [{"topic": "a", "records": 7, "seconds": None}]}
    assert msgspec.convert(older, ObservedQuery).lag == (ObservedLag("a", 7, None),)


def test_a_topic_read_twice_lags_as_its_slower_reader() -> None:
    given = progress(0, {"t": {"p": 10}}, {"t": {"p": 9}})
    given["sources"] += progress(0, {"t": {"p": 10}}, {"t": {"p": 3}})["sources"]
    assert [each.records for each in Tracker("q").take(given, now=0.0).lag] == [7]


@pytest.mark.parametrize("head", [None, {"": {"": -1}}, {"t": {"p": -1}}, [1], {"t": 3}])
def test_offsets_that_are_no_numbers_are_no_lag(head: Any) -> None:
    found = Tracker("q").take(progress(0, head, {"": {"": -1}}), now=0.0)
    assert found.lag_records == 0


def test_memory_of_a_topics_lengths_is_bounded() -> None:
    tracker = Tracker("q")
    for n in range(5 * LOOKS_MAX):
        tracker.take(progress(n, {"t": {"p": n}}, {"t": {"p": 0}}), now=float(n))
    looks = tracker._paces["t"].looks
    assert len(looks) <= LOOKS_MAX
    assert (looks[0], looks[-1]) == ((0.0, 0), (5 * LOOKS_MAX - 1.0, 5 * LOOKS_MAX - 1))
