"""The mesh: what an endpoint sees of it that forwards nothing; and the data stores, by what endpoints listen to.

Of its own links it knows the counters; of all others that they are there, from the link states of their ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from chappe import Endpoint
from chappe.mesh.network import Network, NetworkEndpoint
from chappe.observing.snapshot import Keeping, Link, Member, Part, Problem, readable
from chappe.security import Keys, Security

RETRY_S: Final = 2.0
KEEPINGS_MAX: Final = 1_000
# where the master and the clones of a store listen: chappe.kv.topics
MASTER: Final = "/<$>/data/master"
CLONE: Final = "/<$>/data/clone"
GATEWAY: Final = "<$>/gateway"


class MeshSource:
    """An endpoint that looks.

    Args:
        peers: Whom to dial, and again when they are lost.
        named: Whether the user named them: then one that does not answer is a problem.
    """

    name = "mesh"
    mend = "Start it: chappe node"

    def __init__(
        self, peers: Sequence[tuple[str, int]], security: Security | Keys = None, *, named: bool = True
    ) -> None:
        self.endpoint = Endpoint(security=security, forwarding=False)
        self._named = named
        for host, port in peers:
            self.endpoint.peer_nosync(host, port, retry_s=RETRY_S)

    def look(self) -> Part:
        """See ``Source``."""
        network = self.endpoint.topology()
        peers = self.endpoint.peers()
        counted = {
            each.id: (each.sent, each.received, each.buffered, each.original) for each in peers if each.id is not None
        }
        problems = [
            Problem(
                f"peer {each.address[0]}:{each.address[1]}",
                "warning",
                f"No endpoint of the mesh answers at {each.address[0]}:{each.address[1]}.",
                "Start it: chappe node, or name another with --peer HOST:PORT",
            )
            for each in peers
            if each.id is None and self._named
        ]
        alone = len(network.endpoints) == 1 and not self._named
        members = [] if alone else [_member(each) for each in network.endpoints]
        links = []
        for link in network.links:
            own = next((each for each in link.ends if each != network.id), "") if link.own else ""
            note = "" if link.confirmed else "one end alone tells of it"
            if own in counted:
                sent, received, waiting, original = counted[own]
                note = "protocol of the original" if original else "protocol of chappe"
                links.append(Link((network.id, own), "mesh", sent, received, waiting=waiting, note=note))
            else:
                links.append(Link(link.ends, "mesh", note=note))
        notes = []
        if network.endpoints_left_out or network.links_left_out:
            less = f"{network.endpoints_left_out:,} endpoints and {network.links_left_out:,} links"
            notes.append(f"of the mesh {less} are left out")
        return Part(
            members=tuple(members),
            links=tuple(links),
            keepings=tuple(data_stores(network)[:KEEPINGS_MAX]),
            problems=tuple(problems),
            notes=tuple(notes),
        )

    def close(self) -> None:
        """See ``Source``."""
        self.endpoint.close()


def data_stores(network: Network) -> list[Keeping]:
    """The data stores of a mesh, by name: masters and clones listen where everybody sees it."""
    masters: dict[str, list[str]] = {}
    copies: dict[str, list[str]] = {}
    for each in network.endpoints:
        for topic in each.filter or ():
            for suffix, found in ((MASTER, masters), (CLONE, copies)):
                if topic.endswith(suffix) and not topic.startswith("<$>"):
                    found.setdefault(topic.removesuffix(suffix), []).append(each.id)
    stores = []
    for name in sorted(masters.keys() | copies.keys()):
        has = masters.get(name, [])  # a master listens as clones do, too
        clones = [each for each in copies.get(name, ()) if each not in has]
        stores.append(Keeping("data store", readable(name), tuple(has), tuple(clones)))
    return stores


def _member(each: NetworkEndpoint) -> Member:
    wants = [readable(topic) for topic in each.filter or ()]
    facts = [("id", each.id)]
    if each.filter is not None:
        facts.append(("wants", each.wants(10) or "nothing"))
    if each.distance is not None:
        facts.append(("hops from here", str(each.distance)))
    if each.forwards is not None:
        facts.append(("passes on messages", "yes" if each.forwards else "no"))
    status = "there" if each.distance is not None else "no way leads there"
    if each.distance == 0:
        kind = "this dashboard"
    elif each.original:
        kind = "original"
    else:
        kind = "gateway" if _any_begins(wants, GATEWAY) else "endpoint"
    name = "this dashboard" if each.distance == 0 else each.id[:8]
    return Member(each.id, kind, name, "", status, "good" if each.distance is not None else "warning", tuple(facts))  # type: ignore[arg-type]


def _any_begins(texts: Iterable[str], beginning: str) -> bool:
    return any(each.startswith(beginning) for each in texts)
