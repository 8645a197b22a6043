"""Connections that end once they are read, and questions to original stores when a member has gone."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from chappe.log import introducing
from chappe.log.introducing import LEAVING_S, LOOK_S, Leaving
from chappe.log.sources import FIRST_S, TIMES, Inquiries

ONE, OTHER = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"


def test_a_connection_ends_when_nothing_was_unread_twice_in_a_row() -> None:
    connections, unread = Leaving(), {ONE}
    assert connections.next_timeout() == math.inf
    assert connections.leave(ONE, 10.0) is None
    assert connections.leave(OTHER, 10.0) is None

    found = []
    for look in range(1, 7):
        if look == 3:
            unread.clear()
        if look == 4:
            unread.add(ONE)  # the kernel had more
        if look == 5:
            unread.clear()
        now = connections.next_timeout()
        assert now == pytest.approx(10.0 + look * LOOK_S)
        assert connections.look(unread.__contains__, now - LOOK_S / 2) == []
        found.append(connections.look(unread.__contains__, now))

    assert found == [[], [OTHER], [], [], [], [ONE]]
    assert connections.next_timeout() == math.inf


def test_a_connection_stays_if_somebody_is_there_again() -> None:
    connections = Leaving()
    connections.leave(ONE, 10.0)

    assert connections.stay(ONE)
    assert not connections.stay(ONE)
    for look in range(1, 4):
        assert connections.look(lambda endpoint: False, 10.0 + look) == []


def test_a_connection_that_is_not_read_ends_all_the_same() -> None:
    connections = Leaving()
    connections.leave(ONE, 10.0)
    assert connections.look(lambda endpoint: True, 10.0 + LEAVING_S - 0.01) == []
    assert connections.look(lambda endpoint: True, 10.0 + LEAVING_S + LOOK_S) == [ONE]
    assert connections.next_timeout() == math.inf


def test_of_too_many_connections_the_oldest_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introducing, "LEAVING_MAX", 2)
    connections = Leaving()
    assert [connections.leave(each, 10.0) for each in ("a", "b", "c", "d")] == [None, None, "a", "b"]
    assert not connections.stay("a")
    assert connections.stay("c")


def test_a_question_is_repeated_and_then_rests() -> None:
    question = Inquiries(2.0)
    assert question.next_timeout() == math.inf
    question.want(10.0)
    question.want(10.2)

    asked = []
    while (at := question.next_timeout()) < math.inf:
        assert not question.due(at - 0.01)
        assert question.due(at)
        asked.append(at)
    assert asked == [10.0 + FIRST_S + 2.0 * n for n in range(TIMES)]


def test_a_question_is_not_put_more_often_however_many_go() -> None:
    question = Inquiries(2.0)
    asked = []
    for tenth in range(100):
        now = 10.0 + tenth / 10
        question.want(now)
        if question.due(now):
            asked.append(now)
    assert len(asked) == 5
    assert all(later - earlier >= 2.0 for earlier, later in pairwise(asked))
