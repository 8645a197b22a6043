"""``chappe top``: what it makes of a snapshot, and one look at a real system."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.towers import store as store
from tests.towers import tower as tower
from tests.waiting import PATIENCE_S
from typer import Context
from typer.core import TyperCommand

from chappe import Producer
from chappe.api.log.store import Store
from chappe.cli.top import ROWS_MIN, _rooms, picture, top
from chappe.observing.snapshot import (
    HealthProblem,
    ObservedLink,
    ObservedMember,
    ObservedReader,
    ObservedStore,
    ObservedTopic,
    SystemSnapshot,
)

NOW = 1_800_000_000_000_000
MEMBERS = (
    ObservedMember("t", "tower", "tower", "127.0.0.1:5556"),
    ObservedMember("s", "store", "disk@web1", "tcp://web1:1", "does not answer", "failed"),
    ObservedMember("p", "producers", "port 7", "tcp://web1:7", named=False),
    ObservedMember("own", "this dashboard", "us"),
)
LINKS = (
    ObservedLink(("t", "p"), "introduces", sent_per_s=9.0, received_per_s=9.0),
    ObservedLink(("p", "s"), "records", sent_per_s=120.0, received_per_s=2.0, waiting=3),
)
LATE = (ObservedReader("prompt", "group", 1), ObservedReader("late\x1b", "pipeline", 1_200))
TOPICS = (
    ObservedTopic("idle", 1, 5, 5, 500, NOW, NOW - 7_200_000_000),
    ObservedTopic("busy\n", 2, 4_000_000, 4_000_000, 1 << 20, NOW, NOW, readers=LATE, per_s=120.0),
)
STORES = (ObservedStore("map", "settings", ("m",), ("c", "d"), 12, "alone"),)
PROBLEM = HealthProblem("s", "failed", "The store does not answer.", "Start it.")


def snapshot(count: int = 1, awaited: tuple[str, ...] = ()) -> SystemSnapshot:
    return SystemSnapshot(
        NOW, 1, MEMBERS, LINKS, TOPICS * count, len(TOPICS) * count, STORES, (), (PROBLEM,), (), ("a note",), awaited
    )  # fmt: skip


def lines(found: SystemSnapshot, width: int = 150, height: int | None = None) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(picture(found, height))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def row(found: list[str], name: str) -> list[str]:
    (line,) = (line for line in found if name in line)
    return line.split()


def test_everything_that_matters_is_there_and_is_escaped() -> None:
    found = lines(snapshot())
    assert found[0].endswith("3 members, 2 topics, 120 records/s, 1 problem")
    assert found[1] == "failed: The store does not answer. Start it."
    assert row(found, "(port 7)")[3:] == ["tcp://web1:7", "there", "2.0", "120", "3"]
    assert row(found, "disk@web1")[-2:] == ["120", "2.0"]
    assert row(found, "5556")[-1] == "there", "beacons are no traffic"
    assert not any("this dashboard" in line for line in found)
    topics = [line.split()[0] for line in found if "ago" in line or "now" in line]
    assert topics == ["busy\\n", "idle"], "the busiest first"
    assert row(found, "busy")[-2:] == ["1,200", "late\\x1b"], "the reader that is furthest behind"
    assert row(found, "idle")[-3:] == ["2", "h", "ago"]
    assert row(found, "settings")[:4] == ["settings", "map", "12", "2"]
    assert found[-1] == "a note"
    assert lines(snapshot(awaited=("log",)))[0].endswith(", looking")


def test_a_low_and_narrow_terminal_gets_the_first_rows() -> None:
    found = lines(snapshot(50), width=60, height=24)
    assert len(found) <= 24
    assert any(line.startswith("... and ") and line.endswith(" more") for line in found)
    assert all(len(line) <= 60 for line in found)


@given(st.lists(st.integers(1, 500), max_size=3), st.integers(0, 200))
def test_no_row_of_a_terminal_is_wasted(wanted: list[int], height: int) -> None:
    rooms = _rooms(wanted, height)
    assert all(min(each, ROWS_MIN) <= room <= each for each, room in zip(wanted, rooms, strict=True))
    used = sum(rooms) + 3 * len(wanted)
    assert used <= height or rooms == [min(each, ROWS_MIN) for each in wanted]
    assert used >= height or rooms == wanted


def test_without_a_terminal_it_looks_once(store: Store, tower: str, capfd: pytest.CaptureFixture[str]) -> None:
    with Producer("t", tower=tower) as producer:
        producer.send_many([b"a", b"b"])
        producer.flush(PATIENCE_S)
        context = Context(TyperCommand("top"))
        top(context=context, tower=tower, listen="127.0.0.1", peers=["127.0.0.1:1"], as_json=True)
    found = json.loads(capfd.readouterr().out)
    assert {"tower", "store", "producers"} <= {each["kind"] for each in found["members"]}
    assert [(each["name"], each["records"]) for each in found["topics"]] == [("t", 2)]
    assert found["problems"]
