"""Large answers that clients of a chain do not read."""

from __future__ import annotations

from chappe.runtime.chain_answers import LARGE_BYTES, UnreadAnswers

LARGE = LARGE_BYTES + 1


def test_a_client_that_says_nothing_gets_large_answers_up_to_a_bound_and_all_small_ones() -> None:
    unread = UnreadAnswers(bytes_max=3 * LARGE)

    assert [unread.may_send(b"a", LARGE) for _ in range(5)] == [True, True, True, False, False]
    assert unread.may_send(b"a", LARGE_BYTES)
    assert unread.may_send(b"b", LARGE)  # each by itself
    unread.said(b"a")

    assert unread.may_send(b"a", LARGE)


def test_one_answer_may_be_larger_than_the_bound() -> None:
    unread = UnreadAnswers(bytes_max=LARGE)

    assert unread.may_send(b"a", 2 * LARGE)
    assert not unread.may_send(b"a", LARGE)


def test_so_many_clients_are_counted() -> None:
    unread = UnreadAnswers(bytes_max=LARGE, clients_max=2)
    for client in (b"a", b"b", b"c"):
        assert unread.may_send(client, LARGE)

    assert [unread.may_send(client, LARGE) for client in (b"b", b"c", b"a")] == [False, False, True]
