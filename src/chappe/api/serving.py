"""What servers over HTTP need to be as careful as others: TLS, which hosts they may listen on, whom they answer."""

from __future__ import annotations

from collections.abc import Sequence
from ssl import SSLContext
from urllib.parse import urlsplit

from chappe.errors import UsageError
from chappe.security import Security, Tls, check_reach, is_loopback
from chappe.transports.tls import contexts


def may_be_dialled(found: Sequence[str], named: frozenset[str]) -> bool:
    """Whether a client of a server on loopback may have dialled the ``Host`` that it names."""
    if len(found) != 1:
        return False
    try:
        host = urlsplit(f"//{found[0]}").hostname or ""
    except ValueError:
        return False
    return is_loopback(host) or host in {urlsplit(each).hostname for each in named}


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
