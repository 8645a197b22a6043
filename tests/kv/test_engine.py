from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from chappe.data.binary import decode, encode
from chappe.data.order import COUNT, INTEGER, NONE, SET, STRING, TABLE, TIMESTAMP, VECTOR, sort_key
from chappe.data.scalars import Count, Timespan, Timestamp
from chappe.data.values import Set, Table, Value
from chappe.errors import InvalidOperation, NoSuchKey, StoreError, TypeClash
from chappe.kv.engine import Change, Engine, StagedEntries
from chappe.kv.operations import add, initial, retrieve, subtract


@pytest.mark.parametrize(
    ("stored", "operand", "result"),
    [
        (Count(1), Count(2), Count(3)),
        (1, -2, -1),
        (1.5, 2.5, 4.0),
        (Timespan(5), Timespan(6), Timespan(11)),
        (Timestamp(5), Timespan(6), Timestamp(11)),
        ("ab", "c", "abc"),
        ("a", b"\xff", b"a\xff"),
        (b"\xc3", b"\xa9", "é"),
        ((1,), "x", (1, "x")),
        (Set((1,)), Count(1), Set((1, Count(1)))),
        (Table({1: 2}), (1, 3), Table({1: 3})),
    ],
)
def test_what_can_be_added(stored: Value, operand: Value, result: Value) -> None:
    found = add(stored, operand)

    assert (found, type(found)) == (result, type(result))


@pytest.mark.parametrize(
    ("stored", "operand", "result"),
    [
        (Count(3), Count(2), Count(1)),
        (1, 2, -1),
        (Timestamp(5), Timespan(6), Timestamp(-1)),
        ((1, 2), "ignored", (1,)),
        ((), None, ()),
        (Set((1, Count(1))), 1, Set((Count(1),))),
        (Table({1: 2}), 1, Table()),
        (Table({1: 2}), 2, Table({1: 2})),
    ],
)
def test_what_can_be_taken_away(stored: Value, operand: Value, result: Value) -> None:
    assert subtract(stored, operand) == result


@pytest.mark.parametrize(
    ("operation", "stored", "operand", "error"),
    [
        (add, 1, Count(1), TypeClash),
        (add, Count(1), 1, TypeClash),
        (add, 1, 1.0, TypeClash),
        (add, True, True, TypeClash),
        (add, None, 1, TypeClash),
        (add, "a", 1, TypeClash),
        (add, Table(), 1, TypeClash),
        (add, Table(), (1,), InvalidOperation),
        (add, 2**63 - 1, 1, InvalidOperation),
        (add, Count(2**64 - 1), Count(1), InvalidOperation),
        (subtract, Count(1), Count(2), InvalidOperation),
        (subtract, "abc", "c", TypeClash),
        (subtract, Timestamp(1), Timestamp(1), TypeClash),
    ],
)
def test_what_does_not_fit_is_refused(
    operation: Callable[[Value, Value], Value], stored: Value, operand: Value, error: type[StoreError]
) -> None:
    with pytest.raises(error):
        operation(stored, operand)


def test_a_value_may_not_grow_too_deep_to_be_carried() -> None:
    deep: Value = ()
    for _ in range(99):
        deep = (deep,)

    with pytest.raises(InvalidOperation):
        add((), deep)


def test_looking_into_values() -> None:
    assert retrieve((1, 2), Count(1)) == 2
    assert retrieve((1, 2), 0) == 1
    assert retrieve(Set((1,)), 1) is True
    assert retrieve(Set((1,)), Count(1)) is False
    assert retrieve(Table({1: "a"}), 1) == "a"
    assert retrieve("text", 7) == "text"
    for stored, index, error in (((1,), 1, NoSuchKey), ((1,), -1, TypeClash), (Table(), 1, NoSuchKey)):
        with pytest.raises(error):
            retrieve(stored, index)


def test_a_missing_value_starts_empty_of_its_type() -> None:
    engine = Engine()
    for key, operand, tag, result in (
        ("count", Count(2), COUNT, Count(2)),
        ("integer", 2, INTEGER, 2),
        ("string", "x", STRING, "x"),
        ("time", Timespan(2), TIMESTAMP, Timestamp(2)),
        ("set", 1, SET, Set((1,))),
        ("table", (1, 2), TABLE, Table({1: 2})),
        ("vector", 1, VECTOR, (1,)),
    ):
        engine.add(key, operand, tag)
        assert engine.get(key) == result
    with pytest.raises(TypeClash):
        engine.add("none", True, NONE)
    assert initial(COUNT) == Count(0)


def test_keys_are_told_apart_by_type() -> None:
    engine = Engine()
    keys: list[Value] = [1, Count(1), 1.0, True, "1", b"\xff", (1,), (Count(1),), None]
    for key in keys:
        engine.put(key, key)

    assert len(engine) == len(keys)
    assert [type(engine.get(key)) for key in keys] == [type(key) for key in keys]
    assert engine.erase(True) is not None
    assert not engine.exists(True)
    assert engine.exists(1)


def test_a_put_without_expiry_takes_the_old_one_away() -> None:
    engine = Engine()
    engine.put("a", 1, 100)
    engine.put("b", 1, 50)
    engine.put("a", 2)

    assert engine.next_expiry_ns() == 50
    assert engine.expire(49) == []
    assert [(change.kind, change.key) for change in engine.expire(1000)] == [("expire", "b")]
    assert engine.get("a") == 2
    assert engine.next_expiry_ns() is None


def test_deadlines_of_replaced_entries_are_cleaned_up() -> None:
    engine = Engine()
    for number in range(10_000):
        engine.put("a", number, 10**9 + number)

    assert len(engine._deadlines) < 200
    assert engine.next_expiry_ns() == 10**9 + 9_999


@pytest.mark.parametrize("seed", range(20))
def test_what_expires_next_is_found_in_its_order_and_without_what_is_outdated(seed: int) -> None:
    random = Random(seed)
    engine = Engine()
    for _ in range(100):
        engine.put(random.randrange(60), 1, random.choice((None, random.randrange(1_000))))
    engine.revert(engine.put(7, 1, 5))
    due = sorted(each.expires_ns for each in engine.items() if each.expires_ns is not None)

    found = engine.soonest(10)

    assert [each.expires_ns for each in found] == due[:10]
    assert len({id(each) for each in found}) == len(found)
    assert engine.soonest(0) == Engine().soonest(5) == []


def test_put_unique_and_erase_say_whether_they_did() -> None:
    engine = Engine()

    assert engine.put_unique("a", 1) is not None
    assert engine.put_unique("a", 2) is None
    assert engine.erase("a") is not None
    assert engine.erase("a") is None
    with pytest.raises(NoSuchKey):
        engine.subtract("a", 1)


def test_changes_can_be_asked_for_until_they_are_forgotten() -> None:
    engine = Engine(changes_max=3)
    for number in range(4):
        engine.put("a", number)

    assert [change.entry.value for change in engine.changes_since(2) or () if change.entry] == [2, 3]
    assert engine.changes_since(4) == []
    assert engine.changes_since(0) is None


def contents(engine: Engine) -> dict[object, tuple[Value, int | None]]:
    return {index: (entry.value, entry.expires_ns) for index, entry in engine.entries.items()}


def test_changes_are_undone_from_the_latest_on() -> None:
    engine = Engine()
    engine.put("a", 1, 100)
    engine.put("b", 1)
    before = contents(engine)
    changes: list[Change] = [engine.put("a", 2), engine.put("c", 3, 50)]
    changes += engine.clear()
    changes.append(engine.put("b", 4))
    for change in reversed(changes):
        engine.revert(change)

    assert contents(engine) == before
    assert [change.key for change in engine.expire(100)] == ["a"]


@pytest.mark.parametrize("init", [SET, TABLE, VECTOR])
def test_a_container_grows_to_the_bounds_of_values_and_no_further(init: int) -> None:
    engine = Engine()
    many: Value = (None,) * 60_000
    for number in range(16):
        engine.add("k", (number, many), init)
    with pytest.raises(InvalidOperation, match="elements"):
        engine.add("k", (16, many), init)
    assert decode(encode(engine.get("k"))) == engine.get("k")
    engine.subtract("k", (0, many) if init == SET else 0)
    engine.add("k", (0, many), init)  # there is room again, though the weight was not known any more


@pytest.mark.parametrize(("init", "deepen"), [(SET, lambda deep: deep), (TABLE, lambda deep: (deep, 1))])
def test_a_member_that_is_too_deep_is_refused(init: int, deepen: Callable[[Value], Value]) -> None:
    deep: Value = ()
    for _ in range(99):
        deep = (deep,)
    engine = Engine()
    with pytest.raises(InvalidOperation, match="deeper"):
        engine.add("k", deepen(deep), init)
    engine.put("k", Set() if init == SET else Table())
    with pytest.raises(InvalidOperation, match="deeper"):
        engine.subtract("k", (deep,))


def test_members_added_and_taken_one_by_one_are_as_if_they_were_put_together() -> None:
    rng = Random(1)
    members: tuple[Value, ...] = (1, 2, Count(1), "a", "b", b"\xff", (1,), Set([1]), True, 1.5, None)
    kept_set, kept_table = Set(), Table()
    wanted: dict[object, tuple[Value, Value]] = {}
    for number in range(500):
        member = rng.choice(members)
        if rng.random() < 0.6:
            kept_set, kept_table = kept_set.adding(member), kept_table.setting(member, number)
            wanted[sort_key(member)] = (member, number)
        else:
            kept_set, kept_table = kept_set.removing(member), kept_table.removing(member)
            wanted.pop(sort_key(member), None)
        assert kept_set == Set([key for key, _ in wanted.values()])
        assert kept_table == Table(list(wanted.values()))


def test_changes_of_large_values_are_remembered_as_far_as_they_hold_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.kv.engine.STORE_CHANGES_BYTES_MAX", 100_000)
    engine = Engine()
    for number in range(1_000):
        engine.put("small", number)
    for _ in range(1_000):
        engine.put("large", "x" * 1_000)
        engine.put("small", "y")
    kept = len(engine._changes)
    assert 198 <= kept <= 202
    assert engine.changes_since(engine.version - kept) is not None
    assert engine.changes_since(engine.version - kept - 1) is None
    engine.put("last", 1)
    assert [each.key for each in engine.changes_since(engine.version - 2) or ()] == ["small", "last"]


def test_what_is_frozen_stays_and_may_leave_the_latest_changes_out() -> None:
    engine = Engine()
    engine.put("a", 1)
    old = engine.frozen()
    changes = [engine.put("a", 2), engine.put("b", 3), engine.put("a", 4)]

    assert engine.frozen(changes) == old
    assert [(entry.key, entry.value) for entry in old] == [("a", 1)]
    assert [(entry.key, entry.value) for entry in engine.frozen()] == [("a", 4), ("b", 3)]


@pytest.mark.parametrize("tell", [False, True])
def test_an_engine_becomes_what_is_staged_in_one_step_and_knows_the_difference(tell: bool) -> None:
    engine = Engine(changes_max=3)
    for key in "abc":
        engine.put(key, 1)
    version, entries = engine.version, engine.entries
    staged = StagedEntries(engine)
    for key, value in (("b", 1), ("c", 2), ("d", 1), ("d", 3)):
        staged.add(key, value)
    assert engine.entries is entries
    assert contents(engine) == {"a": (1, None), "b": (1, None), "c": (1, None)}
    changes = engine.replace(staged, tell=tell)

    assert contents(engine) == {"b": (1, None), "c": (2, None), "d": (3, None)}
    assert [(each.kind, each.key) for each in changes] == [("update", "c"), ("insert", "d"), ("erase", "a")]
    assert [each.version for each in changes] == [version + 1, version + 2, version + 3]
    assert engine.changes_since(version) == changes
    assert engine.entries["b"] is entries["b"]
    staged = StagedEntries(engine)
    for number in range(9):
        staged.add(number, number)
    assert len(engine.replace(staged, tell=tell)) == (12 if tell else 0)  # more than are remembered
    assert engine.changes_since(version) is None
    assert engine.changes_since(engine.version) == []


def test_a_refused_operation_leaves_no_trace() -> None:
    engine = Engine()
    engine.put("a", "text")
    version = engine.version

    with pytest.raises(TypeClash):
        engine.add("a", 1, INTEGER)
    with pytest.raises(NoSuchKey):
        engine.subtract("b", 1)
    assert (engine.version, engine.get("a")) == (version, "text")
