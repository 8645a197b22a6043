"""Who may be a client of a WebSocket server.

A browser lets any page of the web open a WebSocket to any address, this machine's included, and only tells the server
where the page came from: its origin. Pages of this machine may connect, and those that were named; no others. Programs
that are not browsers send no origin and may connect: they could send any.

A client that has not sent its first frame gives way to any that comes. Where all have, one of the host that has the
most gives way to a client of a host that has fewer; so nobody can keep all others out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from chappe.defaults import WEBSOCKET_CLIENTS_MAX
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
        raise UsageError(f"{origin!r} is not an origin of web pages, which looks like https://example.org:8443")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + ("" if port in (None, _PORTS[parts.scheme]) else f":{port}")


class Guest(Protocol):
    """A client that can be asked to go."""

    def give_way(self) -> None:
        """End it, soon."""


class Room:
    """The clients of one server; in a single thread."""

    def __init__(self) -> None:
        self._silent: dict[Guest, str] = {}  # by host, the oldest first
        self._speaking: dict[Guest, str] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._speaking)

    def enter(self, guest: Guest, host: str) -> bool:
        """A client comes; False if there is no room for it."""
        if len(self) >= WEBSOCKET_CLIENTS_MAX:
            loser = self._loser(host)
            if loser is None:
                return False
            self.leave(loser)
            loser.give_way()
        self._silent[guest] = host
        return True

    def spoke(self, guest: Guest) -> None:
        """A client has sent its first frame."""
        if guest in self._silent:
            self._speaking[guest] = self._silent.pop(guest)

    def leave(self, guest: Guest) -> None:
        """A client has gone; safe to call twice."""
        self._silent.pop(guest, None)
        self._speaking.pop(guest, None)

    def _loser(self, host: str) -> Guest | None:
        if self._silent:
            return next(iter(self._silent))
        counts = Counter(self._speaking.values())
        greedy, most = counts.most_common(1)[0]
        if counts[host] + 1 >= most:
            return None
        return next(each for each in reversed(self._speaking) if self._speaking[each] == greedy)
