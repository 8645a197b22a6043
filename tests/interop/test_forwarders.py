"""Original programs at a forwarder, which they take for their tower."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.network import Network, take, wait_until_stored
from tests.interop.originals import eventually, settle

from chappe import Consumer, Forwarder, Producer, Tower

pytestmark = [pytest.mark.interop, pytest.mark.process]


@pytest.fixture
def forwarder(bare: Network, tmp_path: Path) -> Iterator[Forwarder]:
    with Forwarder(tmp_path / "forwarder", listen="127.0.0.1:0", originals="127.0.0.1:0") as made:
        assert made.originals is not None
        bare.tower = made.originals
        yield made


def joined(forwarder: Forwarder, members: int) -> None:
    """So many programs are known, and have had time to connect."""
    eventually(lambda: forwarder.status().peers >= members, f"{members} programs at the forwarder")
    settle()


def listening(forwarder: Forwarder, topic: str) -> None:
    """Somebody has subscribed to single records of the topic, which the console consumer does a second late."""
    subscriptions = forwarder._node.store.subscriptions
    eventually(lambda: subscriptions.has(b"M" + topic.encode()), "an original consumer subscribes")


def test_originals_reach_each_other_and_ours_through_it(bare: Network, forwarder: Forwarder, topic: str) -> None:
    theirs = bare.alone("dafka_console_consumer", topic)
    listening(forwarder, topic)
    with (
        Consumer(topic, forwarders=forwarder.address) as ours,
        Producer(topic, forwarders=forwarder.address) as producer,
    ):
        sender = bare.alone("dafka_console_producer", topic)
        joined(forwarder, 2)
        lines = [f"line {number}" for number in range(500)]
        sender.send(lines)
        theirs.expect(500)
        assert theirs.contents(topic) == lines
        assert [each.value for each in take(ours, 500)] == [each.encode() for each in lines]
        producer.send_many(lines)
        producer.flush()
        theirs.expect(1_000)
        assert theirs.contents(topic) == lines + lines
        wait_until_stored(forwarder, topic, 1_000)
        assert sender.finish() == 0, "it ends once all was acknowledged"


def test_an_original_that_comes_late_gets_what_was_kept(bare: Network, forwarder: Forwarder, topic: str) -> None:
    with Producer(topic, forwarders=forwarder.address) as producer:
        lines = [f"{number}" for number in range(20_000)]
        producer.send_many(lines)
        producer.flush()
    late = bare.alone("dafka_console_consumer", topic, "--from-beginning")
    late.expect(20_000)
    assert late.contents(topic) == lines


def test_an_original_store_at_a_forwarder_keeps_what_passes(
    bare: Network, forwarder: Forwarder, tmp_path: Path, topic: str
) -> None:
    """It has all of it when the forwarder is gone."""
    theirs = bare.store_alone("theirs")
    joined(forwarder, 2)  # its reader and its writer
    eventually(lambda: forwarder._node.store.subscriptions.has(b"M"), "it wants all records")
    lines = [f"line {number}" for number in range(500)]

    def wrote(content: str) -> None:
        logs = (tmp_path / "theirs").glob
        eventually(lambda: any(content.encode() in each.read_bytes() for each in logs("*.log")), f"it wrote {content}")

    with Producer(topic, forwarders=forwarder.address) as producer:
        producer.send_many(lines)
        producer.flush()
        wrote("line 499")  # what it missed it fetches while the producer speaks of it
    sender = bare.alone("dafka_console_producer", topic)
    joined(forwarder, 3)
    sender.send(["the last line"])
    wrote("the last line")
    wait_until_stored(forwarder, topic, 501)
    theirs.kill()
    sender.kill()
    forwarder.close()

    with Tower("127.0.0.1:0") as tower:
        bare.tower = tower.address
        bare.store_alone("theirs")
        with Consumer(topic, tower=tower.address) as ours:
            records = take(ours, 501)
    assert sorted(each.value or b"" for each in records) == sorted(each.encode() for each in [*lines, "the last line"])


def test_originals_go_on_with_one_of_two_forwarders(
    bare: Network, forwarder: Forwarder, tmp_path: Path, topic: str
) -> None:
    with Forwarder(
        tmp_path / "second", listen="127.0.0.1:0", originals="127.0.0.1:0", peers=forwarder.address
    ) as other:
        assert other.originals is not None
        bare.tower = f"{forwarder.originals},{other.originals}"
        theirs = bare.alone("dafka_console_consumer", topic)
        sender = bare.alone("dafka_console_producer", topic)
        for each in (forwarder, other):
            listening(each, topic)
            joined(each, 2)
        lines = [f"line {number}" for number in range(200)]
        sender.send(lines)
        theirs.expect(200)
        wait_until_stored(other, topic, 200)
        forwarder.close()
        more = [f"more {number}" for number in range(200)]
        sender.send(more)
        theirs.expect(400)
        assert theirs.contents(topic) == lines + more
        wait_until_stored(other, topic, 400)
