"""Series of the last minutes, in bounded memory."""

from __future__ import annotations

from chappe.observing.lines import Lines


def test_what_does_not_change_is_kept_once() -> None:
    lines = Lines(points_max=3)
    for n in range(1_000):
        lines.note("a", 7.0, float(n))

    assert lines.gauge("a", 999.0, 10.0, 5.0) == [(-10.0, 7.0), (-5.0, 7.0), (0.0, 7.0)]


def test_the_series_that_changed_longest_ago_gives_way() -> None:
    lines = Lines(series_max=2)
    lines.note("a", 1.0, 0.0)
    lines.note("b", 1.0, 0.0)
    lines.note("a", 2.0, 1.0)
    lines.note("c", 1.0, 2.0)

    assert len(lines) == 2
    assert lines.gauge("b", 2.0, 1.0, 1.0) == []
    assert lines.gauge("a", 2.0, 1.0, 1.0) == [(-1.0, 2.0), (0.0, 2.0)]


def test_points_beyond_the_bound_are_forgotten_from_the_oldest_on() -> None:
    lines = Lines(points_max=5)
    for n in range(100):
        lines.note("a", float(n), float(n))

    found = lines.rates("a", 99.0, 60.0, 1.0)

    assert found == [(-3.0, 1.0), (-2.0, 1.0), (-1.0, 1.0), (0.0, 1.0)]


def test_nothing_is_known_of_what_was_never_seen() -> None:
    lines = Lines()

    assert lines.rate("a", 1.0) == 0.0
    assert lines.rates("a", 1.0, 10.0, 1.0) == []
    lines.forget("a")
