"""One server of a pair, and the witness, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from chappe.core import Deliver, Persist, Reply, Report, Send
from chappe.errors import ProtocolError, StorageError, UsageError
from chappe.replication.binary_star import events
from chappe.replication.binary_star.core import BELIEVE_S, BinaryStar
from chappe.replication.binary_star.messages import (
    ACTIVE,
    BACKUP,
    LEADER,
    OWNER,
    PASSIVE,
    PRIMARY,
    TERM_MAX,
    Beat,
    Claim,
    Confirming,
    FollowingPartner,
    Leading,
    PairMemory,
    PartnerBeat,
    Record,
    Resting,
    decode_answer,
    encode_beat,
    encode_claim,
)
from chappe.replication.binary_star.witness import Grant, PairRecord, WitnessCore


def carried(effect: Any) -> Any:
    """What an effect brings, where that says more than its class."""
    match effect:
        case Report(carries) | Deliver(_, carries) | Send(_, carries):
            return carries
    return effect


def of(kind: type, effects: list[Any]) -> list[Any]:
    return [each for each in map(carried, effects) if isinstance(each, kind)]


def told(effects: list[Any]) -> list[bytes]:
    return [each.state for each in of(PartnerBeat, effects)]


class Pair:
    """Two servers and all that passes between them at once."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.cores = {role: BinaryStar(role, 10 + role, now=0.0, **options) for role in (PRIMARY, BACKUP)}
        self.done: dict[int, list[Any]] = {PRIMARY: [], BACKUP: []}
        self.cut = False
        for role, core in self.cores.items():
            self.take(role, core.start(0.0))

    def take(self, role: int, effects: list[Any]) -> list[Any]:
        self.done[role] += effects
        for tell in of(PartnerBeat, effects):
            if not self.cut:
                other = 3 - role
                self.take(other, self.cores[other].handle_message(tell.beat, self.now))
        return effects

    def run(self, seconds: float, *roles: int) -> None:
        until = self.now + seconds
        while (at := min(self.cores[role].next_timeout() for role in roles or self.cores)) <= until:
            self.now = max(at, self.now)
            for role in roles or self.cores:
                if self.cores[role].next_timeout() <= self.now:
                    self.take(role, self.cores[role].handle_timeout(self.now))
        self.now = until

    def ask(self, role: int, known: int = 0) -> list[Any]:
        return self.take(role, self.cores[role].handle_request(known, self.now))

    def pair(self) -> None:
        self.run(1.0)
        self.take(PRIMARY, self.cores[PRIMARY].caught_up(10 + BACKUP, self.now))


def test_two_that_hear_each_other_need_no_client_and_no_wait() -> None:
    pair = Pair()

    assert pair.cores[PRIMARY].serving
    assert pair.cores[PRIMARY].term == 1
    assert of(Leading, pair.done[PRIMARY]) == [Leading(1)]
    assert of(FollowingPartner, pair.done[BACKUP]) == [FollowingPartner(1, 10 + PRIMARY)]
    assert of(Confirming, pair.done[PRIMARY]) == [Confirming("alone", 0)]


def test_a_term_that_a_client_has_made_up_parts_nobody() -> None:
    pair = Pair()
    pair.pair()
    for role in (PRIMARY, BACKUP, PRIMARY):
        pair.ask(role, TERM_MAX)
        pair.run(1.0)

    assert pair.cores[PRIMARY].serving
    assert pair.cores[PRIMARY].confirms == "paired"
    assert pair.cores[PRIMARY].term == pair.cores[BACKUP].seen == 1


@pytest.mark.parametrize("ahead", [1, 3, 1 << 20])
def test_a_term_that_neither_knows_parts_nobody_while_they_hear_each_other(ahead: int) -> None:
    pair = Pair(memory=PairMemory())
    pair.run(1.0)
    pair.pair()
    for _ in range(3):
        for role in (PRIMARY, BACKUP):
            pair.ask(role, pair.cores[role].seen + ahead)
            pair.run(0.1)

    assert pair.cores[PRIMARY].serving
    assert pair.cores[PRIMARY].confirms == "paired"
    assert pair.cores[PRIMARY].term == pair.cores[BACKUP].seen == 1
    assert not of(events.SteppedDown, pair.done[PRIMARY])


def test_two_that_keep_nothing_may_have_forgotten_a_term_but_not_one_after_the_other() -> None:
    pair = Pair()
    pair.pair()
    for _ in range(50):
        pair.ask(PRIMARY, pair.cores[PRIMARY].seen + 5)
        pair.run(1.0)

    assert len(of(events.SteppedDown, pair.done[PRIMARY])) == 1
    pair.run(BELIEVE_S)
    assert of(events.SteppedDown, pair.ask(PRIMARY, pair.cores[PRIMARY].seen + 5))


def test_who_stood_still_believes_a_client_that_has_seen_another_term() -> None:
    pair = Pair()
    pair.pair()
    pair.now += 0.6  # less than makes its partner silent

    found = pair.ask(PRIMARY, known=2)

    assert of(events.SteppedDown, found)


def test_the_backup_takes_over_after_three_heartbeats_when_a_client_asks() -> None:
    pair = Pair()
    pair.pair()
    assert pair.cores[PRIMARY].confirms == "paired"
    heard_at = pair.now
    pair.cut = True
    pair.run(0.7, BACKUP)
    pair.ask(BACKUP)
    assert not pair.cores[BACKUP].serving
    pair.run(heard_at + 0.76 - pair.now, BACKUP)
    assert pair.cores[BACKUP].state == PASSIVE  # silence alone changes nothing

    pair.ask(BACKUP)

    assert pair.cores[BACKUP].serving
    assert (pair.cores[BACKUP].term, pair.cores[BACKUP].confirms) == (2, "alone")


def test_a_primary_that_stood_still_serves_nobody_and_steps_down() -> None:
    pair = Pair()
    pair.pair()
    pair.cut = True
    pair.run(3.0, BACKUP)
    pair.ask(BACKUP)
    pair.cut = False

    woken = pair.cores[PRIMARY].handle_request(1, pair.now)

    assert not pair.cores[PRIMARY].serving
    assert pair.cores[PRIMARY].state == ACTIVE
    assert set(told(woken)) <= {b""}  # an original that took over would abort if it heard that this one is active
    pair.take(PRIMARY, woken)
    pair.run(0.3, BACKUP)
    assert pair.cores[PRIMARY].state == PASSIVE
    assert pair.cores[BACKUP].serving
    assert of(FollowingPartner, pair.done[PRIMARY]) == [FollowingPartner(2, 10 + BACKUP)]


def test_a_passive_server_that_was_not_paired_does_not_take_over() -> None:
    pair = Pair()
    pair.run(1.0)
    pair.cut = True
    pair.run(2.0, BACKUP)

    found = pair.ask(BACKUP)

    assert not pair.cores[BACKUP].serving
    assert "without this server" in str(of(events.MayNotServe, found)[0])
    assert not of(events.MayNotServe, pair.ask(BACKUP))  # told once


def test_a_backup_never_begins_alone_and_a_primary_does_when_asked() -> None:
    for role, serves in ((BACKUP, False), (PRIMARY, True)):
        core = BinaryStar(role, 1, now=0.0)
        core.start(0.0)
        core.handle_request(0, 1.0)
        assert not core.serving
        for tick in range(1, 10):
            core.handle_timeout(tick * 0.25)
        core.handle_request(0, 2.3)
        assert core.serving is serves


def test_an_active_server_that_a_client_has_seen_replaced_steps_down() -> None:
    pair = Pair()
    pair.pair()
    pair.cut = True
    pair.run(0.8, PRIMARY)

    found = pair.ask(PRIMARY, known=4)

    assert found[0] == Deliver(OWNER, Resting())  # before anybody else is told
    assert not pair.cores[PRIMARY].serving
    pair.cut = False
    pair.run(1.0)
    assert pair.cores[PRIMARY].term == 5


def test_a_durable_server_keeps_its_term_before_it_leads() -> None:
    pair = Pair(memory=PairMemory())

    done = list(map(carried, pair.done[PRIMARY]))
    assert (
        done.index(Persist(PairMemory(1, Record(1, LEADER)), first=True))
        < done.index(Leading(1))
        < done.index(Confirming("alone", 0))
    )
    again = BinaryStar(PRIMARY, 99, now=0.0, memory=PairMemory(5, Record(5, LEADER)))
    assert (again.seen, again.record) == (5, Record(5, LEADER))


def test_a_server_whose_disk_refuses_does_not_lead() -> None:
    core = BinaryStar(PRIMARY, 1, now=0.0, memory=PairMemory())
    core.start(0.0)
    for tick in range(1, 10):
        core.handle_timeout(tick * 0.25)
    (persist,) = of(Persist, core.handle_request(0, 2.3))

    done = core.handle_done(persist.job, StorageError("no space left"), 2.3)

    assert not core.serving
    assert Deliver(OWNER, Confirming("nothing", 0)) in done
    assert of(events.TermNotKept, done)
    assert core.record == Record()
    assert of(Persist, core.handle_request(0, 2.4)) or not core.serving


def test_both_configured_alike_is_told_and_neither_begins() -> None:
    core = BinaryStar(PRIMARY, 1, now=0.0)
    other = BinaryStar(PRIMARY, 2, now=0.0)
    found = core.handle_message(of(PartnerBeat, other.start(0.0))[0].beat, 0.0)

    assert of(events.SameRole, found)
    assert not of(events.SameRole, core.handle_message(of(PartnerBeat, other.handle_timeout(0.25))[0].beat, 0.25))


def test_heartbeats_of_another_pair_are_told_and_ignored() -> None:
    core = BinaryStar(PRIMARY, 1, now=0.0, pair=b"one")
    other = BinaryStar(BACKUP, 2, now=0.0, pair=b"two")

    found = core.handle_message(of(PartnerBeat, other.start(0.0))[0].beat, 0.0)

    assert of(events.OtherPair, found) == [events.OtherPair(b"two")]
    assert core.partner == "unknown"


# What the Guide's table says, but where an original would abort. (our role, our state, the original's): our next one.
TABLE = {
    (PRIMARY, PRIMARY, BACKUP): ACTIVE,
    (PRIMARY, PRIMARY, ACTIVE): PASSIVE,
    (PRIMARY, PRIMARY, PASSIVE): ACTIVE,  # ignored there: it waits to be voted for
    (BACKUP, BACKUP, ACTIVE): PASSIVE,
    (BACKUP, BACKUP, PRIMARY): BACKUP,
    (BACKUP, BACKUP, PASSIVE): BACKUP,
    (PRIMARY, ACTIVE, ACTIVE): PASSIVE,  # aborts there
    (PRIMARY, ACTIVE, BACKUP): ACTIVE,
    (PRIMARY, ACTIVE, PASSIVE): ACTIVE,
    (BACKUP, PASSIVE, PRIMARY): ACTIVE,
    (BACKUP, PASSIVE, PASSIVE): PASSIVE,  # aborts there
    (PRIMARY, PASSIVE, BACKUP): ACTIVE,
}


@pytest.mark.parametrize(("role", "state", "heard"), TABLE)
def test_with_an_original_the_table_of_the_guide_holds(role: int, state: int, heard: int) -> None:
    core = BinaryStar(role, 1, now=0.0)
    core.start(0.0)
    if state == ACTIVE:
        core.handle_message(b"2", 0.0)
    elif state == PASSIVE:
        core.handle_message(b"3", 0.0)
    assert core.state == state

    core.handle_message(b"%d" % heard, 0.1)

    assert core.state == TABLE[role, state, heard]
    assert core.invariants() == []


def test_an_original_that_fell_silent_is_active_no_more() -> None:
    core = BinaryStar(BACKUP, 7, now=0.0)
    for tick in range(4):
        core.handle_message(b"3", tick * 0.25)
    core.copied_whole(0.8)
    for tick in range(4, 20):
        core.handle_timeout(tick * 0.25)
    core.handle_request(0, 5.0)
    assert core.serving
    core.handle_timeout(5.25)

    assert core.serving


def test_a_copy_of_an_original_is_used_once_it_is_whole() -> None:
    for whole in (False, True):
        core = BinaryStar(BACKUP, 1, now=0.0)
        core.start(0.0)
        core.handle_message(b"3", 0.0)
        if whole:
            core.copied_whole(0.1)
        for tick in range(1, 10):
            core.handle_timeout(tick * 0.25)
        core.handle_request(0, 2.3)
        assert core.serving is whole


def test_the_digits_that_are_sent_are_the_states() -> None:
    core = BinaryStar(BACKUP, 1, now=0.0)
    assert told(core.start(0.0)) == [b"2"]
    assert told(core.handle_message(b"3", 0.0)) == [b"4"]
    assert told(core.handle_message(b"1", 0.1)) == [b"3"]


def test_a_beat_is_sent_in_each_heartbeat() -> None:
    core = BinaryStar(PRIMARY, 1, now=0.0)

    assert [len(of(PartnerBeat, core.handle_timeout(tick / 8))) for tick in range(8)] == [1, 0, 1, 0, 1, 0, 1, 0]


def test_a_lying_term_does_no_harm() -> None:
    core = BinaryStar(PRIMARY, 1, now=0.0)
    core.start(0.0)
    core.handle_request(2**63, 0.1)
    assert core.seen == 0
    with pytest.raises(ProtocolError):
        core.handle_message(encode_beat(Beat(PASSIVE, BACKUP, 250, 2, 0, seen=TERM_MAX + 1), b""), 0.1)


@pytest.mark.parametrize("options", [{"role": 3}, {"life": 0}, {"heartbeat_s": 0.0}, {"pair": b"x" * 256}])
def test_a_server_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        BinaryStar(**{"role": PRIMARY, "life": 1, "now": 0.0, **options})


# -- the witness ----------------------------------------------------------------------------------------------


def granted(witness: WitnessCore, claim: Claim) -> bool | None:
    replies = of(Reply, witness.handle_request(b"", encode_claim(claim, b"p"), 0.0))
    assert witness.invariants() == []
    return decode_answer(replies[0].message).granted if replies else None


def test_of_two_that_claim_one_is_granted() -> None:
    witness = WitnessCore({})
    assert granted(witness, Claim(False, PRIMARY, 1, 1, 1, 1))  # they are paired in term 1

    assert granted(witness, Claim(True, BACKUP, 2, 1, 2, 1))
    assert not granted(witness, Claim(True, PRIMARY, 1, 2, 1, 1))
    assert granted(witness, Claim(True, BACKUP, 2, 1, 2, 1))  # it did not hear the answer


def test_who_lacks_what_was_confirmed_alone_is_refused() -> None:
    witness = WitnessCore({})
    assert granted(witness, Claim(False, PRIMARY, 1, 1, 1, 1))
    assert granted(witness, Claim(True, PRIMARY, 1, 2, 1, 1))

    assert not granted(witness, Claim(True, BACKUP, 2, 1, 2, 1))
    assert granted(witness, Claim(False, PRIMARY, 1, 3, 1, 1))
    assert granted(witness, Claim(True, PRIMARY, 1, 2, 1, 1)) is None  # comes late
    assert granted(witness, Claim(True, BACKUP, 2, 2, 2, 1))


def test_who_forgot_everything_is_refused() -> None:
    witness = WitnessCore({})
    assert granted(witness, Claim(True, PRIMARY, 1, 1, 1, 0))

    assert not granted(witness, Claim(True, PRIMARY, 9, 1, 3, 0))


def test_a_server_that_claims_again_and_again_is_reported_once_in_a_term() -> None:
    witness = WitnessCore({})
    assert granted(witness, Claim(True, PRIMARY, 1, 1, 1, 0))

    def reported(count: int) -> list[object]:
        effects = witness.handle_request(b"", encode_claim(Claim(True, BACKUP, 2, count, 2 + 2 * count, 0), b"p"), 0.0)
        return of(events.ClaimRefused, effects)

    assert reported(1) == [events.ClaimRefused(b"p", BACKUP, 4, 1)]
    assert [reported(count) for count in range(2, 50)] == [[]] * 48
    assert granted(witness, Claim(True, PRIMARY, 1, 2, 3, 1))  # another term is news
    assert reported(50) == [events.ClaimRefused(b"p", BACKUP, 102, 3)]


def test_a_grant_is_kept_before_it_is_told_and_taken_back_if_it_cannot_be() -> None:
    witness = WitnessCore({}, pairs_max=1)
    effects = witness.handle_request(b"", encode_claim(Claim(True, PRIMARY, 1, 1, 1, 0), b"p"), 0.0)
    assert [type(each) for each in effects[:2]] == [Persist, Reply]

    witness.handle_done(PairRecord(b"p", Grant(1, PRIMARY, True, 1, 1, 0)), StorageError("no space left"), 0.0)

    assert witness.records == {}
    witness.handle_request(b"", encode_claim(Claim(True, PRIMARY, 1, 1, 1, 0), b"p"), 0.0)
    with pytest.raises(ProtocolError, match="further pair"):
        witness.handle_request(b"", encode_claim(Claim(True, PRIMARY, 1, 1, 1, 0), b"q"), 0.0)
