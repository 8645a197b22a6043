"""A server and a client of a shared map with programs that speak only the Guide's protocol."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from tests.kv.map_rig import Client, Rig, Server

from chappe.errors import InvalidOperation
from chappe.kv.chp import messages as chp
from chappe.kv.chp.client import PLAIN_WINDOW
from chappe.kv.chp.events import MapActive
from chappe.kv.chp.sessions import SESSION
from chappe.kv.chp.stream import Step
from chappe.limits import MAP_LIMITS

VECTORS = Path(__file__).parent.parent / "vectors" / "clone"
SMALL = replace(MAP_LIMITS, chunk=10, takers_max=3, asks_max=50, pending_max=10)


def kvset(key: bytes, body: bytes, *, uuid: bytes = b"", properties: bytes = b"") -> list[bytes]:
    return [key, bytes(8), uuid, properties, body]


def numbers(frames: list[list[bytes]]) -> list[int]:
    return [int.from_bytes(each[1], "big") for each in frames]


def asked(server: Server, client: bytes, subtree: bytes = b"") -> list[list[bytes]]:
    """What the server answers to a request."""
    server.rig.nodes.setdefault(client.decode().split("/")[0], _Plain(server.rig, "plain", ["one"]))
    before = len(server.sent)
    server.request(client, [b"ICANHAZ?", subtree])
    server.rig.run(0.2)
    return [message for to, message in server.sent[before:] if to == client]


class _Plain(Client):
    def __init__(self, rig: Rig, name: str, servers: list[str]) -> None:
        self.rig, self.name, self.servers, self.connections, self.up = rig, name, servers, [0], True
        self.prefixes = [[b""]]
        self.heard: list[list[bytes]] = []

    def published(self, place: int, frames: list[bytes]) -> None:
        self.heard.append(frames)

    def answered(self, place: int, frames: list[bytes]) -> None:
        pass

    def timeout(self) -> None:
        pass


# -- our server --------------------------------------------------------------------------------------------------------


def test_what_the_original_publishes_for_each_write_we_publish_too() -> None:
    probe = json.loads((VECTORS / "model5-probe.json").read_text())
    rig = Rig()
    server = rig.server()
    server.act(server.core.handle_subscription(b"", True, rig.now))
    first = len(server.on_air)
    written = [[bytes.fromhex(frame) for frame in each["frames_hex"]] for each in probe["kvset_in_order"]]
    theirs = [[bytes.fromhex(frame) for frame in each] for each in probe["published_in_order"][: len(written)]]
    for frames in written:
        server.update(frames)
    ours = [frames for frames in server.on_air[first:] if frames[0] != b"HUGZ"]

    assert [chp.decode_update(each) for each in ours] == [
        structs.replace(chp.decode_update(each), sequence=numbers(ours)[0] + place) for place, each in enumerate(theirs)
    ]


def test_a_snapshot_is_whole_however_large_and_ends_with_the_last_sequence() -> None:
    rig = Rig(SMALL)
    server = rig.server()
    for number in range(2000):
        server.update(kvset(b"/a/%d" % number, b"x"))
    server.update(kvset(b"/b/1", b"y"))
    found = asked(server, b"plain/0/0", b"/a/")

    assert len(found) == 2001
    assert {each[0] for each in found[:-1]} == {b"/a/%d" % number for number in range(2000)}
    assert found[-1] == chp.kthxbai(server.core.ledger.sequence, b"/a/")


def test_ten_thousand_who_ask_at_once_are_answered_in_turn_or_dropped() -> None:
    rig = Rig(SMALL)
    server = rig.server()
    rig.nodes["plain"] = _Plain(rig, "plain", ["one"])
    server.update(kvset(b"/a", b"x"))
    for number in range(1000):
        server.request(b"plain/0/%d" % number, [b"ICANHAZ?", b""])
    assert server.core.clients <= SMALL.asks_max + SMALL.takers_max
    rig.run(2)

    assert len({to for to, _ in server.sent}) == SMALL.asks_max
    assert server.core.clients == 0


def test_who_never_takes_its_snapshot_is_given_up() -> None:
    rig = Rig(SMALL)
    server = rig.server()
    for number in range(100):
        server.update(kvset(b"/%d" % number, b"x"))
    server.taking = False
    found = asked(server, b"plain/0/0")
    assert len(found) == SMALL.chunk
    rig.run(SMALL.taker_s + 1)

    assert server.core.clients == 0


def test_malformed_messages_end_nothing() -> None:
    rig = Rig()
    server = rig.server()
    for frames in ([], [b"ICANHAZ?"], [b"x"] * 9, [b"CHAPPE", b"\xff"], [b"CHAPPE"], kvset(b"HUGZ", b"x")[:4]):
        server.request(b"plain/0/0", list(frames))
        server.update(list(frames))
    server.update(kvset(b"HUGZ", b"x"))
    server.update(kvset(b"KTHXBAI", b"x"))
    server.update(kvset(b"/a", b"x"))

    assert server.contents() == {"/a": b"x"}
    assert server.core.malformed == 14


def test_a_later_life_has_higher_sequences() -> None:
    rig = Rig()
    server = rig.server()
    server.update(kvset(b"/a", b"x"))
    before = server.core.ledger.sequence
    rig.run(1)

    assert rig.server().core.ledger.sequence > before


def test_a_snapshot_has_the_moment_of_expiry_and_an_expiry_is_a_delete() -> None:
    rig = Rig()
    server = rig.server()
    server.act(server.core.handle_subscription(b"", True, rig.now))
    server.update(kvset(b"/a", b"x", properties=b"owner=me\nttl=60\n"))
    server.update(kvset(b"/b", b"x", uuid=bytes(16)))
    entry = asked(server, b"plain/0/0", b"/a")[0]
    name, _, moment = entry[3].rpartition(b"ttl=")
    assert name == b"owner=me\n"
    assert len(moment) == 14  # 13 digits and the newline
    rig.run(61)

    assert server.contents() == {"/b": b"x"}
    assert [each for each in server.on_air if each[0] == b"/a"][-1][4] == b""


# -- our server as the passive one of two ------------------------------------------------------------------------------


def passive(rig: Rig) -> Server:
    """One whose partner is a program of the Guide's, active, with one key."""
    server = rig.server("one", peer="other")
    rig.run()
    server.published(0, [b"HUGZ", (5).to_bytes(8, "big"), b"", b"", b""])
    server.answered(0, [b"/old", (1).to_bytes(8, "big"), b"u" * 16, b"", b"1"])
    server.answered(0, [b"KTHXBAI", (5).to_bytes(8, "big"), b"", b"", b""])
    assert server.core.copied
    return server


def from_active(server: Server, sequence: int, frames: list[bytes]) -> None:
    server.published(0, [frames[0], sequence.to_bytes(8, "big"), *frames[2:]])


def test_what_the_active_passed_on_is_not_applied_again() -> None:
    rig = Rig()
    server = passive(rig)
    server.update(kvset(b"/a", b"1", uuid=b"a" * 16))
    from_active(server, 6, kvset(b"/a", b"1", uuid=b"a" * 16))
    from_active(server, 7, kvset(b"/b", b"1", uuid=b"b" * 16))  # the active was faster
    server.update(kvset(b"/b", b"1", uuid=b"b" * 16))
    from_active(server, 8, kvset(b"/b", b"2", uuid=b"c" * 16))
    server.act(server.core.go_active(rig.random(), rig.now))

    assert server.contents() == {"/old": b"1", "/a": b"1", "/b": b"2"}
    assert server.reports[-1] == MapActive(0)
    assert server.core.ledger.sequence == 8


def test_what_came_while_nobody_was_active_is_taken_over_in_order_with_its_ttl() -> None:
    rig = Rig()
    server = passive(rig)
    rig.run(1)
    server.update(kvset(b"/a", b"1"))  # without a UUID, which is legal
    server.update(kvset(b"/a", b"2", uuid=b"d" * 16, properties=b"ttl=10\n"))
    server.update(kvset(b"/old", b"", uuid=b"e" * 16))
    rig.run(5)
    server.act(server.core.handle_subscription(b"", True, rig.now))
    server.act(server.core.go_active(rig.random(), rig.now))

    assert server.contents() == {"/a": b"2"}
    assert [frames[4] for frames in server.on_air if frames[0] != b"HUGZ"] == [b"1", b"2", b""]
    rig.run(11)
    assert server.contents() == {}


def test_what_the_active_never_got_does_not_undo_what_came_later() -> None:
    rig = Rig()
    server = passive(rig)
    server.update(kvset(b"/k", b"old", uuid=b"a" * 16))
    rig.run(MAP_LIMITS.pending_s + 1)
    from_active(server, 6, kvset(b"/k", b"new", uuid=b"b" * 16))
    server.act(server.core.go_active(rig.random(), rig.now))

    assert server.contents() == {"/old": b"1", "/k": b"new"}


def test_what_is_pending_is_bounded() -> None:
    rig = Rig(SMALL)
    server = passive(rig)
    for number in range(100):
        server.update(kvset(b"/%d" % number, b"x"))

    assert len(server.core.pending) == SMALL.pending_max
    assert server.core.pending.dropped == 90


def test_a_passive_server_expires_nothing_and_answers_nobody() -> None:
    rig = Rig()
    server = passive(rig)
    from_active(server, 6, kvset(b"/a", b"1", properties=b"ttl=2\n", uuid=b"a" * 16))
    rig.run(4)
    assert "/a" in server.contents()
    assert asked(server, b"plain/0/0") == []
    from_active(server, 7, kvset(b"/a", b"", properties=b"ttl=1795222026182\n", uuid=b"a" * 16))

    assert server.contents() == {"/old": b"1"}


def test_a_partner_that_dies_during_the_snapshot_is_asked_again() -> None:
    rig = Rig()
    server = rig.server("one", peer="other")
    rig.run()
    server.published(0, [b"HUGZ", (5).to_bytes(8, "big"), b"", b"", b""])
    server.answered(0, [b"/half", (1).to_bytes(8, "big"), b"", b"", b"1"])
    rig.run(8)
    server.published(0, [b"HUGZ", (9).to_bytes(8, "big"), b"", b"", b""])
    server.answered(0, [b"KTHXBAI", (9).to_bytes(8, "big"), b"", b"", b""])

    assert server.contents() == {}
    server.act(server.core.go_active(rig.random(), rig.now))  # without a snapshot too: no fault


# -- our client --------------------------------------------------------------------------------------------------------


@pytest.fixture
def client() -> Client:
    rig = Rig()
    client = rig.client(subtrees=(b"/c/",))
    rig.run()
    return client


def hugz(sequence: int) -> list[bytes]:
    return [b"HUGZ", sequence.to_bytes(8, "big"), b"", b"", b""]


def kvpub(key: bytes, sequence: int, body: bytes, uuid: bytes = b"") -> list[bytes]:
    return [key, sequence.to_bytes(8, "big"), uuid, b"", body]


def test_a_client_asks_when_the_subscription_works_and_discards_what_the_snapshot_has(client: Client) -> None:
    rig = client.rig
    assert client.core.state == "connecting"
    client.published(0, hugz(3))
    client.published(0, kvpub(b"/c/a", 4, b"old"))
    client.published(0, kvpub(b"/c/b", 7, b"later"))
    client.answered(0, kvpub(b"/c/a", 5, b"new"))
    client.answered(0, kvpub(b"/d/x", 6, b"of another subtree"))
    client.answered(0, chp.kthxbai(6, b""))
    assert client.contents() == {"/c/a": b"new", "/c/b": b"later"}
    client.published(0, kvpub(b"/c/a", 6, b"old again"))
    client.published(0, kvpub(b"HUGZILLA", 8, b"x"))
    client.published(0, hugz(50))
    client.published(0, kvpub(b"/c/b", 9, b""))
    rig.run(1)

    assert client.contents() == {"/c/a": b"new"}  # HUGZ has masked nothing


def test_a_key_deleted_while_the_client_was_away_goes_with_the_next_snapshot(client: Client) -> None:
    client.published(0, hugz(3))
    client.answered(0, kvpub(b"/c/a", 1, b"x"))
    client.answered(0, chp.kthxbai(3, b""))
    client.rig.run(6)  # silence
    client.published(0, hugz(9))
    client.answered(0, kvpub(b"/c/b", 1, b"y"))
    client.answered(0, chp.kthxbai(9, b""))

    assert client.contents() == {"/c/b": b"y"}
    assert client.told == [(b"/c/a", b"x", b""), (b"/c/b", b"y", b""), (b"/c/a", b"", b"x")]


def test_a_server_without_heartbeats_is_asked_all_the_same(client: Client) -> None:
    client.rig.run(2)
    client.answered(0, chp.kthxbai(0, b""))

    assert client.core.state == "active"
    assert client.connections[0] >= 1


def test_a_write_is_confirmed_when_it_comes_back(client: Client) -> None:
    rig = client.rig
    server = rig.server()
    server.up = False
    client.published(0, hugz(3))
    client.answered(0, chp.kthxbai(3, b""))
    ticket = client.write((b"/c/a", b"1"))
    outside = client.write((b"/elsewhere", b"1"))
    both = client.write((b"/c/a", b"1"), (b"/c/b", b"1"))
    expecting = client.write((b"/c/a", b"1"), expected=((b"/c/a", b""),))
    assert ticket not in client.outcomes
    assert client.outcomes[outside] is True
    assert type(client.outcomes[both]) is type(client.outcomes[expecting]) is InvalidOperation
    uuid = chp.uuid_of(client.core.session, 1)
    client.published(0, kvpub(b"/c/a", 4, b"1", uuid))
    assert client.outcomes[ticket] is True
    lost = client.write((b"/c/b", b"1"))
    rig.run(6)

    assert type(client.outcomes[lost]).__name__ == "WriteUnknown"


def test_a_value_that_ends_with_its_client_is_not_written_where_it_would_stay(client: Client) -> None:
    rig = client.rig
    server = rig.server()
    server.up = False
    client.published(0, hugz(3))
    client.answered(0, chp.kthxbai(3, b""))
    server.up = True
    client.act(client.core.write(Step(((b"/c/a", b"1", 0, SESSION),)), 1, rig.now))
    rig.run()

    assert type(client.outcomes[1]) is InvalidOperation
    assert "not one of chappe" in str(client.outcomes[1])
    assert server.contents() == {}


def test_few_writes_are_under_way_at_once_and_say_that_they_stay(client: Client) -> None:
    rig = client.rig
    server = rig.server()
    server.up = False
    client.published(0, hugz(3))
    client.answered(0, chp.kthxbai(3, b""))
    written: list[list[bytes]] = []
    server.update = written.append  # type: ignore[assignment, method-assign]
    tickets = [client.write((b"/c/%d" % n, b"1")) for n in range(PLAIN_WINDOW + 10)]
    rig.run(0)
    assert len(written) == PLAIN_WINDOW
    assert written[0][3] == b"ttl=0\n"
    for number, frames in enumerate(list(written)):
        client.published(0, [frames[0], (number + 4).to_bytes(8, "big"), *frames[2:]])
    rig.run(0)
    assert len(written) == len(tickets)
    assert sum(each in client.outcomes for each in tickets) == PLAIN_WINDOW


def test_a_server_of_another_program_without_heartbeats_takes_the_place_of_ours() -> None:
    rig = Rig()
    server = rig.server()
    client = rig.client(subtrees=(b"/c/",))
    server.update(kvset(b"/c/a", b"1"))
    rig.run(1)
    assert client.contents() == {"/c/a": b"1"}
    server.up = False
    rig.run(3)
    client.answered(0, kvpub(b"/c/b", 1, b"y"))
    client.answered(0, chp.kthxbai(1, b""))
    assert client.contents() == {"/c/b": b"y"}
    client.published(0, kvpub(b"/c/c", 2, b"z"))
    assert client.contents() == {"/c/b": b"y", "/c/c": b"z"}


def test_a_server_of_ours_that_publishes_before_its_heartbeat_is_followed_at_once() -> None:
    rig = Rig()
    server = rig.server()
    rig.client()
    rig.run(0.3)
    beat = next(each for each in server.on_air if each[0] == b"HUGZ")
    late = rig.client("late", subtrees=(b"/c/",))
    late.published(0, kvpub(b"/c/a", 1, b"early"))
    late.published(0, beat)
    rig.run(0)
    assert late.core.state == "active"
    assert late.core.position[0] == server.core.ledger.epoch
