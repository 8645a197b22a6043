"""What a chain asks of machines: time, files of their own, bounded results; and what it keeps of answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from chappe.limits import CHAIN_LIMITS
from chappe.replication.chain.messages import EXPIRED, OK, RAISED, RESULT_BYTES_MAX, Entry
from chappe.replication.chain.origins import FEW
from chappe.replication.chain.replica import ChainReplica


class Times:
    """Answers with the time that it is told."""

    now_us = 0

    def apply(self, command: bytes) -> bytes:
        """The time, or as much as is wanted."""
        return bytes(int(command)) if command else b"%d" % self.now_us

    def read(self, query: bytes) -> bytes:
        """As much as is wanted."""
        return bytes(int(query))

    def snapshot(self) -> bytes:
        """Nothing."""
        return b""

    def restore(self, state: bytes) -> None:
        """Nothing."""


class Filed(Times):
    """Has its state elsewhere; remembers how it was restored."""

    def __init__(self) -> None:
        self.restored: list[bytes] = []

    def snapshot(self) -> bytes:
        """What of its files is meant."""
        return b"up to 7"

    def transfer(self) -> bytes:
        """All of them."""
        return b"everything"

    def restore(self, state: bytes) -> None:
        """Note it."""
        self.restored.append(state)


def opened(machine: Times, **limits: float) -> ChainReplica:
    """With one session, 1."""
    made = ChainReplica(machine, replace(CHAIN_LIMITS, **limits))  # type: ignore[arg-type]
    made.apply(1, Entry(1, 5, 0, 0, 0, b"me"))
    return made


def transferred(replica: ChainReplica) -> tuple[bytes, ...]:
    """A small state for another server."""
    making = replica.make(transfer=True)
    assert making.step(1_000)
    return tuple(making.chunks)


def test_a_machine_is_told_when_the_head_numbered_a_command() -> None:
    replica = opened(Times())

    assert replica.apply(2, Entry(1, 1_000, 1, 1, 0, b"")) == ((OK, b"1000"),)
    assert replica.apply(3, Entry(1, 900, 1, 2, 0, b"")) == ((OK, b"1000"),)  # it never goes back


def test_a_machine_with_files_is_told_what_is_meant_and_where_to_begin() -> None:
    machine, other = Filed(), Filed()
    replica = ChainReplica(machine, CHAIN_LIMITS)
    replica.begin()

    ChainReplica(other, CHAIN_LIMITS).restore(9, transferred(replica))
    ChainReplica(machine, CHAIN_LIMITS).restore(9, (replica.snapshot(),))
    assert machine.restored == [b"", b"up to 7"]
    assert other.restored == [b"everything"]


def test_a_machine_without_files_begins_as_it_is() -> None:
    replica = opened(Times())
    replica.begin()

    assert (replica.snapshot(),) == transferred(replica)


def test_a_result_that_is_too_large_is_an_error_at_all_members() -> None:
    replica = opened(Times())
    size = RESULT_BYTES_MAX + 1

    ((outcome, text),) = replica.apply(2, Entry(1, 5, 1, 1, 0, b"%d" % size)) or ((OK, b""),)
    assert (outcome, text[:33]) == (RAISED, b"a result of 4,194,305 bytes, of 4")
    assert replica.read(b"%d" % size)[0] == RAISED
    assert replica.read(b"3") == (OK, bytes(3))


def test_results_are_kept_until_the_client_says_that_it_has_them() -> None:
    replica = opened(Times())
    for seq in range(1, 5):
        replica.apply(1 + seq, Entry(1, 5, 1, seq, 0, b""))
    replica.apply(6, Entry(1, 5, 1, 5, 3, b""))

    assert [replica.result(1, seq) is not None for seq in range(1, 6)] == [False, False, False, True, True]
    assert replica.apply(7, Entry(1, 5, 1, 4, 3, b"")) == ((OK, b"5"),)  # again: not done once more
    assert not replica.asked
    replica.apply(8, Entry(1, 5, 1, 6, 5, b""))
    assert [replica.result(1, seq) is not None for seq in (4, 5, 6)] == [False, False, True]


@pytest.mark.parametrize("session", [1, 99])
def test_a_session_that_nobody_used_for_long_is_over(session: int) -> None:
    replica = opened(Times(), session_s=1.0)

    assert replica.apply(2, Entry(1, 3_000_000, session, 1, 0, b"")) == ((EXPIRED, b""),)
    assert replica.sessions == 0


class Headed(Times):
    """Tells commands of the head from those of clients."""

    def __init__(self) -> None:
        self.own: list[bytes] = []

    def apply_own(self, command: bytes) -> bytes:
        """Keep it."""
        self.own.append(command)
        return b""


def test_a_command_of_the_head_is_done_without_a_session_and_by_machines_that_know_such() -> None:
    plain, headed = Times(), Headed()
    for machine, outcome in ((plain, RAISED), (headed, OK)):
        replica = ChainReplica(machine, CHAIN_LIMITS)
        found = replica.apply(1, Entry(1, 5, 0, 1, 0, b"1"))
        assert found is not None
        assert found[0][0] == outcome
        assert replica.asked
        assert replica.sessions == 0
    assert headed.own == [b"1"]


def flooded(each: int, *, do: bool) -> ChainReplica:
    """Two clients of other origins that did something, and ``each`` sessions of a third one beyond what is kept."""
    replica = ChainReplica(Times(), replace(CHAIN_LIMITS, sessions_max=10))
    index = 0
    for origin in (b"ann", b"bob"):
        replica.apply(index + 1, Entry(1, 5, 0, 0, 0, b"n", (origin,)))
        replica.apply(index + 2, Entry(1, 5, index + 1, 1, 0, b"1"))
        index += 2
    for _ in range(each):
        index += 1
        replica.apply(index, Entry(1, 5, 0, 0, 0, b"n", (b"rogue",)))
        if do:
            replica.apply(index + 1, Entry(1, 5, index, 1, 0, b"1"))
            index += 1
    return replica


@pytest.mark.parametrize("do", [False, True])
def test_sessions_of_one_origin_push_out_no_others(do: bool) -> None:
    replica = flooded(30, do=do)

    assert replica.sessions == 10
    assert [replica.last(session) for session in (1, 3)] == [1, 1]
    restored = ChainReplica(Times(), replica._limits)
    restored.restore(replica.applied, (replica.snapshot(),))
    for index in range(replica.applied + 1, replica.applied + 30):  # all members end the same ones
        entry = Entry(1, 5, 0, 0, 0, b"n", (b"rogue",) if index % 3 else (b"ann",))
        assert replica.apply(index, entry) == restored.apply(index, entry)
        assert replica.snapshot() == restored.snapshot()


@pytest.mark.parametrize("do", [False, True])
@pytest.mark.parametrize("each", [1, 2, 4, 25])
def test_clients_of_many_origins_that_use_their_sessions_push_out_no_idle_one_with_fewer(each: int, do: bool) -> None:
    replica = ChainReplica(Times(), replace(CHAIN_LIMITS, sessions_max=100))
    idle = opened_by(replica, b"idle", do=True)
    flood = [opened_by(replica, b"%d" % (number // each), do=do) for number in range(300)]
    kept = replica.last(idle) is not None
    assert kept == (300 // each < 100 or not do)  # where origins are more than sessions, nothing tells it from others
    assert replica.sessions == 100
    assert replica.last(flood[-1]) is not None


def opened_by(replica: ChainReplica, origin: bytes, *, do: bool) -> int:
    """A session of an origin; ``do``: with a command."""
    session = replica.applied + 1
    replica.apply(session, Entry(1, 5, 0, 0, 0, b"n", (origin,)))
    if do:
        replica.apply(session + 1, Entry(1, 5, session, 1, 0, b"1"))
    return session


@pytest.mark.parametrize("seed", range(30))
def test_who_goes_is_found_without_a_look_at_all_and_is_the_same_after_a_restart(seed: int) -> None:
    rng = Random(seed)
    limits = replace(CHAIN_LIMITS, sessions_max=rng.randrange(1, 40))
    replica = ChainReplica(Times(), limits)
    others = [ChainReplica(Times(), limits)]
    used, unused = dict[int, bytes](), dict[int, bytes]()  # by session its origin, the least recently used one first
    opened_or_used = dict[int, None]()

    def plain() -> int:
        """Who is to go, said the long way."""
        among = unused if len(unused) > FEW else used
        counts = Counter(among.values())
        if among is used and max(counts.values(), default=1) == 1:
            return next(each for each in opened_or_used if each in used or each in unused)
        return next(each for each, origin in among.items() if counts[origin] == max(counts.values()))

    for index in range(1, 400):
        known = [*used, *unused]
        if not known or rng.random() < 0.5:
            origin = b"%d" % min(rng.randrange(8), rng.randrange(8))
            entry = Entry(1, 5, 0, 0, 0, b"n", (origin,))
            unused[index] = origin
            opened_or_used[index] = None
            if len(used) + len(unused) > limits.sessions_max:
                gone = plain()
                used.pop(gone, None)
                unused.pop(gone, None)
        else:
            session = rng.choice(known)
            last = replica.last(session)
            assert last is not None
            entry = Entry(1, 5, session, last + 1, last, b"1")
            used[session] = (used if session in used else unused).pop(session)
            del opened_or_used[session]
            opened_or_used[session] = None
        for each in (replica, *others):
            each.apply(index, entry)
        assert {each for each in (*used, *unused) if replica.last(each) is not None} == {*used, *unused}
        assert replica.sessions == len(used) + len(unused)
        if index % 100 == 0:
            others.append(ChainReplica(Times(), limits))
            others[-1].restore(index, (replica.snapshot(),))
    assert len({each.snapshot() for each in (replica, *others)}) == 1


def test_a_new_client_gets_in_where_all_others_did_something() -> None:
    replica = opened(Times(), sessions_max=2)
    replica.apply(2, Entry(1, 5, 1, 1, 0, b"1"))
    replica.apply(3, Entry(1, 5, 0, 0, 0, b"n"))
    replica.apply(4, Entry(1, 5, 3, 1, 0, b"1"))
    replica.apply(5, Entry(1, 5, 0, 0, 0, b"n"))

    assert [replica.last(session) for session in (1, 3, 5)] == [None, 1, 0]


def test_a_client_whose_request_to_open_came_twice_keeps_the_session_that_it_was_told_of() -> None:
    replica = ChainReplica(Times(), replace(CHAIN_LIMITS, sessions_max=3))
    for index, origin in enumerate((b"ann", b"bob", b"eve", b"eve"), 1):
        replica.apply(index, Entry(1, 5, 0, 0, 0, b"n", (origin,)))

    assert [replica.last(session) for session in (1, 2, 3, 4)] == [None, 0, 0, 0]
