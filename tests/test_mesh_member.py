"""Endpoints with their data stores, joined without sockets: what reaches a master or clone, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from tests.calls import calls_inside_chappe
from tests.fixed_clock import FixedClock

from chappe.core import Close, Deliver, Dial, Effect, Flush, Persist, Report, Resolve
from chappe.errors import BufferFull, Closed
from chappe.kv import events
from chappe.kv.clone import KvClone
from chappe.kv.commands import Clear, encode_command, encode_message
from chappe.kv.entity import chappe_entity, master_topic
from chappe.kv.events import CloneStale, CommandRefused, MasterFound, MasterLost
from chappe.kv.master import KvMaster
from chappe.kv.role import KeyChange
from chappe.kv.simulated_clock import SimulatedClock
from chappe.member import KvPart, MeshMember, StoreCommit
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.events import DefectContained, PeerLost
from chappe.mesh.link_reports import ASK_LINKS, LINKS_TOLD, ask, parse_report
from chappe.mesh.links.dialling import ONCE
from chappe.mesh.messages import COMMAND, DATA, NOBODY, Message

NS = 1_000_000_000
PART = 7  # the number of a data store at its member
OTHER = {"a": "b", "b": "a"}


class Joined:
    """Two members, ``a`` and ``b``, joined by one connection that loses nothing and takes no time."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.members = {
            name: MeshMember(
                EndpointCore(name.encode() * 16, EndpointOptions(**options), self.now),
                FixedClock(of=lambda: int(self.now * NS)),
            )
            for name in OTHER
        }
        self.parts: dict[str, KvPart] = {}
        self.served: dict[str, list[object]] = {"a": [], "b": []}
        self.reports: dict[str, list[object]] = {"a": [], "b": []}
        self.delivered: dict[str, list[Message]] = {"a": [], "b": []}
        self.open = True
        self.conns = {"a": 1, "b": 0}
        self.do("a", self.members["a"].handle_link(1, ("h", 1), self.now))
        self.take("b", self.members["b"].endpoint.peer("h", 1, ONCE, 1, self.now))

    @property
    def times(self) -> dict[str, Any]:
        return {"now": self.now}

    def take(self, name: str, actions: Sequence[Effect]) -> None:
        self.do(name, self.members[name].take(actions, self.now))

    def do(self, name: str, actions: Iterable[Effect]) -> None:
        for action in actions:
            if isinstance(action, Report) and type(action.event).__module__ == events.__name__:
                self.served[name].append(action)
            elif isinstance(action, Report):
                self.reports[name].append(action.event)
            elif isinstance(action, Deliver) and action.to == PART:
                self.served[name] += action.messages
            elif isinstance(action, Resolve | Persist):
                self.served[name].append(action)
            elif isinstance(action, Deliver):
                self.delivered[name] += action.messages
            elif isinstance(action, Flush):
                self.flush(name)
            elif isinstance(action, Dial):
                self.conns[name] = action.link
                self.do(name, self.members[name].handle_link(action.link, ("h", 1), self.now))
            elif isinstance(action, Close):
                self.open = False

    def flush(self, name: str) -> None:
        other, conn = self.members[OTHER[name]], self.conns[OTHER[name]]
        while self.open and (frames := self.members[name].endpoint.take(self.conns[name], 1 << 20)):
            bodies = [frame[4:] for frame in frames]
            while bodies:
                count = other.endpoint.messages_max(conn)
                self.do(OTHER[name], other.handle_frames(conn, bodies[:count], **self.times))
                del bodies[:count]

    def run(self, seconds: float) -> None:
        """Let time pass, one tick of a channel after the other."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.01
            for name, member in self.members.items():
                if member.next_timeout() <= self.now:
                    self.do(name, member.handle_timeout(**self.times))

    def attach(self, name: str, role: KvMaster | KvClone) -> KvPart:
        self.parts[name] = part = self.members[name].attach(role, PART)
        self.do(name, part.start(**self.times))
        return part

    def master(self, name: str, **options: Any) -> KvPart:
        entity, member = chappe_entity(name.encode() * 16, 1), self.members[name]
        return self.attach(name, KvMaster("s", entity, now=member.time(self.now), clock=member.clock, **options))

    def clone(self, name: str) -> KvPart:
        member = self.members[name]
        entity = chappe_entity(name.encode() * 16, 2)
        return self.attach(name, KvClone("s", entity, now=member.time(self.now), clock=member.clock))

    def advance(self, seconds: float, *names: str) -> None:
        """Advance the simulated clocks of data stores, without letting time pass."""
        for name in names:
            clock = self.members[name].simulated
            assert clock is not None
            self.do(name, self.members[name].advance(clock.wall_ns() + round(seconds * NS), **self.times))

    def write(self, name: str, method: str, *args: object, **options: Any) -> None:
        part = self.parts[name]
        effects = getattr(part.role, method)(*args, now=part.check(self.now), **options)
        self.do(name, part.wrote(effects, self.now, expires="expiry_ns" in options))


@pytest.fixture
def joined() -> Joined:
    found = Joined()
    found.master("a")
    found.clone("b")
    found.run(1.0)
    assert found.parts["b"].entries is not None
    for each in found.served.values():
        each.clear()
    return found


def test_the_cores_find_nothing_wrong_with_themselves_and_tell_what_they_know(joined: Joined) -> None:
    for number in range(20):
        joined.write("b", "put", number % 3, "x" * number)
        joined.write("a", "add", "sum", number, 3, expiry_ns=NS)
        joined.run(0.1)
        for name, part in joined.parts.items():
            core = part.role
            assert isinstance(core, KvMaster | KvClone)
            assert core.invariants() == joined.members[name].endpoint.invariants() == []
    master, clone = (joined.parts[each].role for each in "ab")
    assert isinstance(master, KvMaster)
    assert isinstance(clone, KvClone)
    assert master.position == clone.position
    assert "'xxxxxxxxxxxxxxxxxxx'" in master.story(1)
    assert "1 clones" in master.story(1)
    assert f"follows {master.entity}" in clone.story("nothing")
    endpoint = joined.members["a"].endpoint
    assert endpoint.story(b"b" * 16, joined.now).startswith("an endpoint of chappe, linked for ")
    assert endpoint.story(b"x" * 16, joined.now) == "out of reach"


def test_an_idle_clone_and_its_master_send_each_other_less_than_two_frames_a_second() -> None:
    found = Joined()
    found.master("a")
    found.clone("b")
    found.run(1.0)
    for number in range(20):
        found.write("a", "put", number, number)
        found.write("b", "put", -number, number)
    found.run(10.0)
    before = {name: member.endpoint.peers()[0].sent for name, member in found.members.items()}
    found.run(60.0)

    sent = {name: member.endpoint.peers()[0].sent - before[name] for name, member in found.members.items()}
    assert max(sent.values()) <= 115, sent
    assert found.reports == {"a": [], "b": []} or not [
        each for told in found.reports.values() for each in told if isinstance(each, PeerLost | MasterLost)
    ]


def test_a_defect_in_a_cores_state_is_found(joined: Joined) -> None:
    master, clone = (joined.parts[each].role for each in "ab")
    assert isinstance(master, KvMaster)
    assert isinstance(clone, KvClone)
    joined.write("a", "put", "k", 1)
    router = joined.members["a"].router
    for wrong, core in (
        (lambda: setattr(router.links[b"b" * 16].outbox, "bytes", 1), joined.members["a"].endpoint),
        (lambda: setattr(router.seen, "size", 99), joined.members["a"].endpoint),
        (lambda: router.subscriptions.add(9, [b"s"], COMMAND), joined.members["a"].endpoint),
        (lambda: setattr(master._followers, "has_clones", False), master),
        (lambda: setattr(master._followers.output, "_bytes", 10_000), master),
        (lambda: setattr(master.engine, "version", 0), master),
        (lambda: setattr(clone._following._input, "_end", 10_000), clone),
        (lambda: setattr(clone._writes, "_sent", 10_000), clone),
    ):
        before = len(core.invariants())
        wrong()
        assert len(core.invariants()) > before


@pytest.fixture
def simulated() -> Joined:
    """As ``joined``, but the time of the data stores stands still."""
    found = Joined()
    for member in found.members.values():
        member.simulate(SimulatedClock())
    found.master("a")
    found.clone("b")
    found.run(1.0)
    for each in found.served.values():
        each.clear()
    return found


def kinds(served: Iterable[object]) -> list[type]:
    return [type(each.event if isinstance(each, Report) else each) for each in served]


def test_entries_expire_by_simulated_time_alone_and_changes_wait_for_none(simulated: Joined) -> None:
    for number in range(50):
        simulated.write("a", "put", number, number, expiry_ns=(number + 1) * 60 * NS)
        assert simulated.parts["b"].role.engine.find(number)
    simulated.write("b", "put", "stays", 1)
    simulated.run(120.0)
    for name, part in simulated.parts.items():
        assert len(part.role.engine) == 51, name

    simulated.advance(59.9, "a", "b")
    assert len(simulated.parts["a"].role.engine) == 51
    simulated.served["b"].clear()
    simulated.advance(0.1 + 48 * 60, "a")  # and not "b": a master says what has expired
    assert [each.key for each in simulated.served["b"] if isinstance(each, KeyChange)] == list(range(49))
    for part in simulated.parts.values():
        assert sorted(map(str, part.role.engine.keys())) == ["49", "stays"]


def test_heartbeats_count_ticks_of_simulated_time_so_that_a_jump_loses_nobody(simulated: Joined) -> None:
    told: list[bytes] = []
    simulated.members["a"].record = lambda topic, payload, kind: told.append(payload)
    simulated.run(120.0)
    assert not told
    for _ in range(10):
        simulated.advance(365 * 86_400, "a", "b")
    assert kinds(simulated.served["a"]) == kinds(simulated.served["b"]) == []
    assert len(told) <= 1
    for _ in range(1_000):
        simulated.advance(0.05, "a", "b")
    assert len(told) > 10
    assert kinds(simulated.served["a"]) == kinds(simulated.served["b"]) == []


def test_a_master_whose_time_stands_still_is_lost_when_that_of_its_clone_goes_on(simulated: Joined) -> None:
    for _ in range(99):
        simulated.advance(0.1, "b")
    assert MasterLost not in kinds(simulated.served["b"])
    for _ in range(3):
        simulated.advance(0.1, "b")
    assert kinds(simulated.served["b"]) == [MasterLost, MasterFound]  # as it answers
    simulated.do("b", simulated.members["b"].handle_gone(simulated.conns["b"], "cut", simulated.now))
    simulated.open = False
    simulated.run(400.0)
    assert simulated.parts["b"].entries is not None
    for _ in range(3_000):
        simulated.advance(0.1, "b")
    assert kinds(simulated.served["b"]) == [MasterLost, MasterFound, MasterLost, CloneStale]
    assert simulated.parts["b"].entries is None


def test_simulated_time_does_not_go_back_and_real_time_is_not_advanced(simulated: Joined, joined: Joined) -> None:
    member = simulated.members["a"]
    assert member.simulated is not None
    simulated.advance(10.0, "a")
    for to_ns in (10 * NS, 9 * NS, -1):
        assert not member.advance(to_ns, **simulated.times)
        assert member.simulated.wall_ns() == 10 * NS
    joined.write("a", "put", "k", 1, expiry_ns=NS)
    assert not joined.members["a"].advance(10**18, **joined.times)
    assert joined.parts["a"].role.engine.get("k") == 1


def test_a_clones_write_comes_back_without_time_passing(joined: Joined) -> None:
    joined.write("b", "put", "k", 1, ticket=5)
    assert Resolve(5, None) in joined.served["b"]
    assert [type(each) for each in joined.served["b"]] == [KeyChange, Resolve]
    assert joined.parts["a"].role.engine.get("k") == joined.parts["b"].role.engine.get("k") == 1


def test_a_clones_write_and_what_comes_back_cost_few_calls(joined: Joined) -> None:
    joined.write("b", "put", "k", 1, ticket=5)
    assert calls_inside_chappe(lambda: joined.write("b", "put", "k", 1, ticket=6)) <= 210  # both ends, no sockets


def test_one_clone_finds_its_master_whichever_was_there_first() -> None:
    joined = Joined()
    joined.clone("b")
    joined.run(3.0)
    assert joined.parts["b"].entries is None
    joined.master("a")
    joined.run(0.3)
    assert joined.parts["b"].entries is not None
    assert joined.members["b"].holders("s") == [b"a" * 16]
    assert [joined.members[each].has(kind, "s") for each in "ab" for kind in ("master", "clone")] == [
        True, False, False, True,
    ]  # fmt: skip


def test_a_clone_hears_that_the_endpoint_of_its_master_is_gone(joined: Joined) -> None:
    joined.open = False
    joined.do("b", joined.members["b"].handle_gone(joined.conns["b"], "cut", joined.now))
    assert any(isinstance(each, PeerLost) for each in joined.reports["b"])
    assert [type(each.event) for each in joined.served["b"] if isinstance(each, Report)] == [MasterLost]


def test_a_clone_hears_that_its_master_was_closed_on_an_endpoint_that_is_still_there(joined: Joined) -> None:
    joined.do("a", joined.parts["a"].close(**joined.times))
    joined.run(0.3)
    assert [type(each.event) for each in joined.served["b"] if isinstance(each, Report)] == [MasterLost]


def test_nobody_is_believed_for_somebody_else(joined: Joined) -> None:
    joined.write("a", "put", "k", 1)
    forged = encode_message(
        2,
        chappe_entity(b"x" * 16, 3),
        joined.parts["a"].role.entity,
        encode_command(Clear(chappe_entity(b"x" * 16, 3))),
    )
    message = Message(master_topic(b"s"), forged, COMMAND, sender=b"b" * 16, origin=b"b" * 16, sequence=1)
    (number,) = [each for each, topic in joined.parts["a"].topics.items() if topic == master_topic(b"s")]
    joined.served["a"].clear()
    for _ in range(2):  # reported once
        joined.take("a", [Deliver(number, [message])])
    (told,) = joined.served["a"]
    assert isinstance(told, Report)
    assert isinstance(told.event, CommandRefused)
    assert joined.parts["a"].role.engine.get("k") == 1


def test_what_others_subscribed_to_is_left_for_the_driver(joined: Joined) -> None:
    mine = Deliver(8, [Message(b"t", b"", sender=b"b" * 16)])
    assert list(joined.members["a"].take([mine], joined.now)) == [mine]


def test_writers_wait_while_a_watcher_is_full_and_nothing_is_read(joined: Joined) -> None:
    member, part = joined.members["b"], joined.parts["b"]
    for watcher in (1, 2):
        if part.handle_full(watcher, True):
            member.handle_full(part.number, True, joined.now)
    assert member.paused
    with pytest.raises(BufferFull):
        joined.write("b", "put", "k", 1)
    assert not part.handle_full(1, False)
    assert part.handle_full(2, False)
    member.handle_full(part.number, False, joined.now)
    assert not member.paused
    joined.write("b", "put", "k", 1)


def test_one_subscriber_that_has_room_again_does_not_speak_for_another(joined: Joined) -> None:
    member = joined.members["a"]
    member.handle_full(1, True, joined.now)
    member.handle_full(2, True, joined.now)
    member.handle_full(1, False, joined.now)
    assert member.paused
    member.handle_full(2, False, joined.now)
    assert not member.paused


def test_a_durable_write_is_told_when_its_commit_is_over() -> None:
    joined = Joined()
    joined.master("a", durable=True)
    joined.clone("b")
    joined.run(1.0)
    joined.served["a"].clear()
    joined.write("b", "put", "k", 1, ticket=5)
    (commit,) = joined.served["a"]
    assert isinstance(commit, Persist)
    assert isinstance(commit.job, StoreCommit)
    assert Resolve(5, None) not in joined.served["b"]
    joined.do("a", joined.members["a"].handle_done(commit.job, None, joined.now))
    assert Resolve(5, None) in joined.served["b"]


def test_nothing_is_left_of_a_part_that_was_closed(joined: Joined) -> None:
    joined.do("b", joined.parts["b"].close(**joined.times))
    assert joined.parts["b"].entries is None
    with pytest.raises(Closed):
        joined.write("b", "put", "k", 1)
    served = len(joined.served["b"])
    joined.write("a", "put", "k", 2)
    joined.run(5.0)
    assert len(joined.served["b"]) == served
    assert not joined.members["b"].has("clone", "s")


@pytest.mark.parametrize("contains", [True, False])
def test_a_defect_of_a_data_store_ends_the_connection_that_brought_it(
    contains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(KvMaster, "handle_message", fail)
    joined = Joined(contains=contains)
    joined.master("a")
    if contains:
        joined.clone("b")
        assert [type(each) for each in joined.reports["a"] if isinstance(each, DefectContained | PeerLost)] == [
            DefectContained, PeerLost,
        ]  # fmt: skip
    else:
        with pytest.raises(RuntimeError, match="a defect"):
            joined.clone("b")


def test_an_endpoint_that_is_asked_alone_tells_of_its_links_and_stores(joined: Joined) -> None:
    joined.write("a", "put", "k", 1)
    endpoint = joined.members["b"].endpoint
    joined.take("b", endpoint.subscribe(1, [LINKS_TOLD], now=joined.now))
    joined.take(
        "a", joined.members["a"].endpoint.subscribe(1, [b"<$>/links"], now=joined.now)
    )  # so that it gets what all get
    joined.run(1.0)
    for number, receiver in ((1, NOBODY), (2, b"a" * 16)):
        joined.take("b", endpoint.publish(ASK_LINKS, ask(number), DATA, receiver, joined.now))
        joined.run(0.1)

    (answer,) = joined.delivered["b"]

    report = parse_report(answer.payload)
    assert report.number == 2
    assert [each.peer for each in report.links] == ["62626262-6262-6262-6262-626262626262"]
    assert report.links[0].received > 0
    assert [(each.name, each.master, each.entries, each.age_s) for each in report.stores] == [("s", True, 1, 0.0)]


def test_a_clone_that_lost_its_master_tells_how_old_it_is(joined: Joined) -> None:
    clone = joined.parts["b"].role
    assert clone.age_s(joined.now) == 0.0

    joined.do("a", joined.parts["a"].close(**joined.times))
    joined.run(20.0)

    assert clone.age_s(joined.now) > 5.0
