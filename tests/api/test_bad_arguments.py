"""Whatever is handed in and cannot be taken is refused in a sentence, wherever that is, and nothing comes of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.api.members import PATIENCE_S

from chappe import AsyncProducer, Consumer, Endpoint, MapServer, Producer, SharedMap, read_topic
from chappe.api.log.store import Store
from chappe.errors import ChappeError, UsageError

WRONG: list[Any] = [5, 3_000_000_000, 1.5, True, ["x"], {"x": 1}, object(), "a\ud800"]
Door = Callable[[Any, Any], object]


def refused(doors: dict[str, Door], member: object, wrong: list[Any]) -> None:
    for name, door in doors.items():
        for given in wrong:
            with pytest.raises(ChappeError) as caught:
                door(member, given)
            assert re.match(r"[^\n]{10,}$", str(caught.value)), name  # a sentence


PRODUCER: dict[str, Door] = {
    "value": lambda p, x: p.send(x),
    "key": lambda p, x: p.send(b"v", x),
    "header": lambda p, x: p.send(b"v", None, {"a": x}),
    "name of a header": lambda p, x: p.send(b"v", None, [(x, b"v")]),
    "headers": lambda p, x: p.send(b"v", None, x if isinstance(x, str) else [x]),
    "topic": lambda p, x: p.send(b"v", topic=x),
    "values": lambda p, x: p.send_many([x, b"v"]),
    "topic of values": lambda p, x: p.send_many([b"v"], topic=x),
    "topic of a batch": lambda p, x: p.send_batch(b"", topic=x),
    "batch": lambda p, x: p.send_batch(x),
    "rows": lambda p, x: p.send_arrow(x),
    "topic of a record": lambda p, x: p.delivered(0, x),
    "own topic": lambda p, x: Producer(x),
    "identity": lambda p, x: Producer("t", identity=x),
}


def test_a_producer(tower: str, store: Store) -> None:
    with Producer("hello", tower=tower) as producer:
        refused(PRODUCER, producer, WRONG)
        for given in (b"bytes", "text", 5, None):
            with pytest.raises(UsageError, match="values are several"):
                producer.send_many(given)  # type: ignore[arg-type]
        assert producer.next_offset == 0
        assert [*producer.topics] == ["hello"]
        producer.send(b"x")
        producer.flush(PATIENCE_S)


def test_a_producer_under_asyncio(tower: str) -> None:
    async def run() -> None:
        async with AsyncProducer("hello", tower=tower) as producer:
            for given in WRONG:
                for arguments in ({"value": given}, {"key": given}, {"headers": {"a": given}}, {"topic": given}):
                    with pytest.raises(UsageError):
                        await producer.send(**{"value": b"v", **arguments})
            assert producer.next_offset == 0

    asyncio.run(run())


def test_a_consumer(tower: str, tmp_path: Path) -> None:
    doors: dict[str, Door] = {
        "topic": lambda c, x: Consumer(x),
        "topic to seek in": lambda c, x: c.seek(x, "p", 0),
        "topic to commit": lambda c, x: c.commit([((x, "p"), 0)]),
        "positions": lambda c, x: c.commit([x]),
        "topic to read": lambda c, x: read_topic([x], tower=tower),
    }
    numbers: dict[str, Door] = {
        "offset": lambda c, x: c.seek("hello", "p", x),
        "position": lambda c, x: c.commit({("hello", "p"): x}),
    }
    with Consumer("hello", tower=tower, identity="me", directory=tmp_path) as consumer:
        refused(doors, consumer, WRONG)
        refused(numbers, consumer, [1.5, "x", None, -1, ["x"]])
        assert consumer.position() == {}
        consumer.commit()


def test_an_endpoint() -> None:
    doors: dict[str, Door] = {
        "topic": lambda e, x: e.publish(x, 1),
        "topic of many": lambda e, x: e.publish_batch([(x, 1)]),
        "message": lambda e, x: e.publish_batch([x]),
        "prefix": lambda e, x: e.subscribe(x),
        "prefix to forward": lambda e, x: e.forward(x),
        "store": lambda e, x: e.attach_master(x),
        "clone": lambda e, x: e.attach_clone(x, timeout=0),
    }
    with Endpoint() as endpoint:
        refused(doors, endpoint, WRONG)
        subscriber = endpoint.subscribe("/t")
        refused({"add": lambda s, x: s.add(x), "remove": lambda s, x: s.remove(x)}, subscriber, WRONG)
        for given in (b"bytes", "text", 5, None):
            with pytest.raises(UsageError, match="messages are several"):
                endpoint.publish_batch(given)  # type: ignore[arg-type]
        with endpoint.attach_master("s") as store:
            refused({"items": lambda s, x: s.put_many([x])}, store, [5, None, "ab", ["x"], object()])
            refused({"prefix": lambda s, x: s.watch(prefix=x)}, store, [5, b"x", ["x"], object()])
            refused(
                {"key": lambda s, x: s.put(x, 1), "value": lambda s, x: s.put("k", x)}, store, [object(), "a\ud800"]
            )
            assert len(store) == 0


def test_a_shared_map() -> None:
    doors: dict[str, Door] = {
        "set": lambda m, x: m.set(x, "v"),
        "value": lambda m, x: m.set("/k", x),
        "delete": lambda m, x: m.delete(x),
        "get": lambda m, x: m.get(x),
        "items": lambda m, x: m.set_many([x]),
        "keys": lambda m, x: m.set_many([(x, "v")]),
        "compare": lambda m, x: m.compare_and_set(x, None, "v"),
        "wait": lambda m, x: m.wait_for(x, timeout=0.0),
        "watch": lambda m, x: m.watch(key=x),
        "prefix": lambda m, x: m.watch(prefix=x),
    }
    with MapServer("127.0.0.1:0") as server, SharedMap(server.address, values=str) as shared:
        refused(doors, shared, [*WRONG, b"x"])
        assert len(shared) == 0


def test_a_topic_out_of_a_locale_of_ascii_is_the_one_of_everybody_else(tower: str, store: Store) -> None:
    """Its records are acknowledged by another spelling of its name, of which the producer knew nothing."""
    spelt = "caf\udcc3\udca9"
    with Producer(spelt, tower=tower) as producer:
        assert producer.topic == "café"
        producer.send(b"own topic")
        producer.send(b"named", topic=spelt)
        producer.send_many([b"several"], topic="café")
        producer.flush(PATIENCE_S)
        assert [*producer.topics] == ["café"]
    with Consumer(spelt, tower=tower) as consumer:
        assert [(each.topic, each.value) for each in consumer.to_end(PATIENCE_S)] == [
            ("café", b"own topic"),
            ("café", b"named"),
            ("café", b"several"),
        ]
        consumer.seek(spelt, producer.partition, 2)
        assert [each.value for each in consumer.to_end(PATIENCE_S)] == [b"several"]
