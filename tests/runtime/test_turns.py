"""Whose turn it is to drive: threads of users, followers, and the node's own thread."""

from __future__ import annotations

import math
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.endpoints import PATIENCE_S, until

from chappe.runtime import loop, turns
from chappe.runtime.turns import Ready, Turns


class Node:
    """Counts what comes on a socket; waits are for such a count."""

    def __init__(self) -> None:
        self.due = math.inf
        self.turns = Turns(self._handle, lambda: self.due, lambda reason: None)
        self.count = 0
        self.drivers: list[str] = []
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self.turns.register(self._here, selectors.EVENT_READ, self._read)
        self.turns.start()

    def _handle(self, ready: Ready) -> None:
        self.due = math.inf
        for key, mask in ready:
            key.data(mask)

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
