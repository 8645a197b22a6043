"""One server that agrees with others, call by call."""

from __future__ import annotations

import pytest
from tests.replication.agreement_model import SERVERS, begun, disks_of, settle, value_of

from chappe.core import Effect, Persist, Send
from chappe.errors import ProtocolError, StorageError, UsageError
from chappe.replication.agreement.core import (
    AGAIN_S,
    NO_BALLOT,
    VALUE_BYTES_MAX,
    Accept,
    Accepted,
    Agreement,
    Ask,
    Decided,
    Prepare,
    Promise,
    Refuse,
    VoteRecord,
    decode,
    encode,
)

OLD = value_of("o", 1, 2, 3)
NEW = value_of("n", 1, 2, 3)
OTHER = value_of("p", 1, 2, 3)


def server(place: int = 0, **options: object) -> Agreement:
    return Agreement(place, SERVERS, VoteRecord(place + 1, 1, OLD, **options), disks_of)  # type: ignore[arg-type]


def kept(vote: VoteRecord) -> Effect:
    """It is on disk before what follows."""
    return Persist(vote, first=True)


def test_two_of_three_decide() -> None:
    core = server()

    asked = core.propose(NEW, 0.0)
    assert asked == [
        kept(VoteRecord(1, 1, OLD, promised=(1, 1))), Send(1, Prepare(2, (1, 1))), Send(2, Prepare(2, (1, 1))),
    ]  # fmt: skip
    voted = core.handle_message(1, Promise(2, (1, 1), 2, NO_BALLOT, b""), 0.0)
    assert voted == [
        kept(VoteRecord(1, 1, OLD, (1, 1), (1, 1), NEW)),
        Send(1, Accept(2, (1, 1), NEW)), Send(2, Accept(2, (1, 1), NEW)),
    ]  # fmt: skip
    assert core.handle_message(1, Accepted(2, (1, 1), 2), 0.0) == [
        kept(VoteRecord(1, 2, NEW)), Send(1, Decided(2, NEW)), Send(2, Decided(2, NEW)),
    ]  # fmt: skip


def test_a_vote_is_on_disk_before_it_is_told() -> None:
    core = server(1)

    assert core.handle_message(0, Prepare(2, (1, 1)), 0.0) == [
        kept(VoteRecord(2, 1, OLD, (1, 1))), Send(0, Promise(2, (1, 1), 2, NO_BALLOT, b"")),
    ]  # fmt: skip
    assert core.handle_message(0, Accept(2, (1, 1), NEW), 0.0) == [
        kept(VoteRecord(2, 1, OLD, (1, 1), (1, 1), NEW)), Send(0, Accepted(2, (1, 1), 2)),
    ]  # fmt: skip
    assert core.handle_message(0, Accept(2, (1, 1), NEW), 0.0) == [Send(0, Accepted(2, (1, 1), 2))]


def test_a_vote_that_the_disk_refused_is_kept_before_it_is_told() -> None:
    core = server(1)
    core.handle_message(0, Prepare(2, (1, 1)), 0.0)
    core.handle_done(core.memory, StorageError("no room"), 0.0)

    again = core.handle_message(0, Prepare(2, (1, 1)), 0.0)

    assert [type(each) for each in again] == [Persist, Send]


def test_a_lower_ballot_is_refused_and_begun_again_above() -> None:
    core = server(1)
    core.handle_message(2, Prepare(2, (4, 3)), 0.0)

    assert core.handle_message(0, Prepare(2, (1, 1)), 0.0) == [Send(0, Refuse(2, (1, 1), (4, 3)))]

    proposer = server(0)
    proposer.propose(NEW, 0.0)
    assert proposer.handle_message(1, Refuse(2, (1, 1), (4, 3)), 0.0) == []
    assert Send(1, Prepare(2, (5, 1))) in proposer.handle_timeout(proposer.next_timeout())


def test_what_somebody_has_voted_for_is_proposed_instead() -> None:
    core = server()
    core.propose(NEW, 0.0)

    actions = core.handle_message(1, Promise(2, (1, 1), 2, (0, 3), OTHER), 0.0)

    assert Send(2, Accept(2, (1, 1), OTHER)) in actions


def test_what_is_not_answered_is_said_again_to_those_who_did_not() -> None:
    core = server()
    core.propose(NEW, 0.0)
    assert core.handle_timeout(AGAIN_S) == [Send(1, Prepare(2, (1, 1))), Send(2, Prepare(2, (1, 1)))]

    core.handle_message(1, Promise(2, (1, 1), 2, NO_BALLOT, b""), 0.0)

    assert core.handle_timeout(1.0) == [Send(1, Accept(2, (1, 1), NEW)), Send(2, Accept(2, (1, 1), NEW))]


def test_who_lags_asks_and_who_is_ahead_tells() -> None:
    ahead = Agreement(1, SERVERS, VoteRecord(2, 5, NEW), disks_of)
    core = server()

    assert core.handle_message(1, Prepare(6, (1, 2)), 0.0) == [Send(1, Ask(1))]
    assert ahead.handle_message(0, Ask(1), 0.0) == [Send(0, Decided(5, NEW))]
    assert core.handle_message(1, Decided(5, NEW), 0.0) == [kept(VoteRecord(1, 5, NEW))]
    assert ahead.handle_message(0, Accept(2, (1, 1), OTHER), 0.0) == [Send(0, Decided(5, NEW))]


def test_a_decision_that_the_disk_refused_is_written_again() -> None:
    core = server()
    core.handle_message(1, Decided(2, NEW), 0.0)
    core.handle_done(core.memory, StorageError("no room"), 0.0)

    assert core.handle_timeout(core.next_timeout()) == [kept(VoteRecord(1, 2, NEW))]


def test_votes_of_another_disk_do_not_count_and_it_proposes_nothing() -> None:
    core = server()
    core.propose(NEW, 0.0)
    assert core.handle_message(1, Promise(2, (1, 1), 9, NO_BALLOT, b""), 0.0) == []

    lost = Agreement(0, SERVERS, VoteRecord(9, 1, OLD), disks_of)
    assert not lost.may_vote
    assert lost.propose(NEW, 0.0) == []


def test_the_first_value_needs_all() -> None:
    state = begun(0)
    state.propose(0, NEW)
    state = settle(state)
    assert state.decided == {1: NEW}

    core = Agreement(0, SERVERS, VoteRecord(1), disks_of)
    core.propose(NEW, 0.0)
    assert core.handle_message(1, Promise(1, (1, 1), 2, NO_BALLOT, b""), 0.0) == []


def test_one_server_alone_decides_at_once() -> None:
    core = Agreement(0, 1, VoteRecord(1), disks_of)

    actions = core.propose(value_of("a", 1), 0.0)

    assert actions[-1] == kept(VoteRecord(1, 1, value_of("a", 1)))
    assert core.propose(value_of("b", 1), 0.0)[-1] == kept(VoteRecord(1, 2, value_of("b", 1)))


def test_what_is_withdrawn_is_not_begun_again() -> None:
    core = server()
    core.propose(NEW, 0.0)
    core.withdraw()

    assert core.handle_message(1, Promise(2, (1, 1), 2, NO_BALLOT, b""), 0.0) == []
    assert core.next_timeout() == float("inf")


def test_nobody_is_not_a_number_of_servers() -> None:
    with pytest.raises(UsageError, match="at least one server"):
        Agreement(0, 0, VoteRecord(1), disks_of)


MESSAGES = [
    (Prepare(7, (2, 300)), "93a770726570617265079202cd012c"),
    (Promise(7, (2, 300), 5, (1, 4), b"v"), "96a770726f6d697365079202cd012c05920104c40176"),
    (Accept(7, (2, 300), b"v"), "94a6616363657074079202cd012cc40176"),
    (Accepted(7, (2, 300), 5), "94a86163636570746564079202cd012c05"),
    (Refuse(7, (2, 300), (3, 1)), "94a6726566757365079202cd012c920301"),
    (Decided(7, b"v"), "93a76465636964656407c40176"),
    (Ask(7), "92a361736b07"),
]


@pytest.mark.parametrize(("message", "vector"), MESSAGES)
def test_messages_and_their_bytes(message: object, vector: str) -> None:
    frame = encode(message)  # type: ignore[arg-type]
    assert frame.hex() == vector
    assert decode(frame) == message
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode(frame[:end])


def test_what_is_too_large_or_negative_is_no_message() -> None:
    for wrong in (Decided(7, bytes(VALUE_BYTES_MAX + 1)), Ask(-1), Prepare(1, (-1, 1))):
        with pytest.raises(ProtocolError):
            decode(encode(wrong))
