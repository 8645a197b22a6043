"""What reading and writing typed values costs: ``python -m benchmarks.values`` prints nanoseconds for each."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from timeit import Timer

from rich.console import Console
from rich.table import Table as Grid

from chappe.data import binary, json
from chappe.data.values import Address, Count, EnumValue, Port, Set, Table, Timespan, Timestamp, Value
from chappe.data.zeek import Event

ROUNDS = 7
BIG = 10_000  # elements of the big containers
TOGETHER = 16_384  # events that become columns at once: what waits for a subscriber at most

SMALL: Value = (Count(1), "x" * 100)
CONN_LOG: Value = (
    Timestamp(1683106077123456789),
    "CHhAvVGS1DHFjwGM9",
    Address("192.168.4.76"),
    Port(36844),
    Address("192.168.4.1"),
    Port(443),
    EnumValue("tcp"),
    "ssl",
    Timespan(66_851_000_000),
    Count(62),
    Count(141),
    "SF",
    True,
    False,
    Count(0),
    "ShADadFf",
    Count(4),
    Count(270),
    0.75,
    Set(["a", "b"]),
)
BIG_VECTOR: Value = tuple([Count(each) for each in range(BIG)])
BIG_SET: Value = Set([f"host-{each}.example.org" for each in range(BIG)])
BIG_TABLE: Value = Table([(Address(each.to_bytes(4, "big")), Count(each)) for each in range(BIG)])
CASES: dict[str, Value] = {
    "event: count and 100-byte string": SMALL,
    "line of a conn.log, 20 fields": CONN_LOG,
    f"vector of {BIG:,} counts": BIG_VECTOR,
    f"set of {BIG:,} strings": BIG_SET,
    f"table of {BIG:,} addresses and counts": BIG_TABLE,
}


def nanoseconds(do: Callable[[], object], run_s: float) -> float:
    """Of one call, the best of some rounds of ``run_s`` seconds together."""
    timer = Timer(do)
    calls, took = timer.autorange()
    calls = max(1, int(calls * run_s / ROUNDS / took))
    return min(timer.repeat(ROUNDS, calls)) / calls * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.values", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="measure each case so long (%(default)s)")
    run_s = parser.parse_args().seconds
    grid = Grid(title="typed values, ns per value")
    for heading in ("value", "bytes", "encode", "decode", "JSON write", "JSON read"):
        grid.add_column(heading, justify="left" if heading == "value" else "right")
    for name, value in CASES.items():
        raw, text = binary.encode(value), json.dumps(value)
        jobs: list[Callable[[], object]] = [
            lambda value=value: binary.encode(value),  # type: ignore[misc]
            lambda raw=raw: binary.decode(raw),  # type: ignore[misc]
            lambda value=value: json.dumps(value),  # type: ignore[misc]
            lambda text=text: json.loads(text),  # type: ignore[misc]
        ]
        grid.add_row(name, f"{len(raw):,}", *[f"{nanoseconds(job, run_s):,.0f}" for job in jobs])
    raw = Event("ping", *SMALL).encode() if isinstance(SMALL, tuple) else b""
    parsed, read = nanoseconds(lambda: Event.parse(raw), run_s), nanoseconds(lambda: Event.parse(raw).args, run_s)
    made = nanoseconds(lambda: Event("ping", Count(1), "x" * 100).encode(), run_s)
    grid.add_row("Zeek event of the first", f"{len(raw):,}", f"{made:,.0f}", f"{parsed:,.0f}, args {read:,.0f}", "", "")
    for name, value in (("first", SMALL), ("second", CONN_LOG)):
        alone, together = one_by_one_and_columns(value, run_s)
        grid.add_row(f"of Zeek events of the {name}: args; columns", "", "", f"{alone:,.0f}; {together:,.0f}", "", "")
    Console(width=120).print(grid)


def one_by_one_and_columns(value: Value, run_s: float) -> tuple[float, float]:
    """Of one event among many: its arguments as values; and as columns of Arrow, with topic, name and network time."""
    from chappe.columns.events import read

    assert isinstance(value, tuple)
    payloads = [Event("ping", *value, metadata={1: Timestamp(number)}).encode() for number in range(TOGETHER)]
    topics = [b"zeek/ping"] * TOGETHER
    alone = nanoseconds(lambda: [Event.parse(raw).args for raw in payloads], run_s)
    together = nanoseconds(lambda: read(topics, payloads), run_s)
    return alone / TOGETHER, together / TOGETHER


if __name__ == "__main__":
    main()
