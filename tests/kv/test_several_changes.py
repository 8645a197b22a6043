"""Several changes in one message of a master: when, for whom, and what becomes of one that is lost."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixed_clock import FixedClock

from chappe.core import Effect, Report, Send
from chappe.defaults import STORE_TOLD_GAP_S, STORE_TOLD_LATER_S
from chappe.kv import commands as cmd
from chappe.kv.clone import KvClone
from chappe.kv.commands import decode_message, encode_command, encode_message
from chappe.kv.entity import NOBODY, Entity, chappe_entity
from chappe.kv.events import CommandRefused
from chappe.kv.master import KvMaster
from chappe.limits import KvLimits

NS = 1_000_000_000
ORIGINAL = Entity(b"o" * 16, 6)
STEP_S = STORE_TOLD_GAP_S / 10


class Rig:
    """A master and clones whose messages arrive at once, unless ``lost`` holds the numbers of their events."""

    def __init__(self, clones: int = 1, **limits: int) -> None:
        self.now = 100.0
        self.clock = FixedClock(of=lambda: int(self.now * NS))
        self.limits = KvLimits(**limits)
        self.sent: list[cmd.Message] = []  # to all, but for heartbeats
        self.refused: list[CommandRefused] = []
        self.lost: set[int] = set()
        self.clones: list[KvClone] = []
        entity = chappe_entity(b"m" * 16, 1)
        self.master = KvMaster("s", entity, notify=False, limits=self.limits, now=self.now, clock=self.clock)
        self.do(self.master.start(**self.times()))
        for _ in range(clones):
            self.add()
        self.wait(1.0)
        self.sent.clear()

    def say(self, command: cmd.Command) -> None:
        """Have an original's clone say something to the master."""
        message = encode_message(0, ORIGINAL, self.master.entity, encode_command(command))
        self.do(self.master.handle_message(self.master.topics[0], [message], **self.times()))

    def add(self) -> KvClone:
        """Have one more."""
        entity = chappe_entity(bytes([65 + len(self.clones)]) * 16, 2)
        clone = KvClone("s", entity, now=self.now, clock=self.clock, limits=self.limits)
        self.clones.append(clone)
        self.do(clone.start(self.now))
        return clone

    def times(self) -> dict[str, Any]:
        return {"now": self.now}

    def do(self, actions: list[Effect]) -> None:
        for action in actions:
            if isinstance(action, Report) and isinstance(action.event, CommandRefused):
                self.refused.append(action.event)
            elif isinstance(action, Send):
                self.pass_on(action)

    def pass_on(self, action: Send) -> None:
        message = decode_message(action.message)
        if message.sender != self.master.entity:
            self.do(self.master.handle_message(self.master.topics[0], [action.message], **self.times()))
            return
        if action.to is None and not isinstance(message.command, cmd.Keepalive):
            self.sent.append(message)
        if action.to is None and message.seq in self.lost:
            return
        for clone in self.clones:
            if action.to in (None, clone.entity.endpoint):
                self.do(clone.handle_message(clone.topics[0], [action.message], self.now))

    def put(self, count: int, value: object = 0, step_s: float = STEP_S) -> None:
        """So many in a row."""
        for number in range(count):
            self.do(self.master.put(f"key {number}", value, **self.times()))
            self.now += step_s

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            due = [self.master.next_timeout(), *(each.next_timeout() for each in self.clones)]
            self.now = min(max(min(due), self.now), until)
            self.do(self.master.handle_timeout(**self.times()))
            for each in self.clones:
                self.do(each.handle_timeout(self.now))
            assert self.master.invariants() == []
            self.now += 0.0001

    def numbers(self) -> list[list[int]]:
        """Those of the events in each message that was sent to all."""
        found = []
        for each in self.sent:
            count = len(each.command.changes) if isinstance(each.command, cmd.Several) else 1
            found.append(list(range(each.seq, each.seq + count)))
        return found

    def lengths(self) -> list[int]:
        return [len(each) for each in self.numbers()]

    def alike(self) -> bool:
        here = {entry.key: entry.value for entry in self.master.engine.items()}
        return all({entry.key: entry.value for entry in each.engine.items()} == here for each in self.clones)


def test_a_change_after_a_pause_leaves_at_once_and_those_that_follow_it_closely_leave_together() -> None:
    rig = Rig(2)
    rig.put(1)
    assert rig.lengths() == [1]
    rig.put(10, 1)
    assert rig.lengths() == [1]
    assert rig.master.next_timeout() <= rig.now + STORE_TOLD_LATER_S
    rig.wait(2 * STORE_TOLD_LATER_S)

    assert rig.lengths() == [1, 10]
    assert [seq for each in rig.numbers() for seq in each] == list(range(rig.sent[0].seq, rig.sent[0].seq + 11))
    assert rig.alike()


def test_changes_far_from_each_other_leave_one_by_one() -> None:
    rig = Rig()
    rig.put(5, step_s=2 * STORE_TOLD_GAP_S)

    assert rig.lengths() == [1] * 5


def test_a_message_has_no_more_changes_and_bytes_than_its_bounds() -> None:
    rig = Rig(told_together=4)
    rig.put(21)
    rig.wait(0.1)
    assert rig.lengths() == [1, 4, 4, 4, 4, 4]

    rig = Rig(told_bytes=1_000)
    rig.put(9, "x" * 400)
    rig.put(2, "x" * 2_000)
    rig.wait(0.1)
    assert rig.lengths() == [1, 3, 3, 3, 1]
    assert rig.alike()


def test_who_comes_while_changes_are_held_has_them() -> None:
    rig = Rig()
    rig.put(5)
    rig.add()
    rig.wait(1.0)

    assert rig.lengths() == [1, 4]
    assert rig.alike()
    assert not rig.refused


def test_while_one_clone_is_an_originals_all_get_one_change_a_message_as_it_always_did() -> None:
    rig = Rig()
    rig.say(cmd.MissingEvents((0,)))
    rig.say(cmd.MissingEvents(()))  # asks for nothing
    rig.put(5)
    assert rig.lengths() == [1] * 5
    assert [each.command for each in rig.sent] == [
        cmd.Put(f"key {number}", 0, None, rig.master.entity) for number in range(5)
    ]
    assert not rig.refused
    assert rig.alike()

    rig.say(cmd.Leave(0))
    rig.sent.clear()
    rig.put(10)
    rig.wait(0.1)
    assert rig.lengths() == [10]


def test_what_is_lost_is_asked_for_and_comes_alone() -> None:
    rig = Rig()
    first = rig.master.position + 1
    rig.lost = {first + 1}
    rig.put(10)
    rig.wait(1.0)
    assert rig.lengths() == [1, 9]
    assert rig.alike()
    assert rig.master.idle()


def test_what_is_held_leaves_before_anything_else_is_said_and_at_the_end() -> None:
    rig = Rig()
    rig.put(5)
    rig.do(rig.clones[0].put("other", 1, now=rig.now))  # the answer names the master's last event
    assert sum(rig.lengths()) == 6
    assert rig.alike()

    rig.put(5, 1)
    assert not rig.alike()
    rig.do(rig.master.leave())
    assert rig.alike()


@pytest.mark.parametrize("seq", [0, 1, 2**64 - 2])
def test_numbers_of_several_that_a_clone_does_not_expect_do_no_harm(seq: int) -> None:
    rig = Rig()
    rig.put(3)
    rig.wait(0.1)
    bodies = [encode_command(cmd.Put("forged", number, None, NOBODY)) for number in range(2)]
    payload = encode_message(seq, chappe_entity(b"x" * 16, 9), NOBODY, cmd.encode_several(bodies))
    rig.do(rig.clones[0].handle_message(rig.clones[0].topics[0], [payload], rig.now))
    payload = encode_message(seq, rig.master.entity, NOBODY, cmd.encode_several(bodies))
    rig.do(rig.clones[0].handle_message(rig.clones[0].topics[0], [payload], rig.now))

    assert rig.alike()
    assert rig.clones[0].invariants() == []
