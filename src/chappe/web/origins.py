"""Which web pages may connect.

A browser lets any page of the web open a WebSocket to any address, this machine's included, and only tells the server
where the page came from: its origin. Pages of this machine may connect, and those that were named; no others. Programs
that are no browsers send no origin and may connect: they could send any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from chappe.errors import UsageError
from chappe.security import is_loopback

_PORTS = {"http": 80, "https": 443}


def check_origins(origins: Iterable[str]) -> frozenset[str]:
    """Origins that a user named, in the form that browsers send; raises UsageError."""
    return frozenset([_normal(each) for each in origins])


def may_connect(found: Sequence[str], named: frozenset[str]) -> bool:
    """Whether a client whose ``Origin`` headers are ``found`` may connect."""
    if not found:
        return True
    if len(found) > 1:
        return False
    try:
        origin = _normal(found[0])
    except UsageError:  # such as `null`, of files and of frames that hide where they are from
        return False
    return origin in named or is_loopback(urlsplit(origin).hostname or "")


def _normal(origin: str) -> str:
    try:
        parts = urlsplit(origin.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
        parts = urlsplit("")
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if parts.scheme not in _PORTS or not host or extra:
        raise UsageError(f"{origin!r} is no origin of web pages: it looks like https://example.org:8443")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + ("" if port in (None, _PORTS[parts.scheme]) else f":{port}")
