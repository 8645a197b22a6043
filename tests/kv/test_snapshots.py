"""Snapshots: in pieces to clones of chappe, whole to those of the original; joined directly, as the tests decide."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixed_clock import FixedClock

from chappe.core import Effect, Report, Send
from chappe.data.binary import encode
from chappe.data.order import SET
from chappe.defaults import STORE_OFFERS_PER_S, STORE_PIECES_AHEAD, STORE_TAKERS_MAX
from chappe.errors import StaleData
from chappe.kv import commands as cmd
from chappe.kv import snapshots
from chappe.kv.clone import KvClone
from chappe.kv.commands import decode_message, encode_command, encode_message
from chappe.kv.entity import NOBODY, Entity, chappe_entity
from chappe.kv.events import CloneAttached, CloneDropped, MasterFound, SnapshotGivenUp, StoreNearsBound
from chappe.kv.master import KvMaster
from chappe.limits import KvLimits

NS = 1_000_000_000
MASTER = chappe_entity(b"m" * 16, 1)
ORIGINAL = Entity(b"o" * 16, 6)


def changes(message: cmd.Message) -> tuple[cmd.Command, ...]:
    return message.command.changes if isinstance(message.command, cmd.Several) else (message.command,)


class Wire:
    """A master and some clones; messages wait until they are passed on."""

    def __init__(self, *, piece_bytes: int = 1_000, **limits: int) -> None:
        self.now = 100.0
        self.clock = FixedClock(of=lambda: int(self.now * NS))
        self.limits = KvLimits(piece_bytes=piece_bytes, pieces_kept_bytes=16_000, **limits)
        self.master = KvMaster("s", MASTER, notify=False, limits=self.limits, now=self.now, clock=self.clock)
        self.clones: dict[str, KvClone] = {}
        self.waiting: list[tuple[str, bytes | None, bytes]] = []  # from whom, to which endpoint, what
        self.events: list[object] = []
        self.sent: list[tuple[str, cmd.Message]] = []
        self.do("master", self.master.start(**self.times()))

    def times(self) -> dict[str, Any]:
        return {"now": self.now}

    def add(self, name: str, endpoint: bytes | None = None, **options: Any) -> KvClone:
        entity = chappe_entity(endpoint or name.encode() * 16, 2 + len(self.clones))
        clone = self.clones[name] = KvClone("s", entity, now=self.now, clock=self.clock, limits=self.limits, **options)
        self.do(name, clone.start(self.now))
        return clone

    def do(self, who: str, actions: list[Effect]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.waiting.append((who, action.to, action.message))
                self.sent.append((who, decode_message(action.message)))
            elif isinstance(action, Report):
                self.events.append(action.event)

    def put(self, key: object, value: object) -> None:
        self.do("master", self.master.put(key, value, **self.times()))

    def pass_on(self, messages_max: int = 10_000, but: type | None = None) -> int:
        """Deliver what waits, all but one kind of command; how much was delivered."""
        done = 0
        while self.waiting and done < messages_max:
            who, receiver, payload = self.waiting.pop(0)
            done += 1
            if but is not None and isinstance(decode_message(payload).command, but):
                continue
            if who != "master":
                self.do("master", self.master.handle_message(self.master.topics[0], [payload], **self.times()))
            else:
                for name, clone in self.clones.items():
                    if receiver in (None, clone.entity.endpoint):
                        self.do(name, clone.handle_message(clone.topics[0], [payload], self.now))
        return done

    def wait(self, seconds: float, but: type | None = None) -> None:
        until = self.now + seconds
        self.pass_on(but=but)
        while self.now < until:
            self.now = round(self.now + 0.05, 3)
            self.do("master", self.master.handle_timeout(**self.times()))
            for name, clone in self.clones.items():
                self.do(name, clone.handle_timeout(self.now))
            self.pass_on(but=but)

    def said(self, kind: type) -> list[Any]:
        return [message.command for _, message in self.sent if isinstance(message.command, kind)]

    def reported(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def hear(self, entity: Entity, command: cmd.Command, seq: int = 0) -> list[cmd.Message]:
        """What the master answers to somebody whom the wire does not know."""
        payload = encode_message(seq, entity, NOBODY, encode_command(command))
        actions = self.master.handle_message(self.master.topics[0], [payload], **self.times())
        self.do("master", [each for each in actions if not isinstance(each, Send)])
        return [decode_message(each.message) for each in actions if isinstance(each, Send)]


@pytest.fixture
def wire() -> Wire:
    return Wire()


def contents(core: KvMaster | KvClone) -> dict[object, object]:
    return {entry.key: entry.value for entry in core.engine.items()}


def fill(wire: Wire, entries: int = 1_000) -> None:
    for number in range(entries):
        wire.put(f"key {number}", f"value {number}")


def test_a_store_of_any_size_comes_in_pieces_with_few_on_their_way(wire: Wire) -> None:
    fill(wire)
    clone = wire.add("a")
    under_way = 0
    while wire.pass_on(1):
        pieces = [each for each in wire.waiting if isinstance(decode_message(each[2]).command, cmd.SnapshotPiece)]
        under_way = max(under_way, len(pieces))
    assert contents(clone) == contents(wire.master)
    assert len(wire.said(cmd.SnapshotPiece)) == 29
    assert under_way == STORE_PIECES_AHEAD
    assert max(len(each.raw_rows) for each in wire.said(cmd.SnapshotPiece)) < 1_100
    assert wire.reported(CloneAttached) == [CloneAttached("s", clone.entity)]
    assert wire.reported(MasterFound) == [MasterFound("s", MASTER)]
    assert wire.master._followers._snapshots._views == []


def test_nothing_of_a_snapshot_is_seen_before_all_of_it_is_there(wire: Wire) -> None:
    fill(wire)
    clone = wire.add("a")
    while not clone.readable:
        assert len(clone.engine) == 0
        with pytest.raises(StaleData):
            clone.get("key 0")
        assert wire.pass_on(1)
    assert contents(clone) == contents(wire.master)


def test_what_changes_meanwhile_follows_in_order_and_the_master_need_not_keep_it(wire: Wire) -> None:
    fill(wire)
    clone = wire.add("a")
    wire.pass_on(3)
    changed = 0
    while not clone.readable:
        for _ in range(20):
            changed += 1
            wire.put(f"key {changed % 50}", changed)
            wire.put("last", changed)
        wire.pass_on(3)  # of some messages with 40 changes a round, and pieces between them
    assert changed >= 100
    wire.wait(1.0)
    assert contents(clone) == contents(wire.master)
    assert clone.get("last") == changed
    assert wire.master._followers.output.kept[0] < 300


def test_clones_that_come_about_the_same_time_share_one_snapshot(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    monkeypatch.setattr(snapshots.View, "_encode", _counting(snapshots.View._encode, encoded))
    fill(wire)
    for number in range(20):
        wire.add(chr(ord("A") + number))
    for _ in range(3):
        wire.pass_on(100)
        wire.put("changes", len(wire.sent))
        wire.add(str(len(wire.clones)), endpoint=len(wire.clones).to_bytes(16, "big"))
    views = wire.master._followers._snapshots._views
    assert len(views) == 1
    wire.wait(1.0)
    assert {offer.snapshot for offer in wire.said(cmd.SnapshotOffer)} == {1}
    assert all(contents(clone) == contents(wire.master) for clone in wire.clones.values())
    assert len(encoded) <= 2 * len({piece.first for piece in wire.said(cmd.SnapshotPiece)})


def _counting(encode: Any, seen: list[int]) -> Any:
    def counted(self: Any, first: int) -> Any:
        seen.append(first)
        return encode(self, first)

    return counted


def test_a_piece_that_is_lost_is_asked_for_again(wire: Wire) -> None:
    fill(wire)
    clone = wire.add("a")
    wire.pass_on(3)
    lost = [each for each in wire.waiting if isinstance(decode_message(each[2]).command, cmd.SnapshotPiece)]
    wire.waiting = [each for each in wire.waiting if each not in lost]
    wire.wait(4.0)
    assert contents(clone) == contents(wire.master)
    assert [each for each in wire.said(cmd.SnapshotTaken) if each.again]


def test_a_damaged_piece_ends_the_snapshot_and_another_is_taken(wire: Wire) -> None:
    fill(wire)
    clone = wire.add("a")
    wire.pass_on(2)
    who, receiver, payload = wire.waiting[0]
    assert isinstance(decode_message(payload).command, cmd.SnapshotPiece)
    wire.waiting[0] = (who, receiver, payload[:-1] + bytes((payload[-1] ^ 1,)))
    wire.wait(3.0)
    (given_up,) = wire.reported(SnapshotGivenUp)
    assert "checksum" in given_up.reason
    assert contents(clone) == contents(wire.master)
    assert {offer.snapshot for offer in wire.said(cmd.SnapshotOffer)} == {1, 2}


def test_a_clone_that_takes_no_more_is_given_up_and_costs_nothing(wire: Wire) -> None:
    fill(wire)
    wire.add("a")
    wire.wait(8.0, but=cmd.SnapshotTaken)
    del wire.clones["a"]
    wire.wait(11.0)
    (dropped,) = wire.reported(CloneDropped)
    assert dropped.reason == "it did not take what it asked for"
    assert wire.master._followers._snapshots._views == []
    assert not wire.master.clones


def test_a_clone_gives_up_when_more_changes_than_it_keeps_and_then_begins_anew() -> None:
    wire = Wire(staged_events_max=20)
    fill(wire)
    clone = wire.add("a")
    wire.pass_on(3)
    for number in range(30):
        wire.put("changes", number)
    wire.wait(3.0)
    (given_up,) = wire.reported(SnapshotGivenUp)
    assert given_up.reason == "more has changed meanwhile than a clone keeps"
    assert contents(clone) == contents(wire.master)


def test_large_changes_count_by_their_bytes() -> None:
    wire = Wire(staged_bytes_max=1_000)
    fill(wire)
    wire.add("a")
    wire.pass_on(3)
    wire.put("changes", "x" * 1_000)
    wire.wait(0.1)
    assert wire.reported(SnapshotGivenUp)


def test_who_asks_and_takes_nothing_is_offered_little(wire: Wire) -> None:
    fill(wire)
    answers = [wire.hear(chappe_entity(b"x" * 16, number), cmd.MissingEvents((0,))) for number in range(200)]
    offers = [each for answer in answers for each in answer if isinstance(each.command, cmd.SnapshotOffer)]
    pieces = [each for answer in answers for each in answer if isinstance(each.command, cmd.SnapshotPiece)]
    assert len(offers) == STORE_TAKERS_MAX
    assert len(pieces) == STORE_TAKERS_MAX * STORE_PIECES_AHEAD

    for number in range(STORE_TAKERS_MAX):  # and says that it has them, over and over
        taker = chappe_entity(b"x" * 16, number)
        wire.hear(taker, cmd.SnapshotTaken(1, 1_000))
    more = [wire.hear(chappe_entity(b"x" * 16, number), cmd.MissingEvents((0,))) for number in range(200, 400)]
    offered = STORE_OFFERS_PER_S - STORE_TAKERS_MAX
    assert sum(bool(each) for each in more) == offered
    again = [wire.hear(chappe_entity(b"x" * 16, 200), cmd.SnapshotTaken(2, 0, again=True)) for _ in range(100)]
    assert sum(len(each) for each in again) <= STORE_PIECES_AHEAD


def test_a_master_follows_no_more_clones_than_it_can() -> None:
    wire = Wire(clones_max=2)
    for number in range(3):
        wire.hear(chappe_entity(bytes((number + 1,)) * 16, number), cmd.MissingEvents((0,)))
    (dropped,) = wire.reported(CloneDropped)
    assert dropped.reason == "2 follow it already"
    assert len(wire.master.clones) == 2


# -- coming back ------------------------------------------------------------------------------------------------------


def test_a_clone_that_comes_back_says_so_when_it_has_what_it_missed(wire: Wire) -> None:
    clone = wire.add("a", stale_s=5.0)
    wire.put("a", 1)
    wire.wait(1.0)
    assert len(wire.reported(MasterFound)) == 1
    clone.handle_gone(MASTER.endpoint, wire.now)
    wire.waiting.clear()
    wire.put("a", 2)
    wire.waiting.clear()  # lost with the link
    for _ in range(8):
        wire.wait(1.0, but=cmd.MissingEvents)  # it cannot ask for what it missed
    assert clone.connected
    assert not clone.idle()
    assert len(wire.reported(MasterFound)) == 1  # not yet
    with pytest.raises(StaleData, match=r"lost changes more than 5 s ago"):
        clone.get("a")
    wire.wait(1.5)
    assert clone.get("a") == 2
    assert len(wire.reported(MasterFound)) == 2


def test_a_clone_that_was_forgotten_does_not_take_the_next_event_for_the_one_that_follows(wire: Wire) -> None:
    clone = wire.add("a")
    wire.put("a", 1)
    wire.wait(1.0)
    actions: list[Effect] = []
    wire.master._followers.drop(clone.entity, "it was behind", wire.now, actions)
    wire.do("master", actions)
    wire.put("a", 2)  # nobody is told
    wire.add("b")
    wire.pass_on()
    wire.put("b", 3)
    wire.wait(2.0)
    assert contents(clone) == contents(wire.master) == {"a": 2, "b": 3}


# -- changes within a value -------------------------------------------------------------------------------------------


def test_n_insertions_into_one_set_cost_the_clones_n_members(wire: Wire) -> None:
    clone = wire.add("a")
    wire.wait(1.0)
    wire.sent.clear()
    before = len(wire.sent)
    for number in range(500):
        wire.do("master", wire.master.add("set", f"member {number}", SET, **wire.times()))
    wire.do("master", wire.master.let_go())
    sent = [each for who, message in wire.sent[before:] if who == "master" for each in changes(message)]
    assert len(sent) == 500
    assert all(isinstance(each, cmd.Add) for each in sent)
    wire.do("master", wire.master.subtract("set", "member 7", **wire.times()))
    wire.wait(1.0)
    assert contents(clone) == contents(wire.master)
    assert len(clone.get("set")) == 499  # type: ignore[arg-type]


def test_originals_among_the_clones_still_get_the_whole_value(wire: Wire) -> None:
    clone = wire.add("a")
    wire.hear(ORIGINAL, cmd.MissingEvents((0,)))
    wire.hear(ORIGINAL, cmd.CumulativeAck(1))
    wire.wait(1.0)
    for number in range(5):
        wire.do("master", wire.master.add("set", number, SET, **wire.times()))
    assert not wire.said(cmd.Add)
    assert len(wire.said(cmd.Put)[-1].value) == 5
    wire.wait(1.0)
    assert contents(clone) == contents(wire.master)


def test_a_change_that_does_not_fit_what_a_clone_has_makes_it_ask_for_everything(wire: Wire) -> None:
    clone = wire.add("a")
    wire.put("set", 1)
    wire.wait(1.0)
    change = cmd.Add("set", "text", SET, None, MASTER)
    seq = clone._following._input.next
    payload = encode_message(seq, MASTER, NOBODY, encode_command(change))
    wire.do("a", clone.handle_message(clone.topics[0], [payload], wire.now))
    assert not clone.idle()
    wire.put("other", 2)
    wire.wait(2.0)
    assert contents(clone) == contents(wire.master)
    assert clone.idle()


# -- originals --------------------------------------------------------------------------------------------------------


def test_an_original_hears_nothing_of_a_store_that_is_too_large_and_its_master_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire = Wire(snapshot_bytes_max=1_000)
    fill(wire, 100)
    clone = wire.add("a")
    measured: list[object] = []

    def counted(value: object) -> bytes:
        measured.append(value)
        return encode(value)

    monkeypatch.setattr(snapshots, "encode", counted)
    for _ in range(50):
        assert wire.hear(ORIGINAL, cmd.MissingEvents((0,))) == []
    assert len(measured) < 200  # it was looked at once, and no further than the bound
    wire.wait(1.0)

    (dropped,) = wire.reported(CloneDropped)
    assert "clones of chappe can" in dropped.reason
    assert contents(clone) == contents(wire.master)


def test_a_store_that_grows_near_the_bound_of_originals_is_reported_before_it_is_passed() -> None:
    wire = Wire(snapshot_bytes_near=2_000, piece_bytes=500)
    wire.hear(ORIGINAL, cmd.MissingEvents((0,)))
    wire.hear(ORIGINAL, cmd.CumulativeAck(1))
    for number in range(100):  # the same keys again and again do not grow it
        wire.put(f"key {number % 3}", number)
    for _ in range(70):
        wire.wait(1.0)
        wire.hear(ORIGINAL, cmd.CumulativeAck(wire.master._followers.output.seq))
    assert wire.reported(StoreNearsBound) == []
    fill(wire, 150)
    for _ in range(70):
        wire.wait(1.0)
        wire.hear(ORIGINAL, cmd.CumulativeAck(wire.master._followers.output.seq))
    (event,) = wire.reported(StoreNearsBound)
    assert 2_000 < event.size < 4_000
    assert "no clone of the original" in str(event)


def test_originals_that_ask_at_once_get_as_much_as_may_be_under_way(wire: Wire) -> None:
    fill(wire, 100)
    size = sum(len(encode(entry.key)) + len(encode(entry.value)) for entry in wire.master.engine.items())
    wire = Wire(snapshots_bytes_max=3 * size + 10)
    fill(wire, 100)
    asking = [Entity(bytes((number + 1,)) * 16, 6) for number in range(200)]
    greeted = [each for each in asking if wire.hear(each, cmd.MissingEvents((0,)))]
    assert len(greeted) == 3
    wire.hear(greeted[0], cmd.CumulativeAck(wire.master._followers.output.seq))
    assert sum(bool(wire.hear(each, cmd.MissingEvents((0,)))) for each in asking[3:]) == 1
