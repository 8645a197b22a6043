"""Which publications are taken: each once, however many come in between, and never one that may have been."""

from __future__ import annotations

from random import Random

import pytest

from chappe.limits import MeshLimits
from chappe.mesh.forwarding import duplicates
from chappe.mesh.forwarding.duplicates import SeenMessages

OWN, A, B = (bytes((each,)) * 16 for each in b"oab")
WINDOW = 4
TOTAL = 24
LIMITS = MeshLimits(WINDOW, TOTAL)
HIGHEST = 2**64 - 1


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> SeenMessages:
    monkeypatch.setattr(duplicates, "ENDPOINTS_MAX", 3)
    return SeenMessages(OWN, LIMITS)


def taken(seen: SeenMessages, origin: bytes, *numbers: int) -> list[int]:
    return [each for each in numbers if seen.is_new(origin, each)]


def test_each_is_taken_once_in_whatever_order_they_come(seen: SeenMessages) -> None:
    assert taken(seen, A, 3, 1, 3, 2, 1, 2) == [3, 1, 2]
    assert seen.late == 0


def test_origins_have_numbers_of_their_own(seen: SeenMessages) -> None:
    assert taken(seen, A, 1) == taken(seen, B, 1) == [1]


def test_what_is_published_here_is_never_new_when_it_comes_back(seen: SeenMessages) -> None:
    assert taken(seen, OWN, 0, 1, HIGHEST) == []


def test_zero_and_the_highest_number_are_numbers_like_others(seen: SeenMessages) -> None:
    assert taken(seen, A, HIGHEST, 0, HIGHEST, 0) == [HIGHEST, 0]


def test_two_windows_are_remembered_and_what_is_older_is_refused(seen: SeenMessages) -> None:
    first, second = range(10, 10 + WINDOW), range(20, 20 + WINDOW)
    assert taken(seen, A, *first, *second) == [*first, *second]  # the first window is dropped with the next rotation
    assert taken(seen, A, *first, *second) == []
    assert seen.late == WINDOW  # of the first window only that it is too old is known
    assert taken(seen, A, 14, 15) == [14, 15]  # just above the newest of what was dropped ...
    assert taken(seen, A, 13) == []  # ... which itself is refused, though it came
    assert seen.late == WINDOW + 1


def test_a_window_ends_with_its_last_number_and_not_before(seen: SeenMessages) -> None:
    taken(seen, A, *range(1, 2 * WINDOW))  # one short of two windows
    assert taken(seen, A, 0) == [0]
    assert taken(seen, A, 0) == []
    other = SeenMessages(OWN, LIMITS)
    taken(other, A, *range(1, 2 * WINDOW + 1))
    assert taken(other, A, 0) == []
    assert other.late == 1


def test_what_is_refused_does_not_push_out_what_is_remembered(seen: SeenMessages) -> None:
    taken(seen, A, *range(100, 100 + 2 * WINDOW))
    assert taken(seen, A, *range(50)) == []
    assert taken(seen, A, *range(100 + WINDOW, 100 + 2 * WINDOW)) == []
    assert seen.late == 50


def test_what_comes_late_on_a_slow_way_does_not_make_what_was_dropped_new_again(seen: SeenMessages) -> None:
    fast, slow = [101, 102, 103, 104], [1, 2, 3, 4]
    assert taken(seen, A, *fast, *slow) == [*fast, *slow]
    assert taken(seen, A, 201, 202, 203, 204) == [201, 202, 203, 204]
    assert taken(seen, A, 301, 302, 303, 304) == [301, 302, 303, 304]
    assert taken(seen, A, *fast, *slow) == []


def test_one_extreme_number_does_not_make_those_below_old(seen: SeenMessages) -> None:
    taken(seen, A, HIGHEST)
    assert taken(seen, A, 1, 2) == [1, 2]


def test_an_origin_that_begins_again_above_its_former_numbers_is_heard_at_once(seen: SeenMessages) -> None:
    taken(seen, A, *range(1, 3 * WINDOW))
    assert taken(seen, A, 1_000_000, 1_000_001, 1_000_000) == [1_000_000, 1_000_001]


def test_an_origin_that_was_forgotten_may_begin_anywhere(seen: SeenMessages) -> None:
    taken(seen, A, *range(100, 100 + 3 * WINDOW))
    seen.forget(A)
    assert seen.size == 0
    assert taken(seen, A, 1) == [1]
    seen.forget(B)  # never heard of


def test_an_origin_too_many_takes_the_place_of_the_oldest_but_not_of_this_endpoint(seen: SeenMessages) -> None:
    taken(seen, A, 1)
    taken(seen, B, 1)
    assert taken(seen, b"c" * 16, 1) == [1]
    assert taken(seen, B, 1) == []
    assert taken(seen, OWN, 1) == []
    assert taken(seen, A, 1) == [1]  # it was forgotten


def test_many_origins_together_remember_less_each_and_still_take_nothing_twice(
    seen: SeenMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "ENDPOINTS_MAX", 100)
    origins = [bytes((each,)) * 16 for each in range(1, 11)]
    for number in range(1, 9):
        for origin in origins:
            assert seen.is_new(origin, number)
            assert seen.size <= TOTAL
    for origin in origins:
        assert taken(seen, origin, *range(9)) in ([], [0])  # 0 never came


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_nothing_is_taken_twice_and_the_count_is_right(seed: int, seen: SeenMessages) -> None:
    rng = Random(seed)
    found: set[tuple[bytes, int]] = set()
    top = 0
    for _ in range(500):
        origin = rng.choice((OWN, A, B))
        top += rng.random() < 0.5
        number = rng.choice((top, top, max(0, top - rng.randrange(3 * WINDOW)), rng.randrange(2**64)))
        if seen.is_new(origin, number):
            assert (origin, number) not in found
            assert origin != OWN
            found.add((origin, number))
        assert seen.size == sum(len(each.young) + len(each.old) for each in seen._origins.values()) <= TOTAL


@pytest.mark.parametrize("seed", range(20))
def test_a_run_is_noted_only_if_each_of_it_would_be(seed: int) -> None:
    """Whoever asks for runs first takes the same as whoever asks one by one."""
    rng = Random(seed)
    one, other = SeenMessages(OWN, MeshLimits(40, 130)), SeenMessages(OWN, MeshLimits(40, 130))
    runs = 0
    top = 0
    for _ in range(300):
        origin = rng.choice((A, A, B, OWN))
        first = top if rng.random() < 0.7 else rng.randrange(top + 1)
        numbers = range(first, first + rng.randrange(1, 12))
        top = max(top, numbers[-1] + rng.randrange(3))
        is_run = one.is_new_run(origin, numbers)
        runs += is_run
        singly = list(numbers) if is_run else taken(one, origin, *numbers)
        assert singly == taken(other, origin, *numbers)
        assert one.invariants() == other.invariants() == []
        assert one.size == other.size
    assert 20 < runs < 280
