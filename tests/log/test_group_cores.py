"""Consumer groups as cores: members, and what stores keep for them."""

from __future__ import annotations

import pytest
from tests.log.group_rig import GroupRig, MemberRig

from chappe.core import Effect, Persist, Reply
from chappe.defaults import GROUP_PAGE, GROUPS_MAX
from chappe.errors import ChappeError, ProtocolError, StorageFull
from chappe.log.groups.table import GroupTables, MemoryGroups
from chappe.log.queries import (
    EARLY,
    FULL,
    Answer,
    ErrorAnswer,
    GroupAnswer,
    GroupBeat,
    GroupCrew,
    GroupList,
    GroupNames,
    GroupRequest,
    GroupRow,
    GroupSet,
    QueryReply,
)


@pytest.mark.parametrize("stores", [1, 2, 3])
def test_members_share_partitions_evenly_and_read_all(stores: int) -> None:
    rig = GroupRig(stores, stores=stores)
    for number in range(3):
        MemberRig(rig, number)
    rig.run(60)
    rig.check_settled()
    rig.check_read()
    assert not rig.two_readers


def test_a_newcomer_takes_its_share_and_no_more_moves() -> None:
    rig = GroupRig(1, partitions=12)
    one, two = MemberRig(rig, 0), MemberRig(rig, 1)
    rig.run(10)
    before = set(one.reading), set(two.reading)
    three = MemberRig(rig, 2)
    rig.run(10)
    rig.check_settled()
    assert set(one.reading) < before[0]
    assert set(two.reading) < before[1]
    assert len(three.reading) == 4
    assert rig.repeats == 0


def test_the_share_of_a_dead_member_goes_on_where_it_had_committed() -> None:
    rig = GroupRig(3, records=1_000)
    one, _ = MemberRig(rig, 0), MemberRig(rig, 1)
    rig.run(10)
    one.up = False
    rig.run(8)
    rig.check_settled()
    assert rig.repeats < 20
    rig.run(600)
    rig.check_read()


def test_positions_survive_everybody() -> None:
    rig = GroupRig(4, records=1_000)
    MemberRig(rig, 0)
    rig.run(10)
    rig.members[0].leave()
    rig.run(1)
    rig.restart(rig.stores[0], 1)
    rig.run(3)
    read = {key: len(each) for key, each in rig.seen.items()}
    MemberRig(rig, 1)
    rig.run(10)
    assert rig.repeats == 0
    assert all(len(rig.seen[key]) > n for key, n in read.items())


def test_a_member_that_was_paused_commits_nothing_over_its_successor() -> None:
    rig = GroupRig(5, records=1_000)
    one, two = MemberRig(rig, 0), MemberRig(rig, 1)
    rig.run(10)
    taken = dict(one.reading)
    one.paused_until = rig.now + 30
    rig.run(29)
    assert set(two.reading) == set(rig.heads)
    rig.run(1.5)
    for row in rig.stores[0].tables._groups["g"].rows.values():
        assert row.offset >= taken.get(row.key, 0)
    rig.run(10)
    rig.check_settled()
    assert not rig.two_readers


def test_a_member_with_a_lasting_name_gets_its_partitions_back() -> None:
    rig = GroupRig(6)
    one, two = MemberRig(rig, 0, "worker-1"), MemberRig(rig, 1, "worker-2")
    rig.run(10)
    had, others = set(one.reading), set(two.reading)
    one.leave()
    again = MemberRig(rig, 2, "worker-1")
    rig.run(5)
    assert (set(again.reading), set(two.reading)) == (had, others)


def test_a_store_that_refused_hears_that_a_member_leaves() -> None:
    rig = GroupRig(11)
    member = MemberRig(rig, 0)
    rig.run(5)
    rig.stores[0].disk.refuses = StorageFull("no room")
    member.core._stores["S0"].down_until = rig.now + 2
    member.leave()
    rig.run(0.1)
    assert not rig.stores[0].tables._groups["g"].members


def test_the_earlier_life_of_a_member_is_over() -> None:
    rig = GroupRig(7)
    one = MemberRig(rig, 0, "worker-1")
    rig.run(5)
    rig.now += 0.001
    two = MemberRig(rig, 1, "worker-1")
    rig.run(5)
    assert "another program goes on as member worker-1" in one.core.fenced
    assert not one.core.mine
    assert set(two.reading) == set(rig.heads)


def test_another_store_at_the_same_place_is_told_everything() -> None:
    rig = GroupRig(10)
    MemberRig(rig, 0)
    rig.run(10)
    rig.stores[0].tables = GroupTables("another", (), rig.now)
    rig.run(3)
    assert rig.stores[0].tables._groups["g"].rows.keys() == rig.heads.keys()


@pytest.mark.parametrize("seed", [*range(5), 25, 35])
def test_stores_that_hear_claims_in_different_orders_grant_a_partition_to_one(seed: int) -> None:
    rig = GroupRig(seed, stores=2, partitions=8, records=10_000)
    for member in range(4):
        for store in ("S0", "S1"):
            rig.late_s[f"life{member}", store] = rig.rng.choice((0, 0, 0.2, 0.6))
    for member in range(4):
        MemberRig(rig, member).slow_s = 0.02
        rig.run(rig.rng.uniform(0, 1.5))
        if rig.rng.random() < 0.3:
            rig.rng.choice(rig.members).up = False
    rig.run(15)
    assert not rig.two_readers


@pytest.mark.parametrize("seed", range(60))
def test_deaths_pauses_cuts_and_restarts(seed: int) -> None:
    rig = GroupRig(seed, stores=1 + seed % 3, partitions=3 + seed % 9, records=400)
    rng = rig.rng
    rig.lossy = rng.choice((0.0, 0.0, 0.05))
    number = 0
    for _ in range(rng.randint(1, 5)):
        MemberRig(rig, number)
        number += 1
    for _ in range(rng.randint(3, 12)):
        rig.run(rng.uniform(0.1, 8))
        alive = [each for each in rig.members if each.up]
        match rng.choice(("death", "leave", "pause", "join", "restart", "cut", "slow")):
            case "death" if len(alive) > 1:
                rng.choice(alive).up = False
            case "leave" if len(alive) > 1:
                rng.choice(alive).leave()
            case "pause":
                rng.choice(alive).paused_until = rig.now + rng.uniform(0.5, 15)
            case "join":
                MemberRig(rig, number)
                number += 1
            case "restart" if all(each.up for each in rig.stores):
                rig.restart(rng.choice(rig.stores), rng.uniform(0.1, 8))
            case "cut":
                cut = rng.choice(alive).life, rng.choice(rig.stores).name
                rig.cuts.add(cut)
                rig.at(rng.uniform(1, 12), lambda cut=cut: rig.cuts.discard(cut))  # type: ignore[misc]
            case "slow":
                rng.choice(alive).slow_s = 2.0
    rig.lossy = 0.0
    rig.run(60)
    rig.check_settled()
    for each in rig.members:
        each.slow_s = 0.05
    rig.run(400 * 0.1 * len(rig.heads))
    rig.check_read()
    if len(rig.stores) == 1:
        assert not rig.two_readers


# -- a store's part ---------------------------------------------------------------------------------------


class Table:
    """What one store keeps of groups, and a disk that may refuse."""

    def __init__(self) -> None:
        self.disk = MemoryGroups()
        self.now = 0.0
        self.core = GroupTables("store", (), self.now)

    def ask(self, request: GroupRequest) -> Answer | None:
        """The answer, once the disk has done what it is given; None if there is none."""
        return self._answer(self.core.handle_request(b"client", b"12345678", request, self.now))

    def _answer(self, effects: list[Effect]) -> Answer | None:
        assert not self.core.invariants()
        found: Answer | None = None
        for effect in effects:
            if isinstance(effect, Persist):
                try:
                    self.disk.keep(effect.job.changes)
                except ChappeError as error:
                    found = self._answer(self.core.handle_done(error, self.now))
                else:
                    found = self._answer(self.core.handle_done(None, self.now))
            elif isinstance(effect, Reply):
                found = effect.message.answer
        return found

    def kept(self) -> list[tuple[int, int]]:
        return [(row.epoch, row.offset) for group in self.disk.kept() for row in group.rows]


def row(epoch: int = 1, serial: int = 0, offset: int = -1, owner: str = "life", partition: bytes = b"P") -> GroupRow:
    return GroupRow(b"t", partition, epoch, owner, owner, serial, False, offset, 0)


def beat(*rows: GroupRow, claims: tuple[GroupRow, ...] = (), life: str = "life") -> GroupBeat:
    return GroupBeat("g", life, life, topics=[b"t"], session_ms=5_000, claims=list(claims), rows=list(rows))


def test_a_disk_that_refuses_is_told_and_what_it_refused_is_written_with_the_next() -> None:
    table = Table()
    table.disk.refuses = StorageFull("no room")
    assert table.ask(beat(claims=(row(),))) == ErrorAnswer("its disk refuses: no room", FULL)
    table.disk.refuses = None
    answer = table.ask(beat(row(serial=1, offset=5)))
    assert isinstance(answer, GroupAnswer)
    assert table.kept() == [(1, 5)]


def test_a_group_with_living_members_is_not_set() -> None:
    table = Table()
    table.ask(beat(claims=(row(),)))
    refused = ErrorAnswer("group g has 1 living member: stop them first")
    assert table.ask(GroupSet("g", [row(2, owner="", offset=0)])) == refused
    table.now = 6.0
    assert isinstance(table.ask(GroupSet("g", [row(2, owner="", offset=0)])), GroupAnswer)
    assert table.kept() == [(2, 0)]


def test_a_store_that_has_just_started_knows_nobody_and_sets_nothing() -> None:
    refused = Table().ask(GroupSet("g", [row(2, owner="", offset=0)]))
    assert isinstance(refused, ErrorAnswer)
    assert refused.kind == EARLY


def test_what_was_deleted_does_not_come_back() -> None:
    table = Table()
    table.ask(beat(claims=(row(3),)))
    table.now = 6.0
    table.ask(GroupSet("g", floor=3))
    assert table.kept() == []
    answer = table.ask(beat(row(3, 7, 9), life="life"))
    assert isinstance(answer, GroupAnswer)
    assert (answer.floor, answer.rows, table.kept()) == (3, [], [])
    assert table.ask(GroupList()) == GroupNames([("g", 1, 0)])
    again = GroupTables("store", table.disk.kept(), 0.0)
    assert again.handle_request(b"c", b"12345678", GroupList(), 0.0)[0] == Reply(
        b"c", QueryReply(b"12345678", GroupNames([]))
    )


def test_groups_of_which_nothing_is_left_make_room() -> None:
    table = Table()
    for number in range(GROUPS_MAX):
        table.ask(GroupBeat(f"g{number}", "life", "m", topics=[b"t"], session_ms=5_000))
    assert isinstance(table.ask(GroupBeat("one more", "life", "m", topics=[b"t"])), ErrorAnswer)
    table.now = 6.0
    assert isinstance(table.ask(GroupBeat("one more", "life", "m", topics=[b"t"])), GroupAnswer)


def test_no_more_wait_for_a_disk_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.log.groups.table.GROUP_WAITING_MAX", 1)
    core = GroupTables("store", (), 0.0)
    core.handle_request(b"one", b"12345678", beat(claims=(row(),)), 0.0)
    (refused,) = core.handle_request(b"two", b"12345678", beat(row(serial=1, offset=5)), 0.0)
    assert isinstance(refused, Reply)
    assert refused.message.answer == ErrorAnswer("too many wait for its disk: ask again")


def test_pages_bring_all_rows() -> None:
    table = Table()
    count = GROUP_PAGE + 10
    rows = [row(partition=b"%d" % number) for number in range(count)]
    table.ask(beat(claims=tuple(rows[:GROUP_PAGE])))
    table.ask(beat(claims=tuple(rows[GROUP_PAGE:])))
    found, known, since = 0, "", 0
    while True:
        answer = table.ask(GroupBeat("g", table=known, since=since))
        assert isinstance(answer, GroupAnswer)
        found += len(answer.rows)
        known, since = answer.table, answer.since
        if not answer.more:
            break
    assert found == count


@pytest.mark.parametrize(
    "bad",
    [
        beat(row(owner="another")),
        beat(claims=(row(owner="another"),)),
        beat(row(partition=b"")),
        beat(row(partition=b"a\0b")),
        GroupBeat("", "life", "m"),
        GroupBeat("g", "life", ""),
        GroupBeat("g", "life", "m", topics=[b""]),
    ],
)
def test_what_makes_no_sense_is_refused(bad: GroupBeat) -> None:
    with pytest.raises(ProtocolError):
        Table().ask(bad)


def test_a_store_that_answers_nonsense_is_passed_over() -> None:
    rig = GroupRig(8)
    member = MemberRig(rig, 0)
    rig.run(5)
    store = member.core._stores["S0"]
    store.ticket, member.core._by_ticket = 77, {77: "S0"}
    assert member.core.handle_answer(77, GroupNames([]), rig.now) == []
    assert store.down_until > rig.now
    crew = [GroupCrew("x", "x", "", [b"a\0"])]
    store.ticket, member.core._by_ticket = 78, {78: "S0"}
    with pytest.raises(ProtocolError):
        member.core.handle_answer(78, GroupAnswer("S0", 1, 9, 0, False, crew, []), rig.now)
