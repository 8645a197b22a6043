"""What a map server of this process knows of its crowd: who hears it, and that there is no room for more."""

from __future__ import annotations

import pytest
from tests.waiting import until

from chappe import MapServer, SharedMap
from chappe.kv.chp.events import MapServerFull
from chappe.kv.chp.server import MapServerCore
from chappe.runtime import map_ports


def test_who_leaves_is_heard_no_more_and_all_others_are_counted() -> None:
    with MapServer("127.0.0.1:0") as server:
        core = server._ports.core
        assert isinstance(core, MapServerCore)
        with SharedMap(server.address), SharedMap(server.address), SharedMap(server.address):
            until(lambda: server.status().clients == 3)
            assert core._hearers == 3
        until(lambda: core._hearers == 0)


def test_a_server_says_that_it_has_no_descriptors_for_further_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_ports, "has_descriptors", lambda: False)
    told: list[object] = []

    def heard() -> bool:
        told.extend(server.events())
        return bool(told)

    with MapServer("127.0.0.1:0") as server:
        until(heard)

    assert [str(each) for each in told if isinstance(each, MapServerFull)] == [
        "no further client can connect, 0 are here: the system lets this process open no more files and sockets, "
        "of which each client takes two; allow it more (ulimit -n 131072)"
    ]
