"""What a benchmark says at its end: sentences, a table, JSON, a picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

from chappe.benchmark.plot import draw
from chappe.benchmark.report import COLUMNS, SPARE, BenchmarkReport, NodeOutcome, rows


def report() -> BenchmarkReport:
    nodes = [
        NodeOutcome("a<b", 10, 0, sent=10, send_s=0.5, frames_out=10, bytes_out=2_000_000),
        NodeOutcome("middle", 0, 10, received=10, receive_s=0.25, frames_in=10, frames_out=10),
        NodeOutcome("c", 5, 10, sent=5, received=7, send_s=0.5, receive_s=1.0, dropped=1),
        NodeOutcome("d", 4, 2, sent=1, received=3, ended="ended by SIGKILL"),
    ]
    return BenchmarkReport(nodes, "the time is up", {"middle": [(0.0, 0), (0.2, 9)], "c": [(0.0, 0)]})


def test_what_is_missing_is_said_node_by_node() -> None:
    assert not report().complete
    assert report().troubles() == [
        "the time is up",
        "c received 7 of 10 messages: 3 lost",
        "d ended by SIGKILL",
        "d sent 1 of 4 messages",
        "d received 1 messages more than the 2 expected",
    ]
    whole = BenchmarkReport(report().nodes[:2])
    assert whole.complete
    assert whole.troubles() == []


def test_the_table_has_a_row_for_each_node_and_one_for_all() -> None:
    made = rows(report().nodes, report().total())
    assert [len(row) for row in made] == [len(COLUMNS)] * 5
    assert set(SPARE) <= set(COLUMNS)
    assert made[0][:3] == ("a<b", "10", "20")
    assert made[2][3:6] == ("7", "7", "3")
    assert made[-1][:2] == ("all", "16")


def test_a_machine_gets_the_same() -> None:
    facts = json.loads(json.dumps(report().facts()))
    assert facts["total"] == {
        "sent": 16,
        "received": 20,
        "expected": 22,
        "lost": 3,
        "surplus": 1,
        "seconds": 1.0,
        "received_per_s": 20.0,
        "frames": 20,
        "frames_per_received": 1.0,
        "bytes": 2_000_000,
        "dropped": 1,
        "cpu_s": 0.0,
    }
    assert (facts["complete"], facts["nodes"][2]["lost"], facts["nodes"][1]["in_per_s"]) == (False, 3, 40.0)


def test_the_picture_is_one_with_a_curve_for_each_receiver_and_bars_for_each_node() -> None:
    svg = "{http://www.w3.org/2000/svg}"
    tree = ET.fromstring(draw(report()))
    _, _, width, height = map(float, tree.attrib["viewBox"].split())
    assert len(tree.findall(f"{svg}polyline")) == 3
    assert len(tree.findall(f"{svg}rect")) == 1 + 2 * 4
    for line in tree.findall(f"{svg}polyline"):
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
    for each in tree.iter(f"{svg}text"):
        assert 0 < float(each.attrib["y"]) < height
    ET.fromstring(draw(BenchmarkReport([NodeOutcome("a", 0, 0)])))  # nothing at all


def test_what_came_when_is_all_that_came() -> None:
    node = NodeOutcome("a", 0, 100, received=100, receive_s=0.8)
    made = BenchmarkReport([node], samples={"a": [(0.0, 0), (0.2, 0), (0.4, 80), (0.9, 99)]}).received_by_step(
        node, 10, 1.0
    )
    assert [round(each) for each in made] == [0, 0, 40, 40, 5, 5, 5, 5, 0, 0]
    nothing = NodeOutcome("b", 0, 0)
    assert BenchmarkReport([nothing]).received_by_step(nothing, 3, 1.0) == [0.0, 0.0, 0.0]
