"""The latest changes of keys: what a master keeps of them, on its disk and on a chain, and tells whoever asks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.kv.chained_rig import Chained
from tests.kv.test_master_and_clone import NS, Pair
from tests.worlds.backends import SimBackend

from chappe.channel import Heartbeat
from chappe.core import Send
from chappe.data.binary import encode
from chappe.data.order import VECTOR
from chappe.defaults import STORE_HISTORY_ASKS_MAX
from chappe.errors import BufferFull, InvalidData, InvalidOperation, StorageFull, TimedOut
from chappe.kv import commands as cmd
from chappe.kv.backend import ClearHistory, Commit, ForgetHistory, HistoryRow, Loaded
from chappe.kv.commands import decode_message, encode_command, encode_message
from chappe.kv.entity import NOBODY, Entity
from chappe.kv.events import CommandRefused
from chappe.kv.history import KeyHistory, PastChange, body_of, past_change
from chappe.limits import KV_LIMITS

TICKET = 900


def told(pair: Pair, who: str, key: object) -> list[tuple[str, object]]:
    """What somebody is told of a key's past; revisions rise."""
    core: Any = getattr(pair, who)
    pair.resolved.pop(TICKET, None)
    pair.do(who, core.ask_history(TICKET, key, 5.0, pair.now))
    pair.wait(0.2)
    found: Any = pair.resolved.pop(TICKET)
    if isinstance(found, Exception):
        raise found
    revisions = [each.revision for each in found]
    assert revisions == sorted(set(revisions))
    return [(each.kind, each.value) for each in found]


def changed(pair: Pair) -> None:
    """Every way in which a key changes, at both ends."""
    for value in (1, 2, 3):
        pair.write("master", "put", "a", value)
    pair.write("clone", "put", "a", 4)
    pair.write("clone", "erase", "a")
    pair.write("clone", "erase", "a")  # nothing is there: no change
    pair.write("master", "put_unique", "a", 5, expiry_ns=NS)
    pair.write("master", "put_unique", "a", 6)
    pair.write("clone", "add", "list", 1, VECTOR)
    pair.write("clone", "add", "list", 2, VECTOR)


@pytest.mark.parametrize("who", ["master", "clone"])
def test_the_last_changes_of_a_key_are_told_in_order_with_author_and_time(who: str) -> None:
    pair = Pair(history=4)
    pair.wait(1.0)
    changed(pair)
    pair.wait(2.0)  # what expires goes

    assert told(pair, who, "a") == [("put", 4), ("erase", None), ("put", 5), ("expire", None)]
    assert told(pair, who, "list") == [("put", (1,)), ("put", (1, 2))]
    assert told(pair, who, "nothing") == []
    pair.do(who, getattr(pair, who).ask_history(1, "a", 5.0, pair.now))
    found: Any = pair.resolved[1]
    authors = [pair.clone.entity, pair.clone.entity, pair.master.entity, pair.master.entity]
    assert [each.publisher for each in found] == authors
    times = [each.at_ns for each in found]
    assert times == sorted(times)
    assert times[0] >= 100 * NS


def test_revisions_are_those_that_writes_are_done_by() -> None:
    pair = Pair(history=8)
    pair.wait(1.0)
    changed(pair)
    entry = pair.clone.engine.find("list")
    assert entry is not None
    pair.do("clone", pair.clone.ask_history(1, "list", 5.0, pair.now))
    found: Any = pair.resolved[1]
    assert found[-1].revision == pair.clone.revision_of(entry) == pair.master.revision_of(entry)


def test_a_master_without_one_says_so_at_both_ends() -> None:
    pair = Pair()
    pair.wait(1.0)
    for who in ("master", "clone"):
        with pytest.raises(InvalidOperation, match="history=N"):
            told(pair, who, "a")


def test_what_is_cleared_has_its_end_in_the_history() -> None:
    pair = Pair(history=4)
    pair.wait(1.0)
    pair.write("master", "put", "a", 1)
    pair.write("master", "put", "b", 1)
    pair.write("clone", "clear")
    pair.write("master", "put", "b", 2)
    assert told(pair, "clone", "a") == [("put", 1), ("erase", None)]
    assert told(pair, "clone", "b") == [("put", 1), ("erase", None), ("put", 2)]


def test_a_long_history_comes_in_parts_and_what_is_written_meanwhile_leaves_no_gap() -> None:
    pair = Pair(history=6, limits=replace(KV_LIMITS, piece_bytes=1))
    pair.wait(1.0)
    for value in range(6):
        pair.write("master", "put", "a", value)
    asked = len(pair.sent)
    assert told(pair, "clone", "a") == [("put", value) for value in range(6)]
    parts = [decode_message(each.message).command for each in pair.sent[asked:]]
    assert sum(isinstance(each, cmd.HistoryTold) for each in parts) == 6

    first = True
    send = pair.do

    def slowly(who: str, actions: list[Any]) -> None:
        nonlocal first
        for each in actions:
            if first and isinstance(each, Send) and isinstance(decode_message(each.message).command, cmd.HistoryTold):
                first = False
                for value in range(6, 9):
                    pair.write("master", "put", "a", value)
            send(who, [each])

    pair.do = slowly  # type: ignore[method-assign]
    assert told(pair, "clone", "a") == [("put", value) for value in range(3, 6)]  # the oldest are gone meanwhile
    assert told(pair, "clone", "a") == [("put", value) for value in range(3, 9)]


# -- clones and masters that do not answer ----------------------------------------------------------------------------


def test_a_question_is_repeated_until_it_is_answered_and_given_up_in_time() -> None:
    pair = Pair(history=2)
    pair.wait(1.0)
    pair.write("master", "put", "a", 1)
    pair.cut = True
    pair.do("clone", pair.clone.ask_history(1, "a", 5.0, pair.now))
    pair.wait(1.0)
    pair.cut = False
    pair.wait(1.0)
    assert [each.value for each in pair.resolved[1]] == [1]  # type: ignore[attr-defined]

    pair.cut = True
    pair.do("clone", pair.clone.ask_history(2, "a", 2.0, pair.now))
    pair.wait(3.0)
    assert isinstance(pair.resolved[2], TimedOut)


def test_an_answer_that_is_slower_than_the_question_is_repeated_counts() -> None:
    pair = Pair(history=2)
    pair.wait(1.0)
    pair.write("master", "put", "a", 1)
    pair.cut = True
    pair.do("clone", pair.clone.ask_history(1, "a", 60.0, pair.now))
    first = pair.sent[-1].message
    pair.wait(1.5)  # it asks again
    pair.cut = False
    pair.do("master", pair.master.handle_message(pair.master.topics[0], [first], **pair.times()))
    assert [each.value for each in pair.resolved[1]] == [1]  # type: ignore[attr-defined]


def test_a_question_goes_to_the_next_master() -> None:
    pair = Pair(history=2)
    pair.wait(1.0)
    pair.cut = True
    pair.do("clone", pair.clone.ask_history(1, "a", 60.0, pair.now))
    pair.do("clone", pair.clone.handle_gone(pair.master.entity.endpoint, pair.now))
    pair.new_master()
    pair.write("master", "put", "a", 7)
    pair.cut = False
    pair.wait(10.0)
    assert [each.value for each in pair.resolved[1]] == [7]  # type: ignore[attr-defined]


def test_a_master_of_the_original_is_not_asked() -> None:
    pair = Pair(history=2)
    pair.cut = True
    pair.clone.handle_gone(pair.master.entity.endpoint, pair.now)
    pair.do("clone", pair.clone.ask_history(1, "a", 60.0, pair.now))  # there is no master, of no kind
    pair.sent.clear()
    master = Entity(b"o" * 16, 1)
    empty = cmd.AckClone(3, 10, cmd.encode_pairs([]))
    payload = encode_message(3, master, pair.clone.entity, encode_command(empty))
    pair.do("clone", pair.clone.handle_message(pair.clone.topics[0], [payload], pair.now))
    pair.wait(1.0)

    assert isinstance(pair.resolved[1], InvalidOperation)
    with pytest.raises(InvalidOperation, match="not one of chappe"):
        pair.clone.ask_history(2, "a", 60.0, pair.now)
    kinds = {type(decode_message(each.message).command) for each in pair.sent}
    assert cmd.HistoryAsked not in kinds


def test_a_clone_of_the_original_hears_nothing_new() -> None:
    sent = []
    for history in (0, 8):
        pair = Pair(history=history)
        pair.wait(1.0)
        original = Entity(b"o" * 16, 1)
        asking = encode_message(0, original, NOBODY, encode_command(cmd.asking(None)))
        pair.do("master", pair.master.handle_message(pair.master.topics[0], [asking], **pair.times()))
        pair.sent.clear()
        changed(pair)
        pair.wait(0.2)
        to_it = [each.message for each in pair.sent if each.to in (None, original.endpoint)]
        sent.append([each for each in to_it if not isinstance(decode_message(each).command, Heartbeat)])
        assert told(pair, "clone", "a") if history else True
    assert sent[0] == sent[1]


def test_nobody_but_a_clone_is_answered_and_a_master_that_never_ends_is_not_followed() -> None:
    pair = Pair(history=2)
    pair.wait(1.0)
    stranger = Entity(b"x" * 16, pair.clone.entity.number)
    asking = encode_message(0, stranger, pair.master.entity, encode_command(cmd.HistoryAsked(1, "a", 0)))
    assert pair.master.handle_message(pair.master.topics[0], [asking], **pair.times()) == []

    pair.cut = True
    for ticket, state, past in (
        (1, cmd.MORE, []),
        (2, cmd.ALL, [HistoryRow(b"", n, body_of(1, 5, NOBODY, None)) for n in range(1, 70)]),
        (3, cmd.ALL, [HistoryRow(b"", 1, b"\x07" + bytes(32))]),
        (4, cmd.ALL, [HistoryRow(b"", 1, b"short")]),
    ):
        pair.sent.clear()
        pair.do("clone", pair.clone.ask_history(ticket, "a", 60.0, pair.now))
        asked: Any = decode_message(pair.sent[-1].message).command
        answer = cmd.HistoryTold(asked.question, state, cmd.encode_past(past))
        payload = encode_message(0, pair.master.entity, pair.clone.entity, encode_command(answer))
        pair.do("clone", pair.clone.handle_message(pair.clone.topics[0], [payload], pair.now))
        assert isinstance(pair.resolved[ticket], InvalidData)
    assert len(pair.reported(CommandRefused)) == 4


def test_more_questions_than_the_bound_are_refused() -> None:
    pair = Pair(history=2)
    pair.wait(1.0)
    pair.cut = True
    for ticket in range(STORE_HISTORY_ASKS_MAX):
        pair.clone.ask_history(ticket, "a", 60.0, pair.now)
    with pytest.raises(BufferFull):
        pair.clone.ask_history(-1, "a", 60.0, pair.now)


# -- on a disk --------------------------------------------------------------------------------------------------------


def kept(pair: Pair, backend: SimBackend) -> None:
    """The commits that wait are durable."""
    while pair.commits:
        commit = pair.commits.pop(0)
        backend.commit(commit.operations)
        pair.do("master", pair.master.handle_done(Commit(commit.number, ()), None, **pair.times()))


def test_it_is_durable_with_what_it_tells_and_what_a_disk_refuses_never_was() -> None:
    pair, backend = Pair(durable=True, history=3), SimBackend()
    pair.wait(1.0)
    pair.write("master", "put", "a", 1)
    kept(pair, backend)
    pair.write("clone", "put", "a", 2)
    assert told(pair, "clone", "a") == [("put", 1)]  # a write is told of when it is durable
    pair.commits.clear()
    pair.do("master", pair.master.handle_done(Commit(2, ()), StorageFull("full"), pair.now))
    assert told(pair, "master", "a") == [("put", 1)]
    for value in (3, 4, 5, 6):
        pair.write("master", "put", "a", value)
    kept(pair, backend)
    assert told(pair, "clone", "a") == [("put", 4), ("put", 5), ("put", 6)]
    assert len(backend.history) == 5  # what is too much goes with the next commit
    pair.write("master", "erase", "a")
    kept(pair, backend)
    pair.write("master", "put", "b", 1)
    kept(pair, backend)
    assert len(backend.history) == 4

    pair.clone.handle_gone(pair.master.entity.endpoint, pair.now)
    last = pair.master.position
    pair.ahead_s = -50.0  # the clock was set back
    pair.new_master(backend.load())
    assert pair.master.position >= last
    assert told(pair, "master", "a") == [("put", 5), ("put", 6), ("erase", None)]
    pair.write("master", "put", "a", 7)
    kept(pair, backend)
    assert told(pair, "master", "a") == [("put", 6), ("erase", None), ("put", 7)]


def test_a_master_that_keeps_fewer_or_none_removes_what_is_too_much() -> None:
    pair, backend = Pair(durable=True, history=5), SimBackend()
    for value in range(5):
        pair.write("master", "put", "a", value)
        kept(pair, backend)
    pair.history = 2
    pair.new_master(backend.load())
    assert told(pair, "master", "a") == [("put", 3), ("put", 4)]
    pair.write("master", "put", "b", 1)
    kept(pair, backend)
    assert len(backend.history) == 3

    pair.history = 0
    pair.new_master(backend.load())
    assert len(backend.history) == 3  # nothing was written yet that it would lack
    pair.write("master", "put", "b", 2)
    kept(pair, backend)
    assert not backend.history


def test_a_key_that_somebody_else_has_changed_in_the_file_begins_anew() -> None:
    pair, backend = Pair(durable=True, history=5), SimBackend()
    for key in ("same", "other", "gone", "back"):
        pair.write("master", "put", key, 1)
    pair.write("master", "erase", "back")
    kept(pair, backend)
    loaded = backend.load()
    entries = [("same", 1, None), ("other", 2, None), ("back", 1, None)]
    pair.new_master(Loaded(tuple(entries), (), loaded.history))
    assert told(pair, "master", "same") == [("put", 1)]
    assert told(pair, "master", "gone") == []
    pair.do("master", pair.master.ask_history(1, "other", 1.0, pair.now))
    entry = pair.master.engine.find("other")
    assert entry is not None
    assert pair.resolved[1] == (PastChange(pair.master.revision_of(entry), "put", 2, None, None),)
    assert told(pair, "master", "back") == [("put", 1)]


# -- bounds -----------------------------------------------------------------------------------------------------------


def row(key: str, revision: int, kind: int = 0, value: str = "") -> HistoryRow:
    return HistoryRow(encode(key), revision, body_of(kind, 5, NOBODY, value))


def revisions(history: KeyHistory, key: str) -> list[int]:
    return [each.revision for each in history.rows_of(key, None, 0)]


def test_beyond_its_bytes_the_oldest_change_of_any_key_goes() -> None:
    history = KeyHistory(4, replace(KV_LIMITS, history_bytes=2_000), kept=True)
    history.add([row("old", 1), *[row("new", number, 0, "x" * 500) for number in (2, 3)]])
    assert history.invariants() == []
    assert (revisions(history, "old"), revisions(history, "new")) == ([1], [2, 3])
    history.add([row("new", 4, 0, "x" * 500)])
    assert history.invariants() == []
    assert (revisions(history, "old"), revisions(history, "new")) == ([], [3, 4])
    assert history.leaving() == [ForgetHistory(encode("old"), 1), ForgetHistory(encode("new"), 2)]


def test_what_one_commit_brings_beyond_the_bytes_is_left_out_without_a_gap() -> None:
    pair, backend = Pair(durable=True, history=4, limits=replace(KV_LIMITS, history_bytes=3_000)), SimBackend()
    pair.write("master", "put", "a", 1)
    kept(pair, backend)
    pair.write("master", "put", "first", 1)  # the commit that is under way
    for key, value in (("b", 1), ("a", 2), ("a", 3), ("large", 4 * "x"), ("large", 4_000 * "x")):
        pair.write("master", "put", key, value)
    kept(pair, backend)
    assert told(pair, "master", "a") in ([("put", 3)], [])
    pair.do("master", pair.master.ask_history(1, "a", 1.0, pair.now))
    pair.write("master", "put", "a", 4)
    kept(pair, backend)
    assert told(pair, "master", "a") in ([("put", 3), ("put", 4)], [("put", 4)])
    assert pair.master.invariants() == []
    pair.new_master(backend.load())
    assert told(pair, "master", "a") in ([("put", 3), ("put", 4)], [("put", 4)])
    assert pair.master.invariants() == []


def test_where_much_of_a_commit_is_forgotten_at_once_what_it_leaves_out_leaves_no_gap() -> None:
    limits = replace(KV_LIMITS, history_bytes=3_000, history_erased=1)
    pair, backend = Pair(durable=True, history=4, limits=limits), SimBackend()
    for key in "abcde":
        pair.write("master", "put", key, 1)
    kept(pair, backend)
    assert told(pair, "master", "a") == [("put", 1)]
    pair.write("master", "put", "other", 1)  # the commit that is under way
    for value in (2, 3):
        pair.write("master", "put", "a", value)
    for key in "bcdef":
        pair.write("master", "put", key, 100 * "x")
        pair.write("master", "erase", key)
    kept(pair, backend)
    assert told(pair, "master", "a") == [("put", 3)]
    pair.new_master(backend.load())
    assert told(pair, "master", "a") == [("put", 3)]


def test_a_change_that_begins_anew_forgets_those_before_it() -> None:
    history = KeyHistory(4, KV_LIMITS, kept=True)
    begins = HistoryRow(encode("a"), 3, bytes((0x80,)) + body_of(0, 5, NOBODY, "x")[1:])
    history.add([row("a", 1), row("a", 2), row("b", 2), begins, row("a", 4)])
    assert (revisions(history, "a"), revisions(history, "b")) == ([3, 4], [2])
    assert past_change(begins).kind == "put"
    assert history.invariants() == []


def test_of_erased_keys_so_many_are_kept_and_one_that_is_put_again_is_none() -> None:
    history = KeyHistory(4, replace(KV_LIMITS, history_erased=2), kept=False)
    for number, key in enumerate("abc"):
        history.add([row(key, 10 * number + 1), row(key, 10 * number + 2, kind=1 + number % 2)])
    assert history.invariants() == []
    assert (revisions(history, "a"), revisions(history, "b")) == ([], [11, 12])
    history.add([row("b", 40), row("d", 41, kind=1)])
    assert history.invariants() == []
    assert [revisions(history, key) for key in "bcd"] == [[11, 12, 40], [21, 22], [41]]
    assert history.leaving() == []


def test_a_clear_of_many_keys_keeps_the_bounds_and_the_cost() -> None:
    pair = Pair(history=4, limits=replace(KV_LIMITS, history_erased=3))
    for number in range(20):
        pair.write("master", "put", f"key {number:02}", number)
    pair.write("master", "clear")
    known = [number for number in range(20) if told(pair, "master", f"key {number:02}")]
    assert known == [17, 18, 19]
    assert told(pair, "master", "key 19") == [("put", 19), ("erase", None)]
    assert pair.master.invariants() == []


def test_rows_elsewhere_are_removed_where_no_history_is_kept() -> None:
    history = KeyHistory(0, KV_LIMITS, kept=True)
    assert history.leaving() == []
    history.load([row("a", 1)])
    assert history.leaving() == [ClearHistory()]
    history.left([ClearHistory()])
    assert history.leaving() == []


def test_a_malformed_change_is_refused() -> None:
    for body in (b"", bytes(32), b"\x03" + bytes(32), b"\x01" + bytes(32) + b"x", b"\x00" + bytes(32) + b"\xff"):
        with pytest.raises(InvalidData):
            past_change(HistoryRow(b"", 1, body))


# -- on a chain -------------------------------------------------------------------------------------------------------


def of_server(chain: Chained, name: str, key: str) -> list[tuple[int, str, object]]:
    chain.outcomes.pop(TICKET, None)
    chain.do(name, chain.roles[name].ask_history(TICKET, key, 5.0, chain.now))
    chain.wait(0.5)
    found: Any = chain.outcomes.pop(TICKET)
    return [(each.revision, each.kind, each.value) for each in found]


def test_all_servers_of_a_chain_and_their_clones_tell_the_same_also_one_that_joins_and_the_next_head() -> None:
    chain = Chained("abc", history=3)
    chain.clone("x")
    chain.wait(3.0)
    for name, value in (("a", 1), ("b", 2), ("x", 3), ("c", 4)):
        chain.write(name, "put", "k", value)
        chain.wait(0.5)
    chain.write("x", "put", "gone", 1)
    chain.write("x", "erase", "gone")
    chain.wait(0.5)
    found = of_server(chain, "a", "k")
    assert [each[1:] for each in found] == [("put", 2), ("put", 3), ("put", 4)]
    assert [each[1:] for each in of_server(chain, "x", "gone")] == [("put", 1), ("erase", None)]
    chain.server("d")
    chain.wait(0.5)
    assert [of_server(chain, name, "k") for name in "bcdx"] == [found] * 4

    chain.kill("a")
    chain.wait(3.0)
    assert [of_server(chain, name, "k") for name in "bcdx"] == [found] * 4
    chain.write("x", "put", "k", 5)
    chain.wait(1.0)
    later = of_server(chain, "b", "k")
    assert later[:2] == found[1:]
    assert later[2][1:] == ("put", 5)
    assert later[2][0] > found[2][0]
    chain.write("x", "clear")
    chain.wait(1.0)
    assert [of_server(chain, name, "k") for name in "cdx"] == [of_server(chain, "b", "k")] * 3
    assert of_server(chain, "x", "k")[-1][1:] == ("erase", None)
    assert len({machine.snapshot() for machine in chain.machines.values()}) == 1
    chain.write("x", "put", "another", 1)  # with it leaves what was too much
    chain.wait(1.0)
    for name in "bcd":
        assert chain.roles[name].history.leaving() == []


def test_a_head_that_keeps_none_removes_the_history_from_the_chain() -> None:
    chain = Chained("ab", history=3)
    chain.wait(3.0)
    chain.write("a", "put", "k", 1)
    chain.wait(0.5)
    chain.history = 0
    chain.server("c")
    chain.kill("a")
    chain.kill("b")
    chain.wait(3.0)
    chain.write("c", "put", "k", 2)
    chain.wait(0.5)
    with pytest.raises(InvalidOperation):
        chain.roles["c"].ask_history(1, "k", 5.0, chain.now)
    chain.history = 3
    chain.server("d")
    chain.wait(0.5)
    assert [each[1:] for each in of_server(chain, "d", "k")] == [("put", 2)]
    assert not chain.roles["d"].history.invariants()
