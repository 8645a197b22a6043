"""Programs of the mesh, and data stores, in a test's own world."""

from __future__ import annotations

from chappe import Endpoint
from chappe.testing import World


def test_what_is_published_comes(chappe_world: World) -> None:
    with Endpoint() as one, Endpoint() as other, one.subscribe("alarms/") as heard:
        other.peer("127.0.0.1", one.listen(), timeout=10)
        other.publish("alarms/b", 95)
        received = heard.get(timeout=10)
        assert received is not None
        assert (received.topic, received.value) == ("alarms/b", 95)
        assert heard.get(timeout=300) is None
    assert chappe_world.now > 300


def test_a_clone_follows_its_master(chappe_world: World) -> None:
    with Endpoint() as one, Endpoint() as other:
        other.peer("127.0.0.1", one.listen(), timeout=10)
        master = one.attach_master("rooms")
        clone = other.attach_clone("rooms")
        clone.put("a", 20)
        assert clone.await_idle()
        assert master.get("a") == 20
        master.put("b", 30, expiry_s=5)
        chappe_world.wait_until(lambda: clone.get("b") == 30)
        chappe_world.advance(6)
        assert clone.get("b", None) is None
