"""Ordered topics with keys: who may write the chain, and who may read the topic."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until

from chappe import ChainConfiguration, Consumer, Keys, OrderedProducer, OrderedStore, Tower, read_topic
from chappe.api import permissions
from chappe.errors import NotPermitted

RULES = """
[[rules]]
allow = ["write", "attach-clone"]
names = ["writer"]
topics = ["orders"]

[[rules]]
allow = ["consume"]
names = ["reader"]
topics = ["t"]
"""


def test_who_may_write_the_chain_writes_and_who_may_consume_the_topic_reads(tmp_path: Path) -> None:
    home = tmp_path / "keys"
    permissions.init(home, "hub", "server")
    path = home / "permissions.toml"
    path.write_text(path.read_text().replace("[[rules]]", RULES + "\n[[rules]]", 1))
    permissions.sign(path)
    for name, role in (("hub2", "server"), ("writer", "nothing"), ("reader", "nothing")):
        permissions.add(home, name, role)
    first = free_ports(2)
    chain = ChainConfiguration({"a": f"hub@127.0.0.1:{first}", "b": f"hub2@127.0.0.1:{first + 1}"}, "orders")
    with (
        Tower("127.0.0.1:0", security=Keys(home / "hub")) as tower,
        OrderedStore(
            tmp_path / "a", chain=chain, name="a", tower=f"hub@{tower.address}", security=Keys(home / "hub")
        ) as one,
        OrderedStore(
            tmp_path / "b", chain=chain, name="b", tower=f"hub@{tower.address}", security=Keys(home / "hub2")
        ) as two,
        Consumer("t", tower=f"hub@{tower.address}", security=Keys(home / "reader")) as consumer,
        OrderedProducer("t", chain=chain, security=Keys(home / "writer"), timeout=PATIENCE_S) as producer,
    ):
        producer.append(["x"], timeout=PATIENCE_S)
        found: list[bytes | None] = []

        def come() -> bool:
            found.extend(each.value for each in consumer.poll(0.05) or ())
            return found == [b"x"]

        until(come)
        with pytest.raises(NotPermitted):
            OrderedProducer("t", chain=chain, security=Keys(home / "reader"), timeout=PATIENCE_S)
        stores = [one.endpoint, two.endpoint]
        assert read_topic("t", stores=stores, security=Keys(home / "reader")).num_rows == 1
