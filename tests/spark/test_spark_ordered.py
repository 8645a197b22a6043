"""Spark reads an ordered topic, and a store of its chain is the home of what a sink writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.api.chain_rig import new_configuration
from tests.waiting import PATIENCE_S, until

from chappe import OrderedProducer, OrderedStore, read_topic

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_what_is_read_from_an_ordered_topic_is_written_once_at_a_store_of_its_chain(
    spark: SparkSession, tmp_path: Path, tower: str
) -> None:
    chain = new_configuration("ab")
    with (
        OrderedStore(tmp_path / "a", chain=chain, name="a", tower=tower) as one,
        OrderedStore(tmp_path / "b", chain=chain, name="b", tower=tower) as two,
        OrderedProducer("t", chain=chain, partitions=2, timeout=PATIENCE_S) as producer,
    ):
        for number in range(500):
            producer.send(b"%d" % number, key=b"%d" % (number % 7))
        producer.flush(PATIENCE_S)
        frame = spark.read.format("chappe").options(stores=f"{one.endpoint},{two.endpoint}", subscribe="t").load()
        written = frame.select("value").write.format("chappe").mode("append")
        for _ in range(2):
            written.options(stores=one.endpoint, topic="copy", writeId="today").save()

        expected = sorted(b"%d" % number for number in range(500))
        assert sorted(read_topic("copy", stores=one.endpoint)["value"].to_pylist()) == expected
        until(lambda: sorted(read_topic("t", stores=two.endpoint)["value"].to_pylist()) == expected)
        assert len(set(read_topic("t", stores=two.endpoint)["partition"].to_pylist())) == 2
