"""Two masters of ours, and clones of the original: those that start find whoever is active.

A clone of the original's that runs follows its first master for life, as it does with masters of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from tests.interop.broker_stores import HOST, LONG_S, NAME, Scene, both_know, scene
from tests.interop.originals import eventually

pytestmark = pytest.mark.process


@pytest.fixture(name="scene")
def made() -> Iterator[Scene]:
    with scene() as found:
        yield found


def test_clones_of_the_original_write_to_whoever_is_active_and_survive_a_takeover(scene: Scene) -> None:
    one, two = scene.endpoint(), scene.endpoint()
    ports = one.listen(HOST), two.listen(HOST)
    first = one.attach_master(NAME, partner=f"{HOST}:{ports[1]}", role="primary")
    second = two.attach_master(NAME, partner=f"{HOST}:{ports[0]}", role="backup")
    first.put("ours", 1, timeout=LONG_S)
    eventually(lambda: (found := first.pair()) is not None and found.confirms == "paired", "the two are not together")
    assert (found := second.pair()) is not None
    assert found.state == "passive"

    early = scene.original()
    for ours, port in zip((one, two), ports, strict=True):
        assert early.peer(port)
        both_know(ours, early)
    assert early.attach_clone(NAME)
    eventually(partial(lambda: early.do(NAME, "get", "'ours'") == "1"), "the original has not found the master")
    for _ in range(5):
        early.do(NAME, "increment", "'n'", "1")
    for each in (first, second):
        eventually(partial(lambda each: each.get("n") == 5, each), "the original's increments are not there")

    one.close()
    late = scene.original()
    assert late.peer(ports[1])
    both_know(two, late)
    assert late.attach_clone(NAME)  # it asks, which is a vote
    eventually(partial(lambda: late.do(NAME, "get", "'n'") == "5"), "the original has not found the new master")
    late.do(NAME, "increment", "'n'", "2")
    eventually(lambda: second.get("n") == 7, "the original's increment is not there")
    assert (found := second.pair()) is not None
    assert found.state == "active"
    eventually(partial(lambda: late.do(NAME, "get", "'n'") == "7"), "the original does not show it")
