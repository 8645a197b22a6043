"""Messages that are written or read together are not dropped for it: the connections have room for them."""

from __future__ import annotations

from typing import Any

import pytest

from chappe import Endpoint
from chappe.testing import World


@pytest.mark.parametrize(
    ("options", "single", "batch"),
    [
        ({"peer_messages_max": 16}, ["x"] * 8, ["x"] * 16),
        ({"peer_messages_max": 64, "peer_bytes_max": 32_768}, ["x" * 2_000] * 60, []),
    ],
)
def test_nothing_is_dropped_for_a_peer_that_takes_all(
    chappe_world: World, options: dict[str, Any], single: list[str], batch: list[str]
) -> None:
    with chappe_world.on("publisher"):
        publisher = Endpoint(on_full="drop_oldest", **options)
    with publisher, Endpoint() as program, program.subscribe("a") as heard:
        publisher.peer("127.0.0.1", program.listen(), timeout=10)
        publisher.await_peer(program.id, 10)
        for value in single:
            publisher.publish("a", value)
        publisher.publish_batch(("a", value) for value in batch)
        chappe_world.wait_until(lambda: heard.available + publisher.dropped == len(single) + len(batch))
        assert publisher.dropped == 0


@pytest.mark.parametrize(("options", "size"), [({"peer_messages_max": 16}, 1), ({"peer_bytes_max": 8_192}, 2_000)])
def test_nothing_is_dropped_of_messages_that_are_read_together(
    chappe_world: World, options: dict[str, Any], size: int
) -> None:
    with chappe_world.on("hub"):
        hub = Endpoint(on_full="drop_newest", **options)
        port = hub.listen()
    with (
        hub,
        chappe_world.on("publisher"),
        Endpoint() as publisher,
        Endpoint() as program,
        program.subscribe("a") as heard,
    ):
        publisher.peer("127.0.0.1", port, timeout=10)
        program.peer("127.0.0.1", port, timeout=10)
        publisher.await_peer(program.id, 10)
        for _ in range(60):
            publisher.publish("a", "x" * size)
        chappe_world.wait_until(lambda: heard.available + hub.dropped == 60)
        assert hub.dropped == 0
