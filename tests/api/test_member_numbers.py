"""Numbers and readiness of members, as Prometheus and probes see them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.api.chain_rig import Ledger, new_configuration
from tests.waiting import PATIENCE_S, until

from chappe import (
    ChainServer,
    Consumer,
    Endpoint,
    Forwarder,
    Gateway,
    GatewaySide,
    MapServer,
    Producer,
    SharedMap,
    Store,
    Tower,
    Witness,
)
from chappe.api.metrics import MemberNumbers, register
from chappe.errors import UsageError
from chappe.observing.numbers import MEMBER_NUMBERS, OTHER, SERIES_MAX, Family, merged, of_member
from chappe.testing import Log, World

# Numbers that no member has: those of commands.
OF_COMMANDS = ("chappe_archive_", "chappe_copy_", "chappe_record")


def samples(families: Iterable[Family]) -> dict[str, dict[tuple[str, ...], float]]:
    return {each.name: dict(each.samples) for each in families}


def test_every_member_tells_of_itself_and_every_number_that_is_named_is_told(tmp_path: Path) -> None:
    with ExitStack() as stack:
        tower = stack.enter_context(Tower("127.0.0.1:0", name="t"))
        store = stack.enter_context(Store(tmp_path / "s", tower=tower.address, name="s"))
        forwarder = stack.enter_context(Forwarder(tmp_path / "f", listen="127.0.0.1:0", name="f"))
        producer = stack.enter_context(Producer("orders", tower=tower.address, name="p"))
        producer.send("one")
        producer.flush(PATIENCE_S)
        consumer = stack.enter_context(Consumer("orders", group="billing", tower=tower.address, name="c"))
        assert consumer.poll(PATIENCE_S) is not None
        consumer.commit(timeout=PATIENCE_S)
        endpoint, other = stack.enter_context(Endpoint()), stack.enter_context(Endpoint())
        endpoint.peer("127.0.0.1", other.listen(), timeout=PATIENCE_S)
        master = stack.enter_context(endpoint.attach_master("prices"))
        gateway = stack.enter_context(Gateway(GatewaySide("plant", ["/a"]), GatewaySide("office")))
        server = stack.enter_context(MapServer("127.0.0.1:0"))
        shared = stack.enter_context(SharedMap(server.address))
        witness = stack.enter_context(Witness("127.0.0.1:0", path=tmp_path / "w"))
        configuration = new_configuration()
        chain = stack.enter_context(
            closing(ChainServer(Ledger(), configuration, configuration.names[0], directory=tmp_path / "chain"))
        )
        numbers = MemberNumbers(
            tower, store, forwarder, producer, consumer, endpoint, master, gateway, server, shared, witness, chain
        )
        found = samples(numbers.families())

        assert set(found) == {each for each in MEMBER_NUMBERS if not each.startswith(OF_COMMANDS)}
        ready = {kind: value for (kind, _), value in found["chappe_member_ready"].items()}
        assert ready.pop("chain server") == 0  # it is alone of three
        assert ready.pop("gateway") == 0  # its domains are not joined
        assert set(ready.values()) == {1}, numbers.unready()
        assert any(each.startswith(f"chain server {chain.name}: ") for each in numbers.unready())
        assert numbers.defects() == []
        assert found["chappe_store_topic_records"]["store", "s", "orders"] == 1
        assert found["chappe_group_lag_records"] == {("store", "s", "billing", "orders"): 0}
        assert found["chappe_consumer_lag_records"] == {("consumer", "c", "orders"): 0}
        assert found["chappe_endpoint_peers"] == {("endpoint", endpoint.id, "peered"): 1}


def test_a_store_whose_disk_refuses_is_not_ready_and_says_why(chappe_world: World, chappe_log: Log) -> None:
    chappe_log.write("t", "kept")
    with Producer("t") as producer:
        numbers = MemberNumbers(chappe_log.store)
        until(lambda: not numbers.unready())
        chappe_world.disk("store").refuse()
        producer.send("not yet")
        until(numbers.unready)
        assert "its disk refuses writes: " in numbers.unready()[0]
        assert numbers.defects() == []
        chappe_world.disk("store").allow()
        until(lambda: not numbers.unready())


def test_the_lag_of_a_group_is_told_in_records_and_seconds_by_the_store(tmp_path: Path) -> None:
    at_us = 1_700_000_000_000_000
    with Tower("127.0.0.1:0") as tower, Store(tmp_path, tower=tower.address, name="s") as store:
        with Producer("orders", tower=tower.address) as producer:
            for n in range(5):
                producer.send(str(n), timestamp=at_us + n * 1_000_000)
                producer.flush(PATIENCE_S)  # a batch, and so a time, for each
        with Consumer("orders", group="billing", tower=tower.address) as consumer:
            read = 0
            while read < 5:
                batch = consumer.poll(PATIENCE_S)
                assert batch is not None
                read += len(batch)
            ((key, _),) = consumer.position().items()
            consumer.commit({key: 2}, timeout=PATIENCE_S)
            (lag,) = store.groups()
        assert (lag.group, lag.topic, lag.records, lag.seconds) == ("billing", "orders", 3, 2.0)
        (kept,) = store.topics()
        assert (kept.topic, kept.partitions, kept.records, kept.newest_us) == ("orders", 1, 5, at_us + 4_000_000)


def test_series_are_few_and_a_gauge_has_the_rest_as_other() -> None:
    count = SERIES_MAX + 10
    topics = {f"t{n}": float(n) for n in range(count)}
    told = samples(
        of_member("store", "s", [("chappe_store_topic_records", topics), ("chappe_producer_records", topics)])
    )
    records = told["chappe_store_topic_records"]
    assert len(records) == SERIES_MAX + 1
    assert records["store", "s", OTHER] == sum(range(10))
    assert sum(records.values()) == sum(range(count))
    assert len(told["chappe_producer_records"]) == SERIES_MAX  # a sum of what changes would fall
    pairs = {("g", name): value for name, value in topics.items()}
    (lags,) = of_member("store", "s", [("chappe_group_lag_seconds", pairs)])
    assert dict(lags.samples)["store", "s", OTHER, OTHER] == 9


def test_a_topic_that_is_not_text_has_a_label_that_is() -> None:
    (family,) = of_member("store", "s", [("chappe_store_topic_records", {"\udcff": 1.0})])
    assert dict(family.samples) == {("store", "s", "\\xff"): 1.0}


def test_members_of_one_registry_are_told_apart_until_they_are_closed() -> None:
    registry = CollectorRegistry()
    with Tower("127.0.0.1:0", name="t") as one:
        register(one, registry)
        with Tower("127.0.0.1:0", name="t") as two:
            register(two, registry)
            text = generate_latest(registry).decode()
            assert 'chappe_member_ready{kind="tower",member="t"} 1.0' in text
            assert 'chappe_member_ready{kind="tower",member="t (2)"} 1.0' in text
        until(lambda: b"t (2)" not in generate_latest(registry))
        assert b'member="t"' in generate_latest(registry)


def test_anything_else_has_no_numbers() -> None:
    with pytest.raises(UsageError, match="a str has no numbers"):
        MemberNumbers("store")


def test_families_of_one_name_are_one() -> None:
    one, two = (Family("n", "m", "gauge", ("l",), [((each,), 1.0)]) for each in "ab")
    assert merged([one, two]) == [Family("n", "m", "gauge", ("l",), [(("a",), 1.0), (("b",), 1.0)])]
