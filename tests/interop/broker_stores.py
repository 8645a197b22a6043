"""Data stores shared with the original Broker: what the tests put into them, and who takes part."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.interop.broker_original import VARIABLE, Original, find_bindings
from tests.interop.originals import eventually
from tests.waiting import PATIENCE_S

from chappe import Endpoint
from chappe.api.kv.data_store import DataStore
from chappe.compat.broker.data import Data
from chappe.data.scalars import Address, Count, EnumValue, Port, Subnet, Timespan, Timestamp
from chappe.data.values import Set, Table

LONG_S = PATIENCE_S

HOST = "127.0.0.1"
DRIVER = Path(__file__).with_name("broker_store_driver.py")
NAME = "shared"
Entry = list[str]  # type and text of a key, type and text of its value
# The same values in our types and as the original's Python makes them.
VALUES: list[tuple[object, str]] = [
    (None, "None"),
    (True, "True"),
    (Count(2**64 - 1), "broker.Count(2**64-1)"),
    (-(2**63), "-2**63"),
    (1.5, "1.5"),
    ("grüße", "'grüße'"),
    (b"\xff\x00", r"b'\xff\x00'"),
    (Address("1.2.3.4"), "ipaddress.ip_address('1.2.3.4')"),
    (Address("2001:db8::1"), "ipaddress.ip_address('2001:db8::1')"),
    (Subnet("10.0.0.0", 8), "ipaddress.ip_network('10.0.0.0/8')"),
    (Port(53, "udp"), "broker.Port(53, broker.Port.UDP)"),
    (Timestamp(1_234_567_890_123_456_789), "broker.Timestamp(broker.Timespan(1234567890123456789))"),
    (Timespan(-5), "broker.Timespan(-5)"),
    (EnumValue("Conn::LOG"), "broker.Enum('Conn::LOG')"),
    (Set([1, "a", None]), "{1, 'a', None}"),
    (Table([("k", (1, 2)), (Count(3), Set())]), "{'k': [1, 2], broker.Count(3): set()}"),
    (((1, ()), "x"), "[[1, []], 'x']"),
]
# Every operation, as (method, ours, theirs), and the entries that they leave.
OPERATIONS: list[tuple[str, tuple[object, ...], tuple[str, ...]]] = [
    ("put", ("put", 1), ("'put'", "1")),
    ("put", ("put", 2), ("'put'", "2")),
    ("increment", ("put", 40), ("'put'", "40")),
    ("decrement", ("put", 2), ("'put'", "2")),
    ("increment", ("new count", Count(5)), ("'new count'", "broker.Count(5)")),
    ("increment", ("new integer", -5), ("'new integer'", "-5")),
    ("increment", ("new real", 0.5), ("'new real'", "0.5")),
    ("increment", ("new time", Timespan(10**9)), ("'new time'", "broker.Timespan(10**9)")),
    ("decrement", ("new time", Timespan(1)), ("'new time'", "broker.Timespan(1)")),
    ("put", ("span", Timespan(7)), ("'span'", "broker.Timespan(7)")),
    ("increment", ("span", Timespan(3)), ("'span'", "broker.Timespan(3)")),
    ("append", ("text", "one"), ("'text'", "'one'")),
    ("append", ("text", ", two"), ("'text'", "', two'")),
    ("insert_into", ("set", 1), ("'set'", "1")),
    ("insert_into", ("set", "x"), ("'set'", "'x'")),
    ("insert_into", ("set", 1), ("'set'", "1")),
    ("remove_from", ("set", "x"), ("'set'", "'x'")),
    ("insert_into", ("table", "a", 1), ("'table'", "'a'", "1")),
    ("insert_into", ("table", "b", 2), ("'table'", "'b'", "2")),
    ("insert_into", ("table", "a", 3), ("'table'", "'a'", "3")),
    ("remove_from", ("table", "b"), ("'table'", "'b'")),
    ("push", ("vector", 1), ("'vector'", "1")),
    ("push", ("vector", 2), ("'vector'", "2")),
    ("push", ("vector", 3), ("'vector'", "3")),
    ("pop", ("vector",), ("'vector'",)),
    ("put", ("gone", 1), ("'gone'", "1")),
    ("erase", ("gone",), ("'gone'",)),
    ("erase", ("never there",), ("'never there'",)),
    ("put_unique", ("unique", 1), ("'unique'", "1")),
    ("put_unique", ("unique", 2), ("'unique'", "2")),
]
LEFT: dict[str, object] = {
    "put": 40,
    "new count": Count(5),
    "new integer": -5,
    "new real": 0.5,
    "new time": Timestamp(10**9 - 1),
    "span": Timespan(10),
    "text": "one, two",
    "set": Set([1]),
    "table": Table([("a", 3)]),
    "vector": (1, 2),
    "unique": 1,
}


@functools.cache
def bindings() -> Path | None:
    """Where the original is."""
    return find_bindings()


class Scene:
    """Makes endpoints of ours and of the original's, which end with it."""

    def __init__(self, original: Path, stack: ExitStack) -> None:
        self._original = original
        self._stack = stack

    def endpoint(self) -> Endpoint:
        """One of ours."""
        return self._stack.enter_context(Endpoint())

    def original(self) -> Original:
        """One of the original's."""
        return self._stack.enter_context(Original(self._original, {}, DRIVER))


@contextmanager
def scene() -> Iterator[Scene]:
    """A scene; skips the test where the original is not."""
    found = bindings()
    if found is None:
        pytest.skip(f"the original Broker is not here: set {VARIABLE} to the directory of its Python bindings")
    with ExitStack() as stack:
        yield Scene(found, stack)


def connect(ours: Endpoint, theirs: Original) -> None:
    """Make them peers, and wait until both know."""
    ours.peer(HOST, theirs.listen(), timeout=LONG_S)
    both_know(ours, theirs)


def both_know(ours: Endpoint, theirs: Original) -> None:
    assert ours.await_peer(theirs.id(), LONG_S)
    assert theirs.await_peer(ours.id, LONG_S)


class Pair:
    """A store of which one side has the master and the other a clone."""

    def __init__(self, ours: Endpoint, theirs: Original, we_are_master: bool) -> None:
        self.theirs = theirs
        connect(ours, theirs)
        if we_are_master:
            self.store = ours.attach_master(NAME)
            attach_their_clone(theirs)
        else:
            assert theirs.attach_master(NAME)
            self.store = ours.attach_clone(NAME, timeout=LONG_S)

    def settle(self, expected: list[Entry]) -> None:
        """Wait until both have this."""
        settles(self.store, expected)
        they_settle(self.theirs, expected)


def attach_their_clone(theirs: Original) -> None:
    assert theirs.attach_clone(NAME)
    assert theirs.do(NAME, "await_idle", str(LONG_S)) == "True"


def shown(value: Any) -> list[str]:
    """Type and text; of strings the bytes, for the original cannot show those that are not UTF-8."""
    found = Data._of(value)
    kind = found.get_type()
    return [kind.name, found.as_string().hex() if kind is Data.Type.String else str(found)]


def entries(contents: Mapping[Any, object]) -> list[Entry]:
    """What ``dump`` gives for these."""
    return sorted(shown(key) + shown(value) for key, value in contents.items())


def dump(store: DataStore) -> list[Entry]:
    """Each entry as type and text of key and value, sorted."""
    return sorted(shown(each.typed.key) + shown(each.typed.value) for each in store.snapshot())


def settles(store: DataStore, expected: list[Entry]) -> None:
    """Wait until our store has this."""
    eventually(lambda: dump(store) == expected, lambda: f"we have {dump(store)}, wanted: {expected}")


def they_settle(theirs: Original, expected: list[Entry]) -> None:
    """Wait until the original has this."""
    eventually(
        lambda: theirs.dump(NAME) == expected, lambda: f"the original has {theirs.dump(NAME)}, wanted: {expected}"
    )


def ours_do(store: DataStore) -> None:
    for method, arguments, _ in OPERATIONS:
        # Not waiting: the original acknowledges writes when its heartbeat comes, so each would take half a second.
        options = {} if method == "put_unique" else {"wait": False}
        getattr(store, method)(*arguments, **options)


def theirs_do(theirs: Original) -> None:
    for method, _, expressions in OPERATIONS:
        theirs.do(NAME, method, *expressions)


class Star:
    """One master with clones of both kinds: two of ours and two originals in all."""

    def __init__(self, scene: Scene, we_are_master: bool) -> None:
        first, second, left, right = scene.endpoint(), scene.endpoint(), scene.original(), scene.original()
        self.theirs = [left, right]
        if we_are_master:
            centre = first.listen(HOST)
            master = first.attach_master(NAME)
            second.peer(HOST, centre, timeout=LONG_S)
            for each in self.theirs:
                assert each.peer(centre)
                both_know(first, each)
                attach_their_clone(each)
            self.ours = [master, second.attach_clone(NAME, timeout=LONG_S)]
            return
        centre = left.listen()
        assert left.attach_master(NAME)
        for ours in (first, second):
            ours.peer(HOST, centre, timeout=LONG_S)
            both_know(ours, left)
        assert right.peer(centre)
        attach_their_clone(right)
        self.ours = [each.attach_clone(NAME, timeout=LONG_S) for each in (first, second)]

    def settle(self, expected: list[Entry]) -> None:
        """Wait until all have this."""
        for store in self.ours:
            settles(store, expected)
        for theirs in self.theirs:
            they_settle(theirs, expected)
