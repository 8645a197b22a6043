"""chappe: durable topics without a broker, processed by Spark.

The public names are here; the tree below, from the bottom up:

    errors, defaults, security, data   what everything uses
    core                        the contract of protocol cores
    log                         the cores of the durable log (Dafka): no I/O
    mesh                        the cores of the mesh (Zeek Broker): no I/O
    kv, channel                 the cores of data stores, and the channel that they stand on: no I/O
    runtime, transports, storage  what runs the cores: threads and clocks, sockets, files
    sim                         the same cores in a simulated world
    arrow                       batches as Arrow
    api                         what users hold
    reading                     topics in bulk, without being a member
    bridges                     from the mesh and its stores into topics of the log, and back
    testing                     the same for tests of users: members on a clock that takes no time
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
    from chappe.api.kv.aio import AsyncDataStore, AsyncDataStoreWatch
    from chappe.api.kv.data_store import DataStore
    from chappe.api.kv.proxy import DataStoreAnswer, DataStoreProxy
    from chappe.api.kv.watch import DataStoreEntry, DataStoreEvent, DataStoreWatch
    from chappe.api.log.aio import AsyncConsumer, AsyncProducer
    from chappe.api.log.consumed_batch import ConsumedBatch
    from chappe.api.log.consumer import Consumer
    from chappe.api.log.producer import Producer
    from chappe.api.log.store import Store, StoreStatus
    from chappe.api.log.topic_writers import TopicProgress
    from chappe.api.log.tower import Tower
    from chappe.api.mesh.aio import AsyncEndpoint, AsyncStatusSubscriber, AsyncSubscriber
    from chappe.api.mesh.endpoint import Endpoint
    from chappe.api.mesh.publisher import Publisher
    from chappe.api.mesh.received import Received
    from chappe.api.mesh.statuses import StatusSubscriber
    from chappe.api.mesh.subscriber import Subscriber
    from chappe.bridges.kv_to_topic import DataStoreToTopic
    from chappe.bridges.player import Player
    from chappe.bridges.recorder import Recorder
    from chappe.bridges.topic_to_kv import TopicToDataStore
    from chappe.log.batch import Record
    from chappe.log.storage import Retention
    from chappe.reading.topic import read_batches, read_topic
    from chappe.security import Tls

    __version__: str

_HOMES = {
    "AsyncConsumer": "chappe.api.log.aio",
    "AsyncDataStore": "chappe.api.kv.aio",
    "AsyncEndpoint": "chappe.api.mesh.aio",
    "AsyncProducer": "chappe.api.log.aio",
    "AsyncStatusSubscriber": "chappe.api.mesh.aio",
    "AsyncDataStoreWatch": "chappe.api.kv.aio",
    "AsyncSubscriber": "chappe.api.mesh.aio",
    "ConsumedBatch": "chappe.api.log.consumed_batch",
    "Consumer": "chappe.api.log.consumer",
    "DataStore": "chappe.api.kv.data_store",
    "Endpoint": "chappe.api.mesh.endpoint",
    "Player": "chappe.bridges.player",
    "Producer": "chappe.api.log.producer",
    "Publisher": "chappe.api.mesh.publisher",
    "Received": "chappe.api.mesh.received",
    "Record": "chappe.log.batch",
    "Recorder": "chappe.bridges.recorder",
    "Retention": "chappe.log.storage",
    "StatusSubscriber": "chappe.api.mesh.statuses",
    "Store": "chappe.api.log.store",
    "DataStoreAnswer": "chappe.api.kv.proxy",
    "DataStoreEntry": "chappe.api.kv.watch",
    "DataStoreEvent": "chappe.api.kv.watch",
    "DataStoreProxy": "chappe.api.kv.proxy",
    "StoreStatus": "chappe.api.log.store",
    "DataStoreToTopic": "chappe.bridges.kv_to_topic",
    "DataStoreWatch": "chappe.api.kv.watch",
    "Subscriber": "chappe.api.mesh.subscriber",
    "Tls": "chappe.security",
    "TopicProgress": "chappe.api.log.topic_writers",
    "TopicToDataStore": "chappe.bridges.topic_to_kv",
    "Tower": "chappe.api.log.tower",
    "read_batches": "chappe.reading.topic",
    "read_topic": "chappe.reading.topic",
}

__all__ = [
    "AsyncConsumer",
    "AsyncDataStore",
    "AsyncDataStoreWatch",
    "AsyncEndpoint",
    "AsyncProducer",
    "AsyncStatusSubscriber",
    "AsyncSubscriber",
    "ConsumedBatch",
    "Consumer",
    "DataStore",
    "DataStoreAnswer",
    "DataStoreEntry",
    "DataStoreEvent",
    "DataStoreProxy",
    "DataStoreToTopic",
    "DataStoreWatch",
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
    "StoreStatus",
    "Subscriber",
    "Tls",
    "TopicProgress",
    "TopicToDataStore",
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
