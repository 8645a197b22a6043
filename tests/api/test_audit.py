"""What a process refuses, as records of a topic."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.api.rogues import rogue, rules
from tests.api.test_log_rules import Net, home, net
from tests.waiting import until

from chappe import Consumer, Endpoint, Keys, Producer
from chappe.api import permissions
from chappe.api.audit import Audit
from chappe.errors import NotPermitted, Sealed, UsageError
from chappe.transports import refusals
from chappe.transports.refusals import NOTED_MAX, audited

__all__ = ["home", "net"]
EVERYBODY_ELSE = [
    (["store", "introduce", "produce", "publish", "subscribe", "forward"], "hub", ["*"]),
    (["consume"], "reader", ["audit", "a/*"]),
    (["produce", "publish"], "sensor", ["a/*"]),
]


@pytest.fixture(autouse=True)
def nobody_writes_on() -> Iterator[None]:
    yield
    assert not audited.on


@pytest.fixture
def ruled(home: Path) -> Path:
    rules(home, *EVERYBODY_ELSE)
    return home


def read(consumer: Consumer) -> dict[str, Any]:
    found = next(iter(consumer))
    assert found.value is not None
    line: dict[str, Any] = json.loads(found.value)
    assert (found.key or b"").decode() == line["who"]
    assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(line.pop("at")) < timedelta(hours=1)
    assert line.pop("count") >= 1
    return line


def test_a_store_and_an_endpoint_write_down_whom_they_refused_what_by_which_rule(ruled: Path, net: Net) -> None:
    consumer = net.consumer(Keys(ruled / "reader"), "audit")
    eve = rogue(ruled, "sensor")
    other = {"by": "hub", "who": "sensor", "why": "no rule allows it"}

    with (
        Audit("audit", tower=net.tower, security=Keys(ruled / "hub")),
        Endpoint(security=Keys(ruled / "hub")) as hub,
        Endpoint(security=eve) as sensor,
        hub.subscribe("b"),
    ):
        net.producer(eve, "b").send(b"1")
        assert read(consumer) == {**other, "verb": "produce", "topic": "b"}

        sensor.peer("127.0.0.1", hub.listen())
        until(lambda: b"b" in sensor.core.peer_subscriptions())
        sensor.publish("b/live", 1)
        assert until_verb(consumer, "publish") == {**other, "verb": "publish", "topic": "b/live"}
        with sensor.subscribe("c"):
            assert until_verb(consumer, "subscribe") == {**other, "verb": "subscribe", "topic": "c*"}


def until_verb(consumer: Consumer, verb: str) -> dict[str, Any]:
    """The next record with it; others may be repeated meanwhile."""
    while (found := read(consumer))["verb"] != verb:
        pass
    return found


def test_a_rule_that_denies_is_named_with_its_line(home: Path, net: Net) -> None:
    rules(home, *EVERYBODY_ELSE)
    path = home / "permissions.toml"
    path.write_text(
        path.read_text().replace(
            "[[rules]]", '[[rules]]\ndeny = ["produce"]\nnames = ["sensor"]\ntopics = ["a/secret"]\n\n[[rules]]', 1
        )
    )

    permissions.sign(path)
    line = path.read_text().splitlines().index('deny = ["produce"]')
    consumer = net.consumer(Keys(home / "reader"), "audit")
    with closing(Audit("audit", tower=net.tower, security=Keys(home / "hub"))):
        net.producer(rogue(home, "sensor"), "a/secret").send(b"1")
        assert read(consumer)["why"] == f"the rule denies it (line {line})"


def test_it_is_off_unless_somebody_asks_and_bounded_in_each_second() -> None:
    audited.note("eve", "produce", "t", "no rule allows it")
    assert audited.take() == ([], 0)
    assert audited.begin()
    assert not audited.begin()
    try:
        for number in range(10 * NOTED_MAX):
            audited.note("eve", "produce", f"t{number}", "no rule allows it")
            audited.note("eve", "consume", "t" * 100_000, "y" * 100_000)
        found, left_out = audited.take()
        assert len(found) == NOTED_MAX
        assert sum(each.count for each in found) + left_out == 20 * NOTED_MAX
        assert {each.count for each in found if each.verb == "consume"} == {10 * NOTED_MAX}
        assert max(len(each.topic + each.why) for each in found) == 2 * refusals.TEXT_MAX
        assert audited.take() == ([], 0)
    finally:
        audited.end()


def test_what_is_beyond_the_bound_is_counted_in_a_record(ruled: Path, net: Net) -> None:
    consumer = net.consumer(Keys(ruled / "reader"), "audit")
    with closing(Audit("audit", tower=net.tower, security=Keys(ruled / "hub"))):
        for number in range(3 * NOTED_MAX):
            audited.note("eve", "produce", f"t{number}", "no rule allows it")
        assert until_verb(consumer, "left out")["who"] == ""


def test_two_that_refuse_each_others_records_do_not_write_about_it_for_ever(
    ruled: Path, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = net.consumer(Keys(ruled / "reader"), "audit")
    monkeypatch.setattr("chappe.api.audit.AUDIT_S", 0.01)
    with closing(Audit("audit", tower=net.tower, security=Keys(ruled / "hub"))) as audit:
        for number in range(5):
            audited.note("other", "produce", "audit", f"no rule allows it, {number}")
            until(lambda: not audited._noted)
        audited.note("third", "produce", "audit", "no rule allows it")
        audited.note("other", "produce", "a/x", "no rule allows it")
        found = [read(consumer) for _ in range(3)]
        assert [(each["who"], each["topic"]) for each in found] == [
            ("other", "audit"), ("third", "audit"), ("other", "a/x"),
        ]  # fmt: skip
        assert found[0]["why"].endswith("0")
        assert list(audit._told_at) == ["other", "third"]


def test_it_takes_the_right_to_produce_the_topic_and_there_is_one_in_a_process(ruled: Path, net: Net) -> None:
    with pytest.raises(NotPermitted, match="reader may not produce 'audit'"):
        Audit("audit", tower=net.tower, security=Keys(ruled / "reader"))
    assert not audited.on
    with (
        closing(Audit("audit", tower=net.tower, security=Keys(ruled / "hub"))) as first,
        pytest.raises(UsageError, match="close the other Audit first"),
    ):
        Audit("other", tower=net.tower, security=Keys(ruled / "hub"))
    first.close()  # once more


def test_without_a_log_it_holds_up_nobody_and_says_so(
    ruled: Path, net: Net, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chappe.api.audit.CLOSE_S", 0.05)
    caplog.set_level(logging.WARNING)

    def no_producer(*given: object, **options: object) -> None:
        raise UsageError("there is no log")

    monkeypatch.setattr("chappe.api.audit.Producer", no_producer)
    with closing(Audit("audit", tower="127.0.0.1:9", security=Keys(ruled / "hub"))):
        audited.note("eve", "produce", "t", "no rule allows it")
        until(lambda: "what was refused is not written to topic audit: there is no log" in caplog.text)


def test_a_sealed_topic_gets_what_was_refused_before_the_keys_to_seal_with_had_come(
    ruled: Path, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, send, tries = net.consumer(Keys(ruled / "reader"), "audit"), Producer.send, list[str]()

    def late(self: Producer, *args: Any, **options: Any) -> int:
        tries.append("")
        if len(tries) > 2:
            return send(self, *args, **options)
        error = Sealed("nothing was sent")
        error.passing = True
        raise error

    monkeypatch.setattr("chappe.api.audit.AUDIT_S", 0.01)
    monkeypatch.setattr(Producer, "send", late)
    with closing(Audit("audit", tower=net.tower, security=Keys(ruled / "hub"))):
        audited.note("eve", "produce", "t", "no rule allows it")
        assert read(consumer)["verb"] == "produce"


def test_a_defect_is_logged_and_what_comes_later_is_written(
    ruled: Path, net: Net, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = net.consumer(Keys(ruled / "reader"), "audit")
    monkeypatch.setattr("chappe.api.audit.AGAIN_S", 0.0)
    with closing(Audit("audit", tower=net.tower, security=Keys(ruled / "hub"))):
        with monkeypatch.context() as broken:
            broken.setattr("chappe.api.audit.Producer", None)
            audited.note("eve", "produce", "t", "no rule allows it")
            until(lambda: "not written to topic audit because of a defect" in caplog.text)
        audited.note("eve", "consume", "t", "no rule allows it")
        assert until_verb(consumer, "consume")["who"] == "eve"
