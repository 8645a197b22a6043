"""A forwarder in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chappe.api.log.store import Store
from chappe.api.taps import LogTap, tap_gate
from chappe.defaults import DELETIONS_KEPT_S, FORWARDER_PORT, TOWER_HOST
from chappe.log.storage import Retention
from chappe.runtime.meeting import AsForwarder
from chappe.runtime.tap_ports import TapPorts
from chappe.security import LogSecurity
from chappe.system import program
from chappe.system.forking import own
from chappe.transports.addresses import ForwarderAddress, TowerAddress
from chappe.transports.gate import check_listening, gate_of, keys_of


class Forwarder(Store):
    """A store that passes on its records: producers and consumers that have its address need no other member.

    Several work side by side. A member that is given all of them publishes to each and listens to each, so one that
    dies is not missed; later it reads the records that it missed from the others, its ``peers``.

    Args:
        directory: Where the records are kept; made if missing; one store or forwarder at a time.
        listen: ``HOST[:PORT]``, with ``*`` for all interfaces, or ``HOST:PORT:PORT:PORT``. Members publish to the
            first port, listen at the second and ask at the third; given one, the next two follow. 0: any free ports.
        peers: ``HOST[:PORT]`` of the other forwarders, in a list or separated by commas.
        retention, keep_deletions: Like those of ``Store``.
        originals: ``HOST[:PORT[:SECOND-PORT]]`` where programs of the original find the forwarder, as they would a
            tower; it must reach the ports that they publish on. None: nowhere. They have no keys: with keys they come
            in only there, one more port follows, and they have the permissions of the identity ``originals``.
        name, security: Like those of ``Tower``.

    Raises:
        AddressInUse: A port is taken.
        StorageLocked: Another process uses the directory.
        StorageFormat: The directory was written by a newer chappe.
        StorageError: The directory cannot be used.
        UsageError: An argument is out of its range.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        listen: str = f"{TOWER_HOST}:{FORWARDER_PORT}",
        peers: str | Sequence[str] = (),
        retention: Sequence[tuple[str, Retention]] = (),
        keep_deletions: float = DELETIONS_KEPT_S,
        originals: str | None = None,
        name: str | None = None,
        security: LogSecurity = None,
    ) -> None:
        own(self)
        self._name = program.label(name)
        self._taps: list[TapPorts] = []
        self._security = security
        tower = None if originals is None else TowerAddress.parse(originals)
        address = ForwarderAddress.parse(listen)
        for host in (address.host, *(() if tower is None else (tower.host,))):
            check_listening(security, host, "forwarder")
        gate = gate_of(keys_of(security))
        self._meeting = AsForwarder(address, ForwarderAddress.parse_many(peers), tower, gate)
        self._open(directory, self._meeting, retention, keep_deletions, forwards=True)

    def tap(self, host: str = TOWER_HOST, port: int = 0) -> int:
        """Let ``chappe tap`` see the traffic of this forwarder; return the port, by default any free one.

        A tap without a viewer costs nothing, and viewers slow no member down. With an identity it shows topics only to
        identities that may ``administer`` them; otherwise to any program that reaches the port.

        Raises:
            AddressInUse: Another program listens there.
            UsageError: The host is not of this machine, or reachable from others and no security was chosen.
        """
        made = TapPorts(LogTap(self._node), host, port, tap_gate(self._security, host))
        self._taps.append(made)
        return made.port

    def close(self) -> None:
        """Close the taps, finish the write under way and release the directory."""
        for each in self._taps:
            each.close()
        super().close()

    @property
    def originals(self) -> str | None:
        """The address to give to programs of the original as their tower; None if they cannot find it."""
        return None if self._meeting.originals is None else str(self._meeting.originals)

    @property
    def address(self) -> str:
        """The address to give to members as one of ``forwarders``."""
        return str(self._meeting.address)
