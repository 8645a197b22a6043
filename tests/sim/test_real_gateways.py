"""Worlds of gateways that users' objects play: promises are kept, and what breaks them is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.worlds.real_gateways import RealGateways

from chappe.api.mesh.gateway import _GatewayPorts
from chappe.core import Send

Patch = pytest.MonkeyPatch


def test_users_get_what_is_promised_between_domains() -> None:
    failed = {seed: failure for seed in range(8) if (failure := RealGateways(seed).play().failure) is not None}
    assert failed == {}  # replay with: python -m tests.worlds --scenario gateway-real --seed N -v


def test_a_seed_plays_the_same_domains_every_time() -> None:
    told: tuple[list[str], list[str]] = ([], [])
    outcomes = [RealGateways(0, tell=each.append).play() for each in told]
    assert outcomes[0] == outcomes[1]
    assert told[0] == told[1]
    assert len(told[0]) > 5


def looks_once(patch: Patch) -> None:
    """What changes in the networks later is not told to the core."""
    look = _GatewayPorts._look_at_networks

    def careless(ports: Any, now: float) -> None:
        if ports._settled == [-1, -1]:
            look(ports, now)

    patch.setattr(_GatewayPorts, "_look_at_networks", careless)


def passes_one_way(patch: Patch) -> None:
    """What comes on the second side stays there."""
    passes = _GatewayPorts._pass
    patch.setattr(_GatewayPorts, "_pass", lambda ports, side, now: passes(ports, 0, now))


def publishes_twice(patch: Patch) -> None:
    """What was published is not forgotten."""
    send = _GatewayPorts.send

    def careless(ports: Any, effect: Send) -> None:
        send(ports, effect)
        send(ports, effect)

    patch.setattr(_GatewayPorts, "send", careless)


def is_deaf(patch: Patch) -> None:
    """Endpoints that have news wake nobody."""
    patch.setattr(_GatewayPorts, "_news", lambda ports, side: None)
    patch.setattr("chappe.api.mesh.gateway.LOOK_S", 1_000.0)


def forgets_what_has_no_room(patch: Patch) -> None:
    """What an endpoint does not take is lost."""
    publish = _GatewayPorts._publish

    def careless(ports: Any, side: int) -> bool:
        done = publish(ports, side)
        ports._waiting[side].clear()
        return done

    patch.setattr(_GatewayPorts, "_publish", careless)


FAULTS = (  # and a world that shows each
    (looks_once, 0),
    (passes_one_way, 0),
    (publishes_twice, 0),
    (is_deaf, 0),
    (forgets_what_has_no_room, 24),
)


@pytest.mark.parametrize(("fault", "seed"), FAULTS)
def test_a_fault_of_a_gateways_ports_is_found(fault: Callable[[Patch], None], seed: int, monkeypatch: Patch) -> None:
    assert RealGateways(seed).play().failure is None
    fault(monkeypatch)
    assert RealGateways(seed).play().failure is not None
