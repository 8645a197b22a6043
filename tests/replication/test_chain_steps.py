"""Several commands of a client that are one entry of a chain's log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fixed_clock import FixedClock

from chappe.core import Reply
from chappe.errors import ProtocolError
from chappe.limits import CHAIN_LIMITS, ChainLimits
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain import configuration
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.events import Applied
from chappe.replication.chain.messages import OK, RAISED, STEP_BYTES, Do, Done, Open


class Echo:
    """Answers with as many bytes as it is told, and remembers what it did."""

    def __init__(self) -> None:
        self.did: list[bytes] = []

    def apply(self, command: bytes) -> bytes:
        self.did.append(command)
        return bytes(int(command))

    def read(self, query: bytes) -> bytes:
        return b"".join(self.did)

    def snapshot(self) -> bytes:
        return b",".join(self.did)

    def restore(self, state: bytes) -> None:
        self.did = state.split(b",") if state else []


def alone(machine: Echo, limits: ChainLimits = CHAIN_LIMITS) -> ChainServerCore:
    """The only server of a chain in memory, with a session: number 1."""
    decided = configuration.encode(Configuration(((0, 1),), (11,), (False,), False))
    core = ChainServerCore(
        0, ("a",), 1, VoteRecord(11, 1, decided), machine, now=0.0, clock=FixedClock(us=1), limits=limits
    )
    core.aligned = True  # as the head of a configuration that it has entered
    core.handle_request("client", Open(b"n"), b"", 0.0)
    core.flush(0.0)
    core.news = []
    return core


def done(core: ChainServerCore, request: Do) -> list[Done]:
    found = [*core.handle_request("client", request, b"", 0.0), *core.flush(0.0)]
    return [each.message for each in found if isinstance(each, Reply) and isinstance(each.message, Done)]


def test_a_step_is_one_entry_done_once_and_told_of_command_by_command() -> None:
    machine = Echo()
    core = alone(machine)
    step = Do(1, 1, 0, b"1", (b"2", b"3"))

    answers = [Done(1, 1, OK, bytes(1), 1, False, 0, ((OK, bytes(2)), (OK, bytes(3))))]
    assert done(core, step) == answers
    assert done(core, step) == answers  # repeated: with the results that it had
    assert machine.did == [b"1", b"2", b"3"]
    assert core.committed == 2
    assert core.news == [Applied(2, 1, b"%d" % each, OK, bytes(each)) for each in (1, 2, 3)]


def test_results_that_are_much_together_come_one_after_the_other() -> None:
    half = b"%d" % (STEP_BYTES // 2)
    answers = done(alone(Echo()), Do(1, 1, 0, half, (half, b"1", b"%d" % (2 * STEP_BYTES))))
    assert [(each.first, len(each.also)) for each in answers] == [(0, 1), (2, 0), (3, 0)]


def test_results_of_one_step_have_a_bound() -> None:
    machine = Echo()
    core = alone(machine, replace(CHAIN_LIMITS, results_bytes=5))

    (answer,) = done(core, Do(1, 1, 0, b"3", (b"3", b"2", b"1")))

    assert (answer.result, answer.also[1]) == (bytes(3), (OK, bytes(2)))
    assert [outcome for outcome, _ in answer.also] == [RAISED, OK, RAISED]
    assert machine.did == [b"3", b"3", b"2", b"1"]


def test_commands_that_are_too_much_for_one_step_are_refused() -> None:
    core = alone(Echo())
    with pytest.raises(ProtocolError, match="too many bytes for one step"):
        core.handle_request("client", Do(1, 1, 0, b"1", (bytes(STEP_BYTES),)), b"", 0.0)
    assert done(core, Do(1, 1, 0, bytes(STEP_BYTES - 1) + b"7"))  # one alone may be larger, up to 4 MiB
