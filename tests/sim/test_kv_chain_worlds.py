"""Seeded worlds of a data store on a chain; and masters broken on purpose, whose faults one seed of few must show."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.worlds.kv.chain_scenario import KvChain
from tests.worlds.kv.chained import StoreServerLife

from chappe.channel import ChannelProducer
from chappe.kv.backend import Commit, WriterRow
from chappe.kv.chained.core import ChainedMaster
from chappe.kv.chained.fed import Did, Led
from chappe.kv.chained.machine import StoreMachine
from chappe.kv.chained.messages import Row
from chappe.kv.entity import Entity
from chappe.kv.recent import Recent
from chappe.sim.world import Settings

CHUNK = 5
SEEDS = 10  # the command plays more of them
SHORT = Settings(minutes=0.1)
Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_confirmed_write_is_lost_whichever_server_dies(first: int) -> None:
    failed = {
        seed: found for seed in range(first, first + CHUNK) if (found := KvChain(seed).play().failure) is not None
    }

    assert failed == {}  # replay with: python -m tests.worlds --scenario kv-chain --seed N -v


def test_the_seed_of_a_stores_chain_plays_the_same_world_again() -> None:
    told: tuple[list[str], list[str]] = ([], [])
    outcomes = [KvChain(7, SHORT, tell=each.append).play() for each in told]
    assert outcomes[0] == outcomes[1]
    one, other = ([re.sub("chappe-world-[0-9a-f]+", "", line) for line in each] for each in told)
    assert one == other


def test_clones_take_what_they_lack_from_the_next_head() -> None:
    assert sum([_resumed(seed) for seed in (0, 6, 7, 8)]) > 4


def _resumed(seed: int) -> int:
    world = KvChain(seed)
    assert world.play().failure is None
    return world.states.resumed


def test_where_nothing_goes_wrong_all_writes_are_confirmed_and_one_is_master() -> None:
    world = KvChain(0, Settings(disturb=False))

    assert world.play().failure is None
    servers = world.alive(StoreServerLife)
    assert [host.core.head for host in servers] == [host.role.active is not None for host in servers]
    assert len(world.written) > 20


def confirms_before_the_chain_has_it(patch: pytest.MonkeyPatch) -> None:
    propose, did = ChainedMaster._propose, ChainedMaster._did

    def at_once(self: ChainedMaster, commit: Commit) -> None:
        propose(self, commit)
        assert self.active is not None
        done = self.active.handle_done(Commit(commit.number, ()), None, self._seen_at)
        self._by_master(done, self._seen_at)

    def told(self: ChainedMaster, one: Did, now: float) -> None:
        if self.active is None or one.master != self.active.entity:
            did(self, one, now)

    patch.setattr(ChainedMaster, "_propose", at_once)
    patch.setattr(ChainedMaster, "_did", told)


def leads_before_the_chain_says_so(patch: pytest.MonkeyPatch) -> None:
    """It has not what the former master has told others yet."""
    seek = ChainedMaster._seek

    def lead(self: ChainedMaster) -> None:
        seek(self)
        if self._asked is not None:
            asked, self._asked = self._asked, None
            before, self._leader = self._leader, asked
            self._lead(Led(asked, self._event), before, self._seen_at)

    patch.setattr(ChainedMaster, "_seek", lead)


def forgets_who_wrote(patch: pytest.MonkeyPatch) -> None:
    do = ChainedMaster._do

    def forgetful(self: ChainedMaster, done: Row, event: int) -> None:
        if not isinstance(done[0], WriterRow):
            do(self, done, event)

    patch.setattr(ChainedMaster, "_do", forgetful)


def restores_no_writers(patch: pytest.MonkeyPatch) -> None:
    """Who joins, or starts again, would do a write again."""
    become = StoreMachine.become

    def forgetful(self: StoreMachine, kept: Any, rows: Any) -> None:
        become(self, kept, rows)
        self._writers = {}
        self._tell(self.whole())

    patch.setattr(StoreMachine, "become", forgetful)


def forgets_the_commit_that_was_half_told(patch: pytest.MonkeyPatch) -> None:
    since = Recent.since

    def later(self: Recent, master: Entity, event: int) -> Any:
        nearest = [each.event for each in self._states if each.master == master and each.event >= event]
        return since(self, master, min(nearest)) if nearest else None

    patch.setattr(Recent, "since", later)


def numbers_only_what_clones_hear(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChannelProducer, "pass_over", lambda self, count: None)


# What the world of a chain cannot show, and ``tests/kv/test_chained.py`` does: commits of a head that was replaced are
# always before the next master's name in the log, and clones are told of nothing that the next master lacks.


@pytest.mark.parametrize(
    ("broken", "seeds"),
    [
        (confirms_before_the_chain_has_it, (1, 3)),
        (leads_before_the_chain_says_so, (0, 1)),
        (forgets_who_wrote, (0, 3)),
        (restores_no_writers, (0,)),
        (forgets_the_commit_that_was_half_told, (1, 3)),
        (numbers_only_what_clones_hear, (7,)),
    ],
)
def test_a_broken_chained_master_is_caught(
    broken: Break, seeds: Iterable[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)

    assert any(KvChain(seed).play().failure for seed in seeds)
