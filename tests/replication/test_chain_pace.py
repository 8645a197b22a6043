"""What neighbours in a chain tell each other, and how often."""

from __future__ import annotations

from tests.fixed_clock import FixedClock
from tests.replication.test_chain_parts import Sum

from chappe.core import Effect, Send
from chappe.limits import CHAIN_LIMITS
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain import configuration
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.downstream import Downstream
from chappe.replication.chain.log import EntryLog
from chappe.replication.chain.messages import Ack, Append, Entry

OPEN = Entry(1, 1_000_000, 0, 0, 0, b"nonce")


def acks(actions: list[Effect]) -> list[Ack]:
    return [each.message for each in actions if isinstance(each, Send) and isinstance(each.message, Ack)]


def test_a_predecessor_is_told_at_once_and_then_every_two_milliseconds() -> None:
    decided = configuration.encode(Configuration(((0, 1), (1, 2)), (11, 12), (False,) * 2, False))
    core = ChainServerCore(1, ("a", "b"), 2, VoteRecord(12, 1, decided), Sum(), now=0.0, clock=FixedClock(us=1))
    core.handle_timeout(0.0)
    core.handle_message(0, Append(1, 0, (OPEN,), 1, 0, True), 0.0)
    assert [each.end for each in acks(core.flush(0.0))] == [1]

    core.handle_message(0, Append(1, 1, (OPEN,), 2, 0, False), 0.001)
    assert acks(core.flush(0.001)) == []
    assert core.next_timeout() == CHAIN_LIMITS.ack_s
    core.handle_message(0, Append(1, 2, (OPEN,), 3, 0, False), 0.0015)
    assert acks(core.flush(0.0015)) == []

    core.handle_timeout(0.002)
    assert [(each.end, each.committed) for each in acks(core.flush(0.002))] == [(3, 3)]
    assert core.next_timeout() > 0.002
    assert acks(core.flush(1.0)) == []


def test_only_who_joins_is_told_what_is_committed() -> None:
    log = EntryLog(0, 0, (OPEN,))
    for joins in (False, True):
        neighbour = Downstream(1, 2, CHAIN_LIMITS)
        neighbour.begin(0, 0.0)
        assert neighbour.feed(log, 1, 0, 0, 0.0, joins=joins) == [Append(1, 0, (OPEN,), 0, 0, True)]
        assert len(neighbour.feed(log, 1, 1, 0, 0.0, joins=joins)) == 1  # it is on disk
        assert len(neighbour.feed(log, 1, 1, 1, 0.0, joins=joins)) == joins
