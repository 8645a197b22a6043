"""Records that a person looks for: the newest, from an offset or a moment on, and those that hold a text."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from tests.waiting import until

from chappe import Producer, Store, Tower
from chappe.api.times import as_micros
from chappe.dashboard.records import RecordQuery, as_lines, as_parquet, find
from chappe.data.topic import Filter
from chappe.errors import TimedOut, UsageError
from chappe.log.queries import Answer, Request
from chappe.reading.offsets import KnownPartition
from chappe.reading.selection import Selection
from chappe.reading.view import StoresView
from chappe.transports.queries import StoreClient

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, KnownPartition]]:
    """A topic of two partitions, a thousand records each, a second apart; the store runs while tests look."""
    directory: Path = tmp_path_factory.mktemp("records")
    with Tower("127.0.0.1:0") as tower, Store(directory / "s", tower=tower.address) as store:
        for partition in ("one", "two"):
            with Producer("t", tower=tower.address, identity=partition, directory=directory) as producer:
                for n in range(1_000):
                    producer.send(
                        f"{partition} {n} Straße".encode(),
                        key=b"k%d" % n,
                        headers={"unit": b"<b>%d</b>" % n} if n % 2 else None,
                        timestamp=EPOCH + timedelta(seconds=n),
                    )
                producer.flush()
        view = StoresView(Selection((Filter("", prefix=True),)), [store.endpoint])
        until(lambda: view.refresh() is not None and sum(each.next for each in view.known.values()) == 2_000)
        yield {partition: known for (_, partition), known in view.known.items()}
        view.close()


def partitions(held: dict[str, KnownPartition]) -> list[str]:
    return sorted(held)


def test_the_newest_come_first_over_all_partitions(held: dict[str, KnownPartition]) -> None:
    found = find("t", held, RecordQuery(count=4))

    assert [each.offset for each in found.records] == [999, 999, 998, 998]
    assert found.note == ""


def test_from_an_offset_on_the_oldest_come_first(held: dict[str, KnownPartition]) -> None:
    partition = partitions(held)[0]

    found = find("t", held, RecordQuery(count=3, partition=partition, offset=500))

    assert [(each.partition, each.offset) for each in found.records] == [(partition, n) for n in (500, 501, 502)]


def test_from_a_moment_on(held: dict[str, KnownPartition]) -> None:
    since = as_micros(EPOCH + timedelta(seconds=700))

    found = find("t", held, RecordQuery(count=4, since_us=since))

    assert [each.offset for each in found.records] == [700, 700, 701, 701]


def test_a_store_that_is_silent_is_asked_once_and_then_the_others(
    held: dict[str, KnownPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = "tcp://127.0.0.1:1"
    asked: list[Request] = []

    class Client(StoreClient):
        def ask(self, request: Request) -> tuple[Answer, Sequence[bytes | memoryview]]:
            if self.endpoint != silent:
                return super().ask(request)
            asked.append(request)
            raise TimedOut("silent")

    monkeypatch.setattr("chappe.dashboard.records.StoreClient", Client)
    after = {name: replace(known, holders=(silent, *known.holders)) for name, known in held.items()}

    found = find("t", after, RecordQuery(count=4, since_us=as_micros(EPOCH + timedelta(seconds=700))))

    assert [each.offset for each in found.records] == [700, 700, 701, 701]
    assert len(asked) == 1


@pytest.mark.parametrize("text", ["K123", "one 123", "<B>123"])
def test_a_text_is_found_in_key_value_or_header_upper_and_lower_case_alike(
    held: dict[str, KnownPartition], text: str
) -> None:
    found = find("t", held, RecordQuery(text=text))

    assert {each.offset for each in found.records} == {123}
    assert "looked through 2,000 records" in found.note


def test_a_search_that_is_bounded_says_so(held: dict[str, KnownPartition], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.dashboard.records.SEARCH_BYTES", 8_000)

    found = find("t", held, RecordQuery(text="one 1 "))

    assert found.records == ()
    assert "not through all" in found.note


def test_of_many_partitions_those_written_last_are_looked_into(held: dict[str, KnownPartition]) -> None:
    name, known = next(iter(held.items()))
    old = {f"old-{n}": KnownPartition(0, 1, 10, known.holders, 1, 1) for n in range(30)}

    found = find("t", {**old, name: known}, RecordQuery(count=1))

    assert "20 partitions written last, of 31" in found.note
    assert [each.partition for each in found.records] == [name]


def test_mistakes_are_sentences(held: dict[str, KnownPartition]) -> None:
    with pytest.raises(UsageError, match="choose the partition"):
        find("t", held, RecordQuery(offset=3))
    with pytest.raises(UsageError, match="no partition"):
        find("t", held, RecordQuery(partition="gone"))


def test_no_store_that_answers_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.dashboard.records.ANSWER_S", 0.05)
    with pytest.raises(TimedOut, match="No store that has partition p answers"):
        find("t", {"p": KnownPartition(0, 9, 90, ("tcp://127.0.0.1:1",), 1, 2)}, RecordQuery())


def test_what_is_found_is_saved_as_json_and_as_parquet(held: dict[str, KnownPartition]) -> None:
    found = find("t", held, RecordQuery(count=2)).records

    lines = [json.loads(each) for each in as_lines(found).splitlines()]
    rows = parquet.read_table(io.BytesIO(as_parquet(found))).to_pylist()

    assert [each["offset"] for each in lines] == [each["offset"] for each in rows] == [999, 999]
    assert lines[0]["headers"] == [["unit", "<b>999</b>"]]
    assert rows[0]["headers"] == [{"key": "unit", "value": b"<b>999</b>"}]
    assert rows[0]["timestamp"] == EPOCH + timedelta(seconds=999)
