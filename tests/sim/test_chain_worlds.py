"""Seeded worlds of a chain; and chains broken on purpose, in their cores and below, whose faults a few seeds show."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.sim.below_the_cores import forgets_who_is_due
from tests.worlds.chain.scenario import Chains

from chappe.api.chain.member import ChainMember
from chappe.core import Effect, Send
from chappe.limits import ChainLimits
from chappe.replication.agreement.core import Agreement
from chappe.replication.chain import membership, proposing
from chappe.replication.chain.client import ChainClient, Finished
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.joining import Joining
from chappe.replication.chain.log import LoadedChain, LogChange
from chappe.replication.chain.messages import Confirm, Confirmed, Entry, Join
from chappe.replication.chain.replica import ChainReplica, ReplicatedMachine
from chappe.replication.chain.serving import ReadingRounds, Serving
from chappe.replication.chain.storing import Storing
from chappe.runtime.chain_ports import ChainServerPorts
from chappe.runtime.worker import Lane
from chappe.sim.world import Settings
from chappe.storage.chain_files import ChainFiles
from chappe.testing.disk import DiskOps

CHUNK = 5
SEEDS = 15  # the command plays more of them
TRIED = 20  # one of so many finds each fault
SHORT = Settings(minutes=0.1)
Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept(first: int) -> None:
    failed = {seed: found for seed in range(first, first + CHUNK) if (found := Chains(seed).play().failure) is not None}

    assert failed == {}  # replay with: python -m tests.worlds --scenario chain --seed N -v


def test_a_seed_plays_the_same_world_every_time() -> None:
    told: tuple[list[str], list[str]] = ([], [])
    outcomes = [Chains(7, SHORT, tell=each.append).play() for each in told]
    assert outcomes[0] == outcomes[1]
    assert told[0] == told[1]
    assert len(told[0]) > 20


def test_where_nothing_goes_wrong_the_first_configuration_stays() -> None:
    world = Chains(3, Settings(disturb=False))
    assert world.play().failure is None
    assert {host.core.number for host in world.running()} == {1}


def reads_at_once(patch: pytest.MonkeyPatch) -> None:
    """An old tail answers."""

    def ask(self: ReadingRounds) -> bool:
        self.round += 1
        self._passed = self.round
        return False

    patch.setattr(ReadingRounds, "ask", ask)


def does_what_is_repeated_again(patch: pytest.MonkeyPatch) -> None:
    """Neither the head nor the state knows a command again."""

    def apply(self: ChainReplica, index: int, entry: Entry) -> Any:
        session = self._sessions.get(entry.session)
        if session is not None:
            session.last = entry.seq - 1
            session.results = {seq: found for seq, found in session.results.items() if seq < entry.seq}
        return done(self, index, entry)

    done = ChainReplica.apply
    patch.setattr(ChainReplica, "apply", apply)
    do, last = Serving._do, Serving._last

    def always(self: Serving, session: int) -> int | None:
        found = last(self, session)
        return None if found is None else self.asked - 1  # type: ignore[attr-defined]

    def asked(self: Serving, client: Any, request: Any) -> Any:
        self.asked = request.seq  # type: ignore[attr-defined]
        return do(self, client, request)

    patch.setattr(Serving, "_last", always)
    patch.setattr(Serving, "_do", asked)


def commits_before_all_have_it(patch: pytest.MonkeyPatch) -> None:
    def commit(self: ChainServerCore) -> None:
        if self.head:
            self.apply(self.safe)

    patch.setattr(ChainServerCore, "_commit", commit)


def commits_before_it_is_synced(patch: pytest.MonkeyPatch) -> None:
    def written(self: Storing, change: LogChange, why: str, now: float) -> list[Effect]:
        return self._wrote(change)

    patch.setattr(Storing, "_not_written", written)


def keeps_what_was_never_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChainServerCore, "_throw_away", lambda self, base: [])


def decides_alone(patch: pytest.MonkeyPatch) -> None:
    """Two heads: each side of a partition goes on by itself."""
    patch.setattr(Agreement, "majority", property(lambda self: 1))
    wanted = membership.wanted

    def eager(known: membership.ChainView) -> membership.Proposal:
        found, before = wanted(known), known.configuration
        stay = tuple(each for each in before.chain if each[0] in known.beats)
        if found.why and known.number and stay and stay != before.chain:
            return membership.Proposal(Configuration(stay, before.disks, before.out, before.durable))
        return found

    patch.setattr(proposing, "wanted", eager)


def commits_while_somebody_joins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChainServerCore, "holds", property(lambda self: False, lambda self, value: None), raising=False)


def believes_every_clock(patch: pytest.MonkeyPatch) -> None:
    """Two hours ahead of all others."""
    init = ChainReplica.__init__

    def believing(self: ChainReplica, machine: ReplicatedMachine, limits: ChainLimits, *, fixed: bool = False) -> None:
        init(self, machine, replace(limits, pause_s=1e6), fixed=fixed)

    patch.setattr(ChainReplica, "__init__", believing)


def is_not_deterministic(patch: pytest.MonkeyPatch) -> None:
    def read(self: ChainReplica) -> bytes:
        return snapshot(self) + b"%d" % (id(self) % 7)

    snapshot = ChainReplica.snapshot
    patch.setattr(ChainReplica, "snapshot", read)


def a_new_tail_knows_all(patch: pytest.MonkeyPatch) -> None:
    """It answers before it knows what the old one had committed."""

    def confirm(self: ChainServerCore, sender: int, message: Confirm) -> list[Effect]:
        if not self.agreement.untouched or not self.agreement.may_vote:
            return []
        disk = self.agreement.memory.disk
        return [Send(sender, Confirmed(self.number, message.life, message.round, disk, self.committed))]

    patch.setattr(ChainServerCore, "shown", property(lambda self: self.committed))
    patch.setattr(ChainServerCore, "_confirm", confirm)


def takes_whoever_comes_back_for_a_member(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement of a former life counts for the next one, which may have nothing."""
    handle = Joining.admit

    def join(self: Joining, sender: int, message: Join, now: float) -> Any:
        found = handle(self, sender, message, now)
        if self.joiner is not None and self.joiner.known:
            self.joiner.synced = self._server.log.end
        return found

    patch.setattr(Joining, "admit", join)


LOST = "[a-e] commits .*, which is|lacks the confirmed|after 0|[a-e] commits .*, [a-e] has|differ at|no single copy"


@pytest.mark.parametrize(
    ("fault", "first", "seen"),
    [
        (reads_at_once, 21, "no single copy"),
        (a_new_tail_knows_all, 5, "no single copy"),
        (does_what_is_repeated_again, 0, "done a command twice"),
        (commits_before_all_have_it, 0, "[a-e] commits .*, [a-e] has"),
        (commits_before_it_is_synced, 0, f"{LOST}|not settled"),
        (keeps_what_was_never_committed, 20, LOST),
        (decides_alone, 20, LOST),
        (commits_while_somebody_joins, 48, "[a-e] commits .*, [a-e] has"),
        (takes_whoever_comes_back_for_a_member, 33, LOST),
        (is_not_deterministic, 0, "another state"),
        (believes_every_clock, 58, "has lost its session"),
    ],
)
def test_a_planted_fault_is_seen(fault: Break, first: int, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    failures = (Chains(seed).play().failure for seed in range(first, first + TRIED))
    assert any(failure is not None and re.search(seen, failure, re.DOTALL) for failure in failures)


# -- faults below the cores ---------------------------------------------------------------------------------------


def syncs_nothing(patch: pytest.MonkeyPatch) -> None:
    """What was written is taken for safe."""
    patch.setattr(DiskOps, "fdatasync", lambda ops, fd: None)


def counts_a_refused_write(patch: pytest.MonkeyPatch) -> None:
    """What the disk refuses counts as done."""
    done = ChainServerPorts.done
    patch.setattr(ChainServerPorts, "done", lambda ports, job, outcome, now: done(ports, job, None, now))


def begins_with_nothing(patch: pytest.MonkeyPatch) -> None:
    """What the files of a server have is not read."""
    init = ChainFiles.__init__

    def forgetful(files: ChainFiles, *arguments: Any) -> None:
        init(files, *arguments)
        files.loaded = LoadedChain()

    patch.setattr(ChainFiles, "__init__", forgetful)


def keeps_no_vote(patch: pytest.MonkeyPatch) -> None:
    """A server that begins again votes twice."""
    patch.setattr(ChainFiles, "keep", lambda files, memory: None)


def loses_a_job(patch: pytest.MonkeyPatch) -> None:
    """A lane forgets what a job came to."""
    run, count = Lane._run, [0]

    def forgetful(lane: Lane, work: Callable[[], Any], done: Callable[[Any], None] | None) -> None:
        count[0] += 1
        run(lane, work, done if count[0] % 5 else None)

    patch.setattr(Lane, "_run", forgetful)


def mixes_up_answers(patch: pytest.MonkeyPatch) -> None:
    """Of commands that are answered together each gets the answer of another."""
    finished = ChainMember._finished

    def mixed(member: ChainMember, event: Finished) -> None:
        finished(member, Finished(event.tokens, event.outcomes[::-1], event.members, event.durable))

    patch.setattr(ChainMember, "_finished", mixed)


def says_that_it_is_not_done(patch: pytest.MonkeyPatch) -> None:
    """A command that was sent is said not to be done when nobody has answered in time."""
    withdraw = ChainClient.withdraw
    patch.setattr(ChainClient, "withdraw", lambda client, token: withdraw(client, token) or True)


@pytest.mark.parametrize(
    ("fault", "first"),
    [
        (forgets_who_is_due, 0),
        (syncs_nothing, 0),
        (counts_a_refused_write, 8),
        (begins_with_nothing, 0),
        (keeps_no_vote, 28),
        (loses_a_job, 0),
        (mixes_up_answers, 0),
        (says_that_it_is_not_done, 0),
    ],
)
def test_a_fault_below_the_cores_of_a_chain_is_seen(fault: Break, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert any(Chains(seed).play().failure is not None for seed in range(first, first + TRIED))
