"""The numbers and the readiness of members of this process, for Prometheus and for probes.

::

    from prometheus_client import start_http_server
    from chappe.api.metrics import register

    with Store("records") as store:
        register(store)
        start_http_server(9464, addr="127.0.0.1")
"""

from __future__ import annotations

import math
import shutil
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from chappe.data.markup import many
from chappe.errors import ChappeError, Closed, MemberStopped, UsageError
from chappe.observing.numbers import Family, merged, of_member
from chappe.system import time

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from chappe.api.chain.server import ChainServer
    from chappe.api.chain.status import ChainServerStatus
    from chappe.api.kv.data_store import DataStore
    from chappe.api.kv.map_server import MapServer
    from chappe.api.kv.shared_map import SharedMap
    from chappe.api.log.consumer import Consumer
    from chappe.api.log.forwarder import Forwarder
    from chappe.api.log.ordered_store import OrderedStore
    from chappe.api.log.producer import Producer
    from chappe.api.log.store import Store
    from chappe.api.log.tower import Tower
    from chappe.api.mesh.endpoint import Endpoint
    from chappe.api.mesh.gateway import Gateway

AGAIN_S: Final = 1.0  # numbers are not counted again within this time, however many ask

_Numbers: TypeAlias = Iterator[tuple[str, float | Mapping[Any, float]]]


class MemberNumbers:
    """The numbers and readiness of members, which it does not keep alive; closed ones are left out. Thread-safe."""

    def __init__(self, *members: object) -> None:
        self._members: dict[tuple[str, str], tuple[_Kind, Callable[[], Any]]] = {}  # by kind and name
        self._guard = threading.Lock()
        self._found: list[Family] = []
        self._again_at = -math.inf
        for each in members:
            self.add(each)

    def add(self, member: object, name: str | None = None) -> None:
        """Add a member under its own name or ``name``; a second one of that name gets a number.

        Raises UsageError if it is no member that has numbers.
        """
        kind, member = _kind_of(member)
        label = wanted = name or kind.name(member)
        with self._guard:
            count = 1
            while (kind.what, label) in self._members and self._members[kind.what, label][1]() is not None:
                count += 1
                label = f"{wanted} ({count})"
            self._members[kind.what, label] = kind, weakref.ref(member)
            self._again_at = -math.inf

    def families(self) -> list[Family]:
        """Return the numbers of all members; those of a member that met a defect are left out, but for its readiness.

        They are at most a second old.
        """
        with self._guard:
            now = time.monotonic()
            if now >= self._again_at:
                self._found = merged(self._count())
                self._again_at = now + AGAIN_S
            return self._found

    def unready(self) -> list[str]:
        """Return a sentence for each member that does not do its work, a defect included."""
        with self._guard:
            return [f"{what} {name}: {why}" for what, name, why, _ in self._looked() if why]

    def defects(self) -> list[str]:
        """Return a sentence for each member that a defect has stopped: it has to be started again."""
        with self._guard:
            return [f"{what} {name}: {why}" for what, name, why, member in self._looked() if member is None]

    def _looked(self) -> Iterator[tuple[str, str, str, Any]]:
        """Yield kind, name, reason and member of each that is open; None for the member after a defect."""
        for (what, name), (kind, found) in list(self._members.items()):
            member = found()
            if member is None or attrgetter(kind.closed)(member):
                del self._members[what, name]
                continue
            try:
                yield what, name, kind.unready(member), member
            except Closed:
                continue
            except MemberStopped as stopped:
                yield what, name, str(stopped), None

    def _count(self) -> Iterator[Family]:
        for what, name, why, member in self._looked():
            yield from of_member(what, name, [("chappe_member_ready", 0.0 if why else 1.0)])
            if member is None:
                continue
            try:
                yield from list(of_member(what, name, self._members[what, name][0].numbers(member)))
            except ChappeError:
                pass  # its readiness tells why, at the latest at the next look


class NumbersCollector:
    """A collector for a registry of prometheus_client; ``now`` makes the numbers anew each time."""

    def __init__(self, now: Callable[[], Iterable[Family]]) -> None:
        self._now = now

    def describe(self) -> list[Any]:
        """Return nothing: what it collects depends on who is there."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for each in self._now():
            kind = GaugeMetricFamily if each.kind == "gauge" else CounterMetricFamily
            made = kind(each.name, each.meaning, labels=each.labels)
            for labels, value in each.samples:
                made.add_metric(labels, value)
            yield made


_registered: weakref.WeakKeyDictionary[CollectorRegistry, MemberNumbers] = weakref.WeakKeyDictionary()


def register(member: object, registry: CollectorRegistry | None = None, *, name: str | None = None) -> None:
    """Put the numbers of a member into a registry of prometheus_client, until the member is closed.

    Args:
        member: A Tower, Store, Forwarder, OrderedStore, Producer, Consumer, Endpoint, Gateway, DataStore, SharedMap,
            MapServer, Witness or ChainServer, or its face for asyncio.
        registry: The default one of prometheus_client by default.
        name: Its label ``member``; its own name, address or id by default.

    Raises:
        UsageError: prometheus_client is not installed, or it is no such member.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        raise UsageError("numbers for Prometheus need prometheus-client: pip install 'chappe[metrics]'") from None
    place = REGISTRY if registry is None else registry
    numbers = _registered.get(place)
    if numbers is None:
        numbers = _registered[place] = MemberNumbers()
        place.register(NumbersCollector(numbers.families))
    numbers.add(member, name)


# -- each kind --------------------------------------------------------------------------------------


def _tower(tower: Tower) -> _Numbers:
    yield "chappe_member_connected", tower.nodes()
    yield "chappe_member_malformed_messages", tower.malformed
    yield "chappe_member_refusals", tower.refused


def _tower_unready(tower: Tower) -> str:
    tower.nodes()
    return ""


def _store(store: Store) -> _Numbers:
    status = store.status()
    yield "chappe_member_connected", status.peers
    yield "chappe_member_tower_reachable", status.tower
    yield "chappe_member_malformed_messages", status.malformed
    yield "chappe_member_refusals", status.refused
    yield "chappe_store_written_records", status.written_records
    yield "chappe_store_written_bytes", status.written_bytes
    yield "chappe_store_duplicate_records", status.duplicates
    yield "chappe_store_refusing_writes", status.refusing
    yield "chappe_store_damaged_ranges", len(status.holes)
    yield "chappe_store_partitions_catching_up", status.catching_up
    yield "chappe_store_last_scrub_timestamp_seconds", status.scrubbed_us / 1e6
    try:
        yield "chappe_store_disk_free_bytes", shutil.disk_usage(store.directory).free
    except OSError:
        pass  # the disk is gone: it refuses writes, which is told
    topics = store.topics()
    yield "chappe_store_topics", len(topics)
    yield "chappe_store_topic_records", {each.topic: each.records for each in topics}
    yield "chappe_store_topic_bytes", {each.topic: each.bytes for each in topics}
    yield "chappe_store_topic_newest_timestamp_seconds", {each.topic: each.newest_us / 1e6 for each in topics}
    yield "chappe_store_sink_batch", store.sinks()
    groups = store.groups()
    yield "chappe_group_members", {each.group: each.members for each in groups}
    yield "chappe_group_lag_records", {(each.group, each.topic): each.records for each in groups}
    yield "chappe_group_lag_seconds", {(each.group, each.topic): each.seconds for each in groups}


def _forwarder(forwarder: Forwarder) -> _Numbers:
    return (each for each in _store(forwarder) if each[0] != "chappe_member_tower_reachable")  # it is one itself


def _store_unready(store: Store) -> str:
    status = store.status()
    if status.refusing:
        return f"its disk refuses writes: {status.refusing_why}"
    if not status.serves:
        return "it waits for other stores to tell what was deleted while it was away"
    if status.catching_up:
        return f"it asks others for records that it missed, of {many(status.catching_up, 'partition')}"
    return ""


def _store_at_tower_unready(store: Store) -> str:
    why = _store_unready(store)
    return why or ("" if store.status().tower else "no tower answers")


def _ordered_store(store: OrderedStore) -> _Numbers:
    yield from _store(store)
    yield from _chain_numbers(store.chain_status())


def _ordered_store_unready(store: OrderedStore) -> str:
    return _store_at_tower_unready(store) or _chain_unready(store.chain_status())


def _producer(producer: Producer) -> _Numbers:
    topics = producer.topics
    yield "chappe_member_connected", producer.connected
    yield "chappe_member_tower_reachable", producer.tower
    yield "chappe_producer_records", {topic: each.next_offset for topic, each in topics.items()}
    yield (
        "chappe_producer_unacknowledged_records",
        {topic: max(0, each.next_offset - each.stored) for topic, each in topics.items()},
    )


def _consumer(consumer: Consumer) -> _Numbers:
    lags: defaultdict[str, int] = defaultdict(int)
    for (topic, _), records in consumer.lag().items():
        lags[topic] += records
    yield "chappe_member_connected", consumer.connected
    yield "chappe_member_tower_reachable", consumer.tower
    yield "chappe_member_refusals", consumer.refused
    yield "chappe_consumer_lag_records", lags
    yield "chappe_consumer_too_old_records", consumer.too_old


def _at_tower_unready(member: Producer | Consumer) -> str:
    return "" if member.tower else "no tower or forwarder answers"


def _endpoint(endpoint: Endpoint) -> _Numbers:
    peers = endpoint.peers()
    met = [each for each in peers if each.id is not None]
    yield "chappe_member_connected", sum(each.status.name == "PEERED" for each in peers)
    yield "chappe_member_refusals", endpoint.refused
    yield "chappe_endpoint_peers", Counter(each.status.name.lower() for each in peers)
    for name, count in (
        ("sent_frames", "sent"),
        ("sent_bytes", "sent_bytes"),
        ("received_frames", "received"),
        ("dropped_messages", "dropped"),
        ("waiting_messages", "buffered"),
    ):
        yield f"chappe_endpoint_peer_{name}", {each.id: getattr(each, count) for each in met}
    yield "chappe_endpoint_dropped_messages", endpoint.dropped
    yield "chappe_endpoint_unopened_messages", endpoint.unopened


def _endpoint_unready(endpoint: Endpoint) -> str:
    peers = endpoint.peers()
    dialled = [each for each in peers if each.dialled]
    if dialled and all(each.status.name != "PEERED" for each in peers):
        return f"no peering yet with {', '.join(':'.join(map(str, each.address)) for each in dialled[:3])}"
    return ""


def _gateway(gateway: Gateway) -> _Numbers:
    status = gateway.status()
    yield "chappe_gateway_passing", status.state == "passing"
    yield "chappe_gateway_passed_messages", {each.domain: each.passed for each in status.sides}
    yield "chappe_gateway_refused_messages", {each.domain: each.refused for each in status.sides}
    yield "chappe_gateway_dropped_messages", status.dropped


def _gateway_unready(gateway: Gateway) -> str:
    status = gateway.status()
    good = status.state in ("passing", "standing by")
    return "" if good else f"it is {status.state}{f': {status.reason}' if status.reason else ''}"


def _data_store(store: DataStore) -> _Numbers:
    if not store.ready:
        return
    yield "chappe_data_store_entries", len(store)
    yield "chappe_data_store_version", store.version
    if store.role == "master":
        yield "chappe_data_store_clones", len(getattr(store.core, "clones", ()))
    status = store.chain()
    if status is not None:
        yield from _chain_numbers(status)


def _data_store_unready(store: DataStore) -> str:
    if not store.ready:
        return "it has no data yet, or none that is fresh: no master answers"
    status = store.chain()
    return "" if status is None else _chain_unready(status)


def _map_server(server: MapServer) -> _Numbers:
    status = server.status()
    yield "chappe_member_malformed_messages", status.malformed
    yield "chappe_member_refusals", status.refused
    yield "chappe_map_active", status.active
    yield "chappe_map_keys", status.keys
    yield "chappe_map_updates", status.sequence
    yield "chappe_map_clients", status.clients


def _map_server_unready(server: MapServer) -> str:
    status = server.status()
    if status.pair is None:
        return ""
    if not status.active:
        return "" if status.pair.partner == "here" else "it stands by, and its partner is not there"
    return "" if status.pair.confirms != "nothing" else "it may confirm no writes now: its partner is not there"


def _shared_map(shared: SharedMap[Any]) -> _Numbers:
    yield "chappe_map_keys", len(shared)
    yield "chappe_map_pending_writes", shared.pending


def _shared_map_unready(shared: SharedMap[Any]) -> str:
    shared.member.driver.turns.check()
    return "" if shared.state == "active" else "no server of the map answers"


def _nothing(_: object) -> _Numbers:
    return iter(())


def _host_unready(server: Any) -> str:
    server.wait(0)
    return ""


def _chain_server(server: ChainServer) -> _Numbers:
    yield from _chain_numbers(server.status())


def _chain_server_unready(server: ChainServer) -> str:
    return _chain_unready(server.status())


def _chain_numbers(status: ChainServerStatus) -> _Numbers:
    yield "chappe_member_malformed_messages", status.malformed
    yield "chappe_chain_member", status.role != "outside"
    yield "chappe_chain_head", status.role in ("head", "alone")
    yield "chappe_chain_servers", len(status.members)
    yield "chappe_chain_configuration", status.number
    yield "chappe_chain_committed_commands", status.committed
    yield "chappe_chain_uncommitted_commands", max(0, status.end - status.committed)
    yield "chappe_chain_clients", status.sessions


def _chain_unready(status: ChainServerStatus) -> str:
    if status.why:
        return status.why
    return "it is not in the chain" if status.role == "outside" else ""


class _Kind(NamedTuple):
    """A kind of members; ``closed`` is the way to an attribute."""

    what: str
    name: Callable[[Any], str]
    closed: str
    numbers: Callable[[Any], _Numbers]
    unready: Callable[[Any], str]


_KINDS: Final[Mapping[str, _Kind]] = {  # by class, so that only the classes in use are imported
    "api.log.tower.Tower": _Kind("tower", attrgetter("name"), "_node.driver.turns.closed", _tower, _tower_unready),
    "api.log.ordered_store.OrderedStore": _Kind(
        "store", attrgetter("name"), "_node.driver.turns.closed", _ordered_store, _ordered_store_unready
    ),
    "api.log.forwarder.Forwarder": _Kind(
        "forwarder", attrgetter("name"), "_node.driver.turns.closed", _forwarder, _store_unready
    ),
    "api.log.store.Store": _Kind(
        "store", attrgetter("name"), "_node.driver.turns.closed", _store, _store_at_tower_unready
    ),
    "api.log.producer.Producer": _Kind("producer", attrgetter("name"), "_node.closed", _producer, _at_tower_unready),
    "api.log.consumer.Consumer": _Kind("consumer", attrgetter("name"), "_node.closed", _consumer, _at_tower_unready),
    "api.mesh.endpoint.Endpoint": _Kind("endpoint", attrgetter("id"), "closing", _endpoint, _endpoint_unready),
    "api.mesh.gateway.Gateway": _Kind(
        "gateway", lambda gateway: "-".join(gateway.domains), "_driver.turns.closed", _gateway, _gateway_unready
    ),
    "api.kv.reading.ReadableStore": _Kind(
        "data store", attrgetter("name"), "attached.closed", _data_store, _data_store_unready
    ),
    "api.kv.map_server.MapServer": _Kind(
        "map server", attrgetter("address"), "_node.turns.closed", _map_server, _map_server_unready
    ),
    "api.kv.shared_map.ReadableMap": _Kind(
        "map", lambda shared: shared.server or "map", "member.driver.turns.closed", _shared_map, _shared_map_unready
    ),
    "api.kv.witness.Witness": _Kind("witness", attrgetter("address"), "_node.turns.closed", _nothing, _host_unready),
    "api.chain.server.ChainServer": _Kind(
        "chain server", attrgetter("name"), "_node.turns.closed", _chain_server, _chain_server_unready
    ),
}
_BLOCKING: Final = {  # faces for asyncio, and the attribute that has the member
    "api.log.aio.AsyncProducer": "_producer",
    "api.log.aio.AsyncConsumer": "consumer",
    "api.mesh.aio.AsyncEndpoint": "endpoint",
}


def _kind_of(member: object) -> tuple[_Kind, object]:
    for each in type(member).__mro__:
        place = f"{each.__module__}.{each.__qualname__}".removeprefix("chappe.")
        if place in _BLOCKING:
            return _kind_of(getattr(member, _BLOCKING[place]))
        if place in _KINDS:
            return _KINDS[place], member
    raise UsageError(f"a {type(member).__name__} has no numbers for Prometheus: give a member, such as a Store")
