"""Seeded worlds of queries whose home is a chain; and homes broken on purpose, which some seed among few shows."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.worlds.ordered.homes import Homes

from chappe.log.ordered.commands import Answer, BeginRun, CommitRows, StageRows
from chappe.log.ordered.homes import ChainPiece, Snapshot
from chappe.log.ordered.homes import Homes as Core
from chappe.sim.world import Settings

CHUNK = 3
SEEDS = 6  # the command plays more of them
TRIED = 10  # one of so many finds each fault
SHORT = Settings(minutes=0.1)
Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_row_is_there_once_whatever_dies(first: int) -> None:
    failed = {seed: found for seed in range(first, first + CHUNK) if (found := Homes(seed).play().failure) is not None}

    assert failed == {}  # replay with: python -m tests.worlds --scenario homes --seed N -v


def test_the_same_seed_plays_the_same_queries() -> None:
    told: tuple[list[str], list[str]] = ([], [])
    outcomes = [Homes(7, SHORT, tell=each.append).play() for each in told]
    assert outcomes[0] == outcomes[1]
    assert told[0] == told[1]


def test_batches_are_committed_where_nothing_goes_wrong() -> None:
    world = Homes(3, Settings(minutes=0.1, disturb=False))

    assert world.play().failure is None
    assert all(query.done for query in world.queries)
    assert world.batches >= sum(query.goal for query in world.queries)


def commits_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    stage, commit = Core.stage, Core.commit

    def forget(self: Core, command: StageRows | CommitRows) -> None:
        sink = self._sinks.get(command.sink)
        if sink is not None:
            sink.batch = min(sink.batch, command.batch - 1)

    def stage_again(self: Core, command: StageRows, now_us: int) -> Answer:
        forget(self, command)
        return stage(self, command, now_us)

    def commit_again(self: Core, command: CommitRows, now_us: int) -> list[ChainPiece] | Answer:
        forget(self, command)
        return commit(self, command, now_us)

    patch.setattr(Core, "stage", stage_again)
    patch.setattr(Core, "commit", commit_again)


def forgets_whom_it_fenced(patch: pytest.MonkeyPatch) -> None:
    begin = Core.begin

    def forget(self: Core, command: BeginRun, now_us: int) -> Answer:
        for each in self._sinks.values():
            each.fenced = []
        return begin(self, command, now_us)

    patch.setattr(Core, "begin", forget)


def lets_zombies_commit(patch: pytest.MonkeyPatch) -> None:
    commit = Core.commit

    def anybody(self: Core, command: CommitRows, now_us: int) -> list[ChainPiece] | Answer:
        sink = self._sinks.get(command.sink)
        run = command.run if sink is None else sink.run
        return commit(self, CommitRows(command.sink, run, command.batch, command.attempts), now_us)

    patch.setattr(Core, "commit", anybody)
    patch.setattr(Core, "_let_go", lambda self, name: None)


def commits_a_half(patch: pytest.MonkeyPatch) -> None:
    commit = Core.commit

    def some(self: Core, command: CommitRows, now_us: int) -> list[ChainPiece] | Answer:
        found = commit(self, command, now_us)
        return found[: (len(found) + 1) // 2] if isinstance(found, list) else found

    patch.setattr(Core, "commit", some)


def commits_all_attempts(patch: pytest.MonkeyPatch) -> None:
    commit = Core.commit

    def all_of_them(self: Core, command: CommitRows, now_us: int) -> list[ChainPiece] | Answer:
        found = commit(self, command, now_us)
        if not isinstance(found, list):
            return found
        staged = self._staged.get(command.sink, {})
        return [each for (batch, *_), pieces in staged.items() if batch == command.batch for each in pieces]

    patch.setattr(Core, "commit", all_of_them)


def gives_joiners_no_staged_rows(patch: pytest.MonkeyPatch) -> None:
    restore = Core.restore

    def without(self: Core, state: Snapshot) -> None:
        restore(self, Snapshot([(name, sink, []) for name, sink, _ in state.sinks], state.origins))

    patch.setattr(Core, "restore", without)


@pytest.mark.parametrize(
    ("fault", "first", "seen"),
    [
        (commits_what_is_committed, 0, "done a command twice|is committed, already"),
        (forgets_whom_it_fenced, 0, "was fenced by .* and is back"),
        (lets_zombies_commit, 0, "has taken over"),
        (commits_a_half, 0, "too few Counter"),
        (commits_all_attempts, 0, "too many Counter"),
        (gives_joiners_no_staged_rows, 0, "another state behind"),
    ],
)
def test_what_is_planted_in_homes_is_seen(fault: Break, first: int, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    failures = (Homes(seed).play().failure for seed in range(first, first + TRIED))

    assert any(failure is not None and re.search(seen, failure, re.DOTALL) for failure in failures)
