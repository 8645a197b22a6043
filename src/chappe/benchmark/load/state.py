"""Shared state under load: data stores, maps and chains. Writers set keys again and again, others see the changes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal

import chappe  # loads what a process uses, and no more
from chappe.api.chain.key_values import KeyValues
from chappe.benchmark.load.crew import Crew
from chappe.benchmark.load.frame import READY_S, STAMP_BYTES, WAIT_S, Meter, SourceLoad, send, serve, take
from chappe.benchmark.orders import Orders, say
from chappe.data.scalars import Count
from chappe.errors import TimedOut
from chappe.system.ports import free_ports

HOST: Final = "127.0.0.1"
NAME: Final = "bench"
KEYS: Final = 10_000  # of each writer, written again and again
SIZE_MIN: Final = STAMP_BYTES
TAKE: Final = 4_096  # changes taken at once
WAITING_MAX: Final = 1_000_000  # changes that may wait for one that follows a map

Puts = Iterable[tuple[str, int]]  # keys, and when each was due
Kind = Literal["data-store", "map", "chain"]


def start(crew: Crew, loads: Sequence[SourceLoad], kind: Kind, followers: int, servers: int, directory: Path) -> None:
    """Start all processes.

    Args:
        crew: Of this run.
        loads: One of each writer.
        kind: Which product.
        followers: Clones of a data store, or clients of a map.
        servers: Of a chain.
        directory: For the files of a chain.
    """
    each = [{"load": asdict(load), "number": number} for number, load in enumerate(loads)]
    if kind == "chain":
        found = {f"s{number}": f"{HOST}:{port}" for number, port in enumerate(free_ports(servers), 1)}
        names = [{"name": name} for name in found]
        crew.start("state.chain_server", "server", "servers", names, servers=found, directory=str(directory))
        crew.start("state.chain_writer", "writer", "sources", each, servers=found)
    elif kind == "map":
        (server,) = crew.start("state.map_server", "server", "servers", [{}])
        crew.start("state.map_client", "client", "sinks", [{}] * followers, at=server["at"])
        crew.start("state.map_writer", "writer", "sources", each, at=server["at"])
    else:
        (server,) = crew.start("state.master", "master", "servers", [{}])
        crew.start("state.clone", "clone", "sinks", [{}] * followers, at=server["at"])
        crew.start("state.clone_writer", "writer", "sources", each, at=server["at"])


def _write(
    orders: Orders, options: dict[str, Any], put: Callable[[str, int], object], put_many: Callable[[Puts], object]
) -> None:
    """Set key after key, each or each list when the one before is confirmed."""
    meter = Meter("confirmed")
    number, at = options["number"], 0

    def call(stamp: int, count: int) -> None:
        nonlocal at
        keys = [f"/{number}/{place % KEYS}" for place in range(at, at + count)]
        at += count
        if count == 1:
            put(keys[0], stamp)
        else:
            put_many((key, stamp) for key in keys)
        meter.latencies["confirmed"].add(time.monotonic_ns() - stamp)

    say("ready")
    send(orders, SourceLoad.of(options), meter, call, lambda: None)


def _follow(orders: Orders, watch: chappe.DataStoreWatch | chappe.MapWatch[bytes], stamp: Callable[[Any], int]) -> None:
    meter = Meter("visible")
    ages = meter.latencies["visible"]

    def call() -> None:
        changes = watch.get_many(TAKE, WAIT_S)
        now = time.monotonic_ns()
        for each in changes:
            ages.add(now - stamp(each.value))
        if changes:
            meter.add(len(changes))
        meter.dropped = watch.dropped

    say("ready")
    take(orders, meter, call)


def master(orders: Orders, options: dict[str, Any]) -> None:
    del options
    with chappe.Endpoint(security="plain") as endpoint, endpoint.attach_master(NAME):
        say("ready", at=endpoint.listen(HOST))
        serve(orders, Meter())


def clone(orders: Orders, options: dict[str, Any]) -> None:
    with chappe.Endpoint(security="plain") as endpoint:
        endpoint.peer(HOST, options["at"])
        with endpoint.attach_clone(NAME) as store, store.watch(on_full="block") as watch:
            _follow(orders, watch, lambda value: int(value[0]))


def clone_writer(orders: Orders, options: dict[str, Any]) -> None:
    text = "x" * (options["load"]["size"] - SIZE_MIN)
    with chappe.Endpoint(security="plain") as endpoint:
        endpoint.peer(HOST, options["at"])
        with endpoint.attach_clone(NAME) as store:

            def put(key: str, stamp: int) -> None:
                store.put(key, [Count(stamp), text])

            def put_many(puts: Puts) -> None:
                store.put_many((key, [Count(stamp), text]) for key, stamp in puts)

            _write(orders, options, put, put_many)


def map_server(orders: Orders, options: dict[str, Any]) -> None:
    del options
    with chappe.MapServer(f"{HOST}:0", security="plain") as found:
        say("ready", at=found.address)
        serve(orders, Meter())


def map_client(orders: Orders, options: dict[str, Any]) -> None:
    with chappe.SharedMap(options["at"], security="plain") as found, found.watch(messages_max=WAITING_MAX) as watch:
        _follow(orders, watch, lambda value: int.from_bytes(value[:STAMP_BYTES], "little"))


def map_writer(orders: Orders, options: dict[str, Any]) -> None:
    filler = bytes(options["load"]["size"] - SIZE_MIN)
    with chappe.SharedMap(options["at"], security="plain") as found:

        def put(key: str, stamp: int) -> None:
            found.set(key, stamp.to_bytes(STAMP_BYTES, "little") + filler)

        def put_many(puts: Puts) -> None:
            found.set_many((key, stamp.to_bytes(STAMP_BYTES, "little") + filler) for key, stamp in puts)

        _write(orders, options, put, put_many)


def chain_server(orders: Orders, options: dict[str, Any]) -> None:
    """Run a server of a chain; where its parent is killed, it removes the state of all of them."""
    orders.on_orphaned = lambda: shutil.rmtree(options["directory"], ignore_errors=True)
    name: str = options["name"]
    where, configuration = Path(options["directory"], name), chappe.ChainConfiguration(options["servers"], NAME)
    with chappe.ChainServer(KeyValues(), configuration, name, directory=where, security="plain"):
        say("ready")
        serve(orders, Meter())


def chain_writer(orders: Orders, options: dict[str, Any]) -> None:
    """Write to a chain of which all servers are members."""
    filler = "x" * options["load"]["size"]
    with chappe.Chain(chappe.ChainConfiguration(options["servers"], NAME), security="plain") as chain:
        until = time.monotonic() + READY_S
        while any(
            each is None or len(each.members) < len(options["servers"])
            for each in chain.status(timeout=WAIT_S).values()
        ):
            if time.monotonic() > until:
                raise TimedOut(f"the servers have not become one chain within {READY_S:g} s")
            time.sleep(WAIT_S)

        def command(key: str) -> bytes:
            return json.dumps(["put", key, filler]).encode()

        def put(key: str, _: int) -> None:
            chain.call(command(key))

        def put_many(puts: Puts) -> None:
            chain.call_many(command(key) for key, _ in puts)

        _write(orders, options, put, put_many)
