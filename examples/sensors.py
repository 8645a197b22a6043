"""From sensors to Spark: events of the mesh, recorded into a topic, as columns of a DataFrame.

pip install 'chappe[spark]', then python examples/sensors.py

A real Zeek can take the sensor's place: it peers with the recorder's endpoint and publishes its own events.
"""

from __future__ import annotations

import tempfile
import threading
import time
from datetime import UTC, datetime

from chappe import Endpoint, Store, Tower
from chappe.bridges.recorder import Recorder
from chappe.data.scalars import Address, Count, Port
from chappe.data.zeek import Event
from chappe.spark import decode_events
from chappe.spark.session import spark_session

CONNECTIONS = 100


def record(tower: str, directory: str) -> None:
    """A sensor tells of connections that have ended; whoever records makes each event a record."""
    with (
        Endpoint() as listener,
        Endpoint() as sensor,
        Recorder(listener, "zeek/", to="events", tower=tower, directory=directory) as recorder,
    ):
        recording = threading.Thread(target=recorder.run)
        recording.start()
        sensor.peer("127.0.0.1", listener.listen())
        sensor.await_peer(listener.id, timeout=10)
        for n in range(CONNECTIONS):
            host, port, size = Address(f"10.0.0.{n % 4}"), Port(443 if n % 2 else 53), Count(1000 * n)
            seen = Event("connection_end", f"C{n}", host, port, size, metadata={1: datetime.now(UTC)})
            sensor.publish("zeek/conn", seen)
        while (stored := recorder.progress().stored) < CONNECTIONS:
            time.sleep(0.1)
        recorder.stop()
        recording.join()
    print(f"{stored} events are stored")


def ask(store: str) -> None:
    """Spark reads the topic, and takes the events apart by the names and types of their arguments."""
    spark = spark_session("sensors")
    records = spark.read.format("chappe").option("stores", store).option("subscribe", "events").load()
    ended = decode_events(records, "uid string, host string, port int, bytes bigint", event="connection_end")
    ended.createOrReplaceTempView("ended")
    totals = spark.sql("""
        SELECT args.host, args.port, count(*) AS connections, sum(args.bytes) AS bytes
        FROM ended GROUP BY args.host, args.port ORDER BY host
    """)
    for row in totals.collect():
        print(f"{row.host}, port {row.port}: {row.connections} connections, {row.bytes:,} bytes")
    spark.stop()


def main() -> None:
    """Everything in one process; elsewhere each part is a program of its own."""
    with (
        tempfile.TemporaryDirectory() as directory,
        Tower("127.0.0.1:0") as tower,
        Store(f"{directory}/log", tower=tower.address) as store,
    ):
        record(tower.address, f"{directory}/recorder")
        ask(store.endpoint)


if __name__ == "__main__":
    main()
