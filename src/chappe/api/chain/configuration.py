"""The configuration of a chain, which servers and clients share."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from chappe.errors import ConfigError, UsageError
from chappe.replication.agreement.core import SERVERS_MAX
from chappe.replication.chain.wire import chain_of
from chappe.transports.gate import Gate
from chappe.transports.maps import MapAddress

FILE_BYTES_MAX: Final = 1 << 20
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class _File(msgspec.Struct, forbid_unknown_fields=True):
    servers: dict[str, str]
    name: Annotated[str, msgspec.Meta(max_length=64)] = "chain"
    durable: bool = True
    machine: str = ""
    fixed: bool = False


@dataclass(frozen=True)
class ChainConfiguration:
    """The servers of a chain, in order: the first is its head when it is founded, the last its tail.

    Servers and clients share one configuration. Names of chain and servers never change once it is founded, and none is
    added; addresses may change, when all know it.

    Args:
        servers: The address of each server by its name, ``HOST:PORT``; ``IDENTITY@HOST:PORT`` where several identities
            may be servers at that host.
        name: The chain's name; permissions use it as they use a topic.
        durable: Confirm a command when it is on disk at all members, not only in memory. Fixed once it is founded.
        machine: The machine of ``chappe chain serve``: a word that it knows, or ``MODULE:CLASS``.
        fixed: Do without agreement between servers: any number of them may die, and the last one still confirms. A
            network that is cut, or a server that pauses, can make two chains of it, of which one loses what it has
            confirmed meanwhile. Fixed once it is founded.

    Raises:
        UsageError: No server or too many, an invalid name, one address twice.
    """

    servers: Mapping[str, str]
    name: str = "chain"
    durable: bool = True
    machine: str = ""
    fixed: bool = False

    def __post_init__(self) -> None:
        if not self.servers:
            raise UsageError("a chain without servers cannot do anything: name at least one")
        if len(self.servers) > SERVERS_MAX:
            raise UsageError(f"a chain has at most {SERVERS_MAX} servers, not {len(self.servers)}")
        for each in (self.name, *self.servers):
            if not isinstance(each, str) or not NAME.fullmatch(each):
                raise UsageError(f"{each!a} is no name for a chain or its server: letters, digits, '.', '-' and '_'")
        places: dict[tuple[str, int], str] = {}
        for name, address in zip(self.servers, self.addresses, strict=True):
            if not address.port:
                raise UsageError(f"the server {name} needs a port that the others know: HOST:PORT")
            address.check_dialled()
            other = places.setdefault((address.host, address.port), name)
            if other != name:
                raise UsageError(f"{other} and {name} have the same address: each server needs its own")

    @classmethod
    def load(cls, path: str | Path) -> ChainConfiguration:
        """Read a configuration from a TOML file; the reference of ``chappe chain`` lists its keys.

        Raises:
            ConfigError: The file cannot be read, or has an unknown key or a wrong value.
        """
        try:
            with open(path, "rb") as file:
                raw = file.read(FILE_BYTES_MAX + 1)
            if len(raw) > FILE_BYTES_MAX:
                raise ConfigError(f"{path} is no configuration of a chain: it has more than {FILE_BYTES_MAX:,} bytes")
            found = msgspec.convert(tomllib.loads(raw.decode()), _File)
            return cls(found.servers, found.name, found.durable, found.machine, found.fixed)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
        except UnicodeEncodeError:  # half of a surrogate pair
            raise ConfigError(f"{path!a} is not the name of a file") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is no configuration of a chain: it is not text in UTF-8") from None
        except (tomllib.TOMLDecodeError, msgspec.ValidationError, UsageError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def of(cls, given: ChainConfiguration | str | Path) -> ChainConfiguration:
        """Return a configuration as it is, or read its file."""
        return given if isinstance(given, ChainConfiguration) else cls.load(given)

    @property
    def names(self) -> tuple[str, ...]:
        """The servers' names, in their order."""
        return tuple(self.servers)

    @property
    def addresses(self) -> list[MapAddress]:
        """The servers' addresses, in their order. Raises UsageError."""
        return [MapAddress.parse(each, 0, "a server of a chain") for each in self.servers.values()]

    @property
    def chain(self) -> bytes:
        """The identifier of the chain on the wire."""
        return chain_of(self.name, self.names, fixed=self.fixed)

    def place(self, name: str) -> int:
        """Return the position of a server. Raises UsageError."""
        try:
            return self.names.index(name)
        except ValueError:
            raise UsageError(f"the chain {self.name} has no server {name!a}, but {', '.join(self.names)}") from None

    def check_agrees(self, what: str) -> None:
        """Raise UsageError for a fixed chain: ``what`` relies on agreement."""
        if self.fixed:
            raise UsageError(
                f"{what} need servers that agree, as a fixed chain can lose what it has confirmed: name them in a chain"
                f" of its own, without fixed, instead of {self.name}"
            )

    def known(self, gate: Gate | None) -> list[MapAddress]:
        """Return the addresses, with the identity of each if there are keys. Raises UsageError."""
        return [each.known(gate) for each in self.addresses]
