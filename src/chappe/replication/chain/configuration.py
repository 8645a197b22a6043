"""Configurations: the members of a chain in order; its servers agree on one for each number."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from chappe.errors import ProtocolError
from chappe.replication.agreement.core import SERVERS_MAX

Word = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_NAMED = msgspec.Meta(max_length=SERVERS_MAX)
LINE: Final = 256  # of a fixed chain: so many former configurations are known


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """One configuration.

    Args:
        chain: The members, head first: the place of each among the named servers, and its life.
        disks: Of each named server, as far as its votes count.
        out: Of each named server, whether it is to stay out of the chain.
        durable: Whether committed means on disk at all members, or in memory of all.
        line: Of a fixed chain, where two configurations may follow the same one: the numbers of those before it, the
            newest last. Empty where servers agree.
    """

    chain: Annotated[tuple[tuple[Word, Word], ...], _NAMED]
    disks: Annotated[tuple[Word, ...], _NAMED]
    out: Annotated[tuple[bool, ...], _NAMED]
    durable: bool
    line: Annotated[tuple[Word, ...], msgspec.Meta(max_length=LINE)] = ()

    @property
    def fixed(self) -> bool:
        return bool(self.line)

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(place for place, _ in self.chain)

    def life(self, place: int) -> int:
        """Return the life of a member; 0 if it is not one."""
        return dict(self.chain).get(place, 0)


NOBODY = Configuration((), (), (), True)  # before the chain is founded
_DECODER: msgspec.msgpack.Decoder[Configuration] = msgspec.msgpack.Decoder(Configuration)


def encode(configuration: Configuration) -> bytes:
    if configuration.fixed:
        return msgspec.msgpack.encode(configuration)
    return msgspec.msgpack.encode((configuration.chain, configuration.disks, configuration.out, configuration.durable))


def decode(value: bytes) -> Configuration:
    """Decode a configuration. Raises ProtocolError: it is not one, or has no members."""
    try:
        found = _DECODER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"invalid configuration of a chain, of {len(value)} bytes: {error}") from None
    named = len(found.disks)
    if not 0 < named <= SERVERS_MAX or len(found.out) != named:
        raise ProtocolError(f"a configuration of a chain for {named} servers")
    places = set(found.places)
    if not places or len(places) < len(found.chain) or max(places) >= named or not all(dict(found.chain).values()):
        raise ProtocolError(f"a configuration of a chain with the members {found.chain}")
    return found


def line_behind(configuration: Configuration, number: int) -> tuple[int, ...]:
    """Return the line of a configuration that follows this one of a fixed chain."""
    return (*configuration.line, number)[-LINE:]


def disks_of(value: bytes) -> tuple[int, ...]:
    """Return the disk of each named server: whose votes count. Raises ProtocolError."""
    return decode(value).disks
