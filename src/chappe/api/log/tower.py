"""A tower in this process."""

from __future__ import annotations

from chappe.api.faces import Closeable
from chappe.defaults import TOWER_HOST, TOWER_SUB_PORT
from chappe.runtime.tower_node import TowerNode
from chappe.system.forking import own
from chappe.transports.addresses import TowerAddress


class Tower(Closeable):
    """Introduces members to each other; carries no records.

    Args:
        listen: ``HOST[:PORT[:PORT]]``, loopback and the original's ports 5556 and 5557 by default; port 0 lets
            the operating system choose both.

    Raises:
        AddressInUse: A port is taken.
    """

    def __init__(self, listen: str = f"{TOWER_HOST}:{TOWER_SUB_PORT}") -> None:
        own(self)
        self._node = TowerNode(TowerAddress.parse(listen))
        self._node.turns.start()

    @property
    def address(self) -> str:
        """What members are given as ``tower``."""
        return str(self._node.address)

    @property
    def malformed(self) -> int:
        """Messages dropped because they were no beacons."""
        return self._node.malformed

    def nodes(self) -> int:
        """Members heard within the last seconds. Raises MemberStopped if it met a defect."""
        self._node.turns.check()
        return self._node.nodes()

    def wait(self, timeout: float | None = None) -> None:
        """Wait while it runs, at most ``timeout`` seconds (None: for ever; Ctrl-C ends the wait).

        Raises:
            MemberStopped: It met a defect, and no longer introduces anybody.
        """
        self._node.halt_event.wait(timeout)
        self._node.turns.check()

    def close(self) -> None:
        """Stop. Members known to each other stay connected."""
        self._node.close()

    def __repr__(self) -> str:
        return f"<Tower {self.address}>"
