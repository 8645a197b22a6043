"""Shared maps in which others have written what is not of the map's type."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.waiting import PATIENCE_S, until

from chappe import AsyncSharedMap, MapChange, MapServer, SharedMap
from chappe.errors import InvalidData, UsageError


@pytest.fixture
def server() -> Iterator[MapServer]:
    with MapServer("127.0.0.1:0") as made:
        yield made


@pytest.fixture
def shared(server: MapServer) -> Iterator[SharedMap[Any]]:
    with SharedMap(server.address, values="json", timeout=PATIENCE_S) as made:
        yield made


@pytest.fixture
def raw(server: MapServer) -> Iterator[SharedMap[bytes]]:
    with SharedMap(server.address, timeout=PATIENCE_S) as made:
        yield made


class Price(msgspec.Struct):
    """What a map is of."""

    value: float
    unit: str = ""


class Waiting:
    """A thread, and what its call returned or raised."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.outcome: list[object] = []
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            self.outcome.append(call())
        except Exception as problem:
            self.outcome.append(problem)

    def end(self) -> object:
        self._thread.join(PATIENCE_S)
        return self.outcome[0]


def looked(calls: list[Any]) -> Callable[[Any], bool]:
    """Waits for a table with a large x, and fails where the value is none; notes what it is asked."""

    def wanted(value: Any) -> bool:
        calls.append(value)
        return value is not None and value["x"] > 3

    return wanted


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_does_not_have_are_refused(server: MapServer, shared: SharedMap[Any], number: float) -> None:
    with SharedMap[Any](server.address, values=dict[str, float | None], timeout=PATIENCE_S) as typed:
        for each in (shared, typed):
            each.set("k", {"a": 1.5, "b": None})
            with pytest.raises(UsageError, match="neither NaN nor an infinity"):
                each.set("k", {"a": None, "b": number})
            assert each.get("k") == {"a": 1.5, "b": None}
    for nested in (number, [None, (number,)], Price(number), {"null": [{"x": {number}}]}):
        with pytest.raises(UsageError, match="neither NaN nor an infinity"):
            shared.set("k", nested)
    assert shared.get("k") == {"a": 1.5, "b": None}


@pytest.mark.parametrize(("value", "kind"), [(b'"text"', TypeError), (b"\xff", InvalidData)])
def test_only_who_waits_for_a_value_hears_that_it_cannot_be_looked_at(
    shared: SharedMap[Any], raw: SharedMap[bytes], value: bytes, kind: type[Exception]
) -> None:
    calls: list[Any] = []
    other = Waiting(lambda: shared.wait_for("/other", timeout=PATIENCE_S))
    waiting = Waiting(lambda: shared.wait_for("/a", until=looked(calls), timeout=PATIENCE_S))
    until(lambda: calls)
    raw["/a"] = value
    assert isinstance(waiting.end(), kind)
    shared.set("/other", 1, timeout=PATIENCE_S)
    assert other.end() == 1


def test_only_the_coroutine_that_waits_hears_that_a_value_cannot_be_looked_at(
    server: MapServer, raw: SharedMap[bytes]
) -> None:
    async def main() -> None:
        async with AsyncSharedMap(server.address, values="json") as shared:
            calls: list[Any] = []
            waiting = asyncio.ensure_future(shared.wait_for("/a", until=looked(calls), timeout=PATIENCE_S))
            while not calls:
                await asyncio.sleep(0)
            await asyncio.to_thread(raw.set, "/a", b'"text"', timeout=PATIENCE_S)
            await shared.set("/other", 1, timeout=PATIENCE_S)
            with pytest.raises(TypeError):
                await waiting

    asyncio.run(main())


def test_a_wait_is_over_with_the_value_that_was_wanted(shared: SharedMap[Any]) -> None:
    answers = iter([True])  # and then never again, as when the value is another one at once
    shared["/a"] = 1
    assert shared.wait_for("/a", until=lambda value: next(answers, False), timeout=PATIENCE_S) == 1


def test_a_watch_raises_for_one_wrong_value_and_goes_on(shared: SharedMap[Any], raw: SharedMap[bytes]) -> None:
    with shared.watch(prefix="/p") as watch:
        shared["/p1"] = 1
        raw["/p2"] = b"\xff"
        shared["/p2"] = 2
        raw["/p3"] = b"\xff"
        raw["/p4"] = b"4"
        assert shared.wait_for("/p4", timeout=PATIENCE_S) == 4
        assert watch.poll() == [MapChange("insert", "/p1", 1, None)]
        with pytest.raises(InvalidData, match="/p2"):
            watch.poll()
        assert watch.poll() == [MapChange("update", "/p2", 2, None)]
        with pytest.raises(InvalidData, match="/p3"):
            watch.get(0.0)
        assert watch.get_many(9, 0.0) == [MapChange("insert", "/p4", 4, None)]
        assert watch.poll() == []
        assert watch.dropped == 0


def test_a_callback_is_called_after_a_wrong_value(shared: SharedMap[Any], raw: SharedMap[bytes]) -> None:
    heard: list[MapChange[Any]] = []
    with shared.watch(callback=heard.append):
        raw["/a"] = b"\xff"
        raw["/b"] = b"1"
        until(lambda: heard)
    assert heard == [MapChange("insert", "/b", 1, None)]


def test_what_is_not_of_the_type_is_not_written(server: MapServer, raw: SharedMap[bytes]) -> None:
    with SharedMap[Price](server.address, values=Price, timeout=PATIENCE_S) as prices:
        wrong: list[Any] = ["1.08", {"unit": "eur"}, [1], 5, Price("high"), Price(float("nan"))]  # type: ignore[arg-type]
        for each in wrong:
            with pytest.raises(UsageError, match="is not a value of this map"):
                prices["/a"] = each
        prices["/a"] = Price(1.08, "eur")

        assert raw.wait_for("/a", until=lambda value: value is not None, timeout=PATIENCE_S)
        assert prices.snapshot() == {"/a": Price(1.08, "eur")}
