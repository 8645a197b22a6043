"""What clones take from the master that has taken over: what they lack, and all of it only if nobody can know that."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.kv.chained_rig import Chained

from chappe.core import Effect, Send
from chappe.data.binary import encode as encode_value
from chappe.data.order import VECTOR
from chappe.kv import commands as cmd
from chappe.kv.backend import ClearRows, EraseRow, PutRow, WriterRow
from chappe.kv.clone import KvClone
from chappe.kv.commands import Message, decode_message, encode_command, encode_message
from chappe.kv.engine import Entry
from chappe.kv.entity import NOBODY, Entity, chappe_entity, clone_topic
from chappe.kv.events import CommandRefused
from chappe.kv.recent import Recent
from chappe.kv.snapshots import SnapshotChanges, Snapshots, View
from chappe.limits import KV_LIMITS, KvLimits

CLONES = clone_topic(b"s")
MASTER, OTHER = chappe_entity(b"m" * 16, 1), chappe_entity(b"o" * 16, 2)


def offers(chain: Chained, name: str) -> list[cmd.Command]:
    """What a clone was offered."""
    receiver = chain.roles[name].entity
    found = [decode_message(each.message) for _, each in chain.sent if each.topic == CLONES]
    return [
        each.command for each in found
        if each.receiver == receiver and isinstance(each.command, cmd.SnapshotOffer | cmd.ChangesOffer)
    ]  # fmt: skip


def events(action: Send) -> bool:
    return action.topic == CLONES and isinstance(decode_message(action.message).command, (*cmd.ACTIONS, cmd.Several))


def following(limits: KvLimits = KV_LIMITS) -> tuple[Chained, KvClone]:
    """A chain with some entries, and a clone that has them."""
    chain = Chained(limits=limits)
    chain.wait(1.0)
    for number in range(50):
        chain.write("a", "put", f"k{number}", number, ticket=1_000 + number)
    clone = chain.clone("c")
    chain.wait(1.0)
    assert clone.idle()
    assert isinstance(offers(chain, "c").pop(), cmd.SnapshotOffer)
    chain.sent.clear()
    return chain, clone


def test_a_clone_takes_from_the_new_master_what_it_lacks_and_no_more() -> None:
    chain, clone = following()
    chain.write("a", "put", "heard", 1, ticket=1)
    chain.lost = events
    chain.write("a", "put", "k0", "new", ticket=2)
    chain.write("a", "erase", "k1", ticket=3)
    chain.write("a", "put", "k2", 2, ticket=4)  # as it was
    chain.write("a", "put", "added", (1,), ticket=5)
    chain.lost = lambda action: False
    chain.shown["c"].clear()
    chain.kill("a")
    chain.wait(1.5)

    (offer,) = offers(chain, "c")
    assert isinstance(offer, cmd.ChangesOffer)
    assert (offer.entries, offer.gone) == (4, 1)
    assert clone.idle()
    assert chain.contents("c") == chain.contents("b")
    assert sorted((each.kind, each.key) for each in chain.shown["c"]) == [
        ("erase", "k1"), ("insert", "added"), ("update", "k0"),
    ]  # fmt: skip
    chain.write("c", "add", "added", 2, VECTOR, ticket=6)
    chain.wait(0.5)
    assert chain.outcomes[6] is None
    assert clone.get("added") == chain.roles["b"].get("added") == (1, 2)


def test_a_clone_that_lacks_nothing_takes_nothing_also_from_one_master_to_the_next() -> None:
    chain, clone = following()
    for other, again in (("b", "a"), ("a", "b"), ("b", "a")):
        chain.kill(again)
        chain.wait(1.5)
        (offer,) = offers(chain, "c")
        assert isinstance(offer, cmd.ChangesOffer)
        assert offer.entries == 0
        assert clone.idle()
        assert clone.master is not None
        assert clone.master.endpoint == other.encode() * 16
        chain.sent.clear()
        chain.server(again)
        chain.places()
        chain.wait(1.5)
        chain.write(other, "put", "who", other, ticket=1)
        assert clone.get("who") == other


def test_a_clone_that_heard_of_half_a_commit_takes_all_keys_of_it() -> None:
    chain, clone = following(replace(KV_LIMITS, told_together=1))
    held: list[Effect] = []
    head = chain.roles["a"]
    held += head.put("first", 0, ticket=0, **chain.times())  # what that has to wait for all others share
    held += head.put("short", 1, ticket=1, **chain.times())
    held += head.put("k0", "new", ticket=2, **chain.times())
    held += head.erase("short", ticket=3, **chain.times())
    held += head.put("last", 2, ticket=4, **chain.times())
    heard = 0

    def lost(action: Send) -> bool:
        nonlocal heard
        heard += events(action)
        return events(action) and heard > 3  # the clone hears of those before ``short`` is gone

    chain.lost = lost
    chain.do("a", held)
    chain.deliver()
    chain.wait(0.2)
    assert chain.outcomes[4] is None
    assert chain.contents("c")["short"] == 1
    assert "last" not in chain.contents("c")
    chain.kill("a")
    chain.lost = lambda action: False
    chain.wait(1.5)

    (offer,) = offers(chain, "c")
    assert isinstance(offer, cmd.ChangesOffer)
    assert clone.idle()
    assert chain.contents("c") == chain.contents("b")
    assert "short" not in chain.contents("c")


def test_events_that_nobody_heard_have_numbers_so_that_later_ones_are_not_taken_for_them() -> None:
    chain = Chained()
    chain.wait(1.0)
    for number in range(3):
        chain.write("a", "put", "early", number, ticket=number)  # nobody listens
    clone = chain.clone("c")
    chain.wait(1.0)
    assert clone.get("early") == 2
    chain.lost = events
    chain.write("a", "put", "late", 1, ticket=3)
    chain.kill("a")
    chain.lost = lambda action: False
    chain.wait(1.5)

    assert chain.contents("c") == chain.contents("b") == {"early": 2, "late": 1}


def test_a_clone_that_is_too_far_behind_takes_everything() -> None:
    chain, clone = following(replace(KV_LIMITS, recent_keys=10))
    chain.lost = events
    for number in range(12):
        chain.write("a", "put", f"k{number}", "new", ticket=number)
    chain.kill("a")
    chain.lost = lambda action: False
    chain.wait(1.5)

    (offer,) = offers(chain, "c")
    assert isinstance(offer, cmd.SnapshotOffer)
    assert clone.idle()
    assert chain.contents("c") == chain.contents("b")


def test_each_second_time_a_clone_asks_as_originals_understand_it() -> None:
    chain, _ = following()
    chain.sent.clear()
    for name in "ab":
        chain.gone(name)
    chain.wait(5.0)
    asked = [decode_message(each.message).command for name, each in chain.sent if name == "c"]
    seqs = [each.seqs for each in asked if isinstance(each, cmd.MissingEvents)]
    assert [len(each) for each in seqs[:3]] == [5, 1, 5]
    assert cmd.asked(seqs[0]) is not None


def test_changes_of_another_state_than_the_clone_has_are_declined() -> None:
    chain, clone = following()
    chain.paused |= {"a", "b"}
    chain.wait(12.0)  # the clone looks for another one
    assert not clone.connected
    assert clone.master is not None
    entity = chappe_entity(b"n" * 16, 77)
    for master, event, gone in ((entity, 51, 0), (clone.master, 50, 0), (clone.master, 51, 1)):
        offer = cmd.ChangesOffer(1, 1, 5, 0, 0, gone, master, event)
        payload = encode_message(0, entity, clone.entity, encode_command(offer))
        chain.do("c", clone.handle_message(clone.topics[0], [payload], chain.now))
        assert not clone.connected
    assert any(isinstance(each, CommandRefused) for each in chain.events["c"])  # more are gone than there are


def test_a_question_comes_as_it_was() -> None:
    for state in ((MASTER, 2**64 - 1), (NOBODY, 0), None):
        wire = encode_message(0, OTHER, NOBODY, encode_command(cmd.asking(state)))
        command = decode_message(wire).command
        assert isinstance(command, cmd.MissingEvents)
        assert cmd.asked(command.seqs) == state
    assert cmd.asked((1, 2, 3, 4, 5)) is None
    assert cmd.asked(()) is None
    assert decode_message(wire) == Message(0, OTHER, NOBODY, cmd.MissingEvents((0,)))


# -- what has changed lately -------------------------------------------------------------------------------------------


def put(*keys: str) -> list[PutRow]:
    return [PutRow(encode_value(key), b"", None) for key in keys]


def keys(found: tuple[int, list[bytes]] | None) -> set[str] | None:
    return None if found is None else {raw[2:].decode() for raw in found[1]}


def test_keys_are_remembered_from_state_to_state_and_master_to_master() -> None:
    recent = Recent(KV_LIMITS)
    recent.begin(MASTER, 5)
    recent.add(MASTER, 7, put("a", "b"))
    recent.add(MASTER, 7, [WriterRow(OTHER, 1, (), 0)])
    recent.add(MASTER, 9, [EraseRow(encode_value("c"))])
    recent.name(OTHER, 1)
    recent.add(OTHER, 2, put("d"))

    assert keys(recent.since(OTHER, 2)) == set()
    assert keys(recent.since(OTHER, 1)) == {"d"}
    assert keys(recent.since(MASTER, 9)) == {"d"}
    assert keys(recent.since(MASTER, 8)) == keys(recent.since(MASTER, 7)) == {"c", "d"}
    assert keys(recent.since(MASTER, 6)) == keys(recent.since(MASTER, 5)) == {"a", "b", "c", "d"}
    for master, event in ((MASTER, 4), (MASTER, 10), (OTHER, 3), (OTHER, 0), (NOBODY, 5)):
        assert recent.since(master, event) is None
    recent.add(OTHER, 3, [*put("x"), ClearRows(), *put("y")])
    assert recent.since(OTHER, 2) is None
    assert keys(recent.since(OTHER, 3)) == set()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_remembered_has_bounds_and_is_what_there_was(seed: int) -> None:
    rng = Random(seed)
    limits = replace(KV_LIMITS, recent_keys=rng.choice((2, 10, 40)), recent_bytes=rng.choice((10, 100, 1_000)))
    recent = Recent(limits)
    recent.begin(MASTER, 1)
    masters = [MASTER]
    states: list[tuple[Entity, int, dict[str, int]]] = [(MASTER, 1, {})]
    known = 0
    for serial in range(200):
        master, event, data = states[-1]
        changed = [rng.choice("abcdefgh") * rng.randrange(1, 4) for _ in range(rng.randrange(4))]
        data = {**data, **dict.fromkeys(changed, serial)}
        if rng.random() < 0.1:
            masters.append(chappe_entity(b"m" * 16, serial))
            recent.name(masters[-1], 1)
            states.append((masters[-1], 1, states[-1][2]))
        else:
            recent.add(master, event + len(changed), put(*changed))
            states.append((master, event + len(changed), data))
        assert recent.invariants() == []
        for master, event, before in rng.sample(states[-12:], min(len(states), 6)):
            found = keys(recent.since(master, event))
            known += found is not None
            now = states[-1][2]
            assert found is None or {key for key in now if before.get(key) != now[key]} <= found
        assert keys(recent.since(states[-1][0], states[-1][1])) is not None
    assert known > 100


def test_of_those_who_ask_at_once_each_gets_all_that_it_lacks() -> None:
    entries = [Entry(f"k{number}", number, None, number) for number in range(3)]
    lacked = {1: SnapshotChanges(1, entries, 0), 2: SnapshotChanges(2, entries[1:], 0)}
    snapshots = Snapshots(lambda: entries, lambda master, event: lacked.get(event), KV_LIMITS)
    clones = [chappe_entity(bytes((number,)) * 16, 1) for number in range(5)]

    def opened(number: int, event: int, seq: int) -> View:
        view = snapshots.open(clones[number], seq, 0, 0.0, (MASTER, event))
        assert view is not None
        return view

    little = opened(0, 2, seq=9)
    much = opened(1, 1, seq=9)
    assert (len(little.entries), len(much.entries)) == (2, 3)
    assert opened(2, 2, seq=9) in (little, much)
    assert opened(3, 1, seq=10) not in (little, much)  # it may be behind an event that those do not have
    assert opened(4, 7, seq=10).changes is None


@pytest.mark.parametrize("seed", range(10))
def test_a_chain_outlives_whatever_is_asked_and_a_clone_whatever_is_offered(seed: int) -> None:
    rng = Random(seed)
    chain, clone = following()
    masters = [chain.roles["a"].active.entity, MASTER, OTHER]
    numbers = (0, 1, 2, 50, 51, 52, 2**64 - 1)
    for _ in range(200):
        seqs = tuple([rng.choice(numbers) for _ in range(rng.randrange(1, 7))])
        asking = rng.choice((cmd.MissingEvents((0, *seqs)), cmd.asking((rng.choice(masters), rng.choice(numbers)))))
        sender = rng.choice((clone.entity, chappe_entity(b"x" * 16, rng.randrange(3))))
        payload = encode_message(0, sender, NOBODY, encode_command(asking))
        for name in ("a", "b"):
            chain.do(name, chain.roles[name].handle_message(b"s/<$>/data/master", [payload], **chain.times()))
        offer = cmd.ChangesOffer(
            rng.choice(numbers), rng.choice(numbers), 5, rng.choice(numbers), rng.choice(numbers), rng.choice(numbers),
            rng.choice(masters), rng.choice(numbers),
        )  # fmt: skip
        payload = encode_message(0, rng.choice(masters), clone.entity, encode_command(offer))
        chain.do("c", clone.handle_message(clone.topics[0], [payload], chain.now))
        if rng.random() < 0.1:
            chain.wait(0.1)
    chain.wait(20.0)
    chain.write("a", "put", "still", "there", ticket=1)
    chain.wait(1.0)
    assert chain.outcomes[1] is None
    assert chain.contents("c") == chain.contents("a") == chain.contents("b")
