"""Endpoints: where a member listens, as it travels in beacons and messages."""

from __future__ import annotations

from chappe.defaults import ENDPOINT_BYTES_MAX


def is_endpoint(text: str) -> bool:
    """Whether ``text`` is ``tcp://HOST:PORT``, printable and of at most ``ENDPOINT_BYTES_MAX`` characters.

    Other transports are refused: what comes from the network must not make us open sockets of this machine.
    """
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    return (
        text.startswith("tcp://")
        and len(text) <= ENDPOINT_BYTES_MAX
        and text.isascii()
        and text.isprintable()
        and bool(host)
        and port.isdigit()
        and 0 < int(port) < 65536
    )
