"""Who asks whom for a clock, how long is waited for the answer, and what is known without one."""

from __future__ import annotations

from collections.abc import Sequence

from chappe.core import Deliver, Effect, Publish
from chappe.log.clocks import ASK_S, CLOCKS_MAX, CONSUMER_PAUSE_S, GRACE_S, PATIENCE_S, ClockEstimate, ClockRead, Clocks
from chappe.log.messages import UNKNOWN_US, AskClock, ClockTold

WALL = 1_700_000_000_000_000
AHEAD_US = 600_000_000  # the producer's clock


def asked(actions: Sequence[Effect]) -> list[AskClock]:
    return [each.message for each in actions if isinstance(each, Publish) and isinstance(each.message, AskClock)]


def told(actions: Sequence[Effect]) -> list[ClockTold]:
    return [each.message for each in actions if isinstance(each, Publish) and isinstance(each.message, ClockTold)]


class Rig:
    """The clocks of a consumer, or of a store; and a producer P that answers if it is ``there``."""

    def __init__(self, pause_s: float = CONSUMER_PAUSE_S) -> None:
        self.clocks = Clocks("C", self, pause_s)
        self.now = 1000.0
        self.there = True
        self.live = True
        self.stores = 0
        self.questions: list[AskClock] = []
        self.events: list[Effect] = []

    @property
    def wall_us(self) -> int:
        return WALL + round(self.now * 1e6)

    def wall_ns(self) -> int:
        return self.wall_us * 1000

    def do(self, actions: Sequence[Effect]) -> None:
        self.questions += asked(actions)
        self.events += [each for each in actions if isinstance(each, Deliver)]
        for each in asked(actions) if self.there else ():
            self.now += 0.001
            answer = ClockTold("C", each.topic, each.topic, each.number, self.wall_us + AHEAD_US)
            self.now += 0.001
            self.do(self.clocks.told(answer, self.now))

    def judge(self, age_s: float, arrived: float | None = None, max_age_s: float = 2.0) -> ClockEstimate | None:
        stamp = self.wall_us + AHEAD_US - round(age_s * 1e6)
        clock, actions = self.clocks.judge(
            "P",
            (stamp, stamp),
            self.now if arrived is None else arrived,
            max_age_s,
            live=self.live,
            stores=self.stores,
            now=self.now,
        )
        self.do(actions)
        return clock

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.clocks.next_timeout() <= end:
            self.now = max(self.now, self.clocks.next_timeout())
            self.do(self.clocks.handle_timeout(self.now))
        self.now = end


def test_it_waits_until_the_producer_has_answered() -> None:
    rig = Rig()
    assert rig.judge(0.0) is None
    assert [each.topic for each in rig.questions] == ["P"]
    assert rig.events == [Deliver("C", ClockRead("P"))]
    clock = rig.judge(1.0)
    assert clock is not None
    assert clock.runs == 1
    assert abs(clock.age_s(rig.wall_us + AHEAD_US, rig.now)) < 0.002
    assert rig.clocks.next_timeout() == float("inf")


def test_it_asks_seldom_while_all_is_well() -> None:
    rig = Rig()
    rig.judge(0.0)
    for _ in range(1000):
        rig.now += 0.1
        assert rig.judge(0.5) is not None
    assert 10 <= len(rig.questions) <= 18


def test_nothing_is_called_too_old_before_it_was_asked_again() -> None:
    rig = Rig()
    rig.judge(0.0)
    rig.now += 1.0
    before = len(rig.questions)
    assert rig.judge(5.0) is None
    assert len(rig.questions) == before + 1
    assert rig.judge(5.0, rig.now - 0.002) is not None


def test_what_waited_here_for_too_long_is_too_old_without_a_question() -> None:
    rig = Rig()
    assert rig.judge(5.0, rig.now - 3.0) is not None


def test_a_record_from_the_future_is_reason_to_ask() -> None:
    rig = Rig()
    rig.judge(0.0)
    rig.now += 1.0
    assert rig.judge(-5.0) is None


def test_who_does_not_answer_is_waited_for_once() -> None:
    rig = Rig()
    rig.there = False
    assert rig.judge(0.0) is None
    rig.wait(PATIENCE_S - 0.1)
    assert rig.judge(0.0) is None
    assert rig.events == []
    rig.wait(0.2)
    assert rig.events == [Deliver("C", ClockRead("P"))]
    assert 10 <= len(rig.questions) <= PATIENCE_S / ASK_S + 1
    clock = rig.judge(0.0)
    assert clock is not None
    assert clock.age_s(rig.wall_us, rig.now) == 0.0  # ours
    asked_before = len(rig.questions)
    for _ in range(100):
        rig.now += 1.0
        assert rig.judge(0.0) is not None
    assert 5 <= len(rig.questions) - asked_before <= 10
    rig.there = True  # it comes back
    rig.now += CONSUMER_PAUSE_S
    rig.judge(0.0)
    rig.now += 1.0
    assert rig.judge(5.0) is None


def test_who_is_gone_is_not_waited_for_when_all_stores_have_answered() -> None:
    rig = Rig()
    rig.there, rig.live, rig.stores = False, False, 2
    assert rig.judge(0.0) is None
    for store in ("S1", "S2"):
        assert rig.judge(0.0) is None
        rig.do(rig.clocks.told(ClockTold("C", "P", store, rig.questions[0].number, 0, UNKNOWN_US), rig.now))
    assert rig.judge(0.0) is not None


def test_a_stores_reading_will_do() -> None:
    rig = Rig()
    rig.there, rig.live, rig.stores = False, False, 1
    rig.judge(0.0)
    answer = ClockTold("C", "P", "S", rig.questions[0].number, rig.wall_us + AHEAD_US, 3_000, 40_000_000)
    rig.do(rig.clocks.told(answer, rig.now))
    clock = rig.judge(5.0)
    assert clock is not None
    assert abs(clock.age_s(rig.wall_us + AHEAD_US, rig.now)) < 0.01


def test_answers_that_nobody_has_asked_for_count_for_nothing() -> None:
    rig = Rig()
    assert rig.clocks.told(ClockTold("C", "P", "P", 1, WALL), rig.now) == []
    rig.there = False
    rig.judge(0.0)
    assert rig.clocks.told(ClockTold("C", "P", "P", 99, WALL), rig.now) == []
    assert not rig.clocks.knows("P")


def test_clocks_that_are_remembered_are_bounded() -> None:
    rig = Rig(60.0)
    for n in range(CLOCKS_MAX + 10):
        rig.clocks.published(str(n), rig.now)
    assert len(rig.clocks._states) == CLOCKS_MAX
    assert len(rig.clocks._waits) <= CLOCKS_MAX


# -- a store ----------------------------------------------------------------------------------------------


def test_a_store_asks_who_publishes_and_tells_it() -> None:
    rig = Rig(60.0)
    rig.clocks.published("P", rig.now)
    rig.wait(0.0)
    assert [each.topic for each in rig.questions] == ["P"]
    (answer,) = told(rig.clocks.answer(AskClock("P", "consumer", 7), rig.now))
    assert (answer.topic, answer.address, answer.source, answer.number) == ("consumer", "P", "C", 7)
    assert abs(answer.wall_us - rig.wall_us - AHEAD_US) <= answer.error_us + 2_000
    assert answer.ago_us < 3_000
    for _ in range(600):
        rig.now += 1.0
        rig.clocks.published("P", rig.now)
        rig.wait(0.0)
    assert 10 <= len(rig.questions) <= 20


def test_a_store_that_has_read_a_clock_long_ago_reads_it_again_first() -> None:
    rig = Rig(60.0)
    rig.clocks.published("P", rig.now)
    rig.wait(0.0)
    rig.now += 30.0
    question = AskClock("P", "consumer", 1)
    actions = rig.clocks.answer(question, rig.now)
    assert told(actions) == []
    rig.do(actions)
    (answer,) = told(rig.clocks.answer(question, rig.now))
    assert answer.ago_us < 3_000


def test_a_store_says_what_it_has_of_a_producer_that_is_gone() -> None:
    rig = Rig(60.0)
    rig.clocks.published("P", rig.now)
    rig.wait(0.0)
    rig.now += 30.0
    rig.there = False
    question = AskClock("P", "consumer", 1)
    assert told(rig.clocks.answer(question, rig.now)) == []
    rig.now += GRACE_S
    (answer,) = told(rig.clocks.answer(question, rig.now))
    assert 30_000_000 <= answer.ago_us <= 31_000_000
    assert len(told(rig.clocks.answer(question, rig.now + 1.0))) == 1  # at once from then on


def test_a_store_says_that_it_knows_nothing() -> None:
    rig = Rig(60.0)
    question = AskClock("Q", "consumer", 1)
    assert told(rig.clocks.answer(question, rig.now)) == []
    (answer,) = told(rig.clocks.answer(question, rig.now + GRACE_S))
    assert answer.error_us == UNKNOWN_US
