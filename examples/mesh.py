"""Live events between three endpoints: a sensor, an analyst, and one between them that only passes on.

python examples/mesh.py
"""

from __future__ import annotations

from chappe import Endpoint


def main() -> None:
    with Endpoint() as hub, Endpoint() as sensor, Endpoint() as analyst:
        port = hub.listen()
        with analyst.subscribe("zeek/", on_full="block") as events:
            analyst.peer("127.0.0.1", port)
            sensor.peer("127.0.0.1", port)
            sensor.await_peer(analyst.id, timeout=10)  # over the hub, with what it has subscribed to
            for size in (1500, 40, 9000):
                sensor.publish("zeek/conn", {"host": "10.0.0.1", "bytes": size})
            for _ in range(3):
                event = events.get(timeout=10)
                assert event is not None
                print(event.topic, event.data)


if __name__ == "__main__":
    main()
