"""Recorded messages of the mesh as typed columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from chappe.bridges.form import SENDER
from chappe.data.binary import encode
from chappe.data.scalars import Address, Count, EnumValue, Port, Subnet, Timespan, Timestamp
from chappe.data.values import Set, Table
from chappe.data.zeek import Batch, Event, LogWrite
from chappe.errors import UsageError
from chappe.spark import decode_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "topic string, key binary, value binary, headers array<struct<key: string, value: binary>>"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ALL_TYPES = (
    None,
    True,
    Count(7),
    -7,
    0.5,
    "text",
    Address("10.0.0.1"),
    Subnet("10.0.0.0", 8),
    Port(443, "tcp"),
    Timestamp.from_datetime(NOON) + Timespan(1_999),
    Timespan(1_500_000_999),
    EnumValue("Conn::LOG"),
    Set(["b", "a"]),
    Table([("k", 1), ("l", 2)]),
    (1, 2, 3),
)


def recorded(spark: SparkSession, values: Sequence[object], headers: object = ((SENDER, b"id"),)) -> DataFrame:
    raws = [each if isinstance(each, bytes) or each is None else _encoded(each) for each in values]
    return spark.createDataFrame([("kept", b"zeek/x", raw, headers) for raw in raws], COLUMNS)


def _encoded(value: object) -> bytes:
    return value.encode() if isinstance(value, (Event, Batch, LogWrite)) else encode(value)


def types_of(df: DataFrame) -> str:
    return df.select("args.*").schema.simpleString()


def args_of(df: DataFrame) -> list[Any]:
    return [None if row.args is None else tuple(row.args) for row in df.collect()]


def only(df: DataFrame) -> Row:
    (row,) = df.collect()
    return row


def test_an_event_has_its_columns(spark: SparkSession) -> None:
    event = Event("conn", "C1", Count(80), metadata={1: NOON, 200: "x", 201: [1]})
    df = decode_events(recorded(spark, [event]), "uid string, port int")
    assert df.columns == ["topic", "mesh_topic", "sender", "event", "args", "network_time", "metadata", "_corrupt"]
    row = only(df)
    assert (row.topic, row.mesh_topic, row.sender, row.event) == ("kept", "zeek/x", "id", "conn")
    assert (tuple(row.args), row.metadata, row._corrupt) == (("C1", 80), {200: "x", 201: "(1)"}, None)
    assert row.network_time.astimezone(UTC) == NOON
    assert only(df.selectExpr("args.port + 1 AS n")).n == 81


def test_all_types_are_inferred(spark: SparkSession) -> None:
    df = decode_events(recorded(spark, [Event("e", *ALL_TYPES)]))
    assert types_of(df) == (
        "struct<_1:string,_2:boolean,_3:bigint,_4:bigint,_5:double,_6:string,_7:string,_8:string,"
        "_9:struct<number:int,protocol:string>,_10:timestamp,_11:interval day to second,_12:string,_13:array<string>,"
        "_14:map<string,bigint>,_15:array<bigint>>"
    )
    row = only(df)
    assert row._corrupt is None
    (args,) = args_of(df)
    assert args[:8] == (None, True, 7, -7, 0.5, "text", "10.0.0.1", "10.0.0.0/8")
    assert tuple(args[8]) == (443, "tcp")
    assert args[9].astimezone(UTC) == NOON + timedelta(microseconds=1)
    assert args[10:] == (timedelta(microseconds=1_500_000), "Conn::LOG", ["a", "b"], {"k": 1, "l": 2}, [1, 2, 3])


@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("decimal(20,0)", Count(2**64 - 1), Decimal(2**64 - 1)),
        ("decimal(22,2)", -5, Decimal("-5.00")),
        ("double", Count(3), 3.0),
        ("tinyint", -128, -128),
        ("smallint", Count(32767), 32767),
        ("int", Port(53, "udp"), 53),
        ("string", Port(53, "udp"), "53/udp"),
        ("bigint", Timestamp(1_234_567_891), 1_234_567_891),
        ("double", Timespan(1_500_000_000), 1.5),
        ("timestamp_ntz", Timestamp.from_datetime(NOON), NOON.replace(tzinfo=None)),
        ("interval day to second", Timespan(-1), timedelta(microseconds=-1)),
        ("string", b"\xff\x00a", "\\xff\x00a"),
        ("string", EnumValue("x\udcff"), "x\\xff"),
        ("binary", b"\xff", bytearray(b"\xff")),
        ("binary", "é", bytearray("é".encode())),
        ("float", 0.5, 0.5),
        ("string", (1, Set([Port(1, "tcp")])), "(1, {1/tcp})"),
        ("array<string>", Set([Address("::1")]), ["::1"]),
        ("array<array<int>>", ((1,), (), None), [[1], [], None]),
        ("map<int,array<boolean>>", Table([(1, (True,))]), {1: [True]}),
        ("struct<a:int,b:string>", (1,), (1, None)),
        ("struct<a:int>", (1, 2), (1,)),
        ("struct<n:int,p:string>", Port(8, "icmp"), (8, "icmp")),
    ],
)
def test_what_can_be_declared(spark: SparkSession, ddl: str, value: object, expected: object) -> None:
    row = only(decode_events(recorded(spark, [Event("e", value)]), f"x {ddl}"))
    assert row._corrupt is None
    found = row.args.x
    assert (tuple(found) if isinstance(found, tuple) else found) == expected


@pytest.mark.parametrize(
    ("ddl", "value", "reason"),
    [
        ("bigint", Count(2**63), "x: count '9223372036854775808' does not fit into bigint"),
        ("tinyint", 128, "x: integer '128' does not fit into tinyint"),
        ("smallint", Port(65535, "tcp"), "x: port '65535/tcp' does not fit into smallint"),
        ("int", "1", "x: string '1' does not fit into int"),
        ("int", Timespan(1), "x: timespan '1ns' does not fit into int"),
        ("int", True, "x: boolean 'T' does not fit into int"),
        ("double", 2**53 + 1, "x: integer '9007199254740993' does not fit into double"),
        ("decimal(3,0)", 1000, "x: integer '1000' does not fit into decimal(3,0)"),
        ("boolean", 1, "x: integer '1' does not fit into boolean"),
        ("timestamp", Timespan(1), "x: timespan '1ns' does not fit into timestamp"),
        ("array<int>", "a" * 100, f"x: string '{'a' * 60}...' does not fit into array<int>"),
        ("array<int>", (1, "b"), "x: string 'b' does not fit into int"),
        ("map<string,int>", Table([(None, 1)]), "x: table '{nil -> 1}' does not fit into map<string,int>"),
        ("struct<a:struct<b:int>>", (("c",),), "x: a: b: string 'c' does not fit into int"),
    ],
)
def test_what_does_not_fit_is_named(spark: SparkSession, ddl: str, value: object, reason: str) -> None:
    row = only(decode_events(recorded(spark, [Event("e", value)]), f"x {ddl}"))
    assert (row.event, row.args, row._corrupt) == ("e", None, reason)


def test_damage_harms_no_other_row(spark: SparkSession) -> None:
    whole = Event("e", 1).encode()
    df = decode_events(recorded(spark, [whole, whole[:-1], b"", b"\xff", None, whole]), "n int")
    rows = df.collect()
    assert [row.args and row.args.n for row in rows] == [1, None, None, None, None, 1]
    assert [row.event for row in rows] == ["e", "e", None, None, None, "e"]
    assert [row._corrupt is None for row in rows] == [True, False, False, False, True, True]
    assert rows[1]._corrupt == f"a value is cut off after {len(whole) - 1} bytes"


def test_missing_arguments_are_null_and_further_ones_left_out(spark: SparkSession) -> None:
    df = decode_events(recorded(spark, [Event("e", 1), Event("e", 1, "b", 3)]), "n int, s string")
    assert args_of(df) == [(1, None), (1, "b")]


def test_events_by_name(spark: SparkSession) -> None:
    values: list[object] = [
        Event("a", 1),
        Event("b", "x"),
        Event("a", 2),
        [1],
        LogWrite(EnumValue("S"), EnumValue("W"), "", ""),
    ]
    df = recorded(spark, [*values, b"\xff"])
    assert args_of(decode_events(df, event="a")) == [(1,), (2,), None]
    assert types_of(decode_events(df, event="b")) == "struct<_1:string>"
    with pytest.raises(UsageError, match="different events: a, b, values that are not events; choose one with event="):
        decode_events(df)
    with pytest.raises(UsageError, match="no event c among 6 records"):
        decode_events(df, event="c")


def test_the_messages_of_a_batch_are_rows(spark: SparkSession) -> None:
    batch = Batch([Event("e", 1), Batch([Event("e", 2), Event("f", 3)]), Event("e", 4)])
    df = recorded(spark, [Event("e", 0), batch, Batch([]), Event("e", 5)])
    found = decode_events(df, "n int").collect()
    assert [(row.event, row.args.n, row.mesh_topic) for row in found] == [
        ("f" if n == 3 else "e", n, "zeek/x") for n in range(6)
    ]
    assert args_of(decode_events(df, event="e")) == [(0,), (1,), (2,), (4,), (5,)]


def test_values_that_are_no_events(spark: SparkSession) -> None:
    rows = decode_events(recorded(spark, [["a", 1], ["b", 2]])).collect()
    assert [(row.event, tuple(row.args)) for row in rows] == [(None, ("a", 1)), (None, ("b", 2))]
    assert args_of(decode_events(recorded(spark, [1.5]))) == [(1.5,)]


def test_types_that_fit_all_of_a_sample(spark: SparkSession) -> None:
    first = Event("e", None, 1, (), 5, (1, "a"), Set(), 1, (1, 2), Table())
    second = Event(
        "e", "x", Count(2**63), ("v",), "text", (2, None), Set([2.5]), None, (3,), Table([(Port(1, "tcp"), 1)])
    )
    df = decode_events(recorded(spark, [first, second]))
    assert types_of(df) == (
        "struct<_1:string,_2:decimal(20,0),_3:array<string>,_4:string,_5:struct<_1:bigint,_2:string>,"
        "_6:array<double>,_7:bigint,_8:array<bigint>,_9:map<struct<number:int,protocol:string>,bigint>>"
    )
    assert [row._corrupt for row in df.collect()] == [None, None]
    assert [row[3] for row in args_of(df)] == ["5", "text"]


def test_headers_of_others_are_no_senders(spark: SparkSession) -> None:
    for headers, sender in (
        (((SENDER, b"id"), ("other", b"x")), "id"),
        ((("other", b"x"), (SENDER, b"id")), "id"),
        ((), None),
        (None, None),
    ):
        assert only(decode_events(recorded(spark, [[1]], headers))).sender == sender
    plain = recorded(spark, [[1]]).drop("headers")
    assert only(decode_events(plain)).sender is None
    mixed = recorded(spark, [[1]], ((SENDER, b"a"), (SENDER, b"b"))).union(recorded(spark, [[1]], ())).coalesce(1)
    assert [row.sender for row in decode_events(mixed).collect()] == ["a", None]


def test_what_cannot_be_is_refused(spark: SparkSession) -> None:
    df = recorded(spark, [Event("e", 1), Event("e")])
    with pytest.raises(UsageError, match="no value of the mesh can be a date"):
        decode_events(df, "d date")
    with pytest.raises(UsageError, match="no column value"):
        decode_events(df.drop("value"))
    with pytest.raises(UsageError, match="a column event already"):
        decode_events(df.withColumnRenamed("topic", "event"))
    with pytest.raises(UsageError, match="no message of the mesh among 1 records"):
        decode_events(recorded(spark, [b"\xff"]))
    with pytest.raises(UsageError, match="no message of 1 has arguments"):
        decode_events(recorded(spark, [Event("e")]))
    stream = (
        spark.readStream.format("rate")
        .load()
        .selectExpr("CAST(CAST(value AS string) AS binary) value", "CAST('' AS binary) key")
    )
    with pytest.raises(UsageError, match="a stream cannot be looked at"):
        decode_events(stream)
    assert decode_events(stream, sample=df).isStreaming
