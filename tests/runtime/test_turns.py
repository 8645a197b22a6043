"""Whose turn it is to drive: threads of users, followers, and the node's own thread."""

from __future__ import annotations

import math
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.endpoints import PATIENCE_S, until
from tests.waiting import interrupt

from chappe.errors import MemberStopped
from chappe.runtime import loop, turns
from chappe.runtime.turns import Ready, Turns


class Node:
    """Counts what comes on a socket; waits are for such a count."""

    def __init__(self, *, listening: bool = True, eager: bool = False) -> None:
        self.due = math.inf
        self.turns = Turns(self._handle, lambda: self.due, lambda reason: None, eager=eager)
        self.count = 0
        self.drivers: list[str] = []
        self.more = 0  # so often there is more to do of which no descriptor tells
        self.handled = 0
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        if listening:
            self.listen()
        self.turns.start()

    def listen(self) -> None:
        with self.turns.lock:
            self.turns.register(self._here, selectors.EVENT_READ, self._read)

    def _handle(self, ready: Ready) -> bool:
        self.handled += 1
        self.due = math.inf
        for key, mask in ready:
            key.data(mask)
        self.more = max(0, self.more - 1)
        return self.more > 0

    def _read(self, mask: int) -> None:
        self.count += len(self._here.recv(4096))
        self.drivers.append(threading.current_thread().name)
        self.turns.news = True

    def send(self, count: int = 1) -> None:
        self._there.send(b"x" * count)

    def close(self) -> None:
        self.turns.stop()
        with self.turns.lock:
            self.turns.release()
        self._here.close()
        self._there.close()

    def waiting(self, name: str, done: Callable[[], bool], timeout_s: float | None = PATIENCE_S) -> list[bool]:
        """Have a thread wait; what it returns appears in the list."""
        found: list[bool] = []
        threading.Thread(name=name, target=lambda: found.append(self.turns.wait(done, timeout_s)), daemon=True).start()
        return found

    def rest(self) -> None:
        """Until the loop leaves the sockets to the leader, for ever unless it is told."""
        until(lambda: self.turns._resting or self.turns._ask_loop())  # type: ignore[func-returns-value]

    def follow(self, count: int) -> None:
        until(lambda: len(self.turns._followers) == count)


Made = Callable[..., Node]


@pytest.fixture
def make_node() -> Iterator[Made]:
    with ExitStack() as stack:

        def make(**options: bool) -> Node:
            made = Node(**options)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.close()


def test_our_thread_drives_again_when_the_waits_of_the_leader_and_of_who_follows_end_together(node: Node) -> None:
    leader = node.waiting("leader", lambda: node.count >= 1)
    node.rest()
    follower = node.waiting("follower", lambda: node.count >= 1)
    node.follow(1)
    node.send()
    until(lambda: leader == follower == [True])
    node.send()
    until(lambda: node.count == 2)
    assert node.drivers == ["leader", "chappe-loop"]


def test_who_leaves_with_what_it_waited_for_does_not_wake_the_loop_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = node.waiting("leader", lambda: node.count >= 1)
    node.rest()
    asked: list[str] = []
    driver = node.turns._loop
    monkeypatch.setattr(driver, "ask", lambda member: asked.append("at once"))
    monkeypatch.setattr(driver, "ask_soon", lambda member: asked.append("soon"))
    node.send()
    until(lambda: leader == [True])
    assert asked == ["soon"]


def test_who_follows_leads_when_the_leader_leaves(node: Node) -> None:
    leader = node.waiting("leader", lambda: node.count >= 1)
    node.rest()
    follower = node.waiting("follower", lambda: node.count >= 2)
    node.follow(1)
    node.send()
    until(lambda: leader == [True])
    node.follow(0)
    node.send()
    until(lambda: follower == [True])
    assert node.drivers == ["leader", "follower"]


def test_many_follow_and_each_returns_when_its_wait_is_over(node: Node) -> None:
    def wait_for(number: int) -> list[bool]:
        return node.waiting(f"thread {number}", lambda: node.count >= number)

    found = [wait_for(1)]
    node.rest()
    for number in range(2, 33):
        found.append(wait_for(number))
    node.follow(31)
    for number, each in enumerate(found, 1):
        node.send()
        until(lambda each=each: each == [True])  # type: ignore[misc]
        assert not any(found[number:])


def test_a_follower_gives_up_in_time_and_closing_ends_every_wait(node: Node) -> None:
    leader = node.waiting("leader", lambda: False, None)
    node.rest()
    late = node.waiting("late", lambda: False, 0.01)
    until(lambda: late == [False])
    node.follow(0)
    follower = node.waiting("follower", lambda: False, None)
    node.follow(1)
    node.turns.stop()
    until(lambda: leader == follower == [False])


def test_our_thread_hears_what_is_due_though_another_led_while_it_waited_on_the_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "SLEEP_S", 10 * PATIENCE_S)  # nobody looks by itself
    made = Node()
    try:
        until(lambda: made.turns._loop_at == math.inf)
        assert not made.turns.wait(lambda: False, 0.01)
        with made.turns.lock:
            made.due = time.monotonic()
            made.turns.look_again_at(made.due)
        until(lambda: made.due == math.inf)
    finally:
        made.close()


def test_what_happens_before_the_leader_waits_on_the_sockets_ends_its_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SLEEP_S", 10 * PATIENCE_S)
    monkeypatch.setattr(Turns, "start", lambda _: None)  # the loop, watching since before, would be woken
    made = Node()
    lead = made.turns._lead

    def late(*arguments: Any) -> None:
        with made.turns.lock:  # as another thread may have it now
            made.count += 1
            made.turns.news = True
            made.turns.tell()
        lead(*arguments)

    monkeypatch.setattr(made.turns, "_lead", late)
    try:
        found = made.waiting("leader", lambda: made.count == 1)
        until(lambda: found == [True])
    finally:
        made.close()


def test_the_loop_drives_again_after_ctrl_c_has_ended_a_lead(node: Node) -> None:
    interrupt(lambda: node.turns.wait(lambda: False))
    follower = node.waiting("thread", lambda: node.count >= 1)
    node.send()
    until(lambda: follower == [True])
    node.send()
    until(lambda: node.count == 2)


def test_a_member_without_sockets_has_no_descriptors_and_its_timers_and_waits_work(make_node: Made) -> None:
    node = make_node(listening=False)
    until(lambda: node.handled == 1)
    waits = [node.waiting("first", lambda: node.handled >= 2), node.waiting("second", lambda: node.count >= 1)]
    node.follow(2)  # nothing could be waited on
    assert node.turns.fileno() == -1
    with node.turns.lock:
        node.due = time.monotonic()
        node.turns.news = True
        node.turns.look_again()
    until(lambda: node.handled == 2)
    with node.turns.lock:
        node.turns.news = True
        node.turns.tell()
    until(lambda: waits[0] == [True])
    node.listen()
    until(lambda: node.turns._leading is not None)
    node.send()
    until(lambda: waits[1] == [True])
    assert node.drivers == ["second"]


def test_members_do_not_wait_for_one_whose_lock_somebody_holds(make_node: Made) -> None:
    stuck, other = make_node(), make_node()
    with stuck.turns.lock:
        stuck.send()
        other.send()
        until(lambda: other.count == 1)
        other.send()
        until(lambda: other.count == 2)
        assert stuck.count == 0
    until(lambda: stuck.count == 1)


def test_what_no_descriptor_tells_of_is_done_before_anybody_sleeps(make_node: Made) -> None:
    node = make_node()
    with node.turns.lock:
        node.more = 20
        node.turns.wake()
    until(lambda: node.more == 0)
    assert not node.count


def test_who_leads_an_eager_member_looks_before_it_sleeps(make_node: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SLEEP_S", 10 * PATIENCE_S)  # nobody looks by itself
    monkeypatch.setattr(Turns, "look", lambda _: (False, math.inf))
    node = make_node(eager=True)
    node.more = 3
    found = node.waiting("leader", lambda: node.handled >= 3)
    until(lambda: found == [True])


def test_a_result_comes_with_the_lock_held_and_what_follows_from_it_is_done(node: Node) -> None:
    def came(count: int) -> None:
        node.count = count
        node.turns.news = True
        node.due = time.monotonic()

    found = node.waiting("thread", lambda: node.count == 5)
    until(lambda: node.turns._leading is not None)
    node.turns.run(came, 5)
    until(lambda: found == [True])
    until(lambda: node.due == math.inf)


@pytest.mark.provokes_defects
def test_a_result_that_raises_stops_the_member(node: Node) -> None:
    def fail() -> None:
        raise RuntimeError("a defect")

    found = node.waiting("thread", lambda: False, None)
    node.turns.run(fail)
    until(lambda: found == [False])
    node.turns.run(lambda: pytest.fail("called on a halted member"))
    with pytest.raises(MemberStopped, match="a defect"):
        node.turns.check()


class _EventLoop:
    """Watches a node, and serves it when it is told to."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.descriptor = node.turns.watch(lambda: None)

    def serve(self) -> None:
        select.select([self.descriptor], [], [], PATIENCE_S)
        self.node.turns.serve()

    def leave(self) -> None:
        self.node.turns.unserve()


def test_an_event_loop_that_does_its_work_is_left_to_it(make_node: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TICK_S", 10 * PATIENCE_S)  # before the loop has looked at the node for the first time
    node = make_node()
    event_loop = _EventLoop(node)
    for count in range(1, 4):
        node.send()
        event_loop.serve()
        assert node.count == count
    assert set(node.drivers) == {"MainThread"}
    event_loop.leave()
    node.send()
    until(lambda: node.count == 4)
    assert node.drivers[-1] == "chappe-loop"


class _Busy:
    """A loop that never comes to look."""

    def ask(self, member: loop.LoopMember) -> None:
        pass

    def remove(self, member: loop.LoopMember) -> bool:
        return False


def test_an_event_loop_that_just_joined_has_its_time_too(make_node: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TICK_S", 10 * PATIENCE_S)
    monkeypatch.setattr(loop, "join", lambda *_: _Busy())
    node = make_node()
    event_loop = _EventLoop(node)
    node.send()
    node.turns.look()  # the loop comes to it now, for the first time
    assert node.count == 0
    event_loop.serve()
    assert node.count == 1


def test_what_an_event_loop_leaves_undone_the_loop_does(node: Node) -> None:
    event_loop = _EventLoop(node)
    for count in range(1, 4):
        node.send()  # it is busy with something else
        until(lambda count=count: node.count == count)  # type: ignore[misc]
    with node.turns.lock:
        node.due = time.monotonic()
        node.turns.look_again()
    until(lambda: node.due == math.inf)
    event_loop.leave()
