"""Charts of characters, and how `chappe topics --plot` divides time."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import pytest
from tests.cli.conftest import Shell

from chappe import Producer
from chappe.cli.charts import amounts, bar
from chappe.cli.topics_plot import SECOND_US, steps

HOUR_US: Final = 3600 * SECOND_US
NOON_US: Final = 1_769_860_800 * SECOND_US  # 2026-01-31T12:00:00Z


def test_a_little_is_not_nothing() -> None:
    assert amounts([0, 1, 500, 1000]) == " ▁▅█"
    assert amounts([0, 0]) == "  "
    assert amounts([]) == ""
    assert [bar(each, 100, 2) for each in (0, 0.1, 50, 75, 100, 200)] == ["", "▏", "█", "█▌", "██", "██"]
    assert bar(0, 0, 5) == ""


@pytest.mark.parametrize(
    ("span_us", "step_s"),
    [
        (0, 0.001),
        (SECOND_US, 0.1),
        (59 * SECOND_US, 1),
        (HOUR_US, 120),
        (24 * HOUR_US, 1800),
        (30 * 24 * HOUR_US, 86400),
    ],
)
def test_time_is_divided_as_people_count_it(span_us: int, step_s: float) -> None:
    begin = NOON_US + 7
    edges, found = steps(begin, begin + span_us, 60)
    assert found == step_s
    assert edges[0] <= begin
    assert edges[-2] <= begin + span_us < edges[-1]
    assert len(edges) <= 61
    assert edges[0] % round(step_s * SECOND_US) == 0
    assert {b - a for a, b in pairwise(edges)} == {round(step_s * SECOND_US)}


@pytest.mark.parametrize("most", [1, 12, 60])
def test_any_time_is_divided(most: int) -> None:
    for begin, end in ((-(2**62), 2**62), (0, 2**63 - 1), (2**63 - 1, 2**63 - 1)):
        edges, _ = steps(begin, end, most)
        assert len(edges) <= most + 1
        assert edges[0] <= begin <= end < edges[-1]


@pytest.mark.process
def test_when_records_came_is_drawn(shell: Shell) -> None:
    tower = shell.up("store")["tower"]
    with Producer("orders", tower=tower, min_acks=1) as orders, Producer("rare", tower=tower, min_acks=1) as rare:
        for minute in range(10):
            for _ in range(minute):
                orders.send("x" * 100, timestamp=NOON_US + minute * 60 * SECOND_US)
        rare.send("x", timestamp=NOON_US + 5 * 60 * SECOND_US)
        orders.flush()
        rare.flush()
    shell.env["COLUMNS"] = "120"
    done = shell.run("topics", "--plot")
    assert done.returncode == 0, done.stderr
    head, first, second, *_ = lines = done.stdout.decode().splitlines()
    assert head.split() == ["topic", "records", "over", "time", "peak", "size"]
    assert first.split()[:2] == ["orders", "45"]
    curve = "".join(each for each in first[first.index("45") + 2 :] if each in " ▁▂▃▄▅▆▇█")
    assert [each for each in curve if each != " "][:9] == list("▁▂▃▄▅▆▇██")
    assert second.split()[:3] == ["rare", "1", "█"]
    assert lines[3].startswith("from 2026-01-31T12:01:00Z to 2026-01-31T12:09:10Z, a character is 10 s; curves go")
    assert b"0" in shell.run("topics", "--plot", "--since", "1h", "orders").stdout
    for arguments, said in (
        (("--since", "1h"), b"--since is for --plot"),
        (("--plot", "--json"), b"only one of --plot and --json"),
        (("--plot", "--since", "yesterday"), b"--since is a time"),
        (("--plot", "nowhere"), b"does not have a topic 'nowhere'"),
        (("--plot", "no*"), b"none of the 2 topics matches 'no*'"),
    ):
        assert said in shell.run("topics", *arguments).stderr
