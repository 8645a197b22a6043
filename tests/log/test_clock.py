"""Another's clock, as it is found by asking, when it goes otherwise than ours and is set."""

from __future__ import annotations

import pytest

from chappe.log.clocks import RUNS_MAX, SLACK_S, ClockEstimate

WALL = 1_700_000_000_000_000  # what the other's clock shows at 0


class Other:
    """A clock that is asked over ways of any length."""

    def __init__(self, clock: ClockEstimate) -> None:
        self.clock = clock
        self.ahead_s = 0.0

    def shows(self, now: float) -> int:
        return WALL + round((now + self.ahead_s) * 1e6)

    def ask(self, now: float, there_s: float = 0.001, back_s: float = 0.001, **options: float) -> None:
        self.clock.read(now, now + there_s + back_s, self.shows(now + there_s), **options)


@pytest.fixture
def other() -> Other:
    return Other(ClockEstimate())


@pytest.mark.parametrize("ahead_s", [-3600.0, -0.1, 0.0, 0.1, 3600.0])
@pytest.mark.parametrize(("there_s", "back_s"), [(0.0, 0.0), (0.0, 0.4), (0.4, 0.0), (0.2, 0.2)])
def test_half_of_the_way_is_what_it_may_be_wrong_by(
    other: Other, ahead_s: float, there_s: float, back_s: float
) -> None:
    other.ahead_s = ahead_s
    other.ask(100.0, there_s, back_s)
    stamp = other.shows(101.0)
    assert abs(other.clock.age_s(stamp, 111.0) - 10.0) <= (there_s + back_s) / 2 + 1e-5
    assert not other.clock.is_old(stamp, 10.0, 111.0)  # whatever the way
    assert other.clock.is_old(stamp, 10.0 - 0.4 - SLACK_S - 0.02, 111.0)
    olds = other.clock.olds(10.0, 111.0)
    assert not olds(stamp)
    assert olds(stamp - 600_000)


def test_what_is_told_by_somebody_else_is_wrong_by_so_much_more(other: Other) -> None:
    other.ask(100.0, error_s=0.3, ago_s=5.0)
    assert other.clock.seen == 95.0
    wall_us, error_s, ago_s = other.clock.now(100.002)
    assert abs(wall_us - other.shows(100.002)) <= 301_000
    assert error_s == pytest.approx(0.301)
    assert ago_s == pytest.approx(5.002)


@pytest.mark.parametrize("jump_s", [-100.0, -1.0, 1.0, 100.0])
def test_each_stamp_is_counted_by_the_clock_that_made_it(other: Other, jump_s: float) -> None:
    other.ask(100.0)
    before = other.shows(109.0)
    other.ahead_s = jump_s
    assert other.clock.is_ahead(other.shows(111.0), 111.0) is (jump_s > 0)
    after = other.shows(111.0)
    other.ask(112.0)
    assert other.clock.runs == 2
    for stamp, age_s in ((before, 4.0), (after, 2.0)):
        found_s = other.clock.age_s(stamp, 113.0)
        assert found_s <= age_s + 0.01
        assert found_s >= age_s - 0.01 - (abs(jump_s) if abs(jump_s) < 10 else 0.0)  # it may be either, if it is near
        assert not other.clock.olds(age_s + 0.1, 113.0)(stamp)


def test_a_small_correction_is_none_that_counts(other: Other) -> None:
    other.ask(100.0)
    other.ahead_s = SLACK_S - 0.01
    other.ask(110.0)
    assert other.clock.runs == 1
    assert other.clock.age_s(other.shows(110.0), 111.0) == pytest.approx(1.0, abs=0.002)


def test_a_bad_reading_takes_the_place_only_of_an_old_one(other: Other) -> None:
    other.ask(100.0)
    other.ask(100.5, 0.0, 0.4)
    assert other.clock.now(101.0)[1] < 0.01
    other.ask(101.5, 0.0, 0.4)
    assert other.clock.now(102.0)[1] == pytest.approx(0.2, abs=0.01)
    other.ask(102.1)
    assert other.clock.now(102.2)[1] < 0.01


def test_old_news_change_nothing(other: Other) -> None:
    other.ask(100.0)
    other.ahead_s = 50.0
    other.ask(101.0)
    other.ahead_s = 0.0
    other.ask(102.0, ago_s=1.5)  # from somebody who has read it before it was set
    assert other.clock.runs == 2
    other.ahead_s = 50.0
    assert other.clock.age_s(other.shows(102.0), 103.0) == pytest.approx(1.0, abs=0.01)


def test_a_stamp_that_somebody_gave_counts_by_the_clock_as_it_is(other: Other) -> None:
    other.ask(100.0)
    other.ahead_s = 50.0
    other.ask(110.0)
    assert other.clock.age_s(other.shows(111.0) - 20_000_000, 111.0) == pytest.approx(20.0, abs=0.01)
    assert other.clock.age_s(other.shows(111.0) + 20_000_000, 111.0) == pytest.approx(-20.0, abs=0.01)


def test_it_remembers_a_few_runs_only(other: Other) -> None:
    for n in range(3 * RUNS_MAX):
        other.ahead_s = 100.0 * n
        other.ask(1000.0 + 10 * n)
    assert other.clock.runs == RUNS_MAX
    assert other.clock.age_s(other.shows(1300.0), 1301.0) == pytest.approx(1.0, abs=0.1)


def test_our_own_clock_is_right_whenever_it_is_looked_at() -> None:
    other = Other(ClockEstimate(slack_s=0.0))
    assert not other.clock.known
    for now, ahead_s in ((100.0, 0.0), (110.0, 0.0), (120.0, 5.0)):
        other.ahead_s = ahead_s
        other.ask(now, 0.0, 0.0)
    assert other.clock.age_s(other.shows(120.0), 120.0) == 0.0
    assert other.clock.age_s(WALL + 105_000_000, 120.0) == pytest.approx(15.0, abs=0.01)
