"""What is in data stores and maps, and what is closed when nobody looks any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from tests.waiting import PATIENCE_S, until

from chappe import Endpoint, MapServer, SharedMap
from chappe.dashboard.entries import OPEN_MAX, ROWS_MAX, Entries
from chappe.dashboard.leases import Leases
from chappe.dashboard.looks import Looks
from chappe.dashboard.showing import SHOWN_BYTES
from chappe.dashboard.sources.mesh import MeshSource
from chappe.errors import UsageError

LONG_S = 10 * PATIENCE_S


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """So many seconds have passed for leases, and for nobody else."""
    forward_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + forward_s[0])
    monkeypatch.setattr("chappe.dashboard.leases.time", clock)
    monkeypatch.setattr("chappe.dashboard.leases.LOOK_S", 0.01)
    return forward_s


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_a_data_store_shows_entries_and_changes_and_its_clone_goes_when_nobody_looks(
    stack: ExitStack, later: list[float]
) -> None:
    hub, looking = stack.enter_context(Endpoint()), stack.enter_context(Endpoint(forwarding=False))
    looking.peer("127.0.0.1", hub.listen())
    store = stack.enter_context(hub.attach_master("prices"))
    store.put("<b>key</b>", {"a": 1})
    store.put("late", "soon gone", expiry_s=1_000)
    leases = Leases(LONG_S)
    stack.callback(leases.close)
    entries = Entries(looking, {}, leases)

    opened = entries.open("data store", "prices")
    rows, fitting, total = opened.find("")

    assert [(each.key, each.value) for each in rows] == [("<b>key</b>", "{a -> 1}"), ("late", "soon gone")]
    assert (fitting, total) == (2, 2)
    assert [each.key for each in opened.find("SOON")[0]] == ["late"]
    store.put("new", 3)

    def changed() -> bool:
        entries.open("data store", "prices")
        return [each.key for each in opened.changes()[0]] == ["new"]

    until(changed)
    later[0] += LONG_S
    until(lambda: len(leases) == 0)
    until(lambda: not looking.stores)  # the clone is gone
    assert entries.open("data store", "prices") is not opened


def test_a_viewer_who_opens_the_mesh_anew_leaves_no_subscriber_behind(stack: ExitStack, later: list[float]) -> None:
    from chappe.dashboard.pages.mesh import Live

    leases = Leases(LONG_S)
    stack.callback(leases.close)
    endpoint = stack.enter_context(Endpoint())
    looks = cast(Looks, SimpleNamespace(endpoint=endpoint, leases=leases))
    first, second = Live(looks), Live(looks)

    assert first.start("a") == ""
    assert second.start("a") == ""
    later[0] += LONG_S

    until(lambda: not first.on)
    until(lambda: not second.on)


def test_of_a_long_live_value_only_the_beginning_is_kept(stack: ExitStack) -> None:
    from chappe.dashboard.pages.mesh import Live

    leases = Leases(LONG_S)
    stack.callback(leases.close)
    endpoint = stack.enter_context(Endpoint())
    live = Live(cast(Looks, SimpleNamespace(endpoint=endpoint, leases=leases)))
    assert live.start("a") == ""
    other = stack.enter_context(Endpoint())
    other.peer("127.0.0.1", endpoint.listen())
    other.publish("a", "x" * 1_000_000)
    other.publish("a", "short")

    until(lambda: live.take() == "" and len(live.rows) == 2)

    live.stop()
    short, long = live.texts.values()
    assert short == "short"
    assert len(long) < 5 * SHOWN_BYTES
    assert long.endswith("more bytes")


def test_a_map_shows_entries_and_how_many_there_are_beyond_those_listed(stack: ExitStack) -> None:
    server = stack.enter_context(MapServer("127.0.0.1:0"))
    shared = stack.enter_context(SharedMap(server.address))
    shared.set_many({f"/{n:04}": b"x" for n in range(ROWS_MAX + 50)})
    leases = Leases(LONG_S)
    stack.callback(leases.close)
    opened = Entries(None, {"m": shared}, leases).open("map", "m")

    rows, fitting, total = opened.find("")

    assert (len(rows), fitting, total) == (ROWS_MAX, ROWS_MAX + 50, ROWS_MAX + 50)
    shared.set("/0001", b"<i>y</i>")
    until(lambda: [(e.key, e.value) for e in opened.changes()[0]] == [("/0001", "<i>y</i>")])


def test_how_long_entries_live_is_told_of_data_stores_and_of_maps(stack: ExitStack) -> None:
    hub, looking = stack.enter_context(Endpoint()), stack.enter_context(Endpoint(forwarding=False))
    looking.peer("127.0.0.1", hub.listen())
    store = stack.enter_context(hub.attach_master("prices"))
    server = stack.enter_context(MapServer("127.0.0.1:0"))
    shared = stack.enter_context(SharedMap(server.address))
    shared.set("before", b"x", ttl=7_200)
    later = stack.enter_context(SharedMap(server.address))  # which has them in a snapshot
    for each in ("later", "stays"):
        shared.set(each, b"x", ttl=100 if each == "later" else None)
        store.put(each, 1, expiry_s=100 if each == "later" else None)
    leases = Leases(LONG_S)
    stack.callback(leases.close)
    source = MeshSource([("127.0.0.1", hub.listen())])
    stack.callback(source.close)
    entries = Entries(looking, {"m": shared, "n": later}, leases, source.lives)

    def lives(kind: str, name: str) -> dict[str, str]:
        return {each.key: each.expires for each in entries.open(kind, name).find("")[0]}

    def told() -> bool:
        source.look()
        return bool(lives("data store", "prices").get("later")) and len(lives("map", "n")) == 3

    until(told)
    for found in (lives("map", "m"), lives("map", "n"), lives("data store", "prices")):
        assert found["stays"] == ""
        seconds, _, unit = found["later"].partition(" ")
        assert unit == "s"
        assert 0 <= int(seconds) <= 100
        assert found.get("before", "2 hours") in ("2 hours", "1.99 hours", "1.98 hours")


def test_what_is_not_there_and_what_is_too_much_are_sentences(stack: ExitStack) -> None:
    server = stack.enter_context(MapServer("127.0.0.1:0"))
    shared = stack.enter_context(SharedMap(server.address))
    leases = Leases(LONG_S)
    stack.callback(leases.close)
    entries = Entries(None, {f"m{n}": shared for n in range(OPEN_MAX + 1)}, leases)
    for n in range(OPEN_MAX):
        entries.open("map", f"m{n}")

    with pytest.raises(UsageError, match="open already"):
        entries.open("map", f"m{OPEN_MAX}")
    with pytest.raises(UsageError, match="nobody can look"):
        Entries(None, {}, leases).open("data store", "x")


def test_a_lease_that_is_touched_goes_on_and_closes_once(later: list[float]) -> None:
    leases = Leases(LONG_S)
    closed: list[str] = []
    for name in ("left", "ended", "touched"):
        leases.touch(name, partial(closed.append, name))
    leases.end("ended")
    later[0] += 0.6 * LONG_S
    leases.touch("touched", partial(closed.append, "touched"))
    later[0] += 0.6 * LONG_S

    until(lambda: closed == ["left"])
    assert len(leases) == 1
    leases.close()
    assert closed == ["left", "touched"]


def test_one_whose_master_does_not_answer_holds_up_nobody_who_opens_another(stack: ExitStack) -> None:
    leases = Leases(LONG_S)
    stack.callback(leases.close)
    entered, go_on = threading.Event(), threading.Event()

    class Slow:
        def attach_clone(self, name: str, *, timeout: float) -> None:
            entered.set()
            go_on.wait(PATIENCE_S)
            raise UsageError("nobody answers")

    server = stack.enter_context(MapServer("127.0.0.1:0"))
    shared = stack.enter_context(SharedMap(server.address))
    entries = Entries(cast(Endpoint, Slow()), {"m": shared}, leases)
    said: list[str] = []

    def look() -> None:
        try:
            entries.open("data store", "slow")
        except UsageError as error:
            said.append(str(error))

    looking = threading.Thread(target=look)
    looking.start()
    assert entered.wait(PATIENCE_S)

    entries.open("map", "m")

    assert said == []
    go_on.set()
    looking.join(PATIENCE_S)
    assert said == ["nobody answers"]
    assert entries._begun == {}


def test_two_who_open_the_same_at_once_share_it(stack: ExitStack) -> None:
    leases = Leases(LONG_S)
    stack.callback(leases.close)
    server = stack.enter_context(MapServer("127.0.0.1:0"))
    shared = stack.enter_context(SharedMap(server.address))
    entries = Entries(None, {"m": shared}, leases)
    found: list[object] = []
    lookers = [threading.Thread(target=lambda: found.append(entries.open("map", "m"))) for _ in range(8)]
    for each in lookers:
        each.start()
    for each in lookers:
        each.join(PATIENCE_S)

    assert len(found) == 8
    assert len({id(each) for each in found}) == 1


def test_a_defect_while_something_is_closed_ends_no_other_lease(
    later: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    leases = Leases(LONG_S)
    closed: list[str] = []

    def broken() -> None:
        raise ValueError("a defect")

    leases.touch("broken", broken)
    later[0] += LONG_S
    until(lambda: "because of a defect" in caplog.text)

    leases.touch("next", partial(closed.append, "next"))
    later[0] += LONG_S
    until(lambda: closed == ["next"])
    leases.close()
