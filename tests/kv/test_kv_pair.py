"""The two masters of a pair joined directly: what one sends the other gets, unless the test says otherwise."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.kv.pair_rig import paired

from chappe.data.binary import encode as encode_value
from chappe.data.order import INTEGER
from chappe.errors import BackendFailure, ProtocolError, StaleData, WriteUnknown
from chappe.kv import commands as cmd
from chappe.kv.actions import Commit, Send
from chappe.kv.backend import ClearRows, EraseRow, ForgetWriter, PutRow, WriterRow
from chappe.kv.entity import NOBODY, Entity, chappe_entity
from chappe.kv.events import MasterFound, MasterLost
from chappe.kv.pair import messages as say
from chappe.kv.pair.core import PairedMaster
from chappe.kv.pair.standby import Standby
from chappe.kv.pair.stream import Feed, Intake
from chappe.kv.recent import Recent
from chappe.kv.topics import clone_topic, pair_topic
from chappe.limits import KV_LIMITS
from chappe.replication.binary_star.messages import BACKUP, PRIMARY
from chappe.sim.backends import SimBackend

MASTER = chappe_entity(b"m" * 16, 1)


def is_part(action: Send) -> bool:
    return action.topic == pair_topic(b"s") and isinstance(say.decode_said(action.payload)[2], say.Part)


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_confirmed_is_at_the_partner(durable: bool) -> None:
    pair = paired(durable=durable)
    pair.write("a", "put", "k", 1, ticket=1)
    assert pair.outcomes == {1: None}
    assert pair.roles["b"].get("k") == 1
    if durable:
        assert pair.backends["b"].rows == pair.backends["a"].rows != {}

    pair.lost = lambda sender, action: is_part(action)
    pair.write("a", "put", "k", 2, ticket=2)
    pair.wait(0.5)
    assert 2 not in pair.outcomes
    assert not any(each.value == 2 for each in pair.shown["a"])
    pair.lost = lambda sender, action: False
    pair.wait(0.5)  # it is asked for again
    assert pair.outcomes[2] is None
    assert pair.roles["b"].get("k") == 2


def test_when_the_active_one_dies_clones_go_on_within_a_second_and_nothing_is_done_twice() -> None:
    pair = paired()
    clone = pair.clone("c")
    pair.wait(1.0)
    assert clone.connected
    for ticket in range(1, 4):
        pair.write("c", "add", "n", 1, INTEGER, ticket=ticket)
    assert pair.outcomes == {1: None, 2: None, 3: None}
    pair.lost = lambda sender, action: sender == "a" and action.topic == clone_topic(b"s")  # done, and not heard of
    pair.write("c", "add", "n", 1, INTEGER, ticket=4)
    assert pair.roles["b"].get("n") == 4
    assert 4 not in pair.outcomes
    pair.lost = lambda sender, action: False
    pair.kill("a")
    pair.write("c", "add", "n", 1, INTEGER, ticket=5)

    pair.wait(0.95)

    assert pair.roles["b"].active is not None
    assert clone.connected
    assert pair.outcomes == dict.fromkeys(range(1, 6))
    assert clone.get("n") == pair.roles["b"].get("n") == 5


def test_one_that_stands_still_is_replaced_within_a_second_and_follows_when_it_goes_on() -> None:
    pair = paired()
    clone = pair.clone("c")
    pair.wait(1.0)
    pair.paused.add("a")  # its links stay
    pair.write("c", "add", "n", 1, INTEGER, ticket=1)
    pair.wait(1.0)
    assert pair.outcomes == {1: None}
    assert pair.roles["b"].active is not None
    assert pair.roles["a"].active is not None  # and knows of nothing
    pair.do("a", pair.roles["a"].add("n", 1, INTEGER, ticket=2, **pair.times()))  # behind the pause: not done
    pair.paused.clear()
    pair.wait(2.0)

    assert pair.roles["a"].active is None
    assert pair.roles["b"].star.confirms == "paired"
    assert isinstance(pair.outcomes[2], WriteUnknown) or pair.roles["a"].get("n") == 2
    assert clone.get("n") == pair.roles["a"].get("n") == pair.roles["b"].get("n")
    assert [type(each) for each in pair.events["c"]].count(MasterLost) == 1


def test_a_clone_that_hears_its_master_well_does_not_believe_that_it_is_silent() -> None:
    pair = paired()
    clone = pair.clone("c")
    pair.wait(1.0)
    pair.lost = lambda sender, action: sender == "a" and action.topic == pair_topic(b"s")  # only b is deaf to a
    pair.wait(5.0)

    assert clone.connected
    assert clone.master is not None
    assert clone.master.endpoint == b"a" * 16
    assert pair.roles["b"].active is None
    assert any(cmd.decode_message(each.payload).command == cmd.MasterSilent(clone.master) for sender, each in pair.sent
               if sender == "b" and each.topic == clone_topic(b"s"))  # fmt: skip


def test_clones_are_told_of_a_silent_partner_while_that_is_news_to_them() -> None:
    pair = paired()
    pair.kill("a")
    pair.wait(5.0)
    assert any(action.topic == clone_topic(b"s") for _, action in pair.sent)
    pair.wait(10.0)
    pair.sent.clear()
    pair.wait(5.0)
    assert not any(action.topic == clone_topic(b"s") for _, action in pair.sent)


def test_a_write_at_the_passive_one_goes_through_the_active_one_and_survives_it() -> None:
    pair = paired()
    pair.write("b", "add", "n", 1, INTEGER, ticket=1)
    assert pair.outcomes == {1: None}
    assert pair.roles["a"].get("n") == 1
    pair.write("b", "put_unique", "n", 7, ticket=2)
    assert pair.outcomes[2] is False
    pair.lost = lambda sender, action: sender == "a" and action.topic == clone_topic(b"s")  # it does not hear of it
    pair.write("b", "add", "n", 1, INTEGER, ticket=3)
    pair.kill("a")
    pair.write("b", "add", "n", 1, INTEGER, ticket=4)
    pair.wait(0.95)  # what waits here is a vote

    assert pair.outcomes[3] is None
    assert pair.outcomes[4] is None
    assert pair.roles["b"].get("n") == 3
    assert pair.roles["b"].leads


def test_who_comes_back_gets_the_difference_and_watchers_hear_of_it() -> None:
    pair = paired(durable=True)
    for number in range(5):
        pair.write("a", "put", f"k{number}", number, ticket=number)
    pair.kill("b")
    pair.wait(1.0)
    pair.write("a", "put", "k0", "new", ticket=10)
    pair.write("a", "erase", "k1", ticket=11)
    assert pair.outcomes[10] is None  # alone
    pair.shown["b"] = []
    pair.master("b")
    with pytest.raises(StaleData):
        pair.roles["b"].get("k0")
    pair.wait(1.0)

    assert sorted((each.kind, each.key) for each in pair.shown["b"]) == [("erase", "k1"), ("update", "k0")]
    assert pair.roles["b"].get("k0") == "new"
    assert pair.backends["b"].rows == pair.backends["a"].rows
    assert pair.roles["a"].star.confirms == "paired"


def test_a_partner_whose_disk_is_full_is_left_behind_and_comes_back() -> None:
    pair = paired(durable=True)
    pair.backends["b"].full = True
    pair.write("a", "put", "k", 1, ticket=1)
    pair.wait(0.6)
    assert pair.outcomes == {1: None}
    assert pair.roles["a"].star.confirms == "alone"
    assert pair.roles["b"].engine.find("k") is None
    pair.backends["b"].full = False
    pair.wait(3.0)
    assert pair.roles["a"].star.confirms == "paired"
    assert pair.roles["b"].get("k") == 1

    pair.backends["a"].full = True
    pair.write("a", "put", "k", 2, ticket=2)
    assert isinstance(pair.outcomes[2], BackendFailure)
    assert pair.roles["a"].star.confirms == "paired"
    assert pair.roles["b"].get("k") == 1


def test_commits_and_entries_of_many_parts_come_whole() -> None:
    limits = replace(KV_LIMITS, pair_part_bytes=50, pair_window=2)
    pair = paired(limits=limits)
    pair.write("a", "put", "large", "x" * 10_000, ticket=1)
    assert pair.outcomes == {1: None}
    assert pair.roles["b"].get("large") == "x" * 10_000
    pair.kill("b")
    pair.wait(1.0)
    pair.master("b")
    pair.wait(2.0)
    assert pair.roles["a"].star.confirms == "paired"
    assert pair.roles["b"].get("large") == "x" * 10_000


def test_who_dies_while_it_takes_a_copy_still_has_its_own() -> None:
    backend = SimBackend()
    before = PutRow(encode_value("old"), encode_value(1), None)
    backend.commit([before])
    limits = replace(KV_LIMITS, pair_part_bytes=20)
    role = PairedMaster("s", MASTER, BACKUP, 1, now=0.0, wall_ns=0, durable=True, loaded=backend.load())
    standby = Standby(role.engine, (), Recent(limits), role._notices, 1, limits, durable=True)
    (join,) = standby.follow(7, 0.0)
    assert isinstance(join, say.Join)
    other = PairedMaster("s", MASTER, PRIMARY, 2, now=0.0, wall_ns=0)
    for number in range(10):
        other.engine.put(f"new {number}", number)
    feed = Feed(join.stream, 1, MASTER, other.engine.frozen(), (), 0, 1, limits, 0.0)
    said = feed.send(0.0)
    asked: list[object] = []
    for _ in range(100):
        assert [each for each in asked if isinstance(each, Commit)] == []
        assert backend.rows == {before.key: before}
        for each in said:
            assert isinstance(each, say.Part)
            asked += standby.handle(each, 0.0)
        if any(isinstance(each, Commit) for each in asked):
            break
        have = [each for each in asked if isinstance(each, say.Have)][-1]
        said = feed.handle_have(have.number, 0.0) + feed.send(0.0)

    (commit,) = [each for each in asked if isinstance(each, Commit)]  # all of it at once
    assert len(commit.operations) == 11
    assert standby._engine.get("old") == 1
    standby.handle_kept(None, 0.0)
    assert standby.copied
    assert [entry.key for entry in standby._engine.items()] == [f"new {n}" for n in range(10)]


# -- bytes ---------------------------------------------------------------------------------------------------------

ROWS = (
    PutRow(encode_value("k"), encode_value((1, "x")), None),
    PutRow(encode_value("k"), encode_value(1), -5),
    EraseRow(encode_value("k")),
    ClearRows(),
    WriterRow(MASTER, 7, ((5, 11), (6, 255)), 3),
    ForgetWriter(MASTER),
)
SAID: tuple[say.Said, ...] = (
    say.Beat(b"*rest"),
    say.Join(1, 2, 3),
    say.Part(1, 2, True, b"piece"),
    say.Part(1, 2, False, b""),
    say.Last(1, 9),
    say.Have(1, 2**64 - 1),
    say.Missing(1, (2, 4)),
    say.Gone(5),
)


def message(said: say.Said) -> bytes:
    return cmd.encode_message(0, MASTER, NOBODY, say.encode(said))


@pytest.mark.parametrize("said", SAID, ids=lambda said: type(said).__name__)
def test_what_is_said_comes_as_it_was(said: say.Said) -> None:
    payload = message(said)
    assert say.decode_said(payload) == (MASTER.endpoint, NOBODY.endpoint, said)
    if not isinstance(said, say.Beat | say.Part):
        with pytest.raises(ProtocolError):
            say.decode_said(payload[:-1])


def test_a_unit_comes_as_it_was() -> None:
    encoded = [say.encode_operation(row) for row in ROWS]
    commit = say.decode_unit(say.encode_unit(say.COMMIT, encoded, 2**64 - 1))
    assert (commit.kind, commit.event) == (say.COMMIT, 2**64 - 1)
    assert tuple([row for row, _, _ in commit.rows]) == ROWS
    assert commit.rows[0][1:] == ("k", (1, "x"))
    end = say.decode_unit(say.encode_unit(say.END, encoded[:1], 7, MASTER))
    assert (end.kind, end.event, end.master, len(end.rows)) == (say.END, 7, MASTER, 1)
    for kind in (say.COMMIT, say.END):
        with pytest.raises(ProtocolError):
            say.decode_unit(say.encode_unit(kind, (), 7, MASTER)[:-1])


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_no_message_is_refused(seed: int) -> None:
    rng = Random(seed)
    for _ in range(300):
        encoded = [say.encode_operation(row) for row in rng.choices(ROWS, k=rng.randrange(4))]
        unit = say.encode_unit(rng.randrange(4), encoded, rng.getrandbits(64), MASTER)
        raw = bytearray(rng.choice((unit, message(rng.choice(SAID)))))
        for _ in range(rng.randrange(4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        cut = bytes(raw[: rng.randrange(len(raw) + 1)])
        for decode in (say.decode_said, say.decode_unit):
            try:
                decode(cut)
            except ProtocolError:
                pass


@pytest.mark.parametrize("seed", range(10))
def test_a_pair_outlives_whatever_peers_send(seed: int) -> None:
    rng = Random(seed)
    pair = paired(durable=seed % 2 == 1)
    pair.clone("c")
    pair.wait(0.5)
    endpoints = (b"a" * 16, b"b" * 16, b"x" * 16)
    for _ in range(200):
        entity = Entity(rng.choice(endpoints), rng.getrandbits(64))
        real = [each for _, each in pair.sent[-200:]]
        said: say.Said = rng.choice(SAID)
        if rng.random() < 0.5 and real:
            payload = bytearray(rng.choice(real).payload)
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        else:
            payload = bytearray(cmd.encode_message(0, entity, rng.choice((NOBODY, entity)), say.encode(said)))
        if rng.random() < 0.1:
            payload = bytearray(cmd.encode_message(0, entity, NOBODY, cmd.encode_command(cmd.MasterSilent(entity))))
        name = rng.choice(("a", "b"))
        topic = rng.choice(list(pair.roles[name].hears))
        pair.do(name, pair.roles[name].hears[topic]([bytes(payload)], **pair.times()))
        pair.do("c", pair.roles["c"].handle_messages([bytes(payload)], pair.now))
        if rng.random() < 0.1:
            pair.wait(0.1)
    pair.wait(15.0)
    writer = "a" if pair.roles["a"].active is not None else "b"
    pair.write(writer, "put", "still", "there", ticket=1)
    pair.wait(1.0)
    assert pair.outcomes[1] is None


def test_a_stream_that_is_silent_or_stalls_is_given_up() -> None:
    intake = Intake(1, KV_LIMITS, 0.0)
    assert not intake.silent(1.0)
    assert intake.silent(10.0)
    feed = Feed(1, 1, MASTER, (), (), 0, 1, KV_LIMITS, 0.0)
    assert not feed.stalled(10.0)
    feed.send(0.0)
    assert not feed.stalled(1.0)
    assert feed.stalled(10.0)
    with pytest.raises(ProtocolError):
        feed.handle_missing((0,), 1.0)


def test_a_clone_finds_a_new_master_that_it_hears_of_at_once() -> None:
    pair = paired()
    clone = pair.clone("c")
    pair.wait(1.0)
    pair.kill("a")
    pair.kill("b")
    pair.wait(60.0)
    assert not clone.connected
    pair.events["c"].clear()
    pair.master("a")
    pair.master("b")
    pair.wait(3.0)
    assert any(isinstance(each, MasterFound) for each in pair.events["c"])
