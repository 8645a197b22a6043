"""What a master's clones know of entries besides their values: revisions, writes that depend on them, and expiry."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from tests.kv.test_master_and_clone import NS, Pair

from chappe.core import Send
from chappe.data.order import INTEGER, VECTOR
from chappe.errors import InvalidOperation, StorageFull, WrongRevision
from chappe.kv import commands as cmd
from chappe.kv.backend import Commit
from chappe.kv.commands import decode_message, encode_command, encode_message
from chappe.kv.entity import NOBODY, Entity

SECOND = NS


def known(core: Any) -> dict[object, tuple[object, int, int | None]]:
    return {each.key: (each.value, core.revision_of(each), each.expires_ns) for each in core.engine.items()}


def alike(pair: Pair) -> dict[object, tuple[object, int, int | None]]:
    assert known(pair.clone) == known(pair.master)
    return known(pair.clone)


def events(pair: Pair) -> list[cmd.Command]:
    return [decode_message(each.message).command for each in pair.sent if each.topic.endswith(b"clone")]


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_clone_knows_of_each_write_what_its_master_knows(pair: Pair) -> None:
    pair.write("master", "put", "before", 1, expiry_ns=50 * SECOND)  # comes in the snapshot
    pair.wait(1.0)
    pair.write("master", "put", "a", 1, expiry_ns=5 * SECOND)
    pair.write("clone", "put", "b", 1, expiry_ns=6 * SECOND)
    pair.write("clone", "put_unique", "c", 1, expiry_ns=7 * SECOND)
    pair.write("master", "add", "d", 1, INTEGER, expiry_ns=8 * SECOND)
    pair.write("clone", "add", "e", 1, VECTOR, expiry_ns=9 * SECOND)
    pair.write("clone", "add", "e", 2, VECTOR)  # it stays now
    pair.write("master", "add", "f", 1, VECTOR, expiry_ns=9 * SECOND)
    pair.write("clone", "put", "g", 1)
    pair.wait(0.5)

    found = alike(pair)
    assert [key for key, (_, _, expires_ns) in found.items() if expires_ns is None] == ["e", "g"]
    revisions = [found[key][1] for key in ("before", "a", "b", "c", "d", "f", "g")]
    assert revisions == sorted(set(revisions))
    pair.wait(6.0)  # what has expired is gone at both
    assert set(alike(pair)) == {"before", "c", "d", "e", "f", "g"}


def test_revisions_of_a_later_master_are_above_all_before(pair: Pair) -> None:
    pair.wait(1.0)
    pair.write("master", "put", "a", 1)
    first = alike(pair)["a"][1]
    pair.clone.handle_gone(pair.master.entity.endpoint, pair.now)
    pair.wait(1.0)
    pair.new_master()
    pair.write("master", "put", "a", 2)
    pair.wait(5.0)

    assert alike(pair)["a"][1] > first


@pytest.mark.parametrize("who", ["master", "clone"])
def test_a_write_is_done_if_nobody_has_changed_the_key(pair: Pair, who: str) -> None:
    pair.wait(1.0)
    pair.write(who, "put_if", "a", 1, None, ticket=1)
    entry = pair.clone.engine.find("a")
    assert entry is not None
    revision = pair.clone.revision_of(entry)
    pair.write(who, "put_if", "a", 2, revision, ticket=2, expiry_ns=9 * SECOND)
    pair.wait(0.2)
    assert pair.resolved == {1: None, 2: None}
    value, later, expires_ns = alike(pair)["a"]
    assert (value, later > revision, expires_ns is not None) == (2, True, True)

    pair.write(who, "erase_if", "a", later, ticket=3)
    pair.wait(0.2)
    assert (pair.resolved[3], alike(pair)) == (None, {})


def refused(pair: Pair, who: str, name: str, *arguments: object) -> WrongRevision:
    if who == "master":
        with pytest.raises(WrongRevision) as found:
            pair.write(who, name, *arguments)
        return found.value
    pair.write(who, name, *arguments, ticket=77)
    pair.wait(0.2)
    outcome = pair.resolved.pop(77)
    assert isinstance(outcome, WrongRevision)
    return outcome


@pytest.mark.parametrize("who", ["master", "clone"])
def test_a_refusal_tells_the_present_revision_and_nothing_is_done(pair: Pair, who: str) -> None:
    pair.wait(1.0)
    pair.write("master", "put", "a", 1)
    old = alike(pair)["a"][1]
    pair.write("master", "put", "a", 2)
    pair.wait(0.2)
    now = alike(pair)["a"][1]

    for name, arguments in (("put_if", ("a", 3, old)), ("erase_if", ("a", old)), ("put_if", ("a", 3, None))):
        assert refused(pair, who, name, *arguments).revision == now
    for name, arguments in (("put_if", ("b", 3, now)), ("erase_if", ("b", now))):
        problem = refused(pair, who, name, *arguments)
        assert (problem.revision, "nothing is there" in str(problem)) == (None, True)
    assert {key: value for key, (value, *_) in alike(pair).items()} == {"a": 2}


def test_of_many_who_try_one_does() -> None:
    pair = Pair()
    pair.wait(1.0)
    pair.write("master", "put", "a", 0)
    revision = alike(pair)["a"][1]
    for ticket in range(5):
        pair.write("clone", "put_if", "a", ticket, revision, ticket=ticket)
    pair.wait(0.2)

    assert [ticket for ticket, outcome in pair.resolved.items() if outcome is None] == [0]
    assert alike(pair)["a"][0] == 0


def test_numbers_of_writes_that_a_disk_refused_come_again_and_nobody_was_told_them() -> None:
    pair = Pair(durable=True)
    pair.wait(1.0)
    pair.write("master", "put", "a", 1)
    pair.do("master", pair.master.handle_done(Commit(pair.commits.pop().number, ()), None, **pair.times()))
    kept = pair.master.durable("a")
    assert kept is not None
    pair.write("master", "put", "a", 2)
    assert pair.master.durable("a") is kept  # the revision of what may yet be undone is told to nobody

    pair.do("master", pair.master.handle_done(Commit(pair.commits.pop().number, ()), StorageFull("full"), pair.now))
    assert alike(pair)["a"][:2] == (1, pair.master.revision_of(kept))
    pair.write("master", "put", "a", 3)
    pair.do("master", pair.master.handle_done(Commit(pair.commits.pop().number, ()), None, **pair.times()))
    assert alike(pair)["a"][0] == 3


def original(pair: Pair) -> Entity:
    """A clone of the original follows, too."""
    made = Entity(b"o" * 16, 1)
    asking = encode_message(0, made, NOBODY, encode_command(cmd.asking(None)))
    pair.do("master", pair.master.handle_message(pair.master.topics[0], [asking], **pair.times()))
    return made


def test_beside_a_clone_of_the_original_a_clone_of_chappe_knows_as_much_and_that_one_hears_what_it_always_did() -> None:
    pair = Pair()
    pair.wait(1.0)
    original(pair)
    pair.sent.clear()
    pair.write("master", "put", "a", 1, expiry_ns=5 * SECOND)
    pair.write("master", "add", "b", 1, VECTOR, expiry_ns=5 * SECOND)
    pair.write("clone", "put_if", "c", 1, None, expiry_ns=5 * SECOND)

    assert all(expires_ns is not None for _, _, expires_ns in alike(pair).values())
    to_all = [each for each in pair.sent if each.topic.endswith(b"clone") and each.to != pair.clone.entity.endpoint]
    told = [decode_message(each.message).command for each in to_all if isinstance(each, Send)]
    puts = [each for each in told if isinstance(each, cmd.Put)]
    assert [(put.key, put.value, put.expiry_ns) for put in puts] == [
        ("a", 1, 5 * SECOND), ("b", (1,), None), ("c", 1, 5 * SECOND),
    ]  # fmt: skip
    assert all(isinstance(each, cmd.Put | cmd.Keepalive | cmd.MissingEvents | cmd.AckClone) for each in told)


def test_with_a_master_of_the_original_it_is_said_that_it_cannot(pair: Pair) -> None:
    pair.cut = True
    pair.clone.handle_gone(pair.master.entity.endpoint, pair.now)
    master = Entity(b"o" * 16, 1)
    empty = cmd.AckClone(3, 10, cmd.encode_pairs([b"\5\1a\0"]))
    payload = encode_message(3, master, pair.clone.entity, encode_command(empty))
    pair.do("clone", pair.clone.handle_message(pair.clone.topics[0], [payload], pair.now))
    entry = pair.clone.engine.find("a")
    assert entry is not None
    for call in (
        lambda: pair.clone.revision_of(entry),
        lambda: pair.clone.put_if("a", 1, None, now=pair.now),
        lambda: pair.clone.erase_if("a", 3, now=pair.now),
    ):
        with pytest.raises(InvalidOperation, match="not one of chappe"):
            call()


def test_a_condition_that_waits_never_goes_to_a_master_of_the_original() -> None:
    pair = Pair()
    pair.cut = True
    pair.clone.handle_gone(pair.master.entity.endpoint, pair.now)
    pair.write("clone", "put", "x", 1, ticket=1)
    pair.write("clone", "put_if", "a", 1, None, ticket=2)
    pair.write("clone", "put", "y", 1, ticket=3)
    pair.sent.clear()
    master = Entity(b"o" * 16, 1)
    payload = encode_message(3, master, pair.clone.entity, encode_command(cmd.AckClone(3, 10, cmd.encode_pairs([]))))
    pair.do("clone", pair.clone.handle_message(pair.clone.topics[0], [payload], pair.now))

    said = [decode_message(each.message).command for each in pair.sent]
    assert [each.key for each in said if isinstance(each, cmd.Put)] == ["y"]
    assert not any(isinstance(each, cmd.PutIf) for each in said)
    assert all(isinstance(pair.resolved[ticket], InvalidOperation) for ticket in (1, 2))


def test_the_error_is_copied_with_its_revision() -> None:
    problem = WrongRevision("so", 7)
    for made in (copy.copy(problem), pickle.loads(pickle.dumps(problem))):
        assert (type(made), str(made), made.revision) == (WrongRevision, "so", 7)
