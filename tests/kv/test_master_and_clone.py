"""A master and its clones joined directly: what one sends the other gets, unless the test says otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixed_clock import FixedClock

from chappe.core import Deliver, Effect, Persist, Report, Resolve, Send
from chappe.data.binary import decode, encode
from chappe.data.order import INTEGER, SET, VECTOR
from chappe.data.scalars import Count
from chappe.data.values import Set
from chappe.defaults import STORE_WRITER_FORGET_S
from chappe.errors import (
    BackendFailure,
    BrokenClone,
    BufferFull,
    NoMaster,
    NoSuchKey,
    RecordTooLarge,
    StaleData,
    StorageFull,
    StoreError,
    TimedOut,
    TypeClash,
    UnsupportedValue,
    UsageError,
    WriteUnknown,
)
from chappe.kv import commands as cmd
from chappe.kv.backend import ClearRows, Commit, EraseRow, Loaded, PutRow, WriterRow
from chappe.kv.clone import KvClone
from chappe.kv.commands import decode_message, encode_command, encode_message
from chappe.kv.entity import NOBODY, Entity, chappe_entity
from chappe.kv.events import (
    CloneAttached,
    CloneResyncs,
    CloneStale,
    CloneWritesRefused,
    CommandRefused,
    MasterFound,
    MasterLost,
    TwoMasters,
    WriteFailed,
)
from chappe.kv.history import KeyHistory
from chappe.kv.master import KvMaster
from chappe.kv.role import KeyChange
from chappe.limits import KV_LIMITS, KvLimits

NS = 1_000_000_000


class Pair:
    """A master, a clone, and a clock."""

    def __init__(self, *, durable: bool = False, history: int = 0, **options: Any) -> None:
        self.history = history
        self.now = 100.0
        self.lives = 0
        self.ahead_s = 0.0  # the time of day
        self.clock = FixedClock(of=lambda: int((self.now + self.ahead_s) * NS))
        self.cut = False
        self.deaf = False  # the master is
        self.resolved: dict[int, object] = {}
        self.commits: list[Commit] = []
        self.seen: dict[str, list[KeyChange]] = {"master": [], "clone": []}
        self.events: list[object] = []
        self.sent: list[Send] = []
        self.durable = durable
        self.options = options
        self.clone = KvClone("s", self.entity(b"c"), now=self.now, clock=self.clock, **options)
        self.master = self.new_master()
        self.do("clone", self.clone.start(self.now))

    def entity(self, name: bytes) -> Entity:
        self.lives += 1
        return chappe_entity(name * 16, self.lives)

    def new_master(self, loaded: Loaded | None = None) -> KvMaster:
        limits = self.options.get("limits", KV_LIMITS)
        history = KeyHistory(self.history, limits, kept=self.durable)
        self.master = KvMaster(
            "s",
            self.entity(b"m"),
            durable=self.durable,
            history=history,
            limits=limits,
            loaded=loaded,
            clock=self.clock,
            **self.times(),
        )
        self.do("master", self.master.start(**self.times()))
        return self.master

    def times(self) -> dict[str, Any]:
        return {"now": self.now}

    def do(self, who: str, actions: list[Effect]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.sent.append(action)
                if not self.cut and who == "master":
                    self.do("clone", self.clone.handle_message(self.clone.topics[0], [action.message], self.now))
                elif not self.cut and not self.deaf:
                    self.do(
                        "master", self.master.handle_message(self.master.topics[0], [action.message], **self.times())
                    )
            elif isinstance(action, Resolve):
                self.resolved[action.ticket] = action.outcome
            elif isinstance(action, Persist):
                self.commits.append(action.job)
            elif isinstance(action, Deliver):
                self.seen[who] += action.messages
            elif isinstance(action, Report):
                self.events.append(action.event)

    def write(self, who: str, name: str, *arguments: object, **options: Any) -> None:
        core: Any = self.master if who == "master" else self.clone
        times = self.times() if who == "master" else {"now": self.now}
        self.do(who, getattr(core, name)(*arguments, **times, **options))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            at = min(self.master.next_timeout(), self.clone.next_timeout())
            self.now = min(max(at, self.now), until)
            if at > until:
                self.now = until
                return
            self.do("master", self.master.handle_timeout(**self.times()))
            self.do("clone", self.clone.handle_timeout(self.now))
            self.now += 0.001

    def reported(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def test_a_write_of_a_clone_is_shown_when_it_comes_back() -> None:
    pair = Pair()
    pair.write("clone", "put", "a", 1, ticket=1)
    pair.write("clone", "put_unique", "a", 2, ticket=2)
    pair.write("clone", "put_unique", "b", 2, ticket=3)

    pair.wait(1.0)
    assert pair.resolved == {1: None, 2: False, 3: True}
    assert pair.clone.get("a") == pair.master.get("a") == 1
    assert [(each.kind, each.key, each.value) for each in pair.seen["clone"]] == [
        ("insert", "a", 1),
        ("insert", "b", 2),
    ]
    assert pair.seen["clone"][0].publisher == pair.clone.entity


def test_a_failed_operation_reaches_its_caller_across_the_wire() -> None:
    pair = Pair()
    pair.wait(1.0)
    pair.write("master", "put", "text", "x")
    pair.write("clone", "add", "text", 1, INTEGER, ticket=1)
    pair.write("clone", "subtract", "missing", 1, ticket=2)
    pair.write("clone", "add", "text", 1, INTEGER)

    assert isinstance(pair.resolved[1], TypeClash)
    assert isinstance(pair.resolved[2], NoSuchKey)
    (failed,) = pair.reported(WriteFailed)
    assert isinstance(failed.error, TypeClash)
    assert pair.clone.get("text") == "x"
    with pytest.raises(TypeClash):
        pair.write("master", "add", "text", 1, INTEGER)


def test_every_operation_gives_the_same_on_both_sides() -> None:
    pair = Pair()
    pair.wait(1.0)
    for who in ("master", "clone"):
        pair.write(who, "add", "n", Count(5), 2)
        pair.write(who, "subtract", "n", Count(2))
        pair.write(who, "add", "v", who, VECTOR)
        pair.write(who, "put", ("key", 1), None)
        pair.write(who, "erase", ("key", 1))
    assert {repr(e.key): e.value for e in pair.clone.engine.items()} == {"'n'": Count(6), "'v'": ("master", "clone")}
    pair.write("clone", "clear")
    assert len(pair.clone.engine) == len(pair.master.engine) == 0


def test_entries_expire_at_the_master_in_time_and_are_told() -> None:
    pair = Pair()
    pair.wait(1.0)
    pair.write("clone", "put", "a", 1, expiry_ns=NS // 2)
    pair.write("master", "put", "b", 1, expiry_ns=NS // 2)
    pair.write("master", "put", "b", 2)
    pair.wait(0.49)
    assert pair.clone.engine.exists("a")
    pair.wait(0.02)

    assert not pair.clone.engine.exists("a")
    assert pair.clone.engine.exists("b")
    assert pair.seen["clone"][-1].kind == "expire"
    assert pair.seen["clone"][-1].publisher == pair.master.entity


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_due_to_expire_is_told_although_the_write_that_came_upon_it_failed(durable: bool) -> None:
    pair = Pair(durable=durable)
    pair.wait(1.0)
    pair.write("master", "put", "a", 1, expiry_ns=NS // 10)
    for commit in pair.commits:
        pair.do("master", pair.master.handle_done(Commit(commit.number, ()), None, **pair.times()))
    pair.commits.clear()
    pair.now += 0.2
    with pytest.raises(NoSuchKey):
        pair.write("master", "subtract", "a", 1)
    assert [each.kind for each in pair.seen["master"]] == ["insert"]
    pair.do("master", pair.master.handle_timeout(**pair.times()))
    for commit in pair.commits:
        pair.do("master", pair.master.handle_done(Commit(commit.number, ()), None, **pair.times()))

    assert [each.kind for each in pair.seen["master"]] == ["insert", "expire"]
    assert not pair.clone.engine.exists("a")
    pair.wait(1.1)
    assert pair.master.idle()


def test_a_clone_follows_a_new_master_and_tells_every_difference() -> None:
    pair = Pair()
    pair.wait(1.0)
    for key in "abc":
        pair.write("master", "put", key, 1)
    pair.wait(0.01)
    pair.seen["clone"].clear()
    pair.new_master()
    pair.write("master", "put", "b", 1)
    pair.write("master", "put", "c", 2)
    pair.write("master", "put", "d", 1)
    pair.do("clone", pair.clone.handle_gone(b"m" * 16, pair.now))
    pair.wait(1.0)

    assert pair.clone.connected
    assert sorted((each.kind, each.key, each.before, each.value) for each in pair.seen["clone"]) == [
        ("erase", "a", 1, None), ("insert", "d", None, 1), ("update", "c", 1, 2)
    ]  # fmt: skip
    assert len(pair.reported(MasterLost)) == 1
    assert len(pair.reported(MasterFound)) == 2


def test_a_silent_master_is_lost_and_the_same_one_resumed_without_a_snapshot() -> None:
    pair = Pair()
    pair.wait(1.0)
    pair.cut = True
    pair.wait(12.0)
    pair.write("master", "put", "a", 1)
    assert not pair.clone.connected
    pair.cut = False
    pair.sent.clear()
    pair.wait(12.0)

    assert pair.clone.connected
    assert pair.clone.get("a") == 1
    assert not [each for each in pair.sent if isinstance(decode_message(each.message).command, cmd.AckClone)]


def test_a_clone_that_misses_an_event_for_good_is_not_resumed_when_its_master_was_lost_before_the_snapshot() -> None:
    pair = Pair()
    pair.wait(1.0)
    pair.cut = True
    pair.write("master", "put", "a", 1)
    missing = decode_message(pair.sent[-1].message).seq
    failed = encode_message(0, pair.master.entity, pair.clone.entity, encode_command(cmd.RetransmitFailed(missing)))
    pair.do("clone", pair.clone.handle_message(pair.clone.topics[0], [failed], pair.now))
    pair.do("clone", pair.clone.handle_gone(b"m" * 16, pair.now))
    pair.cut = False
    pair.write("master", "put", "b", 1)
    assert not pair.clone.connected
    assert not pair.clone.engine.exists("b")
    pair.wait(1.0)

    assert pair.clone.connected
    assert pair.clone.get("a") == pair.clone.get("b") == 1


def test_a_clone_that_hears_its_master_but_gets_no_snapshot_grows_stale() -> None:
    pair = Pair(stale_s=5.0)
    pair.wait(1.0)
    pair.cut = True
    pair.write("master", "put", "a", 1)
    missing = decode_message(pair.sent[-1].message).seq
    pair.cut = False
    pair.deaf = True
    failed = encode_message(0, pair.master.entity, pair.clone.entity, encode_command(cmd.RetransmitFailed(missing)))
    pair.do("clone", pair.clone.handle_message(pair.clone.topics[0], [failed], pair.now))
    pair.wait(4.9)
    assert pair.clone.connected
    assert pair.clone.readable
    pair.wait(0.2)
    assert pair.clone.connected
    with pytest.raises(StaleData, match=r"lost changes more than 5 s ago"):
        pair.clone.get("a")
    assert len(pair.reported(CloneStale)) == 1

    pair.deaf = False
    pair.wait(11.0)
    assert pair.clone.get("a") == 1


def test_writes_without_a_master_wait_and_are_done_in_order_each_once() -> None:
    pair = Pair()
    pair.wait(1.0)
    pair.cut = True
    pair.do("clone", pair.clone.handle_gone(b"m" * 16, pair.now))
    for number in range(100):
        pair.write("clone", "add", "v", number, VECTOR, ticket=number)
    assert pair.resolved == {}
    pair.cut = False
    pair.wait(11.0)

    assert pair.clone.get("v") == tuple(range(100))
    assert pair.resolved == dict.fromkeys(range(100))


def test_writes_that_a_master_of_chappe_did_before_it_was_lost_are_not_done_again() -> None:
    pair = Pair()
    pair.wait(1.0)
    lost: list[Send] = []
    actions = pair.clone.add("v", 1, VECTOR, now=pair.now, ticket=1)
    lost += [action for action in actions if isinstance(action, Send)]
    answers = pair.master.handle_message(pair.master.topics[0], [each.message for each in lost], **pair.times())
    assert any(isinstance(each, Send) for each in answers)  # and all of them are lost
    pair.do("clone", pair.clone.handle_gone(b"m" * 16, pair.now))
    pair.wait(11.0)

    assert pair.master.get("v") == pair.clone.get("v") == (1,)
    assert pair.resolved == {1: None}


def test_a_clone_that_lags_takes_a_bounded_number_of_writes_that_it_cannot_show_yet() -> None:
    pair = Pair(limits=KvLimits(writes_max=5))
    pair.wait(1.0)
    pair.write("clone", "put_unique", "k", 1, ticket=0)
    pair.wait(1.0)
    pair.cut = True
    while pair.clone.room:
        sent = len(pair.sent)
        pair.write("clone", "put_unique", "k", 1, ticket=sent)  # fails: it makes no event
        if pair.clone.room:
            pair.write("clone", "put", "k", 1, ticket=-sent)
        for each in [told for write in pair.sent[sent:] for told in handled(pair, write)]:
            if not isinstance(decode_message(each.message).command, cmd.ACTIONS):  # what became of writes, no event
                pair.do("clone", pair.clone.handle_message(pair.clone.topics[0], [each.message], pair.now))
    with pytest.raises(BufferFull):
        pair.write("clone", "put", "k", 1, ticket=0)

    assert pair.clone.unconfirmed == 10
    assert not pair.clone.room
    assert pair.clone.invariants() == []
    pair.cut = False
    pair.wait(2.0)
    assert (pair.clone.unconfirmed, pair.clone.room) == (0, True)


def handled(pair: Pair, write: Send) -> list[Send]:
    """What the master sends for a write."""
    actions = pair.master.handle_message(pair.master.topics[0], [write.message], **pair.times())
    return [each for each in actions if isinstance(each, Send)]


def test_reads_grow_stale_and_writes_are_refused_after_their_times() -> None:
    pair = Pair(stale_s=5.0, mutation_buffer_s=3.0)
    pair.wait(1.0)
    pair.write("master", "put", "a", 1)
    pair.cut = True
    pair.write("clone", "put", "sent", 1, ticket=1)
    pair.do("clone", pair.clone.handle_gone(b"m" * 16, pair.now))
    pair.write("clone", "put", "waits", 1, ticket=2)
    pair.wait(2.9)
    assert pair.clone.get("a") == 1
    assert pair.resolved == {}
    pair.wait(0.2)
    assert isinstance(pair.resolved[1], WriteUnknown)
    assert not pair.resolved[1].definite
    assert isinstance(pair.resolved[2], NoMaster)
    assert pair.reported(CloneWritesRefused) == [CloneWritesRefused("s", 2)]
    with pytest.raises(NoMaster):
        pair.write("clone", "put", "late", 1)
    pair.wait(2.0)
    with pytest.raises(StaleData):
        pair.clone.get("a")
    assert pair.reported(CloneStale) == [CloneStale("s")]
    pair.cut = False
    pair.wait(11.0)
    assert pair.clone.get("a") == 1
    assert not pair.clone.engine.exists("waits")


def test_a_clone_without_a_master_can_neither_be_read_nor_become_idle() -> None:
    clone = KvClone("s", chappe_entity(b"c" * 16, 1), now=0.0, clock=FixedClock())
    with pytest.raises(StaleData):
        clone.get("a")
    assert clone.await_ready(1, 5.0, 0.0) == []
    assert clone.await_idle(2, 5.0, 0.0) == []
    resolved = {each.ticket: each.outcome for each in clone.handle_timeout(5.0) if isinstance(each, Resolve)}
    assert isinstance(resolved[1], StaleData)
    assert isinstance(resolved[2], TimedOut)


def test_idle_means_that_everything_has_come_back() -> None:
    pair = Pair()
    pair.wait(1.0)
    pair.write("clone", "put", "a", 1)
    pair.do("clone", pair.clone.await_idle(1, 5.0, pair.now))
    pair.do("master", pair.master.await_idle(2, 5.0, pair.now))
    pair.wait(0.5)
    assert pair.resolved == {1: None, 2: None}

    pair.cut = True
    pair.write("master", "put", "b", 1)
    pair.do("master", pair.master.await_idle(3, 2.0, pair.now))
    pair.wait(2.1)
    assert isinstance(pair.resolved[3], TimedOut)
    pair.do("master", pair.master.handle_gone(b"c" * 16, pair.now))
    assert pair.master.idle()


def test_an_idle_clone_has_what_its_master_had_when_it_was_asked() -> None:
    pair = Pair()
    pair.wait(1.0)
    pair.cut = True
    for key in "abc":
        pair.write("master", "put", key, 1)
    pair.do("clone", pair.clone.await_idle(1, 5.0, pair.now))  # nobody hears the question, which is asked again
    pair.cut = False
    assert pair.clone.idle()  # as far as it knows
    assert pair.resolved == {}
    pair.wait(1.0)
    assert pair.resolved == {1: None}
    assert pair.clone.engine.keys() == ["a", "b", "c"]


def test_a_clone_waits_for_what_its_master_had_and_has_not_made_durable_yet() -> None:
    pair = Pair(durable=True)
    pair.wait(1.0)
    pair.write("master", "put", "a", 1)
    pair.write("master", "put", "b", 1)
    pair.do("clone", pair.clone.await_idle(1, 5.0, pair.now))
    pair.wait(0.5)
    pair.do("master", pair.master.handle_done(Commit(1, ()), None, **pair.times()))
    pair.write("master", "put", "c", 1)  # it need not wait for that
    assert pair.resolved == {}
    pair.do("master", pair.master.handle_done(Commit(2, ()), None, **pair.times()))
    assert pair.resolved == {1: None}
    assert pair.clone.engine.keys() == ["a", "b"]


def test_a_clone_that_finds_another_master_asks_that_one_how_far_it_is() -> None:
    pair = Pair()
    pair.wait(1.0)
    pair.do("clone", pair.clone.await_idle(1, 60.0, pair.now))
    assert pair.resolved == {1: None}
    pair.cut = True
    pair.do("clone", pair.clone.await_idle(2, 60.0, pair.now))
    pair.new_master()
    pair.write("master", "put", "a", 1)
    pair.cut = False
    pair.do("clone", pair.clone.handle_gone(b"m" * 16, pair.now))
    assert pair.resolved == {1: None}
    pair.wait(2.0)
    assert pair.resolved == {1: None, 2: None}
    assert pair.clone.get("a") == 1


@pytest.mark.parametrize("kept", [True, False])
def test_an_original_says_how_far_it_is_by_an_event_that_is_there_already(kept: bool) -> None:
    clone = KvClone("s", chappe_entity(b"c" * 16, 1), now=0.0, clock=FixedClock())
    original = Original(clone, 6)
    original.say(1, cmd.AckClone(1, 5, b"\0"), 0.0)
    original.say(0, cmd.CumulativeAck(1), 0.1)
    put = cmd.Put("a", 1, None, original.entity)
    original.say(2, put, 0.1, NOBODY)

    def asked(actions: list[Effect]) -> list[cmd.Command]:
        found = [decode_message(each.message).command for each in actions if isinstance(each, Send)]
        return [each for each in found if isinstance(each, cmd.MissingEvents)]

    assert asked(clone.await_idle(1, 5.0, 0.2)) == [cmd.MissingEvents((2,))]
    more = original.say(3, cmd.Put("b", 2, None, original.entity), 0.3, NOBODY)  # was on its way
    assert outcomes(more) == {}
    answer = original.say(2, put, 0.3) if kept else original.say(0, cmd.RetransmitFailed(2), 0.3)
    assert outcomes(answer) == {1: None}
    assert clone.engine.keys() == ["a", "b"]
    assert not asked(clone.handle_timeout(1.0))

    assert asked(clone.await_idle(2, 5.0, 1.0)) == [cmd.MissingEvents((3,))]
    assert asked(clone.handle_timeout(1.3)) == [cmd.MissingEvents((3,))]
    assert outcomes(original.say(0, cmd.RetransmitFailed(2), 1.4)) == {}  # of what was asked before
    assert outcomes(original.say(0, cmd.RetransmitFailed(3), 1.4)) == {2: None}


def test_nobody_is_told_before_the_commit_and_one_commit_serves_many() -> None:
    pair = Pair(durable=True)
    pair.wait(1.0)
    for number in range(10):
        pair.write("master", "put", number, number, ticket=number)
    assert len(pair.commits) == 1
    assert pair.seen == {"master": [], "clone": []}
    pair.do("master", pair.master.handle_done(Commit(1, ()), None, **pair.times()))
    assert pair.resolved == {0: None}
    assert len(pair.commits) == 2
    assert len(pair.commits[1].operations) == 9
    pair.do("master", pair.master.handle_done(Commit(2, ()), None, **pair.times()))
    assert len(pair.seen["clone"]) == len(pair.resolved) == 10


def test_a_commit_holds_the_last_change_of_each_key() -> None:
    pair = Pair(durable=True)
    pair.wait(1.0)
    pair.write("master", "put", "begins", 1)  # what follows goes into one commit
    for number in range(100):
        pair.write("master", "add", "set", number, SET)
        pair.write("master", "put", "key", number)
    pair.write("master", "put", "gone", 1)
    pair.write("master", "erase", "gone")
    pair.do("master", pair.master.handle_done(Commit(1, ()), None, **pair.times()))
    rows = {row.key: row for row in pair.commits[1].operations if isinstance(row, PutRow | EraseRow)}
    assert len(rows) == len(pair.commits[1].operations) == 3
    kept = rows[encode("set")]
    assert isinstance(kept, PutRow)
    assert decode(kept.value) == Set(list(range(100)))
    assert rows[encode("gone")] == EraseRow(encode("gone"))
    pair.do("master", pair.master.handle_done(Commit(2, ()), None, **pair.times()))
    assert len(pair.seen["clone"]) == 1 + 202  # everybody is told of each
    pair.write("master", "add", "set", 100, SET)
    pair.write("master", "clear")
    pair.write("master", "put", "key", 1)
    pair.do("master", pair.master.handle_done(Commit(3, ()), None, **pair.times()))
    assert pair.commits[3].operations == (ClearRows(), PutRow(encode("key"), encode(1), None))


def test_a_failed_commit_leaves_the_store_as_it_was() -> None:
    pair = Pair(durable=True)
    pair.wait(1.0)
    pair.write("master", "put", "a", 1)
    pair.do("master", pair.master.handle_done(Commit(1, ()), None, **pair.times()))
    pair.write("master", "put", "a", 2, ticket=1)
    pair.write("clone", "put", "b", 2, ticket=2)
    pair.do("master", pair.master.handle_done(Commit(2, ()), StorageFull("full"), pair.now))
    pair.wait(1.0)

    assert isinstance(pair.resolved[1], BackendFailure)
    assert isinstance(pair.resolved[2], BackendFailure)
    assert [entry.value for entry in pair.master.engine.items()] == [1]
    assert pair.clone.get("a") == 1


@pytest.mark.parametrize("writer", [chappe_entity(b"w" * 16, 9), Entity(b"o" * 16, 6)], ids=["chappe", "original"])
def test_a_write_is_committed_though_its_clone_left_while_another_commit_was_under_way(writer: Entity) -> None:
    pair = Pair(durable=True)
    pair.wait(1.0)

    def say(seq: int, command: cmd.Command) -> None:
        payload = encode_message(seq, writer, NOBODY, encode_command(command))
        pair.do("master", pair.master.handle_message(pair.master.topics[0], [payload], **pair.times()))

    say(0, cmd.AttachWriter(1, 10))
    pair.write("master", "put", "a", 1)
    say(2, cmd.Put("b", 2, None, writer))
    say(0, cmd.Leave(2))
    for number in (1, 2):
        pair.do("master", pair.master.handle_done(Commit(number, ()), None, **pair.times()))
    rows = pair.commits[1].operations
    assert isinstance(rows[0], PutRow)
    kept = [(row.entity, row.applied) for row in rows if isinstance(row, WriterRow)]
    assert kept == ([(writer, 2)] if writer.is_chappe else [])  # originals never repeat themselves
    pair.wait(1.0)
    assert pair.clone.get("b") == 2


def test_what_follows_writes_that_a_clone_gave_up_is_done_when_it_says_so() -> None:
    pair = Pair()
    pair.wait(1.0)
    writer = chappe_entity(b"w" * 16, 9)

    def say(seq: int, command: cmd.Command) -> None:
        payload = encode_message(seq, writer, NOBODY, encode_command(command))
        pair.do("master", pair.master.handle_message(pair.master.topics[0], [payload], **pair.times()))

    say(0, cmd.AttachWriter(1, 10))
    say(5, cmd.Put("b", 2, None, writer))  # 2 to 4 are lost, and refused by the clone meanwhile
    say(0, cmd.AttachWriter(4, 10))
    pair.wait(1.0)
    assert pair.clone.get("b") == 2
    assert pair.master.idle()


def test_a_write_counts_as_done_only_when_its_master_says_what_became_of_it() -> None:
    pair = Pair()
    pair.wait(1.0)
    pair.cut = True
    for number in (1, 2):
        pair.write("clone", "add", "v", number, VECTOR, ticket=number)
    nack = encode_message(0, pair.master.entity, pair.clone.entity, encode_command(cmd.MissingEvents((3,))))
    pair.do(
        "clone", pair.clone.handle_message(pair.clone.topics[0], [nack], pair.now)
    )  # the first came, and its outcome was lost
    pair.do("clone", pair.clone.handle_gone(b"m" * 16, pair.now))
    pair.cut = False
    pair.new_master()
    pair.wait(11.0)
    assert pair.resolved == {1: None, 2: None}
    assert pair.master.get("v") == pair.clone.get("v") == (1, 2)


def test_two_masters_are_seen_by_the_clone_and_by_each_other() -> None:
    pair = Pair()
    pair.wait(1.0)
    other = KvMaster("s", chappe_entity(b"o" * 16, 9), now=pair.now, clock=pair.clock)
    (beat,) = [each for each in other.handle_timeout(pair.now + 5) if isinstance(each, Send)]
    pair.do("master", pair.master.handle_message(pair.master.topics[1], [beat.message], **pair.times()))
    pair.do("master", pair.master.handle_message(pair.master.topics[1], [beat.message], **pair.times()))
    pair.do("clone", pair.clone.handle_message(pair.clone.topics[0], [beat.message], pair.now))

    assert pair.reported(TwoMasters) == [TwoMasters("s", pair.master.entity, other.entity)] * 2


def test_a_peer_that_says_what_it_may_not_is_reported_and_changes_nothing() -> None:
    pair = Pair()
    pair.wait(1.0)
    stranger = Entity(b"x" * 16, 1)
    for command in (cmd.Put("a", 1, None, stranger), cmd.AckClone(5, 1, b"\0"), cmd.WriterState(1, 1, ())):
        payload = encode_message(2, stranger, NOBODY, encode_command(command))
        pair.do("master", pair.master.handle_message(pair.master.topics[0], [payload], **pair.times()))
        pair.do("clone", pair.clone.handle_message(pair.clone.topics[0], [payload], pair.now))
    payload = encode_message(0, stranger, NOBODY, encode_command(cmd.AttachWriter(2**63, 1)))
    pair.do("master", pair.master.handle_message(pair.master.topics[0], [payload, b"short"], **pair.times()))

    assert len(pair.master.engine) == len(pair.clone.engine) == 0
    assert len(pair.reported(CommandRefused)) == 4
    assert len(pair.reported(TwoMasters)) == 1


def test_a_clones_forged_answers_are_refused_one_by_one() -> None:
    pair = Pair()
    pair.wait(1.0)
    writes = pair.clone.entity
    for seq, command in ((2, cmd.Expire("a", writes)), (3, cmd.PutUniqueResult(True, writes, 1, writes))):
        payload = encode_message(seq, writes, pair.master.entity, encode_command(command))
        pair.do("master", pair.master.handle_message(pair.master.topics[0], [payload], **pair.times()))

    assert set(pair.master._writers.known[writes].outcomes) <= {2, 3}
    assert pair.seen["master"] == []


def test_the_author_of_a_clones_write_is_who_sent_it_whom_else_it_may_name() -> None:
    pair = Pair()
    pair.wait(1.0)
    writes, other = pair.clone.entity, chappe_entity(b"x" * 16, 7)
    original = Entity(b"o" * 16, 6)
    for seq, command in ((2, cmd.Put("a", 1, None, other)), (3, cmd.PutUnique("b", 1, None, original, 9, other))):
        payload = encode_message(seq, writes, pair.master.entity, encode_command(command))
        pair.do("master", pair.master.handle_message(pair.master.topics[0], [payload], **pair.times()))

    assert [(each.key, each.publisher) for each in pair.seen["master"]] == [("a", writes), ("b", writes)]
    assert not [each for each in pair.sent if isinstance(decode_message(each.message).command, cmd.PutUniqueResult)]


@pytest.mark.parametrize("who", ["master", "clone"])
def test_what_cannot_be_stored_is_refused_at_once(who: str) -> None:
    pair = Pair()
    pair.wait(1.0)
    for key, value, error in (
        ("a", object(), UnsupportedValue),
        ("a", 2**64, UnsupportedValue),
        ("a", "x" * (17 * 1024 * 1024), RecordTooLarge),
        ("\udc80", 1, UnsupportedValue),
    ):
        with pytest.raises(error):
            pair.write(who, "put", key, value)
    assert len(pair.master.engine) == 0


def test_options_out_of_bounds_are_refused() -> None:
    entity = chappe_entity(b"c" * 16, 1)
    for options in ({"mutation_buffer_s": -1.0}, {"mutation_buffer_s": 1e6}, {"resync_s": 0.0}):
        with pytest.raises(UsageError):
            KvClone("s", entity, now=0.0, clock=FixedClock(), **options)  # type: ignore[arg-type]
    for name in ("", "x" * 2000, "<$>/local", "\udc80"):
        with pytest.raises(UsageError):
            KvClone(name, entity, now=0.0, clock=FixedClock())


def test_an_idle_clone_costs_less_than_one_message_in_two_seconds_each_way() -> None:
    pair = Pair()
    for number in range(100):
        pair.write("master", "put", number, number)
    pair.wait(5.0)
    pair.sent.clear()
    pair.wait(24.0)

    from_master = [each for each in pair.sent if each.topic.endswith(b"clone")]
    assert len(from_master) <= 11
    assert len(pair.sent) - len(from_master) <= 11
    assert pair.clone.connected
    assert not pair.reported(MasterLost)


# -- originals, as the recorded session shows them ---------------------------------------------------------------------


def test_an_original_clone_gets_what_it_needs() -> None:
    pair = Pair()
    original = Entity(b"o" * 16, 6)
    times = pair.times()

    def say(seq: int, command: cmd.Command, receiver: Entity = pair.master.entity) -> list[cmd.Message]:
        payload = encode_message(seq, original, receiver, encode_command(command))
        sent = [
            each
            for each in pair.master.handle_message(pair.master.topics[0], [payload], **times)
            if isinstance(each, Send)
        ]
        return [decode_message(each.message) for each in sent]

    (greeting,) = say(0, cmd.MissingEvents((0,)), NOBODY)
    assert isinstance(greeting.command, cmd.AckClone)
    assert greeting.receiver == original
    say(0, cmd.CumulativeAck(greeting.command.offset))
    (ack,) = say(0, cmd.AttachWriter(1, 5))
    assert ack.command == cmd.CumulativeAck(1)
    told = say(2, cmd.PutUnique("a", 1, None, original, 7, original))
    put, result = (each.command for each in told)
    assert put == cmd.Put("a", 1, None, original)
    assert result == cmd.PutUniqueResult(True, original, 7, pair.master.entity)
    (refused,) = say(3, cmd.PutUnique("a", 2, None, original, 8, original))
    assert refused.command == cmd.PutUniqueResult(False, original, 8, pair.master.entity)
    assert refused.seq == told[-1].seq + 1
    pair.now += 3.0
    beats = [
        decode_message(each.message)
        for each in pair.master.handle_timeout(**pair.times())
        if isinstance(each, Send) and each.to == original.endpoint
    ]
    assert cmd.Keepalive(refused.seq) in [each.command for each in beats]
    assert cmd.CumulativeAck(3) in [each.command for each in beats]

    say(0, cmd.CumulativeAck(refused.seq))
    pair.sent.clear()
    pair.wait(10.0)
    assert len([each for each in pair.sent if each.to == original.endpoint]) >= 10  # it was told that it would


class Original:
    """What a clone hears from a master of the original."""

    def __init__(self, clone: KvClone, number: int) -> None:
        self.clone = clone
        self.entity = Entity(b"o" * 16, number)

    def say(self, seq: int, command: cmd.Command, now: float, receiver: Entity | None = None) -> list[Effect]:
        payload = encode_message(seq, self.entity, receiver or self.clone.entity, encode_command(command))
        return self.clone.handle_message(self.clone.topics[0], [payload], now)


def outcomes(actions: list[Effect]) -> dict[int, object]:
    return {each.ticket: each.outcome for each in actions if isinstance(each, Resolve)}


def test_a_clone_follows_an_original_and_does_not_repeat_what_another_may_have_done() -> None:
    clone = KvClone("s", chappe_entity(b"c" * 16, 1), now=0.0, clock=FixedClock())
    first = Original(clone, 6)
    first.say(1, cmd.AckClone(1, 5, b"\0"), 0.0)
    first.say(0, cmd.CumulativeAck(1), 0.1)
    clone.put("a", 1, now=0.2, ticket=1)
    clone.put_unique("b", 1, now=0.2, ticket=2)
    clone.put("c", 1, now=0.2, ticket=3)

    assert outcomes(first.say(2, cmd.Put("a", 1, None, clone.entity), 0.3, NOBODY)) == {}
    assert outcomes(first.say(0, cmd.CumulativeAck(2), 0.3)) == {1: None}
    assert outcomes(first.say(3, cmd.PutUniqueResult(True, clone.entity, 1, first.entity), 0.3, NOBODY)) == {2: True}
    clone.handle_gone(b"o" * 16, 1.0)
    clone.put("d", 1, now=1.1, ticket=4)
    second = Original(clone, 7)
    actions = second.say(5, cmd.AckClone(5, 5, b"\0"), 2.0)

    assert isinstance(outcomes(actions)[3], WriteUnknown)
    repeated = [decode_message(each.message) for each in actions if isinstance(each, Send)]
    assert [each.command.key for each in repeated if isinstance(each.command, cmd.Put)] == ["d"]
    attach = next(each.command for each in repeated if isinstance(each.command, cmd.AttachWriter))
    put = next(each for each in repeated if isinstance(each.command, cmd.Put))
    assert put.seq == attach.offset + 1


def test_an_original_master_that_was_away_for_a_moment_goes_on_where_it_was() -> None:
    clone = KvClone("s", chappe_entity(b"c" * 16, 1), now=0.0, clock=FixedClock())
    original = Original(clone, 6)
    original.say(1, cmd.AckClone(1, 5, b"\0"), 0.0)
    original.say(2, cmd.Put("a", 1, None, original.entity), 0.1, NOBODY)
    clone.handle_gone(b"o" * 16, 1.0)
    original.say(0, cmd.Keepalive(4), 2.0, NOBODY)

    assert clone.connected
    asked = [decode_message(each.message).command for each in clone.handle_timeout(2.5) if isinstance(each, Send)]
    assert cmd.MissingEvents((3, 4)) in asked


def said(actions: list[Effect]) -> list[cmd.Command]:
    """What it sends."""
    return [decode_message(each.message).command for each in actions if isinstance(each, Send)]


def test_a_clone_that_lacks_a_change_for_good_does_nothing_further_before_it_has_a_snapshot() -> None:
    clone = KvClone("s", chappe_entity(b"c" * 16, 1), now=0.0, clock=FixedClock())
    original = Original(clone, 6)
    original.say(1, cmd.AckClone(1, 5, b"\0"), 0.0)
    for seq, key in ((3, "b"), (4, "c")):
        original.say(seq, cmd.Put(key, 1, None, original.entity), 0.1, NOBODY)
    lost = original.say(0, cmd.RetransmitFailed(2), 0.2)

    (resyncs,) = [each.event for each in lost if isinstance(each, Report)]
    assert isinstance(resyncs, CloneResyncs)
    assert str(resyncs) == "store 's' asks its master for a snapshot: change 2 of its master is gone for good"
    assert isinstance(resyncs.error, BrokenClone)
    assert cmd.MissingEvents((0,)) in said(lost)
    assert not [each for each in said(lost) if isinstance(each, cmd.CumulativeAck)]
    put = original.say(5, cmd.Put("d", 1, None, original.entity), 0.3, NOBODY)
    again = original.say(0, cmd.RetransmitFailed(3), 0.3)
    assert put == again == []
    assert clone.engine.keys() == []


def test_behind_a_snapshot_for_a_lost_change_an_original_goes_on_past_it() -> None:
    """It repeats the offset that it once gave: asked again for what is lost, it would fail for ever."""
    clone = KvClone("s", chappe_entity(b"c" * 16, 1), now=0.0, clock=FixedClock())
    original = Original(clone, 6)
    original.say(1, cmd.AckClone(1, 5, b"\0"), 0.0)
    original.say(3, cmd.Put("b", 1, None, original.entity), 0.1, NOBODY)
    original.say(0, cmd.RetransmitFailed(2), 0.2)
    pairs = b"\2" + encode("a") + encode(1) + encode("b") + encode(1)
    begun = original.say(1, cmd.AckClone(1, 5, pairs), 0.3)

    assert cmd.CumulativeAck(2) in said(begun)
    assert clone.engine.keys() == ["a", "b"]
    original.say(0, cmd.Keepalive(3), 0.4)
    assert cmd.MissingEvents((3,)) in said(clone.handle_timeout(1.0))
    original.say(3, cmd.Put("b", 1, None, original.entity), 1.1, NOBODY)
    assert clone.idle()


@pytest.mark.parametrize("missing", [False, True])
def test_a_master_says_once_that_an_original_follows_it(missing: bool) -> None:
    """The first acknowledgement completes the handshake; what is said to be missing acknowledges all before it."""
    pair = Pair()
    at = pair.master.position
    original = Entity(b"o" * 16, 6)

    def say(command: cmd.Command) -> None:
        payload = encode_message(0, original, pair.master.entity, encode_command(command))
        pair.do("master", pair.master.handle_message(pair.master.topics[0], [payload], **pair.times()))

    def attached() -> list[Any]:
        return [each for each in pair.reported(CloneAttached) if each.clone == original]

    say(cmd.MissingEvents((0,)))
    say(cmd.CumulativeAck(at + 9))  # that nobody has told
    assert attached() == []
    say(cmd.MissingEvents((at + 1,)) if missing else cmd.CumulativeAck(at))
    assert attached() == [CloneAttached("s", original)]
    say(cmd.CumulativeAck(at))
    assert len(attached()) == 1


def asks(clone: KvClone, now: float) -> bool:
    """Whether it asks for a snapshot at that time."""
    sent = [decode_message(each.message).command for each in clone.handle_timeout(now) if isinstance(each, Send)]
    return cmd.MissingEvents((0,)) in sent


def test_an_original_that_may_know_us_still_is_not_asked_for_a_snapshot_again() -> None:
    """It would keep the snapshot, and give the same one the next time, however old that is then."""
    clone = KvClone("s", chappe_entity(b"c" * 16, 1), now=0.0, clock=FixedClock())
    original = Original(clone, 6)
    original.say(1, cmd.AckClone(1, 5, b"\0"), 0.0)
    clone.handle_gone(b"o" * 16, 1.0)
    clone.hurry(5.0)
    assert not asks(clone, 5.6)
    original.say(0, cmd.Keepalive(1), 5.7, NOBODY)
    assert clone.connected

    clone.handle_gone(b"o" * 16, 6.0)
    assert not asks(clone, 7.1)
    assert asks(clone, 7.3)  # it is not there: another may be

    clone.hurry(49.0)
    original.say(0, cmd.Keepalive(1), 49.5, NOBODY)  # it forgets us about now
    assert not clone.connected
    assert not asks(clone, 57.0)
    assert asks(clone, 58.5)


def test_errors_of_a_store_have_the_originals_numbers() -> None:
    assert {each.__name__: each.code for each in StoreError.__subclasses__()} == {
        "NoSuchKey": 9, "TypeClash": 11, "InvalidOperation": 12, "BackendFailure": 13, "StaleData": 14, "NoMaster": 8,
        "WriteUnknown": 10, "MasterExists": 7, "BrokenClone": 27,
        "WrongRevision": 200,  # which the original has not
    }  # fmt: skip


def test_what_a_master_finds_in_its_backend_expires_as_it_was_to() -> None:
    clock = FixedClock()
    loaded = Loaded(entries=(("short", 1, 5 * NS), ("lasting", 2, None)))
    master = KvMaster("s", chappe_entity(b"m" * 16, 1), now=0.0, clock=clock, durable=True, loaded=loaded)
    master.start(0.0)
    assert master.next_timeout() <= 5.0
    clock.ns = 5 * NS
    actions = master.handle_timeout(5.0)
    assert [each for each in actions if isinstance(each, Persist)]
    assert master.engine.find("short") is None
    assert master.engine.find("lasting") is not None


def test_a_clone_hears_of_all_writes_that_a_full_disk_has_refused_at_once() -> None:
    """They are more than one message tells."""
    pair = Pair(durable=True)
    count = KV_LIMITS.outcomes_max + 10
    for number in range(count):
        pair.write("clone", "put", number, number, ticket=number)
    pair.do("master", pair.master.handle_done(Commit(1, ()), StorageFull("full"), pair.now))
    pair.wait(3.0)

    assert len(pair.resolved) == count
    assert all(isinstance(outcome, BackendFailure) for outcome in pair.resolved.values())
    assert not pair.reported(CommandRefused)
    assert pair.clone.idle()
    assert pair.master.idle()


def test_a_clone_that_has_written_nothing_for_a_day_is_not_forgotten_while_it_is_there() -> None:
    pair = Pair()
    pair.wait(1.0)
    pair.write("clone", "put", "a", 1, ticket=1)
    pair.ahead_s = 2 * STORE_WRITER_FORGET_S
    pair.wait(STORE_WRITER_FORGET_S / 24 + 1.0)
    pair.write("clone", "put", "a", 2, ticket=2)

    assert pair.resolved == {1: None, 2: None}


def test_a_clock_that_is_two_days_ahead_forgets_nobody_at_once() -> None:
    """The next look is an hour later: by then whoever is there was heard."""
    writer = chappe_entity(b"w" * 16, 9)
    rows = (WriterRow(writer, 5, (), heard_ns=0),)
    clock = FixedClock(int(2 * STORE_WRITER_FORGET_S * 1e9))
    master = KvMaster("s", chappe_entity(b"m" * 16, 1), now=0.0, clock=clock, loaded=Loaded((), rows))
    master.start(0.0)
    assert writer in [each.entity for each in master.writer_rows()]

    master.handle_timeout(STORE_WRITER_FORGET_S / 24)
    assert writer not in [each.entity for each in master.writer_rows()]


def test_a_clone_that_does_not_say_what_it_has_heard_of_must_wait_with_further_writes() -> None:
    limits = KvLimits(outcomes_max=3)
    writer = chappe_entity(b"w" * 16, 9)
    master = KvMaster("s", chappe_entity(b"m" * 16, 1), now=0.0, clock=FixedClock(), limits=limits)

    def say(seq: int, command: cmd.Command) -> list[cmd.Command]:
        payload = encode_message(seq, writer, NOBODY, encode_command(command))
        sent = [each for each in master.handle_message(master.topics[0], [payload], 0.0) if isinstance(each, Send)]
        return [decode_message(each.message).command for each in sent]

    say(0, cmd.AttachWriter(1, 10))
    told = [say(seq, cmd.Subtract("nothing", 1, None, writer)) for seq in range(2, 10)]
    assert [each.applied for some in told for each in some if isinstance(each, cmd.WriterState)] == [2, 3, 4]
    assert not say(0, cmd.Settled(4))
    assert say(5, cmd.Put("a", 1, None, writer))
    assert master.get("a") == 1
