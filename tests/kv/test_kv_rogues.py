"""A master and a clone that are sent anything that can be encoded, by anybody: they answer or refuse, and go on."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from tests.fixed_clock import FixedClock
from tests.worlds.kv.rogues import any_command, any_message

from chappe.core import Effect, Persist, Send
from chappe.errors import NoMaster
from chappe.kv import commands as cmd
from chappe.kv.clone import KvClone
from chappe.kv.commands import decode_message, encode_command, encode_message
from chappe.kv.entity import NOBODY, Entity, chappe_entity
from chappe.kv.master import KvMaster

NS = 1_000_000_000
MASTER = chappe_entity(b"m" * 16, 1)
CLONE = chappe_entity(b"c" * 16, 2)
STRANGERS = (chappe_entity(b"x" * 16, 3), Entity(b"o" * 16, 6), Entity(b"m" * 16, 2**64 - 1), NOBODY)


def any_payload(rng: Random, receiver: Entity, senders: tuple[Entity, ...]) -> bytes:
    """Any message of any of ``senders``, now and then with a byte that is wrong."""
    command = any_command(rng, (MASTER, CLONE, *STRANGERS))
    raw = any_message(rng, receiver, rng.choice(senders), command)
    if raw and rng.random() < 0.1:
        at = rng.randrange(len(raw))
        raw = raw[:at] + bytes((rng.randrange(256),)) + raw[at + 1 :]
    return raw


def check(actions: list[Effect]) -> None:
    """What is to be sent can be read."""
    for action in actions:
        if isinstance(action, Send):
            decode_message(action.message)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("durable", [False, True])
def test_a_master_outlives_whatever_peers_send(seed: int, durable: bool) -> None:
    rng = Random(seed)
    now = 100.0
    clock = FixedClock(int(now * NS))
    master = KvMaster("s", MASTER, now=now, clock=clock, durable=durable)
    check(master.start(now))
    for _ in range(600):
        now += rng.choice((0.0, 0.0, 0.01, 0.3, 20.0))
        clock.ns = int(now * NS)
        payloads = [any_payload(rng, MASTER, (CLONE, *STRANGERS)) for _ in range(rng.randrange(4))]
        actions = master.handle_message(master.topics[0], payloads, now)
        actions += master.handle_message(master.topics[1], [any_payload(rng, MASTER, STRANGERS)], now)
        actions += master.handle_timeout(now)
        assert master.next_timeout() == master.next_timeout()  # not NaN
        check(actions)
        for action in actions:
            if isinstance(action, Persist):
                check(master.handle_done(action.job, None, now))
    master.put("still", "there", now=now)
    assert master.get("still") == "there"


@pytest.mark.parametrize("seed", range(8))
def test_a_clone_outlives_whatever_peers_send(seed: int) -> None:
    rng = Random(seed)
    now = 100.0
    clone = KvClone("s", CLONE, now=now, clock=FixedClock())
    check(clone.start(now))
    written = 0
    for _ in range(600):
        now += rng.choice((0.0, 0.0, 0.01, 0.3, 20.0))
        payloads = [any_payload(rng, CLONE, (MASTER, MASTER, *STRANGERS)) for _ in range(rng.randrange(4))]
        actions = clone.handle_message(clone.topics[0], payloads, now)
        if rng.random() < 0.1:
            with suppress(NoMaster):
                actions += clone.put("key", written + 1, now=now, ticket=written + 1)
                written += 1
        actions += clone.handle_timeout(now)
        assert clone.next_timeout() == clone.next_timeout()
        check(actions)


def test_an_acknowledgement_beyond_all_numbers_is_not_answered() -> None:
    master = KvMaster("s", MASTER, now=0.0, clock=FixedClock())
    stranger = STRANGERS[0]
    raw = encode_message(0, stranger, MASTER, encode_command(cmd.CumulativeAck(2**64 - 1)))
    assert master.handle_message(master.topics[0], [raw], 0.0) == []
    raw = encode_message(0, stranger, MASTER, encode_command(cmd.CumulativeAck(2**64 - 2)))
    (answer,) = master.handle_message(master.topics[0], [raw], 0.0)
    assert isinstance(answer, Send)
    assert decode_message(answer.message).command == cmd.RetransmitFailed(2**64 - 1)
