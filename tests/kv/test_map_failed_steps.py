"""What a server of a map remembers of steps that failed: as much as is said of it, for all writers together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kv.map_rig import Client, Rig, Server

from chappe.errors import WriteUnknown
from chappe.kv.chp import stream as say
from chappe.kv.chp.sessions import FORGOTTEN, UNKNOWN, Session, shorten_some
from chappe.limits import MAP_LIMITS

FEW = replace(MAP_LIMITS, outcomes_max=100, piece_bytes=1_000)
FALSE = ((b"/a", b"never"),)  # what no step of these finds


def outcomes(server: Server) -> int:
    return sum([each.size for each in server.core.ledger.sessions.values()])


def begun(rig: Rig) -> tuple[Server, Client]:
    server, client = rig.server(), rig.client()
    client.write((b"/a", b"1"))
    rig.run(2)
    assert client.outcomes == {1: True}
    return server, client


def fail_and_go(rig: Rig, name: str, count: int) -> Client:
    """A client whose steps fail, and that never says that it knows."""
    gone = rig.client(name)
    rig.run(1)
    rig.lose = lambda source, target, frames: target == name
    for number in range(count):
        gone.write((b"/a", b"%d" % number), expected=FALSE)
        rig.run()
    gone.up = False
    rig.lose = lambda source, target, frames: False
    return gone


def test_what_is_remembered_of_writers_that_are_gone_is_bounded_together() -> None:
    rig = Rig(FEW)
    server, client = begun(rig)
    for place in range(20):
        fail_and_go(rig, f"gone{place}", 40)
        assert outcomes(server) <= FEW.outcomes_max * 5 // 4 + len(server.core.ledger.sessions)

    refused = client.write((b"/a", b"2"), expected=FALSE)
    rig.run(1)
    assert client.outcomes[refused] is False  # exactly, as it said in time what it knows


@pytest.mark.parametrize("durable", [False, True])
def test_who_comes_back_to_outcomes_that_are_forgotten_is_told_so_and_nothing_is_done_twice(durable: bool) -> None:
    rig = Rig(FEW)
    if durable:
        one = rig.paired("one", durable=True)
        rig.paired("two", durable=True)
        servers: tuple[str, ...] = ("one", "two")
    else:
        one, servers = rig.server(), ("one",)
    client = rig.client(servers=servers)
    rig.run(2)
    client.write((b"/a", b"1"))
    rig.run(1)
    rig.lose = lambda source, target, frames: target == "client"
    done = client.write((b"/done", b"1"))
    first = [client.write((b"/a", b"2"), expected=FALSE) for _ in range(3)]
    rig.run(0.2)
    before = one.core.ledger.sequence
    for session in one.core.ledger.sessions.values():
        session.shorten()
    last = client.write((b"/a", b"3"), expected=FALSE)
    rig.run(0.2)
    rig.lose = lambda source, target, frames: False
    rig.run(5)

    for each in (done, *first):
        outcome = client.outcomes[each]
        assert isinstance(outcome, WriteUnknown)
        assert str(outcome) == FORGOTTEN
    assert client.outcomes[last] is False
    assert one.contents() == {"/a": b"1", "/done": b"1"}
    assert one.core.ledger.sequence == before


def test_that_outcomes_are_forgotten_goes_to_the_other_server() -> None:
    rig = Rig(replace(FEW, recent_max=20))
    one, client = rig.paired("one"), rig.client(servers=("one", "two"))
    rig.paired("two")
    rig.run(2)
    rig.kill("two")
    client.write((b"/a", b"1"))
    rig.run(2)
    rig.lose = lambda source, target, frames: target == "client"
    failed = [client.write((b"/a", b"2"), expected=FALSE) for _ in range(3)]
    rig.run(0.1)
    for session in one.core.ledger.sessions.values():
        session.shorten()
    rig.paired("two")
    rig.run(1)
    assert one.core.star.confirms == "paired"
    rig.kill("one")
    rig.lose = lambda source, target, frames: False
    rig.run(2)

    assert [type(client.outcomes[each]) for each in failed] == [WriteUnknown] * 3


def test_what_is_forgotten_among_what_is_told_is_told_to_the_other_server_without_what_is_not() -> None:
    session = Session(0, 0)
    for number in (2, 5, 9):
        session.fail(number, 1, "no")
    session.waiting.append((6, 100))
    session.shorten()

    assert list(session.copied()) == [(6, UNKNOWN)]
    assert list(Session(0, 0).copied()) == []


def test_a_step_that_is_done_after_all_takes_nothing_from_what_is_forgotten_before_it() -> None:
    session = Session(0, 0)
    for number in (2, 5):
        session.fail(number, 1, "no")
    session.shorten()
    session.do(5)
    session.fail(6, 1, "no")

    assert list(session.failures(0, 4)) == [(number, UNKNOWN, FORGOTTEN) for number in (1, 2, 3, 4)]
    assert list(session.failures(2, 9)) == [(3, UNKNOWN, FORGOTTEN), (4, UNKNOWN, FORGOTTEN), (6, 1, "no")]
    session.forget(4)
    assert list(session.failures(0, 9)) == [(6, 1, "no")]


def test_those_of_whom_most_is_remembered_are_shortened_and_of_them_the_first() -> None:
    sessions = [Session(0, 0) for _ in range(4)]
    for session, count in zip(sessions, (1, 30, 30, 30), strict=True):
        for number in range(count):
            session.fail(number + 1, 1, "no")
    shorten_some(sessions, 91)
    assert [each.size for each in sessions] == [1, 30, 30, 30]
    shorten_some(sessions, 90)
    assert [each.size for each in sessions] == [1, 1, 30, 30]


def test_a_client_cannot_have_much_remembered_as_why_it_was_refused() -> None:
    rig = Rig()
    server, client = begun(rig)
    rig.lose = lambda source, target, frames: target == "client"
    client.act(client.core.write(say.denied("x" * 1_000_000), 7, rig.now))
    rig.run()

    failed = [text for each in server.core.ledger.sessions.values() for _, text in each.failed.values()]
    assert list(map(len, failed)) == [1_000]
