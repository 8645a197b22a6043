"""Columns of many events are what decoding one after the other gives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data import strategies

from chappe.columns import events, wire
from chappe.data import zeek
from chappe.data.binary import decode, encode
from chappe.data.scalars import Address, Count, EnumValue, Port, Subnet, Timespan, Timestamp
from chappe.data.text import to_text
from chappe.data.values import Set, Table, Value
from chappe.data.zeek import Batch, Event, LogWrite
from chappe.errors import InvalidData
from chappe.sealing.events import wrap

TOPIC = b"zeek/conn"
Row = tuple[str | None, int | None, tuple[Value, ...]]

# -- what is expected ---------------------------------------------------------------------------------------------


def one_by_one(payloads: Sequence[bytes]) -> tuple[list[list[Row]], int]:
    """The rows of each message, and how many messages are malformed."""
    rows: list[list[Row]] = []
    malformed = 0
    for payload in payloads:
        rows.append([])
        try:
            parts = _split(payload)
        except InvalidData:
            malformed += 1
            continue
        for part in parts:
            try:
                rows[-1] += _rows(part)
            except InvalidData:
                malformed += 1
    return rows, malformed


def _split(payload: bytes) -> list[bytes]:
    if payload.startswith(zeek.head(zeek.BATCH) + b"\x0e"):
        return list(zeek.split(payload))
    return [payload]


def _rows(payload: bytes) -> Iterator[Row]:
    try:
        found: Any = zeek.parse(payload)
    except InvalidData:
        found = decode(payload)
    for each in zeek.flat(found) if isinstance(found, Batch) else [found]:
        if isinstance(each, Event):
            yield each.name, each.time, each.args
        else:
            value = each if not hasattr(each, "to_value") else each.to_value()
            yield None, None, value if type(value) is tuple else (value,)


def cells(array: pa.Array) -> list[Any]:
    """The values of a column without classes of pandas: times as nanoseconds, structs as tuples."""
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return list(array.cast(pa.int64()).to_pylist())
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        columns = [cells(array.field(n)) for n in range(kind.num_fields)]
        rows = [tuple([column[n] for column in columns]) for n in range(len(array))]
        return [row if there else None for row, there in zip(rows, valid, strict=True)]
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        inner = (
            list(zip(cells(array.keys), cells(array.items), strict=False))  # offsets say how many count
            if pa.types.is_map(kind)
            else cells(array.values)
        )
        ends = array.offsets.to_pylist()
        parts = [inner[low:high] for low, high in itertools.pairwise(ends)]
        return [part if there else None for part, there in zip(parts, valid, strict=True)]
    return list(array.to_pylist())


def same(value: Value, cell: Any) -> bool:
    """Whether a cell is what a value is to become."""
    if value is None or cell is None:
        return cell in (value, "nil")  # text among members of different types
    if isinstance(value, bytes) and type(value) is bytes:
        return bool(cell == value.decode("utf-8", "backslashreplace"))
    if type(value) is str:
        return bool(cell == value)
    if isinstance(cell, str):  # of other types, or among members of different types
        return cell == to_text(value).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, Set):
        value = value.members
    if isinstance(value, Table):
        pairs = list(value.pairs())
        return len(pairs) == len(cell) and all(
            same(key, one) and same(each, other) for (key, each), (one, other) in zip(pairs, cell, strict=True)
        )
    if type(value) is tuple:
        return len(value) == len(cell) and all(itertools.starmap(same, zip(value, cell, strict=True)))
    if isinstance(value, float) and math.isnan(value):
        return math.isnan(cell)
    if isinstance(value, Port):
        return bool(cell == tuple(value))
    return bool(value == cell) and isinstance(value, bool) == isinstance(cell, bool)


def agrees(payloads: Sequence[bytes], topics: Sequence[bytes] | None = None) -> list[pa.RecordBatch]:
    """Read the columns, and compare all cells with what is expected."""
    numbers = [str(number).encode() for number in range(len(payloads))]
    found = events.read(numbers, payloads)
    rows, malformed = one_by_one(payloads)
    assert found.malformed == malformed
    assert bool(found.reason) is bool(malformed)
    kinds = [(batch.column("event")[0].as_py(), str(batch.schema)) for batch in found.batches]
    assert len(set(kinds)) == len(kinds), "two batches of one kind"
    tables: list[dict[int, list[tuple[Any, ...]]]] = []
    for batch in found.batches:
        batch.validate(full=True)
        messages = list(map(int, batch.column("topic").to_pylist()))
        assert messages == sorted(messages)
        tables.append({})
        for message, row in zip(messages, zip(*map(cells, batch.columns[1:]), strict=True), strict=True):
            tables[-1].setdefault(message, []).append(row)
    for number, expected in enumerate(rows):
        there = [table[number] for table in tables if number in table]
        assert sum(map(len, there)) == len(expected)
        assert _are_merged(expected, there), f"{expected} are not in {there}"
    return events.read(topics, payloads).batches if topics else found.batches


def _are_merged(expected: list[Row], there: list[list[tuple[Any, ...]]]) -> bool:
    """Whether each expected row is the next one of some batch; nones fit into several."""
    ways = {tuple([0] * len(there))}
    for event, time, args in expected:
        further = set()
        for way in ways:
            for place, rows in enumerate(there):
                if way[place] < len(rows) and _is(event, time, args, rows[way[place]]):
                    further.add((*way[:place], way[place] + 1, *way[place + 1 :]))
        ways = further
    return bool(ways)


def _is(event: str | None, time: int | None, args: tuple[Value, ...], row: tuple[Any, ...]) -> bool:
    if row[:2] != (event, time) or len(row) != 2 + len(args):
        return False
    try:
        return all(itertools.starmap(same, zip(args, row[2:], strict=True)))
    except (TypeError, ValueError):  # another type of column
        return False


# -- events that are drawn ----------------------------------------------------------------------------------------


def _of_containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Strategies of containers, of strategies of what is in them."""
    return (
        inner.map(lambda each: st.lists(each, max_size=4).map(tuple))
        | inner.map(lambda each: st.lists(each, max_size=4).map(Set))
        | st.tuples(inner, inner).map(lambda two: st.lists(st.tuples(*two), max_size=4).map(Table))
        | st.lists(inner, max_size=4).map(lambda some: st.tuples(*some))
        | inner.map(lambda each: st.none() | each)
    )


kinds = st.recursive(st.sampled_from([*strategies.SCALARS.values()]), _of_containers, max_leaves=6)
metadata: st.SearchStrategy[dict[int, object]] = st.sampled_from(
    [{}, {1: Timestamp(5)}, {1: Timestamp(-1), 200: "mine"}, {300: Count(4)}]
)


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Events of a few names, and of a few types of arguments, in any order."""
    shapes = draw(
        st.lists(st.tuples(st.sampled_from(["a", "bb", "größe"]), st.lists(kinds, max_size=4)), min_size=1, max_size=3)
    )
    found = []
    for _ in range(draw(st.integers(1, 12))):
        name, args = draw(st.sampled_from(shapes))
        found.append(Event(name, *[draw(each) for each in args], metadata=draw(metadata)))
    return found


@settings(max_examples=40)  # each is read three times, some parts of it again and again
@given(streams(), st.integers(1, 12))
def test_columns_of_any_events_are_what_one_after_the_other_gives(drawn: list[Event], size: int) -> None:
    single = [each.encode() for each in drawn]
    agrees(single)
    batches = [Batch(drawn[n : n + size]).encode() for n in range(0, len(drawn), size)]
    agrees(batches)
    agrees([*single, *batches, Batch([Batch(drawn), *drawn]).encode()])


def test_lists_of_nones_beside_a_member_whose_type_is_known_later() -> None:
    drawn = [Event("a", (Table([]), (None, None))), Event("a", (Table([(None, False)]), ()))]

    agrees([*[each.encode() for each in drawn], Batch(drawn).encode()])


@given(st.lists(strategies.values, max_size=8))
def test_columns_of_any_values_are_what_one_after_the_other_gives(drawn: list[Value]) -> None:
    agrees([encode(each) for each in drawn])


@settings(max_examples=40)
@given(streams(), st.data())
def test_damage_is_found_as_one_after_the_other_finds_it_and_harms_no_other_event(
    drawn: list[Event], data: st.DataObject
) -> None:
    payloads = [each.encode() for each in drawn] + [Batch(drawn).encode()]
    for _ in range(data.draw(st.integers(1, 3))):
        which = data.draw(st.integers(0, len(payloads) - 1))
        raw = bytearray(payloads[which])
        if not raw:
            continue
        at = data.draw(st.integers(0, len(raw) - 1))
        if data.draw(st.booleans()):
            raw[at] = data.draw(st.sampled_from([0, 1, 2, 3, 5, 12, 13, 14, 15, 127, 128, 255]) | st.integers(0, 255))
        elif data.draw(st.booleans()):
            del raw[at:]
        else:
            raw[at:at] = data.draw(st.binary(max_size=3))
        payloads[which] = bytes(raw)
    agrees(payloads)


# -- one by one, what is promised -----------------------------------------------------------------------------------

SAMPLES: dict[str, tuple[list[Value], str]] = {
    "boolean": ([True, False], "bool"),
    "count": ([Count(0), Count(2**64 - 1)], "uint64"),
    "integer": ([-5, 2**63 - 1], "int64"),
    "real": ([0.25, math.inf, -math.inf, math.nan, -0.0], "double"),
    "string": (["", "x" * 127, "y" * 128, "z" * 20_000, "ä"], "string"),
    "bytes": ([b"\xff\x00", "text"], "string"),
    "address": ([Address("1.2.3.4"), Address("fe80::1"), Address("255.255.255.255")], "string"),
    "subnet": ([Subnet("10.0.0.0", 8), Subnet("fe80::", 10)], "string"),
    "port": ([Port(80), Port(0, "unknown")], "struct<number: uint16, protocol: string>"),
    "timestamp": ([Timestamp(-1), Timestamp(2**62)], "timestamp[ns, tz=UTC]"),
    "timespan": ([Timespan(-1), Timespan(2**62)], "duration[ns]"),
    "enum value": ([EnumValue("Conn::LOG"), EnumValue("")], "string"),
    "set of counts": ([Set([Count(1), Count(300)]), Set()], "list<element: uint64>"),
    "set of strings": ([Set(["b", "a", "ab"])], "list<element: string>"),
    "set of addresses": ([Set([Address("1.2.3.4"), Address("fe80::1")])], "list<element: string>"),
    "table": ([Table([("a", 1), ("b", None)]), Table()], "map<string, int64>"),
    "vector of one type": ([(1, 2, 3), (), (4,)], "list<element: int64>"),
    "vector of one type and length": ([(1, 2), (3, 4)], "list<element: int64>"),
    "record": ([(1, "a", None), (2, "b", 0.5)], "struct<_1: int64, _2: string, _3: double>"),
    "vector of records": ([((1, "a"), (2, "b")), ((3, "c"),)], "list<element: struct<_1: int64, _2: string>>"),
    "none": ([None, None], "null"),
    "sometimes none": ([None, Count(5), None], "uint64"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_values_of_each_type_become_the_column_that_the_table_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(raw: bytes) -> Any:
        raise AssertionError(f"{raw!r} was decoded by itself")

    values, kind = SAMPLES[name]
    payloads = [Event("e", each, "behind").encode() for each in values * 9]
    monkeypatch.setattr(events, "_values", slow)

    (batch,) = agrees(payloads)

    assert str(batch.schema.field("_1").type) == kind


def test_a_batch_has_the_rows_of_one_event_and_types_in_their_order_and_batches_come_by_their_first_row() -> None:
    payloads = [Event("b", Count(1)), Event("a", "x"), Event("b", "y"), Event("b", Count(2)), Event("a", None)]

    found = agrees([each.encode() for each in payloads])

    shown = [(batch.column("event")[0].as_py(), batch.column("_1").to_pylist()) for batch in found]
    assert shown == [("b", [1, 2]), ("a", ["x", None]), ("b", ["y"])]


def test_each_row_has_the_topic_of_its_message() -> None:
    one, two = Event("a", 1).encode(), Batch([Event("a", 2), Event("a", 3)]).encode()

    (batch,) = agrees([one, two, one], topics=[b"first", b"second", b"\xff"])

    assert batch.column("topic").to_pylist() == ["first", "second", "second", "\\xff"]


def test_the_network_time_is_a_column_and_is_null_where_an_event_has_none() -> None:
    payloads = [Event("a", metadata={1: Timestamp(7)}), Event("a"), Event("a", metadata={200: "x", 1: Timestamp(8)})]

    (batch,) = agrees([each.encode() for each in payloads])

    assert batch.schema.names == ["topic", "event", "network_time"]
    assert cells(batch.column("network_time")) == [7, None, 8]


def test_a_string_that_holds_an_event_is_not_taken_for_one() -> None:
    inner = Event("inner", "x").encode()
    outer = [Event("outer", inner.decode("latin-1").encode("utf-8")), Event("outer", inner), Event("outer", "plain")]

    (batch,) = agrees([Batch(outer).encode()])

    assert batch.num_rows == 3


def test_what_is_no_event_of_zeek_has_no_name_and_its_elements_as_columns() -> None:
    line = LogWrite(EnumValue("Conn::LOG"), EnumValue("Log::WRITER_ASCII"), "conn", b"\x00\xff")

    plain, one, log = agrees([encode((Count(1), "a")), encode("alone"), line.encode(), encode((Count(2), "b"))])

    assert plain.column("event").null_count == 2
    assert plain.column("_2").to_pylist() == ["a", "b"]
    assert one.column("_1").to_pylist() == ["alone"]
    assert log.num_columns == 6


def test_a_vector_with_more_elements_than_columns_may_be_is_one_column() -> None:
    (batch,) = events.read([TOPIC], [encode(tuple(range(101)))]).batches

    assert batch.schema.names == ["topic", "event", "network_time", "_1"]
    assert batch.column("_1")[0].as_py() == list(range(101))


def test_what_cannot_be_read_is_counted_and_the_first_named() -> None:
    many = Event("many", *range(101)).encode()
    good = Event("a", 1).encode()

    found = events.read([b"t1", b"t2", b"t3", b"t4"], [good, wrap(b"secret"), many, good[:-1]])

    assert [batch.num_rows for batch in found.batches] == [1]
    assert (found.malformed, found.topic) == (3, b"t2")
    assert "sealed" in found.reason
    assert events.read([b"t"], [many]).reason == "event many has 101 arguments, more than 100 columns"


def test_payloads_beyond_the_bytes_of_a_batch_are_in_a_further_one(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [Event("a", "x" * 100).encode() for _ in range(4)]
    monkeypatch.setattr(events, "COLUMNS_BYTES_MAX", 2 * len(payloads[0]))

    assert [batch.num_rows for batch in events.read([TOPIC] * 4, payloads).batches] == [2, 2]


def test_members_that_come_out_of_order_are_put_in_order_and_members_that_come_twice_are_malformed() -> None:
    right = Event("a", Set([Count(1), Count(2)])).encode()
    ones, twos = encode(Count(1)), encode(Count(2))
    wrong_order = right.replace(ones + twos, twos + ones)
    twice = right.replace(ones + twos, ones + ones)
    assert len({right, wrong_order, twice}) == 3

    found = events.read([TOPIC] * 3, [right, wrong_order, twice])

    assert [batch.column("_1").to_pylist() for batch in found.batches] == [[[1, 2], [1, 2]]]
    assert found.malformed == 1
    assert "twice" in found.reason


def _replaced(event: Event, old: bytes, new: bytes) -> bytes:
    raw = event.encode()
    assert raw.count(old) == 1
    return raw.replace(old, new)


GOOD = Event("a", 1, "x")
ONE, TWO = encode(Count(1)), encode(Count(2))
PAIRS = Event("a", Table([(Count(1), "x"), (Count(2), "y")]))
ODD: dict[str, tuple[bytes, bool]] = {  # and whether it is malformed
    "a key twice": (_replaced(PAIRS, TWO, ONE), True),
    "keys out of order": (_replaced(PAIRS, ONE + encode("x") + TWO, TWO + encode("x") + ONE), False),
    "a protocol that there is not": (_replaced(Event("a", Port(80)), bytes((8, 0, 80, 1)), bytes((8, 0, 80, 4))), True),
    "a subnet with host bits": (Event("a", Subnet("10.0.0.0", 8)).encode()[:-2] + b"\x01\x68", True),
    "a string beyond the end": (_replaced(GOOD, b"\x05\x01x", b"\x05\x7fx"), True),
    "a string far beyond the end": (_replaced(GOOD, b"\x05\x01x", b"\x05" + b"\xff" * 8 + b"\x7fx"), True),
    "a length without end": (_replaced(GOOD, b"\x05\x01x", b"\x05" + b"\xff" * 12), True),
    "more members than bytes": (Event("a", 1, (1, 2)).encode()[:-20] + b"\x0e\xff\xff\xff\x7f", True),
    "only a name, and what looks like arguments": (_replaced(GOOD, b"\x0e\x02\x05\x01a", b"\x0e\x01\x05\x01a"), True),
    "more elements than an event has": (
        _replaced(GOOD, b"\x0e\x02\x05\x01a", b"\x0e\x04\x05\x01a") + encode(()) + encode("further"),
        False,
    ),
    "a length that is longer than needed": (_replaced(GOOD, b"\x05\x01x", b"\x05\x81\x00x"), False),
    "a name that is not UTF-8": (_replaced(GOOD, b"\x05\x01a", b"\x05\x01\xff"), False),
    "a batch that is cut off": (Batch([GOOD, GOOD]).encode()[:-1], True),
    "a batch that counts too many": (
        _replaced(Event("a", Batch([GOOD]).encode()), b"\x0e\x01\x0e", b"\x0e\x02\x0e"),
        False,
    ),
    "nothing": (b"", True),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("last", [True, False])
def test_what_is_odd_is_read_or_refused_as_one_by_one(name: str, last: bool) -> None:
    payload, malformed = ODD[name]
    before = [GOOD.encode(), PAIRS.encode()]

    assert one_by_one([payload])[1] == malformed
    agrees([*before, payload] if last else [payload, *before])


NESTED = tuple([tuple([None] * 120) for _ in range(120)])  # each look at an element is a step, of all events at once


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The steps that are made from now on: which of its containers it was, and how many containers these are."""
    taken = []
    real = wire.EventBytes._step

    def step(self: wire.EventBytes, step: int, left: Any, of: int) -> None:
        taken.append((step, of))
        real(self, step, left, of)

    monkeypatch.setattr(wire.EventBytes, "_step", step)
    return taken


@pytest.mark.parametrize("steps", [0, 1, 7, wire.STEPS_MAX])
def test_containers_that_take_too_many_steps_are_read_one_by_one(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "STEPS_MAX", steps)
    taken = counted(monkeypatch)
    events_of_all_sizes = [Event("a", ("x",) * size, Set([str(each) for each in range(size)])) for size in range(9)]

    agrees([Event("a", NESTED).encode(), *[each.encode() for each in events_of_all_sizes]])

    assert 0 < len(taken) <= steps + 40  # one try each that finds out that there are none left


def test_one_long_value_is_not_walked_with_many_short_ones_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = counted(monkeypatch)
    short = [Event("a", ("x",) * (size % 5)).encode() for size in range(100)]

    (batch,) = agrees([*short, Event("a", ("y",) * 500).encode()])

    assert batch.num_rows == 101
    assert max(number for number, of in taken if of == 101) < 100
