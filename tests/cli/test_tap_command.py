"""``chappe tap`` as a process at a forwarder and at a node, and what a terminal shows."""

from __future__ import annotations

import io
import json
import subprocess
from typing import Any

import pytest
from rich.console import Console
from tests.cli.conftest import PATIENCE_S, Shell

from chappe import Endpoint, Producer
from chappe.api.taps import Passed, Shown, Subscribed
from chappe.cli.tap import Picture, line, wanted_line
from chappe.data.binary import encode


def begin(shell: Shell, *arguments: str) -> dict[str, Any]:
    process = shell.start(*arguments, "--tap", "0", "--json")
    assert process.stdout is not None
    facts: dict[str, Any] = json.loads(process.stdout.readline())
    return facts


def next_line(process: subprocess.Popen[bytes], **what: object) -> dict[str, Any]:
    """The next one that says this."""
    assert process.stdout is not None
    for each in process.stdout:
        found: dict[str, Any] = json.loads(each)
        if all(found.get(name) == value for name, value in what.items()):
            return found
    raise AssertionError(f"the command ended: {process.communicate(timeout=PATIENCE_S)[1]!r}")


@pytest.mark.process
def test_what_passes_a_forwarder_is_printed(shell: Shell) -> None:
    facts = begin(shell, "forward", "kept", "--at", "127.0.0.1:0")
    tap = shell.start("tap", facts["tap"], "--json")
    with Producer("hello", forwarders=facts["forwarder"]) as producer:
        address = producer.partition
        found = next_line(tap, kind="subscription", topic=address)
        assert "ack" in found["wants"]
        producer.send(b"one")
        producer.flush(PATIENCE_S)
        found = next_line(tap, kind="batch", topic="hello")
    assert (found["from"], found["first"], found["count"], found["content"]) == (address, 0, 1, "one")
    assert next_line(tap, kind="subscription", topic=address)["wants"] == []
    assert shell.stop(tap) == (0, "", "")


@pytest.mark.process
def test_what_passes_a_node_is_printed_and_filtered(shell: Shell) -> None:
    facts = begin(shell, "node", "--listen", "127.0.0.1:0")
    tap = shell.start("tap", facts["tap"], "--topic", "/t", "--count", "2")
    host, _, port = facts["listen"][0].rpartition(":")
    with Endpoint() as one, Endpoint() as two:
        two.subscribe("/t")
        two.peer(host, int(port))
        one.peer(host, int(port))
        assert one.await_peer(two.id, PATIENCE_S)
        assert tap.stdout is not None
        assert f"/t*  wanted by {two.id}: data" in tap.stdout.readline().decode()
        one.publish("/u", 1)
        one.publish("/t/1", "hello")
        out, err = tap.communicate(timeout=PATIENCE_S)
    assert (tap.returncode, err) == (0, b"")
    assert f"/t/1  data  from {one.id}" in out.decode()
    assert "hello" in out.decode()


@pytest.mark.process
def test_where_nothing_is_tapped_it_fails_with_one_line(shell: Shell) -> None:
    done = shell.run("tap", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"no tap answers at 127.0.0.1:1" in done.stderr
    assert shell.run("tap", "nowhere").returncode == 2


def test_lines_say_what_passed_and_hide_what_a_terminal_would_obey() -> None:
    batch = Passed(0, b"t\x1b", "batch", "P", first=7, count=3, size=2048, content=b"\x1b[2Jx" + b"y" * 200)
    shown = line(batch)
    assert "\x1b" not in shown
    assert "from P  3 messages from 7  2.0 KiB" in shown
    assert shown.endswith("…")
    value = Passed(0, b"/t", "data", "P", "O", "R", size=30, content=encode({"a": 1}))
    assert line(value).endswith('/t  data  from P  of O  to R  30 B  {"a": 1}')
    assert line(Passed(0, b"/t", "data", "P", size=900, content=encode("x" * 300)[:256])).endswith("900 B")
    assert wanted_line(Subscribed(0, b"", "me", ("data",))).endswith("all topics  wanted by me: data")
    assert wanted_line(Subscribed(0, b"t", "me", ())).endswith("t*  wanted no more by me")


def test_the_picture_shows_what_is_busy_who_wants_it_and_what_is_not_shown() -> None:
    picture = Picture("here:7")
    picture.add(Shown([Subscribed(0, b"t", "me", ("data",)), Subscribed(0, b"u", "you", ("data",))]), 0.0)
    passed = [Passed(0, b"t%d" % (each % 30), "batch", "P", first=0, count=10, size=100) for each in range(300)]
    picture.add(Shown([*passed, Subscribed(0, b"u", "you", ())], 1_234), 1.0)
    console = Console(file=io.StringIO(), width=100)
    console.print(picture())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "tap at here:7: 3,000 messages seen; 1,234 or more are not shown" in text
    assert "... and 10 more topics" in text
    assert "t*" in text
    assert "you" not in text
