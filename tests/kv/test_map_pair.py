"""Two servers of a shared map and Binary Star between them: who serves, and what survives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kv.map_rig import Client, Rig, Server

from chappe.defaults import MIB
from chappe.errors import StorageError
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say
from chappe.kv.chp.events import MapWritesLost
from chappe.limits import MAP_LIMITS
from chappe.replication.binary_star.witness import WitnessCore

SMALL = replace(MAP_LIMITS, piece_bytes=200, window=4, recent_max=20, pending_max=10)
BOTH = ("one", "two")


def begun(rig: Rig, *, witness: bool = False, durable: bool = False) -> tuple[Server, Server, Client]:
    """A pair that is paired, and a client of both."""
    if witness:
        rig.witness = WitnessCore({})
    servers = [rig.paired(name, witness=witness, durable=durable) for name in BOTH]
    client = rig.client(servers=BOTH)
    rig.run(3)
    for server in servers:
        assert server.core.invariants() == []
    assert servers[0].core.active
    assert servers[0].core.star.confirms == "paired", servers[0].core.star.story()
    return servers[0], servers[1], client


def lost(client: Client, ticket: int) -> bool:
    return client.outcomes.get(ticket) is not True


@pytest.mark.parametrize("witness", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_the_backup_takes_over_within_a_second_with_all_that_was_confirmed(witness: bool, durable: bool) -> None:
    rig = Rig()
    _one, two, client = begun(rig, witness=witness, durable=durable)
    tickets = [client.write((b"/%d" % number, b"x")) for number in range(50)]
    rig.run(0.1)
    assert not [each for each in tickets if lost(client, each)]
    rig.kill("one")
    ticket = client.write((b"/late", b"y"))
    rig.run(1.0)

    assert two.core.active
    assert client.outcomes[ticket] is True
    assert len(two.contents()) == len(client.contents()) == 51
    assert two.core.invariants() == []


@pytest.mark.parametrize("durable", [False, True])
def test_the_primary_comes_back_as_the_passive_one_and_takes_over_in_its_turn(durable: bool) -> None:
    rig = Rig()
    one, two, client = begun(rig, durable=durable)
    client.write((b"/a", b"1"))
    rig.run(0.1)
    rig.kill("one")
    rig.run(2)
    client.write((b"/b", b"2"))
    rig.run(0.1)
    one = rig.paired("one", durable=durable)
    rig.run(2)
    assert two.core.active
    assert not one.core.active
    assert one.contents() == two.contents() == {"/a": b"1", "/b": b"2"}
    assert two.core.star.confirms == "paired"
    rig.kill("two")
    ticket = client.write((b"/c", b"3"))
    rig.run(1.0)

    assert one.core.active
    assert client.outcomes[ticket] is True
    assert client.contents() == one.contents() == {"/a": b"1", "/b": b"2", "/c": b"3"}


def test_both_may_die_at_once_where_both_have_a_disk() -> None:
    rig = Rig()
    one, two, client = begun(rig, durable=True)
    client.write((b"/a", b"1"))
    sets = [client.write((b"/n", b"%d" % number)) for number in range(20)]
    rig.run(0.1)
    assert not [each for each in sets if lost(client, each)]
    rig.kill("one")
    rig.kill("two")
    rig.run(1)
    two = rig.paired("two", durable=True)
    one = rig.paired("one", durable=True)
    ticket = client.write((b"/b", b"2"))
    rig.run(3)

    assert client.outcomes[ticket] is True
    assert one.contents() == two.contents() == client.contents() == {"/a": b"1", "/n": b"19", "/b": b"2"}


def test_what_was_applied_before_both_died_is_not_applied_again() -> None:
    rig = Rig()
    one, two, client = begun(rig, durable=True)
    other = rig.client("other", servers=BOTH)
    rig.run(0.1)
    rig.lose = lambda source, target, frames: target == "client"  # it never hears that its write is done
    client.write((b"/a", b"1"), expected=((b"/a", b""),))
    rig.run(0.1)
    later = other.write((b"/a", b"2"), expected=((b"/a", b"1"),))
    rig.run(0.1)
    assert other.outcomes[later] is True
    rig.kill("one")
    rig.kill("two")
    rig.lose = lambda source, target, frames: False
    two = rig.paired("two", durable=True)  # of the two who died the one that only followed comes first
    rig.run(2)
    one = rig.paired("one", durable=True)
    rig.run(4)

    assert client.outcomes == {1: True}
    assert one.contents() == two.contents() == {"/a": b"2"}


def test_a_step_that_failed_is_known_to_the_other_server() -> None:
    rig = Rig()
    _one, two, client = begun(rig)
    client.write((b"/a", b"1"))
    rig.run(0.1)
    rig.lose = lambda source, target, frames: target == "client"
    failed = client.write((b"/a", b"2"), expected=((b"/a", b"0"),))
    done = client.write((b"/b", b"1"))
    rig.run(0.1)
    assert two.contents() == {"/a": b"1", "/b": b"1"}
    rig.kill("one")
    rig.lose = lambda source, target, frames: False
    rig.run(2)

    assert client.outcomes[failed] is False
    assert client.outcomes[done] is True


def test_a_step_that_failed_goes_with_a_snapshot() -> None:
    rig = Rig(SMALL)
    one, _two, client = begun(rig)
    rig.kill("two")
    client.write((b"/a", b"1"))
    rig.run(2)
    rig.lose = lambda source, target, frames: target == "client"
    failed = client.write((b"/a", b"2"), expected=((b"/a", b"0"),))
    done = client.write((b"/b", b"1"))
    rig.run(0.1)
    rig.paired("two")
    rig.run(1)
    assert one.core.star.confirms == "paired"
    rig.kill("one")
    rig.lose = lambda source, target, frames: False
    rig.run(2)

    assert client.outcomes[failed] is False
    assert client.outcomes[done] is True


def test_a_primary_that_stood_still_steps_down_and_what_it_is_sent_meanwhile_is_not_lost() -> None:
    rig = Rig()
    one, two, client = begun(rig)
    reader = rig.client("reader", servers=BOTH)
    rig.run(0.1)
    rig.paused.add("one")
    rig.lose = lambda source, target, frames: "one" in (source, target)
    rig.run(2)
    ticket = client.write((b"/a", b"1"))
    rig.run(0.1)
    assert two.core.active
    assert client.outcomes[ticket] is True
    rig.paused.clear()
    rig.lose = lambda source, target, frames: False
    rig.run(2)

    assert two.core.active
    assert not one.core.active
    assert one.contents() == reader.contents() == {"/a": b"1"}
    assert two.core.star.confirms == "paired"


def test_who_stood_still_alone_goes_on() -> None:
    rig = Rig()
    _one, _two, client = begun(rig)
    rig.kill("two")
    rig.run(2)
    rig.paused.add("one")
    rig.run(2)
    rig.paused.clear()
    ticket = client.write((b"/a", b"1"))
    rig.run(3)

    assert client.outcomes[ticket] is True


def test_without_a_witness_a_partition_makes_two_and_who_knows_more_goes_on() -> None:
    rig = Rig()
    one, two, client = begun(rig)
    other = rig.client("other", servers=BOTH)
    rig.run(0.1)
    sides = ({"one", "client"}, {"two", "other"})
    rig.lose = lambda source, target, frames: not any({source, target} <= side for side in sides)
    rig.run(3)
    assert one.core.active
    assert two.core.active
    assert one.core.star.term < two.core.star.term
    client.write((b"/a", b"1"))
    other.write((b"/b", b"2"))
    rig.run(0.1)
    rig.lose = lambda source, target, frames: False
    rig.run(3)

    [lost] = [each for each in client.reports if isinstance(each, MapWritesLost)]
    assert lost == MapWritesLost("two", 1, ("/a",))
    assert "write '/a' again, and give a pair a witness" in str(lost)
    assert not [each for each in other.reports if isinstance(each, MapWritesLost)]
    assert two.core.active
    assert not one.core.active
    assert one.contents() == two.contents() == client.contents() == other.contents() == {"/b": b"2"}


def test_a_client_hears_which_of_its_confirmed_deletions_the_other_side_has_not() -> None:
    rig = Rig(limits=replace(MAP_LIMITS, erased_max=3))
    one, two, client = begun(rig)
    other = rig.client("other", servers=BOTH)
    for key in (b"/a", b"/b", b"/c", b"/d", b"/e", b"/f"):
        client.write((key, b"1"))
    client.write((b"/b", b""))  # both servers have this one
    rig.run(0.1)
    sides = ({"one", "client"}, {"two", "other"})
    rig.lose = lambda source, target, frames: not any({source, target} <= side for side in sides)
    rig.run(3)
    client.write((b"/f", b""))  # forgotten behind three others
    client.write((b"/a", b""), (b"/d", b""))
    client.write((b"/c", b""))
    client.write((b"/c", b"2"))  # its value is gone, not its deletion
    other.write((b"/e", b"2"))
    rig.run(0.1)
    refused = client.write((b"/e", b""), expected=((b"/e", b"another"),))
    rig.run(0.1)
    assert client.outcomes[refused] is False
    rig.lose = lambda source, target, frames: False
    rig.run(3)

    [lost] = [each for each in client.reports if isinstance(each, MapWritesLost)]
    assert lost == MapWritesLost("two", 1, ("/c",), 2, ("/a", "/d"))
    assert "write '/c' again, delete '/a', '/d' again, and give a pair a witness" in str(lost)
    assert not [each for each in other.reports if isinstance(each, MapWritesLost)]
    assert one.contents() == two.contents() == client.contents()


@pytest.mark.parametrize("witness", [False, True])
def test_numbers_that_come_again_are_of_the_new_history(witness: bool) -> None:
    rig = Rig()
    one, two, client = begun(rig, witness=witness)
    other = rig.client("other", servers=BOTH)
    rig.run(1)
    rig.lose = lambda source, target, frames: "one" in (source, target) and "client" not in (source, target)
    for number in range(12):  # it passes these on to its client, one by one
        client.write((b"/void/%d" % number, b"x"))
        rig.run(0.04)
    rig.kill("client")
    rig.run(4)
    other.write((b"/two", b"1"))
    rig.run(1)
    rig.lose = lambda source, target, frames: False
    rig.run(4)
    rig.kill("two")
    rig.run(6)
    two = rig.paired("two", witness=witness)
    rig.run(4)
    assert one.core.active
    assert one.core.star.confirms == "paired", one.core.star.story()
    tickets = []
    for number in range(12):  # with the same numbers
        tickets.append(other.write((b"/new/%d" % number, b"y")))
        rig.run(0.04)
    rig.run(1)
    assert not [each for each in tickets if lost(other, each)]
    assert other.contents() == one.contents() == two.contents()
    rig.kill("one")
    rig.run(3)

    assert two.core.active
    assert set(two.contents()) == {"/two", *[f"/new/{number}" for number in range(12)]}


def test_with_a_witness_a_partition_makes_one_and_nothing_is_lost() -> None:
    rig = Rig()
    one, two, client = begun(rig, witness=True)
    other = rig.client("other", servers=BOTH)
    rig.run(0.1)
    sides = ({"one", "client", "witness"}, {"two", "other"})
    rig.lose = lambda source, target, frames: not any({source, target} <= side for side in sides)
    rig.run(3)
    done, waits = client.write((b"/a", b"1")), other.write((b"/b", b"2"))
    rig.run(1)
    assert client.outcomes[done] is True
    assert waits not in other.outcomes
    rig.lose = lambda source, target, frames: False
    rig.run(3)

    assert other.outcomes[waits] is True
    assert one.contents() == two.contents() == {"/a": b"1", "/b": b"2"}


def test_who_was_not_in_step_does_not_take_over() -> None:
    rig = Rig()
    _one, two, client = begun(rig)
    rig.kill("two")
    rig.run(2)
    ticket = client.write((b"/a", b"1"))
    rig.run(0.1)
    assert client.outcomes[ticket] is True
    rig.kill("one")
    two = rig.paired("two")
    rig.run(3)

    assert not two.core.active
    assert client.contents() == {"/a": b"1"}


def test_a_partner_whose_copy_stalls_is_left_and_found_again() -> None:
    rig = Rig()
    one, two, client = begun(rig)
    rig.lose = lambda source, target, frames: source == "one" and target == "two" and frames[0] == say.MARK
    ticket = client.write((b"/a", b"1"))
    rig.run(4)
    assert client.outcomes[ticket] is True
    assert one.core.star.confirms == "alone"
    rig.lose = lambda source, target, frames: False
    rig.run(6)

    assert one.core.star.confirms == "paired"
    assert two.contents() == {"/a": b"1"}


def test_what_the_guides_clients_publish_to_both_is_done_once() -> None:
    rig = Rig()
    one, two, client = begun(rig)
    for number in range(5):
        update = chp.encode_update(chp.Update(b"/%d" % number, 0, bytes([number]) * 16, b"", b"x"))
        two.update(update)
        if number < 3:
            one.update(update)
    rig.run(0.1)
    assert len(two.core.core.pending) == 2
    rig.kill("one")
    rig.run(1)

    assert set(client.contents()) == {f"/{number}" for number in range(5)}
    assert len(two.core.core.pending) == 0


def test_the_data_of_a_single_server_is_worth_more_than_none() -> None:
    rig = Rig()
    single = rig.server("two", loaded=rig.paired("two", durable=True).loaded())
    single.disk = True
    client = rig.client(servers=BOTH)
    rig.run(0.1)
    client.write((b"/a", b"1"))
    rig.run(0.1)
    one, two = rig.paired("one", durable=True), rig.paired("two", durable=True)
    rig.run(3)

    assert one.contents() == two.contents() == {"/a": b"1"}


def test_a_write_that_the_disk_has_not_taken_when_the_partner_copies_is_not_taken_for_done_there() -> None:
    rig = Rig()
    one = rig.paired("one", durable=True)
    client = rig.client(servers=BOTH)
    rig.run(3)
    before = client.write((b"/before", b"1"))
    rig.run(0.1)
    assert client.outcomes[before] is True
    one.disk = False  # it is slow
    late = client.write((b"/late", b"2"))
    rig.run(0.1)
    assert one.commits
    assert late not in client.outcomes
    two = rig.paired("two", durable=True)
    rig.run(1)
    assert one.core.star.confirms == "paired"
    assert one.commits
    assert two.contents() == {"/before": b"1"}
    rig.kill("one")
    rig.run(2)

    assert two.core.active
    assert client.outcomes[late] is True
    assert two.contents() == client.contents() == {"/before": b"1", "/late": b"2"}


def test_a_server_that_gave_up_serving_takes_nothing_from_one_that_knows_of_less() -> None:
    rig = Rig()
    _one, two, client = begun(rig)
    rig.kill("one")
    rig.run(2)
    one = rig.paired("one")
    rig.run(2)
    done = client.write((b"/a", b"1"))
    rig.run(0.1)
    assert two.core.active
    assert client.outcomes[done] is True
    rig.kill("client")  # which would tell of the term
    rig.paused.add("two")
    rig.kill("one")
    rig.run(2)
    rig.paused.clear()
    rig.run(1)
    assert not two.core.active  # it cannot know whether the other one had taken over
    rig.lose = lambda source, target, frames: {source, target} == {"one", "two"}
    one = rig.paired("one")  # with nothing
    other = rig.client("other", servers=("one",))
    rig.run(3)
    other.write((b"/b", b"2"))
    rig.run(0.1)
    assert one.core.active
    assert one.core.star.term < two.core.star.record.term
    rig.lose = lambda source, target, frames: {source, target} == {"one", "two"} and len(frames) == 1  # but for beats
    rig.run(3)
    assert two.contents() == {"/a": b"1"}
    rig.lose = lambda source, target, frames: False
    rig.run(5)

    assert one.contents() == two.contents() == {"/a": b"1"}


def test_what_is_held_by_a_server_in_doubt_is_bounded_in_bytes_and_done_in_the_end() -> None:
    rig = Rig()
    one, _two, client = begun(rig)
    rig.kill("two")
    rig.run(2)
    rig.paused.add("one")
    rig.run(2)
    rig.paused.clear()
    body = b"x" * MIB
    tickets = [client.write((b"/%d" % number, body)) for number in range(24)]
    for number in range(40):
        one.update(chp.encode_update(chp.Update(b"/plain/%d" % number, 0, bytes([number]) * 16, b"", body)))
    rig.run()
    assert not one.core.star.serving
    held = [len(frame) for _, frames in one.core._held for frame in frames]
    assert 16 * MIB < sum(held) <= 32 * MIB
    rig.run(5)

    assert one.core.active
    assert not [each for each in tickets if lost(client, each)]
    assert {f"/{number}" for number in range(24)} <= set(one.contents())


def test_however_many_steps_failed_no_message_to_the_partner_is_large() -> None:
    rig = Rig(SMALL)
    one, _two, client = begun(rig)
    rig.kill("two")
    client.write((b"/a", b"1"))
    rig.run(2)
    refused = dict.fromkeys(range(1, 200), (1, "another value"))
    names = [bytes([place]) * 10 for place in range(5)]
    for name in names:
        session = one.core.ledger.session(name, rig.now)
        session.taken = session.applied = 200
        session.failed = dict(refused)
    one.sent.clear()
    two = rig.paired("two")
    rig.run(3)

    assert one.core.star.confirms == "paired"
    assert max([len(frames[-1]) for to, frames in one.sent if to.startswith(b"two/")]) < 1_000
    for name in names:
        failed = two.core.ledger.sessions[name].failed
        assert {number: code for number, (code, _) in failed.items()} == dict.fromkeys(refused, 1)


def test_a_snapshot_is_durable_with_the_numbers_of_its_writers_or_not_at_all() -> None:
    rig = Rig()
    one, two, client = begun(rig, durable=True)
    client.write((b"/a", b"1"))
    rig.run(0.1)
    rig.kill("two")
    rig.run(2)
    other = rig.client("other", servers=BOTH)
    other.write((b"/b", b"2"))
    tickets = [client.write((b"/%d" % number, b"x")) for number in range(50)]
    rig.run(1)
    two = rig.paired("two", durable=True)
    two.disk = False
    before = {name: session.applied for name, session in two.core.ledger.sessions.items()}
    sequence = two.core.ledger.sequence
    rig.run(1)
    while len(two.contents()) < 52:
        two.commit()  # of Binary Star's memory
    (snapshot,) = two.commits

    kinds = [type(each).__name__ for each in snapshot.operations]
    assert kinds.count("PutRow") == 51  # all that it did not have
    assert kinds.count("WriterRow") >= 2
    assert two.core.core.confirmed == 0

    two.commits.clear()
    two.act(two.core.handle_done(snapshot, StorageError("the disk is full"), rig.now))

    assert two.contents() == {"/a": b"1"}
    assert {name: session.applied for name, session in two.core.ledger.sessions.items()} == before
    assert two.core.ledger.sequence == sequence
    assert two.core.core.confirmed == 0
    assert not [each for each in tickets if lost(client, each)]
    assert one.core.active
    assert not two.core.active
