"""A chain of a machine of which a part lies elsewhere on the disk."""

from __future__ import annotations

from dataclasses import replace

from tests.fixed_clock import FixedClock
from tests.replication.test_chain_parts import Sum

from chappe.core import Persist
from chappe.limits import CHAIN_LIMITS
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain import configuration
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.log import LogChange, SaveState
from chappe.replication.chain.messages import Append, Entry
from chappe.replication.chain.replica import ExternalState

OPEN = Entry(1, 1_000_000, 0, 0, 0, b"nonce")
LIMITS = replace(CHAIN_LIMITS, log_bytes=100)


class Slow(Sum):
    """What it applied is written when the test says so."""

    settled = 0
    full = False
    complete = True

    def mark(self) -> int:
        return self.applied

    @property
    def applied(self) -> int:
        return sum(self.done)

    def __init__(self) -> None:
        super().__init__()
        self.done: list[int] = []

    def apply(self, command: bytes) -> bytes:
        self.done.append(1)
        return super().apply(command)


def alone(machine: Slow) -> ChainServerCore:
    """The only server of a chain."""
    decided = configuration.encode(Configuration(((0, 1),), (11,), (False,), True))
    core = ChainServerCore(
        0, ("a",), 1, VoteRecord(11, 1, decided), machine, now=0.0, clock=FixedClock(us=1), limits=LIMITS
    )
    core.aligned = True  # as the head of a configuration that it has entered
    core.log.append(OPEN)
    return core


def written(core: ChainServerCore) -> list[LogChange | SaveState]:
    """Have all written; the jobs that it took."""
    found = []
    for _ in range(10):
        jobs = [each.job for each in core.flush(0.0) if isinstance(each, Persist)]
        found += jobs
        for each in jobs:
            core.handle_done(each, None, 0.0)
    return found


def add(core: ChainServerCore, seq: int) -> None:
    core.log.append(Entry(1, 1_000_000, 1, seq, seq - 1, b"1"))


def test_a_log_is_not_shortened_before_what_it_did_is_on_disk() -> None:
    machine = Slow()
    core = alone(machine)
    for seq in range(1, 6):
        add(core, seq)
    assert isinstance(machine, ExternalState)

    assert all(isinstance(each, LogChange) and each.state is None for each in written(core))
    assert (core.committed, core.log.base) == (6, 0)

    add(core, 6)  # goes on meanwhile
    machine.settled = 4
    written(core)
    assert core.log.base == 0
    machine.settled = 5
    states = [each.change.state for each in written(core) if isinstance(each, SaveState) and each.change.state]

    assert [each.index for each in states] == [6]
    assert (core.log.base, core.log.end, core.committed, core.synced) == (6, 7, 7, 7)
    other = Slow()
    again = ChainServerCore(0, ("a",), 2, core.agreement.memory, other, now=0.0, clock=FixedClock(us=1))
    again.replica.restore(states[0].index, states[0].chunks)
    assert other.snapshot() == b"5"  # and not what was done since


def test_a_member_with_much_to_write_confirms_nothing_more() -> None:
    machine = Slow()
    core = alone(machine)
    written(core)
    machine.full = True
    add(core, 1)
    written(core)
    assert (core.synced, core.committed) == (2, 1)

    machine.full = False
    core.flush(0.0)

    assert core.committed == 2


def test_a_joiner_says_that_it_has_nothing_until_it_is_complete() -> None:
    machine = Slow()
    decided = configuration.encode(Configuration(((0, 1), (1, 2)), (11, 12, 13), (False,) * 3, True))
    core = ChainServerCore(2, ("a", "b", "c"), 3, VoteRecord(13, 1, decided), machine, now=0.0, clock=FixedClock(us=1))
    machine.complete = False
    core.handle_message(1, Append(1, 0, (OPEN,), 1, 1, True), 0.0)
    written(core)
    assert (core.synced, core.safe) == (1, 0)

    machine.complete = True

    assert core.safe == 1


def test_a_joiner_that_reads_the_rest_does_not_keep_a_long_log_and_is_let_in_when_it_has_all() -> None:
    machine = Slow()
    decided = configuration.encode(Configuration(((0, 1), (1, 2)), (11, 12, 13), (False,) * 3, True))
    core = ChainServerCore(
        2, ("a", "b", "c"), 3, VoteRecord(13, 1, decided), machine, now=0.0, clock=FixedClock(us=1), limits=LIMITS
    )
    machine.complete = False
    entries = (OPEN, *(Entry(1, 1_000_000, 1, seq, seq - 1, b"1") for seq in range(1, 6)))
    core.handle_message(1, Append(1, 0, entries, 6, 6, True), 0.0)
    written(core)
    assert (core.committed, core.log.base) == (6, 6)

    machine.complete = True
    assert core.safe == 0  # what the log has no more is not on disk elsewhere
    machine.settled = 5

    assert core.safe == 6
