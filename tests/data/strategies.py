"""Hypothesis strategies for typed values, and the golden vectors."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from chappe.data.quirks import NORMAL_MIN
from chappe.data.scalars import COUNT_MAX, INTEGER_MAX, INTEGER_MIN, PROTOCOLS
from chappe.data.values import Address, Count, EnumValue, Port, Set, Subnet, Table, Timespan, Timestamp, Value

VECTORS: Final = Path(__file__).parents[1] / "vectors" / "broker"
SUBNORMAL: Final = "real_denorm"  # mangled on the wire: its bytes stand for another number than it was made from

integers = st.integers(INTEGER_MIN, INTEGER_MAX)
reals = st.floats().filter(lambda x: x == 0.0 or not abs(x) < NORMAL_MIN)  # subnormals do not survive the wire
v4_addresses = st.binary(min_size=4, max_size=4).map(Address)
addresses = v4_addresses | st.binary(min_size=16, max_size=16).map(Address)
subnets = st.builds(Subnet, v4_addresses, st.integers(0, 32)) | st.builds(
    Subnet, st.binary(min_size=16, max_size=16).map(lambda raw: Address(b"\x20" + raw[1:])), st.integers(0, 128)
)
ports = st.builds(Port, st.integers(0, 65535), st.sampled_from(PROTOCOLS))
texts = st.text(st.characters(exclude_categories=["Cs"]))
not_utf8 = st.binary().map(lambda raw: raw + b"\xff")

SCALARS: Final[dict[str, st.SearchStrategy[Value]]] = {
    "none": st.none(),
    "boolean": st.booleans(),
    "count": st.integers(0, COUNT_MAX).map(Count),
    "integer": integers,
    "real": reals,
    "string": texts | not_utf8,
    "address": addresses,
    "subnet": subnets,
    "port": ports,
    "timestamp": integers.map(Timestamp),
    "timespan": integers.map(Timespan),
    "enum-value": texts.map(EnumValue) | not_utf8.map(lambda raw: EnumValue(raw, "utf-8", "surrogateescape")),
}
scalars: st.SearchStrategy[Value] = st.one_of(*SCALARS.values())


def containers(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    some = st.lists(inner, max_size=5)
    return some.map(tuple) | some.map(Set) | st.lists(st.tuples(inner, inner), max_size=5).map(Table)


values: st.SearchStrategy[Value] = st.recursive(scalars, containers, max_leaves=20)


@dataclass(frozen=True)
class Vector:
    """One golden vector; JSON and text as the bytes that they are."""

    name: str
    binary: bytes
    json: bytes
    text: bytes


def vectors() -> list[Vector]:
    # The file shows each byte as the character with its number.
    return [
        Vector(
            each["name"],
            bytes.fromhex(each["bin_v1_hex"]),
            each["json_v1"].encode("latin-1"),
            each["txt"].encode("latin-1"),
        )
        for each in json.loads((VECTORS / "data.json").read_text())
    ]


def finite(value: Value) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
