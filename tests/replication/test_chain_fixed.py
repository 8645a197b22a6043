"""A fixed chain, call by call: servers decide alone, and it is clear whose decision stands where two have decided."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.fixed_clock import FixedClock
from tests.replication.test_chain_parts import Sum

from chappe.core import Effect, Report, Send
from chappe.errors import UsageError
from chappe.replication.agreement.core import Decided, VoteRecord, decider
from chappe.replication.chain import configuration
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.events import Entered
from chappe.replication.chain.joining import NOTHING
from chappe.replication.chain.membership import ChainView, Proposal, wanted
from chappe.replication.chain.messages import Beat, Join

NAMES = ("a", "b", "c")
FIRST = Configuration(((0, 1), (1, 2), (2, 3)), (11, 12, 13), (False,) * 3, True, (0,))  # 16
OF_A = structs.replace(FIRST, chain=((0, 1),), line=(0, 16))  # 32: the others had died
OF_A_AND_B = structs.replace(FIRST, chain=((0, 1), (1, 2)), line=(0, 16))  # 33: decided by b, which died then
OF_B = structs.replace(FIRST, chain=((1, 2),), line=(0, 16))  # 49: decided by b, which a cut had left alone


def server(number: int, of: Configuration, life: int = 1) -> ChainServerCore:
    """The first one."""
    memory = VoteRecord(11, number, configuration.encode(of))
    return ChainServerCore(0, NAMES, life, memory, Sum(), now=0.0, clock=FixedClock(us=1), fixed=True)


def decided(actions: list[Effect]) -> list[tuple[int, Configuration]]:
    """What others are told of decisions."""
    said = [each.message for each in actions if isinstance(each, Send)]
    return [(each.number, configuration.decode(each.value)) for each in said if isinstance(each, Decided)]


def beat(number: int, disk: int, life: int) -> Beat:
    """Of one that hears everybody."""
    return Beat(number, disk, life, 0, 0, 0, 0b111)


@pytest.mark.parametrize("life", [1, 9], ids=["lives", "has restarted"])
def test_a_survivor_stands_against_a_decision_that_it_was_not_told_of(life: int) -> None:
    core = server(32, OF_A, life)

    actions = core.handle_message(1, Decided(33, configuration.encode(OF_A_AND_B)), 1.0)

    said = decided(actions)
    assert said == [(48, structs.replace(OF_A, line=(0, 16, 32)))] * 2
    assert decider(48) == 0
    assert core.agreement.memory.disk == 11  # it is who it was
    assert not core.apart


def test_who_went_on_alone_gives_way_to_the_higher_number_as_somebody_else() -> None:
    core = server(32, OF_A)

    actions = core.handle_message(1, Decided(49, configuration.encode(OF_B)), 1.0)

    assert decided(actions) == []
    assert [each.event.members for each in actions if isinstance(each, Report) and isinstance(each.event, Entered)] == [
        (1,)
    ]
    assert core.apart
    assert core.agreement.memory.disk != 11  # nobody takes what it has for what the chain has
    assert core.life != 1
    asked = [each.message for each in core.joining.ask(2.0) if isinstance(each, Send)]
    assert asked == [Join(49, core.life, NOTHING, True)]  # and it gets everything


def test_of_two_decisions_that_both_have_all_members_the_higher_stands() -> None:
    everybody = structs.replace(FIRST, disks=(11, 12, 99), line=(0, 16))
    core = server(32, everybody)

    core.handle_message(1, Decided(33, configuration.encode(everybody)), 1.0)

    assert core.number == 33
    assert core.member  # nothing can have been committed in the other one
    assert not core.apart


def known(of: Configuration, beats: dict[int, Beat], *, member: bool, out: int = -1) -> ChainView:
    asked = {out: True} if out >= 0 else {}
    return ChainView(32, of, True, NAMES, beats, -1, asked, patient=False, fixed=True, member=member)


def test_the_last_one_goes_on_alone() -> None:
    found = wanted(known(FIRST, {1: beat(32, 12, 2)}, member=True)).configuration
    assert found == structs.replace(FIRST, chain=((1, 2),), line=(0, 32))


def test_who_is_back_waits_for_each_member() -> None:
    two = {0: beat(32, 11, 8), 1: beat(32, 12, 9)}

    assert wanted(known(FIRST, two, member=False)).why == "waits for c, who has all that was confirmed"
    lost = wanted(known(FIRST, two | {2: beat(32, 99, 7)}, member=False))
    assert lost == Proposal(why="c came back without its disk, and may have had the last commands")
    all_three = wanted(known(FIRST, two | {2: beat(32, 13, 7)}, member=False)).configuration
    assert all_three is not None
    assert all_three.chain == ((0, 8), (1, 9), (2, 7))


def test_an_administrator_has_them_go_on_without_one() -> None:
    two = {0: beat(32, 11, 8), 1: beat(32, 12, 9)}
    found = wanted(known(FIRST, two, member=False, out=2)).configuration
    assert found is not None
    assert (found.chain, found.out) == (((0, 8), (1, 9)), (False, False, True))


def test_who_is_outside_changes_nothing() -> None:
    heard = {1: beat(32, 12, 2), 2: beat(32, 13, 9)}  # c has restarted, and a is dead
    assert wanted(known(FIRST, heard, member=False)) == Proposal()


@pytest.mark.parametrize("fixed", [False, True])
def test_a_directory_of_the_other_kind_is_refused(fixed: bool) -> None:
    of = FIRST if not fixed else structs.replace(FIRST, line=())
    with pytest.raises(UsageError, match=r"is of a chain that is .*: set fixed as it was, or choose another directory"):
        ChainServerCore(
            0,
            NAMES,
            1,
            VoteRecord(11, 1, configuration.encode(of)),
            Sum(),
            now=0.0,
            clock=FixedClock(us=1),
            fixed=fixed,
        )


def test_where_servers_agree_a_configuration_has_the_bytes_that_it_had() -> None:
    agreed = structs.replace(FIRST, line=())
    assert configuration.encode(agreed).hex() == "94939200019201029202 03930b0c0d93c2c2c2c3".replace(" ", "")
    assert configuration.decode(configuration.encode(FIRST)) == FIRST
