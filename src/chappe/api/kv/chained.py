"""The server of a chain that a data store's master runs on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from chappe.api.chain.configuration import ChainConfiguration
from chappe.api.chain.server import ChainServer
from chappe.errors import UsageError
from chappe.kv.chained.machine import StoreMachine
from chappe.runtime.kv_chain import ChainLink
from chappe.transports.gate import keys_of

_OF_A_PAIR: Final = {"partner", "role", "witness"}  # options that masters had before there were chains


class Chaining(NamedTuple):
    """The place of a master on a chain; ``Endpoint.attach_master`` describes the fields."""

    configuration: ChainConfiguration
    server: str
    directory: str | Path | None


def chaining(
    chain: ChainConfiguration | str | Path | None, server: str | None, directory: str | Path | None, backend: str,
    options: Mapping[str, object],
) -> Chaining | None:  # fmt: skip
    """Check the arguments; return None for a master without a chain. Raises UsageError or ConfigError."""
    if _OF_A_PAIR & options.keys():
        raise UsageError(
            "a data store has no pair of masters: attach three on a chain, each with chain= and server= its name"
        )
    if chain is None:
        if server is not None or directory is not None:
            raise UsageError("server and directory are for a master on a chain: give its configuration, too")
        return None
    if backend != "memory":
        raise UsageError(f"a master on a chain keeps what it has with the chain: no backend {backend} beside it")
    if options:
        raise UsageError(f"a master on a chain takes no {', '.join(options)}")
    configuration = ChainConfiguration.of(chain)
    configuration.check_agrees("data stores on a chain")
    if server is None:
        raise UsageError(f"say which server of the chain this is: server= one of {', '.join(configuration.names)}")
    configuration.place(server)
    return Chaining(configuration, server, directory)


class StoreServer(ChainServer):
    """A server whose machine is a data store, joined to the endpoint.

    ``plain`` says that the endpoint was told to do without keys.
    """

    def __init__(self, chain: Chaining, *, plain: bool) -> None:
        machine = StoreMachine()
        self.link = ChainLink(machine)
        super().__init__(
            machine, chain.configuration, chain.server, directory=chain.directory,
            security="plain" if plain and keys_of(None) is None else None,
        )  # fmt: skip

    def _begin(self) -> None:
        self.link.serve(self._ports)
        super()._begin()

    def _report(self, event: object) -> None:
        super()._report(event)
        self.link.reported(event)
