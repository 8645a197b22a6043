"""Reports of load tests: rates, losses and latencies of all processes together, and what went wrong."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from chappe.benchmark.load.histogram import Histogram
from chappe.benchmark.load.report import SAMPLES_MAX, STEPS, LoadMember, LoadReport, Samples, rate_rows


def member(name: str, part: str, count: int = 0, seconds: float = 2.0, **more: Any) -> LoadMember:
    return LoadMember(name, name.split()[0], part, count, seconds, **more)


def report(*members: LoadMember, **more: Any) -> LoadReport:
    return LoadReport("log", "record", 1024, {}, None, list(members), **more)


def two_producers(*others: LoadMember, **more: Any) -> LoadReport:
    ages = Histogram()
    ages.add(1_000_000, 99)
    ages.add(5_000_000)
    first = member("producer 1", "sources", 600, cpu_s=0.3, latencies={"stored": ages})
    second = member("producer 2", "sources", 400, 4.0, latencies={"stored": ages}, cpu_s=0.1)
    return report(*others, first, second, **more)


def test_rates_are_those_of_all_processes_until_the_last_was_done() -> None:
    found = two_producers(
        member("store", "servers", cpu_s=0.5), member("consumer", "sinks", 1000, 5.0, cpu_s=0.1)
    ).facts()
    assert found["complete"]
    assert (found["records_sent"], found["records_lost"], found["seconds"]) == (1000, 0, 5.0)
    assert found["cpu_us_per_record"] == 1000.0
    assert found["groups"] == [
        {
            "role": "producer", "processes": 2, "records": 1000, "records_per_s": 250.0, "bytes_per_s": 256_000.0,
            "each_records_per_s": {"min": 100.0, "mean": 200.0, "max": 300.0}, "cpu_s": 0.4,
        },
        {
            "role": "consumer", "processes": 1, "records": 1000, "records_per_s": 200.0, "bytes_per_s": 204_800.0,
            "each_records_per_s": {"min": 200.0, "mean": 200.0, "max": 200.0}, "cpu_s": 0.1,
        },
        {"role": "store", "processes": 1, "cpu_s": 0.5},
    ]  # fmt: skip
    stored = found["latency"]["stored"]
    assert (stored["count"], stored["min_us"], stored["mean_us"], stored["max_us"]) == (200, 1000.0, 1040.0, 5000.0)
    assert 1000 <= stored["p50_us"] <= stored["p99_us"] <= 1032 < stored["p999_us"] == 5000
    assert sum(each["count"] for each in stored["histogram"]) == 200


def test_a_table_has_a_row_for_each_role_and_one_for_all() -> None:
    rows = list(rate_rows(two_producers(member("consumer", "sinks", 1000, 5.0, cpu_s=0.1))))
    assert rows == [
        ("2 producers", "1,000", "250", "0.2", "100", "200", "300", "400.00"),
        ("1 consumer", "1,000", "200", "0.2", "", "", "", "100.00"),
        ("all", "", "", "", "", "", "", "500.00"),
    ]
    assert next(iter(rate_rows(report(member("producer", "sources")))))[-1] == ""  # nothing was sent


def test_whatever_is_missing_is_told_and_nothing_is_complete_then() -> None:
    found = two_producers(
        member("consumer 1", "sinks", 990), member("consumer 2", "sinks", 900, dropped=100),
        member("store", "servers", problem="the disk is full"),
    )  # fmt: skip
    assert found.lost == 10
    assert found.troubles() == [
        "consumer 1 got 990 of 1,000 records: 10 missing",
        "consumer 2 was too slow: 100 records dropped",
        "store: the disk is full",
    ]
    assert not found.complete


def test_a_run_that_was_cut_knows_no_losses() -> None:
    dead = member("consumer", "sinks", 10, ended="ended by SIGKILL")
    found = two_producers(dead, reason="stopped before its end", cut=True)
    assert found.lost is None
    assert found.troubles() == ["stopped before its end", "consumer: ended by SIGKILL"]
    assert found.facts()["records_lost"] is None


def test_what_arrived_over_time_is_that_of_all_sinks() -> None:
    one, other = member("consumer 1", "sinks", 400, 4.0), member("consumer 2", "sinks", 200, 2.0)
    one.samples.add(2.0, 400)
    grown = report(member("producer", "sources", 400, 1.0), one, other).over_time()
    assert len(grown) == STEPS
    assert sum(grown[: STEPS // 2]) == pytest.approx(600)
    assert sum(grown[STEPS // 2 :]) == pytest.approx(0)
    assert sum(report(member("producer", "sources", 400, 1.0)).over_time()) == pytest.approx(400)
    assert report(member("producer", "sources", seconds=0.0)).over_time() == [0.0] * STEPS


def test_samples_of_a_run_of_days_stay_few_and_cover_all_of_it() -> None:
    samples = Samples()
    for number in range(100_000):
        samples.add(number / 5, number)
        assert len(samples.points) < SAMPLES_MAX
    seconds = [second for second, _ in samples.points]
    gaps = [after - before for before, after in pairwise(seconds)]
    assert max(gaps) <= 4 * 20_000 / SAMPLES_MAX
    assert seconds[-1] >= 20_000 - 4 * 20_000 / SAMPLES_MAX
