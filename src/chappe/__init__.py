"""chappe: durable topics without a broker, processed by Spark.

The public names are here; the tree below, from the bottom up:

    errors, defaults, security, permissions, data   what everything uses
    core                        the contract of protocol cores
    log                         the cores of the durable log (Dafka): no I/O
    mesh, gateway               the cores of the mesh (Zeek Broker), and of what joins two of them: no I/O
    kv, channel                 the cores of data stores, and the channel that they stand on: no I/O
    runtime, transports, storage  what runs the cores: threads and clocks, sockets, files
    sim                         the same cores in a simulated world
    arrow, columns              batches as Arrow, and messages of the mesh
    api                         what users hold
    schemas                     codecs of records, and schemas that everybody knows
    reading                     topics in bulk, without being a member
    bridges                     from the mesh and its stores into topics of the log, and back
    subscribers                 one that reads, and worker processes that share what there is to do
    testing                     the same for tests of users: members on a clock that takes no time
    cli, spark                  the command line; Spark's data source
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

if sys.platform == "win32":
    from pathlib import PurePath

    _sentence = "chappe runs on Linux and macOS, and on Windows within WSL 2 (wsl --install): install and run it there"
    # As a command it is imported before it can say anything else, and a traceback is for programmers.
    raise (SystemExit if PurePath(sys.argv[0]).stem in ("chappe", "-m") else ImportError)(_sentence)

if "CHAPPE_PURE" in os.environ:
    from chappe.system.sources import import_sources, is_pure

    if is_pure():
        import_sources()

TYPE_CHECKING = False  # typing itself is not imported: it would be most of the time that `import chappe` takes
if TYPE_CHECKING:
    from chappe.api.chain.client import AsyncChain as AsyncChain
    from chappe.api.chain.client import Chain as Chain
    from chappe.api.chain.configuration import ChainConfiguration as ChainConfiguration
    from chappe.api.chain.member import ChainAnswer as ChainAnswer
    from chappe.api.chain.member import ChainCall as ChainCall
    from chappe.api.chain.server import ChainServer as ChainServer
    from chappe.api.chain.status import ChainLag as ChainLag
    from chappe.api.chain.status import ChainServerStatus as ChainServerStatus
    from chappe.api.kv.aio import AsyncDataStore as AsyncDataStore
    from chappe.api.kv.aio import AsyncDataStoreWatch as AsyncDataStoreWatch
    from chappe.api.kv.data_store import DataStore as DataStore
    from chappe.api.kv.map_aio import AsyncMapWatch as AsyncMapWatch
    from chappe.api.kv.map_aio import AsyncSharedMap as AsyncSharedMap
    from chappe.api.kv.map_server import MapServer as MapServer
    from chappe.api.kv.map_server import MapServerStatus as MapServerStatus
    from chappe.api.kv.map_values import MapChange as MapChange
    from chappe.api.kv.map_watch import MapWatch as MapWatch
    from chappe.api.kv.pair_status import PairStatus as PairStatus
    from chappe.api.kv.past import DataStoreRevision as DataStoreRevision
    from chappe.api.kv.proxy import DataStoreAnswer as DataStoreAnswer
    from chappe.api.kv.proxy import DataStoreProxy as DataStoreProxy
    from chappe.api.kv.shared_map import SharedMap as SharedMap
    from chappe.api.kv.watch import DataStoreEntry as DataStoreEntry
    from chappe.api.kv.watch import DataStoreEvent as DataStoreEvent
    from chappe.api.kv.watch import DataStoreWatch as DataStoreWatch
    from chappe.api.kv.witness import Witness as Witness
    from chappe.api.log.aio import AsyncConsumer as AsyncConsumer
    from chappe.api.log.aio import AsyncProducer as AsyncProducer
    from chappe.api.log.consumed_batch import ConsumedBatch as ConsumedBatch
    from chappe.api.log.consumer import Consumer as Consumer
    from chappe.api.log.forwarder import Forwarder as Forwarder
    from chappe.api.log.grouping import Rebalance as Rebalance
    from chappe.api.log.ordered_aio import AsyncOrderedProducer as AsyncOrderedProducer
    from chappe.api.log.ordered_producer import OrderedProducer as OrderedProducer
    from chappe.api.log.ordered_store import OrderedStore as OrderedStore
    from chappe.api.log.producer import Producer as Producer
    from chappe.api.log.store import Store as Store
    from chappe.api.log.store import StoreStatus as StoreStatus
    from chappe.api.log.topic_writers import TopicProgress as TopicProgress
    from chappe.api.log.tower import Tower as Tower
    from chappe.api.mesh.aio import AsyncEndpoint as AsyncEndpoint
    from chappe.api.mesh.aio import AsyncResponder as AsyncResponder
    from chappe.api.mesh.aio import AsyncStatusSubscriber as AsyncStatusSubscriber
    from chappe.api.mesh.aio import AsyncSubscriber as AsyncSubscriber
    from chappe.api.mesh.asking import Answer as Answer
    from chappe.api.mesh.asking import AsyncRequest as AsyncRequest
    from chappe.api.mesh.asking import Request as Request
    from chappe.api.mesh.asking import Responder as Responder
    from chappe.api.mesh.endpoint import Endpoint as Endpoint
    from chappe.api.mesh.forwarded import Forwarded as Forwarded
    from chappe.api.mesh.gateway import Gateway as Gateway
    from chappe.api.mesh.gateway import GatewaySide as GatewaySide
    from chappe.api.mesh.gateway import GatewayStatus as GatewayStatus
    from chappe.api.mesh.hosting import Publisher as Publisher
    from chappe.api.mesh.received import Received as Received
    from chappe.api.mesh.subscriber import StatusSubscriber as StatusSubscriber
    from chappe.api.mesh.subscriber import Subscriber as Subscriber
    from chappe.api.schemas import Schemas as Schemas
    from chappe.bridges.kv_to_topic import DataStoreToTopic as DataStoreToTopic
    from chappe.bridges.player import Player as Player
    from chappe.bridges.recorder import Recorder as Recorder
    from chappe.bridges.topic_to_kv import TopicToDataStore as TopicToDataStore
    from chappe.log.batch import Record as Record
    from chappe.log.storage import Retention as Retention
    from chappe.mesh.events import Gap as Gap
    from chappe.reading.admin import Admin as Admin
    from chappe.reading.admin import TopicChanged as TopicChanged
    from chappe.reading.admin import TopicDescription as TopicDescription
    from chappe.reading.topic import read_batches as read_batches
    from chappe.reading.topic import read_topic as read_topic
    from chappe.reading.topics import list_topics as list_topics
    from chappe.schemas.avro import Avro as Avro
    from chappe.schemas.codec import Codec as Codec
    from chappe.security import Keys as Keys
    from chappe.security import Tls as Tls
    from chappe.subscribers.sharded import ShardedConsumer as ShardedConsumer

    __version__: str

_MODULES = {
    "api.chain.client": "AsyncChain Chain",
    "api.chain.configuration": "ChainConfiguration",
    "api.chain.member": "ChainAnswer ChainCall",
    "api.chain.server": "ChainServer",
    "api.chain.status": "ChainLag ChainServerStatus",
    "api.kv.aio": "AsyncDataStore AsyncDataStoreWatch",
    "api.kv.data_store": "DataStore",
    "api.kv.map_aio": "AsyncMapWatch AsyncSharedMap",
    "api.kv.map_server": "MapServer MapServerStatus",
    "api.kv.map_values": "MapChange",
    "api.kv.map_watch": "MapWatch",
    "api.kv.pair_status": "PairStatus",
    "api.kv.past": "DataStoreRevision",
    "api.kv.proxy": "DataStoreAnswer DataStoreProxy",
    "api.kv.shared_map": "SharedMap",
    "api.kv.watch": "DataStoreEntry DataStoreEvent DataStoreWatch",
    "api.kv.witness": "Witness",
    "api.log.aio": "AsyncConsumer AsyncProducer",
    "api.log.consumed_batch": "ConsumedBatch",
    "api.log.consumer": "Consumer",
    "api.log.ordered_aio": "AsyncOrderedProducer",
    "api.log.ordered_producer": "OrderedProducer",
    "api.log.ordered_store": "OrderedStore",
    "api.log.producer": "Producer",
    "api.log.forwarder": "Forwarder",
    "api.log.grouping": "Rebalance",
    "api.log.store": "Store StoreStatus",
    "api.log.topic_writers": "TopicProgress",
    "api.log.tower": "Tower",
    "api.mesh.aio": "AsyncEndpoint AsyncResponder AsyncStatusSubscriber AsyncSubscriber",
    "api.mesh.asking": "Answer AsyncRequest Request Responder",
    "api.mesh.endpoint": "Endpoint",
    "api.mesh.forwarded": "Forwarded",
    "api.mesh.gateway": "Gateway GatewaySide GatewayStatus",
    "api.mesh.hosting": "Publisher",
    "api.mesh.received": "Received",
    "api.mesh.subscriber": "StatusSubscriber Subscriber",
    "api.schemas": "Schemas",
    "bridges.kv_to_topic": "DataStoreToTopic",
    "bridges.player": "Player",
    "bridges.recorder": "Recorder",
    "bridges.topic_to_kv": "TopicToDataStore",
    "log.batch": "Record",
    "log.storage": "Retention",
    "mesh.events": "Gap",
    "reading.admin": "Admin TopicChanged TopicDescription",
    "reading.topic": "read_batches read_topic",
    "reading.topics": "list_topics",
    "schemas.avro": "Avro",
    "schemas.codec": "Codec",
    "security": "Keys Tls",
    "subscribers.sharded": "ShardedConsumer",
}
_HOMES = {name: f"chappe.{module}" for module, names in _MODULES.items() for name in names.split()}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: ``chappe --help`` need not load ZeroMQ."""
    if name == "__version__":
        from importlib.metadata import version  # loading it takes longer than all of this file

        return version("chappe")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'chappe' has no attribute {name!r}")
