"""What is known of a neighbour's clock: what is fresh never seems old, and what is old seems as old as it can."""

from __future__ import annotations

from random import Random

import pytest

from chappe.mesh.links.link import DRIFT, NeighbourClock, micros

HOUR_S = 3_600.0


def test_without_a_reading_everything_is_from_now() -> None:
    clock = NeighbourClock()
    for theirs in (0, -(2**63), 2**63 - 1):
        assert clock.ours_us(theirs, 5.0) == 5_000_000


@pytest.mark.parametrize("ahead_s", [-100 * HOUR_S, -1.0, 0.0, 1.0, 100 * HOUR_S])
def test_a_clock_may_be_hours_ahead(ahead_s: float) -> None:
    clock = NeighbourClock()
    clock.read(micros(10.0 + ahead_s), 10.0, 10.0)
    assert clock.ours_us(micros(9.0 + ahead_s), 10.0) == 9_000_000
    assert clock.ours_us(micros(11.0 + ahead_s), 10.0) == 10_000_000  # nothing is from later than now


def test_the_quickest_answer_tells_best() -> None:
    clock = NeighbourClock()
    for way_s, wrong_s in ((3.0, 3.0), (0.5, 0.5), (0.25, 0.25), (5.0, 0.25)):
        clock.read(micros(10.0 - way_s), 10.0, 10.0 - 2 * way_s)  # both clocks show the same
        assert clock.ours_us(micros(9.0), 10.0) == micros(min(10.0, 9.0 + wrong_s))


def test_what_was_known_long_ago_may_have_drifted_since() -> None:
    clock = NeighbourClock()
    clock.read(micros(10.0), 10.0, 10.0)
    later = 10.0 + HOUR_S
    wrong_us = clock.ours_us(micros(later - 100.0), later) - micros(later - 100.0)
    assert abs(wrong_us - DRIFT * HOUR_S * 1e6) <= 1
    clock.read(micros(later - 2.0), later, later - 4.0)  # worse than what is known still
    assert clock.ours_us(micros(later - 100.0), later) - micros(later - 100.0) == wrong_us
    clock.read(micros(later - 1.0), later, later - 2.0)
    assert clock.ours_us(micros(later - 100.0), later) == micros(later - 99.0)


def test_a_clock_that_has_stood_still_is_noticed() -> None:
    clock = NeighbourClock()
    clock.read(micros(10.0), 10.0, 10.0)
    clock.read(micros(17.0), 20.0, 19.5)  # it shows less than it can
    assert clock.ours_us(micros(16.0), 20.0) == micros(19.0)
    clock.read(micros(27.0), 40.0)  # nobody knows when it was asked: the answer may have taken so long
    assert clock.ours_us(micros(16.0), 40.0) <= micros(19.0) + DRIFT * 20e6


def test_when_we_stood_still_it_is_ahead_by_more() -> None:
    clock = NeighbourClock()
    clock.read(micros(10.0), 10.0, 10.0)
    clock.read(micros(25.0), 20.0, 19.5)
    assert clock.ours_us(micros(24.0), 20.0) == micros(19.0)


@pytest.mark.parametrize("theirs", [-(2**63), 2**63 - 1])
def test_what_a_liar_says_has_bounds(theirs: int) -> None:
    clock = NeighbourClock()
    for shown in (theirs, -theirs - 1):
        clock.read(shown, 10.0, 10.0)
        for stamp in (theirs, -theirs - 1, 0):
            ours = clock.ours_us(stamp, 10.0)
            assert micros(10.0) - 2**49 < ours <= micros(10.0)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_ever_seems_older_than_it_is(seed: int) -> None:
    """Whatever the ways take, while the clocks drift as much as they may."""
    rng = Random(seed)
    rate, ahead = 1.0 + rng.choice((-1, 0, 1)) * DRIFT, rng.uniform(-1e6, 1e6)
    clock, now, best = NeighbourClock(), 0.0, 1e9
    for _ in range(200):
        asked = now
        there, back = rng.expovariate(rng.choice((100.0, 1.0))), rng.expovariate(rng.choice((100.0, 1.0)))
        shown = micros((asked + there) * rate + ahead)
        now = asked + there + back
        clock.read(shown, now, asked if rng.random() < 0.5 else -float("inf"))
        best = min(best + 2 * DRIFT * (now - asked), back)
        published = now - rng.uniform(0.0, 100.0)
        wrong_s = clock.ours_us(micros(published * rate + ahead), now) / 1e6 - published
        assert wrong_s + 100.0 * DRIFT >= -1e-4  # what it lay there counts by that clock
        assert wrong_s <= best + 100.0 * DRIFT + 1e-4
        now += rng.uniform(0.0, 3.0)
