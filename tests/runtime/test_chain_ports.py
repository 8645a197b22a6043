"""A server of a chain on its sockets and its disk: what the disk refuses, and what comes while a vote is written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.chain_rig import Ledger, new_configuration
from tests.waiting import PATIENCE_S, until

from chappe import Chain, ChainConfiguration
from chappe.core import Persist
from chappe.errors import StorageFull
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.events import WriteRefused
from chappe.replication.chain.log import ChainState, LogChange
from chappe.runtime.chain_answers import UnreadAnswers
from chappe.runtime.chain_ports import ChainServerPorts
from chappe.runtime.driver import SYSTEM_CLOCK
from chappe.storage.chain_files import ChainFiles
from chappe.system import time


class Refusing(ChainFiles):
    """A disk that refuses when it is told to, or takes its time."""

    full = ""
    refusals = 0
    slow = threading.Event()
    done: list[str]  # votes, and parts of states

    def keep(self, memory: VoteRecord) -> None:
        """Unless it is full."""
        assert self.slow.wait(PATIENCE_S)
        if self.full == "votes":
            raise StorageFull("no room for a vote")
        super().keep(memory)
        self.done.append("vote")

    def save_more(self) -> None:
        """Count it."""
        super().save_more()
        self.done.append("part")

    def write(self, change: LogChange) -> None:
        """Unless it is full."""
        if self.full == "log":
            self.refusals += 1
            raise StorageFull("no room for the log")
        super().write(change)


class Member:
    """The only server of a chain."""

    def __init__(self, configuration: ChainConfiguration, home: Path) -> None:
        self.events: list[object] = []
        self.files = Refusing(home / "a", 7)
        self.files.done = []
        self.files.slow = threading.Event()
        self.files.slow.set()
        self.core = ChainServerCore(0, ("a",), 1, self.files.memory, Ledger(), now=time.monotonic(), clock=SYSTEM_CLOCK)
        self.ports = ChainServerPorts(
            configuration.addresses, configuration.chain, self.core, files=self.files, gate=None, rules=None,
            on_report=self.events.append, on_applied=None,
        )  # fmt: skip
        self.node = self.ports.driver

    def refused(self, what: str) -> int:
        """How often that was told."""
        with self.node.lock:
            return len([each for each in self.events if isinstance(each, WriteRefused) and each.what == what])


@pytest.fixture
def configuration() -> ChainConfiguration:
    return new_configuration("a")


@pytest.fixture
def member(configuration: ChainConfiguration, tmp_path: Path) -> Iterator[Member]:
    made = Member(configuration, tmp_path)
    yield made
    made.files.full = ""
    made.files.slow.set()
    made.ports.leave()
    made.node.close()


def test_a_vote_that_is_refused_is_written_again(member: Member, configuration: ChainConfiguration) -> None:
    member.files.full = "votes"
    member.ports.start()
    until(lambda: member.refused("the vote on the next configuration"))
    assert member.files.memory.number == 0
    member.files.full = ""

    with Chain(configuration) as chain:
        assert chain.call(b"one", timeout=PATIENCE_S).result == b"1"
    until(lambda: member.files.memory.number == 1)


def test_a_log_that_is_refused_is_written_again(member: Member, configuration: ChainConfiguration) -> None:
    member.ports.start()
    with Chain(configuration) as chain:
        chain.call(b"one", timeout=PATIENCE_S)
        member.files.full = "log"
        call = chain.submit(b"two")
        until(lambda: member.refused("the log"))
        assert not call.done()
        status = chain.status(timeout=PATIENCE_S)["a"]
        assert status is not None
        assert status.why == "the log cannot be written, and is tried again: no room for the log"
        until(lambda: member.files.refusals > 1)  # it was tried again ...
        assert member.refused("the log") == 1  # ... and not told again
        member.files.full = ""

        assert call.wait(PATIENCE_S)
        assert call.take().result == b"2"
        status = chain.status(timeout=PATIENCE_S)["a"]
        assert status is not None
        assert status.why == ""


def test_large_answers_come_though_they_are_more_than_may_be_unread(
    member: Member, configuration: ChainConfiguration
) -> None:
    member.ports._unread = UnreadAnswers(bytes_max=1_000_000)
    member.ports.start()
    with Chain(configuration) as chain:
        chain.call(bytes(500_000), timeout=PATIENCE_S)
        calls = [chain.member.ask(b"all", None) for _ in range(6)]
        for each in calls:
            assert each.wait(PATIENCE_S)
            assert len(each.take()) > 500_000


def test_nothing_is_taken_in_while_a_vote_is_written(member: Member, configuration: ChainConfiguration) -> None:
    member.files.slow.clear()
    member.ports.start()
    until(lambda: member.node.still)
    with Chain(configuration) as chain:
        call = chain.submit(b"one")
        assert dict(chain.status(timeout=0.2)) == {"a": None}
        assert not call.done()
        member.files.slow.set()

        assert call.wait(PATIENCE_S)
        assert chain.status(timeout=PATIENCE_S)["a"] is not None


def test_what_comes_while_a_vote_is_written_does_not_keep_the_server_busy(
    member: Member, configuration: ChainConfiguration
) -> None:
    turns = []
    flushed = member.ports.flushed
    member.ports.flushed = lambda: turns.append(1) or flushed()  # type: ignore[func-returns-value, method-assign]
    member.files.slow.clear()
    member.ports.start()
    until(lambda: member.node.still)
    with Chain(configuration) as chain:
        assert dict(chain.status(timeout=0.2)) == {"a": None}  # the question has come by then, and waits
        assert len(turns) < 100
        member.files.slow.set()
        assert chain.status(timeout=PATIENCE_S)["a"] is not None


def test_a_vote_is_written_between_two_parts_of_the_state_that_a_server_joins_with(
    member: Member, configuration: ChainConfiguration
) -> None:
    member.ports.start()
    with Chain(configuration) as chain:
        for _ in range(6):
            chain.call(bytes(1_000_000), timeout=PATIENCE_S)
    core, files = member.core, member.files
    with member.node.lock:
        made = core.replica.make()
        while not made.step(1_000_000):
            pass
        restored = core.replica.restoring()
        for each in made.chunks:
            restored.add(each)
        files.done.clear()
        core.take_state(ChainState(core.committed, core.log.term(core.committed), tuple(made.chunks)), restored)
        core.aligned = True  # it is the only one, and goes on as head
        member.node.do(())
        member.node.perform([Persist(core.agreement.memory, first=True)])
    until(lambda: core.synced == core.log.end)

    assert "vote" in files.done
    assert files.done[-1] == "part"
