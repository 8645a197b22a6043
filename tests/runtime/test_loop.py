"""The one thread that looks after all members: fake members on it, with barriers where threads could meet."""

from __future__ import annotations

import itertools
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.endpoints import PATIENCE_S, until

from chappe.runtime import loop

Answer = tuple[bool, float]


class Member:
    """Does as ``answer`` says, and counts. Its descriptor is readable until a look empties it."""

    def __init__(self, answer: Callable[[], Answer] = lambda: (True, math.inf)) -> None:
        self.answer = answer
        self.looks = 0
        self.read = 0
        self.threads: set[str] = set()
        self.halted: BaseException | None = None
        self.here, self.there = socket.socketpair()
        self.here.setblocking(False)
        joined = loop.join(self)
        assert isinstance(joined, loop.Loop)
        self.loop = joined

    def look(self) -> Answer:
        self.looks += 1
        self.threads.add(threading.current_thread().name)
        found = self.answer()
        try:
            self.read += len(self.here.recv(4096))
        except BlockingIOError:
            pass
        return found

    def fileno(self) -> int:
        return self.here.fileno()

    def halt(self, error: BaseException) -> None:
        self.halted = error

    def send(self) -> None:
        self.there.send(b"x")

    def close(self) -> None:
        loop.leave(self.loop, self)
        self.here.close()
        self.there.close()


Make = Callable[..., Member]


def loops() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "chappe-loop"]


@pytest.fixture
def make() -> Iterator[Make]:
    assert not loops()
    made: list[Member] = []

    def add(*arguments: Callable[[], Answer]) -> Member:
        made.append(Member(*arguments))
        return made[-1]

    yield add
    for each in made:
        if each.here.fileno() >= 0:
            each.close()
    assert not loops()


def test_one_thread_looks_after_all_members_and_ends_with_the_last(make: Make) -> None:
    members = [make() for _ in range(50)]
    until(lambda: all(each.looks == 1 for each in members))
    for each in members:
        each.send()
    until(lambda: all(each.read == 1 for each in members))
    assert {name for each in members for name in each.threads} == {"chappe-loop"}
    assert len(loops()) == 1
    for each in members:
        each.close()
    assert not loops()
    again = make()
    again.send()
    until(lambda: again.read == 1)


def test_a_member_is_looked_at_in_its_time_and_when_it_is_asked_for(make: Make) -> None:
    times = iter([0.0, time.monotonic() + 0.02, math.inf, math.inf])
    member = make(lambda: (False, next(times)))
    until(lambda: member.looks == 3)
    member.loop.ask(member)
    until(lambda: member.looks == 4)


@pytest.mark.parametrize("refusal", [None, OSError("no descriptor is left"), AttributeError("timerfd_create")])
def test_a_member_that_asks_to_be_looked_at_soon_is(
    make: Make, monkeypatch: pytest.MonkeyPatch, refusal: Exception | None
) -> None:
    def refuse() -> None:
        assert refusal is not None
        raise refusal

    if refusal is not None:
        monkeypatch.setattr(loop, "Alarm", refuse)
    member = make(lambda: (False, math.inf))
    assert member.loop.patient is (refusal is None and sys.platform == "linux")
    until(lambda: member.looks == 1)
    for number in range(2, 5):
        for _ in range(3):
            member.loop.ask_soon(member)
        until(lambda number=number: member.looks >= number)  # type: ignore[misc]


@pytest.mark.skipif(sys.platform != "linux", reason="there is no alarm")
def test_who_asks_for_soon_sets_one_alarm_and_wakes_nobody(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    member = make(lambda: (False, math.inf))
    until(lambda: member.looks == 1)
    found = member.loop
    assert found._alarm is not None
    times: list[float] = []
    monkeypatch.setattr(found._alarm, "set", times.append)
    for _ in range(3):
        found.ask_soon(member)
    assert times == [loop.SOON_S]
    found._wake()
    assert member.looks == 1
    found._ring()
    found._wake()
    until(lambda: member.looks == 2)
    found.ask_soon(member)
    assert times == [loop.SOON_S] * 2


def test_what_is_not_watched_wakes_nobody_and_is_found_when_it_is_watched_again(make: Make) -> None:
    watched = [False]
    member, other = make(lambda: (watched[0], math.inf)), make()
    until(lambda: member.looks == 1)
    member.send()
    for number in range(1, 4):  # rounds go by
        other.send()
        until(lambda number=number: other.read == number)  # type: ignore[misc]
    assert (member.looks, member.read) == (1, 0)
    watched[0] = True
    member.loop.ask(member)
    until(lambda: member.read == 1)


@pytest.mark.parametrize("error", [RuntimeError("a defect"), SystemExit("a callback")])
def test_a_look_that_raises_stops_that_member_alone(make: Make, error: BaseException) -> None:
    def fail() -> Answer:
        raise error

    bad, good = make(fail), make()
    until(lambda: bad.halted is error)
    good.send()
    until(lambda: good.read == 1)
    assert bad.looks == 1


def test_members_that_have_always_more_to_do_do_not_keep_others_out(make: Make) -> None:
    busy = [make(lambda: (True, -math.inf)) for _ in range(3)]
    idle = make()
    until(lambda: all(each.looks > 10 for each in busy))
    idle.send()
    until(lambda: idle.read == 1)


def test_timers_that_nobody_needs_any_more_do_not_pile_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_STALE_MAX", 4)
    times = itertools.count(time.monotonic() + 10_000, -1)
    member = make(lambda: (True, next(times)))  # each one earlier than the one before
    for _ in range(30):
        looks = member.looks
        member.loop.ask(member)
        until(lambda looks=looks: member.looks > looks)  # type: ignore[misc]
    assert len(member.loop._timers) <= 8


def test_a_member_leaves_while_it_is_looked_at(make: Make) -> None:
    inside, go_on = threading.Barrier(2), threading.Event()

    def slow() -> Answer:
        inside.wait(PATIENCE_S)
        go_on.wait(PATIENCE_S)
        return True, math.inf

    other = make()
    member = make(slow)
    inside.wait(PATIENCE_S)
    loop.leave(member.loop, member)  # does not wait for it
    go_on.set()
    other.send()
    until(lambda: other.read == 1)
    own = {each.fileno() for each in (other.loop._wakeup, other.loop._alarm) if each is not None}
    assert set(other.loop._selector.get_map()) == {*own, other.fileno()}


def test_the_last_member_leaves_in_its_own_look(make: Make) -> None:
    made: list[Member] = []
    ready = threading.Event()

    def leave() -> Answer:
        ready.wait(PATIENCE_S)
        made[0].close()
        return True, math.inf

    made.append(make(leave))
    ready.set()
    until(lambda: not loops())
    other = make()
    other.send()
    until(lambda: other.read == 1)


def test_members_come_and_go_in_many_threads(make: Make) -> None:
    steady = make()
    failed: list[BaseException] = []

    def come_and_go() -> None:
        try:
            for _ in range(50):
                member = Member()
                member.send()
                until(lambda member=member: member.read == 1)  # type: ignore[misc]
                member.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed
    steady.send()
    until(lambda: steady.read == 1)


@pytest.mark.process
def test_a_forked_child_gets_a_loop_of_its_own_and_the_parents_goes_on(make: Make) -> None:
    member = make()
    until(lambda: member.looks == 1)
    child = os.fork()
    if not child:
        code = 1
        try:
            own = Member()
            own.send()
            until(lambda: own.read == 1)
            own.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert member.read == 0
    member.send()
    until(lambda: member.read == 1)
