"""Which servers make a chain: what servers and clients share."""

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
    """The servers of a chain, in order: the first one is its head when it is founded, the last one its tail.

    Servers and clients are given the same one. Names of chain and servers never change once it is founded, and none is
    added; addresses may change, when all know it.

    Args:
        servers: The address of each server by its name, ``HOST:PORT``; ``IDENTITY@HOST:PORT`` where several identities
            may be servers at that host.
        name: Of the chain: rules of permissions go by it as by a topic.
        durable: Whether what is confirmed is on disk at all members, or in the memory of all. It is founded so.
        machine: What ``chappe chain serve`` replicates: a word that it knows, or ``MODULE:CLASS``.
        fixed: Whether servers do without agreement: any number of them may die, and the last one still confirms. A
            network that is cut, or a server that pauses, can make two chains of it, of which one loses what it has
            confirmed meanwhile. It is founded so.

    Raises:
        UsageError: No server or too many, a name that is none, one address twice.
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
        """The configuration in a TOML file; see the reference of ``chappe chain`` for what it has.

        Raises:
            ConfigError: It cannot be read, or says something that is not known.
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
        """What is given, or what is in the file that is given."""
        return given if isinstance(given, ChainConfiguration) else cls.load(given)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the servers, in order."""
        return tuple(self.servers)

    @property
    def addresses(self) -> list[MapAddress]:
        """Of the servers, in order. Raises UsageError."""
        return [MapAddress.parse(each, 0, "a server of a chain") for each in self.servers.values()]

    @property
    def chain(self) -> bytes:
        """Which chain it is, on the wire."""
        return chain_of(self.name, self.names, fixed=self.fixed)

    def place(self, name: str) -> int:
        """Of a server. Raises UsageError."""
        try:
            return self.names.index(name)
        except ValueError:
            raise UsageError(f"the chain {self.name} has no server {name!a}, but {', '.join(self.names)}") from None

    def check_agrees(self, what: str) -> None:
        """Refuse a fixed chain for ``what``, which counts on servers that agree. Raises UsageError."""
        if self.fixed:
            raise UsageError(
                f"{what} need servers that agree, as a fixed chain can lose what it has confirmed: name them in a chain"
                f" of its own, without fixed, instead of {self.name}"
            )

    def known(self, gate: Gate | None) -> list[MapAddress]:
        """Addresses with the identity of each, if there are keys. Raises UsageError if that is not clear."""
        return [each.known(gate) for each in self.addresses]
