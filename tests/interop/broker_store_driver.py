"""Runs under the original's Python bindings: an endpoint with data stores, driven by lines of JSON on standard input.

Each line is ``[method, ...arguments]``; each answer is a line of JSON. Values travel as Python expressions.
"""

import ipaddress  # noqa: F401  (expressions of the tests use these)
import json
import sys
from datetime import datetime, timedelta  # noqa: F401
from typing import Any

import broker  # type: ignore[import-not-found]

EVENTS = "<$>/local/data/store-events/"


def shown(value: Any) -> list[str]:
    """Type and text; of strings the bytes, for the original cannot show those that are not UTF-8."""
    kind = value.get_type()
    return [kind.name, value.as_string().hex() if kind == broker.Data.Type.String else str(value)]


class Driver:
    def __init__(self, options: dict[str, Any]) -> None:
        switches = broker.BrokerOptions()
        switches.disable_ssl = True
        switches.disable_forwarding = options.get("leaf", False)
        switches.ignore_broker_conf = True
        self.endpoint = broker.Endpoint(broker.Configuration(switches))
        self.stores: dict[str, Any] = {}
        self.events_: dict[str, Any] = {}

    def id(self) -> Any:
        return self.endpoint.node_id()

    def forward(self, *topics: str) -> None:
        for topic in topics:
            self.endpoint.forward(topic)

    def listen(self, port: int = 0) -> Any:
        return self.endpoint.listen("127.0.0.1", port)

    def peer(self, port: int, retry: int = 0) -> Any:
        return self.endpoint.peer("127.0.0.1", port, retry)

    def peer_nosync(self, port: int, retry: int) -> None:
        self.endpoint.peer_nosync("127.0.0.1", port, retry)

    def unpeer(self, port: int) -> Any:
        return self.endpoint.unpeer("127.0.0.1", port)

    def peers(self) -> Any:
        return [each.peer.node_id() for each in self.endpoint.peers()]

    def await_peer(self, node: str, seconds: float) -> Any:
        return self.endpoint.await_peer(node, seconds)

    def attach_master(self, name: str, backend: str = "Memory", options: str = "{}") -> Any:
        """Whether it did."""
        found = self.endpoint.attach_master(name, getattr(broker.Backend, backend), eval(options))
        self.stores[name] = found
        return found is not None

    def attach_clone(self, name: str) -> Any:
        """Whether it did; it has no data yet."""
        self.stores[name] = self.endpoint.attach_clone(name)
        return self.stores[name] is not None

    def do(self, name: str, method: str, *expressions: str) -> Any:
        """Any method; its result as an expression."""
        return repr(getattr(self.stores[name], method)(*map(eval, expressions)))

    def put_numbers(self, name: str, count: int) -> None:
        for number in range(count):
            self.stores[name].put(f"key {number}", number)

    def put_unique_numbers(self, name: str, count: int, value: str) -> Any:
        """Which of so many keys it was the first to set."""
        return [self.stores[name].put_unique(number, value) for number in range(count)]

    def size(self, name: str) -> Any:
        """How many entries; none if it cannot be read."""
        keys = self.stores[name]._store.keys()
        return len(keys.get().as_set()) if keys.is_valid() else None

    def dump(self, name: str) -> Any:
        """Each entry as type and text of key and value, sorted."""
        store = self.stores[name]._store
        found = []
        for key in store.keys().get().as_set():
            value = store.get(key)
            if value.is_valid():
                found.append(shown(key) + shown(value.get()))
        return sorted(found)

    def watch(self, name: str) -> None:
        self.events_[name] = self.endpoint.make_subscriber(EVENTS + name)

    def events(self, name: str, count: int, seconds: float) -> Any:
        """The text of up to so many events."""
        return [str(each[1]) for each in self.events_[name]._subscriber.get(count, seconds)]


def main() -> None:
    driver = Driver(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(driver, method)(*arguments)), flush=True)
    for subscriber in driver.events_.values():
        subscriber.reset()
    driver.stores.clear()
    driver.endpoint.shutdown()


main()
