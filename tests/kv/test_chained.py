"""A data store on a chain: who is master, what counts when, and what becomes of writes when the head is replaced."""

from __future__ import annotations

import pytest
from tests.fixed_clock import FixedClock
from tests.kv.chained_rig import NS, Chained

from chappe.core import Send
from chappe.data.binary import encode as encode_value
from chappe.data.order import COUNT
from chappe.data.scalars import Count
from chappe.errors import InvalidData, StaleData, UsageError, WriteUnknown, WrongRevision
from chappe.kv.backend import ClearRows, EraseRow, ForgetWriter, PutRow, WriterRow
from chappe.kv.chained.core import ChainedMaster, Place
from chappe.kv.chained.fed import Did, Fed, Led, Stood, WholeRows, WholeState, steps
from chappe.kv.chained.machine import StoreMachine
from chappe.kv.chained.messages import Lead, Part, Still, decode, encode, encode_operation, parts_of
from chappe.kv.entity import Entity, chappe_entity
from chappe.kv.events import MasterFound, SnapshotGivenUp, TwoMasters
from chappe.kv.role import CHAIN

ANN, BOB = chappe_entity(b"a" * 16, 1), chappe_entity(b"b" * 16, 2)
ROW_OF_A_STRING = PutRow(encode_value("k"), encode_value("v"), 77)
OTHER_ROW = PutRow(encode_value("other"), encode_value(Count(3)), None)


def told(machine: StoreMachine) -> list[Fed | WholeState]:
    heard: list[Fed | WholeState] = []
    machine.hear(heard.append)
    heard.clear()
    return heard


def commit(machine: StoreMachine, master: Entity, number: int, *rows: object, part_bytes: int = 1_000) -> None:
    for each in parts_of(master, number, 1 + number, map(encode_operation, rows), part_bytes):  # type: ignore[arg-type]
        machine.apply_own(each)


# -- commands and the machine ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [Lead(ANN, 1), Part(ANN, 3, 4, True, b"piece"), Still(BOB, 2**63)])
def test_a_command_of_the_head_is_read_as_it_was_written(command: Lead | Part | Still) -> None:
    assert decode(encode(command)) == command


@pytest.mark.parametrize("raw", [b"", encode(Lead(ANN, 1))[:-1], encode(Still(ANN, 1)) + b"x", b"\x04" + bytes(32)])
def test_other_bytes_are_no_command_of_the_head(raw: bytes) -> None:
    with pytest.raises(InvalidData):
        decode(raw)


def test_a_commit_comes_through_whole_whatever_it_is_cut_into() -> None:
    rows = (ClearRows(), OTHER_ROW, EraseRow(OTHER_ROW.key), WriterRow(BOB, 5, ((4, 1),), 9), ForgetWriter(ANN))
    for size in (1, 7, 10_000):
        machine = StoreMachine()
        heard = told(machine)
        machine.apply_own(encode(Lead(ANN, 1)))
        commit(machine, ANN, 1, *rows, part_bytes=size)
        assert [each for each, _, _ in heard[-1].rows] == list(rows)  # type: ignore[union-attr]


def test_states_that_are_equal_have_equal_bytes_and_are_restored() -> None:
    one, other = StoreMachine(), StoreMachine()
    one.apply_own(encode(Lead(ANN, 1)))
    commit(one, ANN, 1, OTHER_ROW, ROW_OF_A_STRING)
    one.apply_own(encode(Part(ANN, 2, 0, False, b"begun")))
    other.restore(one.snapshot())
    assert other.snapshot() == one.snapshot()
    assert other.whole() == one.whole()
    one.apply_own(encode(Lead(BOB, 1)))  # what was begun is void
    assert other.snapshot() != one.snapshot()


def test_nothing_of_a_master_that_was_replaced_is_done() -> None:
    machine = StoreMachine()
    machine.apply_own(encode(Lead(ANN, 1)))
    machine.apply_own(encode(Lead(BOB, 1)))
    heard = told(machine)
    commit(machine, ANN, 1, ROW_OF_A_STRING)
    machine.apply_own(encode(Still(ANN, 1)))
    assert heard == []
    machine.apply_own(encode(Still(BOB, 2)))
    assert heard == [Stood(BOB, 2)]


def test_a_commit_of_which_a_piece_is_missing_is_not_done_and_none_is_left_out() -> None:
    machine = StoreMachine()
    machine.apply_own(encode(Lead(ANN, 1)))
    heard = told(machine)
    parts = parts_of(ANN, 1, 2, [encode_operation(ROW_OF_A_STRING)], 4)
    for each in (*parts[:1], *parts[2:]):
        machine.apply_own(each)
    commit(machine, ANN, 2, ROW_OF_A_STRING)
    assert heard == []
    commit(machine, ANN, 1, ROW_OF_A_STRING)
    assert [each.number for each in heard if isinstance(each, Did)] == [1]


def test_clients_of_the_chain_neither_read_nor_write_it() -> None:
    for ask in (StoreMachine().apply, StoreMachine().read):
        with pytest.raises(UsageError, match="clones"):
            ask(encode(Lead(ANN, 1)))


def test_whoever_hears_the_machine_gets_first_all_there_is() -> None:
    machine = StoreMachine()
    machine.apply_own(encode(Lead(ANN, 1)))
    commit(machine, ANN, 1, ROW_OF_A_STRING)
    heard: list[Fed | WholeState] = []
    machine.hear(heard.append)
    (whole,) = heard
    assert isinstance(whole, WholeState)
    _, rows, _ = steps(whole)
    assert isinstance(rows, WholeRows)
    assert [row for row, _, _ in rows.rows] == [ROW_OF_A_STRING]
    assert (whole.master, whole.event) == (ANN, 2)
    machine.apply_own(encode(Lead(BOB, 1)))
    assert heard[1:] == [Led(BOB, 1)]


def test_a_server_that_takes_a_whole_state_in_steps_shows_the_former_one_and_does_not_ask_to_be_master() -> None:
    machine = StoreMachine()
    machine.apply_own(encode(Lead(ANN, 1)))
    commit(machine, ANN, 1, ROW_OF_A_STRING)
    before = list(steps(machine.whole()))
    commit(machine, ANN, 2, EraseRow(ROW_OF_A_STRING.key), OTHER_ROW)
    begins, *rows, ends = steps(machine.whole())
    role = ChainedMaster("s", BOB, 1, now=0.0, clock=FixedClock())
    role.handle_message(CHAIN, [Place(False, True)], 0.0)
    role.handle_message(CHAIN, before, 0.0)
    role.handle_message(CHAIN, [begins, *rows], 0.0)
    assert role.handle_message(CHAIN, [Place(True, True)], 0.0) == []
    assert [entry.key for entry in role.engine.items()] == ["k"]

    (asked,) = role.handle_message(CHAIN, [ends], 0.0)[-1:]
    assert isinstance(asked, Send)
    assert asked.to == CHAIN
    assert [entry.key for entry in role.engine.items()] == ["other"]
    assert role.invariants() == []


# -- servers -----------------------------------------------------------------------------------------------------------


def test_a_write_counts_when_the_chain_has_committed_it() -> None:
    chain = Chained()
    chain.deliver()
    clone = chain.clone("x")
    chain.wait(0.5)
    chain.holds = True
    chain.write("x", "put", "k", 1, ticket=1)
    chain.write("a", "put", "own", 2, ticket=2)
    chain.wait(0.3)
    assert chain.outcomes == {}
    assert (chain.contents("b"), clone.engine.keys()) == ({}, [])
    chain.holds = False
    chain.wait(0.3)
    assert chain.outcomes == {1: None, 2: None}
    assert chain.contents("a") == chain.contents("b") == chain.contents("x") == {"k": 1, "own": 2}


def test_who_watches_the_head_is_told_also_of_what_that_does_itself() -> None:
    chain = Chained("ab")
    chain.write("a", "put", "k", 1, ticket=1)
    chain.write("b", "put", "k", 2, ticket=2)
    assert [(each.before, each.value) for each in chain.shown["a"]] == [(None, 1), (1, 2)]
    chain.kill("a")
    chain.write("b", "put", "k", 3, ticket=3)
    assert chain.shown["b"][-1].value == 3


def test_what_is_written_at_another_server_goes_to_the_head_and_is_done_once_when_that_dies() -> None:
    chain = Chained("abc")
    chain.deliver()
    chain.write("b", "add", "n", Count(1), COUNT, ticket=1)
    chain.wait(0.3)
    assert chain.outcomes.pop(1) is None
    chain.holds = True
    chain.write("b", "add", "n", Count(1), COUNT, ticket=2)
    chain.wait(0.1)  # the head has it, and the chain perhaps
    chain.holds = False
    chain.commit()
    chain.kill("a")
    chain.wait(1.0)
    assert chain.outcomes == {2: None}
    assert chain.masters() == ["b"]
    assert chain.contents("b") == chain.contents("c") == {"n": 2}


def test_clones_take_from_the_next_head_what_they_lack_and_repeat_what_was_not_confirmed() -> None:
    chain = Chained("abc")
    chain.deliver()
    clone = chain.clone("x")
    chain.wait(0.5)
    chain.write("x", "put_unique", "seat", "x", ticket=1)
    chain.wait(0.2)
    chain.holds = True
    chain.write("x", "add", "n", Count(1), COUNT, ticket=2)
    chain.holds = False
    chain.commit()  # ... and the head dies before it tells anybody
    chain.kill("a")
    chain.wait(1.5)
    assert chain.outcomes == {1: True, 2: None}
    assert chain.contents("x") == chain.contents("b") == {"seat": "x", "n": 1}
    assert [each.value for each in chain.shown["x"]] == ["x", 1]
    assert clone.master == chain.roles["b"].active.entity
    assert not [each for each in chain.events["x"] if isinstance(each, TwoMasters | SnapshotGivenUp)]


def test_a_write_that_depends_on_a_revision_is_decided_alike_at_every_server_and_after_a_takeover() -> None:
    chain = Chained("abc")
    chain.deliver()
    clone = chain.clone("x")
    chain.wait(0.5)
    chain.write("x", "put", "k", 0, ticket=0)
    chain.wait(0.2)

    def revision(name: str) -> int:
        core = chain.roles[name]
        entry = core.durable("k")
        assert entry is not None
        return int(core.revision_of(entry))

    for number, name in enumerate(("a", "b", "x"), 1):
        old = revision(name)
        chain.write(name, "put_if", "k", number, old, ticket=number)
        chain.wait(0.3)
        assert chain.outcomes[number] is None
        assert revision(name) > old
        if name != "a":  # which raises at once
            chain.write(name, "put_if", "k", 99, old, ticket=10 + number)
            chain.wait(0.3)
            refused = chain.outcomes[10 + number]
            assert isinstance(refused, WrongRevision)
            assert refused.revision == revision(name)
    before = revision("x")
    chain.kill("a")
    chain.wait(1.5)
    assert clone.master == chain.roles["b"].active.entity
    assert revision("x") == revision("b") > before
    chain.write("x", "put_if", "k", 4, before, ticket=20)
    chain.write("c", "put_if", "k", 5, revision("c"), ticket=21)
    chain.wait(0.5)
    assert isinstance(chain.outcomes[20], WrongRevision)
    assert chain.outcomes[21] is None
    assert chain.contents("b") == chain.contents("c") == chain.contents("x") == {"k": 5}


def test_what_the_chain_never_had_is_undone_at_who_is_head_no_more() -> None:
    chain = Chained()
    chain.deliver()
    chain.write("a", "put", "k", 1, ticket=1)
    chain.holds = True
    chain.write("a", "put", "k", 2, ticket=2)
    chain.write("a", "put", "k", 3, ticket=3)
    chain.proposed.clear()  # it left the chain before that was committed
    chain.head, chain.holds = "b", False
    chain.places()
    chain.wait(0.5)
    assert isinstance(chain.outcomes[2], WriteUnknown)
    assert isinstance(chain.outcomes[3], WriteUnknown)
    assert chain.contents("a") == chain.contents("b") == {"k": 1}
    assert [each.value for each in chain.shown["a"]] == [1]


def test_what_was_committed_all_the_same_comes_to_the_former_head_as_to_anybody() -> None:
    chain = Chained()
    chain.deliver()
    chain.holds = True
    chain.write("a", "put", "k", 2, ticket=2)
    chain.head = "b"
    chain.places()
    assert chain.contents("a") == {}
    chain.holds = False
    chain.wait(0.5)
    assert chain.contents("a") == chain.contents("b") == {"k": 2}
    assert [each.value for each in chain.shown["a"]] == [2]


def test_a_head_that_stood_still_answers_no_clone_before_the_chain_says_that_it_is_master_still() -> None:
    chain = Chained()
    chain.deliver()
    chain.paused.add("a")
    chain.wait(1.0)
    chain.paused.clear()
    chain.holds = True
    chain.clone("x")
    chain.wait(0.2)
    assert not any(isinstance(each, MasterFound) for each in chain.events["x"])
    chain.holds = False
    chain.wait(1.0)
    assert any(isinstance(each, MasterFound) for each in chain.events["x"])
    assert chain.roles["a"]._terms == 1


def test_a_head_without_a_majority_serves_if_the_chain_commits_and_else_no_more() -> None:
    chain = Chained()
    chain.deliver()
    chain.places("no majority")
    chain.write("a", "put", "k", 1, ticket=1)
    assert chain.outcomes == {1: None}
    chain.holds = True
    chain.places("no majority, and another one is away")
    chain.wait(1.0)
    assert chain.masters() == []
    chain.holds = False
    chain.places()
    chain.wait(0.2)
    assert chain.masters() == ["a"]


def test_a_server_is_read_when_it_has_been_in_the_chain() -> None:
    chain = Chained()
    chain.deliver()
    chain.write("a", "put", "k", 1, ticket=1)
    chain.kill("b")
    chain.server("b")
    chain.deliver()
    assert not chain.roles["b"].readable
    with pytest.raises(StaleData, match="has not been in its chain"):
        chain.roles["b"].get("k")
    chain.places()
    assert chain.roles["b"].get("k") == 1


def test_the_head_says_when_a_key_expires_and_the_next_one_goes_on_with_that() -> None:
    chain = Chained()
    chain.deliver()
    chain.write("a", "put", "soon", 1, ticket=1, expiry_ns=NS)
    chain.write("a", "put", "later", 1, ticket=2, expiry_ns=2 * NS)
    chain.paused.add("b")
    chain.wait(1.2)
    assert chain.contents("a") == {"later": 1}
    chain.paused.clear()
    chain.deliver()
    assert chain.contents("b") == {"later": 1}
    chain.kill("a")
    chain.wait(1.0)
    assert chain.contents("b") == {}


def test_who_leaves_has_clones_look_for_the_next_master_at_once() -> None:
    chain = Chained()
    chain.deliver()
    clone = chain.clone("x")
    chain.wait(0.5)
    chain.do("a", chain.roles["a"].leave())
    chain.deliver()
    assert not clone.connected
    chain.kill("a")
    chain.wait(0.1)
    assert clone.connected


def test_a_master_that_has_let_go_of_another_server_is_spoken_to_anew() -> None:
    chain = Chained()
    chain.deliver()
    chain.write("b", "put", "k", 1, ticket=1)
    chain.wait(0.2)
    chain.roles["a"].active._writers.detach(chain.roles["b"].entity)  # as when its clock was set
    chain.write("b", "put", "k", 2, ticket=2)
    chain.wait(12.0)
    assert chain.outcomes == {1: None, 2: None}
