"""Members before and after forks, while traffic flows: DIRECTORY. Says what went wrong; ends with 0 if nothing did."""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.api.chain_rig import Servers, new_configuration
from tests.waiting import PATIENCE_S, until

from chappe import (
    Chain,
    Consumer,
    Endpoint,
    Forwarder,
    Gateway,
    GatewaySide,
    MapServer,
    Producer,
    ShardedConsumer,
    SharedMap,
    Store,
    Tower,
    Witness,
)
from chappe.api.taps import Tap
from chappe.errors import Forked, IdentityInUse, TimedOut
from chappe.transports.queries import StoreClient


def refused(call: Callable[[], Any], name: str) -> None:
    try:
        found = call()
    except Forked:
        return
    raise AssertionError(f"{name} returned {found!r}")


def main(directory: Path) -> None:
    tower = Tower("127.0.0.1:0")
    address = tower.address
    store = Store(directory / "store", tower=address)
    plain = Producer("t", tower=tower.address)
    lasting = Producer("t", tower=tower.address, identity="me", directory=directory)
    consumer = Consumer("t", tower=tower.address, identity="me", directory=directory)
    here, there = Endpoint(), Endpoint()
    subscriber, statuses = there.subscribe("x"), there.statuses()
    there.peer("127.0.0.1", here.listen())
    here.await_peer(there.id)
    master = here.attach_master("s", "sqlite", path=directory / "s.db")
    clone = there.attach_clone("s")
    watch, proxy, publisher = clone.watch(), clone.proxy(), here.publisher("x")
    client = StoreClient(store.endpoint)
    alone = Producer("t", tower="127.0.0.1:1")
    future = alone.delivered(alone.send("nobody stores it"))
    server, witness = MapServer("127.0.0.1:0"), Witness("127.0.0.1:0", path=directory / "witness.db")
    shared = SharedMap(server.address, values=str)
    shared["/before"] = "1"
    changes = shared.watch()
    forwarder = Forwarder(directory / "forwarder", listen="127.0.0.1:0")
    tap = Tap("127.0.0.1", forwarder.tap())
    through = Producer("t", forwarders=forwarder.address)
    gateway = Gateway(GatewaySide("one"), GatewaySide("two"))
    sharded = ShardedConsumer(str, "t", tower=address, workers=1)
    configuration = new_configuration("a", durable=False)
    link = Servers(configuration, None).start("a")
    chain = Chain(configuration)
    chain.call(b"before", timeout=PATIENCE_S)
    members: list[Any] = [chain, link, sharded, gateway, through, tap, forwarder, changes, shared, witness, server]
    members += [client, publisher, proxy, watch, clone, master, statuses, subscriber, there, here]
    members += [consumer, lasting, plain, store, tower]
    sent = 0
    stop = threading.Event()

    def work() -> None:
        nonlocal sent
        while not stop.wait(0.0002):
            plain.send("plain")
            lasting.send("lasting")
            publisher.publish(sent)
            sent += 1
            master.put("count", sent)

    def read() -> None:
        while not stop.is_set():
            consumer.poll(0.05)

    threads = [threading.Thread(target=each) for each in (work, read)]
    for thread in threads:
        thread.start()
    until(lambda: plain.stored)
    send, loop = plain.send, iter(subscriber)  # what is kept of members

    def in_child() -> None:
        for name, call in {
            "send": lambda: plain.send("x"),
            "kept send": lambda: send("x"),
            "kept future": lambda: future.result(),
            "flush": lambda: lasting.flush(3),
            "stored": lambda: plain.stored,
            "poll": lambda: consumer.poll(None),
            "records": lambda: next(iter(consumer)),
            "to_end": lambda: next(consumer.to_end()),
            "commit": lambda: consumer.commit(),
            "publish": lambda: here.publish("x", 1),
            "publisher": lambda: publisher.publish(1),
            "peers": lambda: there.peers(),
            "subscriber": lambda: subscriber.get(),
            "kept loop": lambda: next(loop),
            "statuses": lambda: statuses.get(),
            "put": lambda: master.put("count", 0),
            "get": lambda: clone.get("count"),
            "in": lambda: "count" in clone,
            "watch": lambda: watch.get(),
            "proxy": lambda: proxy.get("count"),
            "status": lambda: store.status(),
            "nodes": lambda: tower.nodes(),
            "query": lambda: client.heads(),
            "map server": lambda: server.status(),
            "witness": lambda: witness.events(),
            "set": lambda: shared.set("/before", "2"),
            "value": lambda: shared["/before"],
            "keys": lambda: list(shared),
            "changes": lambda: changes.get(),
            "forwarder": lambda: forwarder.status(),
            "tap": lambda: tap.look(0.0),
            "through": lambda: through.send("x"),
            "gateway": lambda: gateway.status(),
            "sharded": lambda: sharded.run(),
            "call": lambda: chain.call(b"x"),
            "chain": lambda: link.status(),
        }.items():
            refused(call, name)
        assert isinstance(plain, Producer)
        assert "before the fork" in repr(plain)

    for leave in ("exit", "_exit"):
        child = os.fork()
        if child == 0:
            try:
                in_child()
                for each in members:
                    each.close()
                with Producer("t", tower=address, min_acks=1) as made:
                    made.send("child")
                    made.flush(PATIENCE_S)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            if leave == "_exit":
                os._exit(0)
            gc.collect()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    stop.set()
    for thread in threads:
        thread.join()
    for each in (plain, lasting):
        each.flush(PATIENCE_S)
    for again in (Producer, Consumer):
        try:
            again("t", tower=tower.address, identity="me", directory=directory)
        except IdentityInUse:
            continue
        raise AssertionError("a child has let go of what the parent has locked")
    with Consumer("t", tower=tower.address) as reader:
        found = Counter(record.value for record in reader.to_end(PATIENCE_S))
    assert found == {b"plain": sent, b"lasting": sent, b"child": 2}, (found, sent)
    assert master.get("count") == sent
    until(lambda: clone.get("count") == sent)
    assert dict(shared) == {"/before": "1"}
    shared["/after"] = "2"
    assert set(shared) == {"/before", "/after"}
    assert chain.call(b"after", timeout=PATIENCE_S).result == b"2"
    through.send("x")
    through.flush(PATIENCE_S)
    until(lambda: subscriber.available + subscriber.dropped >= sent)
    for each in members:
        each.close()
    assert not future.done()
    try:
        alone.close(0.0)
    except TimedOut:
        return
    raise AssertionError("nobody stored it")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
