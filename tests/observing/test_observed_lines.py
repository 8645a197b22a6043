"""Series of the last minutes, hour and day, in bounded memory."""

from __future__ import annotations

from chappe.observing.lines import DAY, HOUR, MINUTES, LineSpan, TimeSeries


def test_what_does_not_change_is_kept_once() -> None:
    lines = TimeSeries(points_max=3)
    for n in range(1_000):
        lines.note("a", 7.0, float(n))

    assert lines.gauge("a", 999.0, LineSpan(10.0, 5.0)) == [(-10.0, 7.0), (-5.0, 7.0), (0.0, 7.0)]


def test_the_series_that_changed_longest_ago_gives_way() -> None:
    lines = TimeSeries(series_max=2)
    lines.note("a", 1.0, 0.0)
    lines.note("b", 1.0, 0.0)
    lines.note("a", 2.0, 1.0)
    lines.note("c", 1.0, 2.0)

    assert len(lines) == 2
    assert lines.gauge("b", 2.0, LineSpan(1.0, 1.0)) == []
    assert lines.gauge("a", 2.0, LineSpan(1.0, 1.0)) == [(-1.0, 2.0), (0.0, 2.0)]


def test_points_beyond_the_bound_are_forgotten_from_the_oldest_on() -> None:
    lines = TimeSeries(points_max=5)
    for n in range(100):
        lines.note("a", float(n), float(n))

    found = lines.rates("a", 99.0, LineSpan(60.0, 1.0))

    assert found == [(-3.0, 1.0), (-2.0, 1.0), (-1.0, 1.0), (0.0, 1.0)]


def test_nothing_is_known_of_what_was_never_seen() -> None:
    lines = TimeSeries()

    assert lines.rate("a", 1.0) == 0.0
    assert lines.rates("a", 1.0, LineSpan(10.0, 1.0)) == []
    lines.forget("a")


def test_an_hour_and_a_day_are_kept_in_coarser_steps_and_bounded() -> None:
    lines = TimeSeries(coarser=(HOUR, DAY))
    for n in range(100_000):
        lines.note("a", 7.0 * n, float(n))

    now = 99_999.0
    minutes, hour, day = (lines.rates("a", now, span) for span in (MINUTES, HOUR, DAY))

    assert [len(line) for line in (minutes, hour, day)] == [150, 360, 288]
    assert {value for line in (minutes, hour, day) for _, value in line} == {7.0}
    assert day[0][0] < -85_800
    assert [now + at for at, _ in hour[-3:]] == [99_980.0, 99_990.0, now]
    assert [now + at for at, _ in day[-2:]] == [99_900.0, now]


def test_coarse_lines_begin_with_the_first_look_and_see_what_an_idle_time_was() -> None:
    lines = TimeSeries(coarser=(HOUR, DAY))
    lines.note("a", 0.0, 5.0)
    for n in range(60):
        lines.note("a", 10.0 * n, 5.0 + n)

    assert lines.rates("a", 125.0, DAY) == [(0.0, 590.0 / 120.0)]
    found = dict(lines.rates("a", 125.0, HOUR))
    assert (found[-115.0], found[-105.0], found[-45.0], found[0.0]) == (8.0, 10.0, 0.0, 0.0)
    assert [value for _, value in lines.gauge("a", 905.0, DAY)] == [590.0, 590.0, 590.0, 590.0]
