"""Commands say what is news by the names of events: each is a class of events."""

from __future__ import annotations

import pytest

from chappe.cli import chain, gateway, kv_serve, maps_serve
from chappe.gateway import events as gateways
from chappe.kv import events as stores
from chappe.kv.chp import events as maps
from chappe.replication.binary_star import events as pairs
from chappe.replication.chain import events as chains

EVENTS = {name for module in (chains, gateways, maps, pairs, stores) for name in vars(module)}


@pytest.mark.parametrize(
    "names",
    [
        chain._ChainServerDisplay.NEWS, gateway._GatewayDisplay.NEWS, maps_serve._MapServerDisplay.NEWS,
        kv_serve._TOLD, kv_serve._WARNED, kv_serve._WRONG,
    ],
)  # fmt: skip
def test_what_is_news_is_an_event(names: frozenset[str]) -> None:
    assert names - EVENTS == set()
