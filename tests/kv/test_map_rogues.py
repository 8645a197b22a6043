"""Servers and clients of shared maps that are sent anything: what programs sent once, and what comes of it when bytes
change, frames go or come twice, and sizes lie. Nothing but ProtocolError is raised, and who behaves is served.

A long run: ``CHAPPE_ROGUE_SEEDS=20000 pytest tests/kv/test_map_rogues.py``.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import pytest
from tests.kv.map_rig import Client, Rig, Server

from chappe.errors import ProtocolError, StorageError
from chappe.kv.backend import Loaded
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say
from chappe.kv.chp.client import MapClientCore
from chappe.kv.chp.server import PEER, UPDATES
from chappe.limits import MAP_LIMITS

VECTORS: Final = Path(__file__).parent.parent / "vectors" / "clone"
SEEDS: Final = int(os.environ.get("CHAPPE_ROGUE_SEEDS", "12"))
STEPS: Final = 300
LIMITS: Final = replace(MAP_LIMITS, piece_bytes=300, window=4, recent_max=30, takers_max=3, asks_max=5, chunk=4,
                        streams_max=20, sessions_max=30, steps_max=50, pending_max=20, listened_max=20)  # fmt: skip
PLAIN: Final = say.Step(((b"/a", b"x", 0, b""),))
DEEP: Final = b"\x91" * 1_000_000 + b"\xc0"  # deeper than any version of Python reads: 3.14 goes by its stack
SESSION: Final = chp.session_of(b"s" * 10)
NUMBERS: Final = (0, 1, 2, 5, 300, 2**32, 2**53, chp.NUMBERS - 1)


def captured() -> list[list[bytes]]:
    """All that the Guide's programs sent in the sessions that were captured."""
    found = []
    for name in ("model5", "model5-probe", "model6-session"):
        session: Any = json.loads((VECTORS / f"{name}.json").read_text())
        for connection in session["connections"]:
            for event in connection["events"]:
                found.append([bytes.fromhex(frame) for frame in event.get("frames_hex", ())])
    return found


CAPTURED: Final = captured()


def entries(rng: Random) -> msgspec.Raw:
    made = [(rng.choice((b"/a", b"/b/1", b"\xff", b"HUGZ", b"k" * 300)), rng.choice((b"", b"x", b"y" * 500)),
             rng.choice((b"", bytes(16), SESSION + b"\0\0\0\0\0\1", b"u")), b"", rng.choice((0, 0, 5, 10**9)))
            for _ in range(rng.randrange(4))]  # fmt: skip
    return say.encode_entries(made)


def of_client(rng: Random, done: int) -> list[bytes]:
    """Any message of chappe to a server, of the kind that it understands; many of who has done so many steps."""

    def number() -> int:
        return rng.choice(NUMBERS)

    step = say.Step(
        tuple([(rng.choice((b"/a", b"HUGZ", b"\xff")), rng.choice((b"", b"x")), rng.choice((0, 7)), b"")] * 2),
        rng.choice(((), ((b"/a", b"x"),))),
    )
    session, subtrees = (SESSION, (b"",)) if rng.random() < 0.7 else (
        rng.choice((SESSION, rng.randbytes(10))), rng.choice(((b"",), (), (b"/a",) * 3))
    )  # fmt: skip
    (message,) = rng.choices([
        say.Hello(1, session, subtrees, rng.choice((b"", bytes(16), b"\1" * 16)), number(),
                  rng.choice((done, done, number())), rng.random() < 0.2),
        say.Taken(rng.choice((1, 2)), rng.choice((0, 1, 3)), number(), number()),
        say.Steps(1, rng.choice((done + 1, done + 1, done + 2, 1, 2, 3, number())),
                  (rng.choice((step, PLAIN)),) * rng.randrange(4)),
        say.Goodbye(1),
    ], (3, 1, 4, 0.3))  # fmt: skip
    return say.encode(message)  # type: ignore[arg-type]


def of_server(rng: Random, stream: int, next_number: int) -> list[bytes]:
    """Any message of chappe to a client."""
    number = next_number if rng.random() < 0.8 else rng.choice(NUMBERS)
    message = rng.choice([
        say.Welcome(stream, number, rng.choice((bytes(16), b"\1" * 16)), rng.choice(NUMBERS), rng.choice(NUMBERS[:5]),
                    rng.random() < 0.5),
        say.Refused(stream, rng.choice(("passive", "full", "busy", "other", "unknown", "?")), "name"),
        say.Piece(stream, number, entries(rng)),
        say.Whole(stream, number, rng.choice((0, 1, 2)), rng.choice((0, 77)), rng.choice(NUMBERS), ()),
        say.Changes(stream, number, rng.choice(NUMBERS), entries(rng), rng.choice(NUMBERS[:5]),
                    rng.choice(((), ((1, 1, "no"), (3, 12, "no"))))),
    ])  # fmt: skip
    return say.encode(message)  # type: ignore[arg-type]


def bent(rng: Random, frames: list[bytes]) -> list[bytes]:
    """A message as it is, or with something wrong."""
    frames = list(frames)
    if rng.random() < 0.5:
        return frames
    for _ in range(rng.randrange(1, 3)):
        if not frames:
            return [rng.randbytes(rng.randrange(20))]
        place = rng.randrange(len(frames))
        frame = bytearray(frames[place])
        match rng.randrange(7):
            case 0 if frame:
                frame[rng.randrange(len(frame))] = rng.randrange(256)
            case 1 if frame:  # sizes lie: the lengths of MessagePack are such bytes
                frame[rng.randrange(len(frame))] = rng.choice((0xC6, 0xDB, 0xDD, 0xDF, 0xCF, 0xFF, 0x9F))
            case 2:
                del frame[rng.randrange(len(frame) + 1) :]
            case 3:
                frame += rng.randbytes(rng.choice((1, 8, 20_000)))
            case 4 if frame and frame[0] & 0xF0 == 0x90:
                frame[0] += frame[0] < 0x9F  # one element more, which is DEEP
                frame += DEEP
            case 5:
                frames.insert(place, bytes(frame))
            case _:
                del frames[place]
                continue
        frames[place] = bytes(frame)
    return frames


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", ["alone", "durable", "passive"])
def test_a_server_outlives_whatever_comes(seed: int, kind: str) -> None:
    rng = Random(seed)
    rig = Rig(LIMITS)
    server = rig.server(loaded=Loaded() if kind == "durable" else None, peer="two" if kind == "passive" else None)
    core = server.core
    refused = 0
    done = rng.choice((0, chp.STEPS - 2))
    for _ in range(STEPS):
        rig.now += rng.choice((0.0, 0.0, 0.01, 0.3, 5.0))
        client = b"rogue%d/0/0" % rng.randrange(4)
        guide, ours = bent(rng, rng.choice(CAPTURED)), bent(rng, of_client(rng, done))
        calls: list[Any] = [
            partial(core.handle_message, UPDATES, guide, rig.now),
            partial(core.handle_request, client, guide, rig.now),
            *[partial(core.handle_request, client, ours, rig.now)] * 3,
            partial(core.handle_taken, client, rig.now),
            partial(core.handle_gone, client, rig.now),
            partial(core.handle_subscription, rng.randbytes(2), rng.random() < 0.7, rig.now),
            partial(core.handle_timeout, rig.now),
        ]  # fmt: skip
        if kind == "passive" and rng.random() < 0.5:
            told = bent(rng, of_server(rng, core.peer._stream, core.peer._number)) if rng.random() < 0.7 else guide
            calls = [
                partial(core.handle_answer, PEER, told, rig.now),
                partial(core.handle_message, PEER, guide, rig.now),
                partial(core.handle_message, PEER, chp.hugz(chp.Beat(bytes(16), 5, 250, True)), rig.now),
            ]  # fmt: skip
        try:
            server.act(rng.choice(calls)())
        except ProtocolError:
            refused += 1
        if server.commits and rng.random() < 0.7:
            commit = server.commits.pop(0)
            server.act(core.handle_done(commit, StorageError("no") if rng.random() < 0.2 else None, rig.now))
        rig._queue.clear()
        assert core.next_timeout() == core.next_timeout()  # no NaN
        assert core.clients <= LIMITS.streams_max + LIMITS.asks_max + LIMITS.takers_max
        assert len(core.ledger.sessions) <= LIMITS.sessions_max + 1
        assert core.invariants() == []
    assert refused > 5
    if kind != "passive":
        serves(rig, server, durable=kind == "durable")


def serves(rig: Rig, server: Server, *, durable: bool) -> None:
    """Whoever behaves is served."""
    rig.run(50)
    client = rig.client("honest")
    rig.run(1)
    ticket = client.write((b"/honest", b"1"))
    for _ in range(40):
        rig.run(1)
        while durable and server.commits:
            server.commit()
    assert client.outcomes[ticket] is True
    assert client.contents() == server.contents()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_client_outlives_whatever_comes(seed: int) -> None:
    rng = Random(seed)
    rig = Rig(LIMITS)
    rig.server()  # what it says is lost
    client = Client(rig, "client", MapClientCore(["one"], (b"",), SESSION, rig, limits=LIMITS))
    rig.nodes["client"] = client
    core = client.core
    core.watched = rng.random() < 0.5
    client.act(core.start(rig.now))
    for step in range(STEPS):
        rig.now += rng.choice((0.0, 0.0, 0.01, 0.3, 5.0))
        source = core.sources[0]
        guide = bent(rng, rng.choice(CAPTURED))
        ours = bent(rng, of_server(rng, source._stream, source._number))
        beat = chp.hugz(chp.Beat(rng.choice((bytes(16), b"\1" * 16)), rng.choice(NUMBERS), 250, rng.random() < 0.8))
        calls: list[Any] = [
            partial(core.handle_message, 0, guide, rig.now),
            partial(core.handle_message, 0, beat, rig.now),
            partial(core.handle_answer, 0, ours, rig.now),
            partial(core.handle_answer, 0, ours, rig.now),
            partial(core.handle_answer, 0, guide, rig.now),
            partial(core.handle_timeout, rig.now),
        ]  # fmt: skip
        try:
            client.act(rng.choice(calls)())
        except ProtocolError:
            client.act([])
        if step % 50 == 0:
            client.write((b"/own", b"%d" % step))
        rig._queue.clear()
        assert core.next_timeout() == core.next_timeout()
        assert core.engine.invariants() == []
        assert core.done <= core.pending + core.done == core._last
    server = rig.server()
    rig.run(60)
    ticket = client.write((b"/honest", b"1"))
    rig.run(1)
    assert client.contents() == server.contents()
    assert client.outcomes.get(ticket, True) is True


@pytest.mark.parametrize("step", [PLAIN, say.Step(((b"/a", b"x", 0, b""), (b"/b", b"x", 0, b"")))])
def test_numbers_of_steps_end(step: say.Step) -> None:
    rig = Rig()
    server = rig.server()
    rogue = b"rogue/0/0"
    last = chp.STEPS - 1
    server.act(server.core.handle_request(rogue, say.encode(say.Hello(1, SESSION, (b"",), b"", 0, last - 1)), rig.now))
    with pytest.raises(ProtocolError):
        server.act(server.core.handle_request(rogue, say.encode(say.Steps(1, last, (step, step))), rig.now))
    server.act(server.core.handle_request(rogue, say.encode(say.Steps(1, last, (step,))), rig.now))
    with pytest.raises(ProtocolError):
        server.core.handle_request(rogue, say.encode(say.Hello(2, SESSION, (b"",), b"", 0, last + 1)), rig.now)

    assert server.contents()["/a"] == b"x"


def test_what_is_nested_deep_is_malformed() -> None:
    hello = say.encode(say.Hello(1, SESSION, (b"",), b"", 0, 0))[1]
    welcome = say.encode(say.Welcome(1, 0, bytes(16), 0, 0, True))[1]
    for decode, message in ((say.from_client, hello), (say.from_server, welcome)):
        with pytest.raises(ProtocolError):
            decode([say.MARK, bytes((message[0] + 1,)) + message[1:] + DEEP])
    with pytest.raises(ProtocolError):
        say.decode_entries(msgspec.Raw(b"\x91\x96" + b"\xa0" * 4 + b"\0" + DEEP))


def test_sizes_that_lie_take_no_memory() -> None:
    for head in (
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x94\x10\x01\xc6\xff\xff\xff\xff",
    ):
        for decode in (say.from_client, say.from_server):
            with pytest.raises(ProtocolError):
                decode([say.MARK, head])
        with pytest.raises(ProtocolError):
            say.decode_entries(msgspec.Raw(head))
