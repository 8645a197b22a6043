"""A chain of masters of ours, and clones of the original: those that start find the head.

A clone of the original's that runs follows its first master for life, as it does with masters of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from tests.api.chain_rig import new_configuration
from tests.interop.broker_stores import HOST, LONG_S, NAME, Scene, both_know, scene
from tests.interop.originals import eventually

pytestmark = pytest.mark.process


@pytest.fixture(name="scene")
def made() -> Iterator[Scene]:
    with scene() as found:
        yield found


def test_clones_of_the_original_write_to_the_head_and_survive_a_takeover(scene: Scene) -> None:
    chain = new_configuration(durable=False)
    endpoints = [scene.endpoint() for _ in chain.names]
    ports = [each.listen(HOST) for each in endpoints]
    stores = [
        each.attach_master(NAME, chain=chain, server=name) for each, name in zip(endpoints, chain.names, strict=True)
    ]
    eventually(lambda: all(each.ready for each in stores), "the chain is not founded")
    stores[0].put("ours", 1, timeout=LONG_S)

    early = scene.original()
    for ours, port in zip(endpoints, ports, strict=True):
        assert early.peer(port)
        both_know(ours, early)
    assert early.attach_clone(NAME)
    eventually(partial(lambda: early.do(NAME, "get", "'ours'") == "1"), "the original has not found the master")
    for _ in range(5):
        early.do(NAME, "increment", "'n'", "1")
    for each in stores:
        eventually(partial(lambda each: each.get("n") == 5, each), "the original's increments are not there")

    endpoints[0].close()
    late = scene.original()
    assert late.peer(ports[1])
    both_know(endpoints[1], late)
    assert late.attach_clone(NAME)
    eventually(partial(lambda: late.do(NAME, "get", "'n'") == "5"), "the original has not found the new master")
    late.do(NAME, "increment", "'n'", "2")
    eventually(lambda: stores[2].get("n") == 7, "the original's increment is not there")
    assert (found := stores[1].chain()) is not None
    assert found.role == "head"
    eventually(partial(lambda: late.do(NAME, "get", "'n'") == "7"), "the original does not show it")
