"""chappe: durable topics without a broker, processed by Spark.

The public names are here; the tree below, from the bottom up:

    errors, defaults, security, data   what everything uses
    core                        the contract of protocol cores
    log                         the cores of the durable log (Dafka): no I/O
    mesh                        the cores of the mesh (Zeek Broker): no I/O
    drivers, sim                the same cores on sockets and disks, or in a simulated world
    arrow                       batches as Arrow
    api                         what users hold
    reading                     topics in bulk, without being a member
    bridges                     from the mesh and its stores into topics of the log, and back
    cli, spark                  the command line; Spark's data source
"""

from __future__ import annotations

import sys
from importlib import import_module

if sys.platform == "win32":
    from pathlib import PurePath

    _sentence = "chappe runs on Linux and macOS, and on Windows within WSL 2 (wsl --install): install and run it there"
    # As a command it is imported before it can say anything else, and a traceback is for programmers.
    raise (SystemExit if PurePath(sys.argv[0]).stem in ("chappe", "-m") else ImportError)(_sentence)

TYPE_CHECKING = False  # typing itself is not imported: it would be most of the time that `import chappe` takes
if TYPE_CHECKING:
    from chappe.api.aio import AsyncConsumer, AsyncProducer
    from chappe.api.consumed_batch import ConsumedBatch
    from chappe.api.consumer import Consumer
    from chappe.api.data_store import DataStore
    from chappe.api.endpoint import Endpoint
    from chappe.api.mesh_aio import AsyncEndpoint, AsyncStatusSubscriber, AsyncSubscriber
    from chappe.api.producer import Producer
    from chappe.api.publisher import Publisher
    from chappe.api.received import Received
    from chappe.api.statuses import StatusSubscriber
    from chappe.api.store import Store, StoreStatus
    from chappe.api.store_aio import AsyncDataStore, AsyncStoreWatch
    from chappe.api.store_proxy import StoreAnswer, StoreProxy
    from chappe.api.store_watch import StoreEntry, StoreEvent, StoreWatch
    from chappe.api.subscriber import Subscriber
    from chappe.api.topic_writers import TopicProgress
    from chappe.api.tower import Tower
    from chappe.bridges.player import Player
    from chappe.bridges.recorder import Recorder
    from chappe.bridges.store_to_topic import StoreToTopic
    from chappe.bridges.topic_to_store import TopicToStore
    from chappe.log.batch import Record
    from chappe.log.storage import Retention
    from chappe.reading.topic import read_batches, read_topic
    from chappe.security import Tls

    __version__: str

_HOMES = {
    "AsyncConsumer": "chappe.api.aio",
    "AsyncDataStore": "chappe.api.store_aio",
    "AsyncEndpoint": "chappe.api.mesh_aio",
    "AsyncProducer": "chappe.api.aio",
    "AsyncStatusSubscriber": "chappe.api.mesh_aio",
    "AsyncStoreWatch": "chappe.api.store_aio",
    "AsyncSubscriber": "chappe.api.mesh_aio",
    "ConsumedBatch": "chappe.api.consumed_batch",
    "Consumer": "chappe.api.consumer",
    "DataStore": "chappe.api.data_store",
    "Endpoint": "chappe.api.endpoint",
    "Player": "chappe.bridges.player",
    "Producer": "chappe.api.producer",
    "Publisher": "chappe.api.publisher",
    "Received": "chappe.api.received",
    "Record": "chappe.log.batch",
    "Recorder": "chappe.bridges.recorder",
    "Retention": "chappe.log.storage",
    "StatusSubscriber": "chappe.api.statuses",
    "Store": "chappe.api.store",
    "StoreAnswer": "chappe.api.store_proxy",
    "StoreEntry": "chappe.api.store_watch",
    "StoreEvent": "chappe.api.store_watch",
    "StoreProxy": "chappe.api.store_proxy",
    "StoreStatus": "chappe.api.store",
    "StoreToTopic": "chappe.bridges.store_to_topic",
    "StoreWatch": "chappe.api.store_watch",
    "Subscriber": "chappe.api.subscriber",
    "Tls": "chappe.security",
    "TopicProgress": "chappe.api.topic_writers",
    "TopicToStore": "chappe.bridges.topic_to_store",
    "Tower": "chappe.api.tower",
    "read_batches": "chappe.reading.topic",
    "read_topic": "chappe.reading.topic",
}

__all__ = [
    "AsyncConsumer",
    "AsyncDataStore",
    "AsyncEndpoint",
    "AsyncProducer",
    "AsyncStatusSubscriber",
    "AsyncStoreWatch",
    "AsyncSubscriber",
    "ConsumedBatch",
    "Consumer",
    "DataStore",
    "Endpoint",
    "Player",
    "Producer",
    "Publisher",
    "Received",
    "Record",
    "Recorder",
    "Retention",
    "StatusSubscriber",
    "Store",
    "StoreAnswer",
    "StoreEntry",
    "StoreEvent",
    "StoreProxy",
    "StoreStatus",
    "StoreToTopic",
    "StoreWatch",
    "Subscriber",
    "Tls",
    "TopicProgress",
    "TopicToStore",
    "Tower",
    "__version__",
    "read_batches",
    "read_topic",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: ``chappe --help`` need not load ZeroMQ."""
    if name == "__version__":
        from importlib.metadata import version  # loading it takes longer than all of this file

        return version("chappe")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'chappe' has no attribute {name!r}")
