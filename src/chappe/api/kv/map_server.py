"""A server of a shared map in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from chappe.api.faces import weakly
from chappe.api.kv.attaching import open_backend
from chappe.api.kv.map_values import check_name
from chappe.api.kv.pair_status import PairStatus, pair_status
from chappe.api.node_host import NodeHost
from chappe.defaults import MAP_PORT, TOWER_HOST
from chappe.errors import UsageError
from chappe.kv.chp.events import MapActive, MapCopied, MapPassive
from chappe.kv.chp.messages import UUID_BYTES
from chappe.kv.chp.pair import PairedMapServer, is_of_a_pair
from chappe.kv.chp.server import MapServerCore
from chappe.replication.binary_star.events import BecameActive, BecamePassive, Paired, PartnerFound
from chappe.replication.binary_star.messages import BACKUP, NAME_BYTES_MAX, PRIMARY
from chappe.runtime.driver import SYSTEM_CLOCK
from chappe.runtime.map_pair_link import PairAddresses
from chappe.runtime.map_ports import MapServerPorts
from chappe.security import LogSecurity
from chappe.system import time
from chappe.transports.gate import Gate, check_listening, gate_of, keys_of
from chappe.transports.maps import MapAddress


@dataclass(frozen=True, slots=True)
class MapServerStatus:
    """The state of a map server.

    ``clients`` counts followers that are programs of chappe, and other programs that take a snapshot just now.
    ``refused`` counts connections and requests to sockets of its identity that permissions do not allow;
    ``refusals`` counts the actions that were not allowed, by identity.
    """

    address: str
    active: bool
    keys: int
    sequence: int
    clients: int
    malformed: int
    pair: PairStatus | None = None
    refused: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)


class MapServer(NodeHost):
    """Orders the writes to a shared map, and serves it to any number of ``SharedMap`` and programs of the Guide's.

    Args:
        listen: ``HOST:PORT``; the two ports behind it are used too. Loopback and port 5570 by default, where the
            Guide's has 5556, which is a tower's here; port 0: three free ones in a row.
        backend: Where the map is kept: ``memory`` (while this is open), ``sqlite`` or ``rocksdb``.
        path: The backend's file or folder; made if missing. One server at a time.
        model: How programs of the Guide's write: 5, they push to one server, or 6, they publish to a pair. By default 6
            for a server of a pair.
        partner: ``HOST:PORT`` of the other server of a pair; ``role`` is this one's, ``primary`` or ``backup``.
        pair: A name for the pair, the same for both servers and the witness.
        witness: ``HOST:PORT`` of a ``Witness``, for both servers or none: it decides which server serves when the two
            do not see each other.
        link: The addresses at which this server and its partner exchange their states: by default the port behind the
            three of each. The Guide's primary uses port 5003 for it, its backup 5004.
        name: The map's name, if there are several: maps of chappe with another name do not take this for theirs.
            Rules use it: a key's topic is the name, a slash, and the key without its first slash.
        security: ``Keys("DIRECTORY/NAME")``, ``"plain"``, or None for the identity of ``CHAPPE_IDENTITY``. With
            keys it serves only programs of chappe's that the permissions know; without, any program that reaches the
            ports may read and write. Beyond this machine a choice has to be made.

    Raises:
        AddressInUse: One of the ports is taken.
        StorageError: The path cannot be used.
    """

    _good = (MapActive, MapPassive, MapCopied, BecameActive, BecamePassive, PartnerFound, Paired)

    def __init__(
        self,
        listen: str = f"{TOWER_HOST}:{MAP_PORT}",
        *,
        backend: Literal["memory", "sqlite", "rocksdb"] = "memory",
        path: str | Path | None = None,
        model: Literal[5, 6] | None = None,
        partner: str | None = None,
        role: Literal["primary", "backup"] | None = None,
        pair: str = "",
        witness: str | None = None,
        link: tuple[str, str] | None = None,
        name: str = "",
        security: LogSecurity = None,
    ) -> None:
        super().__init__()
        if model not in (None, 5, 6):
            raise UsageError(f"the Guide's models with servers like this one are 5 and 6, not {model!r}")
        address = MapAddress.parse(listen)
        check_listening(security, address.host, "map server")
        self._gate = gate = gate_of(keys_of(security))
        paired = _paired(address, partner, role, pair, witness, link, gate)
        opened = open_backend(backend, {} if path is None else {"path": path})
        now, epoch = time.monotonic(), os.urandom(UUID_BYTES)
        core: MapServerCore | PairedMapServer
        try:
            loaded = None if opened is None else opened.load()
            if paired is not None:
                core = PairedMapServer(
                    PRIMARY if role == "primary" else BACKUP, epoch, pair=pair.encode(), loaded=loaded,
                    witness="" if paired.witness is None else str(paired.witness), now=now, clock=SYSTEM_CLOCK,
                    name=check_name(name),
                )  # fmt: skip
            else:
                if loaded is not None and is_of_a_pair(loaded):
                    raise UsageError(
                        f"{path} is the map of a server of a pair, whose partner may have more: give partner= and role="
                    )
                core = MapServerCore(epoch, loaded=loaded, now=now, clock=SYSTEM_CLOCK, name=check_name(name))
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        published = model == 6 if paired is None else model != 5
        self._ports = MapServerPorts(
            address, core, backend=opened, pair=paired, published=published, name=name, gate=gate,
            on_report=weakly(self._report),
        )  # fmt: skip
        self._node = self._ports.driver
        with self._node.lock:
            self._node.perform(core.start(time.monotonic()))
        self._begin()

    @property
    def address(self) -> str:
        """The address to give to clients."""
        return str(self._ports.address)

    def status(self) -> MapServerStatus:
        """Return numbers for people and monitors. Raises MemberStopped after a defect."""
        self._node.turns.check()
        core = self._ports.core
        with self._node.lock:
            return MapServerStatus(
                self.address,
                core.active,
                len(core.engine),
                core.ledger.sequence,
                core.clients,
                self._node.malformed,
                pair_status(core.star) if isinstance(core, PairedMapServer) else None,
                0 if self._gate is None else self._gate.refused,
                {} if self._gate is None else self._gate.refusals.by_identity(),
            )

    def __repr__(self) -> str:
        return f"<MapServer {self.address}>"


def _paired(address: MapAddress, partner: str | None, role: str | None, pair: str, witness: str | None,
            link: tuple[str, str] | None, gate: Gate | None) -> PairAddresses | None:  # fmt: skip
    """Return the addresses of a pair: of the partner, the witness, and of the link. Raises UsageError."""
    if partner is None:
        if role is not None or pair or witness is not None or link is not None:
            raise UsageError("role, pair, witness and link are for a server of a pair: give its partner's address, too")
        return None
    if role not in ("primary", "backup"):
        raise UsageError("say which server of the pair this is: role='primary' or role='backup'")
    if len(pair.encode()) > NAME_BYTES_MAX:
        raise UsageError(f"the name of a pair has at most {NAME_BYTES_MAX} bytes")
    peer = MapAddress.parse(partner).known(gate)
    if not address.port or not peer.port:
        raise UsageError("the servers of a pair have to know each other's ports: give them")
    if (peer.host, peer.port) == (address.host, address.port):
        raise UsageError(f"{partner} is this server itself: give the address of the other one")
    asked = None if witness is None else MapAddress.parse(witness).known(gate)
    if link is None:
        own, other = MapAddress(address.host, address.port + 3), MapAddress(peer.host, peer.port + 3)
    else:
        own, other = (MapAddress.parse(each) for each in link)
        other.check_dialled()
    return PairAddresses(peer, own, replace(other, name=peer.name), asked)
