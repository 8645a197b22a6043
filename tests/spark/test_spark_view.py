"""The driver's picture of the stores."""

from __future__ import annotations

import pytest
from tests.spark.fake_store import FakeStore
from tests.spark.silence import ImpatientClient

from chappe.errors import TimedOut
from chappe.reading import view as module
from chappe.reading.offsets import KnownPartition
from chappe.reading.selection import Selection
from chappe.reading.view import StoresView

T = Selection.of_topics(["t"])


@pytest.fixture(autouse=True)
def _only_the_silent_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "StoreClient", ImpatientClient)


def test_one_picture_of_all_stores() -> None:
    with FakeStore() as one, FakeStore() as two:
        one.put("t", "p", [b"x"] * 10)
        two.put("t", "p", [b"x"] * 4)
        two.put("t", "q", [b"x"])
        one.retire("t", "p", 2)
        view = StoresView(T, [one.endpoint, two.endpoint])
        view.refresh()
        assert view.known["t", "p"] == KnownPartition(
            0, 10, view.known["t", "p"].bytes, (one.endpoint, two.endpoint), 0, 1_000_000
        )
        assert view.known["t", "q"].holders == (two.endpoint,)
        assert view.let_go() == {("t", "p"): {two.endpoint: 2}}  # the other one has retired these
        view.close()


def test_only_what_changed_is_asked_for() -> None:
    with FakeStore() as store:
        store.put("t", "p", [b"x"])
        view = StoresView(T, [store.endpoint])
        view.refresh()
        store.put("t", "p", [b"x"])
        view.refresh()
        assert view.known["t", "p"].next == 2
        assert [each.since for each in store.heads] == [0, 1]
        view.close()


def test_a_topic_is_not_its_prefix() -> None:
    with FakeStore() as store:
        store.put("t", "p", [b"x"])
        store.put("tt", "p", [b"x"])
        for selection, topics in ((T, {"t"}), (Selection.of_topics(["t*"]), {"t", "tt"})):
            view = StoresView(selection, [store.endpoint])
            view.refresh()
            assert {topic for topic, _ in view.known} == topics
            view.close()


def test_a_silent_store_is_left_out_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AWAY_S", 0.0)
    with FakeStore() as stays:
        stays.put("t", "p", [b"x"])
        leaves = FakeStore()
        leaves.put("t", "p", [b"x"] * 9)
        view = StoresView(T, [stays.endpoint, leaves.endpoint])
        view.refresh()
        assert view.known["t", "p"].next == 9
        leaves.close()
        view.refresh()
        assert view.known["t", "p"].next == 1
        assert view.away == [leaves.endpoint]
        with FakeStore(endpoint=leaves.endpoint) as back:
            back.put("t", "p", [b"x"] * 12)
            view.refresh()
            assert view.known["t", "p"].next == 12
        view.close()


def test_no_store_at_all_is_an_error_at_first_and_patience_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AWAY_S", 0.0)
    store = FakeStore()
    view = StoresView(T, [store.endpoint])
    view.refresh()
    store.close()
    view.refresh()
    assert view.known == {}
    view.close()
    with pytest.raises(TimedOut, match="no store answers at"):
        StoresView(T, [store.endpoint]).refresh()


def test_a_tower_is_asked_again_when_a_store_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AWAY_S", 0.0)
    old = FakeStore()
    with FakeStore() as new:
        new.put("t", "p", [b"x"])
        found = [[old.endpoint]]
        view = StoresView(T, tower="tower", find=lambda _: found[0])
        view.refresh()
        old.close()
        view.refresh()
        found[0] = [new.endpoint]
        view.refresh()
        assert view.endpoints == [new.endpoint]
        assert view.known["t", "p"].next == 1
        view.close()


def test_a_tower_without_stores_says_so() -> None:
    with pytest.raises(TimedOut, match="the tower at tower knows no store"):
        StoresView(T, tower="tower", find=lambda _: []).refresh()
