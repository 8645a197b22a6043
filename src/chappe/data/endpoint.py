"""Endpoints: where a member listens, as it travels in beacons and messages."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final

from chappe.defaults import ENDPOINT_BYTES_MAX

# A name or an address. Nothing of what else ZeroMQ understands, such as ``ADDRESS:PORT;HOST``, by which one dials from.
_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


def is_endpoint(text: str) -> bool:
    """Return whether ``text`` is ``tcp://HOST:PORT``, printable and of at most ``ENDPOINT_BYTES_MAX`` characters.

    Where connections have keys ``#NAME`` follows, the identity whose key is to be there.
    Other transports are refused: what comes from the network must not make us open sockets of this machine. So are
    addresses at which nobody is: unspecified ones, and those of many.
    """
    where, mark, name = text.removeprefix("tcp://").partition("#")
    host, _, port = where.rpartition(":")
    return (
        text.startswith("tcp://")
        and len(text) <= ENDPOINT_BYTES_MAX
        and text.isascii()
        and text.isprintable()
        and _is_host(host)
        and port.isdigit()
        and 0 < int(port) < 65536
        and (not mark or _NAME.fullmatch(name) is not None)
    )


def _is_host(text: str) -> bool:
    """True if it can be the name or the address of a single machine."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if _HOST.fullmatch(host) is None:
        return False
    if ":" not in host and _NUMBER.fullmatch(host.rpartition(".")[2]) is None:
        return True  # a name
    try:
        address = ip_address(host)
    except ValueError:
        return False  # also forms that systems accept as addresses, such as 0 or 127.1
    plain = getattr(address, "ipv4_mapped", None) or address
    return not plain.is_unspecified and not plain.is_multicast and str(plain) != "255.255.255.255"


def identity_of(endpoint: str) -> tuple[str, str]:
    """Split an endpoint into its address and the identity expected there, which is empty if it names none."""
    where, _, name = endpoint.partition("#")
    return where, name
