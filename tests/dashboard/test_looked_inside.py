"""What is in data stores and maps, and what is closed when nobody looks any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

import pytest
from tests.waiting import until

from chappe import Endpoint, MapServer, SharedMap
from chappe.dashboard.entries import OPEN_MAX, ROWS_MAX, Entries
from chappe.dashboard.leases import Leases
from chappe.dashboard.looks import Looks
from chappe.errors import UsageError


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_a_data_store_shows_entries_and_changes_and_its_clone_goes_when_nobody_looks(stack: ExitStack) -> None:
    hub, looking = stack.enter_context(Endpoint()), stack.enter_context(Endpoint(forwarding=False))
    looking.peer("127.0.0.1", hub.listen())
    store = stack.enter_context(hub.attach_master("prices"))
    store.put("<b>key</b>", {"a": 1})
    store.put("late", "soon gone", expiry_s=1_000)
    leases = Leases(lease_s=0.2)
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
    until(lambda: len(leases) == 0)
    until(lambda: not looking.stores)  # the clone is gone
    assert entries.open("data store", "prices") is not opened


def test_a_viewer_who_opens_the_mesh_anew_leaves_no_subscriber_behind(stack: ExitStack) -> None:
    from chappe.dashboard.pages.mesh import Live

    leases = Leases(lease_s=0.1)
    stack.callback(leases.close)
    endpoint = stack.enter_context(Endpoint())
    looks = cast(Looks, SimpleNamespace(endpoint=endpoint, leases=leases))
    first, second = Live(looks), Live(looks)

    assert first.start("a") == ""
    assert second.start("a") == ""

    until(lambda: not first.on)
    until(lambda: not second.on)


def test_a_map_shows_entries_and_how_many_there_are_beyond_those_listed(stack: ExitStack) -> None:
    server = stack.enter_context(MapServer("127.0.0.1:0"))
    shared = stack.enter_context(SharedMap(server.address))
    shared.set_many({f"/{n:04}": b"x" for n in range(ROWS_MAX + 50)})
    leases = Leases()
    stack.callback(leases.close)
    opened = Entries(None, {"m": shared}, leases).open("map", "m")

    rows, fitting, total = opened.find("")

    assert (len(rows), fitting, total) == (ROWS_MAX, ROWS_MAX + 50, ROWS_MAX + 50)
    shared.set("/0001", b"<i>y</i>")
    until(lambda: [(e.key, e.value) for e in opened.changes()[0]] == [("/0001", "<i>y</i>")])


def test_what_is_not_there_and_what_is_too_much_are_sentences(stack: ExitStack) -> None:
    server = stack.enter_context(MapServer("127.0.0.1:0"))
    shared = stack.enter_context(SharedMap(server.address))
    leases = Leases()
    stack.callback(leases.close)
    entries = Entries(None, {f"m{n}": shared for n in range(OPEN_MAX + 1)}, leases)
    for n in range(OPEN_MAX):
        entries.open("map", f"m{n}")

    with pytest.raises(UsageError, match="open already"):
        entries.open("map", f"m{OPEN_MAX}")
    with pytest.raises(UsageError, match="nobody can look"):
        Entries(None, {}, leases).open("data store", "x")


def test_a_lease_that_is_touched_goes_on_and_closes_once(stack: ExitStack) -> None:
    leases = Leases(lease_s=0.1)
    closed: list[str] = []
    leases.touch("a", lambda: closed.append("a"))
    leases.touch("b", lambda: closed.append("b"))
    leases.end("b")

    until(lambda: closed == ["a"])
    leases.touch("c", lambda: closed.append("c"))
    leases.close()
    assert closed == ["a", "c"]
