"""Values of a shared map that end with the client that wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.kv.map_rig import Client, Rig, Server

from chappe.core import Effect
from chappe.defaults import MAP_SESSION_S
from chappe.errors import InvalidOperation, StorageFull
from chappe.kv.backend import Loaded
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say
from chappe.kv.chp.ledger import INVALID
from chappe.kv.chp.sessions import SESSION, SessionValues
from chappe.kv.chp.source import ANSWER_S
from chappe.limits import MAP_LIMITS

NOTICED_S = MAP_SESSION_S + 1.0
PAIR = ("one", "two")


def write_session(client: Client, *sets: tuple[bytes, bytes], properties: bytes = SESSION) -> int:
    client.tickets += 1
    step = say.Step(tuple([(key, body, 0, properties) for key, body in sets]))
    client.act(client.core.write(step, client.tickets, client.rig.now))
    client.rig.run()
    return client.tickets


def close(client: Client) -> None:
    client.act(client.core.close())
    client.up = False
    client.rig.run()


def joined(rig: Rig, *names: str, servers: tuple[str, ...] = ("one",)) -> list[Client]:
    made = [rig.client(name, servers) for name in names]
    rig.run(2)
    return made


def with_a_value() -> tuple[Rig, Server, Client, Client]:
    """A server, the owner of a session value ``/here/a``, and somebody who reads."""
    rig = Rig()
    server = rig.server()
    owner, reader = joined(rig, "owner", "reader")
    write_session(owner, (b"/here/a", b"1"))
    return rig, server, owner, reader


def test_a_session_value_ends_with_a_client_that_is_killed() -> None:
    rig, _, owner, reader = with_a_value()
    owner.write((b"/stays", b"2"))
    rig.run(3 * MAP_SESSION_S)
    assert reader.contents() == {"/here/a": b"1", "/stays": b"2"}  # it lives, and writes nothing

    rig.kill("owner")
    rig.run(MAP_SESSION_S / 2)
    assert "/here/a" in reader.contents()
    rig.run(NOTICED_S)

    assert reader.contents() == {"/stays": b"2"}
    assert reader.told[-1] == (b"/here/a", b"", b"1")


def test_a_session_value_ends_at_once_with_a_client_that_is_closed() -> None:
    rig = Rig()
    rig.server()
    owner, reader = joined(rig, "owner", "reader")
    write_session(owner, (b"/here/a", b"1"), (b"/here/b", b"1"))

    close(owner)
    rig.run(0.1)

    assert reader.contents() == {}


def test_a_client_that_was_cut_off_for_a_while_finds_its_values() -> None:
    rig, _, owner, reader = with_a_value()

    rig.lose = lambda source, target, frames: "owner" in (source, target)
    rig.run(0.8 * MAP_SESSION_S)
    rig.lose = lambda source, target, frames: False
    rig.run(3 * MAP_SESSION_S)

    assert reader.contents() == owner.contents() == {"/here/a": b"1"}
    assert all(body for _, body, _ in reader.told)


def test_a_client_that_was_cut_off_for_too_long_is_told_that_its_values_are_gone() -> None:
    rig, _, owner, reader = with_a_value()

    rig.lose = lambda source, target, frames: "owner" in (source, target)
    rig.run(2 * MAP_SESSION_S)
    assert reader.contents() == {}
    rig.lose = lambda source, target, frames: False
    rig.run(MAP_SESSION_S)

    assert owner.told[-1] == (b"/here/a", b"", b"1")
    ticket = write_session(owner, (b"/here/a", b"2"))
    rig.run(3 * MAP_SESSION_S)
    assert owner.outcomes[ticket] is True
    assert reader.contents() == {"/here/a": b"2"}


def test_a_client_that_turns_to_another_server_does_not_end_its_session() -> None:
    rig, _, owner, reader = with_a_value()

    effects: list[Effect] = []
    owner.core._current.leave(effects)
    owner.core._current.engage(rig.now, effects)
    owner.act(effects)
    rig.run(3)

    assert reader.contents() == {"/here/a": b"1"}


@pytest.mark.parametrize("durable", [False, True])
def test_sessions_go_on_through_a_failover_and_end_at_the_server_that_took_over(durable: bool) -> None:
    rig = Rig()
    for name in PAIR:
        rig.paired(name, durable=durable)
    lives, dies, reader = joined(rig, "lives", "dies", "reader", servers=PAIR)
    write_session(lives, (b"/here/lives", b"1"))
    write_session(dies, (b"/here/dies", b"1"))
    rig.run(1)

    rig.kill("dies")
    rig.kill("one")  # which has not noticed
    rig.run(0.6 * MAP_SESSION_S)
    assert reader.core.server == "two"
    assert set(reader.contents()) == {"/here/lives", "/here/dies"}
    rig.run(NOTICED_S)

    assert set(reader.contents()) == {"/here/lives"}


def test_a_server_that_is_started_again_waits_for_the_clients_of_its_values() -> None:
    rig = Rig()
    server = rig.paired("one", durable=True)
    lives, dies = joined(rig, "lives", "dies")
    write_session(lives, (b"/here/lives", b"1"))
    write_session(dies, (b"/here/dies", b"1"))
    rig.run(1)
    assert set(server.contents()) == {"/here/lives", "/here/dies"}
    rig.kill("dies")
    rig.kill("one")
    rig.run(2 * MAP_SESSION_S)

    server = rig.paired("one", durable=True)
    rig.run(0.5 * MAP_SESSION_S)
    assert set(server.contents()) == {"/here/lives", "/here/dies"}
    rig.run(NOTICED_S)

    assert set(server.contents()) == {"/here/lives"}


def test_a_server_that_stood_still_takes_nobody_for_dead() -> None:
    rig, server, _, reader = with_a_value()

    rig.paused |= {"one", "owner", "reader"}
    rig.now += 3 * MAP_SESSION_S
    rig.paused.clear()
    rig.run(MAP_SESSION_S)

    assert server.contents() == reader.contents() == {"/here/a": b"1"}
    assert all(body for _, body, _ in reader.told)


def test_what_another_client_sets_stays() -> None:
    rig = Rig()
    rig.server()
    owner, other = joined(rig, "owner", "other")
    write_session(owner, (b"/a", b"1"), (b"/b", b"1"), (b"/c", b"1"))
    other.write((b"/a", b"2"))
    other.write((b"/b", b"2"), (b"/d", b"2"))
    write_session(other, (b"/c", b"2"))

    close(owner)
    rig.run(0.1)

    assert other.contents() == {"/a": b"2", "/b": b"2", "/c": b"2", "/d": b"2"}
    close(other)
    assert set(rig.nodes["one"].core.engine.entries) == {"/a", "/b", "/d"}  # type: ignore[attr-defined]


def test_nobody_ends_the_session_of_another_client() -> None:
    rig, server, owner, _ = with_a_value()

    hello = say.Hello(1, owner.core.session, (b"",), b"", 0, 0, False, "")
    server.request(b"rogue/0/0", say.encode(hello))
    server.request(b"rogue/0/0", say.encode(say.Goodbye(1, True)))
    rig.run(0.1)

    assert server.contents() == {"/here/a": b"1"}


def test_a_session_value_too_many_is_refused_and_nothing_else() -> None:
    rig = Rig(replace(MAP_LIMITS, session_values_max=2))
    server = rig.server()
    owner, other = joined(rig, "owner", "other")
    assert owner.outcomes[write_session(owner, (b"/a", b"1"), (b"/b", b"1"))] is True

    refused = other.outcomes[write_session(other, (b"/c", b"1"))]
    again = owner.outcomes[write_session(owner, (b"/a", b"2"))]
    plain = other.write((b"/c", b"1"))
    rig.run()

    assert isinstance(refused, InvalidOperation)
    assert "end with their clients" in str(refused)
    assert again is True
    assert other.outcomes[plain] is True
    assert set(server.contents()) == {"/a", "/b", "/c"}
    owner.write((b"/a", b""))
    rig.run()
    assert other.outcomes[write_session(other, (b"/c", b"2"))] is True


def test_a_disk_that_refuses_leaves_sessions_as_they_were() -> None:
    rig = Rig()
    server = rig.server(loaded=Loaded())
    owner, other = joined(rig, "owner", "other")
    write_session(owner, (b"/here/a", b"1"))
    server.commit()
    other.write((b"/here/a", b"2"))  # which is refused, so that it is a session value still
    rig.run()
    server.commit(StorageFull("full"))
    rig.run()
    assert server.core.invariants() == []

    close(owner)
    server.commit()

    assert server.contents() == {}


def test_programs_of_the_guide_see_ordinary_deletions() -> None:
    rig = Rig()
    server = rig.server()
    (owner,) = joined(rig, "owner")
    server.act(server.core.handle_subscription(b"", True, rig.now))
    write_session(owner, (b"/here/a", b"1"))
    close(owner)

    updates = [frames for frames in server.on_air if frames[0] != chp.HUGZ]
    assert [(key, properties, body) for key, _, _, properties, body in updates] == [
        (b"/here/a", SESSION, b"1"), (b"/here/a", b"", b""),
    ]  # fmt: skip


def test_a_client_that_waits_long_for_an_answer_says_that_it_lives() -> None:
    rig, _, _, reader = with_a_value()
    said: list[object] = []

    def slow(source: str, target: str, frames: Sequence[bytes]) -> bool:
        if source == "owner" and frames[0] == say.MARK:
            said.append(type(say.from_client(frames)))
        return (source, target) == ("one", "owner") and frames[0] == say.MARK  # only its HUGZ comes

    rig.lose = slow
    reader.write((b"/x", b"1"))
    rig.run(2 * ANSWER_S + MAP_SESSION_S)

    assert "/here/a" in reader.contents()
    assert said.count(say.Taken) > said.count(say.Hello)


def test_values_are_noted_by_key_and_by_session_alike() -> None:
    values = SessionValues(MAP_LIMITS, 0.0)
    session = chp.session_of(bytes(range(10)))
    values.note(b"/a", chp.uuid_of(session, 1), SESSION, 0.0)
    values.note(b"/b", bytes(16), SESSION, 0.0)  # by a program that has no session
    assert values.keys(session) == [b"/a"]
    values.note(b"/a", chp.uuid_of(session, 2), b"", 0.0)
    assert (len(values), values.keys(session), values.invariants()) == (0, [], [])


def test_the_server_that_refuses_says_invalid() -> None:
    rig = Rig(replace(MAP_LIMITS, session_values_max=0))
    server = rig.server()
    (owner,) = joined(rig, "owner")
    write_session(owner, (b"/a", b"1"))
    assert [failure[2] for failure in server.core.ledger.refused] == [INVALID]
