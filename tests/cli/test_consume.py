"""``chappe consume`` where records cannot be had, or not all of them be read."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.conftest import PATIENCE_S, Shell

from chappe import Producer
from chappe.api import identity
from chappe.api.log import consumer
from chappe.api.log.store import Store
from chappe.api.log.tower import Tower
from chappe.cli import topics
from chappe.cli.consume import consume
from chappe.data.markup import many
from chappe.limits import LogLimits
from chappe.log.batch import encode_batch, encode_headers
from chappe.log.consumer import LogConsumer
from chappe.log.events import RecordsMissing

pytestmark = pytest.mark.process


def test_a_hole_is_told_while_it_is_waited_for_and_in_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = LogLimits(pass_over_s=math.inf, missing_told_s=0.2)
    patient: Callable[..., LogConsumer] = partial(LogConsumer, limits=limits)
    made: list[LogConsumer] = []

    def make(*given: Any, **more: Any) -> LogConsumer:
        made.append(patient(*given, **more))
        return made[-1]

    def give_up(record: logging.LogRecord) -> bool:
        """Once it is told that something is missing, it is passed over."""
        if isinstance(record.args, tuple) and any(isinstance(each, RecordsMissing) for each in record.args):
            for each in made:
                each._delivery._limits = LogLimits(pass_over_s=0.0)
        return True

    monkeypatch.setattr(consumer, "LogConsumer", make)
    monkeypatch.setattr(topics, "DISCOVER_S", PATIENCE_S)
    monkeypatch.setattr(identity.logger, "filters", [give_up])
    with Tower("127.0.0.1:0") as tower:
        with Store(tmp_path / "store", tower=tower.address), Producer("t", tower=tower.address) as producer:
            for n in range(5):  # a block each
                producer.send(b"%d" % n)
                producer.flush(PATIENCE_S)
        (segment,) = (tmp_path / "store").rglob("*.seg")
        raw = bytearray(segment.read_bytes())
        raw[len(raw) // 2] ^= 0x40
        segment.write_bytes(raw)
        reach = {"tower": tower.address, "listen": "127.0.0.1", "forwarders": None}
        with Store(tmp_path / "store", tower=tower.address), pytest.raises(typer.Exit) as ended:
            consume(topics=["t"], until_end=True, output="raw", **reach)

    out, err = capfd.readouterr()
    assert ended.value.exit_code == 1
    printed = out.split()
    assert 0 < len(printed) < 5
    assert "cannot be read at the moment" in err
    assert "are lost: they are damaged on disk" in err
    missing = 5 - len(printed)
    assert f"chappe: {many(missing, 'record')} {'is' if missing == 1 else 'are'} missing in what was printed" in err


def test_headers_that_are_none_stop_nothing_and_are_named(shell: Shell) -> None:
    shell.up()
    headers = [encode_headers((("a", b"b"),)), b"\xff", b""]
    with Producer("t", tower=shell.env["CHAPPE_TOWER"]) as producer:
        producer.send_batch(encode_batch(0, [b"one", b"two", b"three"], 1, headers=headers))
        producer.flush(PATIENCE_S)

    for output in ("raw", "text", "length"):
        done = shell.run("consume", "t", "--until-end", "--output", output)
        assert (done.returncode, done.stderr) == (0, b"")
        assert all(word in done.stdout for word in (b"one", b"two", b"three"))

    done = shell.run("consume", "t", "--until-end", "--json")
    assert done.returncode == 1
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["value"], each["headers"]) for each in rows] == [("one", [["a", "b"]]), ("two", None), ("three", [])]
    (line,) = done.stderr.decode().splitlines()
    assert "malformed headers of the record at offset 1" in line
    assert f"in topic 't', partition {rows[0]['partition']}" in line


def test_records_that_are_too_old(shell: Shell) -> None:
    shell.up()
    assert shell.run("produce", "t", stdin=b"one\ntwo\n").returncode == 0
    done = shell.run("consume", "t", "--until-end", "--max-age", "0.001s")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"s old when it was taken, at most 0.001 s are allowed, and 2 that waited were too old" in done.stderr
    done = shell.run("consume", "t", "--until-end", "--max-age", "0.001s", "--on-stale", "drop")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"dropped 2 records that were older than 0.001 s when they were taken" in done.stderr
    assert shell.run("consume", "t", "--until-end", "--max-age", "1h", "--output", "raw").stdout == b"one\ntwo\n"
    assert shell.run("consume", "t", "--max-age", "old").returncode == 2


def test_what_is_stored_alone_is_printed(shell: Shell, tmp_path: Path) -> None:
    with Tower("127.0.0.1:0") as tower, Store(tmp_path / "s", tower=tower.address):
        assert shell.run("produce", "t", "--tower", tower.address, stdin=b"one\ntwo\n").returncode == 0
        options = ("--stored", "--until-end", "--output", "raw", "--tower", tower.address)
        assert shell.run("consume", "t", *options).stdout == b"one\ntwo\n"
    with Tower("127.0.0.1:0") as tower, Producer("t", tower=tower.address, min_acks=0) as producer:
        producer.send("never stored")
        found = shell.run("consume", "t", "--stored", "--count", "1", "--timeout", "2", "--tower", tower.address)
        assert (found.returncode, found.stdout) == (1, b"")
