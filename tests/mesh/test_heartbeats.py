"""Signs of life: who is pinged and when, what counts as life, and what is known to have arrived."""

from __future__ import annotations

from math import inf

import pytest

from chappe.defaults import CLAIM_S, LOST_AFTER, PROBE_BYTES, PROBES_MAX
from chappe.mesh.forwarding.boxes import Outbox
from chappe.mesh.forwarding.congestion import Congestion
from chappe.mesh.links.handshake import PeerHandshake
from chappe.mesh.links.heartbeats import HEARTBEAT, Heartbeats
from chappe.mesh.links.link import Link
from chappe.mesh.links.peers import PeerTable
from chappe.mesh.messages import DATA, NOBODY, PING, Message, pack_message, parse_message

OWN, PEER = b"o" * 16, b"p" * 16
HEARTBEAT_S = 2.0
BYTES_MAX = 1 << 30


def frame(size: int = 0) -> bytes:
    return pack_message(OWN, NOBODY, DATA, 16, b"t", bytes(size))


def pings(frames: list[bytes]) -> list[Message]:
    return [each for each in (parse_message(one[4:]) for one in frames) if each.kind == PING]


@pytest.fixture
def heartbeats() -> Heartbeats:
    return Heartbeats(OWN, HEARTBEAT_S, Congestion(OWN, 1, LOST_AFTER * HEARTBEAT_S))


@pytest.fixture
def link(heartbeats: Heartbeats) -> Link:
    unused = PeerHandshake(1, OWN, True, (), PeerTable(), 0.0)
    made = Link(1, ("127.0.0.1", 1), None, unused, Outbox(messages_max=100_000), 0.0)
    made.peer_id = PEER
    made.chappe = True
    made.established_at = 0.0
    heartbeats.begin(made, 0.0)
    made.pinged_at, heartbeats.at = 0.0, HEARTBEAT_S  # the first ping has been
    return made


def test_a_peer_is_pinged_in_every_heartbeat_though_it_was_heard(heartbeats: Heartbeats, link: Link) -> None:
    pinged = []
    for tenth in range(1, 81):
        now = tenth / 10
        link.heard_at = now
        if now >= heartbeats.at:
            heartbeats.beat([link], now)
            pinged += [now] if pings(heartbeats.take(link, BYTES_MAX)) else []

    assert pinged == [2.0, 4.0, 6.0, 8.0]


def test_a_new_link_is_pinged_at_once_if_its_peer_has_a_clock(heartbeats: Heartbeats, link: Link) -> None:
    heartbeats.at = inf
    heartbeats.begin(link, 7.0)
    assert heartbeats.at == 7.0
    heartbeats.beat([link], 7.0)
    assert pings(heartbeats.take(link, BYTES_MAX))
    heartbeats.at = inf
    link.chappe = False
    heartbeats.begin(link, 7.0)
    assert heartbeats.at == 7.0 + HEARTBEAT_S


def test_a_ping_leaves_before_all_that_waits(heartbeats: Heartbeats, link: Link) -> None:
    for _ in range(10):
        link.outbox.put(frame())
    heartbeats.beat([link], HEARTBEAT_S)

    assert parse_message(heartbeats.take(link, 1)[0][4:]).kind == PING


def test_a_peer_is_pinged_after_so_many_bytes(heartbeats: Heartbeats, link: Link) -> None:
    for _ in range(10 * PROBE_BYTES // 1024):
        link.outbox.put(frame(1024))
    written = heartbeats.take(link, 3 * PROBE_BYTES) + heartbeats.take(link, BYTES_MAX)

    assert len(pings(written)) == 10
    since = 0
    for each in written:
        since = 0 if pings([each]) else since + len(each)
        assert since <= PROBE_BYTES + 2 * 1024


def test_nothing_is_put_between_the_frames_of_a_handshake(heartbeats: Heartbeats, link: Link) -> None:
    link.established_at = None
    for _ in range(4):
        link.outbox.put_control(bytes(PROBE_BYTES))

    assert [len(each) for each in heartbeats.take(link, BYTES_MAX)] == [PROBE_BYTES] * 4


def test_a_silent_peer_is_lost_unless_its_connection_takes_bytes_again(heartbeats: Heartbeats, link: Link) -> None:
    link.moved_at = 5.0

    assert heartbeats.beat([link], 5.0 + LOST_AFTER * HEARTBEAT_S - 0.1)[1] == []
    assert heartbeats.beat([link], 5.0 + LOST_AFTER * HEARTBEAT_S)[1] == [link]


def test_while_nothing_is_read_silence_means_nothing(heartbeats: Heartbeats, link: Link) -> None:
    heartbeats.pause(True, [link], 1.0)
    assert heartbeats.beat([link], 1000.0)[1] == []
    heartbeats.pause(False, [link], 1000.0)

    assert heartbeats.beat([link], 1001.0)[1] == []
    assert heartbeats.beat([link], 1000.0 + LOST_AFTER * HEARTBEAT_S)[1] == [link]


def test_an_answer_confirms_what_was_sent_before_its_ping(heartbeats: Heartbeats, link: Link) -> None:
    for count in (3, 4):
        for _ in range(count):
            link.outbox.put(frame())
        heartbeats.take(link, BYTES_MAX)
        link.pinged_at = -1.0
        heartbeats.beat([link], HEARTBEAT_S)
        heartbeats.take(link, BYTES_MAX)
    link.outbox.put(frame())
    heartbeats.take(link, BYTES_MAX)
    confirmed = []
    for _ in range(3):  # one answer more than there were pings
        heartbeats.answered(link, HEARTBEAT, 3.0)
        confirmed.append(link.confirmed)

    assert confirmed == [3, 7, 7]


def test_what_waits_behind_a_ping_is_not_confirmed_by_its_answer(heartbeats: Heartbeats, link: Link) -> None:
    link.outbox.put(frame())
    heartbeats.take(link, BYTES_MAX)
    link.outbox.put(frame())
    heartbeats.beat([link], HEARTBEAT_S)
    heartbeats.answered(link, HEARTBEAT, HEARTBEAT_S)
    assert link.confirmed == 1


@pytest.mark.parametrize("claim", [b"", b"c" * 24])
def test_an_answer_tells_what_the_clock_of_the_peer_shows(heartbeats: Heartbeats, link: Link, claim: bytes) -> None:
    heartbeats.beat([link], HEARTBEAT_S)
    told = heartbeats.answer(HEARTBEAT + claim, 500.25)
    assert told == HEARTBEAT + claim + (500_250_000).to_bytes(8, "big")
    heartbeats.answered(link, told, 3.0)
    assert link.clock.ours_us(500_000_000, 3.0) == 2_750_000


@pytest.mark.parametrize("wrong", ["nobody asked", "an original", "without a clock", "too much"])
def test_what_tells_of_no_clock_is_an_answer_all_the_same(heartbeats: Heartbeats, link: Link, wrong: str) -> None:
    told = heartbeats.answer(HEARTBEAT, 500.0)
    if wrong != "nobody asked":
        heartbeats.beat([link], HEARTBEAT_S)
    link.chappe = wrong != "an original"
    said = {"without a clock": HEARTBEAT, "too much": told + b"x"}.get(wrong, told)
    heartbeats.answered(link, said, 3.0)
    assert link.clock.ours_us(400_000_000, 3.0) == 3_000_000
    assert not link.probes


def test_pings_that_are_never_answered_have_a_bound(heartbeats: Heartbeats, link: Link) -> None:
    written = 0
    for _ in range(PROBES_MAX + 10):
        link.outbox.put(frame(PROBE_BYTES))
        written += len(pings(heartbeats.take(link, BYTES_MAX)))

    assert written == len(link.probes) == PROBES_MAX


def test_who_does_not_read_claims_often_that_its_subscriber_gets_on(heartbeats: Heartbeats, link: Link) -> None:
    heartbeats.pause(True, [link], 1.0)
    tokens = []
    for step in range(1, 9):
        now = 1.0 + step * CLAIM_S
        heartbeats.drained(1, now)
        heartbeats.beat([link], now)
        tokens += [each.payload for each in pings(heartbeats.take(link, BYTES_MAX))]

    assert len(tokens) == len(set(tokens)) == 8
    assert all(each.startswith(HEARTBEAT + OWN) for each in tokens)
    link.chappe = False
    link.pinged_at = 0.0
    heartbeats.beat([link], now + HEARTBEAT_S)
    assert [each.payload for each in pings(heartbeats.take(link, BYTES_MAX))] == [HEARTBEAT]
