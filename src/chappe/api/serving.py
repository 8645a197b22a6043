"""What a server beside an endpoint needs to be as careful as it: TLS, and which hosts it may listen on."""

from __future__ import annotations

from ssl import SSLContext

from chappe.errors import UsageError
from chappe.security import Security, Tls, check_reach, is_loopback
from chappe.transports.tls import contexts


def server_tls(security: Security, host: str) -> SSLContext | None:
    """TLS for a server on ``host`` beside an endpoint with ``security``; None for plain connections.

    With certificates a client needs one of the same authority, as a peer does.

    Raises:
        UsageError: The host is reachable from other machines and the security does not allow that, or its files are
            wrong.
    """
    if isinstance(security, Tls):
        made = contexts(security)
        assert made is not None
        return made.accepting
    if security == "anonymous" and not is_loopback(host):
        raise UsageError(f"{host} is not this machine, and no browser knows anonymous TLS: use certificates")
    check_reach(security, host)
    return None
