"""What a sink commits at our store is read by original consumers as from any producer; there is none."""

from __future__ import annotations

import pytest
from tests.api.sinks import TestSink
from tests.interop.network import Network, take

from chappe.transports.queries import StoreClient

pytestmark = [pytest.mark.interop, pytest.mark.process]


def test_original_consumers_and_stores_get_committed_batches(network: Network, topic: str) -> None:
    store = network.store()
    early = network.original_consumer(topic, from_beginning=True)
    client = StoreClient(store.endpoint, 20.0)
    sink = TestSink(client, store.store_id)
    sink.attach()
    lines = [f"{batch}.{n}" for batch in range(3) for n in range(500)]
    for batch in range(3):
        mine = [line.encode() for line in lines[500 * batch : 500 * (batch + 1)]]
        wasted = sink.stage(batch, 0, [(topic, [b"never committed"])], attempt=1)
        assert wasted[3] == 1
        sink.commit(batch, [sink.stage(batch, 1, [(topic, mine[250:])]), sink.stage(batch, 0, [(topic, mine[:250])])])
        early.expect(500 * (batch + 1))
    client.close()
    assert early.contents(topic) == lines

    network.original_store()
    late = network.original_consumer(topic, from_beginning=True)
    late.expect(len(lines))
    assert late.contents(topic) == lines
    assert [record.value for record in take(network.consumer(topic), len(lines))] == [line.encode() for line in lines]
