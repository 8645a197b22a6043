"""A shared map on bad days: slow links, crowds, clients that take nothing, servers that lie or begin again."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from tests.kv.map_rig import Client, Node, Rig, Server

from chappe.core import Close, Publish, Reply
from chappe.defaults import (
    MAP_BEAT_CROWDED_S,
    MAP_BEAT_S,
    MAP_BEATS_MAX,
    MAP_BODY_BYTES_MAX,
    MAP_STEP_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MIB,
)
from chappe.errors import InvalidOperation, ProtocolError, WriteUnknown
from chappe.kv.backend import Loaded, WriterRow
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say
from chappe.kv.chp.client import MapClientCore
from chappe.kv.chp.events import MapRefused, MapServerFound, MapServerLost
from chappe.kv.chp.server import UPDATES, MapServerCore
from chappe.kv.chp.source import JOIN_S
from chappe.limits import MAP_LIMITS, MapLimits

SMALL = replace(MAP_LIMITS, piece_bytes=400, window=4, takers_max=3, recent_max=20)


class WrongClock:
    """A host's, which differs from the others' by so many seconds."""

    def __init__(self, rig: Rig, wrong_s: float) -> None:
        self.rig = rig
        self.wrong_s = wrong_s

    def wall_ns(self) -> int:
        return self.rig.wall_ns() + int(self.wrong_s * 1e9)


class SlowRig(Rig):
    """What a server answers to ``slow`` passes one message in so many seconds."""

    slow_s = 2.0

    def __init__(self, limits: MapLimits = MAP_LIMITS) -> None:
        super().__init__(limits)
        self.line: deque[tuple[Server, bytes, list[bytes]]] = deque()
        self.bytes_max = 0

    def answer(self, server: Server, identity: bytes, frames: list[bytes]) -> None:
        if not identity.startswith(b"slow"):
            super().answer(server, identity, frames)
            return
        self.line.append((server, identity, frames))
        self.bytes_max = max(self.bytes_max, sum([len(each[2][-1]) for each in self.line]))

    def pass_one(self) -> None:
        self.run(self.slow_s)
        if self.line:
            super().answer(*self.line.popleft())
            self.run()


def fill(server: Server, count: int, body: bytes = b"x") -> None:
    for number in range(count):
        server.core.handle_message(UPDATES, [b"/%d" % number, bytes(8), b"", b"", body], server.rig.now)


def kinds(server: Server, client: str) -> list[int]:
    """The numbers of the messages of chappe that a client was sent."""
    return [message[1][1] for to, message in server.sent if to.startswith(client.encode() + b"/")]


def state_of(client: Client) -> str:
    """As it is now."""
    return client.core.state


# -- slow links --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow_s", [3.5, 7.0, 14.0])
def test_updates_that_take_long_come_over_a_slow_link(slow_s: float) -> None:
    rig = SlowRig()
    server, slow = rig.server(), rig.client("slow")
    rig.slow_s = 0.1
    while slow.core.state != "active" or rig.line:
        rig.pass_one()
    rig.slow_s = slow_s
    server.update([b"/large", bytes(8), b"", b"", bytes(15_000_000)])
    for number in range(10):
        server.update([b"/%d" % number, bytes(8), b"", b"", bytes(200_000)])
    passed = 0
    while len(slow.contents()) < 11:
        rig.pass_one()
        passed += 1
        assert passed < 100

    assert slow.contents() == server.contents()
    assert len([each for _, each in server.sent if len(each[-1]) > 15_000_000]) <= 3


def test_a_hundred_thousand_keys_come_whole_over_a_slow_link_while_others_write() -> None:
    rig = SlowRig()
    server = rig.server()
    fill(server, 100_000)
    writer, slow = rig.client("writer", subtrees=(b"/new/",)), rig.client("slow")
    rig.run(0.1)
    seen = set()
    passed = 0
    while slow.core.state != "active" or rig.line:
        rig.pass_one()
        passed += 1
        if slow.core.state != "active":
            writer.write((b"/new/%d" % passed, b"y"))
        seen.add((slow.core.state, len(slow.contents()) > 0))
        assert passed < 200

    assert slow.contents() == server.contents()
    assert len(slow.contents()) > 100_000
    assert seen == {("synchronising", False), ("active", True)}
    assert [type(each) for each in slow.reports] == [MapServerFound]  # it was never taken for lost
    assert kinds(server, "slow").count(16) == 1  # one welcome: the snapshot did not begin anew
    assert rig.bytes_max <= (MAP_LIMITS.window + 1) * MAP_LIMITS.piece_bytes


def test_a_map_can_be_read_while_it_is_brought_up_to_date_and_changes_in_one_step() -> None:
    rig = SlowRig(SMALL)
    server = rig.server()
    fill(server, 20)
    slow = rig.client("slow")
    while slow.core.state != "active":
        rig.pass_one()
    before = slow.contents()
    rig.lose = lambda source, target, frames: target == "slow"
    rig.run(2)
    fill(server, 200, b"changed")
    rig.line.clear()
    rig.lose = lambda source, target, frames: False
    shown = []
    while slow.core.state != "active" or len(slow.contents()) < 200:
        rig.pass_one()
        shown.append(slow.contents())

    assert [each for each in shown if each not in (before, server.contents())] == []
    assert len(shown) > 10


def test_a_server_that_dies_in_the_midst_of_a_snapshot_is_lost_within_seconds() -> None:
    rig = SlowRig(SMALL)
    server = rig.server()
    fill(server, 200)
    slow = rig.client("slow", servers=("one", "two"))
    for _ in range(3):
        rig.pass_one()
    assert slow.core.state == "synchronising"
    rig.line.clear()
    rig.kill("one")
    rig.run(6)
    assert state_of(slow) == "connecting"
    two = rig.server("two")
    fill(two, 5)
    rig.slow_s = 0.1
    for _ in range(50):
        rig.pass_one()

    assert slow.contents() == two.contents()


# -- crowds ------------------------------------------------------------------------------------------------------------


def under_way(server: Server) -> int:
    """Bytes that were sent to clients of chappe and not taken, as the server counts them."""
    held: int = server.core.under_way
    return held


def test_a_crowd_of_clients_gets_its_snapshots_in_turn() -> None:
    rig = Rig(SMALL)
    server = rig.server()
    fill(server, 100)
    rig.lose = lambda source, target, frames: target.startswith("client")
    crowd = [rig.client(f"client{number}") for number in range(60)]
    rig.run(0.2)
    rig.lose = lambda source, target, frames: False
    most = 0
    for _ in range(3000):
        rig.run(0.01)
        most = max(most, under_way(server))
        if all(each.core.state == "active" for each in crowd):
            break

    assert [each.contents() for each in crowd] == [server.contents()] * 60
    assert [each.reports for each in crowd if any(isinstance(report, MapServerLost) for report in each.reports)] == []
    assert most <= SMALL.takers_max * SMALL.window * SMALL.piece_bytes


def test_who_waits_keeps_its_place_however_often_it_asks() -> None:
    rig = Rig(SMALL)
    server = rig.server()
    fill(server, 100)
    core = server.core

    def hello(client: int, stream: int) -> None:
        frames = say.encode(say.Hello(stream, bytes([client]) * 10, (b"",), b"", 0, 0))
        server.act(core.handle_request(b"client%d/0/0" % client, frames, rig.now))

    for client in range(10):
        hello(client, 1)
    for stream in range(2, 5):
        for client in range(9, 2, -1):
            hello(client, stream)
    order = []
    for _ in range(200):
        for client in range(10):
            taken = sum(to == b"client%d/0/0" % client and each[1][1] != 17 for to, each in server.sent)
            stream = 1 if client < 3 else 4
            frames = say.encode(say.Taken(stream, taken, 0, 0))
            server.act(core.handle_request(b"client%d/0/0" % client, frames, rig.now))
    for to, message in server.sent:
        if message[1][1] == 16 and to not in order:
            order.append(to)

    assert order == [b"client%d/0/0" % client for client in range(10)]
    reasons = {say.from_server(each).reason for _, each in server.sent if each[1][1] == 17}  # type: ignore[union-attr]
    assert reasons == {"busy"}


def test_the_other_server_keeps_its_place_between_two_questions() -> None:
    rig = Rig(replace(SMALL, views_max=1, view_shared_s=0.0))
    server = rig.server()
    core = server.core

    def hello(who: bytes, *, peer: bool = False) -> None:
        frames = say.encode(say.Hello(1, who.ljust(10), (b"",), b"", 0, 0, peer))
        core.handle_request(who, frames, rig.now)
        core.flush(rig.now)

    fill(server, 100)
    hello(b"slow")
    fill(server, 101)
    hello(b"peer", peer=True)
    hello(b"late")
    core.handle_request(b"peer", say.encode(say.Taken(1, 0, 0, 0)), rig.now)  # on its way when it was told to wait
    rig.now += 2.0  # it asks again later
    core.handle_timeout(rig.now)
    core.handle_request(b"slow", say.encode(say.Goodbye(1)), rig.now)
    replies = [each for each in core.flush(rig.now) if isinstance(each, Reply)]

    assert replies[0].to == b"peer"
    assert isinstance(say.from_server(replies[0].message[0]), say.Welcome)


def test_ten_thousand_idle_clients_cost_a_message_of_one_nothing() -> None:
    rig = Rig()
    server = rig.server()
    core = server.core
    for client in range(2000):
        frames = say.encode(say.Hello(1, client.to_bytes(10, "big"), (b"",), b"", 0, 0))
        core.handle_request(client.to_bytes(4, "big"), frames, rig.now)
    for _ in range(200):
        for client in range(2000):
            core.handle_request(client.to_bytes(4, "big"), say.encode(say.Taken(1, 0, 0, 0)), rig.now)
        core.flush(rig.now)
    while core._streams.next_timeout() < rig.now:
        core.flush(rig.now)
    looked = 0
    original = core._streams._next

    def look(*args: object) -> object:
        nonlocal looked
        looked += 1
        return original(*args)

    core._streams._next = look
    for _ in range(10):
        core.handle_request(bytes(4), say.encode(say.Taken(1, 0, 0, 0)), rig.now)
        core.flush(rig.now)

    assert looked <= 10 + len(core._streams._waiting)


def beats(server: Server, seconds: float, more: int = 0, step_s: float = 0.005) -> list[tuple[float, int, int]]:
    """When a server has beaten, how often it says it does, and how many heard it; ``more`` come in each step."""
    rig, core, found, hearers = server.rig, server.core, [], 0
    until = rig.now + seconds
    while rig.now < until:
        rig.now += step_s
        for _ in range(more):
            hearers += 1
            core.handle_subscription(chp.HUGZ, True, rig.now)
        if core.next_timeout() > rig.now:
            continue
        for effect in core.handle_timeout(rig.now):
            if isinstance(effect, Publish):
                beat = chp.beat_of(chp.decode_update(effect.message))
                assert beat is not None
                found.append((rig.now, beat.every_ms, hearers))
    return found


def test_a_crowd_that_comes_is_not_welcomed_one_by_one() -> None:
    rig = Rig()
    server = rig.server()

    coming = beats(server, 5.0, more=10)  # 10,000 clients

    early = [hearers for _, _, hearers in coming if hearers <= MAP_BEATS_MAX]
    assert sum(early) <= 1.25 * 4.0 * MAP_BEATS_MAX  # 4 s; more come between two beats
    assert max(later - earlier for (earlier, _, _), (later, _, _) in pairwise(coming)) <= MAP_BEAT_CROWDED_S + 0.01
    assert beats(server, 5.0)[-1][1] == 1000 * MAP_BEAT_CROWDED_S
    for (earlier, every_ms, _), (later, _, _) in pairwise(coming):  # each says when the next one comes at the latest
        assert later - earlier <= every_ms / 1000 + 0.01

    for _ in range(9_990):
        server.core.handle_subscription(chp.HUGZ, False, rig.now)
    beats(server, MAP_BEAT_CROWDED_S)

    assert [every_ms for _, every_ms, _ in beats(server, 1.0)] == [1000 * MAP_BEAT_S] * 4


def test_one_who_comes_alone_is_welcomed_at_once() -> None:
    rig = Rig()
    server = rig.server()
    beats(server, 1.1)

    assert len(beats(server, 0.03, more=1)) == 1


def test_what_somebody_still_wants_is_published() -> None:
    rig = Rig()
    server = rig.server()
    for _ in range(2):
        server.core.handle_subscription(b"/a", True, rig.now)
    server.core.handle_subscription(b"/a", False, rig.now)
    server.update([b"/a/b", bytes(8), b"", b"", b"one"])
    server.core.handle_subscription(b"/a", False, rig.now)
    server.update([b"/a/b", bytes(8), b"", b"", b"two"])

    assert [frames[4] for frames in server.on_air if frames[0] == b"/a/b"] == [b"one"]


def crowd_of(server: Server, count: int) -> list[bytes]:
    """So many clients of chappe that have all there is."""
    rig, core = server.rig, server.core
    names = [number.to_bytes(4, "big") for number in range(count)]
    for name in names:
        hello = say.Hello(1, b"crowd" + name + b"!", (b"",), core.ledger.epoch, core.ledger.sequence, 0)
        core.handle_request(name, say.encode(hello), rig.now)
    while core.next_timeout() < rig.now:
        core.flush(rig.now)
    return names


def test_a_server_tells_a_crowd_in_parts_so_that_all_else_comes_in_time() -> None:
    rig = Rig()
    server = rig.server()
    crowd = crowd_of(server, 1_000)
    server.core.handle_message(UPDATES, [b"/a", bytes(8), b"", b"", b"one"], rig.now)
    goes: list[list[bytes]] = []
    while not goes or server.core.next_timeout() < rig.now:
        goes.append([effect.to for effect in server.core.flush(rig.now) if isinstance(effect, Reply)])

    assert max(map(len, goes)) <= 250
    assert sorted(each for go in goes for each in go) == crowd


def test_nobody_in_a_crowd_is_passed_over_while_news_come() -> None:
    rig = Rig()
    server = rig.server()
    crowd = crowd_of(server, 750)
    told = Counter[bytes]()
    for number in range(9):
        server.core.handle_message(UPDATES, [b"/a", bytes(8), b"", b"", b"%d" % number], rig.now)
        told.update(effect.to for effect in server.core.flush(rig.now) if isinstance(effect, Reply))

    assert [told[each] for each in crowd] == [3] * 750


def test_a_snapshot_in_the_guide_s_way_ends_when_the_client_finds_out_who_serves_it() -> None:
    rig = Rig(SMALL)
    server = rig.server()
    fill(server, 1_000)
    core, taken = server.core, []
    for number in range(SMALL.takers_max):
        core.handle_request(b"early%d" % number, chp.icanhaz(b""), rig.now)
    rig.now += 0.1
    core.handle_timeout(rig.now)
    for number in range(SMALL.takers_max):
        hello = say.Hello(1, b"%010d" % number, (b"",), b"", 0, 0)
        core.handle_request(b"early%d" % number, say.encode(hello), rig.now)
    core.handle_request(b"guide", chp.icanhaz(b""), rig.now)
    rig.now += 0.1
    taken = [effect.to for effect in core.handle_timeout(rig.now) if isinstance(effect, Reply)]

    assert taken == [b"guide"]


def test_a_client_of_a_server_that_many_hear_says_less_often_that_it_lives() -> None:
    rig = Rig()
    server = rig.server()
    client = rig.client()
    rig.run(1.0)
    core = server.core
    asked: list[list[bytes]] = []

    def count(source: str, target: str, frames: list[bytes]) -> bool:
        asked.extend([frames] if source == "client" else [])
        return False

    rig.lose = count
    rig.run(6.0)
    often = len(asked)
    for _ in range(10_000):
        core.handle_subscription(chp.HUGZ, True, rig.now)
    rig.run(2.0)
    asked.clear()
    for _ in range(600):
        rig.run(0.01)
        assert client.core.next_timeout() > rig.now  # or its loop would not sleep

    assert (often, len(asked)) == (6, 2)
    assert client.core.state == "active"


def test_a_client_waits_for_a_busy_server_as_long_as_that_is_heard() -> None:
    rig = Rig()
    server = rig.server()
    for _ in range(10_000):
        server.core.handle_subscription(chp.HUGZ, True, rig.now)
    rig.lose = lambda source, target, frames: source == "one" and frames[0] == say.MARK
    client = rig.client()
    rig.run(10.0)
    lost = [each for each in client.reports if isinstance(each, MapServerLost)]
    rig.lose = lambda source, target, frames: False
    rig.run(6.0)

    assert lost == []
    assert client.core.state == "active"


def test_a_client_that_lives_and_takes_nothing_is_given_up() -> None:
    rig = Rig(replace(SMALL, taker_s=5.0))
    server = rig.server()
    fill(server, 200)

    def lie(source: str, target: str, frames: list[bytes]) -> bool:
        if source == "stuck" and frames[0] == say.MARK and frames[1][1] == 2:
            taken = say.from_client(frames)
            assert isinstance(taken, say.Taken)
            identity = rig.nodes["stuck"].identity(0)
            server.request(identity, say.encode(say.Taken(taken.stream, 0, 0, 0)))
            return True
        return False

    rig.lose = lie
    rig.client("stuck")
    rig.run(4)
    assert server.core.clients == 1
    assert kinds(server, "stuck").count(18) <= SMALL.window
    rig.run(4)
    reasons = [say.from_server(each) for to, each in server.sent if each[1][1] == 17]

    assert say.Refused(1, "full") in reasons


def test_what_is_under_way_to_all_is_bounded() -> None:
    limits = replace(SMALL, streams_bytes=2000, takers_max=100)
    rig = Rig(limits)
    server = rig.server()
    fill(server, 200)
    rig.lose = lambda source, target, frames: source.startswith("client") and frames[1][1] == 2  # no Taken arrives
    for number in range(20):
        rig.client(f"client{number}")
    rig.run(0.5)
    assert under_way(server) <= limits.streams_bytes + 20 * limits.piece_bytes
    rig.lose = lambda source, target, frames: False
    rig.run(40)

    assert all(len(each.contents()) == 200 for each in rig.nodes.values() if isinstance(each, Client))
    assert server.core.invariants() == []


# -- large things ------------------------------------------------------------------------------------------------------


def test_no_message_is_larger_than_sockets_take() -> None:
    rig = Rig()
    server = rig.server()
    writer, reader = rig.client("writer"), rig.client("reader")
    rig.run(0.1)
    huge = b"x" * MAP_BODY_BYTES_MAX
    large = MAP_STEP_BYTES_MAX // 4 - 100
    asked: list[int] = []
    original = rig.ask

    def ask(node: Node, place: int, frames: list[bytes]) -> None:
        asked.append(len(frames[-1]))
        original(node, place, frames)

    rig.ask = ask  # type: ignore[method-assign]
    steps = [((b"/small", b"y" * 200_000),), ((b"/huge", huge),), ((b"/small/2", b"y" * 200_000),),
             tuple([(b"/%d" % number, b"z" * large) for number in range(4)])]  # fmt: skip
    tickets = []
    for sets in steps:
        writer.tickets += 1
        tickets.append(writer.tickets)
        step = say.Step(tuple([(key, body, 0, b"") for key, body in sets]))
        assert writer.core.write(step, writer.tickets, rig.now) == []
    writer.act([])
    rig.run(1)
    late = rig.client("late")
    rig.run(1)

    assert [writer.outcomes[ticket] for ticket in tickets] == [True] * 4
    assert late.contents() == reader.contents() == server.contents()
    assert len(late.contents()) == 7
    assert max(asked) < MESSAGE_BYTES_MAX
    assert max(len(message[-1]) for _, message in server.sent) < MESSAGE_BYTES_MAX


@pytest.mark.parametrize(
    "sets",
    [
        ((b"HUGZ", b"x", 0, b""),), ((b"k" * 20_000, b"x", 0, b""),), ((b"k", b"x" * 16 * MIB, 0, b""),),
        ((b"k", b"x", 0, b"no newline"),), ((b"k", b"x", 0, b"a" * 70_000 + b"=1\n"),),
        tuple([(b"%d" % number, b"x" * 100, 0, b"") for number in range(120_000)]),
    ],
)  # fmt: skip
def test_a_step_beyond_the_bounds_is_refused_and_the_next_one_done(
    sets: tuple[tuple[bytes, bytes, int, bytes], ...],
) -> None:
    rig = Rig()
    server = rig.server()
    client = rig.client()
    rig.run(0.1)
    client.core.write(say.Step(sets), 77, rig.now)
    ticket = client.write((b"/a", b"1"))
    rig.run(0.1)

    assert isinstance(client.outcomes[77], InvalidOperation)
    assert client.outcomes[ticket] is True
    assert server.contents() == {"/a": b"1"}


def test_subtrees_are_bounded_and_so_are_subscriptions() -> None:
    rig = Rig()
    server = rig.server()
    for subtrees in ((), (b"x",) * 2000, (b"x" * 1000,), tuple([b"x" * 400] * 500)):
        server.request(b"client/0/0", say.encode(say.Hello(3, bytes(10), subtrees, b"", 0, 0)))
    assert [say.from_server(each) for _, each in server.sent] == [say.Refused(3, "full")] * 4
    for number in range(5000):
        server.act(server.core.handle_subscription(b"/%d/" % number, True, rig.now))
    server.update([b"/elsewhere", bytes(8), b"", b"", b"x"])

    assert len(server.core.ledger.listened) <= MAP_LIMITS.listened_max
    assert [each[0] for each in server.on_air if each[0] != b"HUGZ"] == [b"/elsewhere"]  # rather all than too little


def test_who_wanted_everything_and_goes_takes_nothing_from_those_beyond_the_bound() -> None:
    rig = Rig(replace(MAP_LIMITS, listened_max=2))
    server = rig.server()
    for prefix in (b"/a", b"/b", b"/c", b""):
        server.act(server.core.handle_subscription(prefix, True, rig.now))
    server.act(server.core.handle_subscription(b"", False, rig.now))
    for key in (b"/a", b"/b", b"/c"):
        server.update(chp.encode_update(chp.Update(key, 0, bytes(16), b"", b"x")))
    assert [frames[0] for frames in server.on_air if frames[0] != chp.HUGZ] == [b"/a", b"/b", b"/c"]


# -- disks -------------------------------------------------------------------------------------------------------------


def test_what_waits_for_a_disk_that_stands_still_is_bounded() -> None:
    limits = replace(MAP_LIMITS, undurable_max=100)
    rig = Rig(limits)
    server = rig.server(loaded=Loaded())
    client = rig.client()
    rig.run(0.1)
    while not server.core.crowded:
        server.update([b"/a", bytes(8), b"", b"", b"x"])
    ticket = client.write((b"/b", b"1"))
    rig.run(5)
    assert client.core.sources[0].refused == "full"
    assert ticket not in client.outcomes
    assert server.core.ledger.commits.count <= 102
    for _ in range(50):
        if server.commits:
            server.commit()
        rig.run(0.2)

    assert client.outcomes[ticket] is True
    assert client.contents() == server.contents()


# -- servers that lie, or are others -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["count", "checksum", "entries", "updates"])
def test_what_is_malformed_in_a_stream_is_asked_for_again_and_nothing_is_missing(kind: str) -> None:
    rig = Rig(SMALL)
    server = rig.server()
    fill(server, 30)
    lied = 0
    original = rig.answer

    def answer(server: Server, identity: bytes, frames: list[bytes]) -> None:
        nonlocal lied
        message = say.from_server(frames)
        bad = say.encode_entries([(b"k",)])  # type: ignore[list-item]
        if lied < 2:
            lie: say.FromServer | None = None
            if isinstance(message, say.Whole) and kind in ("count", "checksum"):
                fields = {"count": message.count + 1} if kind == "count" else {"checksum": message.checksum ^ 1}
                lie = msgspec.structs.replace(message, **fields)
            elif isinstance(message, say.Piece) and kind == "entries":
                lie = msgspec.structs.replace(message, entries=bad)
            elif isinstance(message, say.Changes) and kind == "updates":
                lie = msgspec.structs.replace(message, updates=bad)
            if lie is not None:
                lied += 1
                frames = say.encode(lie)
        original(server, identity, frames)

    rig.answer = answer  # type: ignore[method-assign]
    client = Tolerant(rig, "client", ["one"])
    rig.run(5)
    server.update([b"/new", bytes(8), b"", b"", b"x"])
    rig.run(5)

    assert lied == 2
    assert client.malformed in (1, 2)  # what follows on a stream that is given up is not looked at
    assert client.contents() == server.contents()
    assert len(client.contents()) == 31


def test_a_server_that_always_lies_is_not_asked_in_a_circle() -> None:
    rig = Rig(SMALL)
    server = rig.server()
    original = rig.answer

    def answer(server: Server, identity: bytes, frames: list[bytes]) -> None:
        message = say.from_server(frames)
        if isinstance(message, say.Whole):
            frames = say.encode(msgspec.structs.replace(message, count=message.count + 5))
        original(server, identity, frames)

    rig.answer = answer  # type: ignore[method-assign]
    client = Tolerant(rig, "client", ["one"])
    rig.run(10)

    assert 5 <= client.malformed <= 11
    assert kinds(server, "client").count(16) <= 12


class Tolerant(Client):
    """A client whose runtime counts what is malformed, as the real one does."""

    def __init__(self, rig: Rig, name: str, servers: list[str]) -> None:
        super().__init__(rig, name, MapClientCore(servers, (b"",), rig.random()[:10], rig, limits=rig.limits))
        self.malformed = 0
        rig.nodes[name] = self
        self.act(self.core.start(rig.now))

    def answered(self, place: int, frames: list[bytes]) -> None:
        try:
            super().answered(place, frames)
        except ProtocolError:
            self.malformed += 1
            self.act([])


def test_a_server_of_another_map_is_named_and_not_followed() -> None:
    rig = Rig()
    prices = MapServerCore(bytes(16), limits=rig.limits, now=rig.now, clock=rig, name="prices")
    server = Server(rig, "one", prices, [])
    rig.nodes["one"] = server
    server.update([b"/eur", bytes(8), b"", b"", b"1.08"])
    orders, same, any_ = [
        Client(rig, f"{place}", MapClientCore(["one"], (b"",), bytes([place]) * 10, rig, name=name))
        for place, name in enumerate(("orders", "prices", ""))
    ]
    for each in (orders, same, any_):
        rig.nodes[each.name] = each
        each.act(each.core.start(rig.now))
    ticket = orders.write((b"/order", b"x"))
    rig.run(10)

    assert orders.reports == [MapRefused("one", "prices")]
    assert (orders.contents(), orders.core.state, orders.outcomes) == ({}, "connecting", {})
    assert ticket == 1
    assert same.contents() == any_.contents() == server.contents() == {"/eur": b"1.08"}


def test_what_was_written_to_a_server_before_it_was_known_is_not_written_again() -> None:
    rig = Rig()
    server = rig.server()
    rig.lose = lambda source, target, frames: target == "client" and frames[0] in (b"HUGZ", b"/a")
    client = rig.client()
    rig.run(3)
    assert state_of(client) == "active"
    ticket = client.write((b"/a", b"1"))
    rig.run(0.1)
    other = rig.client("other")
    rig.run(0.5)
    other.write((b"/a", b"2"))
    rig.run(0.1)
    rig.lose = lambda source, target, frames: False
    rig.run(3)

    assert client.core.sources[0].chappe
    assert isinstance(client.outcomes[ticket], WriteUnknown)
    assert client.contents() == server.contents() == {"/a": b"2"}


def test_a_step_that_is_for_servers_of_chappe_waits_until_it_is_known_what_the_server_is() -> None:
    rig = Rig()
    server = rig.server()
    rig.lose = lambda source, target, frames: target == "client" and frames[0] == b"HUGZ"  # it stood still
    client = rig.client()
    rig.run(JOIN_S + 0.2)
    assert state_of(client) == "active"
    assert client.core.sources[0].chappe is None
    ticket = client.write((b"/a", b"1"), expected=((b"/a", b""),))
    rig.run(0.1)
    rig.lose = lambda source, target, frames: False
    rig.run(1)

    assert client.core.sources[0].chappe
    assert client.outcomes[ticket] is True
    assert client.contents() == server.contents() == {"/a": b"1"}


def test_what_is_written_before_it_is_known_what_the_server_is_waits_and_is_confirmed() -> None:
    rig = Rig()
    server = rig.server()
    rig.lose = lambda source, target, frames: target == "client" and frames[0] == b"HUGZ"  # not connected yet
    client = rig.client()
    rig.run(JOIN_S + 0.2)
    assert state_of(client) == "active"
    ticket = client.write((b"/a", b"1"))
    rig.run(1)
    assert ticket not in client.outcomes
    assert server.contents() == {}
    rig.lose = lambda source, target, frames: False
    rig.run(1)

    assert client.outcomes[ticket] is True
    assert client.contents() == server.contents() == {"/a": b"1"}


# -- the Guide's servers -----------------------------------------------------------------------------------------------


class Guide(Node):
    """A server that says what a test tells it to."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig, "one", [])
        self.entries: dict[bytes, tuple[int, bytes]] = {}
        self.sequence = 0
        self.asked = 0
        self.beats = False
        rig.nodes["one"] = self

    def set(self, key: bytes, body: bytes) -> None:
        self.sequence += 1
        self.entries[key] = (self.sequence, body)
        self.publish([key, self.sequence.to_bytes(8, "big"), b"", b"", body])

    def publish(self, frames: list[bytes]) -> None:
        client = self.rig.nodes["client"]
        self.rig.post(lambda: client.published(0, frames))
        self.rig.run()

    def begin_again(self) -> None:
        self.entries.clear()
        self.sequence = 0

    def timeout(self) -> None:
        if self.beats and round(self.rig.now * 100) % 100 == 0:
            self.publish_later([b"HUGZ", self.sequence.to_bytes(8, "big"), b"", b"", b""])

    def publish_later(self, frames: list[bytes]) -> None:
        client = self.rig.nodes["client"]
        self.rig.post(lambda: client.published(0, frames))

    def answer(self, node: Node, place: int, frames: list[bytes]) -> None:
        if frames[0] != b"ICANHAZ?":
            return
        self.asked += 1
        connection = node.connections[place]

        def deliver(message: list[bytes]) -> None:
            if node.connections[place] == connection:
                node.answered(place, message)

        for key, (number, body) in [*self.entries.items()]:
            message = [key, number.to_bytes(8, "big"), b"", b"", body]
            self.rig.post(lambda message=message: deliver(message))  # type: ignore[misc]
        end = [b"KTHXBAI", self.sequence.to_bytes(8, "big"), b"", b"", b""]
        self.rig.post(lambda: deliver(end))


@pytest.fixture
def guide() -> Guide:
    rig = Rig()
    made = Guide(rig)
    rig.ask = made.answer  # type: ignore[method-assign]
    client = rig.client("client")
    rig.run(2)
    for number in range(5):
        made.set(b"/%d" % number, b"x")
    rig.run(2)
    assert len(client.contents()) == 5
    return made


def contents(guide: Guide) -> dict[object, bytes]:
    client = guide.rig.nodes["client"]
    assert isinstance(client, Client)
    return client.contents()


def test_numbers_that_go_back_are_another_life_and_its_map_is_taken(guide: Guide) -> None:
    guide.begin_again()
    guide.set(b"/new", b"y")
    guide.rig.run(2)

    assert contents(guide) == {"/new": b"y"}
    guide.set(b"/more", b"y")
    assert contents(guide) == {"/new": b"y", "/more": b"y"}


def test_heartbeats_whose_numbers_go_back_are_another_life_too(guide: Guide) -> None:
    guide.beats = True
    guide.rig.run(3)
    asked = guide.asked
    guide.begin_again()
    guide.rig.run(3)

    assert contents(guide) == {}
    assert guide.asked == asked + 1


def test_numbers_that_jump_to_and_fro_do_not_make_it_ask_all_the_time(guide: Guide) -> None:
    asked = guide.asked
    for _ in range(500):
        guide.publish([b"/0", (9).to_bytes(8, "big"), b"", b"", b"x"])
        guide.publish([b"/0", (3).to_bytes(8, "big"), b"", b"", b"x"])
        guide.rig.run(0.02)

    assert guide.asked - asked <= 11


def test_a_server_that_says_nothing_is_in_doubt_just_once(guide: Guide) -> None:
    source = guide.rig.nodes["client"].core.sources[0]  # type: ignore[attr-defined]
    asked = guide.asked
    for _ in range(20):
        guide.rig.run(1)
        assert not source.doubtful

    assert guide.asked > asked


# -- clocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong_s", [-86_400, 86_400])
def test_a_life_whose_clock_is_wrong_goes_on_where_the_last_one_was(wrong_s: int) -> None:
    rig = Rig()
    server = rig.server(loaded=Loaded())
    client = rig.client()
    rig.run(0.1)
    for number in range(10):
        client.write((b"/%d" % number, b"x"))
        rig.run(0.01)
    rows: list[object] = []
    while server.commits:
        rows += server.commit().operations
    entries = tuple([(f"/{number}", ("x", "", ""), None) for number in range(10)])
    loaded = Loaded(entries, tuple([row for row in rows if isinstance(row, WriterRow)]))
    last = server.core.ledger.sequence
    rig.kill("one")
    core = MapServerCore(b"2" * 16, loaded=loaded, limits=rig.limits, now=rig.now, clock=WrongClock(rig, wrong_s))
    later = Server(rig, "one", core, [])
    rig.nodes["one"] = later
    later.act(core.start(rig.now))
    ticket = client.write((b"/new", b"x"))
    rig.run(3)
    while later.commits:
        later.commit()
    rig.run(1)

    assert core.ledger.sequence > last
    assert client.outcomes[ticket] is True
    assert client.contents() == later.contents()
    assert len(client.contents()) == 11
    assert not chp.RESERVED & {each.encode() for each in client.contents() if isinstance(each, str)}


def test_who_asks_again_and_again_and_takes_nothing_is_not_sent_more_and_more() -> None:
    limits = replace(SMALL, window=8, streams_bytes=100_000)
    rig = Rig(limits)
    server = rig.server()
    core = server.core
    for number in range(100):
        server.update([b"/%03d" % number, bytes(8), b"", b"", b"x" * 300])
    rogue, guide = b"rogue/0/0", b"guide/0/0"
    sent, held = 0, {rogue: 0, guide: 0}
    for number in range(1, 101):
        asked = core.handle_request(rogue, say.encode(say.Hello(number, bytes(10), (b"",), b"", 0, 0)), rig.now)
        asked += core.handle_request(guide, [b"ICANHAZ?", b""], rig.now)
        rig.now += 0.06
        for effect in [*asked, *core.handle_timeout(rig.now), *core.flush(rig.now)]:
            if isinstance(effect, Close):
                held[effect.link] = 0
            elif isinstance(effect, Reply):
                size = sum(len(frame) for message in effect.message for frame in message)
                held[effect.to] += size
                sent += size if effect.to == rogue else 0

    assert max(held.values()) < 2 * limits.window * limits.piece_bytes  # of what waits for it
    assert sent < 4 * limits.window * limits.piece_bytes  # and may be in a queue of the system
    assert 0 < core.under_way < 4 * limits.window * limits.piece_bytes
    core.handle_request(rogue, say.encode(say.Taken(100, 1, 0, 0)), rig.now)
    core.flush(rig.now)
    assert [each for each in core._streams._streams.values() if len(each.sizes) > 1]
    core.handle_gone(rogue, rig.now)
    assert core.under_way == 0
