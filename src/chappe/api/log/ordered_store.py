"""A store that is a member of a chain, in this process: it keeps ordered topics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from chappe.api.chain.configuration import ChainConfiguration
from chappe.api.chain.server import ChainServer
from chappe.api.chain.status import ChainServerStatus
from chappe.api.log.store import Store
from chappe.data.label import is_label
from chappe.defaults import DELETIONS_KEPT_S, MIB
from chappe.errors import UsageError
from chappe.log.ordered.keeping import Keeping
from chappe.log.ordered.machine import OrderedLog
from chappe.log.storage import Retention
from chappe.replication.chain.events import Applied
from chappe.security import LogSecurity

WAITING_BYTES_MAX: Final = 64 * MIB  # of records that are not in the store's files yet; then nothing more is confirmed


class OrderedStore(Store):
    """A store, and one of the servers of a chain that puts the records of many ``OrderedProducer`` into one order.

    Records confirmed to a producer are on disk at all members of the chain, in its log; from there each writes them
    into the files of its store. To consumers, readers in bulk and Spark it is a store like any other, and an ordered
    topic a topic like any other; it also keeps records of ordinary producers. The member that is the tail of the chain
    publishes confirmed records. The stores of a chain must find each other, by the same tower: one that joins reads
    missing records from the others, and becomes a member when it has all.

    Args:
        directory: Made if missing; one store at a time.
        chain: The configuration, durable, or its file: the same for all its stores and producers.
        name: This server's name in the configuration, and its name for people.
        tower: ``HOST[:PORT]``, several separated by commas.
        listen: Host to listen on as a store; ``*`` for all interfaces. As a server of the chain it listens at its
            address in the configuration.
        retention: As of ``Store``, for ordered topics too: each store removes records on its own.
        keep_deletions: As of ``Store``.
        security: As of ``Store`` and of ``ChainServer``.

    Raises:
        AddressInUse: Another program listens at its address in the configuration.
        StorageLocked, IdentityInUse: Another process uses the directory.
        StorageFormat: The directory was written by a newer chappe.
        StorageError: The directory cannot be used, or synced data of the chain is damaged.
        NotPermitted: The permissions do not let this identity store anything.
        UsageError: An argument is wrong, or listening beyond this machine requires ``security``.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        chain: ChainConfiguration | str | Path,
        name: str,
        tower: str | None = None,
        listen: str | None = None,
        retention: Sequence[tuple[str, Retention]] = (),
        keep_deletions: float = DELETIONS_KEPT_S,
        security: LogSecurity = None,
    ) -> None:
        configuration = ChainConfiguration.of(chain)
        configuration.check_agrees("ordered topics")
        configuration.place(name)
        if not configuration.durable:
            raise UsageError(f"ordered topics are kept on disk: the chain {configuration.name} must be durable")
        self._keeping = keeping = Keeping(WAITING_BYTES_MAX)
        super().__init__(
            Path(directory) / "store",
            tower=tower,
            listen=listen,
            retention=retention,
            keep_deletions=keep_deletions,
            name=name if is_label(name) else None,
            security=security,
        )
        try:
            self._server = ChainServer(
                OrderedLog(keeping),
                configuration,
                name,
                directory=Path(directory) / "chain",
                security=security,
                on_applied=partial(self._applied, keeping),
            )
        except BaseException:
            super().close()
            raise
        keeping.live()
        self._node.driver.turns.nudge()

    def _applied(self, keeping: Keeping, applied: Sequence[Applied], tail: bool) -> None:
        if keeping.hand_over(shown=tail):
            self._node.driver.turns.nudge()

    @property
    def member(self) -> bool:
        """True while it is in the chain."""
        return self._server.member

    @property
    def chain_address(self) -> str:
        """Its address as a server of the chain."""
        return self._server.address

    def chain_status(self) -> ChainServerStatus:
        """Return its view of the chain. Raises MemberStopped after a defect."""
        return self._server.status()

    def chain_events(self) -> list[object]:
        """Return the chain's events since the last call. Raises MemberStopped if a defect is why there are none."""
        return self._server.events()

    def wait(self, timeout: float | None = None) -> None:
        """Wait while it runs; a defect of the server of the chain is raised, too."""
        super().wait(timeout)
        self._server.status()

    def close(self) -> None:
        """Leave the chain, which goes on at once; then close as a store."""
        self._server.close()
        super().close()
