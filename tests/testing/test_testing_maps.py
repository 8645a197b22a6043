"""Shared maps and their server in a test's own world."""

from __future__ import annotations

from chappe import MapServer, SharedMap
from chappe.testing import World


def test_a_map_is_shared(chappe_world: World) -> None:
    with chappe_world.on("server"):
        server = MapServer("127.0.0.1:0")
    with SharedMap(server.address) as one, SharedMap(server.address) as other:
        one["a"] = b"20"
        chappe_world.wait_until(lambda: other.get("a") == b"20")
        other.set("b", b"30", ttl=60)
        assert one.compare_and_set("a", b"20", b"21")
        chappe_world.wait_until(lambda: one.get("b") == b"30")
        chappe_world.advance(62)
        assert one.get("b") is None


def test_a_session_value_ends_with_its_host(chappe_world: World) -> None:
    with chappe_world.on("server"):
        server = MapServer("127.0.0.1:0")
    with chappe_world.on("owner"):
        SharedMap(server.address).set("lock", b"mine", session=True)
    with SharedMap(server.address) as other:
        assert other["lock"] == b"mine"
        chappe_world.kill("owner")
        chappe_world.advance(15)
        assert "lock" not in other
