"""The witness of pairs of servers, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from chappe.api.faces import weakly
from chappe.api.kv.attaching import open_backend
from chappe.api.node_host import NodeHost
from chappe.defaults import TOWER_HOST, WITNESS_PORT
from chappe.errors import UsageError
from chappe.replication.binary_star.events import Granted
from chappe.runtime.witness_ports import WitnessPorts
from chappe.security import LogSecurity
from chappe.transports.gate import check_listening, gate_of, keys_of
from chappe.transports.maps import MapAddress


class Witness(NodeHost):
    """Decides which server of a pair serves while the two do not see each other; any number of pairs may ask it.

    It belongs on a third machine. It has only a few numbers for each pair, and is asked only when a pair parts
    or comes together again: without it a pair that is together goes on, and one that has parted does not serve until it
    answers.

    Args:
        listen: ``HOST:PORT``; port 0: a free one.
        path: The file of its grants, which must not be lost.
        backend: The format of the file: ``sqlite`` or ``rocksdb``.
        security: As of ``Tower``; then it lets in only servers with keys that may ``attach-master`` the name of their
            pair.

    Raises:
        AddressInUse: The port is taken.
        StorageError: The path cannot be used.
    """

    _good = (Granted,)

    def __init__(
        self,
        listen: str = f"{TOWER_HOST}:{WITNESS_PORT}",
        *,
        path: str | Path,
        backend: Literal["sqlite", "rocksdb"] = "sqlite",
        security: LogSecurity = None,
    ) -> None:
        super().__init__()
        address = MapAddress.parse(listen)
        check_listening(security, address.host, "witness")
        gate = gate_of(keys_of(security))
        opened = open_backend(backend, {"path": path})
        if opened is None:
            raise UsageError("a witness keeps what it has granted: its backend is sqlite or rocksdb")
        self._ports = WitnessPorts(address, opened, weakly(self._report), gate)
        self._node = self._ports.driver
        self._begin()

    @property
    def address(self) -> str:
        """The address to give to the servers of pairs."""
        return str(self._ports.address)

    def __repr__(self) -> str:
        return f"<Witness {self.address}>"
