"""A server of a chain in this process."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from chappe.api import at_exit
from chappe.api.chain.configuration import ChainConfiguration
from chappe.api.chain.status import ChainServerStatus, status_of
from chappe.api.faces import weakly
from chappe.api.node_host import NodeHost
from chappe.errors import UsageError
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain.core import ChainServerCore as Core
from chappe.replication.chain.events import Applied, Entered, ServerJoins
from chappe.replication.chain.replica import ReplicatedMachine
from chappe.runtime.chain_ports import ChainServerPorts
from chappe.runtime.chain_rules import ChainRules
from chappe.runtime.driver import SYSTEM_CLOCK, Driver
from chappe.security import LogSecurity
from chappe.storage.chain_files import ChainFiles
from chappe.system import time
from chappe.transports.gate import check_listening, gate_of, keys_of

_random: Final = random.SystemRandom()


class ChainServer(NodeHost):
    """One of the servers that hold identical states of a machine; ``docs/explanation/chains.md`` explains chains.

    The machine is a Python object with ``apply(command) -> result``, ``read(query) -> result``, ``snapshot() -> bytes``
    and ``restore(bytes)``; commands and results are bytes of up to 4 MiB, a snapshot has up to 2.25 GiB. It must be
    deterministic: ``chappe.testing.check_machine`` checks that. An exception of ``apply`` is its result, at all
    members alike. It is called with a lock held, one call at a time, and keeps this whole server waiting.

    A machine with an attribute ``now_us`` finds there the time, in microseconds, that the head wrote beside the
    command. With ``pieces`` and ``restoring`` its state may be large (``PiecedMachine``); with ``transfer() -> bytes``
    it keeps its state on a disk of its own (``FiledMachine``); both are in ``chappe.replication.chain.replica``.

    Args:
        machine: In its initial state.
        configuration: The same for all servers and clients, or its file.
        name: This server's name in the configuration. It listens at its address.
        directory: Its votes and, of a durable chain, its log and state; made if missing. A chain in memory needs none:
            then a server that restarts votes again when the others have taken it in.
        security: ``Keys("DIRECTORY/NAME")``, ``"plain"``, or None for the identity of ``CHAPPE_IDENTITY``. With
            keys servers need the permission to ``attach-master`` the chain's name, clients to ``write`` or
            ``attach-clone`` it, and administrators who remove servers to ``administer`` it.
        on_applied: Called with committed and applied commands, in order, and True if this server is the tail. The lock
            is held: it must be quick, not call back and raise nothing. Commands that a former life reported are not
            reported again, nor those within a state from another server.

    Raises:
        AddressInUse: Another process listens at its address.
        IdentityInUse: Another process uses the directory.
        StorageError: The directory cannot be used, or its synced content is damaged.
    """

    _good = (Entered, ServerJoins)
    _node: Driver

    def __init__(
        self,
        machine: ReplicatedMachine,
        configuration: ChainConfiguration | str | Path,
        name: str,
        *,
        directory: str | Path | None = None,
        security: LogSecurity = None,
        on_applied: Callable[[Sequence[Applied], bool], None] | None = None,
    ) -> None:
        super().__init__()
        self.configuration = given = ChainConfiguration.of(configuration)
        self.name = name
        place = given.place(name)
        if given.durable and directory is None:
            raise UsageError("a server of a durable chain needs a directory: give one, or make the chain durable=False")
        check_listening(security, given.addresses[place].host, "server of a chain")
        gate = gate_of(keys_of(security))
        addresses = given.known(gate)
        rules = None if gate is None else ChainRules(gate, given.name, [each.name for each in addresses])
        if gate is not None and addresses[place].name != gate.name:
            raise UsageError(f"{gate.name} is not the server {name} of the chain, {addresses[place].name} is")
        files = None if directory is None else ChainFiles(Path(directory), _drawn())
        try:
            core = Core(
                place, given.names, _drawn(), VoteRecord(_drawn()) if files is None else files.memory, machine,
                now=time.monotonic(), clock=SYSTEM_CLOCK, loaded=None if files is None else files.loaded,
                durable=given.durable, fixed=given.fixed,
            )  # fmt: skip
        except BaseException:
            if files is not None:
                files.close()
            raise
        if files is not None:
            files.forget()
        self._ports = ChainServerPorts(
            addresses, given.chain, core, files=files, gate=gate, rules=rules, on_report=weakly(self._report),
            on_applied=on_applied,
        )  # fmt: skip
        self._node = self._ports.driver
        self._begin()

    def _begin(self) -> None:
        self._ports.start()
        at_exit.opened(self)

    @property
    def address(self) -> str:
        """The address that it listens at."""
        return str(self._ports.address)

    @property
    def member(self) -> bool:
        """True while it is in the chain."""
        return self._ports.core.member

    @property
    def head(self) -> bool:
        """True while it numbers commands."""
        return self._ports.core.head

    @property
    def tail(self) -> bool:
        """True while it commits and answers commands."""
        return self._ports.core.tail

    def status(self) -> ChainServerStatus:
        """Return its view of the chain. Raises MemberStopped after a defect."""
        self._node.turns.check()
        with self._node.lock:
            return status_of(self._ports.seen(0, time.monotonic()), self.configuration.names)

    def remove(self, name: str) -> None:
        """Remove a server from the chain until it is added again. Raises UsageError for the last member."""
        self._exclude(name, True)

    def add(self, name: str) -> None:
        """Let a removed server come back; it becomes the tail when it has the whole state."""
        self._exclude(name, False)

    def _exclude(self, name: str, out: bool) -> None:
        with self._node.lock:
            why = self._ports.ask_out(self.configuration.place(name), out)
        if why:
            raise UsageError(why)

    def close(self) -> None:
        """Leave: the others go on at once. Waits a second for that at most. Safe to call twice."""
        at_exit.closed(self)
        self._ports.leave()
        self._node.close()

    def __repr__(self) -> str:
        return f"<ChainServer {self.name} of {self.configuration.name} at {self.address}>"


def _drawn() -> int:
    return _random.randrange(1, 2**63)
