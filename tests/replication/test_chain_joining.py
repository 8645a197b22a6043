"""Who joins a chain, call by call."""

from __future__ import annotations

from dataclasses import replace

from crc32c import crc32c
from tests.fixed_clock import FixedClock
from tests.replication.test_chain_elsewhere import Slow
from tests.replication.test_chain_parts import Sum, opened

from chappe.core import Effect, Report, Send
from chappe.limits import CHAIN_LIMITS, ChainLimits
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain import configuration
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.downstream import Giver
from chappe.replication.chain.events import JoinAbandoned, StateTooLarge
from chappe.replication.chain.log import ChainState
from chappe.replication.chain.messages import Ack, Append, Beat, Do, Entry, Join, Open, Piece
from chappe.replication.chain.replica import ReplicatedMachine

OPEN = Entry(1, 1_000_000, 0, 0, 0, b"nonce")
FIVE = Entry(1, 1_000_000, 1, 1, 0, b"5")


def joiner(machine: ReplicatedMachine | None = None, limits: ChainLimits = CHAIN_LIMITS) -> ChainServerCore:
    """The third server, in a chain of the first two."""
    decided = configuration.encode(Configuration(((0, 1), (1, 2)), (11, 12, 13), (False,) * 3, False))
    return ChainServerCore(
        2,
        ("a", "b", "c"),
        3,
        VoteRecord(13, 1, decided),
        machine or Sum(),
        now=0.0,
        clock=FixedClock(us=1),
        limits=limits,
    )


def tail(
    machine: ReplicatedMachine | None = None, limits: ChainLimits = CHAIN_LIMITS, others: int = 1
) -> ChainServerCore:
    """The only member of a chain of several servers, with one entry."""
    named = others + 1
    decided = configuration.encode(Configuration(((0, 1),), tuple(range(11, 11 + named)), (False,) * named, False))
    core = ChainServerCore(
        0,
        tuple("abc")[:named],
        1,
        VoteRecord(11, 1, decided),
        machine or Sum(),
        now=0.0,
        clock=FixedClock(us=1),
        limits=limits,
    )
    core.aligned = True  # as the head of a configuration that it has entered
    core.handle_request("client", Open(b"n"), b"", 0.0)
    core.flush(0.0)
    return core


def given(index: int, state: bytes) -> Giver:
    """A state on its way, in one piece."""
    return Giver(ChainState(index, 1, (state,)), crc32c(state), 1, CHAIN_LIMITS)


def appends(actions: list[Effect]) -> list[Append]:
    """Those with entries."""
    found = [each.message for each in actions if isinstance(each, Send)]
    return [each for each in found if isinstance(each, Append) and each.entries]


def test_a_joiner_acknowledges_what_the_tail_sends() -> None:
    core = joiner()

    assert core.handle_message(1, Append(1, 0, (OPEN, FIVE), 2, 1, True), 0.0) == []

    assert core.flush(0.0) == [Send(1, Ack(1, 3, 2, 2, 1))]


def test_what_does_not_come_from_the_tail_is_not_taken() -> None:
    core = joiner()

    core.handle_message(0, Append(1, 0, (OPEN,), 2, 1, True), 0.0)
    core.handle_message(1, Append(1, 0, (OPEN,), 2, 1, False), 0.0)

    assert core.log.end == 0


def test_a_late_state_takes_nothing_that_was_acknowledged() -> None:
    core = joiner()
    core.handle_message(1, Append(1, 0, (OPEN, FIVE), 2, 0, True), 0.0)
    late = given(1, opened().snapshot()).first()

    assert core.handle_message(1, late, 0.0) == [Send(1, Join(1, 3, 1, False))]

    assert (core.log.end, core.committed) == (2, 1)


def test_a_state_that_has_more_is_taken() -> None:
    core = joiner()
    replica = opened()
    replica.apply(2, FIVE)

    answer = core.handle_message(1, given(2, replica.snapshot()).first(), 0.0)

    assert answer == [Send(1, Join(1, 3, 2, True))]
    assert core.replica.snapshot() == replica.snapshot()


def test_the_log_may_be_as_long_as_a_large_state() -> None:
    decided = configuration.encode(Configuration(((0, 1), (1, 2)), (11, 12, 13), (False,) * 3, False))
    limits = replace(CHAIN_LIMITS, log_bytes=1)
    core = ChainServerCore(
        2, ("a", "b", "c"), 3, VoteRecord(13, 1, decided), Sum(), now=0.0, clock=FixedClock(us=1), limits=limits
    )
    state = opened().snapshot()
    assert core.compaction.log_bytes == 1

    core.handle_message(1, given(1, state).first(), 0.0)

    assert core.compaction.log_bytes == len(state)


def test_a_single_server_goes_on_while_who_would_join_is_away() -> None:
    decided = configuration.encode(Configuration(((0, 1),), (11, 12), (False,) * 2, False))
    limits = replace(CHAIN_LIMITS, log_bytes=1_000, window_bytes=500)
    core = ChainServerCore(
        0, ("a", "b"), 1, VoteRecord(11, 1, decided), Sum(), now=0.0, clock=FixedClock(us=1), limits=limits
    )
    core.aligned = True  # as the head of a configuration that it has entered
    core.handle_message(1, Join(1, 2, 0, True), 0.0)  # and nothing more comes from there
    core.handle_request("client", Open(b"n"), b"", 0.0)
    core.flush(0.0)

    longest = 0
    for seq in range(1, 301):
        core.handle_request("client", Do(1, seq, seq - 1, b"1"), b"", 0.0)
        core.flush(0.0)
        longest = max(longest, core.log.bytes)

    assert core.committed == 301
    assert 3_500 < longest < 4_500  # who joins finds what it lacks for so long


def test_for_who_is_not_heard_any_more_no_log_is_kept_and_nothing_said_again() -> None:
    decided = configuration.encode(Configuration(((0, 1),), (11, 12), (False,) * 2, False))
    core = ChainServerCore(0, ("a", "b"), 1, VoteRecord(11, 1, decided), Sum(), now=0.0, clock=FixedClock(us=1))
    core.aligned = True  # as the head of a configuration that it has entered
    core.handle_request("client", Open(b"n"), b"", 0.0)
    core.flush(0.0)
    core.handle_message(1, Beat(1, 12, 2, 0, 0, 0, 1), 0.0)
    core.handle_message(1, Join(1, 2, 0, True), 0.0)

    given = []
    for step in range(1, 11):
        core.handle_timeout(step / 8)
        given.append(any(isinstance(each.message, Append) for each in core.flush(step / 8) if isinstance(each, Send)))

    assert given[:3] == [True] * 3
    assert given[-5:] == [False] * 5
    assert core.log_most == core.compaction.log_bytes
    core.handle_message(1, Beat(1, 12, 2, 0, 0, 0, 1), 1.25)
    core.handle_message(1, Join(1, 2, 0, True), 1.25)
    assert core.flush(1.25) == [Send(1, Append(1, 0, (Entry(1, 1, 0, 0, 0, b"n"),), 1, 1, True))]


def test_a_joiner_whose_disk_is_behind_takes_nothing_more_and_says_so() -> None:
    machine = Slow()
    core = joiner(machine)
    core.handle_message(1, Append(1, 0, (OPEN,), 1, 1, True), 0.0)
    machine.full = True

    core.handle_message(1, Append(1, 1, (FIVE,), 2, 2, False), 0.0)

    assert core.flush(0.0) == [Send(1, Ack(1, 3, 1, 1, 1, full=True))]
    assert "its disk is behind" in core.joining.why
    late = given(9, opened().snapshot()).first()
    assert core.handle_message(1, late, 0.0) == []
    assert not [each for each in core.handle_timeout(0.1) if isinstance(each, Send) and isinstance(each.message, Join)]
    machine.full = False
    core.handle_message(1, Append(1, 1, (FIVE,), 2, 2, False), 0.2)
    assert core.flush(0.2) == [Send(1, Ack(1, 3, 2, 2, 2))]


def test_a_joiner_that_takes_nothing_is_sent_nothing_and_is_given_up_after_a_while() -> None:
    core = tail()
    core.handle_message(1, Beat(1, 12, 2, 0, 0, 0, 1), 0.0)
    core.handle_message(1, Join(1, 2, 0, True), 0.0)
    assert len(appends(core.flush(0.0))) == 1
    core.handle_message(1, Ack(1, 2, 0, 0, 0, full=True), 0.0)

    told, reports = [], []
    for step in range(1, 60):
        core.handle_message(1, Beat(1, 12, 2, 0, 0, 0, 1), step / 8)
        core.handle_message(1, Ack(1, 2, 0, 0, 0, full=True), step / 8)
        actions = core.handle_timeout(step / 8)
        reports += [
            each.event for each in actions if isinstance(each, Report) and isinstance(each.event, JoinAbandoned)
        ]
        told += appends(core.flush(step / 8))

    assert told == []
    assert reports == [JoinAbandoned("b")]
    assert core.log_most == core.compaction.log_bytes
    core.handle_message(1, Join(1, 2, 0, True), 8.0)
    assert len(appends(core.flush(8.0))) == 1


def test_who_takes_nothing_keeps_nobody_else_from_joining_for_long() -> None:
    core = tail(others=2)
    core.handle_message(1, Beat(1, 12, 2, 0, 0, 0, 1), 0.0)
    core.handle_message(1, Join(1, 2, 0, True), 0.0)
    core.flush(0.0)

    given = []
    for step in range(1, 60):
        core.handle_message(1, Ack(1, 2, 0, 0, 0, full=True), step / 8)
        for place in (1, 2):
            core.handle_message(place, Beat(1, 11 + place, 1 + place, 0, 0, 0, 1), step / 8)
        core.handle_message(2, Join(1, 3, 0, True), step / 8)
        core.handle_timeout(step / 8)
        given += [(each.to, step) for each in core.flush(step / 8) if isinstance(each, Send) and appends([each])]

    assert {server for server, _ in given} == {2}
    assert 40 <= given[0][1] <= 43  # after five seconds


def test_a_state_that_is_too_large_is_reported_by_both_and_asked_for_seldom() -> None:
    limits = replace(CHAIN_LIMITS, state_bytes_max=3, log_bytes=1)
    core, other = tail(limits=limits), joiner(limits=limits)
    core.log.shorten(1)  # the joiner cannot begin without a state
    size = len(core.replica.snapshot())

    actions = core.handle_message(1, Join(1, 2, 0, True), 0.0)

    assert [each.event for each in actions if isinstance(each, Report)] == [StateTooLarge("b", size, 3)]
    (piece,) = [each.message for each in actions if isinstance(each, Send)]
    assert isinstance(piece, Piece)
    assert not core.joining.gives
    assert other.handle_message(1, piece, 0.0) == [Report(StateTooLarge("c", size, 3))]
    assert other.handle_message(1, piece, 0.0) == []
    assert f"the state has {size:,} bytes, of 3" in other.joining.why
    asked = [
        step for step in range(700)
        for each in other.handle_timeout(step / 10) if isinstance(each, Send) and isinstance(each.message, Join)
    ]  # fmt: skip
    assert 600 <= min(asked) <= 602
