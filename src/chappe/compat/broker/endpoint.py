"""``Endpoint`` of the original bindings, on an endpoint of chappe.

Where the original crashes or lies, this does what its documentation promises: several topics can be given at once,
``peer_subscriptions`` answers, waiting releases the interpreter and ends with Ctrl-C, a filter shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar, overload
from uuid import UUID

from chappe.api.mesh.endpoint import Endpoint as MeshEndpoint
from chappe.compat.broker import settings
from chappe.compat.broker.data import Data
from chappe.compat.broker.messaging import (
    Publisher,
    SafeSubscriber,
    StatusSubscriber,
    Subscriber,
    Topic,
    topic_of,
    topics_of,
    with_local,
)
from chappe.compat.broker.peering import Backend, EndpointInfo, NetworkInfo, PeerFlags, PeerInfo, PeerStatus
from chappe.compat.broker.scalars import Timespan, Timestamp
from chappe.compat.broker.scalars import now as system_time
from chappe.compat.broker.store import Store, Stores, options_of
from chappe.defaults import SUBSCRIBER_MESSAGES_MAX
from chappe.errors import AddressInUse, PeeringError, UsageError
from chappe.kv.simulated_clock import SimulatedClock
from chappe.security import Security, Tls

_FILES: Final = ("openssl_certificate", "openssl_key")


@dataclass(slots=True)
class BrokerOptions:
    """Switches. Without ``use_real_time`` the time of data stores stands still until ``Endpoint.advance_time``."""

    disable_ssl: bool = False
    disable_forwarding: bool = False
    ignore_broker_conf: bool = False
    use_real_time: bool = True


class Configuration:
    """Options, and the files of TLS: with any of them set, both sides need a certificate.

    They begin with what the environment (``BROKER_*``) and ``broker.conf`` in the working directory say, which counts
    more than ``options``; with ``ignore_broker_conf`` the file is not read. ``max_threads`` is kept and
    changes nothing.

    Raises:
        ConfigError: File or environment cannot be used; the text names the line or the variable.
    """

    def __init__(self, options: BrokerOptions | None = None) -> None:
        options = BrokerOptions() if options is None else options
        found = settings.load(file=not options.ignore_broker_conf)
        self._settings = found
        no_ssl, no_forwarding = found.switch("broker.disable-ssl"), found.switch("broker.disable-forwarding")
        self.options = replace(
            options,
            disable_ssl=options.disable_ssl if no_ssl is None else no_ssl,
            disable_forwarding=options.disable_forwarding if no_forwarding is None else no_forwarding,
        )
        self.openssl_cafile = found.text("broker.ssl.cafile") or ""
        self.openssl_capath = found.text("broker.ssl.capath") or ""
        self.openssl_certificate = found.text("broker.ssl.certificate") or ""
        self.openssl_key = found.text("broker.ssl.key") or ""
        self.openssl_passphrase = found.text("broker.ssl.passphrase") or ""
        self.max_threads = 0
        found.console_level(), found.file_level()  # a wrong one is an error here, not when the endpoint is made
        self._of_endpoint = _of_endpoint(found)
        settings.tell_unknown(found)

    def make(self) -> MeshEndpoint:
        """Make an endpoint with these options, and let the log have its verbosity. Raises UsageError, StorageError."""
        settings.begin_log(self._settings)
        forwarding = not self.options.disable_forwarding
        return MeshEndpoint(security=self.security(), forwarding=forwarding, **self._of_endpoint)

    def security(self) -> Security:
        """Return the same in chappe's terms: plain, anonymous TLS as the original's default, or with certificates.
        Raises UsageError: some of the files are missing that belong together.
        """
        if self.options.disable_ssl:
            return "plain"
        authority = self.openssl_cafile or self.openssl_capath
        if not (authority or self.openssl_certificate or self.openssl_key or self.openssl_passphrase):
            return "anonymous"
        missing = [name for name in _FILES if not getattr(self, name)]
        if missing or not authority:
            names = ", ".join(missing or ["openssl_cafile or openssl_capath"])
            raise UsageError(f"TLS with certificates needs {names} too")
        return Tls(
            self.openssl_certificate, self.openssl_key, authority, self.openssl_passphrase or None, check="authority"
        )


def _of_endpoint(found: settings.BrokerSettings) -> dict[str, Any]:
    cap = found.number("broker.output-generator-file-cap")
    directory = found.text("broker.recording-directory")
    given = {
        "peer_messages_max": found.number("broker.peer-buffer-size"),
        "on_full": found.choice("broker.peer-overflow-policy", settings.POLICIES),
        "recording_directory": directory,
        "output_generator_file_cap": None if directory is None else cap,
    }
    return {name: value for name, value in given.items() if value is not None}


RETRY_S: Final = 10.0
AWAIT_S: Final = 10.0
S = TypeVar("S", bound=Subscriber)
Topics = str | Topic | Iterable[str | Topic]


class Endpoint:
    """One endpoint; a context that ends with ``shutdown``. By default its connections are anonymous TLS."""

    def __init__(self, configuration: Configuration | None = None) -> None:
        configuration = Configuration() if configuration is None else configuration
        self._endpoint = configuration.make()
        self._clock = None if configuration.options.use_real_time else SimulatedClock()
        if self._clock is not None:
            self._endpoint.node.member.simulate(self._clock)
        self._stores = Stores(self._endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """End its stores, say goodbye to all peers and release everything."""
        self._stores.close()
        self._endpoint.close()

    def node_id(self) -> str:
        return self._endpoint.id

    def __repr__(self) -> str:
        return self.node_id()

    # -- peers ------------------------------------------------------------------------------------------

    def listen(self, address: str = "", port: int = 0) -> int:
        """Accept peers, on all interfaces without an address; return the port, 0 if that cannot be."""
        try:
            return self._endpoint.listen(address or "*", port)
        except (AddressInUse, UsageError):
            return 0

    def peer(self, address: str, port: int, retry: float = RETRY_S) -> bool:
        """Dial until a peering stands, every ``retry`` whole seconds; with 0 only once, and False if that fails."""
        try:
            self._endpoint.peer(address, port, retry_s=int(retry))
        except PeeringError:
            return False
        return True

    def peer_nosync(self, address: str, port: int, retry: float = RETRY_S) -> None:
        self._endpoint.peer_nosync(address, port, retry_s=int(retry))

    def unpeer(self, address: str, port: int) -> bool:
        """End a peering; True also if there is none, of which an error tells."""
        with suppress(PeeringError):
            self._endpoint.unpeer(address, port)
        return True

    def unpeer_nosync(self, address: str, port: int) -> None:
        self._endpoint.unpeer_nosync(address, port)

    def peers(self) -> list[PeerInfo]:
        found = []
        for each in self._endpoint.peers():
            if each.id is not None:
                info = EndpointInfo(each.id, NetworkInfo(*each.address))
                found.append(PeerInfo(info, PeerFlags.Remote, PeerStatus(int(each.status))))
        return found

    def peer_subscriptions(self) -> list[Topic]:
        with self._endpoint.node.lock:
            return [Topic(each.decode("utf-8", "surrogateescape")) for each in self._endpoint.core.peer_subscriptions()]

    def await_peer(self, node: str, timeout: float | None = None) -> bool:
        """Wait until the endpoint can be reached, 10 s by default; raises ValueError for what is not an id."""
        try:
            UUID(node)
        except (ValueError, AttributeError, TypeError):
            raise ValueError(f"{node!r} is not an endpoint id") from None
        return self._endpoint.await_peer(node, AWAIT_S if not timeout else float(timeout))

    # -- data stores ------------------------------------------------------------------------------------

    def attach_master(
        self, name: str, type: Backend | None = None, opts: Mapping[str, object] = MappingProxyType({})
    ) -> Store | None:
        """Return the master of a data store; the one that is there if it was attached before. None if that cannot be.

        Options of SQLite: ``path``, and the Enums ``synchronous`` (``Broker::SQLITE_SYNCHRONOUS_OFF``, ``_NORMAL``,
        ``_FULL``, ``_EXTRA``), ``journal_mode`` (``Broker::SQLITE_JOURNAL_MODE_DELETE``, ``_WAL``), ``failure_mode``
        (``Broker::SQLITE_FAILURE_MODE_FAIL``, ``_DELETE``), and ``integrity_check``, a bool.
        """
        if not isinstance(type, Backend):
            raise TypeError(f"the type of a master is Backend.Memory or Backend.SQLite, not {type!r}")
        found = self._stores.attach_master(name, type, options_of(opts))
        return None if found is None else Store(found)

    def attach_clone(self, name: str) -> Store | None:
        """Return a clone of a data store, which looks for its master from now on. None if the master is here."""
        found = self._stores.attach_clone(name)
        return None if found is None else Store(found)

    # -- time, which the original's bindings leave to C++ ------------------------------------------------

    def use_real_time(self) -> bool:
        """False if the time of data stores stands still until ``advance_time``."""
        return self._clock is None

    def now(self) -> Timestamp:
        """Return the time as data stores have it; simulated time begins at 1970."""
        return system_time() if self._clock is None else Timestamp(Timespan(self._clock.wall_ns()))

    def advance_time(self, t: Timestamp | datetime) -> None:
        """Let simulated time go on to ``t``: returns when everything that is due in data stores is done.

        Entries expire that have lived until then. Heartbeats, searches and time-outs of masters and clones go on by
        0.1 s at most, whatever ``t`` is: a jump in time loses nobody. Peerings, and all waits of callers, have real
        time. As in the original nothing happens with real time, or if ``t`` is not later than ``now()``.
        """
        if not isinstance(t, Timestamp | datetime):
            raise TypeError(f"advance_time takes a Timestamp or a datetime, not a {type(t).__name__}")
        at_ns = Data.from_py(t)._value
        assert isinstance(at_ns, int)
        self._endpoint.node.advance(at_ns)
        self._stores.await_kept()

    # -- messages ---------------------------------------------------------------------------------------

    def forward(self, topics: Topics) -> None:
        """Pass these topics on, though nobody here has subscribed to them."""
        self._endpoint.forward(*topics_of(topics))

    def publish(self, topic: str | Topic, data: object) -> None:
        self._endpoint.publish(topic_of(topic), Data.from_py(data)._value)

    def publish_batch(self, *batch: tuple[str | Topic, object]) -> None:
        self._endpoint.publish_batch([(topic_of(topic), Data.from_py(data)._value) for topic, data in batch])

    @overload
    def make_subscriber(self, topics: Topics, qsize: int = 20) -> Subscriber: ...

    @overload
    def make_subscriber(self, topics: Topics, qsize: int = 20, *, subscriber_class: Callable[[Any], S]) -> S: ...

    def make_subscriber(
        self, topics: Topics, qsize: int = 20, subscriber_class: Callable[[Any], Any] = Subscriber
    ) -> Any:
        """Subscribe. At least ``qsize`` messages may wait; beyond that publishers are slowed down."""
        messages_max = max(qsize, SUBSCRIBER_MESSAGES_MAX)
        wanted = topics_of(topics)
        all_of_them = [each for topic in wanted for each in with_local(topic)]
        made = subscriber_class(self._endpoint.subscribe(*all_of_them, on_full="block", messages_max=messages_max))
        if isinstance(made, Subscriber):
            made._on_topics = self._stores.want
        self._stores.want(wanted)
        return made

    def make_safe_subscriber(self, topics: Topics, qsize: int = 20) -> SafeSubscriber:
        return self.make_subscriber(topics, qsize, subscriber_class=SafeSubscriber)

    def make_status_subscriber(self, receive_statuses: bool = False) -> StatusSubscriber:
        """Hear of errors, and of statuses if wanted."""
        return StatusSubscriber(self._endpoint.statuses(), receive_statuses)

    def make_publisher(self, topic: str | Topic) -> Publisher:
        return Publisher(self._endpoint.publisher(topic_of(topic)))
