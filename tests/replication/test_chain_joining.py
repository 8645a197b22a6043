"""Who joins a chain, call by call."""

from __future__ import annotations

from dataclasses import replace

from tests.replication.test_chain_parts import Sum, opened

from chappe.limits import CHAIN_LIMITS
from chappe.replication.agreement.core import Memory
from chappe.replication.chain import configuration
from chappe.replication.chain.actions import State, Tell
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.core import ChainServer
from chappe.replication.chain.joining import Giver
from chappe.replication.chain.messages import Ack, Append, Beat, Do, Entry, Join, Open

OPEN = Entry(1, 1_000_000, 0, 0, 0, b"nonce")
FIVE = Entry(1, 1_000_000, 1, 1, 0, b"5")


def joiner() -> ChainServer:
    """The third server, in a chain of the first two."""
    decided = configuration.encode(Configuration(((0, 1), (1, 2)), (11, 12, 13), (False,) * 3, False))
    return ChainServer(2, ("a", "b", "c"), 3, Memory(13, 1, decided), Sum(), now=0.0)


def test_a_joiner_acknowledges_what_the_tail_sends() -> None:
    core = joiner()

    assert core.handle_message(1, Append(1, 0, (OPEN, FIVE), 2, 1, True), 0.0) == []

    assert core.flush(0.0) == [Tell(1, Ack(1, 3, 2, 2, 1))]


def test_what_does_not_come_from_the_tail_is_not_taken() -> None:
    core = joiner()

    core.handle_message(0, Append(1, 0, (OPEN,), 2, 1, True), 0.0)
    core.handle_message(1, Append(1, 0, (OPEN,), 2, 1, False), 0.0)

    assert core.log.end == 0


def test_a_late_state_takes_nothing_that_was_acknowledged() -> None:
    core = joiner()
    core.handle_message(1, Append(1, 0, (OPEN, FIVE), 2, 0, True), 0.0)
    late = Giver(State(1, 1, opened().snapshot()), 1, CHAIN_LIMITS).first()

    assert core.handle_message(1, late, 0.0) == [Tell(1, Join(1, 3, 1, False))]

    assert (core.log.end, core.committed) == (2, 1)


def test_a_state_that_has_more_is_taken() -> None:
    core = joiner()
    replica = opened()
    replica.apply(2, FIVE)

    answer = core.handle_message(1, Giver(State(2, 1, replica.snapshot()), 1, CHAIN_LIMITS).first(), 0.0)

    assert answer == [Tell(1, Join(1, 3, 2, True))]
    assert core.replica.snapshot() == replica.snapshot()


def test_the_log_may_be_as_long_as_a_large_state() -> None:
    decided = configuration.encode(Configuration(((0, 1), (1, 2)), (11, 12, 13), (False,) * 3, False))
    limits = replace(CHAIN_LIMITS, log_bytes=1)
    core = ChainServer(2, ("a", "b", "c"), 3, Memory(13, 1, decided), Sum(), now=0.0, limits=limits)
    state = opened().snapshot()
    assert core.log_bytes == 1

    core.handle_message(1, Giver(State(1, 1, state), 1, CHAIN_LIMITS).first(), 0.0)

    assert core.log_bytes == len(state)


def test_a_single_server_goes_on_while_who_would_join_is_away() -> None:
    decided = configuration.encode(Configuration(((0, 1),), (11, 12), (False,) * 2, False))
    limits = replace(CHAIN_LIMITS, log_bytes=1_000, window_bytes=500)
    core = ChainServer(0, ("a", "b"), 1, Memory(11, 1, decided), Sum(), now=0.0, limits=limits)
    core.aligned = True  # as the head of a configuration that it has entered
    core.handle_message(1, Join(1, 2, 0, True), 0.0)  # and nothing more comes from there
    core.handle_request("client", Open(b"n"), 0.0, 1)
    core.flush(0.0)

    longest = 0
    for seq in range(1, 301):
        core.handle_request("client", Do(1, seq, seq - 1, b"1"), 0.0, 1)
        core.flush(0.0)
        longest = max(longest, core.log.bytes)

    assert core.committed == 301
    assert 3_500 < longest < 4_500  # who joins finds what it lacks for so long


def test_for_who_is_not_heard_any_more_no_log_is_kept_and_nothing_said_again() -> None:
    decided = configuration.encode(Configuration(((0, 1),), (11, 12), (False,) * 2, False))
    core = ChainServer(0, ("a", "b"), 1, Memory(11, 1, decided), Sum(), now=0.0)
    core.aligned = True  # as the head of a configuration that it has entered
    core.handle_request("client", Open(b"n"), 0.0, 1)
    core.flush(0.0)
    core.handle_message(1, Beat(1, 12, 2, 0, 0, 0, 1), 0.0)
    core.handle_message(1, Join(1, 2, 0, True), 0.0)

    given = []
    for step in range(1, 11):
        core.handle_timeout(step / 8)
        given.append(any(isinstance(each.message, Append) for each in core.flush(step / 8) if isinstance(each, Tell)))

    assert given[:3] == [True] * 3
    assert given[-5:] == [False] * 5
    assert core.log_most == core.log_bytes
    core.handle_message(1, Beat(1, 12, 2, 0, 0, 0, 1), 1.25)
    core.handle_message(1, Join(1, 2, 0, True), 1.25)
    assert core.flush(1.25) == [Tell(1, Append(1, 0, (Entry(1, 1, 0, 0, 0, b"n"),), 1, 1, True))]
