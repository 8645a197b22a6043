"""An original consumer reads an ordered topic as any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.api.chain_rig import new_configuration
from tests.interop.network import Network, wait_until_stored
from tests.interop.originals import PATIENCE_S

from chappe import OrderedProducer, OrderedStore

pytestmark = [pytest.mark.interop, pytest.mark.process]

LINES = [f"line {n}" for n in range(1_000)]


def test_an_original_consumer_gets_what_a_chain_has_ordered_once_and_in_order(
    network: Network, topic: str, tmp_path: Path
) -> None:
    chain = new_configuration("ab")
    with (
        OrderedStore(tmp_path / "a", chain=chain, name="a", tower=network.tower) as one,
        OrderedStore(tmp_path / "b", chain=chain, name="b", tower=network.tower),
        OrderedProducer(topic, chain=chain, timeout=PATIENCE_S) as producer,
    ):
        for line in LINES:
            producer.send(line)
        producer.flush(PATIENCE_S)
        wait_until_stored(one, topic, len(LINES))

        consumer = network.original_consumer(topic, from_beginning=True)
        consumer.expect(len(LINES))

        assert consumer.contents(topic) == LINES
        assert {address for _, address, _ in consumer.lines} == set(producer.partitions)
