"""chappe: durable topics without a broker, processed by Spark.

The public names are here; the tree below, from the bottom up:

    errors, defaults, data      what everything uses
    core                        the contract of protocol cores
    log                         the cores of the durable log (Dafka): no I/O
    drivers, sim                the same cores on sockets and disks, or in a simulated world
    arrow                       batches as Arrow
    api                         what users hold
    reading                     topics in bulk, without being a member
    cli, spark                  the command line; Spark's data source
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chappe.api.aio import AsyncConsumer, AsyncProducer
    from chappe.api.consumer import ConsumedBatch, Consumer
    from chappe.api.producer import Producer
    from chappe.api.store import Store, StoreStatus
    from chappe.api.tower import Tower
    from chappe.log.batch import Record
    from chappe.log.storage import Retention
    from chappe.reading.topic import read_batches, read_topic

__version__ = version("chappe")

_HOMES = {
    "AsyncConsumer": "chappe.api.aio",
    "AsyncProducer": "chappe.api.aio",
    "ConsumedBatch": "chappe.api.consumer",
    "Consumer": "chappe.api.consumer",
    "Producer": "chappe.api.producer",
    "Record": "chappe.log.batch",
    "Retention": "chappe.log.storage",
    "Store": "chappe.api.store",
    "StoreStatus": "chappe.api.store",
    "Tower": "chappe.api.tower",
    "read_batches": "chappe.reading.topic",
    "read_topic": "chappe.reading.topic",
}

__all__ = [
    "AsyncConsumer",
    "AsyncProducer",
    "ConsumedBatch",
    "Consumer",
    "Producer",
    "Record",
    "Retention",
    "Store",
    "StoreStatus",
    "Tower",
    "__version__",
    "read_batches",
    "read_topic",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: ``chappe --help`` need not load ZeroMQ."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'chappe' has no attribute {name!r}")
