"""Reads of a chain, which show every command that was confirmed before."""

from __future__ import annotations

import pytest
from tests.fixed_clock import FixedClock
from tests.replication.test_chain_steps import Echo

from chappe.core import Send
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain import configuration
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.messages import Confirm, Confirmed

TAIL: int = 2  # the life of the tail in the configuration


@pytest.mark.parametrize(
    ("life", "aligned", "answers"), [(TAIL, True, 1), (TAIL, False, 0), (3, False, 0), (3, True, 0)]
)
def test_only_the_tail_of_the_configuration_says_how_far_commands_are_committed(
    life: int, aligned: bool, answers: int
) -> None:
    decided = configuration.encode(Configuration(((0, 1), (1, TAIL)), (11, 12), (False, False), True))
    core = ChainServerCore(1, ("a", "b"), life, VoteRecord(12, 1, decided), Echo(), now=0.0, clock=FixedClock(us=1))
    core.aligned = aligned
    found = [*core.handle_message(0, Confirm(1, 1, 1), 0.0), *core.flush(0.0)]
    told = [each for each in found if isinstance(each, Send) and isinstance(each.message, Confirmed)]
    assert len(told) == answers
