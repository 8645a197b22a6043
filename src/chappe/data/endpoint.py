"""Endpoints: where a member listens, as it travels in beacons and messages."""

from __future__ import annotations

import re
from typing import Final

from chappe.defaults import ENDPOINT_BYTES_MAX

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


def is_endpoint(text: str) -> bool:
    """Whether ``text`` is ``tcp://HOST:PORT``, printable and of at most ``ENDPOINT_BYTES_MAX`` characters.

    Where connections have keys ``#NAME`` follows, the identity whose key is to be there.
    Other transports are refused: what comes from the network must not make us open sockets of this machine.
    """
    where, mark, name = text.removeprefix("tcp://").partition("#")
    host, _, port = where.rpartition(":")
    return (
        text.startswith("tcp://")
        and len(text) <= ENDPOINT_BYTES_MAX
        and text.isascii()
        and text.isprintable()
        and bool(host)
        and port.isdigit()
        and 0 < int(port) < 65536
        and (not mark or _NAME.fullmatch(name) is not None)
    )


def identity_of(endpoint: str) -> tuple[str, str]:
    """Where it is, and the name of who is to be there; empty if it names nobody."""
    where, _, name = endpoint.partition("#")
    return where, name
