"""A query that begins anew is told from one that goes on, and asked whether it is meant to write again."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.spark.fake_sink import FakeSink

pytest.importorskip("pyspark")

from chappe.errors import UsageError
from chappe.reading.fetch import forget_client
from chappe.spark import home as home_module
from chappe.spark.home import Origin, Sink, SinkStores, begin, origins_of

ORIGINS = origins_of({"checkpointLocation": "/data/checkpoint", "queryName": "counts"}, "t")


@pytest.fixture
def two() -> Iterator[tuple[FakeSink, FakeSink]]:
    with FakeSink("A") as one, FakeSink("B") as other:
        yield one, other
        for each in (one, other):
            forget_client(each.endpoint)


def stores(*made: FakeSink) -> SinkStores:
    return SinkStores(tuple(each.endpoint for each in made), None, 0.5)


def query() -> Sink:
    return Sink(str(uuid4()), str(uuid4()), lasting=True)


def start(
    sink: Sink, *made: FakeSink, batch: int = 0, origins: tuple[Origin, ...] = ORIGINS, again: str | None = None
) -> None:
    begin(stores(*made), sink, batch, origins, again)


def commit(sink: Sink, batch: int, *made: FakeSink) -> None:
    """As if the home had committed so much."""
    for each in made:
        if each.sink(sink.name).home == each.store_id:
            each.sink(sink.name).batch = batch


def test_a_query_goes_on_with_its_checkpoint(two: tuple[FakeSink, FakeSink]) -> None:
    first = query()
    start(first, *two)
    commit(first, 5, *two)
    again = Sink(first.name, str(uuid4()), lasting=True)
    start(again, *two, batch=5)  # killed before Spark knew that it was committed
    start(again, *two, batch=6)


@pytest.mark.parametrize("kept", [ORIGINS[:1], ORIGINS[1:]], ids=["place", "name"])
def test_a_query_without_its_checkpoint_is_refused_until_it_is_meant(
    two: tuple[FakeSink, FakeSink], kept: tuple[Origin, ...]
) -> None:
    first, second, third = query(), query(), query()
    start(first, *two)
    commit(first, 2, *two)
    for wrong in (None, str(uuid4())):
        with pytest.raises(UsageError, match=f"has written 3 batches here.*set `writeAgain` to {first.name}"):
            start(second, *two, origins=kept, again=wrong)
    assert all(not each.sink(second.name).home for each in two)

    start(second, *two, again=first.name)
    commit(second, 0, *two)

    start(second, *two, batch=1)  # it goes on without a word
    with pytest.raises(UsageError, match=f"has written a batch here.*set `writeAgain` to {second.name}"):
        start(third, *two, again=first.name)  # the word was for the first query alone


def test_a_query_that_has_written_nothing_is_not_in_the_way(two: tuple[FakeSink, FakeSink]) -> None:
    start(query(), *two)
    start(query(), *two)


def test_one_store_is_enough_to_know(two: tuple[FakeSink, FakeSink]) -> None:
    first = query()
    start(first, *two)
    commit(first, 0, *two)
    home = next(each for each in two if each.sink(first.name).home == each.store_id)
    other = next(each for each in two if each is not home)
    with pytest.raises(UsageError, match=f"to the store {home.store_id}, which is not there,"):
        start(query(), other)


def test_other_places_names_and_topics_are_other_queries(two: tuple[FakeSink, FakeSink]) -> None:
    first = query()
    start(first, *two)
    commit(first, 0, *two)
    for options, topic in (
        ({"checkpointLocation": "/data/other", "queryName": "others"}, "t"),
        ({"checkpointLocation": "/data/checkpoint", "queryName": "counts"}, "u"),
        ({}, "t"),
    ):
        start(query(), *two, origins=origins_of(options, topic))


def test_a_checkpoint_that_is_an_older_copy_is_refused(two: tuple[FakeSink, FakeSink]) -> None:
    first = query()
    start(first, *two)
    commit(first, 7, *two)
    with pytest.raises(
        UsageError, match="is at batch 3, and has committed batch 7 already: its checkpoint is an older"
    ):
        start(Sink(first.name, str(uuid4()), lasting=True), *two, batch=3)


def test_a_checkpoint_that_is_brought_back_goes_on(two: tuple[FakeSink, FakeSink]) -> None:
    first, second = query(), query()
    start(first, *two)
    commit(first, 0, *two)
    start(second, *two, again=first.name)
    start(Sink(first.name, str(uuid4()), lasting=True), *two, batch=1)


def test_a_place_is_the_same_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def place(text: str) -> str:
        (found,) = origins_of({"checkpointlocation": text}, "t")
        return found.text

    monkeypatch.chdir(tmp_path)
    assert place("c") == place("./c/") == place(f"{tmp_path}/x/../c") == place(f"file:{tmp_path}/c")
    assert place("c") == place(f"file://{tmp_path}/c") == f"checkpoint {platform.node()}:{tmp_path}/c"
    assert place("hdfs://host/c/") == place("hdfs://host/c") == "checkpoint hdfs://host/c"


def test_stores_that_are_elsewhere_by_now_remember_too(
    two: tuple[FakeSink, FakeSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_module, "FIND_S", 0.3)
    monkeypatch.setattr(home_module, "discover", lambda *_, **__: two)
    before = SinkStores(("tcp://127.0.0.1:1",), "a tower", 10.0)  # where they were
    first = query()
    begin(before, first, 0, ORIGINS, None)
    commit(first, 0, *two)
    with pytest.raises(UsageError, match="has written a batch here"):
        begin(before, query(), 0, ORIGINS, None)


def test_the_stores_are_asked_little(two: tuple[FakeSink, FakeSink], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_module, "FIND_S", 5.0)
    first = query()
    start(first, *two)
    commit(first, 0, *two)
    before = [sum(each.asked.values()) for each in two]
    start(first, *two, batch=1)
    assert all(sum(each.asked.values()) - was <= 4 for each, was in zip(two, before, strict=True))
