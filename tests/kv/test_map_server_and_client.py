"""A server and clients of a shared map, both of chappe, over a network without and with losses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kv.map_rig import Client, Rig, Server

from chappe.core import Effect
from chappe.errors import BackendFailure, StorageError
from chappe.kv.backend import Loaded, PutRow, WriterRow
from chappe.kv.chp import stream as say
from chappe.kv.chp.events import MapServerLost
from chappe.kv.chp.ledger import CONFLICT, INVALID
from chappe.kv.chp.recent import RecentUpdates
from chappe.limits import MAP_LIMITS

SMALL = replace(MAP_LIMITS, piece_bytes=200, window=4, recent_max=20, pending_max=10)


def test_a_write_is_confirmed_when_it_is_in_the_map() -> None:
    rig = Rig()
    server = rig.server()
    client = rig.client()
    rig.run(0.1)

    ticket = client.write((b"/a", b"1"))
    rig.run()

    assert client.outcomes[ticket] is True
    assert client.contents() == server.contents() == {"/a": b"1"}
    assert client.core.state == "active"


def test_a_client_of_a_subtree_has_that_subtree_and_misses_nothing() -> None:
    rig = Rig()
    rig.server()
    writer = rig.client("writer")
    reader = rig.client("reader", subtrees=(b"/a/", b"/c/"))
    rig.run(0.1)

    for number in range(100):
        writer.write((f"/{'abc'[number % 3]}/{number}".encode(), b"x"))
    rig.run(3)

    assert set(reader.contents()) == {f"/{'abc'[n % 3]}/{n}" for n in range(100) if n % 3 != 1}
    assert reader.core.position[1] == writer.core.position[1]


def test_a_large_map_comes_whole_and_in_pieces() -> None:
    rig = Rig(SMALL)
    server = rig.server()
    writer = rig.client("writer")
    rig.run(0.1)
    for number in range(500):
        writer.write((f"/{number}".encode(), b"value of %d" % number))
    rig.run(1)
    late = rig.client("late")
    rig.run(1)

    assert late.contents() == server.contents()
    assert len(late.contents()) == 500
    assert sum(each[0].startswith(b"late") for each in server.sent) > 30


def test_a_client_that_takes_nothing_costs_no_more_than_its_window() -> None:
    rig = Rig(SMALL)
    server = rig.server()
    writer = rig.client("writer")
    rig.run(0.1)
    rig.lose = lambda source, target, frames: source == "stuck" and frames[1][1] == 2  # its Taken never arrive
    rig.client("stuck")
    rig.run(0.1)
    for number in range(200):
        writer.write((f"/{number}".encode(), b"value"))
        rig.run(0.01)

    assert sum(each[0].startswith(b"stuck") for each in server.sent) <= SMALL.window + 2
    assert len(writer.contents()) == 200


@pytest.mark.parametrize("kind", [16, 18, 19, 20])
def test_a_message_that_is_lost_is_noticed_and_mended(kind: int) -> None:
    rig = Rig(SMALL)
    server = rig.server()
    writer = rig.client("writer")
    rig.run(0.1)
    for number in range(50):
        writer.write((f"/{number}".encode(), b"value"))
    rig.run(0.1)
    lost = 0

    def lose(source: str, target: str, frames: list[bytes]) -> bool:
        nonlocal lost
        if target == "reader" and frames[0] == say.MARK and frames[1][1] == kind and lost < 2:
            lost += 1
            return True
        return False

    rig.lose = lose
    reader = rig.client("reader")
    rig.run(1)
    for number in range(50, 100):
        writer.write((f"/{number}".encode(), b"value"))
    rig.run(40)

    assert lost == 2
    assert reader.contents() == server.contents()
    assert len(reader.contents()) == 100


def test_steps_that_are_sent_again_are_done_once() -> None:
    rig = Rig()
    server = rig.server()
    client = rig.client()
    rig.run(0.1)
    rig.lose = lambda source, target, frames: target == "client" and frames[0] == say.MARK  # no answers
    ticket = client.write((b"/a", b"1"))
    rig.run(0.1)
    before = server.core.ledger.sequence
    assert ticket not in client.outcomes
    rig.lose = lambda source, target, frames: False
    rig.run(10)

    assert client.outcomes[ticket] is True
    assert server.core.ledger.sequence == before


def test_compare_and_set_of_several_is_done_by_one() -> None:
    rig = Rig()
    rig.server()
    clients = [rig.client(f"client{number}") for number in range(5)]
    rig.run(0.1)
    empty = ((b"/lock", b""),)
    tickets = [client.write((b"/lock", client.name.encode()), expected=empty) for client in clients]
    rig.run()

    outcomes = [client.outcomes[ticket] for client, ticket in zip(clients, tickets, strict=True)]
    assert sorted(outcomes, key=bool) == [False] * 4 + [True]


def test_several_keys_change_in_one_step() -> None:
    rig = Rig(SMALL)
    rig.server()
    writer, reader = rig.client("writer"), rig.client("reader")
    rig.run(0.1)
    sets = tuple([(f"/{number}".encode(), b"x" * 50) for number in range(20)])
    steps: list[int] = []
    original = reader.answered

    def answered(place: int, frames: list[bytes]) -> None:
        original(place, frames)
        steps.append(len(reader.contents()))

    reader.answered = answered  # type: ignore[method-assign]
    writer.write(*sets)
    rig.run(1)

    assert set(steps) <= {0, 20}
    assert len(reader.contents()) == 20


def test_what_has_a_ttl_expires_and_nothing_else_does() -> None:
    rig = Rig()
    server = rig.server()
    client = rig.client()
    rig.run(0.1)
    client.write((b"/for-ever", b"1"))
    client.write((b"/short", b"2"), ttl_ms=2000)
    rig.run(1.5)
    assert set(client.contents()) == {"/for-ever", "/short"}
    rig.run(1)

    assert client.contents() == server.contents() == {"/for-ever": b"1"}
    assert client.told[-1] == (b"/short", b"", b"2")


def test_clients_know_how_long_entries_live_and_are_told_nothing_of_it_when_they_take_a_snapshot_anew() -> None:
    rig = Rig()
    rig.server()
    first = rig.client()
    rig.run(0.1)
    first.write((b"/short", b"2"), ttl_ms=60_000)
    first.write((b"/long", b"1"))
    rig.run(10)
    second = rig.client("second")
    rig.run(1)

    def left_s(key: str) -> list[float | None]:
        found = [each.core.engine.find(key) for each in (first, second)]
        return [each.core.left_s(entry, rig.now) for each, entry in zip((first, second), found, strict=True) if entry]

    assert left_s("/long") == [None, None]
    assert left_s("/short") == [pytest.approx(49, abs=0.5)] * 2
    told = len(second.told)
    second.core.position = (b"", 0)  # it does not know any more where it is
    made: list[Effect] = []
    second.core._current.engage(rig.now, made)
    second.act(made)
    rig.run(1)
    assert left_s("/short") == [pytest.approx(48, abs=0.5)] * 2
    assert len(second.told) == told


def test_a_restarted_server_without_a_backend_is_noticed_and_its_map_taken() -> None:
    rig = Rig()
    rig.server()
    client = rig.client()
    rig.run(0.1)
    client.write((b"/a", b"1"))
    rig.run(0.1)
    rig.kill("one")
    rig.run(3)
    assert isinstance(client.reports[-1], MapServerLost)
    assert client.contents() == {"/a": b"1"}  # what it has can be read on
    rig.server()
    rig.run(3)

    assert client.contents() == {}
    assert client.told[-1] == (b"/a", b"", b"1")
    assert client.core.state == "active"
    ticket = client.write((b"/b", b"2"))
    rig.run(0.1)
    assert client.outcomes[ticket] is True


def test_nothing_is_shown_before_it_is_durable() -> None:
    rig = Rig()
    server = rig.server(loaded=Loaded())
    client, other = rig.client(), rig.client("other")
    rig.run(0.1)
    ticket = client.write((b"/a", b"1"))
    rig.run(1)
    assert ticket not in client.outcomes
    assert other.contents() == {}
    late = rig.client("late")
    rig.run(1)
    assert late.contents() == {}

    commit = server.commit()
    rig.run(1)
    assert client.outcomes[ticket] is True
    assert other.contents() == late.contents() == {"/a": b"1"}
    assert [type(each) for each in commit.operations] == [PutRow, WriterRow, WriterRow]


def test_a_commit_that_fails_is_undone_and_told() -> None:
    rig = Rig()
    server = rig.server(loaded=Loaded())
    client = rig.client()
    rig.run(0.1)
    ticket, next_ticket = client.write((b"/a", b"1")), client.write((b"/b", b"1"))
    rig.run(0.1)
    server.commit(StorageError("no room"))
    rig.run(0.1)

    assert isinstance(client.outcomes[ticket], BackendFailure)
    assert isinstance(client.outcomes[next_ticket], BackendFailure)
    assert server.contents() == client.contents() == {}


def test_what_is_deleted_in_one_step_is_all_that_goes_from_the_backend() -> None:
    rig = Rig()
    entries = tuple([(key, ("1", "", ""), None) for key in ("/a", "/b", "/c")])
    server = rig.server(loaded=Loaded(entries))
    client = rig.client()
    rig.run(0.5)
    assert len(client.contents()) == 3
    client.write((b"/a", b""), (b"/b", b""))
    rig.run(0.1)

    kinds = [type(each).__name__ for each in server.commit().operations]
    assert kinds == ["EraseRow", "EraseRow", "WriterRow", "WriterRow"]


# -- two servers -----------------------------------------------------------------------------------------------------


def pair(rig: Rig) -> tuple[Server, Server, Client]:
    one, two = rig.server("one", peer="two"), rig.server("two", peer="one")
    one.act(one.core.go_active(rig.random(), rig.now))
    client = rig.client(servers=("one", "two"))
    rig.run(1)
    return one, two, client


def test_what_is_confirmed_is_at_both_servers() -> None:
    rig = Rig()
    _, two, client = pair(rig)
    assert two.core.copied
    tickets = [client.write((f"/{number}".encode(), b"x")) for number in range(100)]
    rig.run(0.2)

    assert [client.outcomes[ticket] for ticket in tickets] == [True] * 100
    assert two.contents() == client.contents()


def test_no_write_is_confirmed_that_the_other_server_does_not_have() -> None:
    rig = Rig()
    _, _, client = pair(rig)
    rig.lose = lambda source, target, frames: target == "two" and frames[0] == say.MARK
    ticket = client.write((b"/a", b"x"))
    rig.run(0.3)
    assert ticket not in client.outcomes
    rig.run(2)  # it is given up, and the active goes on alone

    assert client.outcomes[ticket] is True


def test_the_client_goes_over_to_the_other_server_without_a_snapshot() -> None:
    rig = Rig()
    _, two, client = pair(rig)
    client.write((b"/a", b"1"))
    rig.run(0.5)
    rig.kill("one")
    ticket = client.write((b"/b", b"2"))
    rig.run(0.8)
    two.act(two.core.go_active(rig.random(), rig.now))
    sent = len(two.sent)
    rig.run(0.5)

    assert client.outcomes[ticket] is True
    assert client.contents() == two.contents() == {"/a": b"1", "/b": b"2"}
    assert not [each for each in two.sent[sent:] if each[1][1][1] in (18, 19)]  # pieces


def test_the_old_server_comes_back_throws_away_what_nobody_confirmed_and_follows() -> None:
    rig = Rig()
    one, two, client = pair(rig)
    client.write((b"/a", b"1"))
    rig.run(0.5)
    rig.lose = lambda source, target, frames: "one" in (source, target)
    one.update([b"/lost", bytes(8), b"", b"", b"x"])
    rig.run(1)
    two.act(two.core.go_active(rig.random(), rig.now))
    rig.run(1)
    client.write((b"/b", b"2"))
    rig.run(1)
    rig.lose = lambda source, target, frames: False
    one.act([*one.core.go_passive(rig.now), *one.core.follow(rig.now)])
    rig.run(2)

    assert one.contents() == two.contents() == client.contents() == {"/a": b"1", "/b": b"2"}
    assert one.core.copied
    assert one.core.invariants() == two.core.invariants() == []


def test_a_passive_server_says_nothing_of_its_position_before_it_has_the_snapshot() -> None:
    rig = Rig(SMALL)
    one = rig.server("one", peer="two")
    one.act(one.core.go_active(rig.random(), rig.now))
    for number in range(100):
        one.update([b"/%d" % number, bytes(8), b"", b"", b"x"])
    rig.run(0.5)
    rig.now += 100.0  # whoever begins later begins with a higher number
    two = rig.server("two", peer="one")
    told: list[int] = []

    def listen(source: str, target: str, frames: list[bytes]) -> bool:
        if (source, target) == ("two", "one") and frames[0] == say.MARK:
            message = say.from_client(frames)
            if isinstance(message, say.Taken):
                told.append(message.sequence)
        return False

    assert two.core.ledger.sequence > one.core.ledger.sequence
    rig.lose = listen
    two.act([*two.core.go_passive(rig.now), *two.core.follow(rig.now)])
    rig.run(2)

    assert two.contents() == one.contents()
    assert set(told) == {0, one.core.ledger.sequence}


def test_the_latest_updates_that_are_held_are_bounded_in_bytes() -> None:
    limits = replace(MAP_LIMITS, recent_max=1_000, recent_bytes=100_000)
    recent = RecentUpdates(limits)
    recent.begin(0)
    for sequence in range(1, 901):
        recent.add([(b"/k", bytes(10_000 if sequence % 100 < 50 else 10), b"", b"", 0)], sequence)
        held = sum([len(entry[1]) for entry in recent._items])
        assert held <= limits.recent_bytes * 5 // 4

    assert recent.has(899)
    assert recent.after(899, (b"",), 1_000)[1] == 900


def test_the_text_of_a_failure_is_short_however_long_the_key() -> None:
    rig = Rig()
    server = rig.server()
    set_a = (b"/a", b"1", 0, b"")
    texts = []
    for key, code in ((b"\0" * 16_384, CONFLICT), (b"\0" * 16_385, INVALID), (b"HUGZ", INVALID)):
        failure = server.core.ledger._refuse(say.Step((set_a,), ((key, b"1"),)))
        assert failure is not None
        assert failure[0] == code
        texts.append(failure[1])
    too_large = server.core.ledger._refuse(say.Step((set_a,), ((b"/a", bytes(16 << 20)),)))

    assert max(map(len, texts)) < 1_000
    assert too_large is not None
    assert too_large[0] == INVALID


def test_failures_of_many_steps_come_in_several_messages() -> None:
    rig = Rig(replace(SMALL, piece_bytes=2_000))
    server = rig.server()
    client = rig.client()
    rig.run(0.5)
    failing = {client.write((b"/a", b"1"), expected=((b"/a", b"0"),)) for _ in range(200)}
    done = client.write((b"/b", b"1"))
    rig.run(1)
    told = [say.from_server(frames) for _, frames in server.sent if frames[0] == say.MARK]

    assert client.outcomes == {**dict.fromkeys(failing, False), done: True}
    assert max(len(each.failed) for each in told if isinstance(each, say.Changes)) < 50
