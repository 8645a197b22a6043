"""The mesh: what an endpoint sees of it that forwards nothing; and the data stores, by what endpoints listen to.

Of its own links it knows the counters. Of all others it knows that they are there, from the link states of their ends,
and asks these what their counters are and how their data stores are, some of them at each look. Originals do not tell.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import msgspec

from chappe import Endpoint
from chappe.api.mesh.subscriber import Subscriber
from chappe.data.order import SortKey, sort_key
from chappe.data.topic import CLONE_SUFFIX, MASTER_SUFFIX
from chappe.errors import ChappeError, NotPermitted, ProtocolError, Unreachable
from chappe.gateway.announcement import PREFIX
from chappe.mesh.link_reports import ASK_LINKS, LINKS_TOLD, LinkReport, StoreReport, ask, parse_report
from chappe.mesh.network import Network, NetworkEndpoint, NetworkLink
from chappe.observing.snapshot import HealthProblem, ObservedLink, ObservedMember, ObservedPart, ObservedStore, readable
from chappe.system import started

RETRY: Final = MappingProxyType({"retry_s": 2.0})
KEEPINGS_MAX: Final = 1_000
ROLES_MAX: Final = 20  # data stores that are named at one endpoint
ASKED_MAX: Final = 20  # endpoints that are asked at one look, in turn
KEPT_S: Final = 10.0  # what one told counts for so long behind the time at which it is asked again
TOLD_MAX: Final = 1_000  # answers that may wait; then the oldest are dropped


@dataclass(frozen=True, slots=True)
class _Told:
    at: float
    tls: bool | None
    links: dict[str, LinkReport]
    stores: tuple[StoreReport, ...]


class MeshSource:
    """An endpoint that looks.

    Args:
        peers: Whom to dial, and again when they are lost.
        named: Whether the user named them: then one that does not answer is a problem.
        endpoint: The one that looks; by default a plain one is made. It is closed with the source.
        retry: The arguments of ``Endpoint.peer`` that say when.
    """

    name = "mesh"
    mend = "Start it: chappe node"

    def __init__(
        self,
        peers: Sequence[tuple[str, int]],
        *,
        named: bool = True,
        endpoint: Endpoint | None = None,
        retry: Mapping[str, Any] = RETRY,
    ) -> None:
        self.endpoint = endpoint or Endpoint(forwarding=False)
        self._named = named
        self._tls = self.endpoint.node.member.reporting.tls
        self._told: dict[str, _Told] = {}
        self._turn = 0  # the place among all endpoints of the next one to ask
        self._every_s = 0.0  # the time between two questions to one endpoint
        self._number = 0
        self._silenced = ""  # the reason for which nobody can be asked
        self._wanted: dict[str, float] = {}  # data stores into which somebody looks, and the time at which that ends
        self._masters: dict[int, str] = {}  # by question to a master: the name of its store
        self._lives: dict[str, dict[SortKey, float]] = {}  # by store: the expiries of its entries, in monotonic seconds
        self._answers: Subscriber | None = None
        try:
            self._answers = self.endpoint.subscribe(
                LINKS_TOLD.decode(), on_full="drop_oldest", messages_max=TOLD_MAX, bytes_max=16 << 20
            )
        except NotPermitted as error:
            self._silenced = str(error)
        for host, port in peers:
            self.endpoint.peer_nosync(host, port, **retry)

    def look(self) -> ObservedPart:
        network = self.endpoint.topology()
        now = time.monotonic()
        self._hear(network, now)
        self._ask(network)
        self._ask_masters(network, now)
        peers = self.endpoint.peers()
        own = {each.id: LinkReport.of(each) for each in peers if each.id is not None}
        self._told[network.id] = _Told(now, self._tls, own, ())
        problems = [
            HealthProblem(
                f"peer {each.address[0]}:{each.address[1]}",
                "warning",
                f"No endpoint of the mesh answers at {each.address[0]}:{each.address[1]}.",
                f"Start it: {_node(*each.address)}; or name another with --peer HOST:PORT",
            )
            for each in peers
            if each.id is None and self._named
        ]
        alone = len(network.endpoints) == 1 and not self._named
        stores = [self._as_told(each) for each in data_stores(network)[:KEEPINGS_MAX]]
        roles = roles_of(stores)
        members = [] if alone else [_member(each, roles.get(each.id, ())) for each in network.endpoints]
        originals = {each.id for each in network.endpoints if each.original}
        links = [self._link(each, originals) for each in network.links]
        links += copying(stores)
        notes = []
        if self._silenced:
            notes.append(f"how much goes over links of others, and how old clones are, nobody tells: {self._silenced}")
        elif self._every_s > 1.0:
            notes.append(f"endpoints are asked about their links and data stores every {self._every_s:.0f} s")
        if network.endpoints_left_out or network.links_left_out:
            less = f"{network.endpoints_left_out:,} endpoints and {network.links_left_out:,} links"
            notes.append(f"of the mesh {less} are left out")
        return ObservedPart(
            members=tuple(members),
            links=tuple(links),
            keepings=tuple(stores),
            problems=tuple(problems),
            notes=tuple(notes),
        )

    def lives(self, store: str) -> dict[SortKey, float]:
        """Return expiries of a data store's entries, by their sort keys, as its master told; thread-safe.

        Masters are asked once a second for some seconds after each call; so at first there is nothing.
        """
        now = time.monotonic()
        self._wanted[store] = now + KEPT_S
        return self._lives.get(store, {})

    def close(self) -> None:
        self.endpoint.close()

    # -- what others tell -----------------------------------------------------------------------------

    def _ask(self, network: Network) -> None:
        there = sorted(each.id for each in network.endpoints if each.distance and not each.original)
        self._every_s = len(there) / ASKED_MAX
        if self._silenced or not there:
            return
        for step in range(min(ASKED_MAX, len(there))):
            self._number += 1
            receiver = UUID(there[(self._turn + step) % len(there)]).bytes
            try:
                self.endpoint.try_publish(ASK_LINKS, ask(self._number), receiver)
            except Unreachable:
                continue
            except NotPermitted as error:
                self._silenced = str(error)
                return
        self._turn = (self._turn + ASKED_MAX) % len(there)

    def _ask_masters(self, network: Network, now: float) -> None:
        """Ask the masters of the data stores into which somebody looks what expires next there."""
        wanted = self._wanted = {store: until for store, until in self._wanted.copy().items() if now < until}
        self._lives = {store: lives for store, lives in self._lives.items() if store in wanted}
        self._masters = {}
        for store in data_stores(network) if wanted and not self._silenced else ():
            if store.name in wanted and store.masters:
                self._number += 1
                self._masters[self._number] = store.name
                with suppress(Unreachable, NotPermitted):
                    self.endpoint.try_publish(ASK_LINKS, ask(self._number, store.name), UUID(store.masters[0]).bytes)

    def _hear(self, network: Network, now: float) -> None:
        """Take the answers of endpoints, each about itself; forget those that left or have been silent for long."""
        if self._answers is None:
            return
        there = {each.id for each in network.endpoints}
        for message in self._answers.get_many(TOLD_MAX, 0):
            try:
                report = parse_report(message.payload)
            except (ProtocolError, ChappeError):
                continue
            if (store := self._masters.get(report.number)) is not None:
                self._lives[store] = {sort_key(key): now + left_s for key, left_s in report.lives}
            teller = message.origin or message.sender
            self._told[teller] = _Told(now, report.tls, {each.peer: each for each in report.links}, report.stores)
        until = now - KEPT_S - 2 * self._every_s
        self._told = {each: told for each, told in self._told.items() if each in there and told.at >= until}

    def _link(self, link: NetworkLink, originals: set[str]) -> ObservedLink:
        """A link as its ends tell of it: where one has not told, the other has counted both ways."""
        first, second = (self._told.get(each) for each in link.ends)
        there = first.links.get(link.ends[1]) if first is not None else None
        back = second.links.get(link.ends[0]) if second is not None else None
        told = first or second
        spoken = "protocol of chappe" if originals.isdisjoint(link.ends) else "protocol of the original"
        return ObservedLink(
            link.ends,
            "mesh",
            sent=there.sent if there is not None else back.received if back is not None else None,
            received=there.received if there is not None else back.sent if back is not None else None,
            waiting=there.waiting if there is not None else 0,
            waiting_back=back.waiting if back is not None else 0,
            tls=None if told is None else told.tls,
            every_s=0.0 if link.own else self._every_s,
            note=spoken if link.confirmed else f"{spoken}; one end alone tells of it",
        )

    def _as_told(self, store: ObservedStore) -> ObservedStore:
        counts = (count for each in store.masters for count, _ in self._of(each, store.name, master=True))
        ages = [next((age for _, age in self._of(each, store.name, master=False)), None) for each in store.copies]
        return msgspec.structs.replace(store, entries=next(counts, None), ages=tuple(ages))

    def _of(self, endpoint: str, store: str, *, master: bool) -> Iterator[tuple[int, float]]:
        told = self._told.get(endpoint)
        for each in told.stores if told is not None else ():
            if each.master is master and readable(each.name) == store:
                yield each.entries, each.age_s


def data_stores(network: Network) -> list[ObservedStore]:
    """Return the data stores of a mesh, by name: masters and clones listen where everybody sees it."""
    masters: dict[str, list[str]] = {}
    copies: dict[str, list[str]] = {}
    for each in network.endpoints:
        for topic in each.filter or ():
            for suffix, found in ((MASTER_SUFFIX.decode(), masters), (CLONE_SUFFIX.decode(), copies)):
                if topic.endswith(suffix) and not topic.startswith("<$>"):
                    found.setdefault(topic.removesuffix(suffix), []).append(each.id)
    stores = []
    for name in sorted(masters.keys() | copies.keys()):
        has = masters.get(name, [])  # a master listens as clones do, too
        clones = [each for each in copies.get(name, ()) if each not in has]
        mend = started.command(f"data store {name}", "") if clones and not has else ""
        stores.append(ObservedStore("data store", readable(name), tuple(has), tuple(clones), mend=mend))
    return stores


def _node(host: str, port: int) -> str:
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return started.command(f"endpoint {at}", f"chappe node --listen {at}")


def copying(stores: Iterable[ObservedStore]) -> Iterator[ObservedLink]:
    """Return links from the master of each data store to each of its clones, wherever the messages between them go."""
    for store in stores:
        for master in store.masters[:1]:
            for clone, age_s in zip(store.copies, store.ages, strict=True):
                yield ObservedLink((master, clone), "copies", note=f"data store {store.name}, {_how_old(age_s)}")


def roles_of(stores: Iterable[ObservedStore]) -> dict[str, list[tuple[str, str]]]:
    """Return roles of endpoints in data stores, by their ids: facts to show."""
    found: dict[str, list[tuple[str, str]]] = {}
    for store in stores:
        title = f"data store {store.name}"  # readable already
        entries = "" if store.entries is None else f", entries: {store.entries:,}"
        for master in store.masters:
            found.setdefault(master, []).append((title, f"master{entries}"))
        for clone, age_s in zip(store.copies, store.ages, strict=True):
            found.setdefault(clone, []).append((title, f"clone, {_how_old(age_s)}"))
    return {endpoint: roles[:ROLES_MAX] for endpoint, roles in found.items()}


def _how_old(age_s: float | None) -> str:
    return "nobody tells how old" if age_s is None else f"not up to date for {age_s:.0f} s" if age_s else "up to date"


def _member(each: NetworkEndpoint, roles: Sequence[tuple[str, str]]) -> ObservedMember:
    wants = [readable(topic) for topic in each.filter or ()]
    facts = [("id", each.id)]
    if each.filter is not None:
        facts.append(("wants", each.wants(10) or "nothing"))
    if each.distance is not None:
        facts.append(("hops from here", str(each.distance)))
    if each.forwards is not None:
        facts.append(("passes on messages", "yes" if each.forwards else "no"))
    facts += roles
    status = "there" if each.distance is not None else "no way leads there"
    if each.distance == 0:
        kind = "this dashboard"
    elif each.original:
        kind = "original"
    else:
        kind = "gateway" if any(topic.startswith(PREFIX.decode()) for topic in wants) else "endpoint"
    name = "this dashboard" if each.distance == 0 else each.id[:8]
    level = "good" if each.distance is not None else "warning"
    return ObservedMember(each.id, kind, name, "", status, level, tuple(facts), named=each.distance == 0)  # type: ignore[arg-type]
