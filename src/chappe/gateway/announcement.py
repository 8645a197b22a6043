"""What a gateway tells the others of a domain, as one prefix in the filter of its endpoint there.

Link states carry filters to everybody in a domain, tell in what order they changed, and end with their endpoint. So
gateways need no messages to know each other, and no timers to notice that one is gone::

    <$>/gateway/1/HERE/THERE/STATE/PATH

``HERE`` and ``THERE`` are the names of the domain and of the one behind the gateway. ``STATE`` is three letters: ``l``
it listens, ``s`` it is settled; ``u`` its way to the root of the tree begins in this domain, ``d`` it does not; ``p``
it passes, ``w`` it waits. ``PATH`` has the names of the gateways from the root to this one, in hexadecimal digits, with
dots between them; it is empty for a gateway that takes no part yet.

A shorter prefix in the same filter would cover it: so gateways want neither everything nor anything that begins with
``<`` (``summary``).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from chappe.errors import UsageError
from chappe.mesh.filters import Filter

NAME_BYTES: Final = 16  # of a gateway's name
PREFIX: Final = b"<$>/gateway/1/"
MARKED: Final = b"<$>/gateway/marked"  # the topic of messages from gateway to gateway
_BYTES_MAX: Final = 16_384  # of an announcement; what is longer is none
_DOMAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FORM: Final = re.compile(
    rb"([A-Za-z0-9._-]{1,64})/([A-Za-z0-9._-]{1,64})/([ls])([ud])([pw])/((?:[0-9a-f]{32}(?:\.(?!$)|$))*)"
)


@dataclass(frozen=True, slots=True)
class Announcement:
    """What one gateway says in one domain."""

    here: str
    there: str
    path: tuple[bytes, ...] = ()
    settled: bool = False
    up: bool = False
    passes: bool = False

    @property
    def rank(self) -> tuple[bytes, int, bytes]:
        """Of two ways to the root the one that compares less is better: older root, shorter way, older gateway."""
        return self.path[0], len(self.path), self.path[-1]

    @property
    def feeds(self) -> bool:
        """Whether it brings this domain what comes from the root."""
        return self.passes and not self.up

    def pack(self) -> bytes:
        """The prefix."""
        state = ("s" if self.settled else "l") + ("u" if self.up else "d") + ("p" if self.passes else "w")
        path = ".".join([each.hex() for each in self.path])
        return PREFIX + f"{self.here}/{self.there}/{state}/{path}".encode()


def find(wanted: Filter) -> Announcement | None:
    """What an endpoint with this filter announces, if it is a gateway. Of several only the first counts."""
    at = bisect_left(wanted, PREFIX)
    if at == len(wanted) or not wanted[at].startswith(PREFIX):
        return None
    found = None if len(wanted[at]) > _BYTES_MAX else _FORM.fullmatch(wanted[at], len(PREFIX))
    if found is None:
        return None
    here, there, listens, way, passes, path = found.groups()
    names = tuple([bytes.fromhex(each.decode()) for each in path.split(b".")]) if path else ()
    return Announcement(here.decode(), there.decode(), names, listens == b"s", way == b"u", passes == b"p")


def check_domain(name: str) -> str:
    """The name of a domain; raises UsageError."""
    if not _DOMAIN.fullmatch(name):
        raise UsageError(
            f"{name[:100]!r} is not a name of a domain: 1 to 64 letters, digits, '.', '_' and '-', the first of them a"
            " letter or digit"
        )
    return name
