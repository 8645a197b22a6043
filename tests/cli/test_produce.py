"""``chappe produce``: what it takes besides lines, and what it says."""

from __future__ import annotations

import json
import signal
import socket
from typing import Any

import pytest
from tests.cli.conftest import Shell

pytestmark = pytest.mark.process


def read(shell: Shell, topic: str) -> list[dict[str, Any]]:
    done = shell.run("consume", topic, "--until-end", "--json")
    assert done.returncode == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_topic_is_copied_through_a_pipe_with_all_that_its_records_have(shell: Shell) -> None:
    shell.up()
    options = ("--key", "k", "--header", "h=v", "--header", "empty=", "--timestamp", "2026-01-31T12:00:00.123456Z")
    shell.run("produce", "one", *options, stdin=b"a\n\xff\x00\n")
    lines = b'{"value":null,"key":"gone"}\n{"value":"","headers":[["x",{"base64":"/w=="}]],"timestamp":-1}\n'
    assert shell.run("produce", "one", "--format", "records", "--key", "other", stdin=lines).returncode == 0

    printed = shell.run("consume", "one", "--until-end", "--output", "json").stdout
    assert shell.run("produce", "copy", "--format", "records", stdin=printed).returncode == 0

    where = ("topic", "partition", "offset")
    before, after = (
        sorted([{k: v for k, v in each.items() if k not in where} for each in read(shell, topic)], key=json.dumps)
        for topic in ("one", "copy")
    )
    assert after == before
    first = {"timestamp": "2026-01-31T12:00:00.123456Z", "key": "k", "headers": [["h", "v"], ["empty", ""]]}
    assert {**first, "value": "a"} in after
    assert {**first, "value": {"base64": "/wA="}} in after
    early = {"timestamp": "1969-12-31T23:59:59.999999Z", "key": "other", "headers": [["x", {"base64": "/w=="}]]}
    assert {**early, "value": ""} in after
    assert [each["value"] for each in after if each["key"] == "gone"] == [None]


def test_an_identity_goes_on_in_its_partition(shell: Shell) -> None:
    shell.up()
    said = [
        json.loads(shell.run("produce", "t", "--identity", "mine", "--json", stdin=b"a\nb\n").stdout) for _ in range(2)
    ]
    assert [each["first"] for each in said] == [0, 2]
    assert len({each["partition"] for each in said}) == 1
    refused = shell.run("produce", "t", "--identity", "../mine", stdin=b"a\n")
    assert (refused.returncode, b"is not a name of letters" in refused.stderr) == (2, True)


def test_what_an_identity_did_not_get_stored_is_sent_by_the_next_run(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:  # listens, and is not a tower
        shell.env["CHAPPE_TOWER"] = f"127.0.0.1:{nobody.getsockname()[1]}"
        producer = shell.start("produce", "t", "--identity", "mine")
        assert producer.stdin is not None
        producer.stdin.write(b"a\nb\n")
        producer.stdin.close()
        producer.stdin = None
        assert producer.stderr is not None
        while b"acknowledged the last 2 records" not in (line := producer.stderr.readline()):
            assert line
        code, _, err = shell.stop(producer, signal.SIGINT)
    assert code == 130
    assert "2 of 2 records are not stored yet; the same --identity sends them again" in err
    shell.up()
    done = shell.run("produce", "t", "--identity", "mine", stdin=b"c\n")
    assert b"going on after 2 records; the last 2 of them are sent again" in done.stderr
    assert [each["value"] for each in read(shell, "t")] == ["a", "b", "c"]


def test_mistakes_are_one_sentence(shell: Shell) -> None:
    for options, text in (
        (("--header", "bad"), b"--header is NAME=VALUE, not 'bad'"),
        (("--timestamp", "soon"), b"--timestamp is a time such as"),
        (("--timestamp", "5"), b"--timestamp is a time such as"),
    ):
        refused = shell.run("produce", "t", *options)
        assert (refused.returncode, text in refused.stderr) == (2, True)


def test_lines_of_consume_that_are_taken_for_values_are_pointed_out(shell: Shell) -> None:
    shell.up()
    shell.run("produce", "t", stdin=b"a\n")
    printed = shell.run("consume", "t", "--until-end", "--json").stdout
    done = shell.run("produce", "u", "--format", "json", stdin=printed)
    assert done.returncode == 0
    assert b"--format records makes them records again" in done.stderr
