"""Whatever listens beyond this machine has keys, or was told to do without: each thing that listens is asked here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from chappe import Consumer, Endpoint, Forwarder, MapServer, Producer, Store, Tower, Witness
from chappe.errors import UsageError

TOWER = "127.0.0.1:1"  # which nobody has to answer


def tap(stack: ExitStack, made: Any) -> None:
    stack.callback(made.close)
    made.tap("0.0.0.0")


LISTENERS: dict[str, Callable[[Path, ExitStack], Any]] = {
    "tower": lambda path, stack: Tower("0.0.0.0:0"),
    "store": lambda path, stack: Store(path, tower=TOWER, listen="0.0.0.0"),
    "forwarder": lambda path, stack: Forwarder(path, listen="0.0.0.0:0"),
    "originals": lambda path, stack: Forwarder(path, listen="127.0.0.1:0", originals="*:0"),
    "producer": lambda path, stack: Producer("a", tower=TOWER, listen="*"),
    "consumer": lambda path, stack: Consumer("a", tower=TOWER, listen="*"),
    "map server": lambda path, stack: MapServer("0.0.0.0:0"),
    "witness": lambda path, stack: Witness("0.0.0.0:0", path=path),
    "endpoint": lambda path, stack: stack.enter_context(Endpoint()).listen("0.0.0.0"),
    "tap of an endpoint": lambda path, stack: tap(stack, Endpoint()),
    "tap of a forwarder": lambda path, stack: tap(stack, Forwarder(path, listen="127.0.0.1:0")),
}


@pytest.mark.parametrize("name", LISTENERS)
def test_it_does_not_listen_beyond_this_machine_unless_that_was_chosen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHAPPE_IDENTITY", raising=False)
    with ExitStack() as stack, pytest.raises(UsageError, match=r"(0\.0\.0\.0|\*) is not this machine: give the"):
        LISTENERS[name](tmp_path / "data", stack)


def test_originals_come_from_elsewhere_once_that_was_chosen(tmp_path: Path) -> None:
    with Forwarder(tmp_path, listen="127.0.0.1:0", originals="*:0", security="plain") as made:
        assert made.originals is not None
