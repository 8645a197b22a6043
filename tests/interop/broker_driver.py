"""Runs under the original's Python bindings: one endpoint, driven by lines of JSON on standard input.

Each line is ``[method, ...arguments]``; each answer is a line of JSON. Values travel as Python expressions.
"""

import ipaddress  # noqa: F401  (expressions of the tests use these)
import json
import sys
from datetime import datetime, timedelta  # noqa: F401
from typing import Any

import broker  # type: ignore[import-not-found]


class Driver:
    def __init__(self, options: dict[str, Any]) -> None:
        switches = broker.BrokerOptions()
        switches.disable_ssl = options.get("plain", False)
        switches.disable_forwarding = options.get("leaf", False)
        switches.ignore_broker_conf = True
        configuration = broker.Configuration(switches)
        for name, value in options.get("tls", {}).items():
            setattr(configuration, name, value)
        self.endpoint = broker.Endpoint(configuration)
        self.statuses_ = self.endpoint.make_status_subscriber(True)
        self.subscribers: dict[str, Any] = {}

    def id(self) -> Any:
        return self.endpoint.node_id()

    def listen(self) -> Any:
        return self.endpoint.listen("127.0.0.1", 0)

    def peer(self, port: int, retry: int = 0) -> Any:
        return self.endpoint.peer("127.0.0.1", port, retry)

    def peer_nosync(self, port: int, retry: int) -> None:
        self.endpoint.peer_nosync("127.0.0.1", port, retry)

    def unpeer(self, port: int) -> Any:
        return self.endpoint.unpeer("127.0.0.1", port)

    def await_peer(self, node: str, seconds: float) -> Any:
        return self.endpoint.await_peer(node, seconds)

    def peers(self) -> Any:
        return [each.peer.node_id() for each in self.endpoint.peers()]

    def subscribe(self, topic: str) -> None:
        self.subscribers[topic] = self.endpoint.make_subscriber(topic)

    def add_topic(self, topic: str, further: str) -> None:
        self.subscribers[topic].add_topic(further, True)

    def remove_topic(self, topic: str, further: str) -> None:
        self.subscribers[topic].remove_topic(further, True)

    def unsubscribe(self, topic: str) -> None:
        self.subscribers.pop(topic).reset()

    def forward(self, topic: str) -> None:
        self.endpoint.forward(broker.Topic(topic))

    def publish(self, topic: str, expression: str) -> None:
        self.endpoint.publish(topic, eval(expression))

    def publish_numbers(self, topic: str, count: int) -> None:
        for number in range(count):
            self.endpoint.publish(topic, number)

    def get(self, topic: str, count: int, seconds: float) -> Any:
        """Up to so many messages, each as topic, type and text of the value."""
        found = self.subscribers[topic]._subscriber.get(count, seconds)
        return [(each[0].string(), each[1].get_type().name, str(each[1])) for each in found]

    def statuses(self) -> Any:
        return [repr(each) for each in self.statuses_.poll()]


def main() -> None:
    driver = Driver(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(driver, method)(*arguments)), flush=True)
    driver.endpoint.shutdown()


main()
