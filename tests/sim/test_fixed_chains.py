"""Fixed chains in worlds: what deaths alone leave whole, what a cut of the network loses, and faults that are seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs
from tests.worlds.chain.checkers import Same
from tests.worlds.chain.fixed import FixedChains, Survivor
from tests.worlds.chain.members import ClientLife, ServerLife
from tests.worlds.chain.scenario import Chains
from tests.worlds.residents import Life

from chappe.replication.chain import membership, proposing
from chappe.replication.chain.events import Replaced
from chappe.sim.world import Settings

SEEDS = 12  # the command plays more of them
TRIED = 11  # one of so many finds each fault
CLIENTS = ("client0", "client1", "client2")
Break = Callable[[pytest.MonkeyPatch], None]


def test_deaths_alone_break_no_promise_and_the_last_survivor_confirms() -> None:
    alone = 0
    for seed in range(SEEDS):
        world = FixedChains(seed)
        assert world.play().failure is None  # replay with: python -m tests.worlds --scenario chain-fixed --seed N -v
        alone += sum(each.alone for each in world.checkers if isinstance(each, Survivor))
    assert alone >= SEEDS // 2


def the_first_that_is_back_begins_again(patch: pytest.MonkeyPatch) -> None:
    """It does not wait for the last survivor, which has commands that no other has."""

    def hasty(known: membership.ChainView) -> membership.Proposal:
        found = wanted(known)
        if found.configuration is not None or known.member or not known.number:
            return found
        again = wanted(replace(known, fixed=False)).configuration
        return found if again is None else membership.Proposal(structs.replace(again, line=known.line))

    wanted = membership.wanted
    patch.setattr(proposing, "wanted", hasty)


def the_last_one_asks_for_a_majority(patch: pytest.MonkeyPatch) -> None:
    def careful(known: membership.ChainView) -> membership.Proposal:
        few = known.number and 2 * len(known.beats) <= len(known.names)
        return membership.Proposal(why="no majority") if few else wanted(known)

    wanted = membership.wanted
    patch.setattr(proposing, "wanted", careful)


@pytest.mark.parametrize(
    ("fault", "first", "seen"),
    [
        (the_first_that_is_back_begins_again, 8, "lacks the confirmed|commits .*, which is|no single copy|after 0"),
        (the_last_one_asks_for_a_majority, 0, "confirms nothing"),
    ],
)
def test_a_planted_fault_of_fixed_chains_is_seen(
    fault: Break, first: int, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    failures = (FixedChains(seed).play().failure for seed in range(first, first + TRIED))
    assert any(failure is not None and re.search(seen, failure, re.DOTALL) for failure in failures)


class Settles(Same):
    """In the end all servers are members and have the same; what was confirmed is only noted."""

    def __init__(self, world: Cut) -> None:
        super().__init__(world)
        self.confirmed: dict[str, set[int]] = {}  # while the network was cut, by client
        self.told: list[Replaced] = []

    def on_step(self, host: ServerLife) -> None:
        assert host.core.invariants() == []

    def on_confirmed(self, host: ClientLife, number: int) -> None:
        if self.world.parted and number:
            self.confirmed.setdefault(host.name, set()).add(number)

    def on_report(self, host: Life, event: object) -> None:
        if isinstance(event, Replaced):
            self.told.append(event)


class Cut(FixedChains):
    """Three servers of which one is cut off from the others for four seconds, with a client on each side."""

    lengths_s = (8.0,)
    parted = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed, Settings(plain=True))
        assert len(self.servers) == 3
        assert self.durable
        self.alone = self.rng.choice(self.servers)
        self.settles = Settles(self)
        self.checkers = [self.settles]  # the others promise what a cut breaks

    def plan(self, until: float) -> float:
        self.clock.at(2.0, self._cut)
        return until

    def _cut(self) -> None:
        near, *far = CLIENTS
        others = [each for each in self.servers if each != self.alone]
        for one, other in [(self.alone, each) for each in (*others, *far)] + [(near, each) for each in others]:
            self.stage.cut(one, other)
        self.parted = True
        self.clock.at(self.now + 4.0, self._mend)

    def _mend(self) -> None:
        self.parted = False
        self.stage.mend()

    def finish(self) -> float:
        return super(Chains, self).finish()


@pytest.mark.parametrize("seed", [3, 4, 8, 13, 15])
def test_a_cut_makes_two_chains_and_one_of_them_is_thrown_away_and_says_so(seed: int) -> None:
    world = Cut(seed)

    assert world.play().failure is None

    near, *far = (world.settles.confirmed.get(each, set()) for each in CLIENTS)
    assert near  # both sides have confirmed
    assert any(far)
    (did,) = {tuple(host.machine.did) for host in world.running()}  # and all have the same in the end
    lost = [bool(side - set(did)) for side in (near, set().union(*far))]
    assert lost in ([True, False], [False, True])
    assert any(each.apart for each in world.settles.told)
    assert world.expired  # a client whose commands are gone is told that its session is
