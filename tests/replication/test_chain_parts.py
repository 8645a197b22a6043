"""The parts of a chain: its messages, its state, who is to be a member, and a client."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from chappe.core import Report, Send
from chappe.errors import ProtocolError, UsageError
from chappe.limits import CHAIN_LIMITS
from chappe.replication.chain import configuration, messages
from chappe.replication.chain.client import ChainClient, Finished
from chappe.replication.chain.configuration import NOBODY, Configuration
from chappe.replication.chain.downstream import Giver, Taker
from chappe.replication.chain.log import ChainState, EntryLog
from chappe.replication.chain.membership import APART, ChainView, wanted
from chappe.replication.chain.messages import (
    EXPIRED,
    OK,
    RAISED,
    STEP_BYTES,
    STEP_MAX,
    Ack,
    Append,
    Beat,
    Chain,
    Do,
    Done,
    Entry,
    Join,
    Listen,
    Open,
    Opened,
    Piece,
    Read,
    Resume,
    Says,
    Want,
)
from chappe.replication.chain.replica import RESULT_BYTES, ChainReplica
from chappe.replication.chain.serving import ReadingRounds
from chappe.replication.chain.wire import unpack_answers, unpack_between, unpack_requests

ONE = b"\x91"  # the head of an array of one message
ENTRY = Entry(3, 1_000, 1, 2, 1, b"do")


# -- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "vector"),
    [
        (Beat(1, 2, 3, 4, 5, 6, 7), "99a46265617401020304050607c2"),
        (Resume(1, ((2, 3),), 4), "94a6726573756d650191920203 04".replace(" ", "")),
        (
            Append(1, 2, (ENTRY,), 3, 4, True),
            "97a6617070656e6401029197 03cd03e8010201c402646f900304c3".replace(" ", ""),
        ),
        (Ack(1, 2, 3, 4, 5, True), "97a361636b0102030405c3"),
        (Join(1, 2, 3, True), "95a46a6f696e010203c3"),
        (Piece(1, 2, 3, 4, 5, 6, b"x"), "98a57069656365010203040506c40178"),
        (Want(1, 2, 3, 4), "95a477616e7401020304"),
        (messages.Confirm(1, 2, 3), "94a7636f6e6669726d010203"),
        (messages.Confirmed(1, 2, 3, 4, 5), "96a9636f6e6669726d65640102030405"),
    ],
)
def test_what_servers_say_and_its_bytes(message: messages.Link, vector: str) -> None:
    frame = messages.encode(message)
    assert frame.hex() == vector
    assert unpack_between(ONE + frame) == [message]
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            unpack_between(ONE + frame[:end])


def test_an_older_server_that_acknowledges_takes_more() -> None:
    assert unpack_between(ONE + bytes.fromhex("96a361636b0102030405")) == [Ack(1, 2, 3, 4, 5, full=False)]


@pytest.mark.parametrize(
    ("message", "vector"),
    [
        (Open(b"n"), "92a46f70656ec4016e"),
        (Listen(5, b"n"), "93a66c697374656e05c4016e"),
        (Do(5, 2, 1, b"do"), "96a2646f050201c402646f90"),
        (Do(5, 2, 1, b"do", (b"too",)), "96a2646f050201c402646f91c403746f6f"),
        (Read(7, b"q"), "93a47265616407c40171"),
    ],
)
def test_what_clients_say_and_its_bytes(message: messages.Request, vector: str) -> None:
    assert messages.encode(message).hex() == vector
    assert unpack_requests(ONE + bytes.fromhex(vector)) == [message]
    with pytest.raises(ProtocolError):
        unpack_answers(ONE + bytes.fromhex(vector))


@pytest.mark.parametrize(
    ("message", "vector"),
    [
        (Opened(b"n", 5), "93a66f70656e6564c4016e05"),
        (Done(5, 2, OK, b"r", 3, True), "99a4646f6e65050200c4017203c30090"),
        (Done(5, 2, OK, b"r", 3, True, 1, ((RAISED, b"s"),)), "99a4646f6e65050200c4017203c301919201c40173"),
        (Says(7, OK, b"r"), "94a4736179730700c40172"),
        (Chain(4, (0, 2), "why"), "94a5636861696e04920002a3776879"),
    ],
)
def test_what_clients_hear_and_its_bytes(message: messages.Answer, vector: str) -> None:
    assert messages.encode(message).hex() == vector
    assert unpack_answers(ONE + bytes.fromhex(vector)) == [message]


def test_a_configuration_that_cannot_be_is_none() -> None:
    good = Configuration(((1, 7), (0, 8)), (5, 6), (False, False), True)
    assert configuration.decode(configuration.encode(good)) == good
    for wrong in (
        NOBODY,
        Configuration((), (5, 6), (False, False), True),
        Configuration(((2, 7),), (5, 6), (False, False), True),
        Configuration(((0, 7), (0, 8)), (5, 6), (False, False), True),
        Configuration(((0, 0),), (5, 6), (False, False), True),
        Configuration(((0, 7),), (5, 6), (False,), True),
    ):
        with pytest.raises(ProtocolError):
            configuration.decode(configuration.encode(wrong))


# -- the state ------------------------------------------------------------------------------------------------------


class Sum:
    """A machine that adds."""

    def __init__(self) -> None:
        self.total = 0

    def apply(self, command: bytes) -> bytes:
        self.total += int(command)
        return b"%d" % self.total

    def read(self, query: bytes) -> bytes:
        return b"%d" % self.total

    def snapshot(self) -> bytes:
        return b"%d" % self.total

    def restore(self, state: bytes) -> None:
        self.total = int(state or b"0")


def opened(**limits: object) -> ChainReplica:
    replica = ChainReplica(Sum(), replace(CHAIN_LIMITS, **limits))  # type: ignore[arg-type]
    assert replica.apply(1, Entry(1, 1_000_000, 0, 0, 0, b"nonce")) == ((OK, b""),)
    return replica


def test_a_result_is_known_until_the_client_has_it() -> None:
    replica = opened()
    assert replica.apply(2, Entry(1, 1_000_000, 1, 1, 0, b"5")) == ((OK, b"5"),)
    assert replica.result(1, 1) == ((OK, b"5"),)
    assert replica.apply(3, Entry(1, 1_000_000, 1, 2, 1, b"2")) == ((OK, b"7"),)
    assert (replica.result(1, 1), replica.last(1)) == (None, 2)


def test_an_entry_that_comes_twice_is_done_once() -> None:
    replica = opened()
    for index in (2, 3):
        assert replica.apply(index, Entry(1, 1_000_000, 1, 1, 0, b"5")) == ((OK, b"5"),)


def test_what_the_machine_raises_is_the_result() -> None:
    replica = opened()
    outcomes = replica.apply(2, Entry(1, 1_000_000, 1, 1, 0, b"five", (b"5",)))
    assert outcomes is not None
    assert outcomes[0][0] == RAISED
    assert outcomes[0][1].startswith(b"ValueError: ")
    assert outcomes[1:] == ((OK, b"5"),)  # the rest of the step is done all the same


def test_a_session_ends_by_the_times_in_the_log() -> None:
    replica = opened(session_s=10.0)
    assert replica.apply(2, Entry(1, 11_000_000, 1, 1, 0, b"5")) == ((OK, b"5"),)
    replica.apply(3, Entry(1, 21_000_001, 0, 0, 0, b"other"))
    assert replica.last(1) is None
    assert replica.apply(4, Entry(1, 21_000_001, 1, 2, 0, b"5")) == ((EXPIRED, b""),)


def test_a_clock_that_jumps_ahead_ends_no_session_and_a_jump_counts_as_a_short_pause() -> None:
    replica = opened(session_s=100.0, pause_s=60.0)
    day_us = 86_400_000_000
    replica.apply(2, Entry(1, day_us, 0, 0, 0, b"other"))
    assert replica.now_us == day_us  # the machine is told what the head wrote
    assert replica.apply(3, Entry(1, day_us, 1, 1, 0, b"5")) == ((OK, b"5"),)
    other = ChainReplica(Sum(), replica._limits)
    other.restore(3, (replica.snapshot(),))
    for each in (replica, other):
        each.apply(4, Entry(1, 2 * day_us, 0, 0, 0, b"third"))
        assert each.last(1) == 1
        each.apply(5, Entry(1, 3 * day_us, 0, 0, 0, b"fourth"))
        assert each.last(1) is None


def test_results_have_a_bound_in_bytes_and_the_oldest_of_who_is_least_active_go() -> None:
    replica = opened(results_bytes=3 * (RESULT_BYTES + 1))
    replica.apply(2, Entry(1, 1_000_000, 0, 0, 0, b"other"))
    for index, seq in ((3, 1), (4, 2)):
        replica.apply(index, Entry(1, 1_000_000, 1, seq, 0, b"1"))
    for index, seq in ((5, 1), (6, 2)):
        replica.apply(index, Entry(1, 1_000_000, 2, seq, 0, b"1"))

    assert [replica.result(1, seq) for seq in (1, 2)] == [((EXPIRED, b""),), ((OK, b"2"),)]
    assert [replica.result(2, seq) for seq in (1, 2, 3)] == [((OK, b"3"),), ((OK, b"4"),), None]
    for index, seq in ((7, 3), (8, 4), (9, 5)):
        replica.apply(index, Entry(1, 1_000_000, 2, seq, 0, b"1"))
    assert [replica.result(2, seq) for seq in (1, 2, 3)] == [((EXPIRED, b""),), ((EXPIRED, b""),), ((OK, b"5"),)]
    assert replica.result(1, 2) == ((EXPIRED, b""),)
    assert replica.last(1) == 2  # the session goes on
    assert replica.apply(10, Entry(1, 1_000_000, 2, 6, 5, b"1")) == ((OK, b"8"),)
    assert replica.result(2, 5) is None  # the client has said that it has that
    replica.apply(11, Entry(1, 1_000_000, 2, 7, 6, b"1" + b"0" * 500))  # more than all may have, by itself
    assert replica.result(2, 7) is not None
    other = ChainReplica(Sum(), replica._limits)
    other.restore(11, (replica.snapshot(),))
    assert other._result_bytes == replica._result_bytes
    for each in (replica, other):
        each.apply(12, Entry(1, 1_000_000, 0, 0, 0, b"third"))
    assert other.snapshot() == replica.snapshot()


def test_of_too_many_sessions_the_least_recently_used_one_ends() -> None:
    replica = opened(sessions_max=2)
    replica.apply(2, Entry(1, 1_000_000, 0, 0, 0, b"other"))
    replica.apply(3, Entry(1, 1_000_000, 1, 1, 0, b"5"))
    replica.apply(4, Entry(1, 1_000_000, 0, 0, 0, b"third"))
    assert [replica.last(each) for each in (1, 2, 4)] == [1, None, 0]


def test_a_restored_state_goes_on_as_the_one_it_was_made_of() -> None:
    replica, other = opened(), ChainReplica(Sum(), CHAIN_LIMITS)
    replica.apply(2, Entry(1, 1_000_000, 1, 1, 0, b"5"))
    other.restore(2, (replica.snapshot(),))
    following = Entry(1, 2_000_000, 1, 2, 0, b"1")
    assert other.apply(3, following) == replica.apply(3, following)
    assert other.snapshot() == replica.snapshot()
    with pytest.raises(ProtocolError):
        other.restore(2, (b"\xc1",))


def test_a_log_can_be_cut_at_both_ends() -> None:
    log = EntryLog()
    for number in range(5):
        log.append(Entry(1 + number // 3, 0, 1, number, 0, b"abc"))
    log.cut(4)
    log.shorten(2)
    assert (log.base, log.end, log.base_term, log.term(4), log.bytes) == (2, 4, 1, 2, 2 * 43)
    assert [each.seq for each in log.after(3)] == [3]
    assert [each.seq for each in log.after(2, bytes_max=1)] == [2]
    assert [each.seq for each in log.after(2, bytes_max=2 * 43)] == [2, 3]
    assert log.after(4, bytes_max=1) == ()


def test_reads_that_wait_have_a_bound_in_bytes() -> None:
    reads = ReadingRounds(10, 7)
    assert reads.add("a", 1, b"123", 0)
    assert reads.add("a", 2, b"1234", 0)
    assert not reads.add("a", 3, b"1", 0)
    reads.ask()
    reads.vote(0, 1, 1)
    assert [each.token for each in reads.ready(0)] == [1, 2]

    assert reads.add("a", 3, b"1234567", 0)
    assert not reads.add("a", 4, b"1", 0)
    reads.clear()
    assert reads.add("a", 4, b"1234567", 0)


def test_a_read_that_comes_again_waits_once() -> None:
    reads = ReadingRounds(2, 100)
    for _ in range(10):
        assert reads.add("a", 1, b"q", 0)
    assert reads.add("b", 1, b"q", 0)
    reads.ask()
    reads.vote(0, 1, 1)
    assert [(each.client, each.token) for each in reads.ready(0)] == [("a", 1), ("b", 1)]
    assert reads.add("a", 1, b"q", 0)  # asked for again since
    assert len(reads) == 1
    reads.clear()
    assert reads.add("a", 1, b"q", 0)
    assert len(reads) == 1


def test_two_logs_have_in_common_what_the_same_terms_have_numbered() -> None:
    def log(*terms: int, base: int = 0) -> EntryLog:
        return EntryLog(base, terms[0], [Entry(term, 0, 1, 1, 0, b"") for term in terms[1:]])

    assert log(0, 1, 1, 3).common(log(0, 1, 1, 3).runs()) == 3
    assert log(0, 1, 1).common(log(0, 1, 1, 1, 1).runs()) == 2  # the other one has more of the same
    assert log(0, 1, 1, 3).common(log(0, 1, 1, 2, 2).runs()) == 2
    assert log(0, 1, 2, 2).common(log(0, 1, 3).runs()) == 1
    assert log(0, 1).common(log(0, 2).runs()) == 0
    assert log(2, 2, 3, base=5).common(log(0, 1, 1, 2, 2, 2, 2, 4).runs()) == 6
    assert log(2, 3, base=5).common(log(0, 1, 1).runs()) is None


def test_a_state_travels_in_pieces_and_what_is_lost_is_asked_for_again() -> None:
    limits = replace(CHAIN_LIMITS, piece_bytes=10, pieces_ahead=2)
    replica, other = opened(piece_bytes=10), ChainReplica(Sum(), limits)
    replica.apply(2, Entry(1, 1_000_000, 1, 1, 0, b"5"))
    making = replica.make()
    assert making.step(1 << 20)
    state = ChainState(7, 2, tuple(making.chunks))
    assert {len(each) for each in state.chunks[:-1]} == {10}
    giver, taker = Giver(state, making.check, 1, limits), Taker(other, limits)

    assert taker.take(giver.first()) is None
    want = taker.want()
    assert want == Want(1, 7, 10, 30)
    assert [each.offset for each in giver.more(want)] == [10, 20]  # both are lost
    taken: list[ChainState | None] = []
    while None in taken or not taken:
        want = taker.want()
        assert want is not None
        taken = [taker.take(each) for each in giver.more(want)][-1:]
    assert taken == [state]
    taker.restored.finish(7)
    assert other.snapshot() == replica.snapshot()


def test_a_state_that_was_damaged_on_its_way_is_not_taken() -> None:
    replica = ChainReplica(Sum(), CHAIN_LIMITS)
    taker = Taker(replica, CHAIN_LIMITS)
    making = opened().make()
    assert making.step(1_000)
    state = ChainState(7, 2, tuple(making.chunks))
    piece = Giver(state, making.check, 1, CHAIN_LIMITS).first()
    damaged = piece.data[:-1] + b"9"
    assert taker.take(Piece(1, 7, 2, len(damaged), piece.check, 0, damaged)) is None
    with pytest.raises(ProtocolError):
        taker.take(Piece(1, 7, 2, len(damaged), piece.check, 0, b"\xc1\0\0\0\1" + damaged[5:]))
    assert taker.take(piece) == state
    assert replica.applied == 0  # until its owner has it finished


# -- who is a member ------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")
THREE = Configuration(((0, 1), (1, 2), (2, 3)), (11, 12, 13), (False,) * 3, True)
ALL = 0b111


def beat(place: int, **fields: object) -> Beat:
    usual = {"number": 4, "disk": 11 + place, "life": 1 + place, "end": 0, "synced": 0, "committed": 0, "hears": ALL}
    return Beat(**{**usual, **fields})  # type: ignore[arg-type]


def known(*places: int, **fields: object) -> ChainView:
    hears = sum(1 << place for place in places)
    beats = {place: beat(place, hears=hears & ~(1 << place)) for place in places}
    usual = {
        "number": 4, "configuration": THREE, "durable": True, "names": NAMES, "beats": beats, "slow": -1, "asked": {},
        "patient": False,
    }  # fmt: skip
    return ChainView(**{**usual, **fields})  # type: ignore[arg-type]


def test_nothing_is_wanted_where_all_is_well() -> None:
    assert wanted(known(0, 1, 2)).configuration is None


@pytest.mark.parametrize(("here", "left"), [((1, 2), (1, 2)), ((0, 2), (0, 2)), ((0, 1), (0, 1))])
def test_who_is_not_heard_is_left_out_and_the_others_keep_their_order(
    here: tuple[int, ...], left: tuple[int, ...]
) -> None:
    found = wanted(known(*here)).configuration
    assert found is not None
    assert found.places == left


def test_a_minority_wants_nothing_and_says_why() -> None:
    found = wanted(known(1))
    assert found.configuration is None
    assert found.why == "no majority of the servers is here, without a, c nothing can be decided"


def test_whose_life_is_over_is_no_member() -> None:
    beats = {**known(0, 1, 2).beats, 1: beat(1, life=9)}
    found = wanted(known(beats=beats))
    assert found.leaving == ((1, "it was restarted"),)


def test_of_neighbours_that_do_not_hear_each_other_the_one_that_fewer_hear_leaves() -> None:
    beats = {0: beat(0, hears=0b110), 1: beat(1, hears=0b001), 2: beat(2, hears=0b011)}
    assert wanted(known(beats=beats)).leaving == ((2, APART),)
    assert wanted(known(beats=beats)).doubtful


def test_the_slow_one_leaves_but_not_the_last() -> None:
    assert wanted(known(0, 1, 2, slow=1)).leaving == ((1, "it has been too slow"),)
    alone = Configuration(((1, 2),), (11, 12, 13), (False,) * 3, True)
    assert wanted(known(0, 1, 2, slow=1, configuration=alone)).configuration is None


def test_a_lost_disk_gets_its_vote_back_by_the_others() -> None:
    beats = {**known(0, 1, 2).beats, 2: beat(2, life=9, disk=99)}
    found = wanted(known(beats=beats)).configuration
    assert found == Configuration(((0, 1), (1, 2)), (11, 12, 99), (False,) * 3, True)


def test_a_chain_begins_when_all_hear_all() -> None:
    assert "all its servers are there" in wanted(known(0, 1, number=0)).why
    found = wanted(known(0, 1, 2, number=0)).configuration
    assert found == THREE


def test_if_all_restarted_those_with_their_disks_begin_again() -> None:
    beats = {place: beat(place, life=20 + place, hears=0b110) for place in (1, 2)}
    assert wanted(known(beats=beats, patient=True)).why == "waits for a, who has all that was confirmed"
    found = wanted(known(beats=beats)).configuration
    assert found is not None
    assert found.chain == ((1, 21), (2, 22))


def test_in_memory_nothing_is_left_when_all_restarted() -> None:
    beats = {place: beat(place, life=20 + place) for place in range(3)}
    memory = Configuration(THREE.chain, THREE.disks, THREE.out, False)
    assert "it is lost" in wanted(known(beats=beats, configuration=memory)).why


# -- a client -------------------------------------------------------------------------------------------------------


def test_a_client_opens_a_session_and_numbers_its_commands() -> None:
    client = ChainClient(3, b"n", now=0.0)
    token = client.do(b"one", 0.0)
    assert client.flush(0.0) == [Send(0, Open(b"n0"))]
    assert client.flush(0.0) == []
    client.handle_message(0, Chain(1, (0, 1, 2), ""), 0.0)

    assert client.handle_message(2, Opened(b"n0", 7), 0.0) == [Send(2, Listen(7, b"-"))]
    assert client.flush(0.0) == [Send(0, Do(7, 1, 0, b"one"))]
    finished = client.handle_message(2, Done(7, 1, OK, b"r", 3, True), 0.0)
    assert finished == [Report(Finished((token,), ((OK, b"r"),), 3, True))]
    client.do(b"two", 0.0)
    assert client.flush(0.0) == [Send(0, Do(7, 2, 1, b"two"))]


def test_commands_that_come_together_leave_as_one_step_and_are_answered_in_parts() -> None:
    client = ChainClient(3, b"n", now=0.0)
    client.handle_message(0, Chain(1, (0, 1, 2), ""), 0.0)
    tokens = [client.do(each, 0.0) for each in (b"one", b"two", b"three")]
    client.flush(0.0)
    client.handle_message(2, Opened(b"n0", 7), 0.0)
    together = Send(0, Do(7, 1, 0, b"one", (b"two", b"three")))
    assert client.flush(0.0) == [together]

    last = client.handle_message(2, Done(7, 1, OK, b"c", 3, True, 2), 0.0)
    assert last == [Report(Finished((tokens[2],), ((OK, b"c"),), 3, True))]
    assert together in client.handle_timeout(client.next_timeout())  # as it was
    both = client.handle_message(2, Done(7, 1, OK, b"a", 3, True, 0, ((RAISED, b"b"), (OK, b"c"))), 0.0)
    assert both == [Report(Finished((tokens[0], tokens[1]), ((OK, b"a"), (RAISED, b"b")), 3, True))]
    client.do(b"four", 0.0)
    assert client.flush(0.0) == [Send(0, Do(7, 2, 1, b"four"))]


def test_a_step_is_bounded_by_commands_and_by_bytes() -> None:
    client = ChainClient(1, b"n", now=0.0)
    for size in (STEP_BYTES + 1, STEP_BYTES, 1, *([0] * STEP_MAX)):
        client.do(bytes(size), 0.0)
    client.flush(0.0)
    client.handle_message(0, Opened(b"n0", 7), 0.0)
    steps = [each.message for each in client.flush(0.0) if isinstance(each, Send)]
    assert [1 + len(each.also) for each in steps if isinstance(each, Do)] == [1, 1, STEP_MAX, 1]


def test_a_client_that_hears_of_a_newer_chain_says_it_all_again() -> None:
    client = ChainClient(3, b"n", now=0.0)
    client.do(b"one", 0.0)
    client.handle_message(0, Chain(1, (0, 1, 2), ""), 0.0)
    client.handle_message(2, Opened(b"n0", 7), 0.0)
    client.flush(0.0)

    actions = client.handle_message(1, Chain(2, (1, 2), ""), 0.0)

    assert Send(1, Do(7, 1, 0, b"one")) in actions
    assert client.handle_message(1, Chain(1, (0, 1, 2), ""), 0.0) == []


def test_commands_of_a_session_that_is_over_end_so_and_the_next_one_opens_another() -> None:
    client = ChainClient(1, b"n", now=0.0)
    token = client.do(b"one", 0.0)
    client.handle_message(0, Opened(b"n0", 7), 0.0)
    client.flush(0.0)

    assert client.handle_message(0, Done(7, 1, EXPIRED, b"", 1, True), 0.0) == [
        Report(Finished([token], [(EXPIRED, b"")]))
    ]
    client.do(b"two", 0.0)
    assert client.flush(0.0) == [Send(0, Open(b"n1"))]


def test_a_result_that_is_forgotten_ends_no_session_of_a_client_that_has_it() -> None:
    client = ChainClient(1, b"n", now=0.0)
    client.do(b"one", 0.0)
    client.handle_message(0, Opened(b"n0", 7), 0.0)
    client.flush(0.0)
    client.handle_message(0, Done(7, 1, OK, b"r", 1, True), 0.0)

    assert client.handle_message(0, Done(7, 1, EXPIRED, b"", 1, True), 0.0) == []

    client.do(b"two", 0.0)
    assert client.flush(0.0) == [Send(0, Do(7, 2, 1, b"two"))]


def test_what_is_abandoned_is_never_said_again() -> None:
    client = ChainClient(1, b"n", now=0.0)
    client.do(b"one", 0.0)
    client.read(b"q", 0.0)
    client.handle_message(0, Opened(b"n0", 7), 0.0)
    client.flush(0.0)

    client.abandon()

    assert client.next_timeout() == math.inf
    assert client.handle_timeout(10.0) == []
    assert client.handle_message(0, Done(7, 1, OK, b"r", 1, True), 10.0) == []
    client.do(b"two", 10.0)
    assert client.flush(10.0) == [Send(0, Open(b"n1"))]


def test_no_servers_are_an_error_at_once() -> None:
    with pytest.raises(UsageError, match="name at least one"):
        ChainClient(0, b"n", now=0.0)
