"""Spark, readers without it, and processes that they start, with stores that have keys; nothing shows a secret."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.waiting import PATIENCE_S, SPARK_S, until

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from chappe import Consumer, Keys, Producer, Store, Tower, read_batches, read_topic
from chappe.api import permissions
from chappe.errors import ChappeError, Sealed, UsageError
from chappe.spark.options import Options, SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSPHRASE = "open-sesame-4711"


class Place:
    """A tower and a store with keys."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home = home
        hub = Keys(home / "hub")
        self.tower = stack.enter_context(Tower("127.0.0.1:0", security=hub)).address
        store = Store(home.parent / "kept", tower=self.tower, security=hub)
        self.store = stack.enter_context(store)

    def keys(self, name: str) -> Keys:
        return Keys(self.home / name, PASSPHRASE if name == "locked" else None)

    def secrets(self) -> list[str]:
        """What must not be seen anywhere: lines of private keys, and the passphrase."""
        lines = [line for each in self.home.glob("*.key") for line in each.read_text().splitlines()]
        return [PASSPHRASE, *(each for each in lines if len(each) > 40)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.delenv("CHAPPE_IDENTITY", raising=False)
    home = tmp_path / "keys"
    permissions.init(home, "hub", "server")
    permissions.add(home, "all", "member")
    permissions.add(home, "writer", "producer")
    permissions.add(home, "locked", "member", passphrase=PASSPHRASE)
    with ExitStack() as stack:
        yield Place(home, stack)


def send(place: Place, topic: str, *values: bytes) -> None:
    with Producer(topic, tower=place.tower, security=place.keys("all"), min_acks=1) as producer:
        producer.send_many(values)
        producer.flush(PATIENCE_S)


def test_readers_without_spark_take_an_identity(place: Place) -> None:
    send(place, "t", b"1", b"2")
    for keys in (place.keys("all"), place.keys("locked")):
        found = read_topic("t", tower=place.tower, security=keys)
        assert [bytes(each) for each in found["value"].to_pylist()] == [b"1", b"2"]
    batches = read_batches("t", stores=[place.store.endpoint], security=place.keys("all"))
    assert sum(each.num_rows for each in batches) == 2
    with pytest.raises(UsageError, match="has keys, and we have none"):
        read_topic("t", stores=[place.store.endpoint])
    with pytest.raises(ChappeError, match="t"):
        read_topic("t", tower=place.tower, security=place.keys("writer"))


@pytest.mark.spark
def test_spark_reads_and_writes_by_an_identity_and_shows_no_secret(
    spark: SparkSession, place: Place, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    send(place, "t", *(b"%d" % n for n in range(1_000)))
    where = {"towers": place.tower, "identity": str(place.home / "all")}
    frame = spark.read.format("chappe").options(subscribe="t", minPartitions="2", **where).load()
    assert frame.count() == 1_000
    rows = frame.selectExpr("value")
    rows.write.format("chappe").mode("append").options(topic="u", **where).save()
    assert read_topic("u", tower=place.tower, security=place.keys("all")).num_rows == 1_000

    stream = spark.readStream.format("chappe").options(subscribe="t", startingOffsets="earliest", **where).load()
    given = {"topic": "v", "checkpointLocation": str(tmp_path / "checkpoint")} | where
    query = stream.selectExpr("value").writeStream.format("chappe").options(**given).trigger(availableNow=True).start()
    assert query.awaitTermination(SPARK_S)
    assert read_topic("v", tower=place.tower, security=place.keys("all")).num_rows == 1_000

    said = [repr(frame), str(query.lastProgress), repr(Options.parse({"subscribe": "t"} | where))]
    said += [repr(SinkOptions.parse({"topic": "t"} | where))]
    rows.explain(extended=True)
    query.explain(extended=True)
    for wrong in ("nobody", "writer"):
        other = {"towers": place.tower, "identity": str(place.home / wrong)}
        with pytest.raises(PySparkException) as refused:
            spark.read.format("chappe").options(subscribe="t", fetchTimeout="0.1", **other).load().count()
        said.append(str(refused.value))
    said += [each.read_text(errors="replace") for each in (tmp_path / "checkpoint").rglob("*") if each.is_file()]
    said += capfd.readouterr()
    for secret in place.secrets():
        assert not any(secret in each for each in said)


@pytest.mark.spark
def test_spark_writes_into_a_sealed_topic_what_only_its_group_reads(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    permissions.add(place.home, "eve", "consumer")
    permissions.seal(place.home, "ward", ["secret/*"], names=["all"])
    where = {"towers": place.tower, "identity": str(place.home / "all")}
    frame = spark.range(1_000).selectExpr("concat('planted ', id) AS value").repartition(3)
    frame.write.format("chappe").mode("append").options(topic="secret/a", **where).save()
    found = read_topic("secret/a", tower=place.tower, security=place.keys("all"))
    wanted = sorted(b"planted %d" % n for n in range(1_000))
    assert sorted(found.column("value").to_pylist()) == wanted

    stream = spark.readStream.format("chappe").options(subscribe="secret/a", startingOffsets="earliest", **where).load()
    given = {"topic": "secret/b", "checkpointLocation": str(tmp_path / "checkpoint")} | where
    query = stream.selectExpr("value").writeStream.format("chappe").options(**given).trigger(availableNow=True).start()
    assert query.awaitTermination(SPARK_S)
    back = spark.read.format("chappe").options(subscribe="secret/b", minPartitions="2", **where).load()
    assert sorted(bytes(row.value) for row in back.collect()) == wanted

    with pytest.raises(Sealed, match="eve is not of the group ward"):
        read_topic("secret/b", tower=place.tower, security=place.keys("eve"))
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"planted" in each for each in kept)


def test_processes_that_share_the_work_have_no_secret_in_their_command_lines(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.subscribers import working

    from chappe import ShardedConsumer

    if not os.path.isdir("/proc/self"):
        pytest.skip("needs /proc")
    monkeypatch.setenv(working.PLACE, str(tmp_path))
    send(place, "t", b"1", b"2")
    with ShardedConsumer(
        working.note, "t", workers=1, tower=place.tower, identity="me", reader_per_topic=True,
        directory=tmp_path / "state", security=place.keys("locked"),
    ) as sharded:  # fmt: skip
        thread = threading.Thread(target=sharded.run)
        thread.start()
        try:
            until(lambda: sharded.progress().done == 2, "all is done")
            for pid in sharded.workers():
                said = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                assert "reader_process" in said
                assert not any(secret in said for secret in place.secrets())
        finally:
            sharded.stop()
            thread.join()
    assert PASSPHRASE not in repr(sharded)
    with Consumer("t", tower=place.tower, security=place.keys("locked")) as consumer:
        assert not any(secret in repr(each) for secret in place.secrets() for each in (consumer, place.keys("locked")))
