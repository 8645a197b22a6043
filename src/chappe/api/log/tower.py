"""A tower in this process."""

from __future__ import annotations

from chappe.api import at_exit
from chappe.api.faces import Closeable
from chappe.permissions.rules import INTRODUCE
from chappe.runtime.tower_ports import TowerPorts
from chappe.security import LogSecurity
from chappe.system import program, settings
from chappe.system.forking import own
from chappe.transports.addresses import TowerAddress
from chappe.transports.gate import check_listening, gate_of, keys_of


class Tower(at_exit.Collectable, Closeable):
    """Introduces members to each other; carries no records.

    Args:
        listen: ``HOST[:PORT[:PORT]]``; port 0 lets the operating system choose both. By default the tower of the
            settings (``CHAPPE_TOWER``, ``tower`` in ``chappe.toml``), or else loopback and the original's ports 5556
            and 5557.
        name: Its name for people, in lists and pictures: a label, 1 to 64 printable characters, which proves nothing.
            The program and its host by default, such as ``chappe tower@web1``.
        security: ``Keys("DIRECTORY/NAME")``, ``"plain"``, or None for the identity of ``CHAPPE_IDENTITY`` or
            ``chappe.toml``. With an identity it lets in only members that the permissions know. Beyond this machine
            a choice has to be made.

    Raises:
        AddressInUse: A port is taken.
        NotPermitted: The permissions do not let this identity introduce members.
        UsageError: Listening beyond this machine requires ``security``, or the identity is wrong.
    """

    def __init__(self, listen: str | None = None, *, name: str | None = None, security: LogSecurity = None) -> None:
        own(self)
        self._name = program.label(name)
        address = TowerAddress.parse(settings.tower(listen))
        check_listening(security, address.host, "tower")
        gate = gate_of(keys_of(security))
        if gate is not None:
            gate.require_somewhere(INTRODUCE)
        self._node = TowerPorts(address, gate, name=self._name)
        self._node.driver.start()
        at_exit.opened(self)

    @property
    def name(self) -> str:
        """Its name for people, in lists and pictures."""
        return self._name

    @property
    def address(self) -> str:
        """The address to give to members as ``tower``."""
        return str(self._node.address)

    @property
    def malformed(self) -> int:
        """The number of messages dropped because they were no beacons."""
        return self._node.driver.malformed

    @property
    def refused(self) -> int:
        """The number of refused connections to this process's sockets: their keys were not in the permissions."""
        return 0 if self._node.gate is None else self._node.gate.refused

    def nodes(self) -> int:
        """Return the number of members heard within the last seconds. Raises MemberStopped after a defect."""
        self._node.driver.turns.check()
        return self._node.nodes()

    def wait(self, timeout: float | None = None) -> None:
        """Wait while it runs, or ``timeout`` seconds; Ctrl-C ends the wait. Raises MemberStopped: a defect ended it."""
        self._node.driver.halt_event.wait(timeout)
        self._node.driver.turns.check()

    def close(self) -> None:
        """Stop. Members known to each other stay connected."""
        at_exit.closed(self)
        self._node.driver.close()

    def __repr__(self) -> str:
        return f"<Tower {self.address}>"
