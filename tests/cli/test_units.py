from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from chappe.api.log.lines import iso_time
from chappe.cli.units import exact_bytes, human_age, human_bytes, parse_age, parse_bytes, parse_start, place
from chappe.errors import UsageError

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("7d", 604800), ("2w", 1209600)]
)
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), (5, 5), ("64KiB", 65536), ("10 GiB", 10 * 2**30), ("5GB", 5 * 10**9), ("1.5kib", 1536)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "7 years", "7dd", "nan s"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an age"):
        parse_age(text)


@pytest.mark.parametrize("text", ["", "10XB", "-5", "much"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_bytes(text)


def test_places_to_begin() -> None:
    assert parse_start("earliest") == "earliest"
    assert parse_start("latest") == "latest"
    assert parse_start("1000") == 1000
    assert parse_start("10m", NOW) == NOW - timedelta(minutes=10)
    assert parse_start("2h ago", NOW) == NOW - timedelta(hours=2)
    assert parse_start("2026-01-31T12:00:00Z") == NOW
    assert parse_start("2026-01-31T13:00+01:00") == NOW


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "1.5", "2026-13-01", "10y"])
def test_what_is_no_place_to_begin_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a place to begin"):
        parse_start(text)


def test_times_outside_the_calendar_stay_numbers() -> None:
    assert iso_time(1_000_001) == "1970-01-01T00:00:01.000001Z"
    assert iso_time(-1) == "1969-12-31T23:59:59.999999Z"
    assert iso_time(2**63 - 1) == str(2**63 - 1)


def test_sizes_for_people() -> None:
    assert [human_bytes(size) for size in (0, 1023, 1536, 5 * 2**20, 2**50)] == [
        "0 B", "1023 B", "1.5 KiB", "5.0 MiB", "1024.0 TiB"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.776e6, "90d"), (129600.0, "36h"), (90.0, "90s"), (600.0, "10m"), (0.5, "0.5s")]
)
def test_ages_are_shown_as_they_are_written(seconds: float, text: str) -> None:
    assert human_age(seconds) == text
    assert parse_age(text) == seconds


@pytest.mark.parametrize(
    ("size", "text"), [(10 << 30, "10GiB"), (5 * 10**9, "5GB"), (1001, "1001B"), (0, "0B"), (1 << 16, "64KiB")]
)
def test_sizes_are_shown_as_they_are_written(size: int, text: str) -> None:
    assert exact_bytes(size) == text
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("9464", ("127.0.0.1", 9464)), (":0", ("127.0.0.1", 0)), ("h:7", ("h", 7)), ("*:7", ("0.0.0.0", 7)),
        ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:2", ("::1", 2)), ("name@h:7", ("name@h", 7)),
    ],
)  # fmt: skip
def test_a_place_is_on_this_machine_unless_told_otherwise(text: str, where: tuple[str, int]) -> None:
    assert place(text) == where


@pytest.mark.parametrize("text", ["", "host", "h:x", "1:x", "1:99999", "70000", "-1", "a/b:7"])
def test_a_place_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not an address: \[HOST:\]PORT is wanted"):
        place(text)
