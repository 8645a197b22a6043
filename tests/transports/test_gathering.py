"""When published messages leave: driven without sockets or clocks."""

import math

from chappe.core import Flush
from chappe.transports.gathering import GAP_S, LONGEST_S, MANY, WriteGatherer


class Rig:
    def __init__(self, room: int = 1000) -> None:
        self.written: list[int] = []
        self.looks: list[float] = []
        self.now = 0.0
        self.takes_s = 0.0  # to write to one socket
        self.gatherer = WriteGatherer(self, room, 1_000_000, lambda: self.now)
        self.one = [Flush(1)]
        self.both = [Flush(1), Flush(2)]

    def look_again_at(self, due: float) -> None:
        self.looks.append(due)

    def flush(self, effect: Flush) -> None:
        self.written.append(effect.link)
        self.now += self.takes_s

    def publish(self, now: float, flushes: list[Flush] | None = None) -> None:
        self.now = now
        self.gatherer.add(self.one if flushes is None else flushes)
        self.gatherer.soon(now)


def test_a_message_after_silence_leaves_at_once() -> None:
    rig = Rig()
    rig.publish(1.0)
    rig.publish(1.0 + GAP_S)
    assert rig.written == [1, 1]
    assert (rig.gatherer.due, rig.looks, rig.gatherer.many) == (math.inf, [], False)


def test_no_more_is_gathered_than_may_wait_for_a_peer() -> None:
    rig = Rig(room=3)
    for _ in range(7):
        rig.publish(1.0)
    assert rig.written == [1, 1, 1]  # after 1, 3 and 3 messages


def test_a_fast_sequence_is_written_once_for_many_and_each_socket_once() -> None:
    rig = Rig()
    for number in range(MANY):
        rig.publish(1.0, rig.both if number % 2 else rig.one)
    assert rig.written == [1]
    rig.publish(1.0)
    assert rig.written == [1, 1, 2]
    assert rig.gatherer.many
    assert rig.looks == [1.0 + LONGEST_S]


def test_the_time_that_writing_takes_is_no_pause() -> None:
    rig = Rig()
    rig.takes_s = 5 * GAP_S
    rig.publish(1.0, rig.both)
    for _ in range(MANY - 1):
        rig.publish(rig.now, rig.both)
    assert rig.written == [1, 2]
    rig.publish(rig.now, rig.both)
    assert rig.written == [1, 2, 1, 2]


def test_what_is_gathered_is_due_soon_after_the_first_whoever_sends_it() -> None:
    rig = Rig()
    rig.publish(1.0)
    rig.publish(1.0)
    rig.publish(1.0 + GAP_S / 2)
    assert rig.gatherer.due == 1.0 + LONGEST_S
    rig.gatherer.at_once()  # by who drives then
    assert rig.written == [1, 1]
    assert rig.gatherer.due == math.inf
    now = 1.0 + GAP_S / 2
    while len(rig.written) < 3:  # by who publishes
        now += GAP_S / 2
        rig.publish(now)
    assert rig.looks[-1] <= now < rig.looks[-1] + GAP_S


def test_what_somebody_waits_for_leaves_at_once_and_takes_along_what_was_gathered() -> None:
    rig = Rig()
    rig.publish(1.0)
    rig.publish(1.0, [Flush(2)])
    rig.gatherer.add(rig.one)
    rig.gatherer.at_once()
    assert rig.written == [1, 2, 1]


def test_nothing_is_written_while_it_is_held() -> None:
    rig = Rig()
    rig.gatherer.hold()
    rig.publish(1.0)
    rig.gatherer.add(rig.both)
    rig.gatherer.at_once()
    assert rig.written == []
    rig.gatherer.let_go()
    assert rig.written == [1, 2]
    assert rig.gatherer.many


def test_messages_that_nobody_wants_make_nothing_due() -> None:
    rig = Rig()
    for _ in range(3):
        rig.publish(1.0, [])
    assert (rig.written, rig.looks, rig.gatherer.due) == ([], [], math.inf)
