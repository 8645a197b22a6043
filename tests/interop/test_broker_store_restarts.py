"""Data stores shared with the original Broker whose masters, clones and peerings end and come back.

A clone of the original's whose master was restarted keeps the old data for ever and does not notice, which is asserted
as what it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest
from tests.interop.broker_stores import (
    HOST,
    LONG_S,
    NAME,
    Scene,
    attach_their_clone,
    both_know,
    connect,
    dump,
    entries,
    scene,
    settles,
    they_settle,
)
from tests.interop.originals import eventually

from chappe import Endpoint
from chappe.mesh.events import PeerLost

pytestmark = pytest.mark.process


@pytest.fixture(name="scene")
def made() -> Iterator[Scene]:
    with scene() as found:
        yield found


def test_a_clone_may_be_there_before_its_master(scene: Scene) -> None:
    ours, theirs = scene.endpoint(), scene.original()
    early = ours.attach_clone("theirs", timeout=0)
    early.put("early", 1, wait=False)
    assert theirs.attach_clone("ours")
    theirs.do("ours", "put", "'early'", "1")
    connect(ours, theirs)
    store = ours.attach_master("ours")
    assert theirs.attach_master("theirs")
    for each in (early, store):
        eventually(
            partial(lambda each: each.ready and each.get("early") == 1, each), "what was written early is not there"
        )


@pytest.mark.parametrize("away_s", [0.0, 1.5])
@pytest.mark.parametrize("we_are_master", [True, False])
def test_a_peering_may_be_away_for_a_while(we_are_master: bool, away_s: float, scene: Scene) -> None:
    """Both sides go on, and nothing of what is written meanwhile is lost."""
    ours, theirs = scene.endpoint(), scene.original()
    port = ours.listen(HOST)
    assert theirs.peer(port)
    both_know(ours, theirs)
    if we_are_master:
        store = ours.attach_master(NAME)
        attach_their_clone(theirs)
    else:
        assert theirs.attach_master(NAME)
        store = ours.attach_clone(NAME, timeout=LONG_S)
    expected: dict[object, object] = {}
    for turn in range(3):
        assert theirs.unpeer(port)
        eventually(lambda: not ours.peers(), "we have not noticed")
        store.put(f"ours {turn}", turn, wait=False)
        theirs.do(NAME, "put", f"'theirs {turn}'", str(turn))
        time.sleep(away_s)
        assert theirs.peer(port)
        both_know(ours, theirs)
        store.put(f"ours again {turn}", turn, wait=False)
        expected |= {f"ours {turn}": turn, f"theirs {turn}": turn, f"ours again {turn}": turn}
        settles(store, entries(expected))
        they_settle(theirs, entries(expected))
        assert store.await_idle(LONG_S)
        assert theirs.do(NAME, "await_idle", str(LONG_S)) == "True"


def test_our_clone_goes_on_with_a_restarted_original(scene: Scene) -> None:
    ours, first = scene.endpoint(), scene.original()
    port = first.listen()
    assert first.attach_master(NAME)
    ours.peer(HOST, port, retry_s=0.2, timeout=LONG_S)
    store = ours.attach_clone(NAME, timeout=LONG_S)
    statuses = ours.statuses()
    store.put("before", 1, timeout=LONG_S)
    store.put("both", 1, timeout=LONG_S)
    watch = store.watch()
    first.kill()
    while not isinstance(statuses.get(LONG_S), PeerLost):
        pass
    assert store.get("before") == 1
    store.put("meanwhile", 1, wait=False)
    second = scene.original()
    assert second.attach_master(NAME)
    second.do(NAME, "put", "'both'", "1")
    second.do(NAME, "put", "'after'", "1")
    assert second.listen(port) == port
    wanted = entries({"both": 1, "after": 1, "meanwhile": 1})
    eventually(lambda: dump(store) == wanted, lambda: str(dump(store)))
    eventually(lambda: second.dump(NAME) == wanted, lambda: str(second.dump(NAME)))
    told = [watch.get(LONG_S) for _ in range(3)]
    assert sorted((each.kind, each.key) for each in told if each) == [
        ("erase", "before"),
        ("insert", "after"),
        ("insert", "meanwhile"),
    ]


def test_our_clone_is_restarted(scene: Scene) -> None:
    theirs = scene.original()
    port = theirs.listen()
    assert theirs.attach_master(NAME)
    for turn in range(3):
        with Endpoint() as ours:
            ours.peer(HOST, port, timeout=LONG_S)
            with ours.attach_clone(NAME, timeout=LONG_S) as store:
                assert sorted(store.keys()) == list(range(turn))
                store.put(turn, turn, timeout=LONG_S)
    assert theirs.dump(NAME) == entries({0: 0, 1: 1, 2: 2})


def test_the_originals_clone_is_restarted(scene: Scene) -> None:
    ours = scene.endpoint()
    port = ours.listen(HOST)
    store = ours.attach_master(NAME)
    for turn in range(3):
        theirs = scene.original()
        assert theirs.peer(port)
        attach_their_clone(theirs)
        assert theirs.dump(NAME) == entries({number: number for number in range(turn)})
        theirs.do(NAME, "put", str(turn), str(turn))
        eventually(partial(store.exists, turn), "its write did not come")
        theirs.kill()
        began = time.monotonic()
        assert store.await_idle(LONG_S)  # who is dead is not waited for
        assert time.monotonic() - began < 5.0


def test_our_master_is_restarted(scene: Scene) -> None:
    first, old = scene.endpoint(), scene.original()
    port = first.listen(HOST)
    first.attach_master(NAME).put("before", 1)
    old.peer_nosync(port, 1)
    both_know(first, old)
    attach_their_clone(old)
    first.close()
    second = scene.endpoint()
    store = second.attach_master(NAME)
    store.put("after", 1)
    second.listen(HOST, port)
    both_know(second, old)
    fresh = scene.original()
    assert fresh.peer(port)
    attach_their_clone(fresh)
    assert fresh.dump(NAME) == entries({"after": 1})
    store.put("later", 1)
    eventually(lambda: fresh.size(NAME) == 2, "a fresh clone does not follow")
    assert old.dump(NAME) == entries({"before": 1})  # a clone of the original never takes another master
    assert old.do(NAME, "await_idle", str(LONG_S)) == "True"  # and does not notice
    assert store.await_idle(LONG_S)
