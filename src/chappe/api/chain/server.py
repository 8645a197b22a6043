"""One server of a chain in this process."""

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
    """One of the servers that hold a machine's state in exactly the same form; see ``docs/explanation/chains.md``.

    The machine is a Python object with ``apply(command) -> result``, ``read(query) -> result``, ``snapshot() -> bytes``
    and ``restore(bytes)``; commands and results are bytes of up to 4 MiB, a snapshot has up to 2.25 GiB. It must be
    deterministic: ``chappe.testing.check_machine`` looks whether it is. What ``apply`` raises is its result, at all
    members alike. It is called with a lock held, one call at a time, and keeps this whole server waiting.

    If it has an attribute ``now_us`` it finds the time there, in microseconds, that the head wrote beside the command.
    If it has ``pieces`` and ``restoring``, its state may be large: see ``PiecedMachine``. If it has
    ``transfer() -> bytes``, it keeps its state on a disk of its own: see ``FiledMachine`` in
    ``chappe.replication.chain.replica``.

    Args:
        machine: As it is in the beginning.
        configuration: The same for all servers and clients, or the file that has it.
        name: Which of the servers this is. It listens at its address.
        directory: Where it keeps its votes and, of a durable chain, its log and state; made if it is not there. A
            chain in memory needs none: then a server that restarts votes again when the others have taken it in.
        security: Who it is: ``Keys("DIRECTORY/NAME")``, ``"plain"``, or None for what ``CHAPPE_IDENTITY`` names. With
            keys servers have to be allowed to ``attach-master`` the chain's name, clients to ``write`` or
            ``attach-clone`` it, and those who take out servers to ``administer`` it.
        on_applied: Called with what was committed and done, in order, and whether this server is the tail. The lock is
            held: it must be quick, not call back and raise nothing. What a former life was told is not told again, nor
            what came within a state from another server.

    Raises:
        AddressInUse: Somebody listens at its address.
        IdentityInUse: Another process uses the directory.
        StorageError: The directory cannot be used, or what was synced there is damaged.
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
        """Where it listens."""
        return str(self._ports.address)

    @property
    def member(self) -> bool:
        """Whether it is in the chain."""
        return self._ports.core.member

    @property
    def head(self) -> bool:
        """Whether it numbers commands."""
        return self._ports.core.head

    @property
    def tail(self) -> bool:
        """Whether it commits and answers them."""
        return self._ports.core.tail

    def status(self) -> ChainServerStatus:
        """What it knows of the chain. Raises MemberStopped if it met a defect."""
        self._node.turns.check()
        with self._node.lock:
            return status_of(self._ports.seen(0, time.monotonic()), self.configuration.names)

    def remove(self, name: str) -> None:
        """Have a server leave the chain, and stay out; raises UsageError if it is the last member."""
        self._exclude(name, True)

    def add(self, name: str) -> None:
        """Let a server that was removed come back; it becomes the tail when it has everything."""
        self._exclude(name, False)

    def _exclude(self, name: str, out: bool) -> None:
        with self._node.lock:
            why = self._ports.ask_out(self.configuration.place(name), out)
        if why:
            raise UsageError(why)

    def close(self) -> None:
        """Leave: the others go on without it, at once. Waits a second for that at most. Safe to call twice."""
        at_exit.closed(self)
        self._ports.leave()
        self._node.close()

    def __repr__(self) -> str:
        return f"<ChainServer {self.name} of {self.configuration.name} at {self.address}>"


def _drawn() -> int:
    """A number that nobody else has."""
    return _random.randrange(1, 2**63)
