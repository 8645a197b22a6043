"""What people call members: what their users say, or else the program and its host."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.waiting import PATIENCE_S, until

from chappe import AsyncConsumer, AsyncProducer, Consumer, Forwarder, Producer, ShardedConsumer, Store, Tower
from chappe.api.log.looking import LogWatch
from chappe.errors import UsageError
from chappe.system import program

NOWHERE = "127.0.0.1:1"


def made(directory: Path) -> dict[str, Callable[..., Any]]:
    return {
        "tower": lambda **more: Tower("127.0.0.1:0", **more),
        "store": lambda **more: Store(directory / "s", tower=NOWHERE, **more),
        "forwarder": lambda **more: Forwarder(directory / "f", listen="127.0.0.1:0", **more),
        "producer": lambda **more: Producer("t", tower=NOWHERE, **more),
        "consumer": lambda **more: Consumer("t", tower=NOWHERE, **more),
        "sharded": lambda **more: ShardedConsumer("builtins:print", "t", tower=NOWHERE, **more),
    }


KINDS = ("tower", "store", "forwarder", "producer", "consumer", "sharded")


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_is_short_printable_text_or_the_member_is_not_made(kind: str, tmp_path: Path) -> None:
    make = made(tmp_path)[kind]
    for wrong in ("", "a\nb", "x" * 65, "\x1b[2J"):
        with pytest.raises(UsageError, match="a name is 1 to 64 printable characters"):
            make(name=wrong)
    with make(name="boiler 3") as member:  # nothing is left behind that would be in the way
        assert kind == "sharded" or member.name == "boiler 3"


def test_the_asyncio_faces_have_names_too() -> None:
    async def run() -> tuple[str, str]:
        async with (
            AsyncProducer("t", tower=NOWHERE, name="a") as one,
            AsyncConsumer("t", tower=NOWHERE, name="b") as two,
        ):
            return one.name, two.consumer.name

    assert asyncio.run(run()) == ("a", "b")


def test_by_default_it_is_the_program_and_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_program", "")
    monkeypatch.delattr("__main__.__spec__", raising=False)
    monkeypatch.setattr("sys.argv", ["/opt/app/sensor.py", "--fast"])
    host = socket.gethostname()
    assert program.label() == f"sensor.py@{host}"[:64]
    monkeypatch.setattr("sys.argv", ["-c"])
    assert program.label() == f"python@{host}"[:64]
    monkeypatch.setattr(program, "_label", "")
    program.is_command("chappe produce")
    assert program.label() == f"chappe produce@{host}"[:64]
    program.call_members("mine")
    assert (program.label(), program.label("other")) == ("mine", "other")


def test_who_looks_is_told_the_names_of_all_who_are_there(tmp_path: Path) -> None:
    with (
        Tower("127.0.0.1:0", name="hill") as tower,
        Store(tmp_path, tower=tower.address, name="cellar"),
        Producer("t", tower=tower.address, name="boiler 3") as producer,
        Consumer("t", tower=tower.address, name="reader"),
        closing(LogWatch(tower.address, listen="127.0.0.1")) as watch,
    ):
        until(lambda: watch.beacons().tower == "hill")
        until(lambda: {"boiler 3", "reader"} <= set(watch.names(PATIENCE_S).values()))  # a store's comes with its lists
        assert watch.names(PATIENCE_S)[producer.partition] == "boiler 3"


def test_programs_of_the_original_hear_nothing_of_names() -> None:
    with Tower("127.0.0.1:0", name="hill") as tower, zmq.Context() as context, context.socket(zmq.SUB) as sub:
        for kind in (b"W", b"B"):  # what these subscribe to
            sub.setsockopt(zmq.SUBSCRIBE, kind)
        host, _, pub_port = tower.address.split(":")
        sub.connect(f"tcp://{host}:{pub_port}")
        assert sub.poll(int(1_000 * PATIENCE_S))
        heard = [sub.recv_multipart()]
        with Producer("t", tower=tower.address, name="boiler 3"):
            while len(heard) < 3:
                assert sub.poll(int(1_000 * PATIENCE_S))
                heard.append(sub.recv_multipart())

    assert heard[0] == [b"W"]
    assert {(each[0], len(each)) for each in heard[1:]} == {(b"B", 3)}
    assert not any(b"hill" in frame or b"boiler" in frame for each in heard for frame in each)
