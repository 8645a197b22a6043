"""When an address is dialled again."""

from __future__ import annotations

from chappe.core import Dial, Report, Resolve
from chappe.errors import PeerUnavailable
from chappe.mesh.links.dialling import PeerDialling, Retry

PLACE = ("node", 1)
ERROR = PeerUnavailable("cannot reach node:1: refused", PLACE)


def pauses(dialling: PeerDialling, retry: Retry, count: int) -> list[float]:
    """How long it waits after each of so many failures."""
    found, now = [], 0.0
    [dial] = dialling.peer(PLACE, retry, 1)
    for _ in range(count):
        assert isinstance(dial, Dial)
        target = dialling.answered(dial.link)
        assert target is not None
        dialling.failed(target, ERROR, final=False, stale=False, now=now)
        found.append(dialling.retries.next - now)
        now = dialling.retries.next
        [dial] = dialling.handle_timeout(now)
    return found


def test_without_a_largest_pause_all_are_alike() -> None:
    assert pauses(PeerDialling(b"A" * 16), Retry(0.5), 4) == [0.5] * 4


def test_pauses_double_up_to_the_largest_and_lose_up_to_half() -> None:
    found = pauses(PeerDialling(b"A" * 16), Retry(1.0, 8.0), 200)
    for pause_s, whole_s in zip(found, [1.0, 2.0, 4.0, *[8.0] * 197], strict=True):
        assert whole_s / 2 <= pause_s <= whole_s
    assert max(found[3:]) - min(found[3:]) > 3  # all of the range is used


def test_endpoints_that_lost_the_same_peer_come_back_at_different_times() -> None:
    first = {pauses(PeerDialling(bytes([each]) * 16), Retry(1.0, 8.0), 1)[0] for each in range(50)}
    assert len(first) == 50


def test_after_so_many_failures_in_a_row_whoever_waits_is_told() -> None:
    dialling = PeerDialling(b"A" * 16)
    retry = Retry(1.0, 0.0, attempts=3)
    pauses(dialling, retry, 2)
    target = dialling.targets[PLACE]
    dialling.answered(3)
    reported, told = dialling.failed(target, ERROR, final=False, stale=False, now=2.0)
    assert isinstance(reported, Report)
    assert isinstance(told, Resolve)
    for error in (reported.event, told.outcome):
        assert isinstance(error, PeerUnavailable)
        assert str(error).endswith("refused; given up after 3 attempts")
        assert error.last
    assert dialling.targets == {}


def test_a_peering_that_stood_lets_attempts_begin_anew() -> None:
    dialling = PeerDialling(b"A" * 16)
    pauses(dialling, Retry(1.0, 8.0, attempts=3), 2)
    target = dialling.targets[PLACE]
    dialling.answered(3)
    dialling.stand(target, b"B" * 16, 1)
    [dial] = dialling.lost(target, stood_s=60.0, now=10.0)
    assert isinstance(dial, Dial)
    dialling.answered(dial.link)
    dialling.failed(target, ERROR, final=False, stale=False, now=10.0)
    assert 0.5 <= dialling.retries.next - 10.0 <= 1.0
