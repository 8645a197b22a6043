"""A small system that does something, in a process of its own: for pages to show.

``python -m tests.dashboard.scene DIRECTORY TOWER`` prints where mesh, map and chain are; each line of standard input is
an order, and its end is the end. A pair of map servers has a witness.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from tests.api.chain_rig import Ledger
from tests.ports import free_address, free_ports

from chappe import ChainConfiguration, ChainServer, Consumer, Endpoint, MapServer, Producer, SharedMap, Witness

HOSTILE_TOPIC = "<img src=x onerror=alert(1)>"
HOSTILE_KEY = b"<svg onload=alert(2)>"
HOSTILE_VALUE = b"</script><script>document.title='taken'</script><b>bold</b> `${alert(3)}` {{ 7*7 }}"
STEP_S = 0.1


def main(directory: Path, tower: str) -> None:
    """Play it."""
    with ExitStack() as stack:
        producers = {
            name: stack.enter_context(Producer(name, tower=tower))
            for name in ("orders", "sensors.temperature", "sensors.humidity", "web.clicks")
        }
        hostile = stack.enter_context(Producer(HOSTILE_TOPIC, tower=tower))
        hostile.send(HOSTILE_VALUE, key=HOSTILE_KEY, headers={"<h1>": b"<iframe src=javascript:alert(4)>"})
        hostile.flush()
        consumer = stack.enter_context(Consumer("orders", tower=tower, identity="billing", directory=directory))
        hub, *others = [stack.enter_context(Endpoint()) for _ in range(6)]
        port = hub.listen()
        for each in others:
            each.peer("127.0.0.1", port)
        witness = stack.enter_context(Witness("127.0.0.1:0", path=directory / "witness.db")).address
        prices = stack.enter_context(hub.attach_master("prices"))
        stack.enter_context(others[0].attach_clone("prices"))
        maps = free_address(4), free_address(4)
        stack.enter_context(MapServer(maps[0], partner=maps[1], role="primary", witness=witness, model=6))
        stack.enter_context(MapServer(maps[1], partner=maps[0], role="backup", witness=witness, model=6))
        rooms = stack.enter_context(SharedMap(*maps, values=str))
        rooms.set("/rooms/<b>1</b>/light", "on")
        chain = _chain(directory, stack)
        print(json.dumps({"mesh": f"127.0.0.1:{port}", "map": ",".join(maps), "chain": chain}), flush=True)
        ended = threading.Event()

        def listen() -> None:
            sys.stdin.buffer.read()
            ended.set()

        threading.Thread(target=listen, daemon=True).start()
        number = 0
        while not ended.wait(STEP_S):
            number += 1
            for size, (name, producer) in enumerate(producers.items(), 2):
                for n in range(size):
                    value = json.dumps({"number": number, "room": n, "of": name})
                    producer.send(value.encode(), key=b"room-%d" % n, headers={"unit": b"celsius"})
            others[1].publish("/zeek/conn", {"uid": f"C{number}", "text": "<b>markup</b>"})
            prices.put(f"share-{number % 20:02}", number)
            while consumer.poll(0.01) is not None:
                pass
            if number % 20 == 0:
                consumer.commit()


def _chain(directory: Path, stack: ExitStack) -> str:
    """Three servers of a chain; returns its file."""
    first = free_ports(3)
    file = directory / "ledger.toml"
    servers = [f'{name} = "127.0.0.1:{port}"' for port, name in enumerate(("oslo", "bern", "rome"), first)]
    file.write_text("\n".join(['name = "ledger"', "durable = false", "[servers]", *servers]))
    configuration = ChainConfiguration.load(file)
    for name in configuration.names:
        stack.enter_context(ChainServer(Ledger(), configuration, name))
    return str(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
